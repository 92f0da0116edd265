"""Classification in which a text has zero or more labels, each decided by a threshold of its own."""

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Self

import numpy as np
from mindspore import Tensor, ops
from pydantic import Field, model_validator
from scipy.special import expit

from model_utils.errors import DataError, shorten
from src.albert_networks import Tensors, TrainingNetwork
from src.create_finetune_data import ClassificationSplit, Example, plain_label
from src.data.feature_cache import Features, Split
from src.data.features import LABELS, sample
from src.tasks.answerer import Answer, Outputs, Probability, Record, shortest
from src.tasks.classification import (
    CLASSIFICATION,
    ClassificationAnswerer,
    ClassificationInfo,
    ClassifierTask,
    build_scores,
)
from src.tasks.classification_examples import ClassifierConfig
from src.tasks.evaluation_report import EvaluationReport, class_figures, surest_errors, text_columns
from src.tasks.prediction_table import write_prediction_table
from src.tasks.spec import EvaluationResult, PreparedSplit, TaskSpec
from src.tasks.task_info import TaskInfo
from src.tokenization import FullTokenizer

logger = logging.getLogger(__name__)
NAME = "multi_label"
UNFITTED = 0.5  # threshold of a label that no threshold was fitted for


class AlbertForMultiLabel(TrainingNetwork):
    """Labels of texts by binary cross-entropy, the mean over labels: label_ids (B, C) float32, 0 or 1."""

    label_columns = ("label_ids", "sequence_weights")
    metric_names: tuple[str, ...] = ("loss", "accuracy")

    def logits_of(self, outputs: Tensors, texts: Tensors, further: Tensors) -> tuple[tuple[Tensor, Tensor], ...]:
        """Return the logits of not having and of having each label, (B, C, 2), with weights (B, 1)."""
        _, weights, dropout_key = further
        logits = self.scores.head(*outputs, dropout_key)
        return ((ops.stack((ops.zeros_like(logits), logits), 2), weights.expand_dims(1) / logits.shape[1]),)

    def label_losses(self, outputs: Tensors, texts: Tensors, further: Tensors) -> tuple[Tensor, Tensor]:
        labels, weights, dropout_key = further
        logits = self.scores.head(*outputs, dropout_key)
        # The cross-entropy of a logit, in the form that cannot overflow.
        losses = ops.relu(logits) - logits * labels + ops.log1p(ops.exp(-ops.abs(logits)))
        hits = ops.cast(ops.equal(logits > 0, labels > 0), losses.dtype)
        return ops.reduce_sum(weights * ops.reduce_mean(losses, 1)), ops.reduce_sum(weights * ops.reduce_mean(hits, 1))


def labels_in(example: Example, separator: str) -> list[str]:
    """Return the labels of an example, without white space around them."""
    parts = (part.strip() for part in (example.label or "").split(separator))
    return [plain_label(part) for part in parts if part]


@dataclass(frozen=True)
class MultiLabelSplit(ClassificationSplit):
    """Examples of a split; those without a label have none of the labels, unless no example has one."""

    separator: str = "|"

    def facts(self) -> dict[str, Any]:
        return super().facts() | {"label_separator": self.separator}

    def targets(self) -> np.ndarray | None:
        """Return 1 for the labels that an example has and 0 for the others, (examples, C) float32."""
        if all(example.label is None for example in self.examples):
            return None
        labels = self.labels or ()
        ids = {label: index for index, label in enumerate(labels)}
        targets = np.zeros((len(self.examples), len(labels)), np.float32)
        for row, example in enumerate(self.examples):
            for label in labels_in(example, self.separator):
                if label not in ids:
                    raise DataError(
                        f"{example.place} has the label {shorten(label)}, allowed are {', '.join(labels)}"
                        f"{self.other_label}"
                    )
                targets[row, ids[label]] = 1
        return targets


class MultiLabelInfo(ClassificationInfo):
    """Settings with `thresholds`: the probability above which a text has each label; empty: 0.5."""

    thresholds: tuple[Annotated[float, Field(ge=0, le=1)], ...] = ()

    @model_validator(mode="after")
    def _one_each(self) -> Self:
        if self.thresholds and len(self.thresholds) != len(self.labels):
            raise ValueError(f"{len(self.labels)} thresholds, one for each label")
        return self


class MultiLabelTask(ClassifierTask):
    """Own examples with any number of labels each."""

    kind = NAME

    def __init__(
        self, config: ClassifierConfig, tokenizer: FullTokenizer, trained_info: TaskInfo | None = None
    ) -> None:
        super().__init__(config, tokenizer, trained_info)
        self.selection = "micro_f1"
        self.spec = MULTI_LABEL
        self.task_info = MultiLabelInfo(**self.task_info.stated() | {"task": NAME})

    def labels_of(self, examples: Sequence[Example], held_out: int) -> list[str]:
        counts = Counter(label for example in examples for label in labels_in(example, self.config.label_separator))
        if len(counts) < 2:
            raise DataError(f"{examples[0].file} has {len(counts)} label(s), needed are at least two")
        common = ", ".join(f"{label} ({count:,})" for label, count in counts.most_common(10))
        unlabelled = sum(not example.label for example in examples)
        logger.info(
            f"{examples[0].file}: {len(examples):,} examples, {held_out:,} of them for development, {unlabelled:,} "
            f"without a label; {len(counts):,} labels: {common}{', ...' if len(counts) > 10 else ''}"
        )
        return sorted(counts)

    def split(self, name: str) -> Split:
        config = self.config
        examples = sample(self.examples.read(name), config.most_samples(name), config.seed)
        advice = "; name all labels with --label_list" if self.labels_from_train_file else ""
        return MultiLabelSplit(
            name,
            examples,
            self.labels,
            self.tokenizer,
            config.max_seq_length,
            other_label=advice,
            window_stride=self.window_stride,
            separator=config.label_separator,
        )

    def evaluate(self, prepared: PreparedSplit, outputs: Outputs, task_info: TaskInfo) -> EvaluationResult:
        probabilities = expit(self.logits_of_texts(prepared.records, outputs))
        gold = prepared.records.array(LABELS) > 0 if "label_ids" in prepared.records.columns else None
        thresholds = np.array(getattr(task_info, "thresholds", ()), np.float32)
        calibration = {}
        if not len(thresholds) and gold is not None and prepared.split.name in self.dev_splits:
            thresholds = fit_thresholds(probabilities, gold)
            calibration = {"thresholds": tuple(shortest(thresholds))}
        predictions = probabilities > (thresholds if len(thresholds) else UNFITTED)
        metrics = {} if gold is None else multi_label_metrics(predictions, gold)
        write = partial(self._write_predictions, prepared.split, predictions, gold)
        examples = prepared.split.examples
        report = None if gold is None else partial(self._report, examples, probabilities, predictions, gold)
        return EvaluationResult(metrics, write, calibration=calibration, report=report)

    def _report(
        self, examples: Sequence[Example], probabilities: np.ndarray, predictions: np.ndarray, gold: np.ndarray
    ) -> EvaluationReport:
        """Return the report on decisions (rows, C); a row counts with the surest of its wrong ones."""
        confidence = np.where(predictions, probabilities, 1 - probabilities)
        is_right = predictions == gold
        confidence_of_rows = np.where(is_right, 0, confidence).max(1)
        wrong = surest_errors(confidence_of_rows, is_right.all(1))
        errors = {
            "index": wrong,
            "label": self._joined(gold[wrong]),
            "prediction": self._joined(predictions[wrong]),
            "probability": confidence_of_rows[wrong],
            **text_columns(examples, wrong),
        }
        classes = class_figures(self.labels, gold, predictions)
        return EvaluationReport(confidence.ravel(), is_right.ravel(), errors, classes=classes)

    def _joined(self, decisions: np.ndarray) -> list[str]:
        """Return the labels of rows (rows, C) with the separator between them."""
        names = np.array(self.labels)
        return [self.config.label_separator.join(names[row]) for row in decisions]

    def _write_predictions(self, split: Split, predictions: np.ndarray, gold: np.ndarray | None, folder: Path) -> None:
        """Write predictions_SPLIT.tsv, with gold labels (rows, C) if there are any."""
        examples = split.examples
        columns: dict[str, Any] = {
            "index": range(len(predictions)),
            "file": [example.file.name for example in examples],
            "line": [example.line for example in examples],
        }
        if gold is not None:
            columns["label"] = self._joined(gold)
        columns["prediction"] = self._joined(predictions)
        columns |= text_columns(examples, np.arange(len(examples)))
        write_prediction_table(folder, split.name, columns)

    def baseline(self, train: PreparedSplit, dev: PreparedSplit) -> dict[str, float]:
        """Return the metrics of the labels that most training rows have or, if there are none, of the most frequent."""
        shares = train.records.array(LABELS).mean(0)
        constant = shares > 0.5 if shares.max() > 0.5 else shares == shares.max()
        gold = dev.records.array(LABELS) > 0
        return multi_label_metrics(np.tile(constant, (len(gold), 1)), gold)


def make_classifier(
    config: ClassifierConfig, tokenizer: FullTokenizer, trained_info: TaskInfo | None = None
) -> ClassifierTask:
    """Return the task of a configuration, or of the weights to evaluate."""
    is_multi_label = config.multi_label or (trained_info is not None and trained_info.task == NAME)
    if is_multi_label and not config.multi_label:
        config = config.replace(multi_label=True)
    return (MultiLabelTask if is_multi_label else ClassifierTask)(config, tokenizer, trained_info)


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
    """Return scikit-learn's F1 over all decisions, labels and rows, and the share of rows that are right as a whole."""
    from sklearn.metrics import accuracy_score, f1_score

    averages = {f"{average}_f1": average for average in ("micro", "macro", "samples")}
    metrics = {
        name: float(f1_score(gold, predictions, average=average, zero_division=0)) for name, average in averages.items()
    }
    return metrics | {"exact_match": float(accuracy_score(gold, predictions))}


class MultiLabelAnswerer(ClassificationAnswerer):
    """Answerer: text_a, text_b -> labels, probabilities."""

    task_info: MultiLabelInfo

    def answers(self, items: Sequence[Any], features: Features, outputs: Outputs) -> list[Record]:
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


MULTI_LABEL = TaskSpec(
    NAME,
    build_scores,
    MultiLabelAnswerer,
    CLASSIFICATION.fields,
    MultiLabelAnswer,
    CLASSIFICATION.head,
    MultiLabelInfo,
    losses=AlbertForMultiLabel,
    config=ClassifierConfig,
)
