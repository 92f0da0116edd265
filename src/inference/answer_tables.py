"""Answers as tables for people: CSV, tab-separated values, Excel workbooks."""

import csv
import itertools
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from openpyxl import Workbook
from openpyxl.cell import WriteOnlyCell
from openpyxl.cell.cell import ILLEGAL_CHARACTERS_RE

from model_utils.errors import DataError, shorten
from model_utils.files import open_atomically, write_atomically, write_text
from src.tasks.prediction_table import table_text

WORKBOOK = ".xlsx"
TSV = ".tsv"
ENDINGS = (".csv", TSV, WORKBOOK)
MAX_ROWS = 1_048_576  # Excel's limits for a sheet
MAX_COLUMNS = 16_384
MAX_CELL_CHARACTERS = 32_767  # of a workbook's cell, in UTF-16 units
MAX_EXACT_DIGITS = 15  # of a number that Excel keeps exactly

Row = dict[str, Any]


def write_table(path: Path, answers: Path) -> None:
    """Write the records of a file of JSON lines as a table.

    The columns are the records' keys, in the order in which they first occur. Nested keys become columns such as
    `probabilities.good`; lists are JSON text. A .tsv file has the escapes of predictions_SPLIT.tsv.

    Raises:
        OSError: the file cannot be written.
    """
    names = list(dict.fromkeys(name for row in _rows(answers) for name in row))
    if path.suffix.lower() == WORKBOOK:
        write_atomically(path, lambda temporary: _write_workbook(temporary, names, _rows(answers)))
    elif path.suffix.lower() == TSV:
        rows = list(_rows(answers))
        columns = {name: ["" if row.get(name) is None else row[name] for row in rows] for name in names}
        write_text(path, table_text(columns))
    else:
        with open_atomically(path) as stream:
            writer = csv.DictWriter(stream, names)  # lines end with \r\n, or a lone \r in a field would not be quoted
            writer.writeheader()
            writer.writerows(_rows(answers))


def _rows(answers: Path) -> Iterator[Row]:
    """Yield the flattened records of a file of JSON lines."""
    with answers.open(encoding="utf-8") as lines:
        for line in lines:
            yield flattened(json.loads(line))


def flattened(record: Row) -> Row:
    """Return a record whose values are text, numbers, booleans or None; DataError if two have the same column."""
    columns = list(_columns(record, ""))
    flat = dict(columns)
    if len(flat) < len(columns):
        name = next(name for name, count in Counter(name for name, _ in columns).items() if count > 1)
        raise DataError(f"a record has two values for the column {shorten(name)}: write .jsonl")
    return flat


def _columns(record: Row, prefix: str) -> Iterator[tuple[str, Any]]:
    """Yield name and value of each column; nested keys become columns."""
    for key, value in record.items():
        if isinstance(value, dict) and value:
            yield from _columns(value, f"{prefix}{key}.")
        elif isinstance(value, list | dict):
            yield prefix + key, json.dumps(value, ensure_ascii=False, allow_nan=False)
        else:
            yield prefix + key, value


class TableCheck:
    """Check of each record before the next one is answered: DataError if the table cannot hold it.

    Workbooks have limits: rows, columns of all records together, and characters of a cell.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.names: set[str] = set()  # columns so far

    def __call__(self, record: Row, index: int) -> None:
        """Check a record, which has this index."""
        row = flattened(record)
        if self.path.suffix.lower() != WORKBOOK:
            return
        line = index + 2
        new = row.keys() - self.names
        self.names |= new
        if line > MAX_ROWS or len(self.names) > MAX_COLUMNS:
            raise DataError(
                f"{self.path}: a workbook holds {MAX_ROWS:,} rows of {MAX_COLUMNS:,} columns: write .csv or .jsonl"
            )
        for name, value in [*row.items(), *((name, name) for name in new)]:
            length = len(value.encode("utf-16-le")) // 2 if isinstance(value, str) else 0
            if length > MAX_CELL_CHARACTERS:
                raise DataError(
                    f"{self.path}: row {line} has {length:,} characters in {shorten(name)}, a cell holds "
                    f"{MAX_CELL_CHARACTERS:,}: write .csv or .jsonl"
                )


def _write_workbook(file: Path, names: Sequence[str], rows: Iterable[Row]) -> None:
    workbook = Workbook(write_only=True)
    sheet = workbook.create_sheet("answers")

    def cell(value: Any) -> Any:
        if type(value) is int and len(str(abs(value))) > MAX_EXACT_DIGITS:
            value = str(value)
        if not isinstance(value, str):
            return value
        text = WriteOnlyCell(sheet, ILLEGAL_CHARACTERS_RE.sub("\ufffd", value))
        text.data_type = "s"  # also where it begins like a formula
        return text

    for row in itertools.chain([{name: name for name in names}], rows):
        sheet.append([cell(row.get(name)) for name in names])
    workbook.save(file)
