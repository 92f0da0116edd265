"""Dropout whose masks are a function of a key, so that a resumed run draws the masks it would have drawn."""

from functools import cache

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops
from mindspore.ops import constexpr

from model_utils.backend import Backend
from src.nn import fused_layers
from src.nn.layers import apply_mask
from src.nn.native_operations import is_fused


def mix_bits(x: Tensor) -> Tensor:
    """Hash int32 to the range [0, 2**31): two rounds of multiply and shift-xor.

    The shift is arithmetic, so that x ^ (x >> n) is never negative, whatever the sign of x.
    """
    x = x * -1640531535  # 2654435761, Knuth's multiplicative hash, as a signed number
    x = ops.bitwise_xor(x, ops.bitwise_right_shift(x, Tensor(15, ms.int32)))
    x = x * -2048144777  # 2246822519
    return ops.bitwise_xor(x, ops.bitwise_right_shift(x, Tensor(13, ms.int32)))


FEATURES = 16  # of a row and of a column, for the masks of Dropout


@constexpr  # shapes are known when a graph is compiled: a constant of the graph
@cache
def random_features(count: int, axis: int) -> Tensor:
    """Return fixed random integers for each row (axis 0: below 128) or column (axis 1: below 256)."""
    random = np.random.default_rng([20200209, axis])
    return Tensor(random.integers(0, 128 << axis, (count, FEATURES)).astype(np.float32))


class _RowFactors(nn.Cell):
    """Row factors of Dropout from integers (N, F) and a key () int32: (N, F)."""

    def construct(self, numbers: Tensor, key: Tensor) -> Tensor:
        hashes = mix_bits(mix_bits(key) + ops.range(0, FEATURES, 1).astype(ms.int32))
        odd = ops.cast(ops.bitwise_and(hashes, Tensor(63, ms.int32)), ms.float32) * 2.0 + 1.0
        by_key = numbers * ops.broadcast_to(odd * 2.0**-11, numbers.shape)
        return by_key - ops.floor(by_key)


class Dropout(nn.Cell):
    """Dropout whose mask is a hash of (key, row, column), so that a resumed run draws the same masks.

    nn.Dropout keeps its generator inside a kernel, where no checkpoint reaches it. Here the hash of an entry is the sum
    over k of (row[k] key[k] mod 2**11) column[k], modulo 2**14 (after Carter and Wegman 1979, who cut no product). The
    entry is dropped if hash / 2**14 is below the probability. Factors of rows have 11 bits and of columns 8, so that
    the matrix product is exact in float32, TF32 and float16, in any order. C++ layers use whole numbers of 16 bits.

    Args:
        probability: share of entries set to 0, to the next 2**-14; the others are multiplied by 1 / (1 - probability).
        site: number of this layer in the network; layers with different numbers draw different masks.

    Inputs: x (rows, columns) float32, key () int32. Identity when not training or probability is 0.
    """

    def __init__(self, probability: float, site: int, backend: Backend = Backend.AUTO) -> None:
        super().__init__()
        self.probability = probability
        self.site = site
        self.by_row = fused_layers.RowFactors() if is_fused(backend) else _RowFactors()
        self.mask = apply_mask(probability, backend)

    def drops(self) -> bool:
        """Return whether this cell drops anything now."""
        return self.training and self.probability > 0.0

    def factors(self, rows: int, columns: int, key: Tensor) -> tuple[Tensor, ...]:
        """Return the factors (rows, 16) and (columns, 16) of a mask, or () if nothing is dropped.

        An eighth of their matrix product, without its integer part, is hash / 2**14.
        """
        if not self.drops():
            return ()
        return self.by_row(random_features(rows, 0), key + self.site), random_features(columns, 1)

    def construct(self, x: Tensor, key: Tensor) -> Tensor:
        if not self.drops():
            return x
        rows, columns = x.shape
        return self.mask(x, *self.factors(rows, columns, key))
