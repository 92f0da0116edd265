"""Report on a classifier's predictions: figures of each class, confusions, calibration, and the worst rows."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from model_utils.files import write_json, write_text
from src.create_finetune_data import Example
from src.tasks.prediction_table import table_text

BINS = 10  # of probabilities, of equal width


def write_report(
    folder: Path,
    split: str,
    labels: Sequence[str],
    probabilities: np.ndarray,
    gold: np.ndarray,
    examples: Sequence[Example] | None,
) -> None:
    """Write report_SPLIT.json and errors_SPLIT.tsv, the wrong rows, those with the largest probability first.

    Args:
        probabilities: (rows, C).
        gold: (rows,) label ids.
        examples: of the rows, whose texts the errors show; None where only features were read.
    """
    write_json(folder / f"report_{split}.json", report(labels, probabilities, gold))
    predictions = probabilities.argmax(1)
    confidence = probabilities.max(1)
    wrong = np.flatnonzero(predictions != gold)
    wrong = wrong[np.argsort(-confidence[wrong], kind="stable")]
    names = np.array(labels)
    columns: dict[str, Any] = {
        "index": wrong,
        "label": names[gold[wrong]],
        "prediction": names[predictions[wrong]],
        "probability": confidence[wrong],
    }
    if examples:
        columns["text_a"] = [examples[row].text_a for row in wrong]
        if any(example.text_b for example in examples):
            columns["text_b"] = [examples[row].text_b for row in wrong]
    write_text(folder / f"errors_{split}.tsv", table_text(columns))


def report(labels: Sequence[str], probabilities: np.ndarray, gold: np.ndarray) -> dict[str, Any]:
    """Return the content of report_SPLIT.json.

    classes: precision, recall, F1 and support, as scikit-learn computes them.
    confusions: how many rows of a label got another one, the most frequent pair first.
    """
    from sklearn.metrics import precision_recall_fscore_support

    predictions = probabilities.argmax(1)
    figures = precision_recall_fscore_support(gold, predictions, labels=range(len(labels)), zero_division=0)
    classes = {
        label: {"precision": precision, "recall": recall, "f1": f1, "support": support}
        for label, precision, recall, f1, support in zip(labels, *(column.tolist() for column in figures), strict=True)
    }
    wrong = predictions != gold
    pairs, counts = np.unique(np.stack([gold[wrong], predictions[wrong]]), axis=1, return_counts=True)
    confusions = [
        {"label": labels[pairs[0, index]], "prediction": labels[pairs[1, index]], "rows": int(counts[index])}
        for index in np.argsort(-counts, kind="stable")
    ]
    return {
        "classes": classes,
        "confusions": confusions,
        "calibration_error": calibration_error(probabilities, gold),
    }


def calibration_error(probabilities: np.ndarray, gold: np.ndarray) -> float:
    """Return the expected calibration error of the predictions, 0 to 1 (Guo et al. 2017).

    It is the mean distance of accuracy and probability in BINS of the probability, weighted with their rows.
    """
    confidence = probabilities.max(1)
    is_right = probabilities.argmax(1) == gold
    bins = np.minimum((confidence * BINS).astype(int), BINS - 1)
    distances = np.bincount(bins, is_right - confidence, minlength=BINS)
    return float(np.abs(distances).sum() / len(gold))
