"""Ready fine-tuning features: google's TFRecords -> rows of token ids with labels."""

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from model_utils.errors import DataError
from src.data.batches import iterate
from src.data.feature_cache import Features
from src.data.feature_files import Column, Ragged, sha256_of
from src.data.features import labelled_features
from src.data.packing import TEXT_COLUMNS
from src.data.tfrecords import check_tfrecord, tfrecord_reader

_RECORDS_AT_ONCE = 4096


@dataclass(frozen=True)
class ReadySplit:
    """A split whose features are ready in a TFRecord; its texts are unknown."""

    name: str
    path: Path
    schema: Path | None = None
    examples: tuple[()] = ()

    def manifest(self) -> dict[str, Any]:
        schema = {"schema_sha256": sha256_of(self.schema)} if self.schema else {}
        return {"source": self.path.name, "source_sha256": sha256_of(self.path), **schema}

    def features(self) -> Features:
        return read_tfrecord(self.path, self.schema)


def read_tfrecord(path: Path, schema: Path | None = None) -> Features:
    """Return the rows of a TFRecord that google's run_classifier wrote, without padding tokens and padding rows.

    Args:
        schema: a schema.json, or None to take the columns from the file.

    Raises:
        DataError: the file is damaged, lacks a column, holds no example, or has several labels in a row.
    """
    check_tfrecord(path)
    first = _first_record(path)
    needed = (*TEXT_COLUMNS, "label_ids")
    missing = [name for name in needed if name.encode() not in first]
    if missing:
        raise DataError(f"{path} has no column {', '.join(missing)}; needed are {', '.join(needed)}")
    names = list(needed)
    if b"is_real_example" in first:
        names.append("is_real_example")
    batches = list(iterate(lambda: tfrecord_reader([path], schema, names).batch(_RECORDS_AT_ONCE), path))
    columns = {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}
    columns = {name: values.reshape(len(values), -1) for name, values in columns.items()}
    if (count := columns["label_ids"].shape[1]) != 1:
        raise DataError(f"{path} has {count} label_ids in a row, allowed is one")
    real = columns.pop("is_real_example", np.ones_like(columns["label_ids"]))[:, 0] != 0
    if not real.any():
        raise DataError(f"{path} has no example: is_real_example is 0 in all its {len(real):,} records")
    if (without_tokens := np.flatnonzero(real & ~columns["input_mask"].any(1))).size:
        raise DataError(f"{path}: record {without_tokens[0] + 1} has no token: its input_mask is 0 throughout")
    columns = {name: values[real] for name, values in columns.items()}
    targets = columns.pop("label_ids")[:, 0]
    mask = columns["input_mask"] != 0
    values = {name: Ragged(rows[mask].astype(np.int32), mask.sum(1)) for name, rows in columns.items()}
    widths = {name: Column("int32", rows.shape[1], 0, True) for name, rows in columns.items()}
    return labelled_features(widths, values, targets.astype(np.float32 if targets.dtype.kind == "f" else np.int32))


def _first_record(path: Path) -> bytes:
    """Return the bytes of the first record, which hold the names of its columns."""
    with path.open("rb") as file:
        (size,) = struct.unpack("<Q4x", file.read(12))
        return file.read(size)
