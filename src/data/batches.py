"""Feature files -> batches of numpy arrays, in an order that depends on nothing but the seed and the epoch.

`FeatureDataset` knows no task: columns, widths and padding come from the facts beside the files
(src/data/feature_files.py). Shape letters: B (batch_size), L (tokens, padding included), P (predictions).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import mindspore.dataset as ds
import numpy as np

from model_utils.errors import DataError
from src.data.feature_files import Column, RecordSet, mindspore_reason
from src.data.packing import PACKED_COLUMNS, Packing, deal_rows
from src.data.row_reader import RowReader

SEQUENCE_WEIGHTS = "sequence_weights"
ROW_NUMBERS = "row_numbers"

Batch = dict[str, np.ndarray]


def describe_size(batch: Batch) -> str:
    """The shape of a batch in words: rows x tokens of each, or tokens of all packed rows."""
    rows, width = batch["input_mask"].shape
    packed = PACKED_COLUMNS[0]
    return f"{batch[packed].shape[1]} tokens" if packed in batch else f"{rows} x {width}"


@dataclass(frozen=True)
class Loading:
    """How rows become batches.

    batch_size: of one rank. seed, shuffle: an epoch's order is a function of seed and epoch, or that of the files.
    evaluation: no row is left out; the last batch is filled up with rows whose weights are 0. Rows of like lengths
        share a batch, shuffled or not.
    rank, rank_size: ranks get different rows, and equally many batches.
    bucket_boundaries: widths in tokens; a batch is padded to the least that fits its rows, which are of one bucket but
        where they come in the files' order. Empty: one width for all.
    packing: batches have PACKED_COLUMNS as well, and rows of all lengths; in place of bucket_boundaries.
    """

    batch_size: int
    seed: int = 0
    shuffle: bool = True
    evaluation: bool = False
    rank: int = 0
    rank_size: int = 1
    bucket_boundaries: tuple[int, ...] = ()
    packing: Packing | None = None

    @property
    def rows_at_once(self) -> int:
        """Rows of the batches of all ranks together."""
        return self.batch_size * self.rank_size

    def batches(self, rows: int) -> int:
        """Batches of each rank in an epoch."""
        return -(-rows // self.rows_at_once) if self.evaluation else rows // self.rows_at_once

    def rows_before(self, epoch: int, rows: int) -> int:
        """Number of the row that an epoch begins with where rows are not shuffled.

        Training goes through them in a circle, as google's does: what an epoch leaves out because it fills no batch
        comes first in the next one.
        """
        return 0 if self.evaluation else epoch * self.batches(rows) * self.rows_at_once % rows

    def random(self, epoch: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, epoch])


@dataclass(frozen=True)
class BatchPlan:
    """Numbers of the rows of batches, (batches, B) int64, -1 to fill up, and what they are padded to.

    widths: (batches,) tokens of a row; of packed batches those of the batch.
    """

    rows: np.ndarray
    widths: np.ndarray


def plan_batches(
    lengths: np.ndarray,
    boundaries: Sequence[int],
    batch_size: int,
    order: np.ndarray,
    drop_remainder: bool,
    random: np.random.Generator | None,
) -> np.ndarray:
    """Put rows into batches of one bucket of lengths each.

    What is left over in a bucket goes into the next larger one, so that at most one batch is incomplete, which is
    filled up with -1, and the number of batches depends on the number of rows alone. With drop_remainder the last rows
    of the order that fill no batch are left out, however long they are.

    Args:
        lengths: (rows,) tokens of each row.
        boundaries: ascending widths of the buckets; the last one is at least the longest row.
        order: permutation of the rows.
        random: for the order of the batches; None leaves them sorted by bucket.

    Returns:
        Row numbers, (batches, B) int64.
    """
    if drop_remainder:
        order = order[: len(order) // batch_size * batch_size]
    bucket_of = np.searchsorted(boundaries, lengths[order])
    batches = []
    rest = np.zeros(0, np.int64)
    for bucket in range(len(boundaries)):
        rows = np.concatenate([rest, order[bucket_of == bucket]])
        full = len(rows) // batch_size * batch_size
        batches.append(rows[:full].reshape(-1, batch_size))
        rest = rows[full:]
    if len(rest):
        batches.append(np.concatenate([rest, np.full(batch_size - len(rest), -1)])[None])
    rows = np.concatenate(batches)
    if random is not None and len(boundaries) > 1:
        whole = len(rows) - int((rows[-1:] < 0).any())  # what is filled up stays last
        rows = rows[[*random.permutation(whole), *range(whole, len(rows))]]
    return rows


class FeatureDataset:
    """Batches from one set of feature files; weight_columns are set to 0 in rows that only fill up a batch.

    Args:
        vocab_size: of the model that reads the batches: larger token ids are a DataError. None looks for none.

    Attributes:
        facts: what made the files. num_rows: their rows. batches_per_epoch: batches of this rank. rows_at_once: rows of
            the batches of all ranks together.

    Raises:
        DataError: the bucket boundaries do not fit the rows.
    """

    def __init__(
        self,
        records: RecordSet,
        loading: Loading,
        weight_columns: Sequence[str] = (),
        vocab_size: int | None = None,
    ) -> None:
        self.records, self.loading, self.weight_columns = records, loading, tuple(weight_columns)
        self.vocab_size = vocab_size
        self.facts, self.columns = records.facts, records.columns
        self.num_rows = records.num_rows
        self._reader: RowReader | None = None
        self.batches_per_epoch, self.rows_at_once = loading.batches(self.num_rows), loading.rows_at_once
        width = max(column.width for column in self.columns.values() if column.per_token)
        self.boundaries = list(loading.bucket_boundaries) or [width]
        if self.boundaries != sorted(set(self.boundaries)) or self.boundaries[-1] < records.lengths.max():
            raise DataError(
                f"bucket_boundaries are {self.boundaries}, allowed are ascending widths up to at least the longest "
                f"row of {records.folder} ({records.lengths.max()} tokens)"
            )

    def plan(self, epoch: int) -> BatchPlan:
        """The rows of this rank's batches in an epoch; a batch is as wide on all ranks."""
        loading = self.loading
        rows = self._rows(epoch).reshape(-1, loading.rank_size, loading.batch_size)
        filling, lengths = rows < 0, self.records.lengths[rows]
        if loading.packing:
            widths = loading.packing.sizes_for(np.where(filling, 0, lengths).sum(2).max(1))
        else:  # what fills up may be any row
            longest = np.where(filling, self.boundaries[-1], lengths).max((1, 2))
            widths = np.array(self.boundaries)[np.searchsorted(self.boundaries, longest)]
        return BatchPlan(rows[:, loading.rank], widths)

    def _rows(self, epoch: int) -> np.ndarray:
        """Numbers of the rows of all ranks' batches in an epoch, (batches, rows_at_once), -1 to fill up."""
        loading, lengths, size = self.loading, self.records.lengths, self.rows_at_once
        random = loading.random(epoch) if loading.shuffle else None
        if random:
            order = random.permutation(self.num_rows)
        else:
            order = np.roll(np.arange(self.num_rows), -loading.rows_before(epoch, self.num_rows))
        drop = not loading.evaluation
        if drop and not random:
            return order[: self.batches_per_epoch * size].reshape(-1, size)
        if loading.packing:
            return deal_rows(lengths, size, order, drop, random, loading.rank_size)
        return plan_batches(lengths, self.boundaries, size, order, drop, random)

    @property
    def most_tokens(self) -> int:
        """Of this rank's batches, padding included, but for seldom ones."""
        packing = self.loading.packing
        if packing:
            return packing.sizes[-1] if packing.sizes else int(self.plan(0).widths.max())
        return self.loading.batch_size * self.boundaries[-1]

    def width_shares(self) -> list[tuple[int, float]]:
        """For each width of batches the number of the first one in epoch 0, and the share of those that have it."""
        _, first, counts = np.unique(self.plan(0).widths, return_index=True, return_counts=True)
        return [(int(start), float(count / counts.sum())) for start, count in zip(first, counts, strict=True)]

    def batches(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """The batches of an epoch from number `start` on: columns (B, L), (B, P) or (B,).

        Beside the columns: sequence_weights (B,) float32, row_numbers (B,) int64, -1 where a row only fills up.
        """
        plan, packing = self.plan(epoch), self.loading.packing
        rows, widths = plan.rows[start:], plan.widths[start:]
        if not len(rows):
            return
        if self._reader is None:
            self._reader = RowReader(self.records)
        with self._reader.opened() as streams:
            for batch_rows, width in zip(rows, widths, strict=True):
                real = batch_rows >= 0
                # A rank with nothing left computes some row with weight 0.
                batch = self._reader.read(streams, batch_rows[real] if real.any() else np.zeros(1, int))
                row_width = packing.places * packing.texts_per_row if packing else int(width)
                columns = complete_batch(batch, self.columns, row_width, real, self.weight_columns)
                if self.vocab_size:
                    check_ids(columns, self.vocab_size, self.facts.get("source", self.records.folder))
                packed = packing.pack(columns, real, int(width)) if packing else {}
                yield columns | packed | {ROW_NUMBERS: batch_rows}


def iterate(pipeline: Callable[[], ds.Dataset], source: Path) -> Iterator[Batch]:
    """What a pipeline reads; errors of making it (files that are gone by now) and of reading as sentences."""
    try:
        yield from pipeline().create_dict_iterator(output_numpy=True, num_epochs=1)
    except (RuntimeError, ValueError) as error:
        raise DataError(f"{source} cannot be read: {mindspore_reason(error)}") from error


def check_ids(batch: Batch, vocab_size: int, source: object) -> None:
    """Raise a DataError where a batch has a token id that a model of so many tokens lacks."""
    largest = max(int(batch[name].max()) for name in ("input_ids", "masked_lm_ids") if name in batch)
    if largest >= vocab_size:
        raise DataError(
            f"{source} has the token id {largest}, but the model's vocabulary {vocab_size} tokens: it was made with "
            "another vocabulary"
        )


def complete_batch(
    batch: Batch, columns: Mapping[str, Column], width: int, real: np.ndarray, weight_columns: Sequence[str]
) -> Batch:
    """Bring a batch to its width, types and number of rows, and add the weights of the rows.

    Args:
        real: (B,) bool, False in the last rows: copies of the first one, with weight 0.
    """
    result = {}
    for name, column in columns.items():
        values = batch[name].astype(column.dtype, copy=False)
        if column.per_token and values.shape[1] < width:
            surplus = ((0, 0), (0, width - values.shape[1]))
            values = np.pad(values, surplus, constant_values=column.padding)
        values = values if column.width else values[:, 0]
        missing = len(real) - len(values)
        result[name] = np.concatenate([values, values[:1].repeat(missing, 0)]) if missing else values
    result[SEQUENCE_WEIGHTS] = real.astype(np.float32)
    for name in weight_columns:
        result[name][~real] = 0
    return result
