"""Reader of MindRecord rows (src/data/feature_files.py) that verifies each row.

MindSpore's own reader trusts the files: it ends the process with a signal if a file has changed since it was verified.

The index (.db) says where in which page of its file a row lies. A row is 8 bytes that repeat its size, then for each
column in alphabetical order its size (8 bytes, big-endian) and its bytes. Integers are compressed: their count (4
bytes, big-endian), two bits for each with the logarithm of its size (1, 2 or 4 bytes), the first in the highest bits,
then the integers themselves, little-endian and signed.
"""

import contextlib
import os
import sqlite3
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np

from model_utils.errors import DataError
from model_utils.json_files import parse_json
from src.data.feature_files import Column, RecordSet
from src.utils import opened

_INDEX = """SELECT ? + PAGE_ID_BLOB * ? + PAGE_OFFSET_BLOB, ? + PAGE_ID_BLOB * ? + PAGE_OFFSET_BLOB_END
            FROM INDEXES ORDER BY ROW_ID"""
_PREFIX = 8
_BITS = np.array([6, 4, 2, 0], np.uint8)


class RowReader:
    """Reader of the rows of a set, which are numbered across its files.

    Raises:
        DataError: a file has changed since it was verified; also raised by `read`.
    """

    def __init__(self, records: RecordSet) -> None:
        self.files = records.files
        self.columns = dict(sorted(records.columns.items()))
        self.checksums = records.array("checksums")
        spans = [_spans(file) for file in self.files]
        self.first_rows = np.cumsum([0, *map(len, spans)])
        self.spans = np.concatenate(spans)
        if len(self.spans) != records.num_rows:
            raise _changed(records.folder, f"its index has {len(self.spans)} rows instead of {records.num_rows}")

    @contextlib.contextmanager
    def open_files(self) -> Iterator[list[BinaryIO]]:
        """Open the files for `read`, by their names."""
        with contextlib.ExitStack() as stack:
            yield [stack.enter_context(opened(file)) for file in self.files]

    def read(self, streams: Sequence[BinaryIO], rows: np.ndarray) -> dict[str, np.ndarray]:
        """Return the columns of some rows, (rows, width); per_token columns are as wide as the longest of these rows.

        Args:
            streams: the files, from `open_files`.
            rows: row indices.
        """
        file_indices = np.searchsorted(self.first_rows, rows, side="right") - 1
        blobs: list[list[bytes]] = []
        for row, file_index in zip(rows, file_indices, strict=True):
            start, end = self.spans[row].tolist()
            try:
                blobs.append(_split(os.pread(streams[file_index].fileno(), end - start, start), len(self.columns)))
            except (OSError, ValueError, OverflowError, MemoryError) as error:
                raise _changed(self.files[file_index], f"row {row} cannot be read: {error}") from error
        values: dict[str, np.ndarray] = {}
        counts: dict[str, np.ndarray] = {}
        padded: dict[str, np.ndarray] = {}
        for (name, column), column_blobs in zip(self.columns.items(), zip(*blobs, strict=True), strict=True):
            try:
                values[name], counts[name] = _decode(column_blobs, column.dtype)
                padded[name] = _padded(values[name], counts[name], column)
            except ValueError as error:
                raise _changed(self.files[file_indices[0]], f"{name} of the rows {rows[0]} ...: {error}") from error
        damaged = np.flatnonzero(checksums_of(values, counts) != self.checksums[rows])
        if damaged.size:
            raise _changed(self.files[file_indices[damaged[0]]], f"row {rows[damaged[0]]} has another checksum")
        return padded


def checksums_of(values: Mapping[str, np.ndarray], counts: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the CRC-32 of each row, (rows,) uint32, over the bytes and sizes of its columns in alphabetical order.

    Args:
        values: (sum of counts,) for each column, of 4 bytes each.
        counts: (rows,) for each column.
    """
    names = sorted(values)
    buffers = [np.ascontiguousarray(values[name]).data.cast("B") for name in names]
    ends = np.stack([np.cumsum(counts[name]) for name in names], axis=1) * 4
    checksums = np.zeros(len(ends), np.uint32)
    starts = [0] * len(names)
    for row, row_ends in enumerate(ends.tolist()):
        checksum = 0
        for buffer, start, end in zip(buffers, starts, row_ends, strict=True):
            checksum = zlib.crc32(buffer[start:end], checksum ^ (end - start))
        checksums[row] = checksum
        starts = row_ends
    return checksums


def _spans(file: Path) -> np.ndarray:
    """Return the offsets where the rows of a file begin and end, (rows, 2) int64."""
    try:
        with opened(file) as stream:
            header = parse_json(stream.read(int.from_bytes(stream.read(8), "little")))
        with opened(file.with_name(f"{file.name}.db")):  # sqlite would wait for a pipe without end
            pass
        with contextlib.closing(sqlite3.connect(f"{file.absolute().as_uri()}.db?mode=ro", uri=True)) as index:
            start, page_size = header["header_size"], header["page_size"]
            numbers = (start + _PREFIX, page_size, start, page_size)
            return np.fromiter(index.execute(_INDEX, numbers), np.dtype((np.int64, 2)))
    except (ValueError, KeyError, TypeError, OverflowError, MemoryError, sqlite3.Error) as error:
        if isinstance(error, DataError):
            raise
        raise _changed(file, f"its header or its index is damaged: {error}") from error


def _split(raw: bytes, columns: int) -> list[bytes]:
    """Return the bytes of the columns of a row."""
    blobs = []
    position = 0
    for _ in range(columns):
        start = position + 8
        position = start + int.from_bytes(raw[start - 8 : start], "big")
        blobs.append(raw[start:position])
    if position != len(raw):
        raise ValueError(f"it ends after {len(raw)} bytes instead of {position}")
    return blobs


def _decode(blobs: Sequence[bytes], dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """Return a column's values of several rows, (sum of counts,), and their counts, (rows,)."""
    if dtype != "float32":
        return _decode_integers(blobs)
    sizes = np.array([len(blob) for blob in blobs])
    if (sizes % 4).any():
        raise ValueError("a row has an incomplete value")
    return np.frombuffer(b"".join(blobs), "<f4"), sizes // 4


def _decode_integers(blobs: Sequence[bytes]) -> tuple[np.ndarray, np.ndarray]:
    """Return the values and the counts of compressed integers, as _decode does."""
    sizes = np.array([len(blob) for blob in blobs])
    counts = np.array([int.from_bytes(blob[:4], "big") for blob in blobs])
    bitmap_sizes = -(-counts // 4)
    data_starts = 4 + bitmap_sizes
    if (data_starts > sizes).any():
        raise ValueError("a row has fewer bytes than values")
    bitmaps = b"".join(blob[4:start] for blob, start in zip(blobs, data_starts, strict=True))
    data = b"".join(blob[start:] for blob, start in zip(blobs, data_starts, strict=True))
    logarithms = ((np.frombuffer(bitmaps, np.uint8)[:, None] >> _BITS) & 3).ravel()
    padding = 4 * bitmap_sizes - counts  # logarithms, at most 3, that fill a row's last byte
    is_value = np.ones(len(logarithms), bool)
    ends = np.cumsum(4 * bitmap_sizes)
    for distance in (1, 2, 3):
        is_value[ends[padding >= distance] - distance] = False
    value_sizes = 1 << logarithms[is_value].astype(np.int32)
    value_ends = np.cumsum(value_sizes)
    row_bytes = np.diff(np.concatenate([[0], value_ends])[np.concatenate([[0], np.cumsum(counts)])])
    if (row_bytes != sizes - data_starts).any() or value_sizes.max(initial=1) > 4:
        raise ValueError("the bytes of a row do not match the sizes of its values")
    padded = np.frombuffer(data + bytes(3), np.uint8)
    words = padded[(value_ends - value_sizes)[:, None] + np.arange(4)].view("<i4")[:, 0]
    unused_bits = 32 - 8 * value_sizes
    return words << unused_bits >> unused_bits, counts


def _padded(values: np.ndarray, counts: np.ndarray, column: Column) -> np.ndarray:
    """Return a column as (rows, width), padded."""
    width = counts.max() if column.per_token else max(column.width, 1)
    result = np.full((len(counts), width), column.padding, column.dtype)
    result[np.arange(width) < counts[:, None]] = values
    return result


def _changed(file: Path, reason: str) -> DataError:
    return DataError(f"{file} has changed since it was checked: {reason}; leave the files alone, or make them again")
