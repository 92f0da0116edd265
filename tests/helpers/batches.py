"""Batches compared."""

from collections.abc import Sequence

import numpy as np

Batch = dict[str, np.ndarray]


def assert_same_batches(left: Sequence[Batch], right: Sequence[Batch]) -> None:
    assert len(left) == len(right)
    for one, other in zip(left, right, strict=True):
        np.testing.assert_equal(one, other)
