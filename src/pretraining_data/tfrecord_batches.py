"""google's TFRecords -> batches of numpy arrays, the same as from feature files (src/data/batches.py)."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import mindspore.dataset as ds
import numpy as np

from model_utils.errors import DataError
from src.data.batches import Batch, Loading, complete_batch, iterate
from src.data.feature_files import sha256_of
from src.data.tfrecords import tfrecord_reader
from src.pretraining_data.examples import PRETRAIN_WEIGHTS, TASK, columns

SHUFFLE_BUFFER = 20_000  # rows; TFRecords cannot be read in any order


class TFRecordDataset:
    """Batches from google's pre-training TFRecords; attributes and batches as FeatureDataset's.

    They can be read only from the beginning, so rows are shuffled in a window of SHUFFLE_BUFFER, and starting inside
    an epoch reads what lies before.

    Args:
        files: verified by check_tfrecord, with the number of records of each.
        schema: a schema.json, or None to take the columns from the files.
    """

    def __init__(self, files: Mapping[Path, int], loading: Loading, schema: Path | None = None) -> None:
        self.files, self.loading, self.schema = list(files), loading, schema
        self.num_rows = sum(files.values())
        self.batches_per_epoch, self.rows_at_once = loading.batches(self.num_rows), loading.rows_at_once
        if loading.bucket_boundaries:
            raise DataError(f"{self.files[0]}: rows of a TFRecord are padded already; leave bucket_boundaries empty")
        first = next(iterate(self._read, self.files[0]))
        length, predictions = len(first["input_ids"]), len(first["masked_lm_ids"])
        self.columns = columns(length, predictions)
        self.facts: dict[str, Any] = {
            "task": TASK,
            "max_seq_length": length,
            "max_predictions_per_seq": predictions,
            "rows": self.num_rows,
            "files": {file.name: sha256_of(file) for file in self.files},
        }

    def width_shares(self) -> list[tuple[int, float]]:
        return [(0, 1.0)]

    def batches(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        size, rank = self.loading.batch_size, self.loading.rank
        rows, drop = self.loading.rows_at_once, not self.loading.evaluation

        def pipeline() -> ds.Dataset:
            return self._of_epoch(epoch).skip(start * rows).batch(rows, drop)

        for batch in iterate(pipeline, self.files[0].parent):
            real = np.arange(rank * size, (rank + 1) * size) < len(batch["input_ids"])
            first = rank * size if real.any() else 0
            own = {name: values[first : first + size] for name, values in batch.items()}
            yield complete_batch(own, self.columns, self.facts["max_seq_length"], real, PRETRAIN_WEIGHTS)

    def _of_epoch(self, epoch: int) -> ds.Dataset:
        """The rows in the order of an epoch."""
        if self.loading.shuffle:
            ds.config.set_seed(int(self.loading.random(epoch).integers(2**31)))
            return self._read(ds.Shuffle.FILES).shuffle(SHUFFLE_BUFFER)
        before = self.loading.rows_before(epoch, self.num_rows)
        return self._read().skip(before) + self._read().take(before) if before else self._read()

    def _read(self, shuffle: ds.Shuffle | bool = False) -> ds.Dataset:
        """Rows as they stand in the files, these in their order or in one that MindSpore's seed says."""
        return tfrecord_reader(self.files, self.schema, list(columns(1, 1)), shuffle)
