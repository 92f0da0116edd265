"""Classification and regression of texts and pairs of texts: GLUE and CLUE tasks and custom data."""

import logging
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from mindspore import nn
from pydantic import Field
from scipy.special import softmax

from model_utils.errors import ConfigError, DataError
from src.albert_config import LENGTH, WIDTH, AlbertConfig
from src.albert_for_finetune import AlbertForRegression, AlbertForSequenceClassification
from src.assessment_method import METHODS, assess
from src.create_finetune_data import ClassificationSplit, plain_label
from src.data.feature_cache import TRAIN, Features, Split
from src.data.feature_files import RecordSet, manifest_path, read_manifest
from src.data.features import LABELS, WINDOWS, sample, token_columns
from src.data.ready_features import ReadySplit
from src.data.text_rows import encode_windows, mean_of_windows
from src.finetune_eval_model import SequenceClassificationScores
from src.tasks.class_labels import count_labels, find_labels, label_warnings
from src.tasks.class_weights import class_weights
from src.tasks.classification_examples import ClassifierConfig, CustomExamples, GlueExamples
from src.tasks.evaluation_report import classifier_report, text_columns
from src.tasks.finetune_config import is_tfrecord
from src.tasks.glue import PUBLISHED_TASKS, write_submission
from src.tasks.prediction_table import write_prediction_table
from src.tasks.record_processor import Answer, Outputs, Probability, Record, RecordProcessor, likeliest_name, shortest
from src.tasks.spec import EvaluationResult, Head, PreparedSplit, RecordField, Shapes, Task, TaskSpec, dense_shapes
from src.tasks.task_info import LabelledInfo, TaskInfo
from src.tokenization import FullTokenizer

logger = logging.getLogger(__name__)


class ClassifierTask(Task):
    """GLUE or CLUE task, or custom examples with labels or scores."""

    feature_format = "classification"
    config: ClassifierConfig

    def __init__(
        self, config: ClassifierConfig, tokenizer: FullTokenizer, trained_info: TaskInfo | None = None
    ) -> None:
        super().__init__(config, tokenizer, trained_info)
        self.glue = PUBLISHED_TASKS.get(config.task_name)
        self.examples = GlueExamples(config) if self.glue else CustomExamples(config, trained_info)
        self.dev_splits = self.examples.dev_splits
        self.test_splits = self.examples.test_splits
        self.pairs = bool(self.examples.columns.text_b) or "text_b" in getattr(trained_info, "text_columns", {})
        if self.glue:
            self.regression = not self.glue.labels
        else:
            trained_on_scores = trained_info is not None and trained_info.task == REGRESSION.name
            self.regression = config.num_class == 1 or trained_on_scores
        if self.regression:
            config.refuse(["label_list", "class_weights", "label_smoothing"], "the task is a regression")
            if config.num_class > 1:
                raise config.error_of("num_class", expected="0 or 1 for a regression")
        self.separator = config.label_separator if config.multi_label else ""
        self.labels_from_train_file = False
        self.labels = [] if self.regression else self._find_labels()
        default_method = "spearman_correlation" if self.regression else "accuracy"
        self.method = config.assessment_method or (self.glue.metric if self.glue else default_method)
        if (self.method == "spearman_correlation") != self.regression:
            problem = "spearman_correlation is for regressions, all other methods are for classes"
            raise config.error_of("assessment_method", problem)
        self.selection = METHODS[self.method][0]
        if not self.regression:
            class_weights(config.class_weights, self.labels, np.zeros(0, int))  # wrong ones fail before the features
        self.spec = REGRESSION if self.regression else CLASSIFICATION
        self.window_stride = config.window_stride or getattr(trained_info, "window_stride", 0)
        hidden_size = config.classifier_hidden_size
        if isinstance(trained_info, RegressionInfo):
            hidden_size = trained_info.classifier_hidden_size
            if config.classifier_hidden_size not in (0, hidden_size):
                raise config.error_of("classifier_hidden_size", f"the weights have {hidden_size}")
        info = RegressionInfo if self.regression else ClassificationInfo
        self.task_info = info(
            task=self.spec.name,
            labels=tuple(self.labels),
            max_seq_length=config.max_seq_length,
            text_columns=self.examples.text_columns(),
            dev_split=self.examples.dev_split,
            classifier_hidden_size=hidden_size,
            window_stride=self.window_stride,
            mark_shared=self.pairs and self.kept_by_weights("mark_shared"),
            **{"task_name": config.task_name},
        )

    def _find_labels(self) -> list[str]:
        """Return the labels of the task, label_list, the weights, the features or the training file, the first found.

        Raises:
            ConfigError: they are fewer than two, not distinct, or not as many as num_class.
        """
        config = self.config
        if self.glue:
            labels = list(self.glue.labels)
        elif config.label_list or config.indicator_columns:
            labels = list(config.label_list or config.indicator_columns)
        elif self.trained_info:
            labels = list(self.trained_info.labels)
        elif config.train_data_file_path:
            labels = [str(index) for index in range(config.num_class)]
            if not is_tfrecord(config.train_data_file_path):
                labels = read_manifest(manifest_path(Path(config.train_data_file_path))).get("labels", labels)
        else:
            # A rare label may occur in the development share alone, so the whole file is searched.
            dev_examples = self.examples.read("dev") if self.examples.dev_split else []
            labels = find_labels([*self.examples.read(TRAIN), *dev_examples], len(dev_examples), self.separator)
            self.labels_from_train_file = True
        if labels is None:
            raise ConfigError(f"{config.train_data_file_path} holds scores, not labels: give --num_class 1")
        labels = [plain_label(label) for label in labels]
        if len(set(labels)) < len(labels):
            raise ConfigError(f"the labels {', '.join(labels)} contain a number twice: name it once in --label_list")
        if len(labels) < 2 or config.num_class not in (0, len(labels)):
            problem = f"there are {len(labels)} labels ({', '.join(labels)})"
            raise config.error_of("num_class", problem, hint="set it to their number, or to 1 for a regression")
        return labels

    def split(self, name: str) -> Split:
        config = self.config
        if ready := self.ready_file(name):
            return ReadySplit(name, Path(ready), Path(config.schema_file_path) if config.schema_file_path else None)
        all_examples = self.examples.read(name)
        if name == TRAIN and not self.regression:
            counts = Counter(dict.fromkeys(self.labels, 0))
            counts.update(count_labels(all_examples, self.separator))
            for warning in label_warnings(counts, self.separator):
                logger.warning(f"{all_examples[0].file}: {warning}")
        examples = sample(all_examples, config.max_samples(name), config.seed)
        advice = "; the training file lacks it: correct it, or name all labels with --label_list"
        return ClassificationSplit(
            name,
            examples,
            None if self.regression else self.labels,
            self.tokenizer,
            config.max_seq_length,
            complete=len(examples) == len(all_examples) and name not in self.examples.incomplete,
            other_label=advice if self.labels_from_train_file else "",
            window_stride=self.window_stride,
            separator=self.separator,
        )

    def expected_manifest(self) -> dict[str, Any]:
        return super().expected_manifest() | {"labels": self.labels or None, "window_stride": self.window_stride}

    def check_ready(self, records: RecordSet, path: Path) -> None:
        if self.window_stride and not records.has_array(WINDOWS):
            raise DataError(f"{path} holds no windows, but window_stride is {self.window_stride}: make them with it")
        if "label_ids" not in records.columns:
            raise DataError(f"{path} holds no labels, which training and evaluation need")
        longest = int(records.lengths.max())
        if longest > self.config.max_seq_length:
            raise DataError(f"{path} has rows of {longest} tokens, max_seq_length is {self.config.max_seq_length}")
        if self.regression:
            if label_names := records.manifest.get("labels"):
                raise DataError(f"{path} holds the labels {', '.join(label_names)}, but num_class is 1: give scores")
            return
        labels = records.array(LABELS)
        highest = len(self.labels) - 1
        is_float = labels.dtype.kind == "f"
        invalid = labels if is_float else labels[(labels < 0) | (labels > highest)]
        if len(invalid):
            raise DataError(f"{path} holds the label {invalid[0]!s}, allowed are integers from 0 to {highest}")

    def row_weights(self, train: RecordSet) -> np.ndarray | None:
        """Return the weights of classes, divided by the number of rows of each example."""
        if not self.config.class_weights and not self.window_stride:
            return None
        labels = train.array(LABELS)
        windows = train.array(WINDOWS) if self.window_stride else np.arange(len(labels))
        by_label = class_weights(self.config.class_weights, self.labels, labels) if self.config.class_weights else None
        weights = np.ones(len(labels), np.float32) if by_label is None else by_label[labels]
        return (weights / np.bincount(windows))[windows].astype(np.float32)

    def set_up_losses(self, network: AlbertForSequenceClassification, train: RecordSet) -> None:
        if share := self.config.label_smoothing:
            network.smooth_labels(share, class_weights(self.config.class_weights, self.labels, train.array(LABELS)))

    def logits_of_texts(self, records: RecordSet, outputs: Outputs) -> np.ndarray:
        """Return the logits of each example, (examples, C): the mean of its windows."""
        logits = outputs["logits"]
        return mean_of_windows(logits, records.array(WINDOWS)) if self.window_stride else logits

    def evaluate(self, prepared: PreparedSplit, outputs: Outputs, task_info: TaskInfo) -> EvaluationResult:
        logits = self.logits_of_texts(prepared.records, outputs)
        predictions = logits[:, 0] if self.regression else logits.argmax(1)
        gold = prepared.records.array(LABELS) if "label_ids" in prepared.records.columns else None
        metrics = {} if gold is None else assess(self.method, predictions, gold, len(self.labels))
        warnings = []
        if "f1" in metrics:
            warnings.append(describe_f1(self.labels))
        submission = self._submission(prepared.split.name)
        if submission and not _is_complete(prepared.split):
            warnings.append(f"{submission} is not written: max_predict_samples or skip_labels leaves rows out")
        write = partial(self._write, prepared.split, logits, gold)
        report = None
        if gold is not None and not self.regression:
            report = partial(classifier_report, self.labels, softmax(logits, 1), gold, prepared.split.examples)
        return EvaluationResult(metrics, write, tuple(warnings), report=report)

    def _submission(self, split: str) -> str:
        """Return the name of the split's submission file for the benchmark's server, "" for none."""
        return self.glue.submissions.get(split, "") if self.glue else ""

    def _write(self, split: Split, logits: np.ndarray, gold: np.ndarray | None, folder: Path) -> None:
        """Write predictions_SPLIT.tsv, with gold labels (rows,) if there are any, and the submission file."""
        columns: dict[str, Any] = {}
        if self.regression:
            predictions = logits[:, 0]
            if gold is not None:
                columns["label"] = [example.label for example in split.examples] or gold
            columns["prediction"] = predictions
        else:
            names = np.array(self.labels)
            predictions = logits.argmax(1)
            if gold is not None:
                columns["label"] = names[gold]
            columns |= {"prediction": names[predictions], "probability": softmax(logits, 1).max(1)}
        write_text_predictions(folder, split, columns)
        if self._submission(split.name) and _is_complete(split):
            write_submission(folder, self.config.task_name, split.name, predictions, split.examples[0].file)

    def baseline(self, train: PreparedSplit, dev: PreparedSplit) -> dict[str, float]:
        """Return the metrics of the majority class of the training labels, or of their mean score."""
        train_labels = train.records.array(LABELS)
        dev_labels = dev.records.array(LABELS)
        constant = train_labels.mean() if self.regression else np.bincount(train_labels).argmax()
        return assess(self.method, np.full_like(dev_labels, constant), dev_labels, len(self.labels))


def write_text_predictions(folder: Path, split: Split, columns: dict[str, Any]) -> None:
    """Write predictions_SPLIT.tsv with these columns, of all rows, and the rows' files, lines and texts."""
    examples = split.examples
    origin: dict[str, Any] = {"index": range(len(columns["prediction"]))}
    if examples:
        origin["file"] = [example.file.name for example in examples]
        origin["line"] = [example.line for example in examples]
    texts = text_columns(examples, np.arange(len(examples)))
    write_prediction_table(folder, split.name, origin | columns | texts)


def _is_complete(split: Split) -> bool:
    return isinstance(split, ClassificationSplit) and split.complete


def describe_f1(labels: Sequence[str]) -> str:
    """Return a sentence that says which labels the metric f1 of src/assessment_method.py covers."""
    if len(labels) == 2:
        return f"f1 is that of the label {labels[1]!r}, the second of {', '.join(labels)} (label_list)"
    return "f1 is the plain mean over the labels that occur"


class RegressionInfo(TaskInfo):
    """Settings of texts with a class or a score.

    Attributes:
        classifier_hidden_size: width of a layer between encoder and classifier, 0 for none.
        window_stride: stride in tokens between the windows of a long text, whose logits are averaged; 0: truncate.
    """

    classifier_hidden_size: int = Field(0, ge=0, le=WIDTH)
    window_stride: int = Field(0, ge=0, le=LENGTH)


class ClassificationInfo(RegressionInfo, LabelledInfo):
    """Settings of a classifier, with labels."""


def build_scores(architecture: AlbertConfig, task_info: RegressionInfo) -> nn.Cell:
    """Return a network with one logit per label or, without labels, one score."""
    return SequenceClassificationScores(architecture, max(1, len(task_info.labels)), task_info.classifier_hidden_size)


class ClassificationProcessor(RecordProcessor):
    """Processor of a classifier: text_a, text_b -> label, probabilities."""

    text_keys: tuple[str, ...] = ("text_a", "text_b")
    warned_of_missing_text = False

    def parse(self, record: Record) -> tuple[str, str]:
        text_a = self.text(record, "text_a")
        text_b = self.text(record, "text_b", needed=False)
        trained_column = self.task_info.text_columns.get("text_b")
        if trained_column and not text_b and not self.warned_of_missing_text:
            self.warned_of_missing_text = True
            logger.warning(f"a record has no {trained_column}, as the training had: its first text alone is answered")
        return text_a, text_b

    def encode(self, items: Sequence[tuple[str, str]]) -> Features:
        texts_a, texts_b = zip(*items, strict=True)
        stride = getattr(self.task_info, "window_stride", 0)
        values, truncated, windows = encode_windows(texts_a, texts_b, self.tokenizer, self.length, stride)
        arrays = {"truncated": truncated, WINDOWS: windows}
        return Features(token_columns(self.tokenizer, self.length), values, arrays)

    def items_of_rows(self, features: Features) -> np.ndarray:
        return features.arrays[WINDOWS]

    def logits(self, features: Features, outputs: Outputs) -> np.ndarray:
        """Return the mean logits of each item's rows, (items, C)."""
        return mean_of_windows(outputs["logits"], features.arrays[WINDOWS])

    def postprocess(self, items: Sequence[Any], features: Features, outputs: Outputs) -> list[Record]:
        probabilities = softmax(self.logits(features, outputs), 1)
        return [likeliest_name("label", self.task_info.labels, row) for row in probabilities]


class RegressionProcessor(ClassificationProcessor):
    """Processor of a regression: text_a, text_b -> score."""

    def postprocess(self, items: Sequence[Any], features: Features, outputs: Outputs) -> list[Record]:
        return [{"score": score} for score in shortest(self.logits(features, outputs)[:, 0])]


class ClassificationAnswer(Answer):
    label: str
    probabilities: dict[str, Probability]


class RegressionAnswer(Answer):
    score: float


def _shapes(hidden_size: int, outputs: int, classifier_hidden_size: int) -> Shapes:
    hidden_layer = dense_shapes("classifier_hidden", hidden_size, classifier_hidden_size)
    return hidden_layer | dense_shapes("classifier", classifier_hidden_size or hidden_size, outputs)


def text_spec(
    name: str, processor: type[RecordProcessor], answer: type[Answer], outputs: int, info: type[TaskInfo], losses: type
) -> TaskSpec:
    """Return the spec of a task whose records are a text or a pair of texts; outputs: as in Head."""
    parts = (("classifier.",), ("classifier_hidden.",))
    head = Head("classifier", outputs, parts, _shapes, "AlbertForSequenceClassification")
    fields = {"text_a": RecordField(), "text_b": RecordField(optional=True)}
    return TaskSpec(name, build_scores, processor, fields, answer, head, info, losses=losses, config=ClassifierConfig)


CLASSIFICATION = text_spec(
    "classification",
    ClassificationProcessor,
    ClassificationAnswer,
    0,
    ClassificationInfo,
    AlbertForSequenceClassification,
)
REGRESSION = text_spec("regression", RegressionProcessor, RegressionAnswer, 1, RegressionInfo, AlbertForRegression)
