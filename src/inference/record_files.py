"""Reading of records and writing of answers: JSON lines, tables, text lines."""

import contextlib
import io
import itertools
import logging
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any, cast

from model_utils.config import check_not_home
from model_utils.errors import ConfigError, DataError, first_few, shorten
from model_utils.files import check_writable, sync_to_disk, write_atomically
from model_utils.json_files import parse_json
from model_utils.messages import silence
from src.inference.answer_tables import ENDINGS, TableCheck, write_table
from src.inference.unfinished_answers import Answers, unfinished_answers
from src.text.arrow_tables import ARROW_SUFFIXES, is_saved_dataset
from src.text.text_tables import JSON_SUFFIXES, TableOptions, TextTable, read_table, suffix_of
from src.utils import check_text, check_unpacked, decode, decompressed, opened

logger = logging.getLogger(__name__)

STANDARD = "-"
DEFAULTS = TableOptions()
JSON_LINES, TABLE, TEXT = "json_lines", "table", "text"
_FORMATS = dict.fromkeys(JSON_SUFFIXES, JSON_LINES)
_OUTPUT_ENDINGS = (*JSON_SUFFIXES, ".txt", "", *ENDINGS)  # JSON lines, or tables
_FORMATS |= dict.fromkeys((".tsv", ".csv", ".xls", ".xlsx", *ARROW_SUFFIXES), TABLE)


@dataclass(frozen=True)
class NumberedRecord:
    """Record of a line, or the error in it; lines count from 1."""

    line: int
    record: dict[str, Any]
    error: str = ""


def check_inputs(files: Sequence[tuple[str, str]], options: TableOptions = DEFAULTS) -> None:
    """Check files before work starts; standard input is not read.

    Args:
        files: each with its format, as read_records has them.

    Raises:
        DataError: a file cannot be read, or is UTF-16.
        ConfigError: options are given, but no file is a table.
    """
    if options != DEFAULTS and TABLE not in itertools.starmap(_format_of, files):
        names = ", ".join(file for file, _ in files)
        raise ConfigError(f"encoding, sheet and delimiter apply to tables, and there is none among {names}")
    for file, input_format in files:
        if _format_of(file, input_format) == TABLE:
            table = _open_table(file, options)
            if table.other_types:
                columns = [f"{shorten(table.names[index])} ({kind})" for index, kind in table.other_types.items()]
                logger.warning(f"{file}: columns that hold no texts or numbers are not read: {first_few(columns)}")
            for _ in table.rows:  # to the end: an error there would waste the answers before it
                pass
        elif file != STANDARD:
            _, beginning = next(_raw_lines(file), (0, b""))
            check_unpacked(beginning, file)
            check_text(beginning.decode("latin-1"), False, file)


def read_records(
    file: str, input_format: str, text_key: str, options: TableOptions = DEFAULTS
) -> Iterator[NumberedRecord]:
    """Yield the records of a file or of standard input ("-").

    Args:
        input_format: json_lines, table (with a header of keys; an empty field is no value), text (a record per line),
            or auto: by the file's ending, text for unknown ones; json_lines for standard input.
        text_key: key of the records of text lines.
        options: how a table is stored.
    """
    file_format = _format_of(file, input_format)
    if file_format == TABLE:
        yield from _read_table(file, options)
        return
    for line, raw in _raw_lines(file):
        try:
            text = decode(raw, Path(file), 0).removeprefix("\ufeff" if line == 1 else "")
            if file_format == JSON_LINES and not text.strip():
                continue
            record = parse_json(text) if file_format == JSON_LINES else text.rstrip("\r\n")
        except DataError:
            yield NumberedRecord(line, {}, f"line {line} is not UTF-8 text")
        except ValueError as error:
            yield NumberedRecord(line, {}, f"line {line} is not JSON: {error}")
        else:
            if file_format == TEXT:
                yield NumberedRecord(line, {text_key: record})
            elif isinstance(record, dict):
                yield NumberedRecord(line, record)
            else:
                yield NumberedRecord(line, {}, f"line {line} is not a JSON object")


def _format_of(file: str, input_format: str) -> str:
    if input_format != "auto":
        return input_format
    if file == STANDARD:
        return JSON_LINES
    return TABLE if is_saved_dataset(Path(file)) else _FORMATS.get(suffix_of(Path(file)), TEXT)


def _raw_lines(file: str) -> Iterator[tuple[int, bytes]]:
    if file != STANDARD:
        with opened(Path(file)) as stream:
            yield from enumerate(decompressed(stream), 1)
        return
    try:
        yield from enumerate(sys.stdin.buffer, 1)
    except OSError as error:  # here, because writers of answers take it for an error of their output
        raise DataError(f"standard input cannot be read: {error.strerror}") from error


def _open_table(file: str, options: TableOptions) -> TextTable:
    if file == STANDARD:
        raise DataError("standard input cannot be read as a table: give a file, or use json_lines or text")
    table = read_table(file, options=options)
    if table.hint:
        raise DataError(f"{file} has the column(s) {first_few(list(map(shorten, table.names)))}{table.hint}")
    name, count = max(Counter(filter(None, table.names)).items(), key=itemgetter(1), default=("", 0))
    if count > 1:
        raise DataError(f"{file} has {count} columns {shorten(name)}: rename all but one")
    return table


def _read_table(file: str, options: TableOptions) -> Iterator[NumberedRecord]:
    table = _open_table(file, options)
    indices = [index for index in range(len(table.names)) if index not in table.other_types]
    names = [table.names[index] for index in indices]
    for line, row in table.rows:
        try:
            table.pick(line, row, ())  # checks the number of fields
        except DataError as error:
            yield NumberedRecord(line, {}, str(error))
        else:
            fields = (row[index] for index in indices)  # None: neither text nor number, as a failed formula
            yield NumberedRecord(line, {name: field for name, field in zip(names, fields, strict=True) if field})


def check_output(file: str, source: str) -> None:
    """Check an output before work starts.

    Raises:
        OSError: `file` cannot be written.
        DataError: it is no regular file.
        ConfigError: it is `source` or has an ending of another format.
    """
    if file == STANDARD:
        return
    path = Path(file)
    check_not_home(path, "output")
    if path.suffix.lower() not in _OUTPUT_ENDINGS:
        expected = f"a name that ends in {', '.join(filter(None, _OUTPUT_ENDINGS))}, or without an ending"
        raise ConfigError(key="output", value=file, expected=expected)
    if path.exists() and not path.is_file():
        raise DataError(f"{file} is a folder, a device or a pipe: name a file, or use - for standard output")
    if path.exists() and Path(source).exists() and path.samefile(source):
        raise ConfigError(key="output", value=file, problem="it is also the input", hint="choose another output")
    check_writable(Path(os.path.realpath(file)).parent)  # of a link's target, even if that is still to be made


@contextlib.contextmanager
def write_records(file: str, fingerprint: str = "", multiple: int = 1) -> Iterator[Answers]:
    """Provide Answers, which become lines of JSON or, by the file's ending, a table.

    The file appears under its name at the end. Answers that an earlier run with the same fingerprint has left, in a
    multiple of `multiple`, are taken over (unfinished_answers).
    """
    try:
        if file == STANDARD:
            cast(io.TextIOWrapper, sys.stdout).reconfigure(encoding="utf-8")  # whatever the locale
            yield Answers(sys.stdout)
            sys.stdout.flush()
        else:
            output = Path(os.path.realpath(file))
            output.parent.mkdir(parents=True, exist_ok=True)
            with unfinished_answers(output, fingerprint, multiple) as (unfinished, answers):
                if Path(file).suffix.lower() in ENDINGS:
                    answers.check = TableCheck(Path(file))
                yield answers
                answers.stream.flush()
                if Path(file).suffix.lower() in ENDINGS:
                    write_table(Path(file), unfinished)
                else:
                    sync_to_disk(unfinished)  # before the rename, after which a kill loses it
                    write_atomically(output, unfinished.replace)
    except OSError as error:
        if file == STANDARD:  # Python would try to flush it again at exit
            silence(sys.stdout)
        target = "standard output" if file == STANDARD else file
        raise DataError(f"{target} cannot be written: {error.strerror}") from error
