"""google's TFRecord files: framing and checksums, checked before MindSpore reads them.

A record is its length (uint64), a checksum of that, its bytes and their checksum (uint32): masked CRC-32C. MindSpore
does not look at the checksums.
"""

import os
import struct
from pathlib import Path
from typing import BinaryIO

import numpy as np

from model_utils.errors import DataError
from model_utils.files import open_file

_HEADER, _FOOTER = 12, 4
_RECORDS_AT_ONCE = 4096


def check_tfrecord(path: Path) -> int:
    """Verify every record of a file.

    Returns:
        the number of records.

    Raises:
        DataError: the file is not a TFRecord, cut off, damaged or empty.
    """
    count = 0
    parts: list[bytes] = []
    checksums: list[int] = []
    with _opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        while header := file.read(_HEADER):
            length, header_checksum = struct.unpack("<QI", header) if len(header) == _HEADER else (size, 0)
            if length > size - file.tell() - _FOOTER:
                raise _damage(path, count)
            parts += [header[:8], file.read(length)]
            checksums += [header_checksum, int.from_bytes(file.read(_FOOTER), "little")]
            count += 1
            if len(parts) == 2 * _RECORDS_AT_ONCE or file.tell() == size:
                wrong = np.flatnonzero(_checksums(parts) != np.array(checksums, np.uint32))
                if len(wrong):
                    raise _damage(path, count - (len(parts) - wrong[0] + 1) // 2)
                parts, checksums = [], []
    if not count:
        raise DataError(f"{path} holds no records")
    return count


def _opened(path: Path) -> BinaryIO:
    try:
        return open_file(path)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error


def _damage(path: Path, record: int) -> DataError:
    return DataError(
        f"{path} is not a TFRecord file, or is damaged or cut off: record {record} (from 0) has another length or "
        "checksum than it says; fetch the file again"
    )


def _crc_table() -> np.ndarray:
    """CRC-32C (Castagnoli) of every byte."""
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> 1) ^ np.uint32(0x82F63B78), table >> 1)
    return table


_CRC_TABLE = _crc_table()


def _checksums(parts: list[bytes]) -> np.ndarray:
    """(parts,) uint32, TFRecord's masked CRC-32C of each: all in parallel, byte by byte."""
    lengths = np.array([len(part) for part in parts])
    order = np.argsort(-lengths, kind="stable")
    longest = int(lengths.max(initial=0))
    columns = np.zeros((longest, len(parts)), np.uint8)
    for column, index in enumerate(order):
        columns[: lengths[index], column] = np.frombuffer(parts[index], np.uint8)
    alive = np.searchsorted(-lengths[order], -np.arange(longest))  # parts longer than each position
    crc = np.full(len(parts), 0xFFFFFFFF, np.uint32)
    for position in range(longest):
        part = crc[: alive[position]]
        part[:] = _CRC_TABLE[(part ^ columns[position, : len(part)]) & 0xFF] ^ (part >> np.uint32(8))
    crc = ~crc
    result = np.empty_like(crc)
    result[order] = ((crc >> np.uint32(15)) | (crc << np.uint32(17))) + np.uint32(0xA282EAD8)
    return result
