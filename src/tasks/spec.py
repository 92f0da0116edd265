"""Interface of a fine-tuning task; modules of this folder define TaskSpecs, and src/tasks/__init__.py lists them."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from mindspore import nn

from src.albert_config import AlbertConfig
from src.albert_networks import TrainingNetwork
from src.data.feature_cache import TRAIN, Split
from src.data.feature_files import RecordSet
from src.tasks.evaluation_report import EvaluationReport
from src.tasks.finetune_config import FinetuneConfig
from src.tasks.record_processor import Answer, Outputs, RecordProcessor
from src.tasks.task_info import TaskInfo
from src.tokenization import FullTokenizer


@dataclass(frozen=True)
class RecordField:
    """Text field of a record; with `list_size` (minimum, maximum), a list of that many texts.

    Attributes:
        words_key: key of a list of words that the RecordProcessor reads in place of the text; "" for none.
    """

    optional: bool = False
    list_size: tuple[int, int] | None = None
    words_key: str = ""


Shapes = dict[str, tuple[int, ...]]


def dense_shapes(name: str, in_size: int, out_size: int) -> Shapes:
    """Return the shapes of weight and bias of a src.nn.layers.Dense called `name`."""
    return {f"{name}.weight": (out_size, in_size), f"{name}.bias": (out_size,)}


@dataclass(frozen=True)
class Head:
    """Fine-tuned weights of a task.

    Attributes:
        module: checkpoint name of the output layer, which with the number of outputs tells the possible tasks.
        outputs: size of that layer; 0: as many as labels, which conversion of weights relies on.
        parts: groups of weight name prefixes; the weights of a group are either all present or all absent.
        shapes: returns all shapes by name, given hidden size, outputs and width of the layer before the logits.
        hugging_face: class of transformers that stores these weights with the same names and shapes; "" for none.
    """

    module: str
    outputs: int
    parts: tuple[tuple[str, ...], ...]
    shapes: Callable[[int, int, int], Shapes]
    hugging_face: str = ""


def linear_head(module: str, outputs: int, hugging_face: str) -> Head:
    """Return the Head of a single linear layer."""

    def shapes(hidden_size: int, label_count: int, _: int) -> Shapes:
        return dense_shapes(module, hidden_size, outputs or label_count)

    return Head(module, outputs, ((f"{module}.",),), shapes, hugging_face)


@dataclass(frozen=True)
class TaskSpec:
    """Definition of a task for the rest of the project.

    Attributes:
        name: `task` in task.json.
        scores: builds the inference network, which returns logits, from architecture and task.json.
        processor: reads records and postprocesses logits into answers.
        fields: fields of a record in requests to the server.
        answer: schema of the server's answer.
        head: None where pre-trained weights are used unchanged.
        info: schema of task.json.
        needed: name prefixes of the weights that inference requires.
        texts_per_row: number of texts side by side in a row; the length of a row is their sum.
        losses: training network, whose head is initialised from a seed; None: cannot be trained.
        config: configuration of the fine-tuning command; None for none.
    """

    name: str
    scores: Callable[[AlbertConfig, Any], nn.Cell]
    processor: type[RecordProcessor]
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
    """Split and its feature files."""

    split: Split
    records: RecordSet


@dataclass(frozen=True)
class EvaluationResult:
    """Metrics and predictions of a split.

    Attributes:
        metrics: official metrics by name; empty where the split has no labels.
        write: writes the predictions into a folder: predictions_SPLIT.tsv and the task's official formats.
        warnings: sentences without which the metrics could be misread.
        calibration: settings fitted on the development split, where task.json does not hold them yet.
        report: returns the report on the predictions of a split with labels; None for tasks without one.
    """

    metrics: dict[str, float]
    write: Callable[[Path], object]
    warnings: tuple[str, ...] = ()
    calibration: dict[str, Any] = field(default_factory=dict)
    report: Callable[[], EvaluationReport] | None = None


class Task(ABC):
    """Task with the examples of one run.

    Attributes:
        spec: the task's definition.
        feature_format: name of the format of its feature files.
        task_info: content of task.json that training writes, without calibration.
        selection: development metric that selects the best checkpoint; larger is better.
        dev_splits, test_splits: names; the first development split selects the checkpoint.
        pairs: True if rows are two texts with segment ids 0 and 1.
        needs_examples: True if evaluation and baseline read the examples; else ready features replace them.
        start_metrics: metrics of the starting weights by split, measured before a training that finds it {}.

    Args:
        trained_info: task.json of the weights to evaluate; None when training.
    """

    spec: TaskSpec
    feature_format: str
    task_info: TaskInfo
    selection: str
    dev_splits: tuple[str, ...] = ("dev",)
    test_splits: tuple[str, ...] = ("test",)
    pairs: bool = True
    needs_examples: bool = False
    start_metrics: dict[str, dict[str, float]] | None = None

    def __init__(self, config: FinetuneConfig, tokenizer: FullTokenizer, trained_info: TaskInfo | None = None) -> None:
        self.config = config
        self.tokenizer = tokenizer
        self.trained_info = trained_info

    def kept_by_weights(self, key: str) -> bool:
        """Return an option: in training as it is configured, otherwise as task.json of the weights says.

        Raises:
            ConfigError: it is set, but the weights were trained without it.
        """
        value = getattr(self.config, key)
        if self.config.do_train:
            return value
        trained_value = getattr(self.trained_info, key, False)
        if value and not trained_value:
            hint = f"leave {key} at false"
            raise self.config.error_of(key, "the weights to evaluate were trained without it", hint=hint)
        return trained_value

    def ready_file(self, split: str) -> str:
        """Return the path of a split's ready features, which replace its examples; "" for none."""
        ready = {TRAIN: self.config.train_data_file_path, self.dev_splits[0]: self.config.eval_data_file_path}
        return ready.get(split, "")

    def expected_manifest(self) -> dict[str, Any]:
        """Return the entries that the manifest of ready features must agree with, where it has them."""
        return {
            "vocab_sha256": self.tokenizer.sha256,
            "do_lower_case": self.tokenizer.do_lower_case,
            "max_seq_length": self.config.max_seq_length,
        }

    def check_ready(self, records: RecordSet, path: Path) -> None:  # noqa: B027
        """Raise DataError if ready features do not fit this task, beyond what their manifest says."""

    def check_architecture(self, architecture: AlbertConfig) -> None:  # noqa: B027
        """Raise ConfigError if a model of this architecture cannot learn the task."""

    def row_weights(self, train: RecordSet) -> np.ndarray | None:
        """Return how much each training row counts in the loss, (rows,) float32; None: all alike."""
        return None

    def set_up_losses(self, network: TrainingNetwork, train: RecordSet) -> None:  # noqa: B027
        """Apply the configuration's options of the loss to a new network, given the training rows."""

    @abstractmethod
    def split(self, name: str) -> Split:
        """Return the examples of a split; raise DataError or ConfigError if they are missing or wrong."""

    @abstractmethod
    def evaluate(self, prepared: PreparedSplit, outputs: Outputs, task_info: TaskInfo) -> EvaluationResult:
        """Return predictions and metrics from the outputs of all rows.

        Args:
            task_info: task.json of the weights, possibly without calibration.
        """

    @abstractmethod
    def baseline(self, train: PreparedSplit, dev: PreparedSplit) -> dict[str, float]:
        """Return the development metrics of a constant answer, derived from the training labels, or start_metrics."""
