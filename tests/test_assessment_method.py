"""Metrics: worked out by hand, and what they are where they have no value."""

import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from src.assessment_method import METHODS, assess


def test_the_first_figure_is_the_methods_own():
    labels = np.array([0, 1, 1, 0])
    for method in METHODS:
        assert next(iter(assess(method, labels, labels))) == method
        assert set(assess(method, labels, labels).values()) == {1.0}


def test_figures_worked_out_by_hand():
    predictions, labels = np.array([1, 1, 1, 0, 0, 0, 1, 0]), np.array([1, 1, 0, 0, 0, 1, 1, 0])
    # 3 true positives, 1 false positive, 1 false negative, 3 true negatives
    assert assess("accuracy", predictions, labels) == {"accuracy": 0.75}
    assert assess("f1", predictions, labels) == pytest.approx({"f1": 6 / 8, "accuracy": 0.75})
    assert assess("mcc", predictions, labels) == pytest.approx({"mcc": (9 - 1) / 16, "accuracy": 0.75})


def test_f1_of_two_labels_is_that_of_the_second_one():
    predictions, labels = np.array([0, 0, 0, 1]), np.array([0, 0, 1, 0])
    assert assess("f1", predictions, labels)["f1"] == 0
    assert assess("f1", 1 - predictions, 1 - labels)["f1"] == pytest.approx(2 / 3)


def test_f1_of_more_labels_is_the_mean_over_those_that_occur():
    predictions, labels = np.array([0, 0, 1, 1]), np.array([0, 1, 1, 1])
    assert assess("f1", predictions, labels, 3)["f1"] == pytest.approx((2 / 3 + 4 / 5) / 2)


def test_ranks_are_shared_by_equal_values():
    # Ranks 1, 2.5, 2.5, 4 and 1.5, 1.5, 3, 4: sum of products 3.75, of squares 4.5 and 4.5.
    figures = assess("spearman_correlation", np.array([1.0, 2.0, 2.0, 9.0]), np.array([0.0, 0.0, 3.0, 5.0]))
    assert figures["spearman_correlation"] == pytest.approx(3.75 / 4.5)
    # Deviations -2.5, -1.5, -1.5, 5.5 and -2, -2, 1, 3.
    assert figures["pearson_correlation"] == pytest.approx(23 / (41 * 18) ** 0.5)


def test_a_constant_answer_has_defined_figures():
    labels = np.array([0, 1, 1])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert assess("mcc", np.ones(3, int), labels)["mcc"] == 0
        assert assess("mcc", labels, np.ones(3, int))["mcc"] == 0
        assert assess("mcc", np.ones(3, int), np.ones(3, int)) == {"mcc": 0.0, "accuracy": 1.0}
        assert assess("f1", np.zeros(3, int), labels)["f1"] == 0
        for predictions, scores in ((np.full(3, 0.5), labels), (labels, np.full(3, 0.5)), (labels[:1], labels[:1])):
            figures = assess("spearman_correlation", predictions, scores)
            assert figures == {"spearman_correlation": 0.0, "pearson_correlation": 0.0}


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=20))
def test_figures_are_plain_numbers_within_bounds(pairs):
    predictions, labels = (np.array(column) for column in zip(*pairs, strict=True))
    for method in METHODS:
        for name, value in assess(method, predictions, labels, 3).items():
            assert type(value) is float
            assert (0 if name in ("accuracy", "f1") else -1) - 1e-9 <= value <= 1 + 1e-9


def test_three_labels_are_no_case_for_the_figure_of_two():
    with pytest.raises(ValueError, match="multiclass"):
        assess("f1", np.array([0, 1, 2]), np.array([0, 1, 2]))
