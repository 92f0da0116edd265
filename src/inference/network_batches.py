"""Batches from rows of different lengths: padded to a common width, or packed without padding.

Shape letters: B rows of a batch, C texts of a row, N tokens of a batch, L tokens of a row.
"""

import heapq
import logging
import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

from src.albert_config import AlbertConfig
from src.data.feature_cache import Features
from src.data.feature_files import Column
from src.data.length_buckets import graded_widths, power_of_two
from src.data.packing import TEXT_COLUMNS, Packing
from src.finetune_eval_model import PackedNetwork
from src.tasks.task_info import TaskInfo
from src.training.flops import forward_flops
from src.training.network_outputs import rows_in_memory

logger = logging.getLogger(__name__)
TOKENS_AT_ONCE = 4096  # per batch: with more, matrix products are no faster
MIN_TOKENS = 8  # tokens: least size of a batch, and least mean length of its texts where it sets their number
COMPILATION = 5e11  # cost of compiling albert_base in FLOPs: 1.2 s on two cores
MAX_COMPILED_SHAPES = 32  # compiled before only existing ones are reused: each takes memory for good


class NetworkBatches(ABC):
    """Batching of rows for a network; few shapes for one that is compiled per shape, each new one logged.

    Args:
        network: AnsweringNetwork or ExportedNetwork for PaddedBatches, PackedNetwork for PackedBatches.
        texts_per_row: C.
        tokens: N including padding, at least one row; 0: a fast size with bounded memory.
    """

    def __init__(
        self, network: Any, architecture: AlbertConfig, task_info: TaskInfo, texts_per_row: int, tokens: int = 0
    ) -> None:
        self.network = network
        self.architecture = architecture
        self.task_info = task_info
        self.texts_per_row = texts_per_row
        self._tokens = tokens
        self._compiled: set[tuple[int, ...]] = set()

    @abstractmethod
    def batches(self, features: Features) -> Iterator[tuple[np.ndarray, list[np.ndarray]]]:
        """Yield row indices (B,), with -1 for filler rows, and the network's inputs; every row appears once."""

    def max_batch_tokens(self, width: int) -> int:
        """Return the tokens of a batch of rows of this width, which is that of all texts side by side."""
        if self._tokens:
            return max(width, self._tokens)
        rows = (
            rows_in_memory(self.architecture, width // self.texts_per_row, self.task_info.searched_starts)
            // self.texts_per_row
        )
        return max(width, min(rows * width, TOKENS_AT_ONCE))

    def widths(self, lengths: np.ndarray) -> np.ndarray:
        """Return slightly padded widths of rows with these lengths (B,), all texts side by side."""
        shortest, longest = self.task_info.shortest_row, self.task_info.max_seq_length
        return self.texts_per_row * graded_widths(-(-lengths // self.texts_per_row), shortest, longest)

    def log_if_new_shape(self, shape: tuple[int, ...], meaning: str) -> None:
        """Note that the network is compiled for this shape, and log that if it is new."""
        if not self.network.portable and shape not in self._compiled:
            self._compiled.add(shape)
            logger.info(f"compiling the network for batches of {meaning}")


class PaddedBatches(NetworkBatches):
    """Batches of padded rows, longest first, each as wide as its longest row; row counts are powers of two."""

    def batches(self, features: Features) -> Iterator[tuple[np.ndarray, list[np.ndarray]]]:
        lengths = features.values["input_ids"].counts
        widths = self.widths(lengths)
        order = np.argsort(-lengths, kind="stable")
        while len(order):
            width = int(widths[order[0]])
            max_rows = self.max_batch_tokens(width) // width
            rows, order = np.split(order, [max_rows])
            if not self.network.portable:
                rows = _with_filler_rows(rows, min(max_rows, power_of_two(len(rows))))
            self.log_if_new_shape((len(rows), width), f"{len(rows)} rows of {width} tokens")
            yield rows, [_padded(features, name, rows, width) for name in self.network.input_columns]


class PackedBatches(NetworkBatches):
    """Batches of texts packed without padding (PackedNetwork); all batches of one call share a shape.

    Compiling a shape is slow. A larger compiled shape is reused while the padding that this has added so far costs less
    than COMPILATION, and always once MAX_COMPILED_SHAPES exist.
    """

    def __init__(self, network: PackedNetwork, architecture: AlbertConfig, *others: Any) -> None:
        super().__init__(network, architecture, *others)
        self._compilation_tokens = COMPILATION / forward_flops(architecture, 1, 1)
        self._wasted_tokens: Counter[tuple[int, ...]] = Counter()  # by the shape that was rounded up

    def batches(self, features: Features) -> Iterator[tuple[np.ndarray, list[np.ndarray]]]:
        mask = features.values["input_mask"]
        tokens = np.add.reduceat(mask.values, mask.offsets[:-1])
        width = int(self.widths(features.values["input_ids"].counts).max())
        max_tokens = self.max_batch_tokens(width)
        row_groups = balanced_groups(tokens, max_tokens, self._max_rows(max_tokens, width))
        extra_columns = [features.columns[name] for name in self.network.further_columns]
        widths = tuple(column.width for column in extra_columns if not column.per_token)  # such as masked positions
        shape = self._shape(tokens, row_groups, width, max_tokens, widths)
        size, row_count, row_width = shape[:3]
        self.log_if_new_shape(
            shape, f"{size} tokens" + "".join(f", {positions} positions per text" for positions in widths)
        )
        packing = Packing(self.texts_per_row, row_width)
        for row_group in row_groups:
            rows = _with_filler_rows(row_group, row_count)
            columns = {name: _padded(features, name, rows, width) for name in TEXT_COLUMNS}
            packed = packing.pack(columns, rows >= 0, size)
            further_inputs = [_padded(features, name, rows, row_width) for name in self.network.further_columns]
            yield rows, [*packed.values(), *further_inputs]

    def _max_rows(self, max_tokens: int, width: int) -> int:
        """Return the most rows of a batch whose head sees rows of this width; heads that search take more memory."""
        if not self.network.reads_tokens:
            return max_tokens // (self.texts_per_row * MIN_TOKENS)
        return max(1, (1 if self.task_info.searched_starts else 4) * max_tokens // width)

    def _shape(
        self, tokens: np.ndarray, row_groups: list[np.ndarray], width: int, max_tokens: int, widths: tuple[int, ...]
    ) -> tuple[int, ...]:
        """Return the shape (N, B, L, *widths) for batches of rows with these tokens (rows,).

        N and L may be larger than needed. So may B, unless there are widths: outputs may be large with them.
        """
        needed = max(int(tokens[row_group].sum()) for row_group in row_groups)
        rows = max(map(len, row_groups))
        if not self.network.reads_tokens:
            needed = max(needed, rows * self.texts_per_row * MIN_TOKENS)
        size = int(graded_widths(np.array([needed]), MIN_TOKENS, max(max_tokens, needed))[0])
        row_count = size // (self.texts_per_row * MIN_TOKENS)
        row_width = 1
        if self.network.reads_tokens:
            row_count = max(rows, min(power_of_two(rows), self._max_rows(max_tokens, width)))
            row_width = width

        def fits(compiled: tuple[int, ...]) -> bool:
            is_large_enough = compiled[0] >= size and compiled[1] >= row_count and compiled[2] >= row_width
            return is_large_enough and compiled[3:] == widths and (not widths or compiled[1] == row_count)

        shape = size, row_count, row_width, *widths
        if best := min(filter(fits, self._compiled), default=None):
            self._wasted_tokens[shape] += len(row_groups) * (best[0] - size)
            if self._wasted_tokens[shape] <= self._compilation_tokens or len(self._compiled) >= MAX_COMPILED_SHAPES:
                return best
        return shape


def balanced_groups(tokens: np.ndarray, max_tokens: int, max_rows: int) -> list[np.ndarray]:
    """Return row indices in few groups of similar token counts: the longest row first, each to the smallest group.

    Args:
        tokens: (rows,) of each row.
        max_tokens: per group, which has at least one row.
        max_rows: per group.
    """
    group_count = max(1, math.ceil(tokens.sum() / max_tokens), math.ceil(len(tokens) / max(1, max_rows)))
    while True:
        groups: list[list[int]] = [[] for _ in range(min(group_count, len(tokens)))]
        sizes = [(0, group) for group in range(len(groups))]
        for row in np.argsort(-tokens, kind="stable").tolist():
            size, group = sizes[0]
            groups[group].append(row)
            heapq.heapreplace(sizes, (size + int(tokens[row]), group))
        if len(groups) == len(tokens) or (max(sizes)[0] <= max_tokens and max(map(len, groups)) <= max_rows):
            return [np.sort(group) for group in groups]
        group_count += 1 + group_count // 100


def _padded(features: Features, name: str, rows: np.ndarray, width: int) -> np.ndarray:
    """Return rows of a column, (B, width of the batch or of the column) int32; the first row replaces -1."""
    column: Column = features.columns[name]
    ragged = features.values[name]
    offsets = ragged.offsets
    table = np.full((len(rows), width if column.per_token else column.width), column.padding, np.int32)
    for table_row, row in zip(table, np.where(rows < 0, rows[0], rows), strict=True):
        table_row[: ragged.counts[row]] = ragged.values[offsets[row] : offsets[row + 1]]
    return table


def _with_filler_rows(rows: np.ndarray, size: int) -> np.ndarray:
    """Return `rows` padded with -1 to this size."""
    return np.append(rows, np.full(size - len(rows), -1))
