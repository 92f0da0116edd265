"""Answers as tables for people: CSV, tab-separated values, Excel workbooks."""

import csv
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from openpyxl import Workbook
from openpyxl.cell import WriteOnlyCell
from openpyxl.cell.cell import ILLEGAL_CHARACTERS_RE

from model_utils.errors import DataError
from model_utils.files import open_atomically, write_atomically

WORKBOOK = ".xlsx"
SEPARATORS = {".csv": ",", ".tsv": "\t"}
ENDINGS = (*SEPARATORS, WORKBOOK)
MOST_ROWS, MOST_COLUMNS, MOST_CHARACTERS = 1_048_576, 16_384, 32_767  # of a workbook's sheet and of a cell

Row = dict[str, Any]


@contextmanager
def write_table(path: Path) -> Iterator[Callable[[Row], object]]:
    """Provide a function that takes a record; the table of all records, which stay in memory, is written at the end.

    The columns are the records' keys, in the order in which they first occur. A value within a value, such as
    probabilities by label, has a column of its own (`probabilities.good`); lists are JSON text.

    Raises:
        DataError: a workbook cannot hold the table.
        OSError: the file cannot be written.
    """
    rows: list[Row] = []
    yield lambda record: rows.append(flattened(record))
    names = list(dict.fromkeys(name for row in rows for name in row))
    if path.suffix.lower() == WORKBOOK:
        write_atomically(path, lambda temporary: _write_workbook(temporary, path, names, rows))
        return
    with open_atomically(path) as stream:
        writer = csv.DictWriter(stream, names, delimiter=SEPARATORS[path.suffix.lower()], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def flattened(record: Row, prefix: str = "") -> Row:
    """Return a record whose values are text, numbers, truth values or None."""
    flat: Row = {}
    for key, value in record.items():
        if isinstance(value, dict) and value:
            flat |= flattened(value, f"{prefix}{key}.")
        elif isinstance(value, list | dict):
            flat[prefix + key] = json.dumps(value, ensure_ascii=False, allow_nan=False)
        else:
            flat[prefix + key] = value
    return flat


def _write_workbook(file: Path, path: Path, names: Sequence[str], rows: Sequence[Row]) -> None:
    if len(rows) >= MOST_ROWS or len(names) > MOST_COLUMNS:
        raise DataError(
            f"{path} would have {len(rows) + 1:,} rows and {len(names):,} columns, a workbook holds {MOST_ROWS:,} and "
            f"{MOST_COLUMNS:,}: write .csv or .jsonl"
        )
    for line, row in enumerate(rows, 2):
        for value in row.values():
            if isinstance(value, str) and len(value) > MOST_CHARACTERS:
                raise DataError(
                    f"{path}: row {line} has a text of {len(value):,} characters, a cell holds {MOST_CHARACTERS:,}: "
                    "write .csv or .jsonl"
                )
    workbook = Workbook(write_only=True)
    sheet = workbook.create_sheet("answers")

    def cell(value: Any) -> Any:
        if not isinstance(value, str):
            return value
        text = WriteOnlyCell(sheet, ILLEGAL_CHARACTERS_RE.sub("\ufffd", value))
        text.data_type = "s"  # also where it begins like a formula
        return text

    for row in ({name: name for name in names}, *rows):
        sheet.append([cell(row.get(name)) for name in names])
    workbook.save(file)
