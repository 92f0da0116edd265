"""Tables of text -> rows of strings with their line numbers.

.tsv, .txt      fields between tabs; nothing is quoted, a double quote is text, as in GLUE's files
.csv            RFC 4180: fields between commas, in double quotes where they hold commas, quotes or line breaks
.jsonl, .ndjson, .json  one object a line; the keys of the first one are the columns
.xls, .xlsx     the first sheet that is not hidden (src/text/workbooks.py)

Text is UTF-8, with or without a byte order mark, with either line end. Lines count from 1; those that hold nothing, or
nothing in any column, are left out, but counted.
"""

import csv
import itertools
import logging
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from model_utils.errors import DataError, first_few, shorten
from model_utils.json_files import parse_json
from src.text.workbooks import NumberedCells, read_xls, read_xlsx
from src.utils import read_lines

logger = logging.getLogger(__name__)
_LIST = re.compile(r"\s*\[\s*(\{|$)")
MOST_NAMES = 20  # of columns in an error sentence
LONGEST_NUMBER = 9  # digits of a column's number; Python reads 4,300 at most
LONGEST_FIELD = 2**31 - 1  # characters of CSV; Python allows 131,072 unless it is told otherwise
Row = list[str | None]  # None: the value is no text, number or truth value
NumberedRows = Iterator[tuple[int, Row]]


@dataclass(frozen=True)
class Table:
    """A table's column names, and its line numbers with fields, which are read while they are taken, once."""

    path: Path
    names: list[str]
    rows: NumberedRows
    hint: str = ""  # what is likely wrong with the first line: the end of an error sentence

    def has(self, column: str) -> bool:
        """Whether the table has a column of this name or number."""
        return column in self.names or (
            column.isdecimal() and len(column) <= LONGEST_NUMBER and 1 <= int(column) <= len(self.names)
        )

    def place(self, column: str) -> int:
        """Index of a column, given by its name or else its number from 1; none, or several, are a DataError."""
        if not self.has(column):
            there = first_few(list(map(shorten, self.names)), MOST_NAMES)
            raise DataError(
                f"{self.path} has no column {shorten(column)}, it has {len(self.names)}: {there}; say which in the "
                f"keys that end in _column{self.hint}"
            )
        if self.names.count(column) > 1:
            raise DataError(
                f"{self.path} has {self.names.count(column)} columns {shorten(column)}; name one by its number"
            )
        if column not in self.names:
            return int(column) - 1
        place = self.names.index(column)
        if column.isdecimal() and place != int(column) - 1 and int(column) <= len(self.names):
            logger.warning(
                f"{self.path}: {column} is taken for the name of column {place + 1}, not for a number; where that "
                "is not meant, name the columns (column_names)"
            )
        return place

    def name_of(self, column: str) -> str:
        """The name of a column, given as for `place`."""
        return self.names[self.place(column)]

    def pick(self, line: int, row: Row, places: Sequence[int]) -> list[str]:
        """Some fields of a row; a DataError if it has more or fewer than the table, or one of them is no text."""
        while len(row) > len(self.names) and not row[-1]:
            row.pop()
        if len(row) != len(self.names):
            expected = f"{len(self.names)} ({', '.join(self.names)[:500]})"
            raise DataError(f"{self.path}: line {line} has {len(row)} column(s), expected are {expected}{self.hint}")
        fields = [row[place] for place in places]
        for place, field in zip(places, fields, strict=True):
            if field is None:
                raise DataError(f"{self.path}: line {line} has no text or number as {shorten(self.names[place])}")
        return fields

    def select(self, columns: Sequence[str]) -> Iterator[tuple[int, list[str]]]:
        """Line number and the fields of these columns, for every row."""
        places = [self.place(column) for column in columns]
        for line, row in self.rows:
            yield line, self.pick(line, row, places)


def read_table(path: str | Path, names: Sequence[str] = (), header_holds: str = "") -> Table:
    """Open a table, whose kind its ending says.

    Args:
        names: of the columns, for a file without a header; empty: the first row is the header.
        header_holds: a column's name; a first row that holds it is a header whatever `names` says.

    Raises:
        DataError: the file cannot be read, is empty, damaged or of another kind; also while rows are taken.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise DataError(f"{path} is no table that can be read; allowed are {', '.join(SUFFIXES)}")
    rows = _READERS[suffix](path)
    line, first = next(rows, (0, []))
    if not first:
        raise DataError(f"{path} is empty")
    hint = _delimiter_hint(suffix, first)
    is_header = not names or suffix in JSON_SUFFIXES or (header_holds in first and not header_holds.isdecimal())
    if not is_header:
        # The last columns may be missing altogether: labels, in what is to be predicted.
        return Table(path, list(names[: len(first)]), itertools.chain([(line, first)], rows), hint)
    while first and not first[-1]:
        first.pop()
    return Table(path, [(name or "").strip() for name in first], rows, hint)


def _delimiter_hint(suffix: str, first: Row) -> str:
    """Return the end of a sentence that names the separator a first line seems to have, if it is not its ending's."""
    expected = _DELIMITERS.get(suffix)
    if expected is None:
        return ""
    text = "".join(field or "" for field in first)
    likely = max((delimiter for delimiter in _DELIMITER_NAMES if delimiter != expected), key=text.count)
    if text.count(likely) < max(1, len(first) - 1):
        return ""
    return (
        f"; its fields seem to be separated by {_DELIMITER_NAMES[likely]}: {suffix} needs {_DELIMITER_NAMES[expected]}"
    )


# --- kinds of files: their rows, the header among them ---


def text_lines(path: Path) -> Iterator[str]:
    """Return the lines of a file; DataError if carriage returns alone end them, so that it is a single one."""
    lines = read_lines(path)
    first = list(itertools.islice(lines, 2))
    if len(first) == 1 and "\r" in first[0].rstrip():
        raise DataError(f"{path} ends its lines in carriage returns alone; convert them: tr '\\r' '\\n'")
    if first and "\0" in first[0]:
        raise DataError(f"{path} may be UTF-16: convert the file to UTF-8 (iconv -f UTF-16 -t UTF-8)")
    return itertools.chain(first, lines)


def _read_tsv(path: Path) -> NumberedRows:
    first: list[str] = []
    quoted: Counter[int] = Counter()
    row_count = 0
    try:
        for line, text in enumerate(text_lines(path), 1):
            text = text.removesuffix("\n").removesuffix("\r")
            if not text.strip():
                continue
            fields = text.split("\t")
            if not first:
                first = list(fields)
            else:
                row_count += 1
                if '"' in text:
                    quoted.update(i for i, field in enumerate(fields) if field[:1] == '"' == field[-1:] != field)
            yield line, fields
    finally:  # also where a row that its quotes tore apart ends the reading
        for index, count in quoted.items():
            if 2 * count > row_count and index < len(first):
                logger.warning(
                    f"{path}: {count:,} of {row_count:,} fields of column {index + 1} ({shorten(first[index])}) are in "
                    "double quotes, which stay part of a .tsv file's text; remove them, or write a .csv file"
                )


def _read_csv(path: Path) -> NumberedRows:
    csv.field_size_limit(LONGEST_FIELD)
    reader = csv.reader(text_lines(path), strict=True, skipinitialspace=True)
    line = 1
    try:
        for row in reader:
            if any(map(str.strip, row)):
                yield line, row
            line = reader.line_num + 1
    except csv.Error as error:
        raise DataError(f"{path}: the row that begins in line {line} is not CSV: {error}") from None


def _read_json_lines(path: Path) -> NumberedRows:
    names: list[str] = []
    unread: set[str] = set()
    for line, text in enumerate(text_lines(path), 1):
        if not text.strip():
            continue
        if not names and _LIST.match(text):
            raise DataError(f"{path} holds a list, needed is an object in each line: jq -c '.[]' makes them")
        try:
            values = parse_json(text)
        except ValueError as error:
            raise DataError(f"{path}: line {line} is not JSON: {error}") from None
        if not isinstance(values, dict):
            raise DataError(f"{path}: line {line} is not a JSON object, allowed is one object a line")
        if not names:
            if not values:
                raise DataError(f"{path}: line {line} has no keys, which are the columns")
            names = list(values)
            yield line, list(names)
        if not unread and (unread := values.keys() - {*names}):
            logger.warning(
                f"{path}: {shorten(min(unread))} stands in line {line} and not in the first one, whose keys are the "
                "columns: it is not read; give the first line all keys"
            )
        yield line, [_text_of(values.get(name, [])) for name in names]


def _workbook_reader(read_cells: Callable[[Path], NumberedCells]) -> Callable[[Path], NumberedRows]:
    """Return a reader of rows of text that hold something, all as wide as the first one or wider."""

    def read(path: Path) -> NumberedRows:
        width = 0
        for line, cells in read_cells(path):
            row = [_text_of(cell) for cell in cells]
            if any(cell != "" for cell in row):  # of a formula that has failed there is None
                width = width or len(row)
                yield line, row + [""] * (width - len(row))

    return read


def _text_of(value: Any) -> str | None:
    """A cell or JSON value as text: whole numbers without a point, nothing as ""; None for what is no text."""
    if value is None or isinstance(value, str):
        return value or ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return None if isinstance(value, list | dict) else str(value)


JSON_SUFFIXES = (".jsonl", ".ndjson", ".json")
_DELIMITERS = {".tsv": "\t", ".txt": "\t", ".csv": ","}
_DELIMITER_NAMES = {"\t": "TABs", ",": "commas", ";": "semicolons", "|": "vertical bars"}
_READERS: dict[str, Callable[[Path], NumberedRows]] = {
    ".tsv": _read_tsv,
    ".txt": _read_tsv,
    ".csv": _read_csv,
    **dict.fromkeys(JSON_SUFFIXES, _read_json_lines),
    ".xls": _workbook_reader(read_xls),
    ".xlsx": _workbook_reader(read_xlsx),
}
SUFFIXES = tuple(_READERS)
