"""Rows of different lengths as batches for a network: padded to a common width, or packed without padding.

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
from src.data.packing import TEXT_COLUMNS, pack_texts
from src.finetune_eval_model import PackedNetwork
from src.tasks.task_info import TaskInfo
from src.training.flops import forward_flops
from src.training.network_outputs import rows_in_memory

logger = logging.getLogger(__name__)
TOKENS_AT_ONCE = 4096  # of a batch: with more, matrix products are no faster
SHORTEST = 8  # tokens of a batch, and of its texts on average where their number follows from it
COMPILATION = 5e11  # operations of 1.2 s on two cores, which compiling albert_base took
MOST_SHAPES = 32  # that are compiled while another one fits: each takes memory as long as the network lives


class NetworkBatches(ABC):
    """Makes batches; a network that is compiled for each shape sees few, and the log says when one is new.

    Args:
        network: takes such batches. task_info: of it. texts_per_row: C.
        tokens: of a batch, padding included, at least one row of them; 0: what is fast and keeps memory within bounds.
    """

    def __init__(
        self, network: Any, architecture: AlbertConfig, task_info: TaskInfo, texts_per_row: int, tokens: int = 0
    ) -> None:
        self.network, self.architecture, self.task_info = network, architecture, task_info
        self.texts, self._tokens = texts_per_row, tokens
        self._announced: set[tuple[int, ...]] = set()

    @abstractmethod
    def batches(self, features: Features) -> Iterator[tuple[np.ndarray, list[np.ndarray]]]:
        """Row numbers (B,), -1 for those that only fill up, and the network's inputs; every row once."""

    def tokens_at_once(self, width: int) -> int:
        """Of a batch of rows of this width, which is that of all texts side by side."""
        if self._tokens:
            return max(width, self._tokens)
        rows = rows_in_memory(self.architecture, width // self.texts, self.task_info.searched_starts) // self.texts
        return max(width, min(rows * width, TOKENS_AT_ONCE))

    def widths(self, lengths: np.ndarray) -> np.ndarray:
        """Of rows with these lengths (B,), all texts side by side, with a little padding."""
        shortest, longest = self.task_info.shortest_row, self.task_info.max_seq_length
        return self.texts * graded_widths(-(-lengths // self.texts), shortest, longest)

    def announce(self, shape: tuple[int, ...], meaning: str) -> None:
        """Say that the network will be compiled, if it will."""
        if not self.network.portable and shape not in self._announced:
            self._announced.add(shape)
            logger.info(f"compiling the network for batches of {meaning}")


class PaddedBatches(NetworkBatches):
    """The longest rows first, batches as wide as their longest row needs; numbers of rows are powers of two."""

    def batches(self, features: Features) -> Iterator[tuple[np.ndarray, list[np.ndarray]]]:
        lengths = features.values["input_ids"].counts
        widths, order = self.widths(lengths), np.argsort(-lengths, kind="stable")
        while len(order):
            width = int(widths[order[0]])
            most = self.tokens_at_once(width) // width
            rows, order = np.split(order, [most])
            if not self.network.portable:
                rows = filled_up(rows, min(most, power_of_two(len(rows))))
            self.announce((len(rows), width), f"{len(rows)} rows of {width} tokens")
            yield rows, [padded(features, name, rows, width) for name in self.network.input_columns]


class PackedBatches(NetworkBatches):
    """Texts one after the other, without padding between them (PackedNetwork); all batches of a call have one size.

    A size that is not compiled yet is rounded up to one that is, until that has cost what compiling it would have; once
    there are MOST_SHAPES, always.
    """

    def __init__(self, network: PackedNetwork, architecture: AlbertConfig, *others: Any) -> None:
        super().__init__(network, architecture, *others)
        self._patience = COMPILATION / forward_flops(architecture, 1, 1)  # tokens
        self._compiled: set[tuple[int, ...]] = set()
        self._wasted: Counter[tuple[int, ...]] = Counter()  # tokens computed for want of a size

    def batches(self, features: Features) -> Iterator[tuple[np.ndarray, list[np.ndarray]]]:
        ids, segments, lengths = _texts(features, self.texts)
        tokens = lengths.reshape(-1, self.texts).sum(1)
        width = int(self.widths(features.values["input_ids"].counts).max())
        most = self.tokens_at_once(width)
        parts = even_parts(tokens, most, self._most_rows(most, width))
        further = [features.columns[name] for name in self.network.further_columns]
        widths = tuple(column.width for column in further if not column.per_token)  # such as places of masks
        size, number, places, *_ = shape = self._shape(tokens, parts, width, most, widths)
        self.announce(shape, f"{size} tokens" + "".join(f", {each} places of a text" for each in widths))
        ends = np.cumsum(lengths)
        for part in parts:
            texts = (self.texts * part[:, None] + np.arange(self.texts)).ravel()
            own = np.concatenate([np.arange(ends[text] - lengths[text], ends[text]) for text in texts])
            packed = pack_texts(ids[own], segments[own], lengths[texts], self.texts * number, size, places)
            rows = filled_up(part, number)
            of_rows = [padded(features, name, rows, places) for name in self.network.further_columns]
            yield rows, [*packed.values(), *of_rows]

    def _most_rows(self, most: int, width: int) -> int:
        """Of a batch with so many tokens, where the head sees rows as wide as this; heads that search take memory."""
        if not self.network.reads_tokens:
            return most // (self.texts * SHORTEST)
        return max(1, (1 if self.task_info.searched_starts else 4) * most // width)

    def _shape(
        self, tokens: np.ndarray, parts: list[np.ndarray], width: int, most: int, widths: tuple[int, ...]
    ) -> tuple[int, ...]:
        """N, B, L and the widths of batches of rows with so many tokens (rows,).

        N, L and, where there are no widths, B may be larger than needed: with them outputs may be large.
        """
        needed, rows = max(int(tokens[part].sum()) for part in parts), max(map(len, parts))
        if not self.network.reads_tokens:
            needed = max(needed, rows * self.texts * SHORTEST)
        size = int(graded_widths(np.array([needed]), SHORTEST, max(most, needed))[0])
        number, places = size // (self.texts * SHORTEST), 1
        if self.network.reads_tokens:
            number, places = max(rows, min(power_of_two(rows), self._most_rows(most, width))), width

        def fits(shape: tuple[int, ...]) -> bool:
            enough = shape[0] >= size and shape[2] >= places and shape[1] >= number
            return enough and shape[3:] == widths and (not widths or shape[1] == number)

        shape = size, number, places, *widths
        if best := min(filter(fits, self._compiled), default=None):
            self._wasted[shape] += len(parts) * (best[0] - size)
            if self._wasted[shape] <= self._patience or len(self._compiled) >= MOST_SHAPES:
                return best
        self._compiled.add(shape)
        return shape


def even_parts(tokens: np.ndarray, most: int, most_rows: int) -> list[np.ndarray]:
    """Row numbers of few parts of about the same size: the longest rows first, each to the part with the least so far.

    Args:
        tokens: (rows,) of each row. most, most_rows: tokens and rows of a part, which has one row at least.
    """
    number = max(1, math.ceil(tokens.sum() / most), math.ceil(len(tokens) / max(1, most_rows)))
    while True:
        parts: list[list[int]] = [[] for _ in range(min(number, len(tokens)))]
        sizes = [(0, part) for part in range(len(parts))]
        for row in np.argsort(-tokens, kind="stable").tolist():
            size, part = sizes[0]
            parts[part].append(row)
            heapq.heapreplace(sizes, (size + int(tokens[row]), part))
        if len(parts) == len(tokens) or (max(sizes)[0] <= most and max(map(len, parts)) <= most_rows):
            return [np.sort(part) for part in parts]
        number += 1 + number // 100


def _texts(features: Features, texts_per_row: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Token and segment ids of all texts, one after the other (tokens,), and the tokens of each (rows * C,).

    Where a row has several, they are interleaved in it: entry t * C + c is token t of text c, or padding.
    """
    ids, mask, segments = (features.values[name] for name in TEXT_COLUMNS)
    rows = np.repeat(np.arange(len(ids.counts)), ids.counts)
    entries = np.arange(len(ids.values)) - np.repeat(np.cumsum(ids.counts) - ids.counts, ids.counts)
    text = rows * texts_per_row + entries % texts_per_row
    order = np.argsort(text, kind="stable")
    order = order[mask.values[order] == 1]
    return (
        ids.values[order],
        segments.values[order],
        np.bincount(text[order], minlength=texts_per_row * len(ids.counts)),
    )


def padded(features: Features, name: str, rows: np.ndarray, width: int) -> np.ndarray:
    """Some rows of a column, (B, width of the batch or of the column) int32; the first row in place of -1."""
    column: Column = features.columns[name]
    ragged = features.values[name]
    ends = np.cumsum(ragged.counts)
    table = np.full((len(rows), width if column.per_token else column.width), column.padding, np.int32)
    for target, row in zip(table, np.where(rows < 0, rows[0], rows), strict=True):
        target[: ragged.counts[row]] = ragged.values[ends[row] - ragged.counts[row] : ends[row]]
    return table


def filled_up(rows: np.ndarray, number: int) -> np.ndarray:
    """As many row numbers, -1 behind those given."""
    return np.append(rows, np.full(number - len(rows), -1))
