"""Answers to raw text from a network, be it that of a ModelFolder or an exported one."""

import logging
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from mindspore import Tensor

from model_utils.errors import DataError
from src.albert_config import AlbertConfig
from src.data.feature_cache import Features
from src.data.feature_files import Column
from src.data.length_buckets import graded_widths
from src.tasks import TASKS
from src.tasks.answerer import Record
from src.tasks.fill_mask import MaskAnswerer
from src.tasks.task_info import TaskInfo
from src.tokenization import FullTokenizer
from src.training.network_outputs import WORKING_MEMORY, OutputTable, rows_in_memory

logger = logging.getLogger(__name__)
_RECORDS_AT_ONCE = 1024  # whose rows and outputs are kept at the same time
_TOKENS_AT_ONCE = 4096  # of a batch: with more, matrix products are no faster, and rows of more lengths meet in it
_OUTPUTS_AT_ONCE = WORKING_MEMORY // 16  # float32 numbers, each of them about four times while they are computed


class Predictor:
    """Answers records, JSON objects in the formats of docs/serving.md. Not thread-safe; any one thread may use it.

    A network that is compiled for each shape of its batches sees few: some widths, and numbers of rows that are powers
    of two where a batch is not full. The log says when one is new.

    Args:
        task_info: of the network, with lengths that it takes.
        network: takes batches of columns (B, *) int32; an AnsweringNetwork or an ExportedNetwork.
        batch_tokens: that the network takes at once, padding included, at least one row of them; 0: what is fast and
            keeps its memory within bounds (src.training.network_outputs.rows_in_memory).
        top_k: tokens for each mask, where masks are filled in.
        text_columns: keys of the first and the second text in records (src/tasks/answerer.py); empty: as in training.

    Raises:
        ConfigError: the task has no such text.
    """

    def __init__(
        self,
        task_info: TaskInfo,
        tokenizer: FullTokenizer,
        network: Any,
        architecture: AlbertConfig,
        batch_tokens: int = 0,
        top_k: int = 5,
        text_columns: tuple[str, str] = ("", ""),
    ) -> None:
        self.task_info, self.tokenizer = task_info, tokenizer
        self.network, self.architecture = network, architecture
        self._batch_tokens = batch_tokens
        self._spec = TASKS[task_info.task]
        self._answerer = self._spec.answerer(task_info, tokenizer, text_columns)
        if isinstance(self._answerer, MaskAnswerer):
            self._answerer.top_k = top_k
        self._shapes: set[tuple[int, ...]] = set()

    def predict(self, records: Sequence[Record]) -> list[Record]:
        """One answer for each record, in their order.

        A record that cannot be answered gets {"error": sentence}. An answer to a text that was cut has truncated: true.
        """
        answers: list[Record] = [{} for _ in records]
        items: list[tuple[int, Any]] = []
        for index, record in enumerate(records):
            try:
                items.append((index, self._answerer.read(record)))
            except DataError as error:
                answers[index] = {"error": str(error)}
        for part in self._groups(items):
            for (index, _), answer in zip(part, self._answer([item for _, item in part]), strict=True):
                answers[index] = answer
        return answers

    def _groups(self, items: list[tuple[int, Any]]) -> Iterator[list[tuple[int, Any]]]:
        """Items one after the other, as many together as _RECORDS_AT_ONCE and _OUTPUTS_AT_ONCE allow."""
        group: list[tuple[int, Any]] = []
        most = 0
        for item in items:
            outputs = self._answerer.outputs_of(item[1])
            if len(group) == _RECORDS_AT_ONCE or (group and (len(group) + 1) * max(most, outputs) > _OUTPUTS_AT_ONCE):
                yield group
                group, most = [], 0
            group.append(item)
            most = max(most, outputs)
        if group:
            yield group

    def _answer(self, items: list[Any]) -> list[Record]:
        features = self._answerer.features(items)
        answers = self._answerer.answers(items, features, self._run(features))
        truncated = features.arrays.get("truncated", np.zeros(len(items), bool))
        return [answer | ({"truncated": True} if cut else {}) for answer, cut in zip(answers, truncated, strict=True)]

    def _run(self, features: Features) -> dict[str, Any]:
        """The network's outputs for all rows, batched by length."""
        lengths = features.values["input_ids"].counts
        texts = self._spec.texts_per_row
        widths = texts * graded_widths(-(-lengths // texts), self.task_info.shortest_row, self.task_info.max_seq_length)
        outputs = OutputTable(self.network, lengths, self._answerer.ignored_outputs)
        order = np.argsort(-lengths, kind="stable")
        while len(order):
            width = int(widths[order[0]])
            most = self._rows_at_once(width)
            rows, order = np.split(order, [most])
            if not self.network.portable:  # rows that only fill up
                most = min(most, 1 << (len(rows) - 1).bit_length())
                rows = np.append(rows, np.full(most - len(rows), -1))
            inputs = [_pad(features, name, rows, width) for name in self.network.input_columns]
            self._announce([column.shape for column in inputs])
            outputs.put(rows, self.network(*map(Tensor, inputs)))
        return outputs.values

    def _announce(self, shapes: list[tuple[int, ...]]) -> None:
        """Say that the network will be compiled, if it will."""
        if self.network.portable or (shape := sum(shapes, ())) in self._shapes:
            return
        self._shapes.add(shape)
        logger.info("compiling the network for batches of %d rows of %d tokens", *shapes[0])

    def _rows_at_once(self, width: int) -> int:
        """Rows of a batch of this width, which is that of all texts side by side."""
        if self._batch_tokens:
            return max(1, self._batch_tokens // width)
        texts = self._spec.texts_per_row
        in_memory = rows_in_memory(self.architecture, width // texts, self.task_info.searched_starts) // texts
        return max(1, min(in_memory, _TOKENS_AT_ONCE // width))


def _pad(features: Features, name: str, rows: np.ndarray, width: int) -> np.ndarray:
    """Some rows of a column, (rows, width of the batch or of the column) int32; the first row in place of -1."""
    column: Column = features.columns[name]
    ragged = features.values[name]
    ends = np.cumsum(ragged.counts)
    padded = np.full((len(rows), width if column.per_token else column.width), column.padding, np.int32)
    for target, row in zip(padded, np.where(rows < 0, rows[0], rows), strict=True):
        target[: ragged.counts[row]] = ragged.values[ends[row] - ragged.counts[row] : ends[row]]
    return padded
