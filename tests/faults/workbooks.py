"""Workbooks made from raw XML, as openpyxl does not write them."""

import zipfile
from collections.abc import Mapping
from pathlib import Path

MAIN = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
TYPE = "application/vnd.openxmlformats-officedocument.spreadsheetml."
OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
HEADER = (
    '<row r="1"><c r="A1" t="inlineStr"><is><t>text</t></is></c><c r="B1" t="inlineStr"><is><t>label</t></is></c></row>'
)
CELLS = '<c r="A{0}" t="inlineStr"><is><t>good{0}</t></is></c><c r="B{0}"><v>1</v></c>'


def row(number: int) -> str:
    """Return a row with the text good<number> and the label 1."""
    return f'<row r="{number}">{CELLS.format(number)}</row>'


def rows_of(*cells: str) -> str:
    """Return a header and rows from 2 on, each with these cells."""
    rows = [f'<row r="{number}">{cell}</row>' for number, cell in enumerate(cells, 2)]
    return HEADER + "".join(rows)


def sheet_xml(rows: str, before: str = "") -> str:
    """Return a worksheet's XML."""
    return f'<worksheet xmlns="{MAIN}">{before}<sheetData>{rows}</sheetData></worksheet>'


def workbook_parts(
    sheets: Mapping[str, str],
    strings: str | None = None,
    styles: str = "",
    states: Mapping[str, str] = {},
    book: str = "",
) -> dict[str, str]:
    """Return the parts of a workbook by name.

    Args:
        sheets: by title, the XML of worksheets.
        strings: what is in the table of shared strings; None: there is none.
        styles: what is in the styles.
        states: hidden or veryHidden, by title.
        book: elements in front of the list of sheets.
    """
    parts = {"xl/styles.xml": f'<styleSheet xmlns="{MAIN}">{styles}</styleSheet>'}
    types = f'<Override PartName="/xl/book.xml" ContentType="{TYPE}sheet.main+xml"/>'
    relations = [f'<Relationship Id="s" Type="{OFFICE}/styles" Target="styles.xml"/>']
    listed = []
    for number, (title, xml) in enumerate(sheets.items(), 1):
        parts[f"xl/sheet{number}.xml"] = xml
        relations.append(f'<Relationship Id="w{number}" Type="{OFFICE}/worksheet" Target="/xl/sheet{number}.xml"/>')
        state = states.get(title, "visible")
        listed.append(f'<sheet name="{title}" sheetId="{number}" state="{state}" r:id="w{number}"/>')
    if strings is not None:
        relations.append(f'<Relationship Id="t" Type="{OFFICE}/sharedStrings" Target="strings.xml"/>')
        types += f'<Override PartName="/xl/strings.xml" ContentType="{TYPE}sharedStrings+xml"/>'
        parts["xl/strings.xml"] = f'<sst xmlns="{MAIN}">{strings}</sst>'
    parts["xl/_rels/book.xml.rels"] = f"<Relationships>{''.join(relations)}</Relationships>"
    parts["[Content_Types].xml"] = f"<Types>{types}</Types>"
    sheets_xml = f"<sheets>{''.join(listed)}</sheets>"
    parts["xl/book.xml"] = f'<workbook xmlns="{MAIN}" xmlns:r="{OFFICE}">{book}{sheets_xml}</workbook>'
    return parts


def write_workbook(path: Path, parts: Mapping[str, str]) -> Path:
    """Write parts as a workbook."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, xml in parts.items():
            archive.writestr(name, xml)
    return path
