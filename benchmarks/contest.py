"""Contest of several programs at the same work, in turns, and each one's share of the machine's matrix-product speed.

The sides take turns, so that a disturbance of the machine meets all of them. The minimum, which is disturbed least,
stands beside the median. Leave the machine alone meanwhile: on busy cores, libraries that wait for their own threads
lose much more than their share.
"""

import logging
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import ClassVar

import numpy as np

from benchmarks.commands import PROJECT, print_and_write
from benchmarks.machine import MatrixProducts
from benchmarks.torch_device import without_cuda_libraries
from benchmarks.turns import Contender, OtherPrograms, describe_others
from model_utils.backend import FUSED_LAYERS_CHOICES
from model_utils.cpu_threads import threads
from model_utils.device import default_compute_type
from model_utils.errors import ConfigError
from model_utils.schema import Config, option
from src.albert_config import COMPUTE_TYPES, PRESETS, AlbertConfig

logger = logging.getLogger(__name__)
Constructor = tuple[Callable[..., object], *tuple[object, ...]]  # a class and its arguments
# Dense matrix products in 10^12 operations a second, from NVIDIA's data sheets: float32 without TF32, which MindSpore
# leaves off, and float16 on tensor cores. By the driver's names of the GPUs.
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
    """Keys of all contests."""

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
    fused_layers: str = option(
        "auto", "this project's layers in C++, as run_pretrain.py has them", choices=FUSED_LAYERS_CHOICES
    )
    peers: tuple[str, ...] = option((), "the others")
    KNOWN_PEERS: ClassVar[tuple[str, ...]] = ()
    output: str = option("", "JSON file for the figures; empty: none")

    def check_together(self) -> None:
        unknown = [peer for peer in self.peers if peer not in self.KNOWN_PEERS]
        if unknown:
            raise ConfigError(f"peers names {unknown[0]}, allowed are {', '.join(self.KNOWN_PEERS)}")
        if self.peers and self.device_target == "Ascend":
            raise ConfigError("peers are measured on CPU and GPU: for Ascend give --peers ''")
        if self.peers and self.device_target == "CPU" and self.compute_type not in ("", "float32"):
            raise ConfigError("on CPU peers are measured in float32: for anything else give --peers ''")

    def architecture(self, dropout: float = 0.0) -> AlbertConfig:
        """Return the preset with this dropout in the encoder, and none elsewhere."""
        return PRESETS[self.albert_network].replace(
            hidden_dropout_prob=dropout,
            attention_probs_dropout_prob=dropout,
            classifier_dropout_prob=0.0,
            compute_type=self.compute_type or default_compute_type(self.device_target),
        )


@dataclass
class Side:
    """Figures of one side; seconds are for the work done once, outputs are numbers to compare.

    peak_memory: bytes that the process held at most; on a GPU, bytes of its memory that tensors held.
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
    """Figures of all sides, this project's first.

    operations: of matrix products in the work as this project does it, 2 for each multiply-add. tokens: in the work.
    product_speeds: operations a second of large square matrix products, measured in the same turns; on CPU alone.
    """

    sides: list[Side]
    operations: float
    tokens: int
    product_speeds: list[float] = field(default_factory=list)
    disturbance: float = 0.0

    def difference(self) -> float:
        """Return the largest difference from the first side's outputs, as a share of their largest; NaN if one is."""
        outputs = np.array([side.outputs for side in self.sides])
        return float((np.abs(outputs - outputs[0]).max(axis=1) / np.abs(outputs[0]).max()).max())


def run_contest(
    config: ContestConfig,
    architecture: AlbertConfig,
    project: Constructor,
    peers: Mapping[str, Constructor],
    operations: float,
    tolerance: float,
) -> int:
    """Let the sides take turns, print the table and write the JSON file; return 1 if their outputs differ.

    Args:
        project, peers: classes with their arguments, to which peers get this project's weights by name. Objects have
            facts() -> {"device", "software"}, outputs() -> [number], work(times) -> seconds for all and, on a GPU,
            device_memory() -> bytes; this project's has weights().
    """
    logger.info(
        f"{config.albert_network}, {config.batch_size} x {config.length}, {architecture.compute_type}, "
        f"dropout {architecture.hidden_dropout_prob:g}"
    )
    with OtherPrograms() as others, ExitStack() as stack:
        contenders = _start_sides(stack, project, peers)
        contest = Contest(_first_figures(contenders), operations, config.batch_size * config.length)
        if contest.difference() <= tolerance:
            _take_turns(config, contest, contenders, stack)
    contest.disturbance = others.share
    return report_contest(config, contest, tolerance)


def _start_sides(stack: ExitStack, project: Constructor, peers: Mapping[str, Constructor]) -> dict[str, Contender]:
    first = stack.enter_context(Contender(*project))
    contenders = {PROJECT: first}
    weights = first.call("weights")
    with without_cuda_libraries():
        for name, constructor in peers.items():
            contenders[name] = stack.enter_context(Contender(*constructor, weights))
    return contenders


def _first_figures(contenders: dict[str, Contender]) -> list[Side]:
    sides = []
    for name, contender in contenders.items():
        start = time.perf_counter()
        outputs = contender.call("outputs")
        seconds = time.perf_counter() - start
        sides.append(Side(name, **contender.call("facts"), outputs=outputs, first_seconds=seconds))
    return sides


def _take_turns(config: ContestConfig, contest: Contest, contenders: dict[str, Contender], stack: ExitStack) -> None:
    """Fill in the contest's figures of time and memory."""
    pairs = list(zip(contest.sides, contenders.values(), strict=True))
    products = None
    if config.device_target == "CPU":
        products = stack.enter_context(Contender(MatrixProducts, config.architecture().compute_type))
    for side, contender in pairs:
        # The first pass or the first update: the longer of both includes the compilation.
        side.first_seconds = max(side.first_seconds, contender.call("work", 1))
    for _ in range(config.rounds):
        for side, contender in pairs:
            side.seconds.append(contender.call("work", config.steps) / config.steps)
        if products:
            contest.product_speeds.append(products.call("flops_per_second"))
    for side, contender in pairs:
        on_gpu = config.device_target == "GPU"
        side.peak_memory = contender.call("device_memory") if on_gpu else contender.peak_memory()


def report_contest(config: ContestConfig, contest: Contest, tolerance: float) -> int:
    """Print the table and write the JSON file; return 1 if the sides do not compute the same."""
    difference = contest.difference()
    if not difference <= tolerance:
        print(
            f"error: outputs differ by {difference:.1e} of their largest, allowed is {tolerance:.0e}: the sides "
            "do not compute the same, so their times cannot be compared",
            file=sys.stderr,
        )
        return 1
    figures = {"config": config.to_dict(), **asdict(contest), "difference": difference}
    print_and_write(_report(config, contest, tolerance), figures, config.output)
    return 0


def _format_seconds(seconds: float) -> str:
    """Format seconds with four digits, as milliseconds when short."""
    return f"{seconds:.4g} s" if seconds >= 1 else f"{1000 * seconds:.4g} ms"


def _report(config: ContestConfig, contest: Contest, tolerance: float) -> str:
    """Return a table of the figures and what they depend on."""
    sides = contest.sides
    project = sides[0]
    product_speed = median(contest.product_speeds) if contest.product_speeds else 0.0
    peak = PEAKS.get(project.device, {}).get(config.architecture().compute_type, 0.0) * 1e12
    name_width = max(len(side.name) for side in sides)
    share_heading = " of products' speed" if product_speed else " of the peak" if peak else ""
    heading = f"{'first':>9} {'median':>9} {'minimum':>9} {'peak GB':>8} {'tokens/s':>10} {'GFLOP/s':>8}"
    lines = [f"{'':{name_width}} {heading}{share_heading}  peer / project"]
    for side in sides:
        reached = contest.operations / side.median
        last_columns = f"{reached / 1e9:8.1f}"
        if share_heading:
            last_columns += f"{reached / (product_speed or peak):{len(share_heading)}.3f}"
        if side is not project:  # operations are counted as this project does them, and peers do more
            ratio = f"{side.median / project.median:.3f} (minimum {side.minimum / project.minimum:.3f})"
            last_columns = f"{'':{len(last_columns)}}  {ratio}"
        times = " ".join(f"{_format_seconds(each):>9}" for each in (side.first_seconds, side.median, side.minimum))
        speed = contest.tokens / side.median
        lines.append(f"{side.name:{name_width}} {times} {side.peak_memory / 1e9:8.2f} {speed:10,.0f} {last_columns}")
    lines += [f"{side.name:{name_width}} {side.device}: {side.software}" for side in sides]
    work = f"{contest.operations / 1e9:.1f} GFLOP of matrix products; {config.rounds} rounds of {config.steps}, "
    work += f"{threads()} threads"
    if product_speed:
        work += f"; large square products: {product_speed / 1e9:.1f} GFLOP/s, the median of as many"
    lines.append(work)
    if len(sides) > 1:
        lines.append(f"outputs differ by {contest.difference():.1e} of their largest, allowed {tolerance:.0e}")
    lines.append(describe_others(contest.disturbance))
    return "\n".join(lines)
