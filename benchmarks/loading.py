"""How fast batches of pre-training are read and, with dynamic masks, masked: python -m benchmarks.loading.

The fastest of several rounds counts. Training has to be slower than that on every device it is to keep busy.
"""

import itertools
import time

from dataset import create_pretrain_dataset
from model_utils.config import ROWS, run_main
from model_utils.schema import Config, option
from src.data.batches import Loading


class LoadingConfig(Config):
    """Time the batches of pre-training: python -m benchmarks.loading."""

    data_dir: str = option("", "folder with one set of MindRecord files, or google's *.tfrecord", required=True)
    batch_size: int = option(32, "examples of a batch", minimum=1, maximum=ROWS)
    batches: int = option(200, "batches of a round", minimum=1)
    rounds: int = option(5, "rounds, after a first one that is not counted", minimum=1)


def main(config: LoadingConfig) -> None:
    """Print examples a second of the fastest round."""
    data = create_pretrain_dataset(config.data_dir, Loading(config.batch_size))
    endless = (batch for epoch in itertools.count() for batch in data.batches(epoch))
    seconds = []
    for _ in range(1 + config.rounds):
        start = time.perf_counter()
        for _ in range(config.batches):
            next(endless)
        seconds.append(time.perf_counter() - start)
    rate = config.batches * config.batch_size / min(seconds[1:])
    print(f"{rate:,.0f} examples/s of {data.facts['max_seq_length']} tokens, batches of {config.batch_size}")


if __name__ == "__main__":
    run_main(main, LoadingConfig)
