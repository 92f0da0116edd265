"""Readers of text tables: rows of strings with their line numbers.

.tsv, .txt      fields separated by tabs; no quoting, a double quote is text as in GLUE's files
.csv            RFC 4180: fields with commas, quotes or line breaks are in double quotes; where the first line has no
                comma, semicolons, tabs or vertical bars separate fields; .tsv and .txt, too, if a delimiter is named
.jsonl, .ndjson, .json  one object per line, or a list of objects; the keys of the first object are the columns
.xls, .xlsx     one sheet (src/text/workbooks.py)
.parquet, .arrow, .feather, folders of datasets.save_to_disk  (src/text/arrow_tables.py)

Text may be compressed (.csv.gz and so on). It is UTF-8, with or without a byte order mark, or in a named encoding; line
ends are LF or CRLF.
Lines count from 1. Empty rows are skipped but counted.
"""

import csv
import itertools
import logging
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from model_utils.errors import ConfigError, DataError, first_few, shorten
from model_utils.json_files import parse_json
from src.text.arrow_tables import ARROW_SUFFIXES, is_saved_dataset, open_arrow
from src.text.cell_values import NumberedRows, Row, index_of, joined_texts, text_of
from src.text.workbooks import read_xls, read_xlsx
from src.utils import check_text, read_json_text, read_lines

logger = logging.getLogger(__name__)
_STATED_DELIMITER = re.compile(r'sep=([^"\r\n])\s*')  # first line that Excel obeys and that is no row
_LIST = re.compile(r"\s*\[\s*(\{|$)")
MOST_NAMES = 20  # columns listed in an error message
LONGEST_FIELD = 2**31 - 1  # characters of a CSV field; Python's default is 131,072


@dataclass(frozen=True)
class TableOptions:
    """How tables are stored, where their files do not say.

    Raises:
        ConfigError: the encoding is unknown, or the delimiter is no character between fields.
    """

    encoding: str = "utf-8"
    sheet: str = ""  # name or number (sheet_index of src/text/workbooks.py)
    delimiter: str = ""  # between fields of .csv, .tsv and .txt, or \\t; empty: by ending and first line

    def __post_init__(self) -> None:
        object.__setattr__(self, "delimiter", self.delimiter.replace(r"\t", "\t"))
        if len(self.delimiter) > 1 or self.delimiter in tuple('"\r\n\0'):
            raise ConfigError(key="delimiter", value=self.delimiter, expected=r"one character, such as ; or | or \t")
        try:
            "".encode(self.encoding)
        except (LookupError, ValueError):  # a NUL in the name
            names = "an encoding that Python knows, such as utf-8, gb18030, utf-16 or latin-1"
            raise ConfigError(key="encoding", value=self.encoding, expected=names) from None


@dataclass(frozen=True)
class TextTable:
    """Column names of a table, and its rows, which can be iterated once while the file is read."""

    path: Path
    names: list[str]
    rows: NumberedRows
    hint: str = ""  # end of an error message: what is probably wrong with the first line
    other_types: Mapping[int, str] = field(default_factory=dict)  # of columns that hold no texts or numbers, by index

    def has(self, column: str) -> bool:
        """Return True if the table has a column of this name or number."""
        return index_of(self.names, column) >= 0

    def column_index(self, column: str) -> int:
        """Return the index of a column, given by name or number from 1; raise DataError if there is none or several."""
        if not self.has(column):
            column_names = first_few(map(shorten, self.names), MOST_NAMES)
            raise DataError(
                f"{self.path} has no column {shorten(column)}, it has {len(self.names)}: {column_names}; name another "
                f"with the key that ends in _column{self.hint}"
            )
        if self.names.count(column) > 1:
            raise DataError(
                f"{self.path} has {self.names.count(column)} columns {shorten(column)}; name one by its number"
            )
        index = index_of(self.names, column)
        if index in self.other_types:
            found = f"column {shorten(self.names[index])} of type {shorten(self.other_types[index])}"
            raise DataError(f"{self.path} has the {found}, allowed are texts, numbers and dates")
        is_name = column in self.names
        if is_name and column.isdecimal() and index != int(column) - 1 and int(column) <= len(self.names):
            logger.warning(
                f"{self.path}: column {index + 1} is used, because {column} is its name and not only a column number; "
                "to prevent that, name the columns with column_names"
            )
        return index

    def key_of(self, column: str, default: str) -> str:
        """Return the name of a column, given by name or number from 1, or `default` if other columns share the name."""
        name = self.names[self.column_index(column)]
        return name if self.names.count(name) == 1 else default

    def pick(self, line: int, row: Row, column_indices: Sequence[int]) -> list[str]:
        """Return fields of a row; raise DataError if the row has more or fewer than the table or one is not text."""
        while len(row) > len(self.names) and not row[-1]:
            row.pop()
        if len(row) != len(self.names):
            expected = f"{len(self.names)} ({', '.join(self.names)[:500]})"
            raise DataError(f"{self.path}: line {line} has {len(row)} column(s), expected are {expected}{self.hint}")
        fields = []
        for column_index in column_indices:
            field = row[column_index]
            if field is None:
                column_name = shorten(self.names[column_index])
                raise DataError(f"{self.path}: line {line} has no text or number as {column_name}")
            fields.append(field)
        return fields

    def select(self, columns: Sequence[str]) -> Iterator[tuple[int, list[str]]]:
        """Yield the line number and the fields of these columns, for every row."""
        column_indices = [self.column_index(column) for column in columns]
        for line, row in self.rows:
            yield line, self.pick(line, row, column_indices)


def read_table(
    path: str | Path,
    names: Sequence[str] = (),
    header_holds: str = "",
    list_column: tuple[str, str] | None = None,
    options: TableOptions | None = None,
) -> TextTable:
    """Open a table in the format given by the file's suffix.

    Args:
        names: column names of a file without a header; empty: the first row is the header.
        header_holds: a column name; a first row with it is a header even if `names` is given.
        list_column: (JSON, Arrow) column whose values may be lists, and the separator that joins their items.
        options: how the file is stored; None: as TableOptions(), but errors do not name options.

    Raises:
        DataError: the file cannot be read, is empty, damaged or in another format; also raised while iterating rows.
    """
    path = Path(path)
    if is_arrow(path):
        column_names, rows, other_types = open_arrow(path, list_column)
        if not column_names:
            raise DataError(f"{path} is empty")
        return TextTable(path, column_names, rows, other_types=other_types)
    suffix = suffix_of(path)
    if suffix not in SUFFIXES:
        raise DataError(f"{path} is not a supported table; allowed are {', '.join(SUFFIXES)}")
    if suffix in JSON_SUFFIXES:
        rows = _read_json_lines(path, options, list_column)
    elif suffix in DELIMITERS and options and options.delimiter:
        rows = _read_csv(path, options)
    else:
        rows = _READERS[suffix](path, options)
    line, first = next(rows, (0, []))
    if not first:
        raise DataError(f"{path} is empty")
    hint = _delimiter_hint(suffix, first, options)
    is_header = not names or suffix in JSON_SUFFIXES or (header_holds in first and not header_holds.isdecimal())
    if not is_header:
        # The last columns may be missing: rows to predict have no labels.
        return TextTable(path, list(names[: len(first)]), itertools.chain([(line, first)], rows), hint)
    while first and not first[-1]:
        first.pop()
    return TextTable(path, [(name or "").strip() for name in first], rows, hint)


def suffix_of(path: Path) -> str:
    """Return the suffix that tells the format of a table, in lower case, without that of a compression."""
    suffix = path.suffix.lower()
    return Path(path.stem).suffix.lower() if suffix in COMPRESSED else suffix


def is_arrow(path: Path) -> bool:
    """Return True for a Parquet or Arrow file and for a folder of datasets.save_to_disk."""
    return suffix_of(path) in ARROW_SUFFIXES or is_saved_dataset(path)


def names_its_columns(path: Path) -> bool:
    """Return True for a table whose format has the names of columns, so that there is no question of a header."""
    return suffix_of(path) in JSON_SUFFIXES or is_arrow(path)


def _delimiter_hint(suffix: str, first: Row, options: TableOptions | None) -> str:
    """Return the end of an error message if the first line seems to have another separator than it was read with."""
    if suffix not in DELIMITERS:
        return ""
    given = options.delimiter if options else ""
    expected = given or DELIMITERS[suffix]
    text = "".join(field or "" for field in first)
    likely = max((delimiter for delimiter in _DELIMITER_NAMES if delimiter != expected), key=text.count)
    if text.count(likely) < (len(first) if given else max(1, len(first) - 1)):
        return ""
    remedy = f"give --delimiter {shorten(likely)}" if options else f"{suffix} needs {_DELIMITER_NAMES[expected]}"
    return f"; its fields seem to be separated by {_DELIMITER_NAMES[likely]}: {remedy}"


# --- readers by format: all rows, with the header ---


def text_lines(path: Path, options: TableOptions | None = None) -> Iterator[str]:
    """Return the lines of a file; raise DataError if it is UTF-16 or its lines end with carriage returns alone."""
    lines = read_lines(path, encoding=options.encoding if options else None)
    first_lines = list(itertools.islice(lines, 2))
    check_text("".join(first_lines[:1]), len(first_lines) == 1, path, options is not None)
    return itertools.chain(first_lines, lines)


TableReader = Callable[[Path, TableOptions | None], NumberedRows]


def _is_quoted(field: str) -> bool:
    return len(field) > 1 and field[0] == field[-1] == '"'


def _read_tsv(path: Path, options: TableOptions | None) -> NumberedRows:
    header: list[str] = []
    quoted_counts: Counter[int] = Counter()
    row_count = 0
    try:
        for line, text in enumerate(text_lines(path, options), 1):
            text = text.removesuffix("\n").removesuffix("\r")
            if not text.strip():
                continue
            fields = text.split("\t")
            if not header:
                header = list(fields)
            else:
                row_count += 1
                if '"' in text:
                    quoted_counts.update(index for index, field in enumerate(fields) if _is_quoted(field))
            yield line, fields
    finally:  # also if a quoted field with a tab ends the reading with an error
        for index, count in quoted_counts.items():
            if 2 * count > row_count and index < len(header):
                logger.warning(
                    f"{path}: {count:,} of {row_count:,} fields of column {index + 1} ({shorten(header[index])}) are "
                    "in double quotes, which a .tsv file keeps as text; remove them, or write a .csv file"
                )


def _read_csv(path: Path, options: TableOptions | None) -> NumberedRows:
    csv.field_size_limit(LONGEST_FIELD)
    lines = text_lines(path, options)
    header = next(lines, "")
    line = 1
    stated = _STATED_DELIMITER.fullmatch(header)
    if stated:
        header = next(lines, "")
        line = 2
    delimiter = (options.delimiter if options else "") or (stated[1] if stated else _csv_delimiter(header))
    if delimiter in _DELIMITER_NAMES.keys() - {DELIMITERS[".csv"]}:
        logger.info(f"{path}: fields are separated by {_DELIMITER_NAMES[delimiter]}")
    reader = csv.reader(itertools.chain([header], lines), delimiter=delimiter, strict=True, skipinitialspace=True)
    first_line = line
    try:
        for row in reader:
            if any(map(str.strip, row)):
                yield line, row
            line = reader.line_num + first_line
    except csv.Error as error:
        raise DataError(f"{path}: the row that begins in line {line} is not CSV: {error}") from None


def _csv_delimiter(header: str) -> str:
    """Return the comma, or what separates the fields of a first line that has none."""
    comma = DELIMITERS[".csv"]
    likely = max(_DELIMITER_NAMES, key=header.count)
    return likely if comma not in header and likely in header else comma


def json_values(path: Path, options: TableOptions | None = None) -> Iterator[tuple[int, Any]]:
    """Yield the number and the value of each line or, if the file holds a list, of each item."""
    is_first = True
    for line, text in enumerate(text_lines(path, options), 1):
        if not text.strip():
            continue
        if is_first and _LIST.match(text):
            yield from enumerate(read_json_text(path, options.encoding if options else None), 1)
            return
        is_first = False
        try:
            yield line, parse_json(text)
        except ValueError as error:
            raise DataError(
                f"{path}: line {line} is not JSON: {error}; needed is one object in each line, or a list of objects"
            ) from None


def _read_json_lines(
    path: Path, options: TableOptions | None, list_column: tuple[str, str] | None = None
) -> NumberedRows:
    names: list[str] = []
    ignored_keys: set[str] = set()
    for line, values in json_values(path, options):
        if not isinstance(values, dict):
            raise DataError(f"{path}: line {line} is not a JSON object, needed is one object in each line")
        if not names:
            if not values:
                raise DataError(f"{path}: line {line} has no keys, which are the columns")
            names = list(values)
            if all(isinstance(value, dict | list) for value in values.values()):
                keys = first_few(list(map(shorten, names)), MOST_NAMES)
                raise DataError(
                    f"{path}: line {line} holds lists or objects alone ({keys}): needed is an object for each row"
                )
            yield line, list(names)
        if not ignored_keys and (ignored_keys := values.keys() - {*names}):
            logger.warning(
                f"{path}: key {shorten(min(ignored_keys))} of line {line} is ignored, because the first line lacks it; "
                "give the first line all keys"
            )
        row = [text_of(values.get(name, [])) for name in names]
        if list_column:
            column, separator = list_column
            index = index_of(names, column)
            if index >= 0 and isinstance(items := values.get(names[index]), list):
                row[index] = joined_texts(items, separator, f"{path}: line {line}")
        yield line, row


def _workbook_reader(read_rows: Callable[[Path, str | None], NumberedRows]) -> TableReader:
    """Return a reader of the non-empty rows of a workbook; rows shorter than the first one are padded."""

    def read(path: Path, options: TableOptions | None) -> NumberedRows:
        width = 0
        for line, row in read_rows(path, options.sheet if options else None):
            if any(cell is None or cell.strip() for cell in row):  # a failed formula is None: its row is not empty
                width = width or len(row)
                row.extend([""] * (width - len(row)))
                yield line, row

    return read


COMPRESSED = (".gz", ".bz2", ".xz", ".zst")
JSON_SUFFIXES = (".jsonl", ".ndjson", ".json")
DELIMITERS = {".tsv": "\t", ".txt": "\t", ".csv": ","}
_DELIMITER_NAMES = {"\t": "TABs", ",": "commas", ";": "semicolons", "|": "vertical bars"}
_READERS: dict[str, TableReader] = {
    ".tsv": _read_tsv,
    ".txt": _read_tsv,
    ".csv": _read_csv,
    **dict.fromkeys(JSON_SUFFIXES, _read_json_lines),
    ".xls": _workbook_reader(read_xls),
    ".xlsx": _workbook_reader(read_xlsx),
}
WORKBOOK_SUFFIXES = {".xls", ".xlsx"}
TEXT_SUFFIXES = _READERS.keys() - WORKBOOK_SUFFIXES
SUFFIXES = (*_READERS, *ARROW_SUFFIXES)
