"""Reading text files, also compressed ones."""

import bz2
import codecs
import contextlib
import gzip
import io
import lzma
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import zstandard

from model_utils.errors import DataError
from model_utils.files import open_file
from model_utils.json_files import parse_json

_DAMAGES = (EOFError, gzip.BadGzipFile, lzma.LZMAError, zlib.error, zstandard.ZstdError)
_SAMPLE_BYTES = 4 << 20  # unpacked to estimate how much text a compressed file holds
_ZSTD_WINDOW_BYTES = 1 << 31  # of `zstd --long=31`, in which large corpora are published
_READ_BYTES = 1 << 16
_CHUNK_BYTES = 128 << 10  # unpacked at once
_ZSTD_READ_BYTES = 256  # which unpack to 8 MB at most, when all blocks are runs of one byte


class _UnpackingReader(io.RawIOBase):
    """The bytes that a file unpacks to, of their chunks."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = filter(None, chunks)
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:
        if not self._rest:
            self._rest = memoryview(next(self._chunks, b""))
        count = min(len(buffer), len(self._rest))
        buffer[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count


def _zstd_chunks(file: BinaryIO) -> Iterator[bytes]:
    """Yield what a zstd file unpacks to. zstandard's own reader takes a file that is cut short for whole."""
    decompressor = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES)
    frame = decompressor.decompressobj()
    while raw := file.read(_ZSTD_READ_BYTES):
        while raw:
            if frame.eof:
                frame = decompressor.decompressobj()
            yield frame.decompress(raw)
            raw = frame.unused_data
    if not frame.eof:
        raise EOFError("Compressed file ended before the end of its last frame")


def _stream_chunks(file: BinaryIO, decompressor: Callable[[], Any]) -> Iterator[bytes]:
    """Yield what a bzip2 or xz file unpacks to. Python's own readers pass over a later stream that is damaged."""
    stream = decompressor()
    raw = file.read(_READ_BYTES)
    while raw:
        yield stream.decompress(raw, _CHUNK_BYTES)
        while not (stream.eof or stream.needs_input):
            yield stream.decompress(b"", _CHUNK_BYTES)
        raw = stream.unused_data or file.read(_READ_BYTES)
        if stream.eof and (raw := raw.lstrip(b"\0")):  # xz pads with NULs
            stream = decompressor()
    if not stream.eof:
        raise EOFError("Compressed file ended before the end of its last stream")


def _open_zstd(file: BinaryIO) -> BinaryIO:
    return io.BufferedReader(_UnpackingReader(_zstd_chunks(file)), _CHUNK_BYTES)


def _open_bzip2(file: BinaryIO) -> BinaryIO:
    return io.BufferedReader(_UnpackingReader(_stream_chunks(file, bz2.BZ2Decompressor)), _CHUNK_BYTES)


def _open_xz(file: BinaryIO) -> BinaryIO:
    return io.BufferedReader(_UnpackingReader(_stream_chunks(file, lzma.LZMADecompressor)), _CHUNK_BYTES)


# By how a file begins: the command that unpacks it, and the function that reads it where there is one.
_PACKED = {
    rb"\x1f\x8b": ("gunzip", gzip.open),
    rb"BZh[1-9](?:1AY&SY|\x17rE8P\x90)": ("bunzip2", _open_bzip2),
    rb"\xfd7zXZ\x00": ("unxz", _open_xz),
    rb"\(\xb5/\xfd|[\x50-\x5f]\*M\x18": ("unzstd", _open_zstd),
    rb"PK\x03\x04": ("unzip", None),
    rb"(?s:.{257}ustar)": ("tar -xf", None),
}


def decode(raw: bytes, file: object, position: int) -> str:
    """Decode the part of a UTF-8 file that begins at byte `position`; a DataError names the byte that is no text."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        likely = _likely_encoding(raw)
        convert = f"it may be {likely} (iconv -f {likely} -t UTF-8)" if likely else "for instance with iconv"
        raise DataError(
            f"{file}: byte {raw[error.start]:#04x} at offset {position + error.start} is not UTF-8 text; convert the "
            f"file to UTF-8: {convert}"
        ) from None


def _likely_encoding(raw: bytes) -> str:
    """Return the name of the encoding that a line seems to have, "" where several may be meant."""
    if raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or b"\0" in raw:
        return "UTF-16"
    try:
        raw.decode("gb2312")  # a part of GB18030 that western text with accents is none of
    except UnicodeDecodeError:
        return ""
    return "GB18030"


def check_unpacked(raw: bytes, file: object) -> None:
    """Raise DataError if a file begins as compressed ones or archives do."""
    for beginning, (command, reader) in _PACKED.items():
        if re.match(beginning, raw):
            kind = "compressed" if reader else "an archive"
            raise DataError(f"{file} is {kind}; unpack it first ({command})")


@contextlib.contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """Open a file for reading bytes; DataError if it, or what it unpacks to, cannot be read."""
    try:
        with open_file(path) as file:
            yield file
    except _DAMAGES as error:
        raise DataError(f"{path} is damaged or cut short ({error}); copy or make it again") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error


def _unpacked(file: BinaryIO) -> BinaryIO:
    """Return a stream of what a file unpacks to, chosen by its first bytes; the file itself if it is not compressed."""
    beginning = file.peek()
    readers = (reader for pattern, (_, reader) in _PACKED.items() if reader and re.match(pattern, beginning))
    return next(readers, lambda plain: plain)(file)


def estimate_text_bytes(paths: Iterable[Path]) -> int:
    """Return how many bytes of text files hold, for compressed ones judged by their beginning."""
    total = 0
    for path in paths:
        with opened(path) as file:
            size = os.fstat(file.fileno()).st_size
            stream = _unpacked(file)
            total += size if stream is file else round(len(stream.read(_SAMPLE_BYTES)) * size / file.tell())
    return total


def read_lines(path: Path, most_bytes: int = -1) -> Iterator[str]:
    """Yield decoded lines with their ends, without a byte order mark; one of more than most_bytes comes in pieces.

    Compressed files are unpacked as they are read.

    Raises:
        DataError: the file cannot be read, is damaged, an archive, compressed twice or not UTF-8; names the byte.
    """
    position = 0
    rest = b""
    with opened(path) as file:
        stream = _unpacked(file)
        name = path if stream is file else f"the content of {path}"
        while raw := rest + stream.readline(most_bytes - len(rest)):
            if position == 0:
                check_unpacked(raw, name)
            rest = b""
            if len(raw) == most_bytes:
                length = _piece_length(raw)
                raw, rest = raw[:length], raw[length:]
            yield decode(raw, name, position).removeprefix("\ufeff" if position == 0 else "")
            position += len(raw)


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
