"""Classification in which a text has zero or more labels, each decided by a threshold of its own."""

import logging
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Self

import numpy as np
from pydantic import Field, model_validator
from scipy.special import expit

from model_utils.errors import first_few, shorten
from src.albert_for_finetune import AlbertForMultiLabel
from src.create_finetune_data import Example
from src.data.feature_cache import Features, Split
from src.data.features import LABELS
from src.tasks.class_labels import count_labels
from src.tasks.classification import (
    ClassificationInfo,
    ClassificationProcessor,
    ClassifierTask,
    text_spec,
    write_text_predictions,
)
from src.tasks.classification_examples import ClassifierConfig
from src.tasks.evaluation_report import EvaluationReport, class_metrics, text_errors
from src.tasks.record_processor import Answer, Outputs, Probability, Record, shortest
from src.tasks.spec import EvaluationResult, PreparedSplit
from src.tasks.task_info import TaskInfo
from src.tokenization import FullTokenizer

logger = logging.getLogger(__name__)
NAME = "multi_label"
UNFITTED = 0.5  # threshold of a label that no threshold was fitted for


class MultiLabelInfo(ClassificationInfo):
    """Settings with `thresholds`: the probability above which a text has each label; empty: 0.5."""

    thresholds: tuple[Annotated[float, Field(ge=0, le=1)], ...] = ()

    @model_validator(mode="after")
    def _one_each(self) -> Self:
        if self.thresholds and len(self.thresholds) != len(self.labels):
            raise ValueError(f"{len(self.labels)} thresholds, one for each label")
        return self


class MultiLabelTask(ClassifierTask):
    """Custom examples with any number of labels each."""

    feature_format = NAME

    def __init__(
        self, config: ClassifierConfig, tokenizer: FullTokenizer, trained_info: TaskInfo | None = None
    ) -> None:
        super().__init__(config, tokenizer, trained_info)
        self.selection = "micro_f1"
        self.spec = MULTI_LABEL
        self.task_info = MultiLabelInfo(**self.task_info.explicit_values() | {"task": NAME})

    def split(self, name: str) -> Split:
        split = super().split(name)
        if name in self.dev_splits and split.examples and not getattr(self.trained_info, "thresholds", ()):
            missing = sorted(set(self.labels) - set(count_labels(split.examples, self.separator)))
            if missing:
                names = first_few(map(shorten, missing))
                logger.warning(f"{split.examples[0].file} has no row with {names}: the threshold stays {UNFITTED}")
        return split

    def evaluate(self, prepared: PreparedSplit, outputs: Outputs, task_info: TaskInfo) -> EvaluationResult:
        probabilities = expit(self.logits_of_texts(prepared.records, outputs))
        gold = prepared.records.array(LABELS) > 0 if "label_ids" in prepared.records.columns else None
        thresholds = np.array(getattr(task_info, "thresholds", ()), np.float32)
        calibration = {}
        if not len(thresholds) and gold is not None and prepared.split.name in self.dev_splits:
            thresholds = fit_thresholds(probabilities, gold)
            calibration = {"thresholds": tuple(shortest(thresholds))}
        predictions = probabilities > (thresholds if len(thresholds) else UNFITTED)
        write = partial(self._write_predictions, prepared.split, predictions, gold)
        if gold is None:
            return EvaluationResult({}, write)
        report = partial(self._report, prepared.split.examples, probabilities, predictions, gold)
        return EvaluationResult(multi_label_metrics(predictions, gold), write, calibration=calibration, report=report)

    def _report(
        self, examples: Sequence[Example], probabilities: np.ndarray, predictions: np.ndarray, gold: np.ndarray
    ) -> EvaluationReport:
        """Return the report on decisions (rows, C); a row counts with the most confident of its wrong ones."""
        confidence = np.where(predictions, probabilities, 1 - probabilities)
        is_correct = predictions == gold
        confidence_of_rows = np.where(is_correct, 0, confidence).max(1)
        names = np.array(self._joined(gold)), np.array(self._joined(predictions))
        errors = text_errors(examples, confidence_of_rows, is_correct.all(1), *names)
        classes = class_metrics(self.labels, gold, predictions)
        return EvaluationReport(confidence.ravel(), is_correct.ravel(), errors, classes=classes)

    def _joined(self, decisions: np.ndarray) -> list[str]:
        """Return the labels of rows (rows, C) with the separator between them."""
        names = np.array(self.labels)
        return [self.separator.join(names[row]) for row in decisions]

    def _write_predictions(self, split: Split, predictions: np.ndarray, gold: np.ndarray | None, folder: Path) -> None:
        labels = {} if gold is None else {"label": self._joined(gold)}
        write_text_predictions(folder, split, labels | {"prediction": self._joined(predictions)})

    def baseline(self, train: PreparedSplit, dev: PreparedSplit) -> dict[str, float]:
        """Return the metrics of the labels that most training rows have or, if there are none, of the most frequent."""
        shares = train.records.array(LABELS).mean(0)
        constant = shares > 0.5 if shares.max() > 0.5 else shares == shares.max()
        gold = dev.records.array(LABELS) > 0
        return multi_label_metrics(np.tile(constant, (len(gold), 1)), gold)


def fit_thresholds(probabilities: np.ndarray, gold: np.ndarray) -> np.ndarray:
    """Return for each label the threshold with the largest F1, (C,) float32; UNFITTED for labels that no row has.

    A threshold lies midway between two probabilities; of equally good ones the largest is taken.

    Args:
        probabilities: (rows, C).
        gold: (rows, C) bool.
    """
    thresholds = np.full(gold.shape[1], UNFITTED, np.float32)
    for label in np.flatnonzero(gold.any(0)):
        order = np.argsort(-probabilities[:, label], kind="stable")
        values = np.append(probabilities[order, label], np.float32(0))
        hits = np.cumsum(gold[order, label])
        f1 = 2 * hits / (np.arange(1, len(order) + 1) + hits[-1])
        f1[values[:-1] == values[1:]] = 0  # equal probabilities cannot be separated
        best = int(f1.argmax())
        middle = (values[best] + values[best + 1]) / 2
        thresholds[label] = middle if middle < values[best] else values[best + 1]  # neighbours have no number between
    return thresholds


def multi_label_metrics(predictions: np.ndarray, gold: np.ndarray) -> dict[str, float]:
    """Return scikit-learn's F1 over all decisions, labels and rows, and the share of rows without a wrong decision."""
    from sklearn.metrics import accuracy_score, f1_score

    averages = {f"{average}_f1": average for average in ("micro", "macro", "samples")}
    metrics = {
        name: float(f1_score(gold, predictions, average=average, zero_division=0)) for name, average in averages.items()
    }
    return metrics | {"exact_match": float(accuracy_score(gold, predictions))}


class MultiLabelProcessor(ClassificationProcessor):
    """Processor: text_a, text_b -> labels, probabilities."""

    task_info: MultiLabelInfo

    def postprocess(self, items: Sequence[Any], features: Features, outputs: Outputs) -> list[Record]:
        names = np.array(self.task_info.labels)
        thresholds = np.array(self.task_info.thresholds or UNFITTED, np.float32)
        return [
            {
                "labels": names[row > thresholds].tolist(),
                "probabilities": dict(zip(names.tolist(), shortest(row), strict=True)),
            }
            for row in expit(self.logits(features, outputs))
        ]


class MultiLabelAnswer(Answer):
    labels: list[str]
    probabilities: dict[str, Probability]


MULTI_LABEL = text_spec(NAME, MultiLabelProcessor, MultiLabelAnswer, 0, MultiLabelInfo, AlbertForMultiLabel)
