"""Workbooks made from raw XML, as no library writes them: parts, rows and cells missing, repeated, out of order."""

import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

MAIN = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
STRICT = {
    MAIN: "http://purl.oclc.org/ooxml/spreadsheetml/main",
    OFFICE: "http://purl.oclc.org/ooxml/officeDocument/relationships",
}
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


def sheet_xml(rows: str, before: str = "", behind: str = "") -> str:
    """Return a worksheet's XML."""
    return f'<worksheet xmlns="{MAIN}">{before}<sheetData>{rows}</sheetData>{behind}</worksheet>'


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
    parts = {
        "_rels/.rels": f'<Relationships><Relationship Id="b" Type="{OFFICE}/officeDocument" Target="xl/book.xml"/>'
        "</Relationships>",
        "xl/styles.xml": f'<styleSheet xmlns="{MAIN}">{styles}</styleSheet>',
    }
    relations = [f'<Relationship Id="s" Type="{OFFICE}/styles" Target="styles.xml"/>']
    listed = []
    for number, (title, xml) in enumerate(sheets.items(), 1):
        parts[f"xl/sheet{number}.xml"] = xml
        relations.append(f'<Relationship Id="w{number}" Type="{OFFICE}/worksheet" Target="/xl/sheet{number}.xml"/>')
        state = states.get(title, "visible")
        listed.append(f'<sheet name="{title}" sheetId="{number}" state="{state}" r:id="w{number}"/>')
    if strings is not None:
        relations.append(f'<Relationship Id="t" Type="{OFFICE}/sharedStrings" Target="strings.xml"/>')
        parts["xl/strings.xml"] = f'<sst xmlns="{MAIN}">{strings}</sst>'
    parts["xl/_rels/book.xml.rels"] = f"<Relationships>{''.join(relations)}</Relationships>"
    sheets_xml = f"<sheets>{''.join(listed)}</sheets>"
    parts["xl/book.xml"] = f'<workbook xmlns="{MAIN}" xmlns:r="{OFFICE}">{book}{sheets_xml}</workbook>'
    return parts


def as_strict(parts: Mapping[str, str]) -> dict[str, str]:
    """Return the parts in the namespaces of "Strict Open XML"."""
    for transitional, strict in STRICT.items():
        parts = {name: xml.replace(transitional, strict) for name, xml in parts.items()}
    return parts


def write_workbook(path: Path, parts: Mapping[str, str], repeated: Sequence[str] = ()) -> Path:
    """Write parts, some of them twice, as a workbook."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in (*parts, *repeated):
            archive.writestr(name, parts[name])
    return path


def write_bomb(path: Path, parts: Mapping[str, str], part: str, megabytes: int, filling: bytes) -> Path:
    """Write a workbook of which a part has as many megabytes of filling where its XML has a *."""
    before, behind = parts[part].encode().split(b"*")
    piece = filling * ((1 << 20) // len(filling))
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name in parts.keys() - {part}:
            archive.writestr(name, parts[name])
        with archive.open(part, "w") as target:
            target.write(before)
            for _ in range(megabytes):
                target.write(piece)
            target.write(behind)
    return path


def claim_size(path: Path, part: str, size: int) -> None:
    """Write another unpacked size of a part into the headers of a workbook."""
    content = bytearray(path.read_bytes())
    for signature, size_at, name_at in ((b"PK\3\4", 22, 30), (b"PK\1\2", 24, 46)):
        start = content.find(signature)
        while content[start + name_at : start + name_at + len(part)] != part.encode():
            start = content.index(signature, start + 1)
        content[start + size_at : start + size_at + 4] = size.to_bytes(4, "little")
    path.write_bytes(content)
