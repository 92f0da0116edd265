"""Excel workbooks -> rows of cell values with their numbers.

An .xlsx file is read as a stream of its XML: openpyxl's streaming mode drops rows and cells that are out of order, its
other mode holds all sheets in memory. Only what Excel itself could have written is read, all else is a DataError.
"""

import contextlib
import io
import logging
import math
import posixpath
import re
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, time
from pathlib import Path
from typing import Any
from xml.parsers import expat

from model_utils.errors import DataError, first_few, shorten
from model_utils.files import open_file

logger = logging.getLogger(__name__)
ERROR: list[Any] = []  # the value of a cell whose formula has failed or was never computed: no text
MOST_ROWS = 1_048_576  # of a sheet in Excel
MOST_COLUMNS = 16_384
ALWAYS_UNPACKED = 32 << 20  # bytes that the parts of any workbook may have together
MOST_UNPACKED = 1 << 30  # bytes that they may have at most, in large files
MOST_SHRUNK = 50  # times that a large file may be packed; Excel's sheets shrink to a tenth
LONGEST_FORMAT = 1000  # characters of a number format, whose test takes the square of them; Excel allows 255
DEEPEST = 100  # elements inside each other, of which expat keeps the names
CHUNK = 1 << 16  # bytes parsed at once
OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
SAVE_ANEW = "open it in Excel or LibreOffice and save it anew"
_ESCAPED = re.compile("_x(00[01][0-9A-F]|005F)_")  # control characters and _ in .xlsx
_REFERENCE = re.compile("([A-Z]{1,3})([1-9][0-9]*)")
_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")  # one way to match: no backtracking
_TRUTH_VALUES = {"0": False, "false": False, "1": True, "true": True}
_CHINESE_DATE_FORMATS = dict.fromkeys([*range(27, 37), *range(50, 59)], "yyyy-mm-dd")  # built into Excel, not openpyxl
Event = tuple[str, dict[str, str] | None, str]  # local tag; attributes, None where the element ends; its text then
NumberedCells = Iterator[tuple[int, list[Any]]]


class _Fault(ValueError):
    """A sentence's rest about a workbook that Excel would call damaged."""


@dataclass
class _Sheet:
    """A worksheet of an .xlsx file."""

    title: str
    part: str
    is_visible: bool


@dataclass
class _Values:
    """What the cells of a workbook refer to.

    Attributes:
        date_formats: by the style of a cell that holds a date or time, whether it is a duration.
    """

    epoch: datetime
    strings: list[str] = field(default_factory=list)
    date_formats: dict[int, bool] = field(default_factory=dict)

    def value_of(self, kind: str, style: str, text: str) -> Any:
        """Return the value of a cell that is not empty."""
        if kind == "e":
            return ERROR
        if kind == "n":
            return self._number(style, text)
        if kind == "s":
            if not text.strip().isdecimal() or int(text) >= len(self.strings):
                raise _Fault(f"refers to text {shorten(text)} of a list of {len(self.strings)}")
            return self.strings[int(text)]
        if kind in ("str", "inlineStr"):
            return _unescape(text)
        if kind == "b" and text.strip() in _TRUTH_VALUES:
            return _TRUTH_VALUES[text.strip()]
        if kind == "d":
            from openpyxl.utils.datetime import from_ISO8601

            return _without_midnight(from_ISO8601(text))
        raise _Fault(f"holds {shorten(text)} in a cell of type {shorten(kind)}")

    def _number(self, style: str, text: str) -> Any:
        text = text.strip()
        if not _NUMBER.fullmatch(text):
            raise _Fault(f"holds {shorten(text)} in a cell for numbers")
        is_duration = self.date_formats.get(int(style))
        if is_duration is not None:
            return date_value(float(text), self.epoch, is_duration)
        return int(text) if text.lstrip("+-").isdecimal() else visible_number(float(text))


def visible_number(value: float) -> Any:
    """Return a number with the 15 digits that Excel shows: it stores 0.1 + 0.2 as 0.30000000000000004."""
    return float(f"{value:.15g}") if math.isfinite(value) else ERROR


def date_value(days: float, epoch: datetime, is_duration: bool = False) -> Any:
    """Return the date or time that a number of days stands for, ERROR where there is none."""
    from openpyxl.utils.datetime import from_excel

    try:
        return _without_midnight(from_excel(days, epoch, is_duration))
    except (OverflowError, ValueError):
        return ERROR


def _without_midnight(value: Any) -> Any:
    return value.date() if isinstance(value, datetime) and value.time() == time.min else value


def _unescape(text: str) -> str:
    return _ESCAPED.sub(lambda match: chr(int(match[1], 16)), text) if "_x0" in text else text


# --- .xlsx ---


def read_xlsx(path: Path) -> NumberedCells:
    """Yield the number and the values of the rows of the first visible sheet that are there.

    Raises:
        DataError: the file is no workbook or damaged; names sheet and row.
    """
    with workbook_errors(path), open_file(path) as file:
        if file.read(len(OLE)) == OLE:
            raise _Fault("is locked with a password, or is an .xls file: remove the password, or rename it")
        with zipfile.ZipFile(file) as archive:
            _check_archive(archive)
            sheets, values = _open_book(archive)
            sheet = next((sheet for sheet in sheets if sheet.is_visible), sheets[0])
            other_titles = [other.title for other in sheets if other is not sheet and _has_data(archive, other)]
            check_sheets(path, sheet.title, _has_data(archive, sheet), other_titles)
            _warn_of_merged_cells(path, archive, sheet)
            yield from _sheet_rows(path, archive, sheet, values)


def _check_archive(archive: zipfile.ZipFile) -> None:
    """Raise _Fault before anything is unpacked that would fill the memory, or that is there twice."""
    parts = archive.infolist()
    unpacked = sum(part.file_size for part in parts)
    allowed = min(MOST_UNPACKED, ALWAYS_UNPACKED + MOST_SHRUNK * sum(part.compress_size for part in parts))
    if unpacked > allowed:
        raise _Fault(f"would unpack to {unpacked >> 20:,} MB, allowed are {allowed >> 20:,} MB; save its sheet as .csv")
    names = set()
    for part in parts:
        if part.filename in names:
            raise _Fault(f"is damaged: it holds {shorten(part.filename)} twice; {SAVE_ANEW}")
        # zipfile unpacks these two piece by piece alone, and a workbook has no others.
        if part.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise _Fault(f"is damaged: {shorten(part.filename)} is packed as no workbook is; {SAVE_ANEW}")
        names.add(part.filename)


def _events(archive: zipfile.ZipFile, part: str) -> Iterator[Event]:
    """Yield the starts and ends of a part's elements, of which it keeps none; _Fault if it is not there."""
    events: list[Event] = []
    texts: list[str] = []
    depth = 0

    def start(tag: str, attributes: dict[str, str]) -> None:
        nonlocal depth
        depth += 1
        if depth > DEEPEST:
            raise _Fault(f"is damaged: {shorten(part)} has more than {DEEPEST} elements inside each other")
        texts.clear()
        events.append((tag.rpartition(":")[2], attributes, ""))

    def end(tag: str) -> None:
        nonlocal depth
        depth -= 1
        events.append((tag.rpartition(":")[2], None, "".join(texts)))
        texts.clear()

    def refuse_entities(*_: Any) -> None:
        raise _Fault("is damaged: it declares a document type")

    parser = expat.ParserCreate()
    parser.buffer_text = True
    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.CharacterDataHandler = texts.append
    parser.StartDoctypeDeclHandler = refuse_entities
    if part not in archive.namelist():
        raise _Fault(f"is damaged: it lacks {shorten(part)}; {SAVE_ANEW}")
    with archive.open(part) as source:
        while chunk := source.read(CHUNK):
            parser.Parse(chunk)
            yield from events
            events.clear()
    parser.Parse(b"", True)
    yield from events


def _relations(archive: zipfile.ZipFile, part: str) -> dict[str, tuple[str, str]]:
    """Return the kinds and names of the parts that a part refers to, by their ids in it."""
    folder, file_name = posixpath.split(part)
    relations = {}
    for tag, attributes, _ in _events(archive, posixpath.join(folder, "_rels", f"{file_name}.rels")):
        if tag == "Relationship" and attributes is not None:
            name = attributes["Id"]
            if name in relations:
                raise _Fault(f"is damaged: {shorten(part)} has the relation {shorten(name)} twice; {SAVE_ANEW}")
            target = posixpath.normpath(posixpath.join("/", folder, attributes["Target"])).lstrip("/")
            relations[name] = (posixpath.basename(attributes["Type"]), target)
    return relations


def _open_book(archive: zipfile.ZipFile) -> tuple[list[_Sheet], _Values]:
    from openpyxl.utils.datetime import MAC_EPOCH, WINDOWS_EPOCH

    book = dict(_relations(archive, "").values())["officeDocument"]
    relations = _relations(archive, book)
    sheets = []
    values = _Values(WINDOWS_EPOCH)
    for tag, attributes, _ in _events(archive, book):
        if tag == "workbookPr" and attributes and _TRUTH_VALUES[attributes.get("date1904", "0")]:
            values.epoch = MAC_EPOCH
        elif tag == "sheet" and attributes:
            local_names = {name.rpartition(":")[2]: value for name, value in attributes.items()}
            kind, part = relations[local_names["id"]]
            if kind == "worksheet":  # not a chart, for one
                sheets.append(_Sheet(attributes["name"], part, attributes.get("state", "visible") == "visible"))
    if not sheets:
        raise _Fault("has no sheet with cells")
    parts = dict(relations.values())
    if parts.get("sharedStrings") in archive.namelist():
        values.strings = _shared_strings(archive, parts["sharedStrings"])
    if parts.get("styles") in archive.namelist():
        values.date_formats = _date_formats(archive, parts["styles"])
    return sheets, values


def _shared_strings(archive: zipfile.ZipFile, part: str) -> list[str]:
    strings: list[str] = []
    pieces: list[str] = []
    is_phonetic = False
    for tag, attributes, text in _events(archive, part):
        if tag == "rPh":  # how to pronounce the text
            is_phonetic = attributes is not None
        elif attributes is None and tag == "t" and not is_phonetic:
            pieces.append(text)
        elif attributes is None and tag == "si":
            strings.append(_unescape("".join(pieces)))
            pieces.clear()
    return strings


def _date_formats(archive: zipfile.ZipFile, part: str) -> dict[int, bool]:
    """Return whether it is one of durations, for each cell style with a format of dates or times."""
    from openpyxl.styles.numbers import BUILTIN_FORMATS, is_date_format, is_timedelta_format

    formats = {str(number): code for number, code in (_CHINESE_DATE_FORMATS | BUILTIN_FORMATS).items()}
    durations = {}
    style = 0
    is_cell_format = False
    for tag, attributes, _ in _events(archive, part):
        if tag == "cellXfs":
            is_cell_format = attributes is not None
        elif tag == "numFmt" and attributes and not style:  # later ones are those of conditions
            if len(attributes["formatCode"]) > LONGEST_FORMAT:
                raise _Fault(f"is damaged: {shorten(part)} has a number format that is too long; {SAVE_ANEW}")
            formats[attributes["numFmtId"]] = attributes["formatCode"]
        elif tag == "xf" and attributes is not None and is_cell_format:
            code = formats.get(attributes.get("numFmtId", "0"))
            if is_date_format(code):
                durations[style] = is_timedelta_format(code)
            style += 1
    return durations


def _has_data(archive: zipfile.ZipFile, sheet: _Sheet) -> bool:
    return any(text for tag, _, text in _events(archive, sheet.part) if tag in ("v", "t", "f"))


def _warn_of_merged_cells(path: Path, archive: zipfile.ZipFile, sheet: _Sheet) -> None:
    # They stand behind the rows, where a row that is empty because of them may have ended the run.
    ranges = [found["ref"] for tag, found, _ in _events(archive, sheet.part) if tag == "mergeCell" and found]
    if ranges:
        logger.warning(
            f"{path}: sheet {shorten(sheet.title)} has merged cells ({first_few(ranges)}), of which only the first has "
            "the text and the others are empty; undo the merging and fill them"
        )


def _sheet_rows(path: Path, archive: zipfile.ZipFile, sheet: _Sheet, values: _Values) -> NumberedCells:
    """Yield the rows of a sheet; DataError names the row if it or a cell is damaged, repeated or out of order."""
    number = 0
    is_warned = False
    try:
        row: list[Any] = []
        for tag, attributes, text in _events(archive, sheet.part):
            if tag == "row":
                if attributes is None:
                    yield number, row
                    continue
                previous = number
                number = int(attributes.get("r", number + 1))
                if not previous < number <= MOST_ROWS:
                    raise _Fault(f"comes after row {previous}: rows must be in order and have {MOST_ROWS:,} at most")
                row = []
            elif tag == "c" and attributes is not None:
                _fill_up_to(row, number, attributes.get("r"))
                cell = attributes
                pieces: list[str] = []
                has_formula = is_phonetic = False
            elif tag == "rPh":
                is_phonetic = attributes is not None
            elif attributes is None and tag == "f":
                has_formula = True
            elif tag in ("v", "is") and attributes is not None:
                if pieces:
                    raise _Fault("has a cell with two values")
            elif attributes is None and (tag == "v" or (tag == "t" and not is_phonetic)):
                pieces.append(text)
            elif tag == "c":
                value = "".join(pieces)
                kind = cell.get("t", "n")
                if value:
                    row[-1] = values.value_of(kind, cell.get("s", "0"), value)
                elif has_formula and kind != "str":  # the result of one that is "" has that type
                    row[-1] = ERROR
                if row[-1] is ERROR and not is_warned:
                    is_warned = True
                    logger.warning(
                        f"{path}: row {number} of sheet {shorten(sheet.title)} holds an error or a formula without a "
                        f"stored value, which is no text; {SAVE_ANEW}"
                    )
    except _Fault as error:
        raise DataError(f"{path}: row {number} of sheet {shorten(sheet.title)} {error}; {SAVE_ANEW}") from None
    except Exception as error:
        raise DataError(f"{path}: row {number} of sheet {shorten(sheet.title)} is damaged; {SAVE_ANEW}") from error


def _fill_up_to(row: list[Any], number: int, reference: str | None) -> None:
    """Append empty cells to a row up to one, by default the next one."""
    from openpyxl.utils import column_index_from_string

    column = len(row) + 1
    if reference is not None:
        match = _REFERENCE.fullmatch(reference.upper())
        if not match or int(match[2]) != number or column_index_from_string(match[1]) < column:
            raise _Fault(f"has the cell {shorten(reference)} after {len(row)} column(s): cells must be in order")
        column = column_index_from_string(match[1])
    if column > MOST_COLUMNS:
        raise _Fault(f"has more than {MOST_COLUMNS:,} columns")
    row.extend([""] * (column - len(row)))


# --- .xls ---


def read_xls(path: Path) -> NumberedCells:
    """Yield the number and the values of the rows of the first visible sheet, as read_xlsx does."""
    import xlrd
    from openpyxl.utils.datetime import MAC_EPOCH, WINDOWS_EPOCH

    with workbook_errors(path):
        with open_file(path) as file:
            content = file.read()
        book = xlrd.open_workbook(file_contents=content, logfile=io.StringIO())
        epoch = MAC_EPOCH if book.datemode else WINDOWS_EPOCH
        sheets = book.sheets()
        sheet = next((sheet for sheet in sheets if not sheet.visibility), sheets[0])
        other_titles = [other.name for other in sheets if other is not sheet and other.nrows]
        check_sheets(path, sheet.name, bool(sheet.nrows), other_titles)
        for number, cells in enumerate(sheet.get_rows(), 1):
            yield number, [_xls_value(cell, epoch) for cell in cells]


def _xls_value(cell: Any, epoch: datetime) -> Any:
    """Return a cell's value as read_xlsx gives it."""
    import xlrd

    if cell.ctype == xlrd.XL_CELL_ERROR:
        return ERROR
    if cell.ctype == xlrd.XL_CELL_BOOLEAN:
        return bool(cell.value)
    if cell.ctype == xlrd.XL_CELL_DATE:
        return date_value(cell.value, epoch)
    return visible_number(cell.value) if cell.ctype == xlrd.XL_CELL_NUMBER else cell.value


# --- both ---


def check_sheets(path: Path, title: str, has_data: bool, other_titles: list[str]) -> None:
    """Raise DataError if a sheet is empty and others are not; warn of others that hold something, too."""
    others = first_few([shorten(other) for other in other_titles])
    if other_titles and not has_data:
        raise DataError(
            f"{path}: its first sheet {shorten(title)} is empty, the data are in {others}; move that to the front"
        )
    if other_titles:
        logger.warning(f"{path}: only its first sheet {shorten(title)} is read, {others} hold data, too")


@contextlib.contextmanager
def workbook_errors(path: Path) -> Iterator[None]:
    """Turn the many kinds of errors that a damaged workbook gives into sentences."""
    import xlrd

    try:
        yield
    except DataError:
        raise
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error
    except _Fault as error:
        raise DataError(f"{path} {error}") from None
    except Exception as error:
        reason = f" ({str(error)[:200]})" if isinstance(error, xlrd.XLRDError) else ""
        raise DataError(f"{path} is not an Excel workbook, or is damaged or locked{reason}; {SAVE_ANEW}") from error
