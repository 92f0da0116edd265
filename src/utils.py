"""Readers of plain and compressed text files."""

import bz2
import codecs
import contextlib
import io
import lzma
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

import zstandard

from model_utils.errors import ConfigError, DataError
from model_utils.files import open_file
from model_utils.json_files import parse_json
from model_utils.remote_files import RemoteFile, TextFile

_DECOMPRESSION_ERRORS = (EOFError, lzma.LZMAError, zlib.error, zstandard.ZstdError)
_SAMPLE_BYTES = 4 << 20  # decompressed to estimate how much text a file holds
_ZSTD_WINDOW_BYTES = 1 << 31  # large corpora are published with `zstd --long=31`
_PART = re.compile(r"([0-9]{1,5})/([0-9]{1,5})")
_CHUNK_BYTES = 128 << 10
_READ_BYTES = 128  # decompress to 4 MB at most, in a zstd file whose blocks are runs of one byte


class _UnpackingReader(io.RawIOBase):
    """Stream of the decompressed bytes of a file, given in chunks."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = filter(None, chunks)
        self._pending = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._pending:
            self._pending = memoryview(next(self._chunks, b""))
        count = min(len(buffer), len(self._pending))
        buffer[:count] = self._pending[:count]
        self._pending = self._pending[count:]
        return count


def _chunks(file: BinaryIO, new_decompressor: Callable[[], Any]) -> Iterator[bytes]:
    """Yield the decompressed bytes of all streams in a file; raise EOFError if the last one is cut short.

    The libraries' own readers accept a zstd file that is cut short, and skip a later stream that is damaged.
    """
    stream = new_decompressor()
    while raw := file.read(_READ_BYTES):
        while raw:
            if stream.eof:
                raw = raw.lstrip(b"\0")  # gzip and xz pad with NULs
                if not raw:
                    break
                stream = new_decompressor()
            yield stream.decompress(raw)
            raw = stream.unused_data
    if not stream.eof:
        raise EOFError("Compressed file ended before the end of its last stream")


# First bytes of a file: the command that unpacks it, and the function that makes its decompressor (None for archives).
_COMPRESSED_FORMATS: dict[bytes, tuple[str, Callable[[], Any] | None]] = {
    rb"\x1f\x8b": ("gunzip", lambda: zlib.decompressobj(16 + zlib.MAX_WBITS)),  # with gzip's header
    # ... or cut before the 10th byte.
    rb"BZh[1-9](?:1AY&SY|\x17rE8P\x90|[^\n]{0,5}\Z)": ("bunzip2", bz2.BZ2Decompressor),
    rb"\xfd7zXZ\x00": ("unxz", lzma.LZMADecompressor),
    rb"\(\xb5/\xfd|[\x50-\x5f]\*M\x18": (
        "unzstd",
        lambda: zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES).decompressobj(),
    ),
    rb"PK\x03\x04": ("unzip", None),
    rb"(?s:.{257}ustar)": ("tar -xf", None),
}


def decode(raw: bytes, file: object, position: int, has_option: bool = False) -> str:
    """Decode the part of a UTF-8 file that begins at byte `position`; raise DataError with the first invalid byte.

    The error names the option `encoding` if has_option is true.
    """
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        likely = _likely_encoding(raw)
        convert = f"it may be {likely} (iconv -f {likely} -t UTF-8)" if likely else "for instance with iconv"
        names = likely.lower() or "big5, cp1251, cp1252 or another"
        option = f"name its encoding (--encoding {names}), or " if has_option else ""
        raise DataError(
            f"{file}: byte {raw[error.start]:#04x} at offset {position + error.start} is not UTF-8 text; "
            f"{option}convert the file to UTF-8: {convert}"
        ) from None


def _likely_encoding(raw: bytes) -> str:
    """Return the likely encoding of a line that is not UTF-8, "" if unknown."""
    if raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or b"\0" in raw:
        return "UTF-16"
    try:
        raw.decode("gb2312")  # the subset of GB18030 that Western text with accents does not decode as
    except UnicodeDecodeError:
        return ""
    return "GB18030"


def check_unpacked(raw: bytes, file: object) -> None:
    """Raise DataError if a file begins like a compressed file or an archive."""
    for first_bytes, (command, new_decompressor) in _COMPRESSED_FORMATS.items():
        if re.match(first_bytes, raw):
            format_name = "compressed" if new_decompressor else "an archive"
            raise DataError(f"{file} is {format_name}; unpack it first ({command})")


def check_text(beginning: str, is_one_line: bool, file: object, has_option: bool = False) -> None:
    """Raise DataError if a file seems to be UTF-16, or has one line since its lines end with carriage returns alone.

    The error names the option `encoding` if has_option is true.
    """
    if "\0" in beginning or beginning.startswith(("\xff\xfe", "\xfe\xff")):  # byte order marks, of bytes as Latin-1
        option = "name its encoding (--encoding utf-16-le), or " if has_option else ""
        found = f"{file} has NUL characters or a byte order mark, as UTF-16 has"
        raise DataError(f"{found}: {option}convert it: iconv -f UTF-16 -t UTF-8")
    if is_one_line and "\r" in beginning.strip():
        raise DataError(f"{file} ends its lines with carriage returns alone; convert them: tr '\\r' '\\n'")


@contextlib.contextmanager
def opened(path: TextFile) -> Iterator[io.BufferedReader]:
    """Open a file for reading bytes; raise DataError if reading or decompressing it fails."""
    try:
        with path.open_bytes() if isinstance(path, RemoteFile) else open_file(path) as file:
            yield file
    except _DECOMPRESSION_ERRORS as error:
        raise DataError(f"{path} is damaged or cut short ({error}); copy or create it again") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error


def decompressed(file: io.BufferedReader) -> io.BufferedIOBase:
    """Return the decompressed stream of a file from `opened`, or the file itself if it is not compressed."""
    beginning = file.peek()
    for first_bytes, (_, new_decompressor) in _COMPRESSED_FORMATS.items():
        if new_decompressor and re.match(first_bytes, beginning):
            return io.BufferedReader(_UnpackingReader(_chunks(file, new_decompressor)), _CHUNK_BYTES)
    return file


def estimate_text_bytes(paths: Iterable[TextFile]) -> int:
    """Return the bytes of text in files; for compressed files, an estimate from their beginning."""
    total = 0
    for path in paths:
        with opened(path) as file:
            size = path.stat().st_size
            stream = decompressed(file)
            if stream is file:
                total += size
            else:
                total += round(len(stream.read(_SAMPLE_BYTES)) * size / file.tell())
    return total


def read_lines(path: TextFile, max_bytes: int = -1, encoding: str | None = None) -> Iterator[str]:
    """Yield the decoded lines of a file with their line ends, without a byte order mark.

    Compressed files are decompressed as they are read. A line of more than max_bytes comes in pieces.

    Args:
        encoding: as Python names it; errors then name the option. None: UTF-8.

    Raises:
        DataError: the file cannot be read, is damaged, an archive, compressed twice or in another encoding.
    """
    if encoding is not None and not codecs.lookup(encoding).name.startswith("utf-8"):
        yield from _lines_in(path, encoding)
        return
    position = 0
    remainder = b""
    with opened(path) as file:
        stream = decompressed(file)
        name = path if stream is file else f"the content of {path}"
        while raw := remainder + stream.readline(max_bytes - len(remainder)):
            if position == 0:
                check_unpacked(raw, name)
            remainder = b""
            if len(raw) == max_bytes:
                length = _piece_length(raw)
                remainder = raw[length:]
                raw = raw[:length]
            yield decode(raw, name, position, encoding is not None).removeprefix("\ufeff" if position == 0 else "")
            position += len(raw)


def _lines_in(path: TextFile, encoding: str) -> Iterator[str]:
    """Yield the lines of a file in this encoding; raise DataError if it is in another one."""
    with opened(path) as file:
        beginning = decompressed(file).read(_SAMPLE_BYTES)
    check_unpacked(beginning, path)
    other = f"encoding is {encoding}, but {path} is in another one"
    if beginning and not _may_be(beginning, encoding):
        raise DataError(f"{other}; name that")
    line = 0
    with opened(path) as file:
        # No universal line ends: a carriage return may stand inside a field.
        text = io.TextIOWrapper(cast(BinaryIO, decompressed(file)), encoding, newline="\n")
        try:
            for line, content in enumerate(text, 1):
                yield content.removeprefix("\ufeff") if line == 1 else content
        except UnicodeError as error:
            reason = error.reason if isinstance(error, UnicodeDecodeError) else str(error)
            raise DataError(f"{other} ({reason} after line {line}); name that") from None


def _may_be(beginning: bytes, encoding: str) -> bool:
    """Return False for UTF-8 or UTF-16 bytes that another encoding would misread without an error."""
    is_wide = codecs.lookup(encoding).name.startswith(("utf-16", "utf-32"))
    try:
        is_utf8 = bool(codecs.getincrementaldecoder("utf-8")().decode(beginning)) and not beginning.isascii()
    except UnicodeDecodeError:
        is_utf8 = False
    return not is_utf8 and (b"\0" in beginning) == is_wide


def read_json_text(path: Path, encoding: str | None = None) -> Any:
    """Return the JSON value in a file; raise DataError if it is not JSON."""
    text = "".join(read_lines(path, encoding=encoding))
    try:
        return parse_json(text)
    except ValueError as error:
        raise DataError(f"{path} is not JSON: {error}") from None


def _piece_length(raw: bytes) -> int:
    """Return the bytes to take of an unfinished line: up to its last space, or up to a whole character."""
    if raw.endswith(b"\n"):
        return len(raw)
    space = raw.rfind(b" ")
    if space > 0:
        return space
    end = len(raw) - 1
    while end > len(raw) - 4 and raw[end] & 0xC0 == 0x80:  # a continuation byte: the character began before it
        end -= 1
    return end


def parse_part(part: str) -> tuple[int, int]:
    """Return index and number of the parts of "i/n", (0, 1) for ""; raise ConfigError if i is not from 0 to n - 1."""
    if not part:
        return 0, 1
    match = _PART.fullmatch(part)
    index, count = (int(match[1]), int(match[2])) if match else (0, 0)
    if index >= count:
        raise ConfigError(key="part", value=part, expected="i/n with i from 0 to n - 1, as 0/4 to 3/4")
    return index, count
