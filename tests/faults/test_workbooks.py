"""Workbooks as programs other than openpyxl write them: values, sheets and damage."""

import pytest
from openpyxl import Workbook
from openpyxl.chart import BarChart

from model_utils.errors import DataError
from src.text.text_tables import read_table
from tests.faults.workbooks import (
    CELLS,
    HEADER,
    OFFICE,
    row,
    rows_of,
    sheet_xml,
    workbook_parts,
    write_workbook,
)

TWO_ROWS = [(2, ["good2", "1"]), (3, ["good3", "1"])]
TEXT = '<c t="inlineStr"><is><t>{}</t></is></c>'


def read(path):
    return list(read_table(path).select(["text", "label"]))


def cell_texts(tmp_path, *cells, **options):
    """Return what cells hold, each one in column A of a row of its own, with a 1 beside it."""
    rows = rows_of(*(cell + "<c><v>1</v></c>" for cell in cells))
    path = write_workbook(tmp_path / "a.xlsx", workbook_parts({"Data": sheet_xml(rows)}, **options))
    return [fields[0] for _, fields in read(path)]


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (HEADER + row(2) + row(3), TWO_ROWS),
        (HEADER + row(2) + row(2).replace(' r="2"', "").replace('"A2"', '"A3"').replace('"B2"', '"B3"'), None),
        ((HEADER + row(2) + row(3)).replace('<row r="', '<row n="'), TWO_ROWS),
        (HEADER + "".join(f"<row>{TEXT.format(f'good{number}')}<c><v>1</v></c></row>" for number in (2, 3)), TWO_ROWS),
        (HEADER + row(2) + '<row r="1048576">' + CELLS.format(1048576) + "</row>", None),
        (HEADER + '<row r="2"/>' + row(3), TWO_ROWS[1:]),
    ],
)
def test_rows_that_are_read(tmp_path, rows, expected):
    found = read(write_workbook(tmp_path / "a.xlsx", workbook_parts({"Data": sheet_xml(rows)})))
    assert found == expected if expected else len(found) == 2 and found[0] == TWO_ROWS[0]


@pytest.mark.parametrize(
    "cell",
    [
        '<c t="s"><v>3</v></c>',
        '<c t="s"><v>x</v></c>',
        '<c t="n"><v>word</v></c>',
        '<c t="b"><v>word</v></c>',
        '<c t="d"><v>yesterday</v></c>',
        '<c s="red"><v>1</v></c>',
        '<c r="A"><v>1</v></c>',
        f"<c><v>{'9' * 5000}</v></c>",
    ],
)
def test_damaged_cells(tmp_path, cell):
    with pytest.raises(DataError, match=r"a\.xlsx is damaged") as error:
        cell_texts(tmp_path, cell, strings="<si><t>a</t></si>")
    assert len(str(error.value)) < 500 and "\n" not in str(error.value)


@pytest.mark.parametrize("dimension", ["A1", "A1:B1", "A1:XFD1048576", "B2:A1", "A1:ZZZ9999999999", ""])
def test_the_size_that_a_sheet_declares_does_not_matter(tmp_path, dimension):
    sheet = sheet_xml(HEADER + row(2) + row(3), f'<dimension ref="{dimension}"/>')
    assert read(write_workbook(tmp_path / "a.xlsx", workbook_parts({"Data": sheet}))) == TWO_ROWS


def test_a_declared_size_that_is_no_range_is_damage(tmp_path):
    sheet = sheet_xml(HEADER + row(2), '<dimension ref="?"/>')
    with pytest.raises(DataError, match=r"a\.xlsx is damaged"):
        read(write_workbook(tmp_path / "a.xlsx", workbook_parts({"Data": sheet})))


def test_texts(tmp_path):
    strings = (
        "<si><t>plain</t></si><si><r><rPr><b/></rPr><t>bo</t></r><r><t>th</t></r>"
        '<rPh sb="0" eb="4"><t>sound</t></rPh></si><si/><si><t>a_x000D_b</t></si>'
    )
    cells = [f'<c t="s"><v>{number}</v></c>' for number in (0, 1, 2, 3)]
    cells += ['<c t="inlineStr"><is><r><t>ri</t></r><r><t xml:space="preserve">ch </t></r></is></c>']
    cells += ['<c t="str"><f>A1&amp;A2</f><v>result</v></c>', '<c t="str"><f>""</f><v></v></c>']
    expected = ["plain", "both", "", "a\rb", "rich ", "result", ""]
    assert cell_texts(tmp_path, *cells, strings=strings) == expected


@pytest.mark.parametrize(
    ("stored", "text"),
    [
        ("1", "1"),
        ("1.0", "1"),
        ("1E0", "1"),
        ("-0.0", "0"),
        ("0.30000000000000004", "0.3"),
        ("2.2999999999999998", "2.3"),
        ("0.1", "0.1"),
        ("123456789012345678", "123456789012345678"),
        ("1e-7", "1e-07"),
    ],
)
def test_numbers_are_those_that_excel_shows(tmp_path, stored, text):
    assert cell_texts(tmp_path, f"<c><v>{stored}</v></c>") == [text]


def test_truth_values(tmp_path):
    assert cell_texts(tmp_path, '<c t="b"><v>1</v></c>', '<c t="b"><v>0</v></c>') == ["true", "false"]


@pytest.mark.parametrize(("date1904", "day"), [("", "2024-03-01"), ('<workbookPr date1904="1"/>', "2028-03-02")])
def test_dates(tmp_path, date1904, day):
    formats = [14, 22, 57, 176, 177, 46, 20]
    styles = (
        '<numFmts><numFmt numFmtId="176" formatCode="yyyy&quot;y&quot;m"/><numFmt numFmtId="177" formatCode="0.0"/>'
        '</numFmts><cellStyleXfs><xf numFmtId="14"/></cellStyleXfs><cellXfs>'
        + "".join(f'<xf numFmtId="{number}"/>' for number in formats)
        + '</cellXfs><dxfs><dxf><numFmt numFmtId="177" formatCode="yyyy"/></dxf></dxfs>'
    )
    values = [(0, 45352), (1, 45352.5), (2, 45352), (3, "45352.0"), (4, 45352), (5, 1.5), (6, 0.5), (99, 7)]
    cells = [f'<c s="{style}"><v>{value}</v></c>' for style, value in values]
    cells.append('<c t="d"><v>2024-03-01T00:00:00</v></c>')
    expected = [day, f"{day} 12:00:00", day, day, "45352", "1 day, 12:00:00", "12:00:00", "7", "2024-03-01"]
    assert cell_texts(tmp_path, *cells, styles=styles, book=date1904) == expected


@pytest.mark.parametrize("cell", ['<c t="e"><v>#N/A</v></c>', "<c><v>1e999</v></c>"])
def test_cells_without_a_value_that_is_text_matter_where_they_are_read(tmp_path, cell):
    path = write_workbook(tmp_path / "a.xlsx", workbook_parts({"Data": sheet_xml(rows_of(cell + "<c><v>1</v></c>"))}))
    assert list(read_table(path).select(["label"])) == [(2, ["1"])]
    with pytest.raises(DataError, match="line 2"):
        read(path)


def test_strict_workbooks_are_refused(tmp_path):
    parts = workbook_parts({"Data": sheet_xml(HEADER + row(2))})
    strict = "http://purl.oclc.org/ooxml/officeDocument/relationships"
    parts["xl/book.xml"] = parts["xl/book.xml"].replace(OFFICE, strict)
    with pytest.raises(DataError, match="Strict Open XML; save it as"):
        read(write_workbook(tmp_path / "a.xlsx", parts))


# --- sheets ---


def test_data_on_other_sheets_are_named(tmp_path, caplog):
    sheets = {"Data": sheet_xml(HEADER + row(2) + row(3)), "More": sheet_xml(HEADER), "Empty": sheet_xml("<row/>")}
    assert read(write_workbook(tmp_path / "a.xlsx", workbook_parts(sheets))) == TWO_ROWS
    assert "'More'" in caplog.text and "'Empty'" not in caplog.text


def test_an_empty_first_sheet_names_the_one_with_data(tmp_path):
    sheets = {"Cover": sheet_xml("<row/>"), "Data": sheet_xml(HEADER + row(2))}
    with pytest.raises(DataError, match=r"'Cover'.*'Data'"):
        read(write_workbook(tmp_path / "a.xlsx", workbook_parts(sheets)))


def test_hidden_sheets_are_passed_over_with_a_warning(tmp_path, caplog):
    sheets = {"Old": sheet_xml(HEADER + row(9)), "Data": sheet_xml(HEADER + row(2) + row(3))}
    for state in ("hidden", "veryHidden"):
        caplog.clear()
        parts = workbook_parts(sheets, states={"Old": state})
        assert read(write_workbook(tmp_path / "a.xlsx", parts)) == TWO_ROWS
        assert "'Old'" in caplog.text


def test_chart_sheets_are_no_tables(tmp_path):
    book = Workbook()
    book.active.append(["text", "label"])
    book.active.append(["good2", 1])
    book.create_chartsheet("Chart", 0).add_chart(BarChart())
    book.save(tmp_path / "a.xlsx")
    assert read(tmp_path / "a.xlsx") == TWO_ROWS[:1]


# --- files ---


def plain_parts():
    return workbook_parts({"Data": sheet_xml(HEADER + row(2) + row(3))}, "")


@pytest.mark.parametrize("part", sorted(plain_parts()))
def test_missing_empty_and_damaged_parts(tmp_path, part):
    for content in (None, "", "<a><b></a>", "<worksheet/>", plain_parts()[part][:-1]):
        parts = plain_parts()
        del parts[part]
        if content is not None:
            parts[part] = content
        path = write_workbook(tmp_path / "a.xlsx", parts)
        if part == "xl/styles.xml" and content is None:
            assert read(path) == TWO_ROWS
        elif part not in ("xl/strings.xml", "xl/styles.xml") or content != "<worksheet/>":
            with pytest.raises(DataError, match=r"a\.xlsx") as error:
                read(path)
            assert "\n" not in str(error.value) and len(str(error.value)) < 500


@pytest.mark.parametrize(
    "content", [b"", b"PK\3\4", b"PK\5\6" + bytes(18), b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(600), b"<html/>"]
)
@pytest.mark.parametrize("name", ["a.xlsx", "a.xls"])
def test_files_that_are_no_workbooks(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=name) as error:
        read(tmp_path / name)
    assert "\n" not in str(error.value) and len(str(error.value)) < 500
