"""Content of the reports on an evaluation: metrics of classes, confusions, calibration, errors and marked texts."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from src.create_finetune_data import Example

BINS = 10  # of probabilities, of equal width


class Mark(NamedTuple):
    """Span of a text, in characters; kind: gold, predicted or both."""

    start: int
    end: int
    kind: str
    label: str = ""


@dataclass(frozen=True, slots=True)
class MarkedText:
    """Text with marks; as a string `[span](LABEL)`, for marks that do not overlap."""

    text: str
    marks: Sequence[Mark] = ()

    def __str__(self) -> str:
        pieces = []
        end = 0
        for mark in self.marks:
            label = f"({mark.label})" if mark.label else ""
            pieces.append(f"{self.text[end : mark.start]}[{self.text[mark.start : mark.end]}]{label}")
            end = mark.end
        return "".join(pieces) + self.text[end:]


class Confusion(NamedTuple):
    """Gold and predicted label ids (N,) of rows or words, and the names of the labels."""

    labels: Sequence[str]
    gold: np.ndarray
    predictions: np.ndarray

    def errors(self) -> list[dict[str, Any]]:
        """Return how many rows of a label got another one, the most frequent pair first."""
        wrong = self.predictions != self.gold
        pairs = Counter(zip(self.gold[wrong].tolist(), self.predictions[wrong].tolist(), strict=True))
        return [
            {"label": self.labels[label], "prediction": self.labels[prediction], "rows": rows}
            for (label, prediction), rows in pairs.most_common()
        ]


@dataclass(frozen=True)
class EvaluationReport:
    """Report on N predictions: rows, decisions about a label, or words.

    Attributes:
        confidence: (N,) probabilities of the predictions.
        is_correct: (N,) bool.
        errors: columns of the wrong rows, the largest probability first.
        passages: further columns, of MarkedText, that only the page shows.
        classes: precision, recall, f1 and support by class; empty where the answers are no classes.
    """

    confidence: np.ndarray
    is_correct: np.ndarray
    errors: Mapping[str, Sequence[Any]]
    passages: Mapping[str, Sequence[MarkedText]] = field(default_factory=dict)
    classes: Mapping[str, dict[str, float]] = field(default_factory=dict)
    confusion: Confusion | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the content of report_SPLIT.json."""
        content: dict[str, Any] = {}
        if self.classes:
            content["classes"] = self.classes
        if self.confusion:
            content["confusions"] = self.confusion.errors()
        return content | {"calibration_error": calibration_error(self.confidence, self.is_correct)}


def classifier_report(
    labels: Sequence[str], probabilities: np.ndarray, gold: np.ndarray, examples: Sequence[Example]
) -> EvaluationReport:
    """Return the report on a classifier.

    Args:
        probabilities: (rows, C).
        gold: (rows,) label ids.
        examples: of the rows, whose texts the errors show; empty where only features were read.
    """
    predictions = probabilities.argmax(1)
    confidence = probabilities.max(1)
    is_correct = predictions == gold
    names = np.array(labels)
    errors = text_errors(examples, confidence, is_correct, names[gold], names[predictions])
    classes = class_metrics(labels, gold, predictions)
    confusion = Confusion(labels, gold, predictions)
    return EvaluationReport(confidence, is_correct, errors, classes=classes, confusion=confusion)


def wrong_rows(confidence: np.ndarray, is_correct: np.ndarray) -> np.ndarray:
    """Return the indices of the wrong rows, the largest confidence first."""
    wrong = np.flatnonzero(~is_correct)
    return wrong[np.argsort(-confidence[wrong], kind="stable")]


def text_errors(
    examples: Sequence[Example], confidence: np.ndarray, is_correct: np.ndarray, labels: np.ndarray, answers: np.ndarray
) -> dict[str, Sequence[Any]]:
    """Return the columns of the wrong rows, the largest confidence first; all arguments are those of all rows."""
    wrong = wrong_rows(confidence, is_correct)
    return {
        "index": wrong,
        "label": labels[wrong],
        "prediction": answers[wrong],
        "probability": confidence[wrong],
        **text_columns(examples, wrong),
    }


def text_columns(examples: Sequence[Example], rows: np.ndarray) -> dict[str, list[str]]:
    """Return the columns text_a and text_b of some rows; text_b if an example has one, none without examples."""
    columns = {}
    if examples:
        columns["text_a"] = [examples[row].text_a for row in rows]
    if any(example.text_b for example in examples):
        columns["text_b"] = [examples[row].text_b for row in rows]
    return columns


def class_metrics(labels: Sequence[str], gold: np.ndarray, predictions: np.ndarray) -> dict[str, dict[str, float]]:
    """Return scikit-learn's metrics of each label; gold, predictions: label ids (rows,), or decisions (rows, C)."""
    from sklearn.metrics import precision_recall_fscore_support

    columns = precision_recall_fscore_support(gold, predictions, labels=range(len(labels)), zero_division=0)
    names = ("precision", "recall", "f1", "support")
    return {
        label: dict(zip(names, values, strict=True))
        for label, *values in zip(labels, *(column.tolist() for column in columns), strict=True)
    }


def calibration_bins(confidence: np.ndarray, is_correct: np.ndarray) -> list[tuple[float, int, float, float]]:
    """Return start, predictions, mean probability and accuracy of each of BINS that has predictions."""
    indices = np.minimum((confidence * BINS).astype(int), BINS - 1)
    counts = np.bincount(indices)
    divisors = np.maximum(counts, 1)
    means = [(np.bincount(indices, values) / divisors).tolist() for values in (confidence, is_correct)]
    rows = zip(np.arange(len(counts)) / BINS, counts.tolist(), *means, strict=True)
    return [row for row in rows if row[1]]


def calibration_error(confidence: np.ndarray, is_correct: np.ndarray) -> float:
    """Return the expected calibration error of the predictions, 0 to 1 (Guo et al. 2017).

    It is the mean distance of accuracy and probability in BINS of the probability, weighted with their predictions.
    """
    bins = calibration_bins(confidence, is_correct)
    return sum(count * abs(accuracy - probability) for _, count, probability, accuracy in bins) / len(confidence)
