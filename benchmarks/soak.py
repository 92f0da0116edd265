"""Watch time and memory of training, with and without recompute: python -m benchmarks.soak --help.

A graph that keeps 40 kB of each update passes tests of gradients, and ends a long run.
"""

import json
import resource
from pathlib import Path

from benchmarks.pretraining import ProjectUpdates, random_batch
from benchmarks.turns import Contender
from model_utils.config import run_main
from model_utils.errors import ConfigError
from model_utils.memory import peak_memory
from model_utils.schema import Config, option
from src.albert_config import PRESETS, AlbertConfig

MEGABYTE = 1e6


class SoakConfig(Config):
    """Train a network with and without recompute, and watch memory: python -m benchmarks.soak."""

    albert_network: str = option("", "preset of sizes; without one a small network", choices=("", *PRESETS))
    updates: int = option(3000, "updates in all", minimum=2)
    warm_up: int = option(100, "updates, after the first one, after which resident memory is first read", minimum=1)
    batch_size: int = option(4, "examples of a batch", minimum=1)
    length: int = option(32, "tokens of an example", minimum=8, maximum=512)
    layers: int = option(0, "of the network; 0: as the preset, 4 without one", minimum=0, maximum=1024)
    hidden_size: int = option(
        64,
        "of the small network, a multiple of 16; four heads",
        minimum=16,
        maximum=4096,
        needs=("albert_network", ""),
    )
    dropout: float = option(0.1, "probability in the encoder", minimum=0.0, maximum=0.9)
    limit: float = option(5.0, "MB by which memory may grow from then to the end", minimum=0.0)

    def check_together(self) -> None:
        if self.warm_up >= self.updates:
            raise ConfigError(f"warm_up is {self.warm_up}, allowed is less than updates ({self.updates})")
        if self.hidden_size % 16:
            raise ConfigError(f"hidden_size is {self.hidden_size}, allowed are multiples of 16")

    def architecture(self, recompute: bool) -> AlbertConfig:
        if self.albert_network:
            sizes = PRESETS[self.albert_network]
        else:
            sizes = PRESETS["albert_tiny"].replace(
                vocab_size=1000,
                embedding_size=32,
                num_hidden_layers=4,
                hidden_size=self.hidden_size,
                num_attention_heads=4,
                intermediate_size=4 * self.hidden_size,
            )
        return sizes.replace(
            num_hidden_layers=self.layers or sizes.num_hidden_layers,
            hidden_dropout_prob=self.dropout,
            attention_probs_dropout_prob=self.dropout,
            recompute=recompute,
        )


class WatchedUpdates(ProjectUpdates):
    """Updates in a process that reads its own memory, in MB."""

    def resident(self) -> float:
        """Return the resident memory of this process."""
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / MEGABYTE

    def peak(self) -> float:
        """Return the peak of this process's memory."""
        return peak_memory() / MEGABYTE


def measure(config: SoakConfig, recompute: bool) -> dict[str, float]:
    """Train in a new process; return its memory in MB, and seconds an update after the warm-up.

    first_update_s includes the compilation, before_mb is measured before it; growth_mb is that of resident memory from
    after the warm-up to the end.
    """
    architecture = config.architecture(recompute)
    columns = random_batch(architecture, config.batch_size, config.length)
    with Contender(WatchedUpdates, architecture, columns, "CPU") as side:
        before = side.call("resident")
        compilation = side.call("work", 1)
        side.call("work", config.warm_up)
        first = side.call("resident")
        measured = config.updates - config.warm_up
        seconds = side.call("work", measured) / measured
        last, peak = side.call("resident"), side.call("peak")
    figures = {"before_mb": before, "peak_mb": peak, "after_warm_up_mb": first, "at_the_end_mb": last}
    return figures | {"growth_mb": last - first, "first_update_s": compilation, "seconds_per_update": seconds}


def main(config: SoakConfig) -> int:
    """Measure and print as JSON; return 1 if memory grew more than the limit."""
    results = {name: measure(config, recompute) for name, recompute in (("plain", False), ("recompute", True))}
    print(json.dumps(config.to_dict() | results, indent=2))
    return int(max(result["growth_mb"] for result in results.values()) > config.limit)


if __name__ == "__main__":
    run_main(main, SoakConfig)
