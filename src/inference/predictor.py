"""Prediction on raw text, with the network of a ModelFolder or an exported one."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from mindspore import Tensor

from model_utils.errors import ConfigError, DataError
from src.albert_config import AlbertConfig
from src.data.feature_cache import Features
from src.data.features import mark_shared_tokens
from src.data.length_buckets import power_of_two
from src.finetune_eval_model import PackedNetwork
from src.inference.network_batches import PackedBatches, PaddedBatches
from src.tasks import TASKS
from src.tasks.embeddings import EMBEDDINGS, POOLER, EmbeddingsProcessor
from src.tasks.fill_mask import MaskProcessor
from src.tasks.question_answering import with_threshold
from src.tasks.record_processor import Record
from src.tasks.task_info import TaskInfo
from src.tokenization import FullTokenizer
from src.training.network_outputs import WORKING_MEMORY, OutputTable, rows_not_finite, rows_where

_RECORDS_AT_ONCE = 1024  # records whose rows and outputs are in memory together
_OUTPUTS_AT_ONCE = WORKING_MEMORY // 16  # float32 numbers, each held about four times during computation


@dataclass(frozen=True)
class AnswerSettings:
    """Settings of a Predictor.

    Attributes:
        batch_tokens: tokens per batch including padding, at least one row; 0: a fast size with bounded memory
            (src.training.network_outputs.rows_in_memory).
        top_k: fill_mask: tokens per mask; None: MaskProcessor's default.
        text_columns: keys of the first and the second text in records; empty: as in training.
        null_threshold: SQuAD v2.0: highest no_answer_probability that still gives an answer; None: task_info's.
        pooling, normalise: embeddings: as in EmbeddingsProcessor; pooling "": that of the training, else pooler.
    """

    batch_tokens: int = 0
    top_k: int | None = None
    text_columns: tuple[str, str] = ("", "")
    null_threshold: float | None = None
    pooling: str = ""
    normalise: bool = False


DEFAULTS = AnswerSettings()


class Predictor:
    """Model that answers records, JSON objects in the formats of docs/serving.md. Not thread-safe.

    A network that is compiled per shape sees few shapes (src/inference/network_batches.py).

    Args:
        task_info: task and settings; its max_seq_length is at most what the network supports.
        network: PackedNetwork, AnsweringNetwork or ExportedNetwork of that task.

    Raises:
        ConfigError: the task has no such text, no masks, no threshold, or no vectors.
    """

    def __init__(
        self,
        task_info: TaskInfo,
        tokenizer: FullTokenizer,
        network: Any,
        architecture: AlbertConfig,
        settings: AnswerSettings = DEFAULTS,
    ) -> None:
        task_info = with_threshold(task_info, settings.null_threshold)
        self.tokenizer = tokenizer
        self.network = network
        self.architecture = architecture
        self.file: Path | None = None  # weights or MINDIR that the network was loaded from
        self._spec = TASKS[task_info.task]
        self._processor = self._spec.processor(task_info, tokenizer, settings.text_columns)
        if any(settings.text_columns):  # a server's requests have these keys, too
            named = {
                key: name for key, name in zip(self._processor.text_keys, settings.text_columns, strict=False) if name
            }
            task_info = task_info.model_copy(update={"text_columns": task_info.text_columns | named})
        self.task_info = task_info
        self._apply(settings)
        batches_class = PackedBatches if isinstance(network, PackedNetwork) else PaddedBatches
        self._batches = batches_class(network, architecture, task_info, self._spec.texts_per_row, settings.batch_tokens)

    def _apply(self, settings: AnswerSettings) -> None:
        """Pass the settings of single tasks to the processor; raise ConfigError if its task does not have them."""
        task = self.task_info.task
        processor = self._processor
        if isinstance(processor, MaskProcessor):
            processor.top_k = settings.top_k or processor.top_k
        elif settings.top_k is not None:
            raise ConfigError(key="top_k", value=settings.top_k, problem=f"the model's task is {task}, not fill_mask")
        problem = f"it applies to embeddings and the model's task is {task}"
        if isinstance(processor, EmbeddingsProcessor):
            processor.pooling = settings.pooling or getattr(self.task_info, "pooling", "") or POOLER
            processor.normalise = settings.normalise
            processor.hidden_size = self.architecture.hidden_size
        elif settings.pooling:
            raise ConfigError(key="pooling", value=settings.pooling, problem=problem)
        if settings.normalise and task != EMBEDDINGS.name:
            raise ConfigError(key="normalise", value=True, problem=problem)

    def predict(self, records: Sequence[Record]) -> list[Record]:
        """Return one answer per record, in order.

        A record that cannot be answered gets {"error": sentence}. The answer to a truncated text has truncated: true.
        """
        items, answers = self._parse(records)
        for group in self._groups(items):
            for (index, _), answer in zip(group, self._answer([item for _, item in group]), strict=True):
                answers[index] = answer
        return answers

    def skip(self, records: Sequence[Record]) -> None:
        """Advance the choice of batch sizes past these records without running the network.

        Sizes of packed batches depend on earlier calls, and the last digits of answers on batch sizes. A part or a
        resumed run calls this to write the same bytes as one whole run.
        """
        if not isinstance(self._batches, PackedBatches):
            return
        items, _ = self._parse(records)
        for group in self._groups(items):
            next(self._batches.batches(self._processor.encode([item for _, item in group])))

    def _parse(self, records: Sequence[Record]) -> tuple[list[tuple[int, Any]], list[Record]]:
        """Return (index, parsed record) of all records that can be answered, and answers with others' errors."""
        items = []
        answers: list[Record] = [{} for _ in records]
        for index, record in enumerate(records):
            try:
                items.append((index, self._processor.parse(record)))
            except DataError as error:
                answers[index] = {"error": str(error)}
        return items, answers

    def _groups(self, items: list[tuple[int, Any]]) -> Iterator[list[tuple[int, Any]]]:
        """Yield consecutive items in groups within _RECORDS_AT_ONCE and _OUTPUTS_AT_ONCE."""
        group: list[tuple[int, Any]] = []
        largest_outputs = 0
        for item in items:
            outputs = self._processor.output_size(item[1])
            rows = power_of_two(len(group) + 1)  # including filler rows
            if len(group) == _RECORDS_AT_ONCE or (group and rows * max(largest_outputs, outputs) > _OUTPUTS_AT_ONCE):
                yield group
                group = []
                largest_outputs = 0
            group.append(item)
            largest_outputs = max(largest_outputs, outputs)
        if group:
            yield group

    def _answer(self, items: list[Any]) -> list[Record]:
        """Return one answer per item; an item that the network cannot answer gets an error, the others an answer."""
        features = self._processor.encode(items)
        if self.task_info.mark_shared:
            features = mark_shared_tokens(features, self._spec.texts_per_row, self.tokenizer)
        segments = features.values["segment_ids"]
        unknown = segments.values >= self.architecture.type_vocab_size
        unknown_segments = rows_where(segments, unknown)
        segments.values[unknown] = 0  # their answers are replaced below
        outputs = self._run(features)
        not_finite = rows_not_finite(outputs)
        if len(not_finite):
            for output in outputs.values():  # postprocessing fails on NaN
                np.nan_to_num(getattr(output, "values", output), copy=False, nan=0, posinf=0, neginf=0)
        answers = self._processor.postprocess(items, features, outputs)
        truncated = features.arrays.get("truncated", np.zeros(len(items), bool))
        for index in np.flatnonzero(truncated):
            answers[index] = answers[index] | {"truncated": True}
        for index in self._processor.items_of_rows(features)[not_finite]:
            answers[index] = {"error": "the network's outputs are not finite: its weights may be damaged"}
        for index in self._processor.items_of_rows(features)[unknown_segments]:
            answers[index] = {"error": "the model has type_vocab_size 1: leave out the second text"}
        return answers

    def _run(self, features: Features) -> dict[str, Any]:
        """Return the network's outputs for all rows, which it computes in batches by length."""
        outputs = OutputTable(self.network, features.values["input_ids"].counts, self._processor.ignored_outputs)
        for rows, inputs in self._batches.batches(features):
            outputs.put(rows, self.network(*map(Tensor, inputs)))
        return outputs.values
