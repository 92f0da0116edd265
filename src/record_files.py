"""Files of records to be answered, and of their answers: JSON lines, tables, plain lines."""

import contextlib
import itertools
import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from model_utils.errors import DataError
from model_utils.files import sync_to_disk
from src.text_tables import read_table
from src.utils import decode

STANDARD = "-"
JSON_LINES, TABLE, TEXT = "json_lines", "table", "text"
_FORMATS = {".jsonl": JSON_LINES, ".json": JSON_LINES} | dict.fromkeys((".tsv", ".csv", ".xls", ".xlsx"), TABLE)


@dataclass(frozen=True)
class NumberedRecord:
    """A record, or the error that it is; line counts from 1."""

    line: int
    record: dict[str, Any]
    error: str = ""


def read_records(file: str, input_format: str, text_key: str) -> Iterator[NumberedRecord]:
    """The records of a file or of standard input ("-"), one at a time.

    Args:
        input_format: json_lines, table (with a header of keys; an empty field is no value), text (a record a line), or
            auto: by the file's ending, other endings being text; for standard input json_lines.
        text_key: the key of the records of plain lines.

    Raises:
        DataError: the file cannot be read.
    """
    if input_format == "auto":
        input_format = JSON_LINES if file == STANDARD else _FORMATS.get(Path(file).suffix.lower(), TEXT)
    if input_format == TABLE:
        if file == STANDARD:
            raise DataError(
                "a table is read from a file, not from standard input; allowed there are json_lines and text"
            )
        yield from _read_table(Path(file))
        return
    for line, raw in _raw_lines(file):
        try:
            text = decode(raw, Path(file), 0).removeprefix("\ufeff" if line == 1 else "")
            record = _parse(text) if input_format == JSON_LINES and text.strip() else text.rstrip("\r\n")
        except DataError:
            yield NumberedRecord(line, {}, f"line {line} is not UTF-8 text")
        except (ValueError, RecursionError) as error:
            yield NumberedRecord(line, {}, f"line {line} is not JSON: {error}")
        else:
            if input_format == TEXT:
                yield NumberedRecord(line, {text_key: record})
            elif isinstance(record, dict):
                yield NumberedRecord(line, record)
            elif record:
                yield NumberedRecord(line, {}, f"line {line} is not a JSON object")


def _parse(text: str) -> Any:
    """A JSON value that can be written again: Python also reads NaN, 1e999 and halves of surrogate pairs, which cannot.

    Raises:
        ValueError, RecursionError: it is none.
    """
    value = json.loads(text)
    json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    return value


def _raw_lines(file: str) -> Iterator[tuple[int, bytes]]:
    try:
        with contextlib.nullcontext(sys.stdin.buffer) if file == STANDARD else Path(file).open("rb") as stream:
            yield from enumerate(stream, 1)
    except OSError as error:
        raise DataError(f"{file} cannot be read: {error.strerror}") from error


def _read_table(path: Path) -> Iterator[NumberedRecord]:
    table = read_table(path)
    for line, row in table.rows:
        try:
            fields = table.pick(line, row, range(len(table.names)))
        except DataError as error:
            yield NumberedRecord(line, {}, str(error))
        else:
            yield NumberedRecord(line, {name: field for name, field in zip(table.names, fields, strict=True) if field})


@contextlib.contextmanager
def write_records(file: str) -> Iterator[Callable[[dict[str, Any]], object]]:
    """A function that writes a record as a line of JSON; a file gets its name when all are written.

    Raises:
        DataError: the file cannot be written.
    """

    def writer(stream: TextIO) -> Callable[[dict[str, Any]], object]:
        return lambda record: stream.write(json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n")

    if file == STANDARD:
        yield writer(sys.stdout)
        sys.stdout.flush()
        return
    path = Path(file)
    temporary = path.with_name(f"unfinished-{os.getpid()}-{path.name}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("w", encoding="utf-8") as stream:
            yield writer(stream)
        sync_to_disk(temporary)
        temporary.replace(path)
    except OSError as error:
        raise DataError(f"{file} cannot be written: {error.strerror}") from error
    finally:
        temporary.unlink(missing_ok=True)


def batched(records: Iterator[NumberedRecord], size: int) -> Iterator[list[NumberedRecord]]:
    """Lists of at most `size`."""
    while batch := list(itertools.islice(records, size)):
        yield batch
