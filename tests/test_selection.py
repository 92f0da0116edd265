"""Which evaluation is the best, and when there have been enough."""

import math

from src.training.evaluation import Selection
from src.training.loop_state import Best


def test_of_equal_evaluations_the_first_is_the_best() -> None:
    best = Best()
    scores = {3: 0.2, 6: 0.6, 9: 0.6, 12: 0.5, 15: 0.7}
    better = [Selection("f1").update(best, step, {"f1": score, "loss": 1.0}) for step, score in scores.items()]
    assert better == [True, True, False, False, True]
    assert best == Best(15, {"f1": 0.7, "loss": 1.0}, worse_since=0)


def test_patience_counts_evaluations_since_the_best_one() -> None:
    best = Best()
    selection = Selection("f1", patience=2)
    over = []
    for step, score in enumerate((0.5, 0.4, 0.5, 0.6), 1):
        selection.update(best, step, {"f1": score})
        over.append(selection.is_out_of_patience(best))
    assert over == [False, False, True, False]
    assert not Selection("f1").is_out_of_patience(Best(1, {"f1": 0.5}, worse_since=9))


def test_a_metric_that_is_not_finite_is_not_kept() -> None:
    """A checkpoint's JSON cannot hold it."""
    best = Best()
    assert Selection("f1").update(best, 3, {"f1": 0.5, "loss": math.nan, "recall": math.inf})
    assert best == Best(3, {"f1": 0.5})
