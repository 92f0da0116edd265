"""Feature files -> batches of numpy arrays, in an order that depends on nothing but the seed and the epoch.

`FeatureDataset` knows no task: columns, widths and padding come from the manifest of the files
(src/data/feature_files.py). Shape letters: B (batch_size), L (tokens, padding included), P (predictions).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import mindspore.dataset as ds
import numpy as np

from model_utils.errors import DataError
from src.data.feature_files import Column, RecordSet, mindspore_reason
from src.data.packing import PACKED_COLUMNS, Packing, deal_rows
from src.data.row_reader import RowReader

SEQUENCE_WEIGHTS = "sequence_weights"
ROW_NUMBERS = "row_numbers"
ROWS_PLANNED = 2**20  # rows grouped by length at a time: for 20 million rows 0.2 GB, all at once 0.9 GB

Batch = dict[str, np.ndarray]


def describe_size(batch: Batch) -> str:
    """Return the size of a batch for a log line: "rows x width", or "N tokens" if its rows are packed."""
    packed_ids = batch.get(PACKED_COLUMNS[0])
    if packed_ids is not None:
        return f"{packed_ids.shape[1]} tokens"
    rows, width = batch["input_mask"].shape
    return f"{rows} x {width}"


@dataclass(frozen=True)
class Loading:
    """Settings for making batches of rows.

    Attributes:
        batch_size: rows in a batch of one rank.
        seed: with the epoch, determines the order of shuffled rows.
        shuffle: if false, rows keep the order of the files.
        evaluation: use every row; padding rows with weight 0 complete the last batch. Rows of similar length share a
            batch, shuffled or not.
        rank, rank_size: ranks get different rows and the same number of batches.
        bucket_boundaries: widths in tokens; a batch is padded to the smallest width that fits its rows. A batch holds
            rows of one bucket unless rows keep the order of the files. Empty: one width for all batches.
        packing: adds PACKED_COLUMNS to batches of rows of all lengths; replaces bucket_boundaries.
        rows_per_update: rows of one update over all ranks, a multiple of rows_at_once. An epoch drops rows that fill no
            update, so its length does not depend on the number of ranks. 0: it drops only rows that fill no batch.
    """

    batch_size: int
    seed: int = 0
    shuffle: bool = True
    evaluation: bool = False
    rank: int = 0
    rank_size: int = 1
    bucket_boundaries: tuple[int, ...] = ()
    packing: Packing | None = None
    rows_per_update: int = 0

    @property
    def rows_at_once(self) -> int:
        """Rows of one batch over all ranks."""
        return self.batch_size * self.rank_size

    def batch_count(self, rows: int) -> int:
        """Return the number of batches of each rank in an epoch over so many rows."""
        if self.evaluation:
            return -(-rows // self.rows_at_once)
        rows_per_update = self.rows_per_update or self.rows_at_once
        return rows // rows_per_update * (rows_per_update // self.rows_at_once)

    def rows_before(self, epoch: int, rows: int) -> int:
        """Return the index of the first row of an epoch of unshuffled rows.

        Training cycles through the rows, as google's code does: rows that fill no batch at the end of an epoch come
        first in the next one.
        """
        if self.evaluation:
            return 0
        return (epoch * self.batch_count(rows) * self.rows_at_once) % rows

    def random(self, epoch: int, *plan: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, epoch, *plan])


@dataclass(frozen=True)
class BatchPlan:
    """Rows and widths of consecutive batches of an epoch.

    Attributes:
        rows: (batches, B) int64 row indices; -1 for a padding row.
        widths: (batches,) tokens of a row; tokens of the whole batch if it is packed.
    """

    rows: np.ndarray
    widths: np.ndarray


def plan_batches(
    lengths: np.ndarray,
    boundaries: Sequence[int],
    batch_size: int,
    order: np.ndarray,
    random: np.random.Generator | None,
) -> np.ndarray:
    """Group rows into batches whose lengths fall into the same bucket.

    Leftover rows of a bucket move to the next larger one, so at most one batch is incomplete (padded with -1), and the
    number of batches depends only on the number of rows.

    Args:
        lengths: (rows,) tokens of each row.
        boundaries: ascending widths of the buckets; the last one is at least the longest row.
        order: the rows, in the order in which they fill batches.
        random: generator that shuffles the batches; None leaves them sorted by bucket.

    Returns:
        Row indices, (batches, B) int64.
    """
    bucket_of = np.searchsorted(boundaries, lengths[order])
    batches = []
    leftover = np.zeros(0, np.int64)
    for bucket in range(len(boundaries)):
        rows = np.concatenate([leftover, order[bucket_of == bucket]])
        full = len(rows) // batch_size * batch_size
        batches.append(rows[:full].reshape(-1, batch_size))
        leftover = rows[full:]
    if len(leftover):
        batches.append(np.concatenate([leftover, np.full(batch_size - len(leftover), -1)])[None])
    rows = np.concatenate(batches)
    if random is not None and len(boundaries) > 1:
        full_batches = len(rows) - int((rows[-1:] < 0).any())  # an incomplete batch stays last
        rows = rows[[*random.permutation(full_batches), *range(full_batches, len(rows))]]
    return rows


class FeatureDataset:
    """Batches from one set of feature files.

    Args:
        weight_columns: columns that are set to 0 in padding rows.
        vocab_size: vocabulary size of the model; a larger token id raises DataError. None skips this check.
        row_weights: (rows,) float32 that sequence_weights are multiplied by; None: 1 for every row.

    Raises:
        DataError: the bucket boundaries do not fit the rows.
    """

    def __init__(
        self,
        records: RecordSet,
        loading: Loading,
        weight_columns: Sequence[str] = (),
        vocab_size: int | None = None,
        row_weights: np.ndarray | None = None,
    ) -> None:
        self.records = records
        self.row_weights = row_weights
        self.loading = loading
        self.weight_columns = tuple(weight_columns)
        self.vocab_size = vocab_size
        self.manifest = records.manifest
        self.columns = records.columns
        self.num_rows = records.num_rows
        self.batches_per_epoch = loading.batch_count(self.num_rows)
        self.rows_at_once = loading.rows_at_once
        self._reader: RowReader | None = None
        width = max(column.width for column in self.columns.values() if column.per_token)
        self.boundaries = list(loading.bucket_boundaries) or [width]
        longest = records.lengths.max()
        if self.boundaries != sorted(set(self.boundaries)) or self.boundaries[-1] < longest:
            raise DataError(f"bucket_boundaries are {self.boundaries}, which do not ascend to {longest} tokens or more")

    def plans(self, epoch: int, start: int = 0) -> Iterator[BatchPlan]:
        """Yield the rows of this rank's batches in an epoch from index `start` on, some batches at a time.

        A batch has the same width on every rank.
        """
        count = self.num_rows if self.loading.evaluation else self.batches_per_epoch * self.rows_at_once
        batches = max(1, ROWS_PLANNED // self.rows_at_once)
        size = batches * self.rows_at_once
        random = self.loading.random(epoch) if self.loading.shuffle else None
        order = np.arange(self.num_rows, dtype=np.int32 if self.num_rows < 2**31 else np.int64)
        if random:
            random.shuffle(order)
        first_row = 0 if random else self.loading.rows_before(epoch, self.num_rows)
        for index in range(start // batches, -(-count // size)):
            if random and index:
                random = self.loading.random(epoch, index)
            places = np.arange(index * size, min(count, (index + 1) * size))
            plan = self._plan(order[(places + first_row) % self.num_rows], random)
            skipped = max(0, start - index * batches)
            yield BatchPlan(plan.rows[skipped:], plan.widths[skipped:])

    def _plan(self, order: np.ndarray, random: np.random.Generator | None) -> BatchPlan:
        """Return this rank's share of the batches that are made of these rows; `random` shuffles within them."""
        loading = self.loading
        lengths = self.records.lengths
        size = self.rows_at_once
        if not random and not loading.evaluation:
            rows = order
        elif loading.packing:
            rows = deal_rows(lengths, size, order, random, loading.rank_size)
        else:
            rows = plan_batches(lengths, self.boundaries, size, order, random)
        rows = rows.reshape(-1, loading.rank_size, loading.batch_size)
        is_padding = rows < 0
        row_lengths = lengths[rows]
        if loading.packing:
            widths = loading.packing.sizes_for(np.where(is_padding, 0, row_lengths).sum(2).max(1))
        else:  # a padding row may be a copy of any row
            longest = np.where(is_padding, self.boundaries[-1], row_lengths).max((1, 2))
            widths = np.array(self.boundaries)[np.searchsorted(self.boundaries, longest)]
        return BatchPlan(rows[:, loading.rank], widths)

    def widths(self, epoch: int) -> np.ndarray:
        """Return the widths of an epoch's batches, (batches,) tokens as in BatchPlan."""
        return np.concatenate([np.zeros(0, np.int64), *(plan.widths for plan in self.plans(epoch))])

    @property
    def most_tokens(self) -> int:
        """Tokens, padding included, in the largest usual batch of this rank; rare packed batches may have more."""
        packing = self.loading.packing
        if packing:
            return packing.sizes[-1] if packing.sizes else int(self.widths(0).max())
        return self.loading.batch_size * self.boundaries[-1]

    def width_shares(self) -> list[tuple[int, float]]:
        """Return, for each batch width in epoch 0, the index of its first batch and its share of the batches."""
        _, first, counts = np.unique(self.widths(0), return_index=True, return_counts=True)
        return [(int(start), float(count / counts.sum())) for start, count in zip(first, counts, strict=True)]

    def batches(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """Yield the batches of an epoch from index `start` on: columns (B, L), (B, P) or (B,).

        Each batch also has sequence_weights (B,) float32 and row_numbers (B,) int64; padding rows have 0 and -1.
        """
        if start >= self.batches_per_epoch:
            return
        if self._reader is None:
            self._reader = RowReader(self.records)
        with self._reader.open_files() as streams:
            for plan in self.plans(epoch, start):
                for rows, width in zip(plan.rows, plan.widths.tolist(), strict=True):
                    yield self._batch(streams, rows, width)

    def _batch(self, streams: Sequence[BinaryIO], rows: np.ndarray, width: int) -> Batch:
        """Return the batch of these rows (B,), -1 for a padding row."""
        assert self._reader
        packing = self.loading.packing
        real = rows >= 0
        # A rank without rows in this batch still computes one row, with weight 0.
        batch = self._reader.read(streams, rows[real] if real.any() else np.zeros(1, int))
        row_width = packing.output_length * packing.texts_per_row if packing else width
        columns = complete_batch(batch, self.columns, row_width, real, self.weight_columns)
        if self.row_weights is not None:
            columns[SEQUENCE_WEIGHTS] *= self.row_weights[rows]  # padding rows have 0
        if self.vocab_size:
            check_ids(columns, self.vocab_size, self.manifest.get("source", self.records.folder))
        packed = packing.pack(columns, real, width) if packing else {}
        return columns | packed | {ROW_NUMBERS: rows.astype(np.int64)}


def iterate(pipeline: Callable[[], ds.Dataset], source: Path) -> Iterator[Batch]:
    """Yield the items of a pipeline; raise DataError if it cannot be built (a file is gone) or read."""
    try:
        yield from pipeline().create_dict_iterator(output_numpy=True, num_epochs=1)
    except (RuntimeError, ValueError) as error:
        raise DataError(f"{source} cannot be read: {mindspore_reason(error)}") from error


def check_ids(batch: Batch, vocab_size: int, source: object) -> None:
    """Raise DataError if a batch has a token id that is not below `vocab_size`."""
    largest = max(int(batch[name].max()) for name in ("input_ids", "masked_lm_ids") if name in batch)
    if largest >= vocab_size:
        raise DataError(f"{source} has the token id {largest}, but the model's vocabulary {vocab_size} tokens")


def complete_batch(
    batch: Batch, columns: Mapping[str, Column], width: int, real: np.ndarray, weight_columns: Sequence[str]
) -> Batch:
    """Pad a batch to its width and number of rows, cast its columns and add the weights of its rows.

    Args:
        real: (B,) bool, False for the padding rows at the end: copies of the first row, with weight 0.
    """
    result = {}
    for name, column in columns.items():
        values = batch[name].astype(column.dtype, copy=False)
        if column.per_token and values.shape[1] < width:
            pad_width = ((0, 0), (0, width - values.shape[1]))
            values = np.pad(values, pad_width, constant_values=column.padding)
        if not column.width:
            values = values[:, 0]
        missing = len(real) - len(values)
        result[name] = np.concatenate([values, values[:1].repeat(missing, 0)]) if missing else values
    result[SEQUENCE_WEIGHTS] = real.astype(np.float32)
    for name in weight_columns:
        result[name][~real] = 0
    return result
