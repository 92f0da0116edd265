"""Classification and regression of texts and pairs of texts: GLUE's tasks, and anyone's own."""

import logging
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from mindspore import nn
from pydantic import Field
from scipy.special import softmax

from model_utils.errors import ConfigError, DataError
from model_utils.schema import ANY, SAME_PLACE, option
from src.albert_config import WIDTH, AlbertConfig
from src.albert_for_finetune import AlbertForRegression, AlbertForSequenceClassification
from src.assessment_method import METHODS, assess
from src.create_finetune_data import (
    ClassificationSplit,
    Example,
    TextColumns,
    encode_pairs,
    find_labels,
    find_splits,
    read_examples,
    read_polarity_files,
    report_labels,
    sample,
    split_off,
    token_columns,
)
from src.data.feature_cache import TRAIN, Features, Split
from src.data.feature_files import RecordSet, facts_of, read_facts
from src.data.ready_features import ReadySplit
from src.data.text_tables import JSON_SUFFIXES, read_table
from src.finetune_eval_model import SequenceClassificationScores
from src.tasks.answerer import Answer, Answerer, Outputs, Probability, Record, likeliest_name
from src.tasks.finetune_config import FinetuneConfig, is_tfrecord
from src.tasks.glue import GLUE_TASKS, read_glue, write_submission
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
from src.tasks.task_info import NO_DEV_SPLIT, LabelledInfo, TaskInfo, check_left_out, choose_dev_split
from src.tokenization import FullTokenizer

logger = logging.getLogger(__name__)

CUSTOM = "custom"
OWN_FILES = ("task_name", CUSTOM)  # for needs
MOST_LABELS = 100_000
# Standard deviation of predicted scores, as a share of that of the right ones, which tells nothing apart.
CONSTANT = 0.01
LABELS = "labels"  # array of label ids or scores beside the rows of a split that has them


class ClassifierConfig(FinetuneConfig):
    """Classify texts or pairs of texts, or score them: python run_classifier.py."""

    config_file = "task_classifier_config.yaml"
    reads_tfrecords = True

    task_name: str = option("custom", "a task of GLUE, or custom for one's own files", choices=(*GLUE_TASKS, CUSTOM))
    assessment_method: str = option(
        "",
        "metric; empty: the task's official method; f1 of two labels is that of the second in label_list",
        choices=("", *METHODS),
    )
    num_class: int = option(
        0, "number of classes, 1 for a regression; 0: as many as are found", minimum=0, maximum=MOST_LABELS
    )
    classifier_hidden_size: int = option(
        0, "width of a layer between the encoder and the classifier; 0: none", minimum=0, maximum=WIDTH
    )

    # custom: the files, and where in them the texts are.
    train_file: str = option(
        "", "tsv, csv, jsonl, xls or xlsx; empty: train.* of data_dir", needs=OWN_FILES, on_resume=SAME_PLACE
    )
    dev_file: str = option(
        "", "likewise; where there is none, dev_ratio of the training file", needs=OWN_FILES, on_resume=SAME_PLACE
    )
    test_file: str = option("", "likewise; labels are not needed", needs=OWN_FILES, on_resume=ANY)
    positive_file: str = option("", "one text a line, in place of train_file", needs=OWN_FILES, on_resume=SAME_PLACE)
    negative_file: str = option("", "one text a line, beside positive_file", needs=OWN_FILES, on_resume=SAME_PLACE)
    dev_ratio: float = option(0.1, "share split off for development", above=0, below=1, needs=OWN_FILES)
    text_a_column: str = option("text_a", "name of the column, or its number from 1", needs=OWN_FILES)
    text_b_column: str = option("", "likewise; empty: single texts", needs=OWN_FILES)
    label_column: str = option("label", "likewise", needs=OWN_FILES)
    column_names: tuple[str, ...] = option((), "names of the columns of files without a header", needs=OWN_FILES)
    label_list: tuple[str, ...] = option((), "labels in their order; empty: those found, sorted", needs=OWN_FILES)

    def validate(self) -> None:
        super().validate()
        if bool(self.positive_file) != bool(self.negative_file) or (self.positive_file and self.train_file):
            raise ConfigError("positive_file and negative_file belong together and stand in place of train_file")
        if self.test_file and not self.do_predict:
            raise ConfigError(f"test_file is {self.test_file}, which means nothing while do_predict is false")
        if self.task_name != CUSTOM and not GLUE_TASKS[self.task_name].dev_splits and (self.do_train or self.do_eval):
            raise ConfigError(
                f"task_name is {self.task_name}, which can only be predicted: set do_train and do_eval to false, and "
                "load_finetune_checkpoint_path to a model of mnli"
            )

    def check_required(self) -> None:
        super().check_required()
        if self.task_name != CUSTOM and self.reads_examples and not self.data_dir:
            raise ConfigError("--data_dir is needed: the folder with the files of the GLUE task")


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
            report_labels(examples, len(in_share))
        if labels is None:
            raise ConfigError(f"{config.train_data_file_path} holds scores, not labels: give --num_class 1")
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
        examples = sample(every, config.most_samples(name), config.seed)
        labels, complete = None if self.regression else self.labels, len(examples) == len(every)
        return ClassificationSplit(name, examples, labels, self.tokenizer, config.max_seq_length, complete)

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
            remarks.append(f"{self._submission(name)} is not written: max_predict_samples leaves rows out")
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
            columns["label"] = right if self.regression else names[right]
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


class GlueExamples:
    """The examples of a GLUE task by split."""

    dev_split = None

    def __init__(self, config: ClassifierConfig) -> None:
        self.config = config
        task = GLUE_TASKS[config.task_name]
        self.dev_splits, self.test_splits = task.dev_splits or ("dev",), task.test_splits
        self.columns = task.columns

    def text_columns(self) -> dict[str, str]:
        """The names of the texts' columns, by their keys in records."""
        return {"text_a": self.columns.text_a} | ({"text_b": self.columns.text_b} if self.columns.text_b else {})

    def read(self, split: str) -> list[Example]:
        return read_glue(self.config.task_name, Path(self.config.data_dir), split)


class CustomExamples:
    """The examples of one's own files by split; without a development file a part of the training file is one."""

    dev_splits = ("dev",)
    test_splits = ("test",)

    def __init__(self, config: ClassifierConfig, known: TaskInfo | None = None) -> None:
        self.config = config
        self.columns = TextColumns(config.text_a_column, config.text_b_column, config.label_column, config.column_names)
        named = {TRAIN: config.train_file, "dev": config.dev_file, "test": config.test_file}
        self.files = find_splits(config.data_dir, named)
        self.dev_split = None
        self._training: Sequence[Example] | None = None
        if known and known.text_columns and bool(self.columns.text_b) != ("text_b" in known.text_columns):
            trained, here = " and ".join(known.text_columns.values()), self.columns.text_b
            raise ConfigError(
                f"text_b_column is {here!r}, but the weights were trained on {trained}: name as many columns"
            )
        if config.do_eval and "dev" not in self.files and not config.eval_data_file_path:
            whole = self.read("dev")
            texts = ((example.text_a, example.text_b) for example in whole)
            self.dev_split = choose_dev_split(config.dev_ratio, config.seed, known, whole[0].file, texts)
        self._refuse_unused()

    def _refuse_unused(self) -> None:
        """Raise ConfigError where a file is named that ready features replace, a share that is not split off, or
        columns of tables where there are none, or of lines of JSON, which name theirs.
        """
        config = self.config
        training = (config.do_train and not config.train_data_file_path) or self.dev_split is not None
        tables = {
            TRAIN: training and not config.positive_file,
            "dev": config.do_eval and not config.eval_data_file_path,
            "test": config.do_predict,
        }
        read = [self.files[split] for split, used in tables.items() if used and split in self.files]
        if config.positive_file and training and not read:
            keys = ["text_a_column", "text_b_column", "label_column", "column_names"]
            config.refuse(keys, "the lines of positive_file and negative_file are texts, and no table is read")
        if read and all(file.suffix.lower() in JSON_SUFFIXES for file in read):
            config.refuse(["column_names"], "lines of JSON name their columns themselves")
        if config.eval_data_file_path:
            config.refuse(["dev_file"], "eval_data_file_path names ready features in place of examples")
        if config.train_data_file_path and not self.dev_split:
            in_place = "train_data_file_path names ready features in place of examples"
            config.refuse(["train_file", "positive_file", "negative_file"], in_place)
        if config.do_train and not self.dev_split:
            config.refuse(["dev_ratio"], NO_DEV_SPLIT)

    def text_columns(self) -> dict[str, str]:
        """The names of the texts' columns in the training file, by their keys in records; none where it has none, or
        is not read."""
        config = self.config
        if not config.do_train or TRAIN not in self.files or config.positive_file or config.train_data_file_path:
            return {}
        table = read_table(self.files[TRAIN], self.columns.names, self.columns.text_a)
        wanted = {"text_a": self.columns.text_a, "text_b": self.columns.text_b}
        names = {key: table.name_of(column) for key, column in wanted.items() if column}
        return {key: name if table.names.count(name) == 1 else key for key, name in names.items()}

    def read(self, split: str) -> list[Example]:
        """The examples of a split; DataError where there is no file for it."""
        config = self.config
        of_its_own = split != TRAIN or ("dev" in self.files and not config.positive_file)
        if split in self.files and of_its_own:
            return read_examples(self.files[split], self.columns, labelled=split != "test")
        if split == "test":
            raise DataError("there is nothing to predict: name a test_file, or put test.* into data_dir")
        if self._training is None:
            if config.positive_file:
                self._training = read_polarity_files(Path(config.positive_file), Path(config.negative_file))
            elif TRAIN in self.files:
                self._training = read_examples(self.files[TRAIN], self.columns)
            else:
                raise DataError(f"there are no {split} examples: name train_file and dev_file, or data_dir")
        if self.dev_split is None:
            return list(self._training)
        return split_off(self._training, self.dev_split.ratio, self.dev_split.seed)[split == "dev"]


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
        return [{"score": float(row[0])} for row in outputs["logits"]]


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
