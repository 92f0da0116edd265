"""The same work by several programs in turns, and the share of the machine's matrix-product speed that each reaches.

All do the same in turn, so that a disturbance of the machine meets all; the minimum stands beside the median, because
it is disturbed least. Leave the machine alone while this runs: on busy cores, libraries that wait for their own threads
lose much more than their share.
"""

import logging
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any, ClassVar

import numpy as np

from benchmarks.commands import tell
from benchmarks.machine import MatrixProducts
from benchmarks.torch_device import without_cuda_libraries
from benchmarks.turns import Contender, Others, describe_others
from model_utils.backend import USES
from model_utils.cpu_threads import threads
from model_utils.device import default_compute_type
from model_utils.errors import ConfigError
from model_utils.schema import Config, option
from src.albert_config import COMPUTE_TYPES, PRESETS, AlbertConfig

logger = logging.getLogger(__name__)
OURS = "this project"
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


class ContestConfig(Config):
    """What contests have in common."""

    albert_network: str = option("albert_base", "preset of sizes", choices=tuple(PRESETS))
    batch_size: int = option(8, "examples of a batch", minimum=1)
    length: int = option(128, "tokens of an example", minimum=8, maximum=512)
    rounds: int = option(7, "turns of each side, after a first one that is not counted", minimum=1)
    steps: int = option(1, "times that the work is done in a turn: more than 1 lets a GPU queue them", minimum=1)
    device_target: str = option("CPU", "this project's device", choices=("CPU", "GPU", "Ascend"))
    compute_type: str = option(
        "",
        "type of the matrix products; empty: float32 on CPU, else float16; bfloat16: CPUs that multiply it",
        choices=("", *COMPUTE_TYPES),
    )
    fused_layers: str = option("auto", "this project's layers in C++, as run_pretrain.py has them", choices=USES)
    peers: tuple[str, ...] = option((), "the others")
    KNOWN_PEERS: ClassVar[tuple[str, ...]] = ()
    output: str = option("", "JSON file for the figures; empty: none")

    def validate(self) -> None:
        if unknown := [peer for peer in self.peers if peer not in self.KNOWN_PEERS]:
            raise ConfigError(f"peers names {unknown[0]}, allowed are {', '.join(self.KNOWN_PEERS)}")
        if self.peers and self.device_target == "Ascend":
            raise ConfigError("others are measured on CPU and GPU: for Ascend give --peers ''")
        if self.peers and self.device_target == "CPU" and self.compute_type not in ("", "float32"):
            raise ConfigError("on CPU others are measured in float32: for anything else give --peers ''")

    def architecture(self, dropout: float = 0.0) -> AlbertConfig:
        """The preset with this dropout in the encoder, and none elsewhere."""
        return PRESETS[self.albert_network].replace(
            hidden_dropout_prob=dropout,
            attention_probs_dropout_prob=dropout,
            classifier_dropout_prob=0.0,
            compute_type=self.compute_type or default_compute_type(self.device_target),
        )


@dataclass
class Side:
    """What one side showed; seconds are for the work done once. `outputs` say what it computes.

    peak_memory: bytes that the whole process has held at most; on a GPU, those of its memory that tensors have held.
    """

    name: str
    device: str
    software: str
    outputs: list[float]
    first_seconds: float = 0.0
    seconds: list[float] = field(default_factory=list)
    peak_memory: int = 0

    @property
    def median(self) -> float:
        return median(self.seconds)

    @property
    def minimum(self) -> float:
        return min(self.seconds)


@dataclass
class Contest:
    """What all sides showed, this project's first.

    operations: of matrix products in the work as this project does it, 2 for each multiply-add. tokens: in the work.
    products: operations a second of large square matrix products, measured in the same turns; on CPU alone.
    """

    sides: list[Side]
    operations: float
    tokens: int
    products: list[float] = field(default_factory=list)
    disturbance: float = 0.0

    def difference(self) -> float:
        """How far any side's outputs are from the first side's, as a share of their largest; NaN if one is."""
        first, *others = np.array([side.outputs for side in self.sides])
        return float(np.max([np.abs(other - first).max() / np.abs(first).max() for other in (first, *others)]))


def hold(
    config: ContestConfig,
    ours: tuple[Callable[..., object], ...],
    peers: Mapping[str, tuple[Callable[..., object], ...]],
    operations: float,
    tolerance: float,
) -> Contest:
    """Start the sides, compare what they compute, and let them take turns.

    Args:
        ours, peers: classes with their arguments, to which this project's weights by name are added for peers. Objects
            have facts() -> {"device", "software"}, outputs() -> [number], work(times) -> seconds for all and, on a GPU,
            device_memory() -> bytes; ours has weights().

    Returns the contest, without turns if the outputs differ by more than `tolerance`.
    """
    with Others() as others, ExitStack() as stack:
        first = stack.enter_context(Contender(*ours))
        weights = first.call("weights")
        with without_cuda_libraries():
            theirs = {name: stack.enter_context(Contender(*make, weights)) for name, make in peers.items()}
        made = {OURS: first} | theirs
        sides = [Side(name, **contender.call("facts"), outputs=[]) for name, contender in made.items()]
        for side, contender in zip(sides, made.values(), strict=True):
            start = time.perf_counter()
            side.outputs = contender.call("outputs")
            side.first_seconds = time.perf_counter() - start
        contest = Contest(sides, operations, config.batch_size * config.length)
        if not contest.difference() <= tolerance:
            return contest
        on_cpu = config.device_target == "CPU"
        products = (
            stack.enter_context(Contender(MatrixProducts, config.architecture().compute_type)) if on_cpu else None
        )
        for side, contender in zip(sides, made.values(), strict=True):
            # The first pass or the first update: the longer of both has been compiled for.
            side.first_seconds = max(side.first_seconds, contender.call("work", 1))
        for _ in range(config.rounds):
            for side, contender in zip(sides, made.values(), strict=True):
                side.seconds.append(contender.call("work", config.steps) / config.steps)
            if products:
                contest.products.append(products.call("flops_per_second"))
        for side, contender in zip(sides, made.values(), strict=True):
            on_gpu = config.device_target == "GPU"
            side.peak_memory = contender.call("device_memory") if on_gpu else contender.peak_memory()
    contest.disturbance = others.share
    return contest


def conclude(config: ContestConfig, contest: Contest, tolerance: float) -> int:
    """Print the table, write the JSON file; code 1 if the sides do not compute the same."""
    difference = contest.difference()
    if not difference <= tolerance:
        print(
            f"error: outputs differ by {difference:.1e} of their largest, allowed is {tolerance:.0e}: the sides "
            "do not compute the same, so their times cannot be compared",
            file=sys.stderr,
        )
        return 1
    figures = {"config": config.to_dict(), **asdict(contest), "difference": difference}
    tell(report(config, contest, tolerance), figures, config.output)
    return 0


def describe(seconds: float) -> str:
    """Seconds with four digits, as milliseconds when short."""
    return f"{seconds:.4g} s" if seconds >= 1 else f"{1000 * seconds:.4g} ms"


def report(config: ContestConfig, contest: Contest, tolerance: float) -> str:
    """The figures as a table with what they depend on."""
    sides, ours = contest.sides, contest.sides[0]
    speed = median(contest.products) if contest.products else 0.0
    peak = PEAKS.get(ours.device, {}).get(config.architecture().compute_type, 0.0) * 1e12
    wide = max(len(side.name) for side in sides)
    heading = f"{'':{wide}} {'first':>9} {'median':>9} {'minimum':>9} {'peak GB':>8} {'tokens/s':>10} {'GFLOP/s':>8}"
    lines = [heading + (" of products' speed" if speed else " of the peak" if peak else "") + "  others' / ours"]
    for side in sides:
        first, usual, least = map(describe, (side.first_seconds, side.median, side.minimum))
        reached = contest.operations / side.median
        speeds = f"{reached / 1e9:8.1f}"
        if speed or peak:
            speeds += f" {reached / (speed or peak):{18 if speed else 12}.3f}"
        if side is not ours:  # whose operations are more: the vocabulary's scores of all tokens, all of the last layer
            ratio = f"{side.median / ours.median:.3f} (minimum {side.minimum / ours.minimum:.3f})"
            speeds = f"{'':{len(speeds)}}  {ratio}"
        figures = f"{first:>9} {usual:>9} {least:>9} {side.peak_memory / 1e9:8.2f}"
        lines.append(f"{side.name:{wide}} {figures} {contest.tokens / side.median:10,.0f} {speeds}")
    lines += [f"{side.name:{wide}} {side.device}: {side.software}" for side in sides]
    lines.append(
        f"{contest.operations / 1e9:.1f} GFLOP of matrix products; {config.rounds} rounds of {config.steps}, "
        f"{threads()} threads"
        + (f"; large square products: {speed / 1e9:.1f} GFLOP/s, the median of as many" if speed else "")
    )
    if len(sides) > 1:
        lines.append(f"outputs differ by {contest.difference():.1e} of their largest, allowed {tolerance:.0e}")
    lines.append(describe_others(contest.disturbance))
    return "\n".join(lines)


def facts_of(architecture: AlbertConfig, config: Any) -> str:
    """A line that says what is measured."""
    return (
        f"{config.albert_network}, {config.batch_size} x {config.length}, {architecture.compute_type}, dropout "
        f"{architecture.hidden_dropout_prob:g}"
    )
