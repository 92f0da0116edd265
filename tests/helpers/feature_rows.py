"""Rows of distinct values, and feature files of them."""

from pathlib import Path

import numpy as np

from src.data.feature_files import Column, Ragged
from src.data.record_writer import PackedRows, RecordWriter, pack_rows

COLUMNS = {
    "tokens": Column("int32", 9, padding=7, per_token=True),
    "weights": Column("float32", 5),
    "label": Column("int32", 0),
}
FACTS = {"task": "test", "vocab_size": 30, "settings": {"dupe_factor": 5}}


def ragged_columns(lengths: list[int]) -> dict[str, Ragged]:
    """Distinct values for rows of these lengths."""
    lengths = np.array(lengths)
    weights = 1 + lengths % 5
    return {
        "tokens": Ragged(np.arange(lengths.sum(), dtype=np.int32), lengths),
        "weights": Ragged(np.linspace(0, 1, weights.sum(), dtype=np.float32), weights),
        "label": Ragged(np.arange(len(lengths), dtype=np.int32) % 2, np.ones_like(lengths)),
    }


def split_rows(ragged: Ragged) -> list[list[int]]:
    """The values of each row."""
    return [row.tolist() for row in np.split(ragged.values, np.cumsum(ragged.counts)[:-1])]


def row_dicts(lengths: list[int]) -> list[dict[str, np.ndarray]]:
    columns = ragged_columns(lengths)
    parts = {name: np.split(column.values, np.cumsum(column.counts)[:-1]) for name, column in columns.items()}
    return [{name: rows[index] for name, rows in parts.items()} for index in range(len(lengths))]


def write_packed(path: Path, columns: dict[str, Column], packed: PackedRows, file_num: int, at_once: int) -> None:
    with RecordWriter(path, columns, FACTS, file_num) as writer:
        for start in range(0, len(packed.rows), at_once):
            writer.write(packed.take(np.arange(start, min(start + at_once, len(packed.rows)))))
        writer.add_array("counts", np.arange(3))


def write(folder: Path, lengths: list[int], file_num: int = 1, at_once: int = 4, name: str = "set") -> Path:
    """A set of feature files, written in several calls."""
    path = folder / f"{name}.mindrecord"
    write_packed(path, COLUMNS, pack_rows(COLUMNS, ragged_columns(lengths)), file_num, at_once)
    return path
