"""google's TFRecord files, found; framing and checksums, checked before MindSpore reads them.

A record is its length (uint64), a checksum of that, its bytes and their checksum (uint32): masked CRC-32C. MindSpore
does not look at the checksums.
"""

import os
import struct
from collections.abc import Sequence
from pathlib import Path

import google_crc32c
import mindspore.dataset as ds

from model_utils.errors import DataError
from src.utils import opened

_HEADER, _FOOTER = 12, 4


def check_tfrecord(path: Path) -> int:
    """Verify every record of a file, and count them.

    Raises:
        DataError: the file is not a TFRecord, cut off, damaged or empty.
    """
    count = 0
    with opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        while header := file.read(_HEADER):
            length, length_checksum = struct.unpack("<QI", header) if len(header) == _HEADER else (size, 0)
            if length > size - file.tell() - _FOOTER or _checksum(header[:8]) != length_checksum:
                raise _damage(path, count)
            record, record_checksum = file.read(length), int.from_bytes(file.read(_FOOTER), "little")
            if _checksum(record) != record_checksum:
                raise _damage(path, count)
            count += 1
    if not count:
        raise DataError(f"{path} holds no records")
    return count


def tfrecord_reader(
    files: Sequence[Path], schema: Path | None, names: list[str], shuffle: ds.Shuffle | bool = False
) -> ds.Dataset:
    """Return the rows of TFRecords with these columns, as a schema.json or the files themselves describe them."""
    paths = [str(file) for file in files]
    return ds.TFRecordDataset(paths, str(schema) if schema else None, names, shuffle=shuffle, num_parallel_workers=1)


def find_tfrecords(location: Path) -> list[Path]:
    """google's files in a folder, or the one that is named; a DataError where MindRecords lie beside them."""
    if location.suffix == ".tfrecord" and location.is_file():
        return [location]
    found = sorted(location.glob("*.tfrecord"))
    if found and any(location.glob("*.facts.json")):
        raise DataError(f"{location} holds both {found[0].name} and MindRecords; name the file that is meant")
    return found


def find_schema(schema_dir: str | Path) -> Path | None:
    """A schema.json by its own name or its folder's; None for none."""
    if not schema_dir:
        return None
    path = Path(schema_dir)
    path = path / "schema.json" if path.is_dir() else path
    if not path.is_file():
        raise DataError(f"schema_dir: {path} is not there")
    return path


def _damage(path: Path, record: int) -> DataError:
    return DataError(
        f"{path} is not a TFRecord file, or is damaged or cut off: record {record} (from 0) has another length or "
        "checksum than it says; fetch the file again"
    )


def _checksum(content: bytes) -> int:
    """TFRecord's masked CRC-32C."""
    crc = google_crc32c.value(content)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
