"""Readers of Excel workbooks: rows of cell texts with their row numbers.

The XML of an .xlsx file is parsed as a stream, because openpyxl's streaming mode drops rows and cells that are out of
order and its other mode holds all sheets in memory. A file that Excel could not have written is a DataError.
"""

import contextlib
import io
import logging
import math
import re
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from model_utils.errors import DataError, first_few, shorten
from model_utils.files import open_file
from src.text.cell_values import NumberedRows, Row, index_of, text_of, without_midnight
from src.text.workbook_archive import SAVE_ANEW, Fault, check_archive, read_events, read_relations, repetition_fault

logger = logging.getLogger(__name__)
ERROR: list[Any] = []  # value of a cell whose formula failed or was never computed: not text
MAX_ROWS = 1_048_576  # Excel's limits for a sheet
MAX_COLUMNS = 16_384
MOST_TITLES = 20  # sheets listed in an error message
LONGEST_FORMAT = 1000  # characters of a number format, whose test takes quadratic time; Excel allows 255
OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
_ESCAPED = re.compile("_x(00[01][0-9A-F]|005F)_")  # control characters and _ in .xlsx
_REFERENCE = re.compile("([A-Z]{1,3})([1-9][0-9]*)")
_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")  # one way to match: no backtracking
_BOOLEANS = {"0": False, "false": False, "1": True, "true": True}
_CHINESE_DATE_FORMATS = dict.fromkeys([*range(27, 37), *range(50, 59)], "yyyy-mm-dd")  # built into Excel, not openpyxl


@dataclass
class _Sheet:
    """Worksheet of an .xlsx file."""

    title: str
    part: str
    is_visible: bool


@dataclass
class _CellDecoder:
    """Decoder of cell values, with the workbook's shared strings and date formats.

    Attributes:
        date_formats: cell styles for dates and times -> whether the style is a duration.
    """

    epoch: datetime
    strings: list[str] = field(default_factory=list)
    date_formats: dict[int, bool] = field(default_factory=dict)

    def value_of(self, cell_type: str, style: str, text: str) -> Any:
        """Return the value of a cell that is not empty."""
        if cell_type == "e":
            return ERROR
        if cell_type == "n":
            return self._number(style, text)
        if cell_type == "s":
            if not text.strip().isdecimal() or int(text) >= len(self.strings):
                raise Fault(f"refers to shared string {shorten(text)} of {len(self.strings)}")
            return self.strings[int(text)]
        if cell_type in ("str", "inlineStr"):
            return _unescape(text)
        if cell_type == "b" and text.strip() in _BOOLEANS:
            return _BOOLEANS[text.strip()]
        if cell_type == "d":
            from openpyxl.utils.datetime import from_ISO8601

            return without_midnight(from_ISO8601(text))
        raise Fault(f"holds {shorten(text)} in a cell of type {shorten(cell_type)}")

    def _number(self, style: str, text: str) -> Any:
        text = text.strip()
        if not _NUMBER.fullmatch(text):
            raise Fault(f"holds {shorten(text)} in a cell for numbers")
        is_duration = self.date_formats.get(int(style))
        if is_duration is not None:
            return date_value(float(text), self.epoch, is_duration)
        return int(text) if text.lstrip("+-").isdecimal() else visible_number(float(text))


def visible_number(value: float) -> Any:
    """Return a number rounded to the 15 digits that Excel shows (it stores 0.1 + 0.2 as 0.30000000000000004)."""
    return float(f"{value:.15g}") if math.isfinite(value) else ERROR


def date_value(days: float, epoch: datetime, is_duration: bool = False) -> Any:
    """Return the date or time of a serial number in days, ERROR if it is out of range."""
    from openpyxl.utils.datetime import from_excel

    try:
        return without_midnight(from_excel(days, epoch, is_duration))
    except (OverflowError, ValueError):
        return ERROR


def _unescape(text: str) -> str:
    return _ESCAPED.sub(lambda match: chr(int(match[1], 16)), text) if "_x0" in text else text


# --- .xlsx ---


def read_xlsx(path: Path, sheet_name: str | None = None) -> NumberedRows:
    """Yield number and cell texts of the rows of a sheet.

    Args:
        sheet_name: as in sheet_index; None: the caller has no option to name one.

    Raises:
        DataError: the file is not a workbook, is damaged or lacks the sheet; names sheet and row.
    """
    with workbook_errors(path), open_file(path) as file:
        if file.read(len(OLE)) == OLE:
            raise Fault("is locked with a password, or is an .xls file: remove the password, or rename it")
        with zipfile.ZipFile(file) as archive:
            check_archive(archive)
            sheets, decoder = _open_book(archive)
            titles = [sheet.title for sheet in sheets]
            sheet = sheets[sheet_index(path, titles, [sheet.is_visible for sheet in sheets], sheet_name)]
            has_data = {part: _has_data(archive, part) for part in {other.part for other in sheets}}
            other_titles = [other.title for other in sheets if other is not sheet and has_data[other.part]]
            check_sheets(path, sheet.title, has_data[sheet.part], other_titles, sheet_name)
            _warn_of_merged_cells(path, archive, sheet)
            yield from _sheet_rows(path, archive, sheet, decoder)


def _open_book(archive: zipfile.ZipFile) -> tuple[list[_Sheet], _CellDecoder]:
    from openpyxl.utils.datetime import MAC_EPOCH, WINDOWS_EPOCH

    book = read_relations(archive, "")[1]["officeDocument"]
    relations, parts = read_relations(archive, book)
    sheets = []
    decoder = _CellDecoder(WINDOWS_EPOCH)
    for tag, attributes, _ in read_events(archive, book):
        if tag == "workbookPr" and attributes and _BOOLEANS[attributes.get("date1904", "0")]:
            decoder.epoch = MAC_EPOCH
        elif tag == "sheet" and attributes:
            [relation] = [value for name, value in attributes.items() if name.rpartition(":")[2] == "id"]
            relation_type, part = relations[relation]
            if relation_type == "worksheet":  # others are charts and macros
                sheets.append(_Sheet(attributes["name"], part, attributes.get("state", "visible") == "visible"))
    if not sheets:
        raise Fault("has no worksheet")
    if parts.get("sharedStrings") in archive.namelist():
        decoder.strings = _shared_strings(archive, parts["sharedStrings"])
    if parts.get("styles") in archive.namelist():
        decoder.date_formats = _date_formats(archive, parts["styles"])
    return sheets, decoder


def _shared_strings(archive: zipfile.ZipFile, part: str) -> list[str]:
    strings: list[str] = []
    pieces: list[str] = []
    is_phonetic = False
    for tag, attributes, text in read_events(archive, part):
        if tag == "rPh":  # pronunciation hints, not part of the text
            is_phonetic = attributes is not None
        elif attributes is None and tag == "t" and not is_phonetic:
            pieces.append(text)
        elif attributes is None and tag == "si":
            strings.append(_unescape("".join(pieces)))
            pieces.clear()
    return strings


def _date_formats(archive: zipfile.ZipFile, part: str) -> dict[int, bool]:
    """Return the cell styles for dates and times -> whether the style is a duration."""
    from openpyxl.styles.numbers import BUILTIN_FORMATS, is_date_format, is_timedelta_format

    formats: dict[str, str] = {}
    cell_formats: list[str] = []
    is_cell_format = False
    for tag, attributes, _ in read_events(archive, part):
        if tag == "cellXfs":
            is_cell_format = attributes is not None
        elif tag == "numFmt" and attributes and not cell_formats:  # later ones belong to conditional formats
            code = attributes["formatCode"]
            if len(code) > LONGEST_FORMAT:
                raise Fault(f"is damaged: {shorten(part)} has a number format that is too long; {SAVE_ANEW}")
            if formats.setdefault(attributes["numFmtId"], code) != code:
                raise repetition_fault(part, f"number format {attributes['numFmtId']}")
        elif tag == "xf" and attributes is not None and is_cell_format:
            cell_formats.append(attributes.get("numFmtId", "0"))
    builtin = {str(format_id): code for format_id, code in (_CHINESE_DATE_FORMATS | BUILTIN_FORMATS).items()}
    used = {format_id: code for format_id, code in (builtin | formats).items() if format_id in {*cell_formats}}
    durations = {format_id: is_timedelta_format(code) for format_id, code in used.items() if is_date_format(code)}
    return {style: durations[format_id] for style, format_id in enumerate(cell_formats) if format_id in durations}


def _has_data(archive: zipfile.ZipFile, part: str) -> bool:
    return any(text for tag, _, text in read_events(archive, part) if tag in ("v", "t", "f"))


def _warn_of_merged_cells(path: Path, archive: zipfile.ZipFile, sheet: _Sheet) -> None:
    # A separate pass: they are listed after the rows, and a row emptied by them may end the run before.
    ranges = [cells["ref"] for tag, cells, _ in read_events(archive, sheet.part) if tag == "mergeCell" and cells]
    if ranges:
        logger.warning(
            f"{path}: sheet {shorten(sheet.title)} has merged cells ({first_few(ranges)}), of which only the first has "
            "text; unmerge and fill them"
        )


def _sheet_rows(path: Path, archive: zipfile.ZipFile, sheet: _Sheet, decoder: _CellDecoder) -> NumberedRows:
    """Yield the rows of a sheet; raise DataError at a row that is damaged, repeated or out of order."""
    row_number = 0
    is_warned = False
    try:
        row: list[str | None] = []
        for tag, attributes, text in read_events(archive, sheet.part):
            if tag == "row":
                if attributes is None:
                    yield row_number, row
                    continue
                previous = row_number
                row_number = int(attributes.get("r", row_number + 1))
                if row_number <= previous or row_number > MAX_ROWS:
                    raise Fault(f"comes after row {previous}: rows must be in order and at most {MAX_ROWS:,}")
                row = []
            elif tag == "c" and attributes is not None:
                _fill_up_to(row, row_number, attributes.get("r"))
                cell = attributes
                pieces: list[str] = []
                has_formula = is_phonetic = False
            elif tag == "rPh":
                is_phonetic = attributes is not None
            elif attributes is None and tag == "f":
                has_formula = True
            elif tag in ("v", "is") and attributes is not None:
                if pieces:
                    raise Fault("has a cell with two values")
            elif attributes is None and (tag == "v" or (tag == "t" and not is_phonetic)):
                pieces.append(text)
            elif tag == "c":
                value = "".join(pieces)
                cell_type = cell.get("t", "n")
                if value:
                    row[-1] = text_of(decoder.value_of(cell_type, cell.get("s", "0"), value))
                elif has_formula and cell_type != "str":  # a formula with the result "" has this type
                    row[-1] = None
                if row[-1] is None and not is_warned:
                    is_warned = True
                    logger.warning(
                        f"{path}: row {row_number} of sheet {shorten(sheet.title)} holds an error or a formula without "
                        f"a stored value; {SAVE_ANEW}"
                    )
    except Fault as error:
        raise DataError(f"{path}: row {row_number} of sheet {shorten(sheet.title)} {error}; {SAVE_ANEW}") from None
    except Exception as error:
        raise DataError(f"{path}: row {row_number} of sheet {shorten(sheet.title)} is damaged; {SAVE_ANEW}") from error


def _fill_up_to(row: Row, row_number: int, reference: str | None) -> None:
    """Append empty cells to a row up to the referenced cell, by default one cell."""
    from openpyxl.utils import column_index_from_string

    column = len(row) + 1
    if reference is not None:
        match = _REFERENCE.fullmatch(reference.upper())
        if not match or int(match[2]) != row_number or column_index_from_string(match[1]) < column:
            raise Fault(f"has the cell {shorten(reference)} after {len(row)} column(s): cells must be in order")
        column = column_index_from_string(match[1])
    if column > MAX_COLUMNS:
        raise Fault(f"has more than {MAX_COLUMNS:,} columns")
    row.extend([""] * (column - len(row)))


# --- .xls ---


def read_xls(path: Path, sheet_name: str | None = None) -> NumberedRows:
    """Yield number and cell texts of the rows of a sheet, as read_xlsx does."""
    import xlrd
    from openpyxl.utils.datetime import MAC_EPOCH, WINDOWS_EPOCH

    with workbook_errors(path):
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

    if cell.ctype == xlrd.XL_CELL_ERROR:
        return ERROR
    if cell.ctype == xlrd.XL_CELL_BOOLEAN:
        return bool(cell.value)
    if cell.ctype == xlrd.XL_CELL_DATE:
        return date_value(cell.value, epoch)
    return visible_number(cell.value) if cell.ctype == xlrd.XL_CELL_NUMBER else cell.value


# --- both ---


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


@contextlib.contextmanager
def workbook_errors(path: Path) -> Iterator[None]:
    """Turn any error that a damaged workbook causes into a DataError."""
    import xlrd

    try:
        yield
    except DataError:
        raise
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error
    except Fault as error:
        raise DataError(f"{path} {error}") from None
    except Exception as error:
        reason = f" ({str(error)[:200]})" if isinstance(error, xlrd.XLRDError) else ""
        raise DataError(f"{path} is not an Excel workbook, or is damaged or locked{reason}; {SAVE_ANEW}") from error
