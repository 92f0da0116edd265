"""Inputs of single layers, the same in every process."""

from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn

from src.nn.attention import attention_for
from tests.helpers.tiny_model import TINY

RANDOM = np.random.default_rng(0)


def normal(*shape: int) -> np.ndarray:
    return (2 * RANDOM.standard_normal(shape)).astype(np.float32)


class Attend(nn.Cell):
    """Attention of four heads with a key."""

    def __init__(self, **changes: Any) -> None:
        super().__init__()
        self.attention = attention_for(TINY.replace(hidden_size=48, num_attention_heads=4, **changes), 1).set_train(
            True
        )

    def construct(self, x: Tensor, *others: Tensor) -> Tensor:
        weights = self.attention.matrices(*others[:3])
        return self.attention(x, weights, others[3:6], others[6], Tensor(5, ms.int32))


def attention_inputs(texts: int, length: int, hidden: int) -> tuple[np.ndarray, ...]:
    """x, three weights, three biases, mask."""
    mask = np.where(RANDOM.random((texts, 1, 1, length)) < 0.2, -1e4, 0).astype(np.float32)
    weights = [normal(hidden, hidden) / 40 for _ in range(3)]
    return (normal(texts * length, hidden), *weights, *(normal(hidden) / 4 for _ in range(3)), mask)
