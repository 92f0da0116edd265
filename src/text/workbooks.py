"""Readers of Excel workbooks: rows of cell texts with their row numbers."""

import io
import logging
import math
import re
import warnings
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from model_utils.errors import DataError, first_few, shorten
from model_utils.files import open_file
from src.text.cell_values import NumberedRows, index_of, reading_errors, text_of, without_midnight

logger = logging.getLogger(__name__)
ERROR: list[Any] = []  # value of a cell whose formula failed: not text
MOST_TITLES = 20  # sheets listed in an error message
_FORM = "an Excel workbook"
_ESCAPED = re.compile("_x(00[01][0-9A-F]|005F)_")  # control characters and _ in .xlsx
_CHINESE_DATE_FORMATS = dict.fromkeys([*range(27, 37), *range(50, 59)], "yyyy-mm-dd")  # built into Excel, not openpyxl


# --- .xlsx ---


def read_xlsx(path: Path, sheet_name: str | None = None) -> NumberedRows:
    """Yield number and cell texts of the rows of a sheet.

    Args:
        sheet_name: as in sheet_index; None: the caller has no option to name one.

    Raises:
        DataError: the file is not a workbook, is damaged or lacks the sheet.
    """
    from openpyxl import load_workbook
    from openpyxl.styles.numbers import BUILTIN_FORMATS

    BUILTIN_FORMATS.update(_CHINESE_DATE_FORMATS)
    with reading_errors(path, _FORM), open_file(path) as file:
        with warnings.catch_warnings(action="ignore"):  # about styles and extensions, which are not read
            sheets = load_workbook(file, read_only=True, data_only=True, keep_links=False).worksheets
        if not sheets:
            raise DataError(f"{path} has no worksheet, or is Strict Open XML; save it as an ordinary .xlsx file")
        for sheet in sheets:
            sheet.reset_dimensions()  # some programs write wrong ones
        titles = [sheet.title for sheet in sheets]
        visible = [sheet.sheet_state == "visible" for sheet in sheets]
        sheet = sheets[sheet_index(path, titles, visible, sheet_name)]
        other_titles = [other.title for other in sheets if other is not sheet and _has_data(other)]
        check_sheets(path, sheet.title, _has_data(sheet), other_titles, sheet_name)
        for row_number, cells in enumerate(sheet.iter_rows(), 1):
            yield row_number, [text_of(_xlsx_value(cell)) for cell in cells]


def _has_data(sheet: Any) -> bool:
    return any(cell.value is not None for cells in sheet.iter_rows() for cell in cells)


def _xlsx_value(cell: Any) -> Any:
    value = cell.value
    if cell.data_type == "e":
        return ERROR
    if isinstance(value, float):
        return visible_number(value)
    if isinstance(value, str):
        return _ESCAPED.sub(lambda match: chr(int(match[1], 16)), value)
    return without_midnight(value)


# --- .xls ---


def read_xls(path: Path, sheet_name: str | None = None) -> NumberedRows:
    """Yield number and cell texts of the rows of a sheet, as read_xlsx does."""
    import xlrd
    from openpyxl.utils.datetime import MAC_EPOCH, WINDOWS_EPOCH

    with reading_errors(path, _FORM):
        with open_file(path) as file:
            content = file.read()
        book = xlrd.open_workbook(file_contents=content, logfile=io.StringIO(), ragged_rows=True)
        epoch = MAC_EPOCH if book.datemode else WINDOWS_EPOCH
        sheets = book.sheets()
        titles = [sheet.name for sheet in sheets]
        sheet = sheets[sheet_index(path, titles, [not sheet.visibility for sheet in sheets], sheet_name)]
        other_titles = [other.name for other in sheets if other is not sheet and other.nrows]
        check_sheets(path, sheet.name, bool(sheet.nrows), other_titles, sheet_name)
        for row_number, cells in enumerate(sheet.get_rows(), 1):
            yield row_number, [text_of(_xls_value(cell, epoch)) for cell in cells]


def _xls_value(cell: Any, epoch: datetime) -> Any:
    """Return a cell's value in the types of read_xlsx."""
    import xlrd
    from openpyxl.utils.datetime import from_excel

    if cell.ctype == xlrd.XL_CELL_ERROR:
        return ERROR
    if cell.ctype == xlrd.XL_CELL_BOOLEAN:
        return bool(cell.value)
    if cell.ctype == xlrd.XL_CELL_DATE:
        try:
            return without_midnight(from_excel(cell.value, epoch))
        except (OverflowError, ValueError):  # no date has this number
            return ERROR
    return visible_number(cell.value) if cell.ctype == xlrd.XL_CELL_NUMBER else cell.value


# --- both ---


def visible_number(value: float) -> Any:
    """Return a number rounded to the 15 digits that Excel shows (it stores 0.1 + 0.2 as 0.30000000000000004)."""
    return float(f"{value:.15g}") if math.isfinite(value) else ERROR


def sheet_index(path: Path, titles: Sequence[str], visible: Sequence[bool], sheet_name: str | None) -> int:
    """Return the index of a sheet, by title or by number of the visible ones from 1; by default the first of them."""
    visible_indices = [index for index, is_visible in enumerate(visible) if is_visible] or [0]
    if not sheet_name:
        return visible_indices[0]
    if sheet_name in titles:
        return titles.index(sheet_name)
    if (position := index_of([titles[index] for index in visible_indices], sheet_name)) < 0:
        found = first_few(map(shorten, titles), MOST_TITLES)
        raise DataError(f"{path} has no sheet {shorten(sheet_name)}, it has {len(titles)}: {found}")
    return visible_indices[position]


def check_sheets(path: Path, title: str, has_data: bool, other_titles: list[str], sheet_name: str | None) -> None:
    """Raise DataError if the sheet to read is empty and others are not; warn if others have data, too."""
    others = first_few(map(shorten, other_titles))
    advice = "put that first and show it" if sheet_name is None else "name it with --sheet"
    if other_titles and not has_data:
        which = "" if sheet_name else "first visible "
        raise DataError(f"{path}: its {which}sheet {shorten(title)} is empty, the data are in {others}; {advice}")
    if other_titles and not sheet_name:
        logger.warning(f"{path}: only its first visible sheet {shorten(title)} is read; {others} also hold data")
