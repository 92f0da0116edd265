"""How long one pre-training update takes here and with transformers: python -m benchmarks.train_step.

Both make the same updates in turn, so that a disturbance of the machine meets both; the minimum stands beside the
median, because it is disturbed least. Leave the machine alone while this runs: on busy cores, libraries that wait for
their own threads lose much more than their share.
"""

import logging
import os
import statistics
import sys
from contextlib import ExitStack
from dataclasses import dataclass

from benchmarks.pretraining import OurUpdates, TransformersUpdates, predictions_of, random_batch
from benchmarks.turns import Contender, machine_seconds
from model_utils.config import run_main
from model_utils.device import default_compute_type
from model_utils.errors import ConfigError
from model_utils.schema import Config, option
from src.albert_config import COMPUTE_TYPES, PRESETS, AlbertConfig
from src.training.flops import forward_flops

logger = logging.getLogger(__name__)
LARGEST_DIFFERENCE = 1e-5  # of the first losses, as a share of the loss
QUIET = 0.05  # share of the machine's CPU time that others may use before a figure means little
# Dense matrix products in 10^12 operations a second, from NVIDIA's data sheets: float32 without TF32, which MindSpore
# leaves off, and float16 on tensor cores. Under the names that the driver gives the GPUs.
PEAKS = {
    "NVIDIA H200": {"float32": 67.0, "float16": 989.0},
    "NVIDIA H100 80GB HBM3": {"float32": 67.0, "float16": 989.0},
    "NVIDIA A100-SXM4-80GB": {"float32": 19.5, "float16": 312.0},
    "NVIDIA A100-SXM4-40GB": {"float32": 19.5, "float16": 312.0},
    "Tesla V100-SXM2-32GB": {"float32": 15.7, "float16": 125.0},
    "Tesla V100-SXM2-16GB": {"float32": 15.7, "float16": 125.0},
    "Tesla T4": {"float32": 8.1, "float16": 65.0},
}


class TrainStepConfig(Config):
    """Time pre-training updates, without dropout: python -m benchmarks.train_step."""

    albert_network: str = option("albert_base", "preset of sizes", choices=tuple(PRESETS))
    batch_size: int = option(8, "examples of a batch", minimum=1)
    length: int = option(128, "tokens of an example", minimum=8, maximum=512)
    rounds: int = option(10, "turns of each side, after a first update that is not counted", minimum=1)
    steps: int = option(1, "updates of a turn, timed together: more than 1 lets a GPU queue them", minimum=1)
    device_target: str = option("CPU", "this project's device", choices=("CPU", "GPU", "Ascend"))
    compute_type: str = option(
        "",
        "type of the matrix products; empty: float32 on CPU, else float16; bfloat16: CPUs with AMX",
        choices=("", *COMPUTE_TYPES),
    )
    only: str = option("", "ours: this project alone, without torch", choices=("", "ours"))

    def validate(self) -> None:
        if not self.only and (self.device_target != "CPU" or self.compute_type not in ("", "float32")):
            raise ConfigError("transformers is measured in float32 on CPU: for anything else give --only ours")

    def architecture(self) -> AlbertConfig:
        """The preset without dropout."""
        return PRESETS[self.albert_network].replace(
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            classifier_dropout_prob=0.0,
            compute_type=self.compute_type or default_compute_type(self.device_target),
        )


@dataclass
class Timing:
    """What one side showed: seconds are per update."""

    name: str
    device: str
    software: str
    first_seconds: float
    first_loss: float
    seconds: list[float]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def minimum(self) -> float:
        return min(self.seconds)


def measure(config: TrainStepConfig) -> list[Timing]:
    """Start the sides, compare their first losses, and let them take turns.

    Returns one Timing a side, without seconds if the first losses differ.
    """
    architecture = config.architecture()
    columns = random_batch(architecture, config.batch_size, config.length)
    with ExitStack() as stack:
        ours = stack.enter_context(Contender(OurUpdates, architecture, columns, config.device_target))
        sides = {"this project": ours}
        if not config.only:
            weights = ours.call("weights")
            theirs = stack.enter_context(Contender(TransformersUpdates, architecture, columns, weights))
            sides["transformers"] = theirs
        timings = [Timing(name, **side.call("facts"), **first_update(side)) for name, side in sides.items()]
        if difference(timings) <= LARGEST_DIFFERENCE:
            for _ in range(config.rounds):
                for timing, side in zip(timings, sides.values(), strict=True):
                    timing.seconds.append(side.call("updates", config.steps)[0] / config.steps)
    return timings


def first_update(side: Contender) -> dict[str, object]:
    """The fields of a Timing that come from the first update, which compiles and allocates."""
    seconds, loss = side.call("updates", 1)
    return {"first_seconds": seconds, "first_loss": loss, "seconds": []}


def difference(timings: list[Timing]) -> float:
    """How far the last side's first loss is from the first side's, as a share of it; not a number if one of them is."""
    first, last = timings[0].first_loss, timings[-1].first_loss
    return abs(last - first) / abs(first)


def describe(seconds: float) -> str:
    """Seconds with four digits, as milliseconds when short."""
    return f"{seconds:.4g} s" if seconds >= 1 else f"{1000 * seconds:.4g} ms"


def report(config: TrainStepConfig, timings: list[Timing], disturbance: float) -> str:
    """The figures as a table with what they depend on.

    Args:
        disturbance: share of the machine's CPU time that other programs used meanwhile.
    """
    architecture, tokens = config.architecture(), config.batch_size * config.length
    operations = 3 * forward_flops(architecture, config.batch_size, config.length, predictions_of(config.length))
    lines = [f"{'':14} {'first loss':>11} {'first update':>13} {'median':>10} {'minimum':>10} {'tokens/s':>10}"]
    for timing in timings:
        first, median, minimum = map(describe, (timing.first_seconds, timing.median, timing.minimum))
        rate = f"{tokens / timing.median:,.0f}"
        lines.append(f"{timing.name:14} {timing.first_loss:11.6f} {first:>13} {median:>10} {minimum:>10} {rate:>10}")
    ours = timings[0]
    lines += [f"{timing.name:14} {timing.device}: {timing.software}" for timing in timings]
    speed = operations / ours.median / 1e12
    share = ""
    if peak := PEAKS.get(ours.device, {}).get(architecture.compute_type):
        share = f" = {speed / peak:.1%} of {ours.device}'s {peak:g} (model-FLOPs utilisation)"
    lines.append(f"{ours.name:14} {operations / 1e9:.0f} GFLOP an update, {speed:.3g} TFLOP/s{share}")
    if len(timings) == 2:
        medians, minima = timings[1].median / ours.median, timings[1].minimum / ours.minimum
        lines.append(f"transformers takes {medians:.3f} times this project's median, {minima:.3f} times its minimum")
        lines.append(f"first losses differ by {difference(timings):.1e} of the loss, allowed {LARGEST_DIFFERENCE:.0e}")
    advice = "" if disturbance < QUIET else ": these figures say little, measure again on a quiet machine"
    lines.append(f"other programs used {disturbance:.0%} of the machine's CPU time meanwhile{advice}")
    return "\n".join(lines)


def main(config: TrainStepConfig) -> int:
    """Measure and print; code 1 if the two sides do not compute the same."""
    logger.info(
        f"{config.albert_network}, {config.batch_size} x {config.length}, {config.architecture().compute_type}, "
        f"dropout 0, {config.rounds} rounds of {config.steps} updates, {len(os.sched_getaffinity(0))} cores"
    )
    others, total = machine_seconds()
    timings = measure(config)
    others_after, total_after = machine_seconds()
    if not difference(timings) <= LARGEST_DIFFERENCE:
        losses = " and ".join(f"{timing.first_loss:.8g} ({timing.name})" for timing in timings)
        print(
            f"error: the first losses are {losses}, allowed is a difference of {LARGEST_DIFFERENCE:.0e} of the loss: "
            "the two do not compute the same, so their times cannot be compared",
            file=sys.stderr,
        )
        return 1
    print(report(config, timings, (others_after - others) / (total_after - total)))
    return 0


if __name__ == "__main__":
    run_main(main, TrainStepConfig)
