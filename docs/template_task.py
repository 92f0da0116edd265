"""Template of a task, to be copied into src/tasks/: any number of labels for a text, in tables as "sport|news"."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from mindspore import Tensor, ops
from scipy.special import expit
from sklearn.metrics import f1_score

from model_utils.schema import SAME_PLACE, option
from src.albert_networks import TrainingNetwork
from src.create_finetune_data import ClassificationSplit, TextColumns, read_examples
from src.data.feature_cache import Features
from src.data.feature_files import Column, Ragged
from src.data.features import token_columns
from src.data.text_rows import encode_windows
from src.finetune_eval_model import SequenceClassificationScores
from src.tasks.classification import ClassificationProcessor
from src.tasks.finetune_config import FinetuneConfig
from src.tasks.prediction_table import write_prediction_table
from src.tasks.record_processor import Answer, Outputs, Probability, Record, shortest
from src.tasks.spec import EvaluationResult, PreparedSplit, RecordField, Task, TaskSpec, linear_head
from src.tasks.task_info import LabelledInfo, TaskInfo


class TopicConfig(FinetuneConfig):
    """Configuration of python run_topics.py, which gives texts any number of labels."""

    config_file = "task_topics_config.yaml"
    data_dir: str = option("", "folder with train.tsv, dev.tsv and test.tsv", on_resume=SAME_PLACE)
    label_list: tuple[str, ...] = option((), "all labels, in the order of the outputs")


class AlbertForTopic(TrainingNetwork):
    """Labels of texts by binary cross-entropy that cannot overflow: label_ids (B, C) float32, 0 or 1."""

    label_columns = ("label_ids", "sequence_weights")
    metric_names = ("loss",)

    def losses(self, sequence: Tensor, pooled: Tensor, labels: Tensor, weights: Tensor, key: Tensor) -> tuple[Tensor]:
        logits = self.scores.head(sequence, pooled, key)  # (B, C); key: that of dropout
        losses = ops.relu(logits) - logits * labels + ops.log1p(ops.exp(-ops.abs(logits)))
        return (ops.reduce_sum(weights * ops.reduce_mean(losses, 1)),)


class TopicSplit(ClassificationSplit):
    """Examples of a split, whose label column holds labels with | between them."""

    def features(self) -> Features:
        rows = self.examples
        gold = np.array([[label in (row.label or "").split("|") for label in self.labels] for row in rows], np.float32)
        texts = [row.text_a for row in rows]
        values, _, _ = encode_windows(texts, [""] * len(rows), self.tokenizer, self.max_seq_length)
        values["label_ids"] = Ragged(gold.ravel(), np.full(len(gold), len(self.labels)))
        columns = token_columns(self.tokenizer, self.max_seq_length) | {"label_ids": Column("float32", gold.shape[1])}
        return Features(columns, values, {"labels": gold})


class TopicTask(Task):
    """Task that reads train.tsv, dev.tsv and test.tsv in data_dir."""

    feature_format = "topics"
    selection = "f1"
    pairs = False  # one text a row

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.spec = TOPICS
        length = self.config.max_seq_length
        self.task_info = LabelledInfo(task=self.spec.name, labels=self.config.label_list, max_seq_length=length)

    def split(self, name: str) -> TopicSplit:
        examples = read_examples(Path(self.config.data_dir) / f"{name}.tsv", TextColumns())
        return TopicSplit(name, examples, self.config.label_list, self.tokenizer, self.config.max_seq_length)

    def evaluate(self, prepared: PreparedSplit, outputs: Outputs, task_info: TaskInfo) -> EvaluationResult:
        predictions = outputs["logits"] > 0
        columns = {"prediction": ["|".join(np.array(task_info.labels)[row]) for row in predictions]}
        write = partial(write_prediction_table, split=prepared.split.name, columns=columns)
        return EvaluationResult(_micro_f1(prepared, predictions), write)

    def baseline(self, train: PreparedSplit, dev: PreparedSplit) -> dict[str, float]:
        return _micro_f1(dev, np.tile(train.records.array("labels").mean(0) > 0.5, (dev.records.num_rows, 1)))


def _micro_f1(prepared: PreparedSplit, predictions: np.ndarray) -> dict[str, float]:
    return {"f1": float(f1_score(prepared.records.array("labels"), predictions, average="micro", zero_division=0))}


class TopicProcessor(ClassificationProcessor):
    """Processor: text_a -> probabilities."""

    text_keys = ("text_a",)

    def parse(self, record: Record) -> tuple[str, str]:
        return self.text(record, "text_a"), ""

    def postprocess(self, items: Sequence[Any], features: Features, outputs: Outputs) -> list[Record]:
        names = self.task_info.labels
        return [{"probabilities": dict(zip(names, shortest(row), strict=True))} for row in expit(outputs["logits"])]


class TopicAnswer(Answer):
    probabilities: dict[str, Probability]


TOPICS = TaskSpec(
    "topics",
    scores=lambda architecture, info: SequenceClassificationScores(architecture, len(info.labels)),
    processor=TopicProcessor,
    fields={"text_a": RecordField()},
    answer=TopicAnswer,
    head=linear_head("classifier", 0, ""),
    info=LabelledInfo,
    losses=AlbertForTopic,
    config=TopicConfig,
)
