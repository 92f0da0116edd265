"""The operations that training takes, counted by hand, and the share of the device's speed that it reaches."""

import numpy as np
import pytest

from src.albert_config import PRESETS
from src.training.flops import Utilisation, forward_flops, matmul_flops_per_second

BASE = PRESETS["albert_base"]


def test_forward_pass_of_albert_base() -> None:
    """One sequence of 128 tokens, 20 of them predicted: multiply-adds of each product, from the table of its shapes."""
    mapping = 128 * 128 * 768
    attention = 4 * (128 * 768 * 768) + 12 * (128 * 64 * 128) + 12 * (128 * 128 * 64)
    feed_forward = 128 * 768 * 3072 + 128 * 3072 * 768
    head = 20 * 768 * 128 + 20 * 128 * 30000
    by_hand = 2 * (mapping + 12 * (attention + feed_forward) + 768 * 768 + head)
    assert forward_flops(BASE, 1, 128, 20) == by_hand == 22_531_129_344
    assert forward_flops(BASE, 3, 128, 20) == 3 * by_hand


def test_training_takes_three_times_the_forward_pass_and_texts_side_by_side_are_sequences() -> None:
    mask = np.ones((8, 4 * 32), np.int32)
    assert Utilisation(BASE).flops({"input_mask": mask}) == 3 * forward_flops(BASE, 8, 128)
    assert Utilisation(BASE, 4).flops({"input_mask": mask}) == 3 * forward_flops(BASE, 32, 32)
    predicted = {"input_mask": mask, "masked_lm_positions": np.zeros((8, 20), np.int32)}
    assert Utilisation(BASE).flops(predicted) == 3 * forward_flops(BASE, 8, 128, 20)


def test_a_product_reaches_the_speed_of_products() -> None:
    utilisation = Utilisation(BASE)
    utilisation.measure_device()
    assert utilisation.peak > 1e8
    assert utilisation.mfu(matmul_flops_per_second(BASE)) == pytest.approx(1.0, abs=0.5)
