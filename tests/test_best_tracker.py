"""Which evaluation is the best, and when there have been enough."""

import json
from pathlib import Path

from model_utils.json_files import read_object
from src.training.evaluation import BestTracker, Selection


def test_of_equal_evaluations_the_first_is_the_best() -> None:
    best = BestTracker(Selection("f1"))
    assert best.step == 0
    scores = {3: 0.2, 6: 0.6, 9: 0.6, 12: 0.5, 15: 0.7}
    assert [best.update(step, {"f1": score, "loss": 1.0}) for step, score in scores.items()] == [
        True,
        True,
        False,
        False,
        True,
    ]
    assert best.state == {"step": 15, "metrics": {"f1": 0.7, "loss": 1.0}, "worse_since": 0}
    assert not best.out_of_patience


def test_patience_counts_evaluations_since_the_best_one_and_is_kept_with_the_state() -> None:
    best, resumed = (BestTracker(Selection("f1", patience=2)) for _ in range(2))
    best.update(1, {"f1": 0.5})
    best.update(2, {"f1": 0.4})
    assert not best.out_of_patience
    resumed.state = json.loads(json.dumps(best.state))
    resumed.update(3, {"f1": 0.5})
    assert resumed.out_of_patience and resumed.step == 1
    resumed.update(4, {"f1": 0.6})
    assert not resumed.out_of_patience


def test_without_a_selection_nothing_is_the_best() -> None:
    best = BestTracker(None)
    assert not best.update(1, {"f1": 0.5}) and best.step == 0 and not best.out_of_patience


def test_the_mark_is_that_of_the_best_step(tmp_path: Path) -> None:
    best = BestTracker(Selection("f1"))
    best.mark(tmp_path)
    best.update(5, {"f1": 0.5})
    best.mark(tmp_path)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "albert-5.ckpt").touch()
    best.mark(tmp_path)
    marked = read_object(tmp_path / "best_checkpoint.json")
    assert marked == {"checkpoint": "albert-5.ckpt", "step": 5, "f1": 0.5}
