"""Matrix products for CPUs by operations in C++ (projections.h, linear_cross_entropy.h), and their gradients.

Operands and results are float32, of shapes that are known when compiled.
Shape letters: N rows, K columns of x, M columns of a product, V vocabulary.
"""

import ctypes
import functools
import logging
import math
from collections.abc import Sequence
from typing import Any

import mindspore as ms
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops

from model_utils.errors import DeviceError
from src.nn.native_operations import Tensors, library_function, operation

logger = logging.getLogger(__name__)


def prepacked_size(shape: Sequence[int], number_type: str = "float32") -> list[int]:
    """Return the shape of a weight (M, K) when it is prepacked in a number type; [0] where it cannot be."""
    return [library_function(f"prepacked_size_{number_type}")(*map(ctypes.c_int64, shape))]


def prepackings() -> int:
    """Return how many weights have been prepacked in this process."""
    return library_function("prepackings")()


@functools.cache
def _prepacks(number_type: str) -> bool:
    """Return whether weights can be prepacked in a number type; log it where they cannot."""
    possible = prepacked_size((1, 1), number_type) != [0]
    if not possible:
        logger.info("this oneDNN prepacks no weights: products with few rows take longer where layers share weights")
    return possible


def _number_type(compute_type: ms.dtype) -> str:
    """Return the last part of the names of operations: float32, or bfloat16, which operands are rounded to.

    Raises:
        DeviceError: the type is bfloat16, but oneDNN would emulate it.
    """
    if compute_type != ms.bfloat16:
        return "float32"
    if not library_function("multiplies_bfloat16")():
        raise DeviceError(
            "compute_type is bfloat16, which oneDNN does not multiply here: the CPU cannot, or ONEDNN_MAX_CPU_ISA "
            "in the environment keeps it from that; allowed is float32"
        )
    return "bfloat16"


class _Products(nn.Cell):
    """Operations of products x W^T, of one W or several.

    Args:
        compute_type: float32, or bfloat16, which operands are rounded to; sums and results are float32.
        shared: several products in a graph have this weight, which is prepacked once for all of them.
        count: of weights.
    """

    def __init__(self, compute_type: ms.dtype, shared: bool, count: int) -> None:
        super().__init__()
        number_type = _number_type(compute_type)

        def shapes(x: Sequence[int], *weights: Sequence[int]) -> Any:
            products = tuple([x[0], weight[0]] for weight in weights[:count])
            return products if count > 1 else products[0]

        self.prepacks = shared and _prepacks(number_type)
        self.prepack = operation(f"prepack_{number_type}", functools.partial(prepacked_size, number_type=number_type))
        self.value = operation(f"project_{number_type}", shapes, count)
        self.value_prepacked = operation(f"project_prepacked_{number_type}", shapes, count)
        self.gradient = operation(f"project_gradient_{number_type}", lambda *shapes: shapes[count:], count + 1)
        self.packed_weights = ()

    def prepack_weights(self, *weights: Parameter) -> None:
        """Prepack the weights once; they must not change afterwards."""
        if self.prepacks:
            packed = [Parameter(self.prepack(weight), f"{weight.name}.prepacked", False) for weight in weights]
            self.packed_weights = ParameterTuple(packed)

    def prepacked(self, *weights: Tensor) -> Tensors:
        if self.packed_weights:
            return self.packed_weights
        made = ()
        for weight in weights:
            made += (self.prepack(weight),)
        return made


class Product(_Products):
    """x W^T: (N, K), (M, K) -> (N, M)."""

    def __init__(self, compute_type: ms.dtype = ms.float32, shared: bool = False) -> None:
        super().__init__(compute_type, shared, 1)

    def construct(self, x: Tensor, weight: Tensor) -> Tensor:
        if self.prepacks:
            return self.value_prepacked(x, weight, *self.prepacked(weight))
        return self.value(x, weight)

    def bprop(self, x: Tensor, weight: Tensor, out: Tensor, dout: Tensor) -> tuple[Tensor, Tensor]:
        return self.gradient(dout, x, weight)


class ThreeProducts(_Products):
    """x W^T for each of three W: (N, K), (M, K) -> (N, M)."""

    def __init__(self, compute_type: ms.dtype = ms.float32, shared: bool = False) -> None:
        super().__init__(compute_type, shared, 3)

    def construct(self, x: Tensor, first: Tensor, second: Tensor, third: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if self.prepacks:
            return self.value_prepacked(x, first, second, third, *self.prepacked(first, second, third))
        return self.value(x, first, second, third)

    def bprop(self, x: Tensor, first: Tensor, second: Tensor, third: Tensor, out: Tensors, dout: Tensors) -> Tensors:
        return self.gradient(*dout, x, first, second, third)


class LinearCrossEntropy(nn.Cell):
    """Cross-entropy of x W^T + bias in nats, and hits: (N, K), (V, K), (V,), (N,) int32 -> (N,) float32 each.

    Exponentials are stored in the compute type, instead of logits and their gradient in float32.
    """

    def __init__(self, compute_type: ms.dtype) -> None:
        super().__init__()
        self.all = _LinearCrossEntropy(_number_type(compute_type))

    def construct(self, x: Tensor, weight: Tensor, bias: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        losses, hits, _, _ = self.all(x, weight, bias, labels)
        return losses, hits


class _LinearCrossEntropy(nn.Cell):
    """LinearCrossEntropy beside what its gradient takes: sums (N,) and exponentials (N, *)."""

    def __init__(self, number_type: str) -> None:
        super().__init__()
        numbers_per_float = 1 if number_type == "float32" else 2

        def shapes(x: Sequence[int], weight: Sequence[int], *_: Sequence[int]) -> Any:
            rows = [x[0]]
            return rows, rows, rows, [x[0], math.ceil(weight[0] / numbers_per_float)]

        self.value = operation(f"linear_cross_entropy_{number_type}", shapes, 4)
        self.gradient = operation(
            f"linear_cross_entropy_gradient_{number_type}",
            lambda *shapes: (shapes[1], shapes[2], shapes[2][:1]),
            outputs=3,
        )

    def construct(self, x: Tensor, weight: Tensor, bias: Tensor, labels: Tensor) -> Tensors:
        return self.value(x, weight, bias, labels)

    def bprop(self, x: Tensor, weight: Tensor, bias: Tensor, labels: Tensor, out: Tensors, dout: Tensors) -> Tensors:
        return *self.gradient(dout[0], x, weight, out[2], out[3]), ops.zeros_like(labels)
