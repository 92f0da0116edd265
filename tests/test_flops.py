"""The operations that training takes, counted by hand, and the share of the device's speed that it reaches."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest

from src.albert_config import PRESETS
from src.training import utilisation as device_share
from src.training.flops import forward_flops
from src.training.utilisation import Utilisation, matmul_flops_per_second

BASE = PRESETS["albert_base"]


def test_forward_pass_of_albert_base() -> None:
    """The matrix products at 8 x 128 written out: layers, embedding mapping, output layer, pooler, sentence order.

    Behind the last layer's attention there are only the rows that a head reads.
    """
    attention, behind = 3 * 768 * 768 + 2 * 128 * 768, 768 * 768 + 2 * 768 * 3072
    backbone = 1024 * (12 * attention + 11 * behind + 128 * 768) + 8 * 768 * 768
    heads = 160 * (768 * 128 + 128 * 30000) + 8 * 768 * 2
    assert forward_flops(BASE, 8, 128, 20) == 2 * (backbone + 168 * behind + heads)
    assert forward_flops(BASE, 8, 128) == 2 * (backbone + 1024 * behind)
    assert forward_flops(BASE, 8, 128, reads_tokens=False) == 2 * (backbone + 8 * behind)


def test_training_takes_three_times_the_forward_pass_and_texts_side_by_side_are_sequences() -> None:
    mask = np.ones((8, 4 * 32), np.int32)
    assert Utilisation(BASE).flops({"input_mask": mask}) == 3 * forward_flops(BASE, 8, 128)
    assert Utilisation(BASE, 4).flops({"input_mask": mask}) == 3 * forward_flops(BASE, 32, 32)
    predicted = {"input_mask": mask, "masked_lm_positions": np.zeros((8, 20), np.int32)}
    assert Utilisation(BASE).flops(predicted) == 3 * forward_flops(BASE, 8, 128, 20)


def test_packed_texts_count_without_padding_and_first_tokens_alone_where_no_others_are_read() -> None:
    packed = {"begins": np.array([0, 10, 40, 50])}
    whole = 2 * forward_flops(BASE, 1, 10) + forward_flops(BASE, 1, 30)
    read = 2 * forward_flops(BASE, 1, 10, reads_tokens=False) + forward_flops(BASE, 1, 30, reads_tokens=False)
    assert Utilisation(BASE).flops(packed) == pytest.approx(3 * whole)
    assert Utilisation(BASE, 1, reads_tokens=False).flops(packed) == pytest.approx(3 * read)
    padded = {"input_mask": np.ones((8, 4 * 32), np.int32)}
    expected = 3 * forward_flops(BASE, 32, 32, reads_tokens=False)
    assert Utilisation(BASE, 4, reads_tokens=False).flops(padded) == expected


def test_the_speed_of_products_is_their_operations_by_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_share, "matmul_flops_per_second", matmul_flops_per_second)
    clock = itertools.count(step=0.5)
    monkeypatch.setattr(device_share, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    utilisation = Utilisation(BASE)
    utilisation.measure_device()
    size = 2 * device_share.MIN_ROWS  # half a second is long enough
    assert utilisation.peak == matmul_flops_per_second(BASE) == 2 * size**3 / 0.5
    assert utilisation.mfu(size**3) == 0.25


def test_a_device_that_was_busy_when_it_was_measured_is_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    speeds = iter([1e9, 5e9, 3e9])
    monkeypatch.setattr(device_share, "matmul_flops_per_second", lambda _: next(speeds))
    utilisation = Utilisation(BASE)
    utilisation.measure_device()
    assert utilisation.mfu(0.8e9) == 0.8
    assert utilisation.mfu(2e9) == utilisation.mfu(2e9) == 0.4
    assert utilisation.mfu(6e9) == 1.2 and utilisation.peak == 5e9
