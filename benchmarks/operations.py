"""How many operations a layer of a training step has, and how much memory they move: python -m benchmarks.operations.

Counted in MindSpore's final graphs of two and three layers, forward and backward, with one batch and with two: their
differences are what a layer adds, and what a token adds to that. A form for GPUs and Ascend is compiled and run here by
the CPU's kernels, so that no such device is needed. An operation moves what it reads and writes once.
"""

import contextlib
import logging
import os
import re
import tempfile
from collections import Counter
from pathlib import Path

from benchmarks.commands import tell
from benchmarks.pretraining import random_batch
from benchmarks.turns import Contender
from model_utils.backend import Backend
from model_utils.config import run_main
from model_utils.device import setup_device
from model_utils.schema import Config, option
from src.albert_config import PRESETS

logger = logging.getLogger(__name__)
LAYERS, BATCHES, LENGTH = (2, 3), (2, 4), 128
# What moves no data: other names for the same memory, and the order of things.
FREE = ("Reshape", "Depend", "MakeTuple", "TupleGetItem", "Return", "Load", "UpdateState")
BYTES = {"Float32": 4, "Float16": 2, "Int64": 8, "Int32": 4, "Bool": 1, "UInt8": 1}
NODE = re.compile(r"\s*%\S+ = (?:Primitive::|PrimFunc_)?(\w+)\(")
TENSOR = re.compile(r"Tensor\[(\w+)\](?:\*\d+\])?>?, (?:TupleShape)?(\([\d, ()]*\))")


class OperationsConfig(Config):
    """Count the operations of a layer: python -m benchmarks.operations."""

    albert_network: str = option("albert_base", "preset of sizes", choices=tuple(PRESETS))
    form: str = option("accelerator", "of the layers: for GPUs and Ascend, or for CPUs", choices=("accelerator", "cpu"))
    compute_type: str = option("float16", "type of the matrix products", choices=("float16", "float32"))
    dropout: float = option(0.0, "in the encoder", minimum=0.0, maximum=0.9)
    output: str = option("", "JSON file for the figures; empty: none")


class FinalGraph:
    """The graph of the loss and its gradients, as MindSpore's compiler leaves it."""

    def __init__(self, config: OperationsConfig, layers: int, batch: int) -> None:
        with tempfile.TemporaryDirectory() as folder:
            os.environ |= {"MS_DEV_SAVE_GRAPHS": "2", "MS_DEV_SAVE_GRAPHS_PATH": folder}
            self.compile(config, layers, batch)
            (file,) = Path(folder).glob("*_validate_*.ir")
            self.lines = file.read_text(encoding="utf-8").splitlines()

    @staticmethod
    def compile(config: OperationsConfig, layers: int, batch: int) -> None:
        """Make the network, and run it once."""
        setup_device("CPU")
        import mindspore as ms
        import numpy as np
        from mindspore import Tensor, ops

        from src.albert_for_pre_training import AlbertForPreTraining

        architecture = PRESETS[config.albert_network].replace(
            num_hidden_layers=layers,
            compute_type=config.compute_type,
            hidden_dropout_prob=config.dropout,
            attention_probs_dropout_prob=config.dropout,
            backend=Backend.ACCELERATOR if config.form == "accelerator" else Backend.COMPOSED,
        )
        network = AlbertForPreTraining(architecture, seed=1).set_train(True)
        columns = random_batch(architecture, batch, LENGTH)
        gradient = ops.value_and_grad(network, None, ms.ParameterTuple(network.trainable_params()), has_aux=True)

        @ms.jit
        def compute(*inputs: Tensor) -> tuple:
            return gradient(*inputs)

        compute(*(Tensor(columns[name]) for name in network.input_columns), Tensor(np.int32(1)))

    def operations(self) -> dict[str, int]:
        """How often each operation stands there, by its name."""
        return Counter(name for name, _ in self._nodes())

    def moved(self) -> int:
        """Bytes that all operations read and write."""
        return sum(_size(line) for _, line in self._nodes())

    def _nodes(self) -> list[tuple[str, str]]:
        """Names of the operations, each with the line of its tensors."""
        found = [(match[1], self.lines[i + 1]) for i, line in enumerate(self.lines) if (match := NODE.match(line))]
        return [(name, line) for name, line in found if name not in FREE]


def _size(line: str) -> int:
    """Bytes of all tensors that are named with their shapes, such as <Tensor[Float32], (8, 128)>."""
    total = 0
    for kind, shapes in TENSOR.findall(line):
        for shape in re.findall(r"\(([\d, ]*)\)", shapes):
            entries = 1
            for length in re.findall(r"\d+", shape):
                entries *= int(length)
            total += entries * BYTES[kind]
    return total


def main(config: OperationsConfig) -> None:
    """Count, print, write."""
    operations, moved = {}, {}
    for layers in LAYERS:
        for batch in BATCHES:
            with contextlib.closing(Contender(FinalGraph, config, layers, batch)) as graph:
                operations[layers], moved[layers, batch] = graph.call("operations"), graph.call("moved")
    added = Counter(operations[LAYERS[1]])
    added.subtract(operations[LAYERS[0]])
    by_batch = [moved[LAYERS[1], batch] - moved[LAYERS[0], batch] for batch in BATCHES]
    per_token = (by_batch[1] - by_batch[0]) / ((BATCHES[1] - BATCHES[0]) * LENGTH)
    figures = {
        "operations": {name: number for name, number in added.most_common() if number},
        "bytes_per_token": per_token,
    }
    report = f"{sum(added.values())} operations a layer, forward and backward: "
    report += ", ".join(f"{name} {number}" for name, number in figures["operations"].items())
    tell(
        f"{report}\n{per_token / 1000:.1f} kB a token and layer", {"config": config.to_dict(), **figures}, config.output
    )


if __name__ == "__main__":
    run_main(main, OperationsConfig)
