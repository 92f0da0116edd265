"""What a task consists of. Each module of this folder with a TaskSpec is a task, and src/tasks/__init__.py has all."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from mindspore import nn

from src.albert_config import AlbertConfig
from src.albert_networks import TrainingNetwork
from src.data.feature_cache import TRAIN, Split
from src.data.feature_files import RecordSet
from src.tasks.answerer import Answer, Answerer, Outputs
from src.tasks.finetune_config import FinetuneConfig
from src.tasks.task_info import TaskInfo
from src.tokenization import FullTokenizer

ONE_ANSWER = 0.99  # share of rows with the same prediction from which a model tells nothing apart


@dataclass(frozen=True)
class RecordField:
    """A text of a record; or, with texts, a list of at least and at most so many."""

    optional: bool = False
    texts: tuple[int, int] | None = None


Shapes = dict[str, tuple[int, ...]]


def dense_shapes(name: str, in_size: int, out_size: int) -> Shapes:
    """Weight and bias of a src.nn.layers.Dense of this name."""
    return {f"{name}.weight": (out_size, in_size), f"{name}.bias": (out_size,)}


@dataclass(frozen=True)
class Head:
    """The fine-tuned weights of a task.

    module: the layer that scores, as checkpoints name it; its bias, which has an entry for each output, tells the head.
    outputs: of that layer; 0: one for each label.
    parts: beginnings of the names of weights that come together or not at all.
    shapes: of all of them by name, from the hidden size, the outputs and the width of a layer before the scores.
    hugging_face: the class of transformers, whose names of these weights are the same; "" for none.
    """

    module: str
    outputs: int
    parts: tuple[tuple[str, ...], ...]
    shapes: Callable[[int, int, int], Shapes]
    hugging_face: str = ""


@dataclass(frozen=True)
class TaskSpec:
    """A task as the rest of the project knows it.

    name: in task.json. info: of what task.json says.
    scores: the network without losses. losses: of scores, whose weights a seed initialises; None: not trained here.
    needed: beginnings of the names of weights that the scores cannot do without.
    head: None where pre-trained weights are used as they are. config: of the command that trains it, None for none.
    answerer: reads records and makes answers. fields: of a record that the server takes. answer: that it gives.
    texts_per_row: side by side in a row, whose lengths count together.
    """

    name: str
    scores: Callable[[AlbertConfig, Any], nn.Cell]
    answerer: type[Answerer]
    fields: Mapping[str, RecordField]
    answer: type[Answer]
    head: Head | None = None
    info: type[TaskInfo] = TaskInfo
    needed: tuple[str, ...] = ("",)
    texts_per_row: int = 1
    losses: type[TrainingNetwork] | None = None
    config: type[FinetuneConfig] | None = None


@dataclass(frozen=True)
class PreparedSplit:
    """A split and its feature files."""

    split: Split
    records: RecordSet


@dataclass(frozen=True)
class EvaluationResult:
    """Metrics and predictions of a split.

    metrics: official ones by name; empty where the split has no labels.
    write: puts the predictions into a folder: predictions_SPLIT.tsv, and what the task's official formats are.
    remarks: sentences without which the metrics could be misread.
    calibration: what the development split says about using the weights, where their task.json does not.
    collapse: in words what is predicted for every row alike although right answers differ; "" where predictions do.
    """

    metrics: dict[str, float]
    write: Callable[[Path], object]
    remarks: tuple[str, ...] = ()
    calibration: dict[str, Any] = field(default_factory=dict)
    collapse: str = ""


def describe_one_answer(what: str, predictions: np.ndarray, right: np.ndarray, names: Sequence[str]) -> str:
    """A collapse in words, where nearly all predictions are the same and of the others none is right.

    Args:
        what: is predicted. predictions, right: (rows,) numbers of names.
    """
    counts = np.bincount(predictions)
    share, usual = counts.max() / len(predictions), counts.argmax()
    others = predictions != usual
    if share < ONE_ANSWER or np.ptp(right) == 0 or (predictions == right)[others].any():
        return ""
    if share == 1:
        return f"the {what} of every row is {names[usual]!r}"
    return f"the {what} of {share:.1%} of the rows is {names[usual]!r}, and of the others none is right"


class Task(ABC):
    """A task with the examples of one run.

    spec: of the task. kind: of its feature rows. task_info: what task.json is to say.
    selection: the development metric that chooses the best checkpoint, the larger the better.
    dev_splits, test_splits: names; the first development split is the one that chooses.
    pairs: whether rows are two texts, told apart as segments 0 and 1.
    needs_examples: whether evaluation and baseline read the examples, so that ready features must be made of them.

    Args:
        known: task_info of the weights, where nothing is trained.
    """

    spec: TaskSpec
    kind: str
    task_info: TaskInfo
    selection: str
    dev_splits: tuple[str, ...] = ("dev",)
    test_splits: tuple[str, ...] = ("test",)
    pairs: bool = True
    needs_examples: bool = False

    def __init__(self, config: FinetuneConfig, tokenizer: FullTokenizer, known: TaskInfo | None = None) -> None:
        self.config, self.tokenizer, self.known = config, tokenizer, known

    def ready_file(self, split: str) -> str:
        """The features of a split that the configuration names in place of examples; "" for none."""
        ready = {TRAIN: self.config.train_data_file_path, self.dev_splits[0]: self.config.eval_data_file_path}
        return ready.get(split, "")

    def ready_facts(self) -> dict[str, Any]:
        """What ready features must have been made with, where they say it."""
        return {
            "vocab_sha256": self.tokenizer.sha256,
            "do_lower_case": self.tokenizer.do_lower_case,
            "max_seq_length": self.config.max_seq_length,
        }

    def check_ready(self, records: RecordSet, path: Path) -> None:  # noqa: B027
        """Raise DataError where ready features are not ones of this task, beyond their facts."""

    @abstractmethod
    def split(self, name: str) -> Split:
        """The examples of a split; DataError or ConfigError where they are missing or wrong."""

    @abstractmethod
    def evaluate(self, prepared: PreparedSplit, outputs: Outputs, task_info: TaskInfo) -> EvaluationResult:
        """From outputs of all rows to predictions and metrics; task_info, of the weights, may lack a calibration."""

    @abstractmethod
    def baseline(self, train: PreparedSplit, dev: PreparedSplit) -> dict[str, float]:
        """Development metrics of an answer that takes no network; learnt from the training labels alone."""
