"""google's TFRecords -> the batches of numpy arrays that feature files give (src/data/batches.py)."""

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

SHUFFLE_BUFFER = 20_000  # rows


class TFRecordDataset:
    """Batches from google's pre-training TFRecords, with the attributes and batches of FeatureDataset.

    TFRecords have no random access, so rows are shuffled in a window of SHUFFLE_BUFFER, and starting inside an epoch
    reads all rows before.

    Args:
        files: number of records of each file, from check_tfrecord.
        schema: a schema.json, or None to take the columns from the files.
    """

    def __init__(self, files: Mapping[Path, int], loading: Loading, schema: Path | None = None) -> None:
        self.files = list(files)
        self.loading = loading
        self.schema = schema
        self.num_rows = sum(files.values())
        self.batches_per_epoch = loading.batch_count(self.num_rows)
        self.rows_at_once = loading.rows_at_once
        if loading.bucket_boundaries:
            raise DataError(f"{self.files[0]}: rows of a TFRecord are padded already; leave bucket_boundaries empty")
        first = next(iterate(self._read, self.files[0]))
        length = len(first["input_ids"])
        predictions = len(first["masked_lm_ids"])
        self.columns = columns(length, predictions)
        self.manifest: dict[str, Any] = {
            "task": TASK,
            "max_seq_length": length,
            "max_predictions_per_seq": predictions,
            "rows": self.num_rows,
            "files": {file.name: sha256_of(file) for file in self.files},
        }

    def width_shares(self) -> list[tuple[int, float]]:
        return [(0, 1.0)]

    def batches(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        size = self.loading.batch_size
        rank = self.loading.rank
        rows = self.loading.rows_at_once

        def pipeline() -> ds.Dataset:
            batches = self._epoch_rows(epoch).batch(rows, drop_remainder=not self.loading.evaluation)
            return batches.take(self.batches_per_epoch).skip(start)

        for batch in iterate(pipeline, self.files[0].parent):
            real = np.arange(rank * size, (rank + 1) * size) < len(batch["input_ids"])
            first = rank * size if real.any() else 0
            rank_batch = {name: values[first : first + size] for name, values in batch.items()}
            yield complete_batch(rank_batch, self.columns, self.manifest["max_seq_length"], real, PRETRAIN_WEIGHTS)

    def _epoch_rows(self, epoch: int) -> ds.Dataset:
        """Return the rows in the order of an epoch."""
        if self.loading.shuffle:
            ds.config.set_seed(int(self.loading.random(epoch).integers(2**31)))
            return self._read(ds.Shuffle.FILES).shuffle(SHUFFLE_BUFFER)
        before = self.loading.rows_before(epoch, self.num_rows)
        return self._read().skip(before) + self._read().take(before) if before else self._read()

    def _read(self, shuffle: ds.Shuffle | bool = False) -> ds.Dataset:
        """Return the rows in the order of the files; with ds.Shuffle.FILES, MindSpore's seed orders the files."""
        return tfrecord_reader(self.files, self.schema, list(columns(1, 1)), shuffle)
