"""Reading text files."""

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from model_utils.errors import DataError
from model_utils.files import open_file
from model_utils.json_files import parse_json

# What unpacks a file, by how it begins.
_UNPACKERS = {
    b"\x1f\x8b": "gunzip",
    b"BZh[1-9]1AY&SY": "bunzip2",
    b"\xfd7zXZ\x00": "unxz",
    b"\\(\xb5/\xfd": "unzstd",
    b"PK\x03\x04": "unzip",
}


def decode(raw: bytes, path: Path, position: int) -> str:
    """UTF-8 text of a part of a file that begins at byte `position`; a DataError names the byte that is none."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        if position == 0:
            check_unpacked(raw, path)
        raise DataError(
            f"{path}: byte {raw[error.start]:#04x} at offset {position + error.start} is not UTF-8 text; convert the "
            "file to UTF-8 (for instance with iconv)"
        ) from None


def check_unpacked(raw: bytes, file: object) -> None:
    """Raise a DataError where a file begins as compressed ones do."""
    for beginning, unpacker in _UNPACKERS.items():
        if re.match(beginning, raw):
            raise DataError(f"{file} is compressed; unpack it first ({unpacker})")


@contextlib.contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """A file opened for reading bytes; a DataError where it cannot be read."""
    try:
        with open_file(path) as file:
            yield file
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error


def read_lines(path: Path, most_bytes: int = -1) -> Iterator[str]:
    """Decoded lines with their ends, without a byte order mark; one of more than most_bytes comes in pieces.

    Raises:
        DataError: the file cannot be read or is not UTF-8; names the byte.
    """
    position = 0
    with opened(path) as file:
        while raw := file.readline(most_bytes):
            piece = raw[: _piece_length(raw)] if len(raw) == most_bytes else raw
            yield decode(piece, path, position).removeprefix("\ufeff" if position == 0 else "")
            position += len(piece)
            if len(piece) < len(raw):
                file.seek(position)


def read_json_text(path: Path) -> Any:
    """The JSON value in a file; a DataError where there is none."""
    text = "".join(read_lines(path))
    try:
        return parse_json(text)
    except ValueError as error:
        raise DataError(f"{path} is not JSON: {error}") from None


def _piece_length(raw: bytes) -> int:
    """How many bytes to take of a line that goes on: up to a space, or at least a whole character."""
    if raw.endswith(b"\n"):
        return len(raw)
    space = raw.rfind(b" ")
    if space > 0:
        return space
    end = len(raw) - 1
    while end > len(raw) - 4 and raw[end] & 0xC0 == 0x80:  # a continuation byte: the character began before it
        end -= 1
    return end
