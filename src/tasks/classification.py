"""Classification and regression of texts and pairs of texts: GLUE's tasks, and anyone's own."""

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
from src.albert_config import WIDTH, AlbertConfig
from src.albert_for_finetune import AlbertForRegression, AlbertForSequenceClassification
from src.assessment_method import METHODS, assess
from src.create_finetune_data import (
    ClassificationSplit,
    encode_pairs,
    find_labels,
    label_warnings,
    plain_label,
    report_labels,
)
from src.data.feature_cache import TRAIN, Features, Split
from src.data.feature_files import RecordSet, facts_of, read_facts
from src.data.features import sample, token_columns
from src.data.ready_features import ReadySplit
from src.finetune_eval_model import SequenceClassificationScores
from src.tasks.answerer import Answer, Answerer, Outputs, Probability, Record, likeliest_name, shortest
from src.tasks.classification_examples import ClassifierConfig, CustomExamples, GlueExamples
from src.tasks.finetune_config import is_tfrecord
from src.tasks.glue import GLUE_TASKS, write_submission
from src.tasks.prediction_table import write_prediction_table
from src.tasks.spec import (
    EvaluationResult,
    Head,
    PreparedSplit,
    RecordField,
    Shapes,
    Task,
    TaskSpec,
    dense_shapes,
    describe_one_answer,
)
from src.tasks.task_info import LabelledInfo, TaskInfo, check_left_out
from src.tokenization import FullTokenizer

logger = logging.getLogger(__name__)

# Standard deviation of predicted scores, as a share of that of the right ones, which tells nothing apart.
CONSTANT = 0.01
LABELS = "labels"  # array of label ids or scores beside the rows of a split that has them


class ClassifierTask(Task):
    """GLUE's tasks, and examples of one's own with labels or scores."""

    kind = "classification"

    def __init__(self, config: ClassifierConfig, tokenizer: FullTokenizer, known: TaskInfo | None = None) -> None:
        super().__init__(config, tokenizer, known)
        self.glue = GLUE_TASKS.get(config.task_name)
        self.examples = GlueExamples(config) if self.glue else CustomExamples(config, known)
        self.dev_splits, self.test_splits = self.examples.dev_splits, self.examples.test_splits
        self.pairs = bool(self.examples.columns.text_b)
        of_scores = known is not None and known.task == REGRESSION.name
        self.regression = not self.glue.labels if self.glue else config.num_class == 1 or of_scores
        if self.regression and (config.num_class > 1 or config.label_list):
            raise ConfigError("num_class above 1 and label_list mean nothing here: the task is a regression of scores")
        self.labels_are_found = False
        self.labels = [] if self.regression else self._find_labels()
        usual = "spearman_correlation" if self.regression else "accuracy"
        self.method = config.assessment_method or (self.glue.metric if self.glue else usual)
        if (self.method == "spearman_correlation") != self.regression:
            raise ConfigError(
                f"assessment_method is {self.method}, but the task is {'a regression' if self.regression else 'not'}: "
                "spearman_correlation belongs to regressions and the other methods to classes"
            )
        self.selection = METHODS[self.method][0]
        self.spec = REGRESSION if self.regression else CLASSIFICATION
        self.task_info = self.spec.info(
            task=self.spec.name,
            labels=tuple(self.labels),
            max_seq_length=config.max_seq_length,
            task_name=config.task_name,
            classifier_hidden_size=self._hidden_size(),
            text_columns=self.examples.text_columns(),
            dev_split=self.examples.dev_split,
        )

    def _hidden_size(self) -> int:
        """As configured, or as the weights have it."""
        wanted = self.config.classifier_hidden_size
        if not isinstance(self.known, RegressionInfo):
            return wanted
        if wanted not in (0, size := self.known.classifier_hidden_size):
            raise ConfigError(f"classifier_hidden_size is {wanted}, but that of the weights is {size}")
        return size

    def _find_labels(self) -> list[str]:
        config = self.config
        if self.glue:
            labels = list(self.glue.labels)
        elif config.label_list:
            labels = list(config.label_list)
        elif self.known:
            labels = list(self.known.labels)
        elif config.train_data_file_path:
            path, labels = config.train_data_file_path, [str(number) for number in range(config.num_class)]
            if not is_tfrecord(path):
                labels = read_facts(facts_of(Path(path))).get("labels", labels)
        else:
            # Of the whole file: a rare one may stand in the share for development alone.
            in_share = self.examples.read("dev") if self.examples.dev_split else []
            examples = [*self.examples.read(TRAIN), *in_share]
            labels = find_labels(examples)
            self.labels_are_found = True
            report_labels(examples, len(in_share))
        if labels is None:
            raise ConfigError(f"{config.train_data_file_path} holds scores, not labels: give --num_class 1")
        labels = [plain_label(label) for label in labels]
        if len(set(labels)) < len(labels):
            raise ConfigError(f"the labels {', '.join(labels)} name a number twice; name it once in --label_list")
        if len(labels) < 2 or config.num_class not in (0, len(labels)):
            raise ConfigError(
                f"num_class is {config.num_class}, but there are {len(labels)} labels ({', '.join(labels)}); it must "
                "be their number, 1 for a regression, or 0 to be found (not from TFRecords)"
            )
        return labels

    def split(self, name: str) -> Split:
        config = self.config
        if ready := self.ready_file(name):
            return ReadySplit(name, Path(ready), Path(config.schema_file_path) if config.schema_file_path else None)
        every = self.examples.read(name)
        if name == TRAIN and not self.regression:
            counts = Counter(dict.fromkeys(self.labels, 0))
            counts.update(example.label for example in every)
            for warning in label_warnings(counts):
                logger.warning(f"{every[0].file}: {warning}")
        examples = sample(every, config.most_samples(name), config.seed)
        labels, complete = (
            None if self.regression else self.labels,
            len(examples) == len(every) and name not in self.examples.incomplete,
        )
        advice = "; the training file lacks it: correct it, or name all labels with --label_list"
        advice = advice if self.labels_are_found else ""
        return ClassificationSplit(name, examples, labels, self.tokenizer, config.max_seq_length, complete, advice)

    def ready_facts(self) -> dict[str, Any]:
        return super().ready_facts() | {"labels": self.labels or None}

    def check_ready(self, records: RecordSet, path: Path) -> None:
        if self.examples.dev_split:  # so that these are not the development features
            rest = self.examples.read(TRAIN)
            facts = ClassificationSplit(TRAIN, rest, self.labels, self.tokenizer, self.config.max_seq_length).facts()
            check_left_out(path, records.facts.get("texts_sha256"), facts["texts_sha256"], rest[0].file)
        if "label_ids" not in records.columns:
            raise DataError(f"{path} holds no labels, which training and evaluation need")
        if (longest := int(records.lengths.max())) > self.config.max_seq_length:
            raise DataError(
                f"{path} has rows of {longest} tokens, but max_seq_length is {self.config.max_seq_length}, to which "
                f"texts are cut later: give --max_seq_length {longest}"
            )
        if self.regression:
            if named := records.facts.get("labels"):
                raise DataError(f"{path} holds the labels {', '.join(named)}, needed are scores: num_class is 1")
            return
        labels, most = records.array(LABELS), len(self.labels) - 1
        wrong = labels if labels.dtype.kind == "f" else labels[(labels < 0) | (labels > most)]
        if len(wrong):
            raise DataError(f"{path} holds the label {wrong[0]!s}, allowed are the whole numbers from 0 to {most}")

    def evaluate(self, prepared: PreparedSplit, outputs: Outputs, task_info: TaskInfo) -> EvaluationResult:
        name, records, logits = prepared.split.name, prepared.records, outputs["logits"]
        predictions = logits[:, 0] if self.regression else logits.argmax(1)
        right = records.array(LABELS) if "label_ids" in records.columns else None
        metrics = {} if right is None else assess(self.method, predictions, right, len(self.labels))
        remarks = []
        if "f1" in metrics:
            remarks.append(describe_f1(self.labels))
        if self._submission(name) and not prepared.split.complete:
            remarks.append(
                f"{self._submission(name)} is not written: max_predict_samples or skip_labels leaves rows out"
            )
        write = partial(self._write, prepared.split, logits, right)
        collapse = "" if right is None else self._describe_collapse(predictions, right)
        return EvaluationResult(metrics, write, tuple(remarks), collapse=collapse)

    def _describe_collapse(self, predictions: np.ndarray, right: np.ndarray) -> str:
        if self.regression and predictions.std() < CONSTANT * right.std():
            return f"the score of every text is about {predictions.mean():.3g}"
        return "" if self.regression else describe_one_answer("label", predictions, right, self.labels)

    def _submission(self, split: str) -> str:
        """Name of the file that GLUE's server takes, "" for none."""
        return self.glue.submissions.get(split, "") if self.glue else ""

    def _write(self, split: Split, logits: np.ndarray, right: np.ndarray | None, folder: Path) -> None:
        """predictions_SPLIT.tsv, with `right` (rows,) if known; for a test split of GLUE the file its server takes."""
        names, examples = np.array(self.labels), split.examples
        predictions = logits[:, 0] if self.regression else logits.argmax(1)
        columns: dict[str, Sequence[Any]] = {"index": range(len(logits))}
        if examples:
            columns |= {"file": [each.file.name for each in examples], "line": [each.line for each in examples]}
        if right is not None:
            scores = [each.label for each in examples] if examples else right
            columns["label"] = scores if self.regression else names[right]
        columns["prediction"] = predictions if self.regression else names[predictions]
        if not self.regression:
            columns["probability"] = softmax(logits, 1).max(1)
        if examples:
            columns["text_a"] = [each.text_a for each in examples]
        if any(each.text_b for each in examples):
            columns["text_b"] = [each.text_b for each in examples]
        write_prediction_table(folder, split.name, columns)
        if self._submission(split.name) and split.complete:
            write_submission(folder, self.config.task_name, split.name, predictions)

    def baseline(self, train: PreparedSplit, dev: PreparedSplit) -> dict[str, float]:
        """The majority class of the training labels, or their mean score."""
        known, labels = train.records.array(LABELS), dev.records.array(LABELS)
        usual = known.mean() if self.regression else np.bincount(known).argmax()
        return assess(self.method, np.full_like(labels, usual), labels, len(self.labels))


def describe_f1(labels: Sequence[str]) -> str:
    """Which labels the figure f1 of src/assessment_method.py is of."""
    if len(labels) == 2:
        return f"f1 is that of the label {labels[1]!r}, the second of {', '.join(labels)} (label_list)"
    return "f1 is the plain mean over all labels"


class RegressionInfo(TaskInfo):
    """classifier_hidden_size: of a layer between the encoder and the classifier, 0 for none."""

    classifier_hidden_size: int = Field(0, ge=0, le=WIDTH)


class ClassificationInfo(RegressionInfo, LabelledInfo):
    """The same with labels."""


def build_scores(architecture: AlbertConfig, task_info: RegressionInfo) -> nn.Cell:
    """The network of classes, or of one score."""
    return SequenceClassificationScores(architecture, max(1, len(task_info.labels)), task_info.classifier_hidden_size)


class ClassificationAnswerer(Answerer):
    """text_a, text_b -> label, probabilities."""

    texts = ("text_a", "text_b")
    warned = False  # of a record without the second text that training's had

    def read(self, record: Record) -> tuple[str, str]:
        first, second = self.text(record, "text_a"), self.text(record, "text_b", needed=False)
        expected = self.task_info.text_columns.get("text_b")
        if expected and not second and not self.warned:
            self.warned = True
            logger.warning(
                f"a record has no {expected}, which the texts that the model was trained on had: such records are "
                "answered by their first text alone"
            )
        return first, second

    def features(self, items: Sequence[tuple[str, str]]) -> Features:
        values, truncated = encode_pairs(*zip(*items, strict=True), self.tokenizer, self.length)
        return Features(token_columns(self.tokenizer, self.length), values, {"truncated": truncated})

    def answers(self, items: Sequence[Any], features: Features, outputs: Outputs) -> list[Record]:
        return [likeliest_name("label", self.task_info.labels, row) for row in softmax(outputs["logits"], 1)]


class RegressionAnswerer(ClassificationAnswerer):
    """text_a, text_b -> score."""

    def answers(self, items: Sequence[Any], features: Features, outputs: Outputs) -> list[Record]:
        return [{"score": score} for score in shortest(outputs["logits"][:, 0])]


class ClassificationAnswer(Answer):
    label: str
    probabilities: dict[str, Probability]


class RegressionAnswer(Answer):
    score: float


def _shapes(hidden: int, outputs: int, between: int) -> Shapes:
    return dense_shapes("classifier_hidden", hidden, between) | dense_shapes("classifier", between or hidden, outputs)


_PAIR = {"text_a": RecordField(), "text_b": RecordField(optional=True)}
_PARTS, _HUGGING_FACE = (("classifier.",), ("classifier_hidden.",)), "AlbertForSequenceClassification"
CLASSIFICATION = TaskSpec(
    "classification",
    build_scores,
    ClassificationAnswerer,
    _PAIR,
    ClassificationAnswer,
    Head("classifier", 0, _PARTS, _shapes, _HUGGING_FACE),
    ClassificationInfo,
    losses=AlbertForSequenceClassification,
    config=ClassifierConfig,
)
REGRESSION = TaskSpec(
    "regression",
    build_scores,
    RegressionAnswerer,
    _PAIR,
    RegressionAnswer,
    Head("classifier", 1, _PARTS, _shapes, _HUGGING_FACE),
    RegressionInfo,
    losses=AlbertForRegression,
    config=ClassifierConfig,
)
