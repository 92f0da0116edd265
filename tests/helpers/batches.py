"""Batches compared."""

from collections.abc import Sequence

import numpy as np

Batch = dict[str, np.ndarray]


def assert_same_batches(left: Sequence[Batch], right: Sequence[Batch]) -> None:
    assert len(left) == len(right)
    for one, other in zip(left, right, strict=True):
        assert one.keys() == other.keys()
        for name in one:
            np.testing.assert_array_equal(one[name], other[name], err_msg=name)
