"""Bucket boundaries against all possible choices."""

from itertools import combinations

import numpy as np
import pytest

from src.data.length_buckets import choose_boundaries


def padded(lengths: np.ndarray, boundaries: tuple[int, ...]) -> int:
    return int(np.array(boundaries)[np.searchsorted(boundaries, lengths)].sum())


@pytest.mark.parametrize("count", [1, 2, 3, 4])
@pytest.mark.parametrize("seed", range(5))
def test_no_other_choice_pads_less(count: int, seed: int) -> None:
    lengths = np.random.default_rng(seed).integers(1, 60, 40)
    chosen = choose_boundaries(lengths, count)
    widths = range(8, 65, 8)
    longest = -(-int(lengths.max()) // 8) * 8
    others = [c for k in range(1, count + 1) for c in combinations(widths, k) if c[-1] == longest]
    assert list(chosen) == sorted(set(chosen)) and len(chosen) <= count and chosen[-1] == longest
    assert padded(lengths, chosen) == min(padded(lengths, other) for other in others)


def test_no_more_buckets_than_widths() -> None:
    assert choose_boundaries(np.array([5, 6, 7]), 4) == (8,)
    assert choose_boundaries(np.array([3, 9]), 4, step=1) == (3, 9)
