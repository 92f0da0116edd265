"""Bucket boundaries against all possible choices; widths that are few."""

from itertools import combinations
from types import SimpleNamespace

import numpy as np
import pytest

from model_utils.backend import Backend
from src.albert_config import AlbertConfig
from src.data.length_buckets import MAX_BUCKETS, choose_boundaries, graded_widths, paying_boundaries
from src.finetuning.task_data import TaskData


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


def test_more_buckets_pay_in_longer_runs() -> None:
    lengths = np.random.default_rng(0).integers(1, 129, 1000)
    numbers = [len(paying_boundaries(lengths, batches)) for batches in (1, 100, 1000, 100_000)]
    assert numbers == sorted(numbers) and numbers[0] == 1 < numbers[1] < numbers[3] == MAX_BUCKETS
    assert len(paying_boundaries(lengths, 1000, compilation=500)) < numbers[2]
    for step in (8, 32):
        chosen = paying_boundaries(lengths, 300, step)
        assert chosen == choose_boundaries(lengths, len(chosen), step)
    assert paying_boundaries(np.array([5, 6, 7]), 1e9) == (8,)


def test_a_gpu_compiles_fewer_widths() -> None:
    lengths = np.random.default_rng(0).integers(1, 129, 1000)
    task = SimpleNamespace(spec=SimpleNamespace(texts_per_row=1))
    data = SimpleNamespace(
        config=SimpleNamespace(length_buckets=0), task=task, _number_of_batches=lambda rows, training: 300
    )
    widths = {}
    for backend in (Backend.COMPOSED, Backend.ACCELERATOR):
        data.architecture = AlbertConfig(backend=backend)
        widths[backend] = TaskData._widths(data, lengths, is_training=True)
    assert widths[Backend.ACCELERATOR] == (128,) and len(widths[Backend.COMPOSED]) > 1


def test_graded_widths_are_few_and_fit() -> None:
    lengths = np.arange(1, 513)
    widths = graded_widths(lengths, 5, 500)
    assert (widths >= lengths)[:500].all() and widths[499:].tolist() == [500] * 13
    assert sorted(set(widths.tolist())) == [
        *(8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 448, 500)
    ]
    assert (widths / lengths)[32:500].max() < 1.25
    assert graded_widths(np.array([1, 3]), 12, 500).tolist() == [16, 16]
