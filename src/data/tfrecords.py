"""google's TFRecord files: finding them, and verifying their framing and checksums, which MindSpore ignores.

A record is its length (uint64), the checksum of the length, its bytes and their checksum (uint32, masked CRC-32C).
"""

import os
import struct
from collections.abc import Sequence
from pathlib import Path

import google_crc32c
import mindspore.dataset as ds

from model_utils.errors import DataError
from src.utils import opened

_HEADER = 12
_FOOTER = 4


def check_tfrecord(path: Path) -> int:
    """Verify every record of a file and return their number.

    Raises:
        DataError: the file is not a TFRecord, cut off, damaged or empty.
    """
    count = 0
    with opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        while header := file.read(_HEADER):
            if len(header) < _HEADER:
                raise _damage(path, count)
            length, length_checksum = struct.unpack("<QI", header)
            if length > size - file.tell() - _FOOTER or _checksum(header[:8]) != length_checksum:
                raise _damage(path, count)
            record = file.read(length)
            record_checksum = int.from_bytes(file.read(_FOOTER), "little")
            if _checksum(record) != record_checksum:
                raise _damage(path, count)
            count += 1
    if not count:
        raise DataError(f"{path} holds no records")
    return count


def tfrecord_reader(
    files: Sequence[Path], schema: Path | None, names: list[str], shuffle: ds.Shuffle | bool = False
) -> ds.Dataset:
    """Return a dataset of the columns `names`, as the schema.json or, without one, the files describe them."""
    paths = [str(file) for file in files]
    return ds.TFRecordDataset(paths, str(schema) if schema else None, names, shuffle=shuffle, num_parallel_workers=1)


def find_tfrecords(location: Path) -> list[Path]:
    """Return the TFRecords in a folder, or the one named; raise DataError if the folder also holds MindRecords."""
    if location.suffix == ".tfrecord" and location.is_file():
        return [location]
    files = sorted(location.glob("*.tfrecord"))
    if files and any(location.glob("*.facts.json")):
        raise DataError(f"{location} holds both {files[0].name} and MindRecords; name one file")
    return files


def find_schema(schema_dir: str | Path) -> Path | None:
    """Return the path of a schema.json, given it or its folder; None if `schema_dir` is empty."""
    if not schema_dir:
        return None
    path = Path(schema_dir)
    path = path / "schema.json" if path.is_dir() else path
    if not path.is_file():
        raise DataError(f"schema_dir: {path} does not exist")
    return path


def _damage(path: Path, record: int) -> DataError:
    return DataError(f"{path} is not a TFRecord file, or is damaged at record {record} (from 0); fetch it again")


def _checksum(content: bytes) -> int:
    """Return the masked CRC-32C of TFRecord."""
    crc = google_crc32c.value(content)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
