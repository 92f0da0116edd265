"""Class weights and reports of classifiers, against scikit-learn and by hand."""

import json
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import classification_report
from sklearn.utils.class_weight import compute_class_weight

from model_utils.errors import ConfigError
from src.create_finetune_data import Example
from src.tasks.class_weights import class_weights
from src.tasks.classification_report import calibration_error, report, write_report
from src.text.text_tables import read_table

LABELS = ("bad", "fair", "good", "never")


@pytest.fixture
def predictions() -> tuple[np.ndarray, np.ndarray]:
    """Probabilities (300, 4) and gold labels of the first three classes."""
    random = np.random.default_rng(4)
    return random.dirichlet(np.ones(4), 300), random.choice(3, 300, p=[0.7, 0.2, 0.1])


def test_balanced_weights_are_those_of_scikit_learn(predictions: tuple[np.ndarray, np.ndarray]) -> None:
    gold = predictions[1]
    expected = compute_class_weight("balanced", classes=np.arange(3), y=gold)
    assert class_weights(["balanced"], LABELS[:3], gold) == pytest.approx(expected)


def test_labels_without_a_weight_count_once() -> None:
    assert class_weights(["good=2.5", "bad=0.5"], LABELS, np.zeros(0, int)).tolist() == [0.5, 1.0, 2.5, 1.0]


def test_the_last_equals_sign_separates() -> None:
    assert class_weights(["a=b=3"], ["a=b", "c"], np.zeros(0, int)).tolist() == [3.0, 1.0]


@pytest.mark.parametrize("entry", ["balanced=1", "good", "good=", "good=0", "good=-1", "good=nan", "good=inf", "=2"])
def test_other_weights_are_refused(entry: str) -> None:
    with pytest.raises(ConfigError, match="class_weights"):
        class_weights([entry], LABELS, np.zeros(0, int))


def test_a_label_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match="twice"):
        class_weights(["good=1", "good=2"], LABELS, np.zeros(0, int))


def test_figures_of_classes_are_those_of_scikit_learn(predictions: tuple[np.ndarray, np.ndarray]) -> None:
    probabilities, gold = predictions
    expected = classification_report(
        gold, probabilities.argmax(1), labels=range(4), target_names=LABELS, output_dict=True, zero_division=0
    )
    classes = report(LABELS, probabilities, gold)["classes"]
    for label in LABELS:
        figures = expected[label]
        assert classes[label] == pytest.approx(
            {name.replace("f1-score", "f1"): value for name, value in figures.items()}
        )


def test_confusions_and_right_rows_are_all_rows(predictions: tuple[np.ndarray, np.ndarray]) -> None:
    probabilities, gold = predictions
    confusions = report(LABELS, probabilities, gold)["confusions"]
    counts = [confusion["rows"] for confusion in confusions]
    assert sum(counts) == (probabilities.argmax(1) != gold).sum()
    assert counts == sorted(counts, reverse=True)
    first = confusions[0]
    is_first = (gold == LABELS.index(first["label"])) & (probabilities.argmax(1) == LABELS.index(first["prediction"]))
    assert is_first.sum() == first["rows"]


def test_the_calibration_error_is_the_mean_distance_of_bins() -> None:
    probabilities = np.array([[0.95, 0.05], [0.95, 0.05], [0.6, 0.4], [0.35, 0.65]])
    gold = np.array([0, 1, 0, 1])
    # Two rows at 0.95, one of them right; 0.6 and 0.65 share a bin, both right.
    assert calibration_error(probabilities, gold) == pytest.approx((2 * 0.45 + 2 * 0.375) / 4)
    assert calibration_error(np.array([[1.0, 0.0]]), np.array([0])) == 0.0


def test_the_surest_errors_come_first(tmp_path: Path) -> None:
    probabilities = np.array([[0.6, 0.4], [0.1, 0.9], [0.8, 0.2], [0.3, 0.7]])
    gold = np.array([1, 0, 0, 1])
    examples = [Example(text, "", None, tmp_path, line) for line, text in enumerate("abcd", 2)]
    write_report(tmp_path, "dev", ["no", "yes"], probabilities, gold, examples)
    table = read_table(tmp_path / "errors_dev.tsv")
    assert [row for _, row in table.rows] == [["1", "no", "yes", "0.9", "b"], ["0", "yes", "no", "0.6", "a"]]
    assert json.loads((tmp_path / "report_dev.json").read_text())["classes"]["yes"]["support"] == 2
