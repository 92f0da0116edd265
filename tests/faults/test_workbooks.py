"""Workbooks with things twice, out of order or beyond Excel's limits are read right or refused by sheet and row."""

import resource
import time
import warnings
import zipfile

import pytest

from model_utils.errors import DataError
from src.text.text_tables import read_table
from tests.faults.cases import only_sentences
from tests.faults.workbooks import (
    CELLS,
    HEADER,
    MAIN,
    OFFICE,
    as_strict,
    claim_size,
    row,
    rows_of,
    sheet_xml,
    workbook_parts,
    write_bomb,
    write_workbook,
)

TWO_ROWS = [(2, ["good2", "1"]), (3, ["good3", "1"])]
TEXT = '<c t="inlineStr"><is><t>{}</t></is></c>'
MEMORY = 300 << 20  # bytes that the process may grow by


def peak_memory():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


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
    ("rows", "number"),
    [
        (HEADER + row(3) + row(2), 2),
        (HEADER + row(2) + row(2), 2),
        (row(2) + HEADER, 1),
        (HEADER + '<row r="0"/>', 0),
        (HEADER + row(2) + '<row r="-7"/>', -7),
        (HEADER + '<row r="x"/>', 1),
        (HEADER + row(2) + f'<row r="2000000000">{CELLS.format(2000000000)}</row>', 2000000000),
        (HEADER + f'<row r="1048577">{CELLS.format(1048577)}</row>', 1048577),
        (HEADER + '<row r="1048576"/><row/>', 1048577),
        *[
            (rows_of(CELLS.format(2), cells), 3)
            for cells in (
                '<c r="B3"><v>1</v></c><c r="A3"><v>1</v></c>',
                '<c r="A3"><v>1</v></c><c r="A3"><v>2</v></c>',
                '<c r="A3"><v>1</v></c><c r="B3"><v>1</v></c><c r="B3"><v>2</v></c>',
                '<c r="B3"><v>1</v></c><c r="B2"><v>1</v></c>',
                '<c r="A3"><v>1</v><v>2</v></c>',
                '<c r="A3" t="inlineStr"><v>0</v><is><t>a</t></is></c>',
                '<c r="A3" t="inlineStr"><is><t>a</t></is><is><t>b</t></is></c>',
                '<c r="A4"><v>1</v></c>',
                '<c r="XFE3"><v>1</v></c>',
                '<c r="ZZZZ3"><v>1</v></c>',
                '<c r="3"><v>1</v></c>',
                '<c r="A"><v>1</v></c>',
                '<c r="XFD3"/><c/>',
                '<c t="s"><v>3</v></c>',
                '<c t="s"><v>-1</v></c>',
                '<c t="s"><v>x</v></c>',
                '<c t="n"><v>word</v></c>',
                "<c><v>1_000</v></c>",
                f"<c><v>{'9' * 5000}</v></c>",
                '<c t="b"><v>7</v></c>',
                '<c t="d"><v>yesterday</v></c>',
                '<c t="new"><v>1</v></c>',
                '<c s="red"><v>1</v></c>',
            )
        ],
    ],
)
@pytest.mark.parametrize("strings", [None, "<si><t>a</t></si><si><t>b</t></si>"])
def test_rows_that_are_refused(tmp_path, rows, number, strings):
    path = write_workbook(tmp_path / "a.xlsx", workbook_parts({"Data": sheet_xml(rows)}, strings))
    with pytest.raises(DataError, match=rf"a\.xlsx: row {number} of sheet 'Data'") as error:
        list(read_table(path).rows)
    assert len(str(error.value)) < 500 and "\n" not in str(error.value)


@pytest.mark.parametrize("dimension", ["A1", "A1:B1", "A1:XFD1048576", "B2:A1", "A1:ZZZ9999999999", "", "?"])
def test_the_size_that_a_sheet_declares_does_not_matter(tmp_path, dimension):
    sheet = sheet_xml(HEADER + row(2) + row(3), f'<dimension ref="{dimension}"/>')
    assert read(write_workbook(tmp_path / "a.xlsx", workbook_parts({"Data": sheet}))) == TWO_ROWS


def test_texts(tmp_path):
    strings = (
        "<si><t>plain</t></si><si><r><rPr><b/></rPr><t>bo</t></r><r><t>th</t></r><rPh><t>sound</t></rPh></si><si/>"
        "<si><t>a_x000D_b_x005F_x000D_c</t></si>"
    )
    cells = [f'<c t="s"><v>{number}</v></c>' for number in (0, 1, 2, 3)]
    cells += ['<c t="inlineStr"><is><r><t>ri</t></r><r><t xml:space="preserve">ch </t></r></is></c>']
    cells += ['<c t="str"><f>A1&amp;A2</f><v>result</v></c>', '<c t="str"><f>""</f><v></v></c>']
    expected = ["plain", "both", "", "a\rb_x000D_c", "rich ", "result", ""]
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


@pytest.mark.parametrize(
    "cell", ['<c t="e"><v>#N/A</v></c>', "<c><f>1+1</f></c>", "<c><f>1+1</f><v/></c>", "<c><v>1e999</v></c>"]
)
def test_cells_without_a_value_that_is_text_matter_where_they_are_read(tmp_path, caplog, cell):
    path = write_workbook(tmp_path / "a.xlsx", workbook_parts({"Data": sheet_xml(rows_of(cell + "<c><v>1</v></c>"))}))
    assert list(read_table(path).select(["label"])) == [(2, ["1"])]
    assert "row 2 of sheet 'Data'" in caplog.text
    with pytest.raises(DataError, match="line 2"):
        read(path)


def test_strict_workbooks(tmp_path):
    parts = as_strict(workbook_parts({"Data": sheet_xml(HEADER + row(2) + row(3))}))
    assert read(write_workbook(tmp_path / "a.xlsx", parts)) == TWO_ROWS


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
    parts = workbook_parts({"Chart": "<chartsheet/>", "Data": sheet_xml(HEADER + row(2) + row(3))})
    relations = "xl/_rels/book.xml.rels"
    parts[relations] = parts[relations].replace("worksheet", "chartsheet", 1)
    assert read(write_workbook(tmp_path / "a.xlsx", parts)) == TWO_ROWS
    parts[relations] = parts[relations].replace("worksheet", "chartsheet")
    with pytest.raises(DataError, match="worksheet"):
        read(write_workbook(tmp_path / "a.xlsx", parts))


def test_merged_cells_are_named_before_a_row_that_is_empty_by_them(tmp_path, caplog):
    merged = '<mergeCells count="1"><mergeCell ref="A2:A3"/></mergeCells>'
    path = write_workbook(
        tmp_path / "a.xlsx", workbook_parts({"Data": sheet_xml(HEADER + row(2) + row(3), "", merged)})
    )
    next(read_table(path).rows)
    assert "A2:A3" in caplog.text and "'Data'" in caplog.text


# --- files ---


def plain_parts():
    return workbook_parts({"Data": sheet_xml(HEADER + row(2) + row(3))}, "")


@pytest.mark.parametrize("part", sorted(plain_parts()))
def test_missing_empty_and_damaged_parts(tmp_path, part):
    needed = part not in ("xl/strings.xml", "xl/styles.xml")
    for content in (None, "", "<a><b></a>", "<worksheet/>", plain_parts()[part][:-1]):
        parts = plain_parts()
        del parts[part]
        if content is not None:
            parts[part] = content
        path = write_workbook(tmp_path / "a.xlsx", parts)
        if not needed and content is None:
            assert read(path) == TWO_ROWS
        elif needed or content != "<worksheet/>":
            with pytest.raises(DataError, match=r"a\.xlsx") as error:
                read(path)
            assert "\n" not in str(error.value) and len(str(error.value)) < 500


def test_parts_that_are_there_twice(tmp_path):
    with warnings.catch_warnings(action="ignore"):
        path = write_workbook(tmp_path / "a.xlsx", plain_parts(), repeated=["xl/sheet1.xml"])
    with pytest.raises(DataError, match=r"xl/sheet1\.xml"):
        read(path)


RELATIONS = "</Relationships>"
RELATION = f'<Relationship Id="{{}}" Type="{OFFICE}/{{}}" Target="/xl/other.xml"/>'


@pytest.mark.parametrize(
    ("part", "end", "xml", "name"),
    [
        ("_rels/.rels", RELATIONS, RELATION.format("x", "officeDocument"), "officeDocument"),
        ("xl/_rels/book.xml.rels", RELATIONS, RELATION.format("w1", "worksheet"), "w1"),
        ("xl/_rels/book.xml.rels", RELATIONS, RELATION.format("x", "sharedStrings"), "sharedStrings"),
        ("xl/_rels/book.xml.rels", RELATIONS, RELATION.format("x", "styles"), "styles"),
        ("xl/book.xml", "</workbook>", '<workbookPr/><workbookPr date1904="1"/>', "workbookPr"),
        ("xl/book.xml", "</workbook>", "<sheets/>", "sheets"),
        ("xl/styles.xml", "</styleSheet>", "<cellXfs/><cellXfs/>", "cellXfs"),
        (
            "xl/styles.xml",
            "</styleSheet>",
            '<numFmt numFmtId="1" formatCode="0"/><numFmt numFmtId="1" formatCode="y"/>',
            "1",
        ),
        ("xl/sheet1.xml", "</worksheet>", "<sheetData/>", "sheetData"),
        ("xl/sheet1.xml", "</row>", "<row/>", "row"),
        ("xl/sheet1.xml", "</c>", '<c r="B1"><v>1</v></c>', "c"),
    ],
)
def test_what_a_part_says_twice(tmp_path, part, end, xml, name):
    parts = plain_parts()
    parts[part] = parts[part].replace(end, xml + end)
    with pytest.raises(DataError, match=rf"\b{name}' twice"):
        read(write_workbook(tmp_path / "a.xlsx", parts))


def test_other_programs_elements_of_the_same_name_are_passed_over(tmp_path):
    extension = '<workbookPr/><extLst><ext><x15:workbookPr chartTrackingRefBase="1"/></ext></extLst>'
    parts = workbook_parts({"Data": sheet_xml(HEADER + row(2) + row(3))}, book=extension)
    assert read(write_workbook(tmp_path / "a.xlsx", parts)) == TWO_ROWS


def test_what_would_take_the_square_of_its_length_is_refused_at_once(tmp_path):
    number = rows_of(f"<c><v>{'1' * 1_000_000}.x</v></c>")
    code = f'<numFmts><numFmt numFmtId="170" formatCode="{"[" * 300_000}"/></numFmts>'
    styles = f'{code}<cellXfs><xf numFmtId="170"/></cellXfs>'
    deep = "<a>" * 1_000_000
    attributes = "<a " + " ".join(f'a{index}=""' for index in range(500_000)) + "/>"
    for parts in (
        workbook_parts({"Data": sheet_xml(number)}),
        workbook_parts({"Data": sheet_xml(HEADER)}, styles=styles),
        workbook_parts({"Data": sheet_xml(HEADER, behind=deep)}),
        workbook_parts({"Data": sheet_xml(HEADER, behind=attributes)}),
    ):
        start = time.process_time()
        with pytest.raises(DataError):
            read(write_workbook(tmp_path / "a.xlsx", parts))
        assert time.process_time() - start < 5


def test_what_would_take_the_product_of_two_sizes_is_read_soon(tmp_path):
    rows = HEADER.replace("B1", "XFD1") + "".join(row(number) for number in range(2, 5000))
    parts = workbook_parts({"Data": sheet_xml(rows)})
    empty = workbook_parts({"Data": sheet_xml("<row/>" * 20_000)})
    empty["xl/book.xml"] = empty["xl/book.xml"].replace("</sheets>", '<sheet name="x" r:id="w1"/>' * 2000 + "</sheets>")
    only_sentences(lambda: read(write_workbook(tmp_path / "a.xlsx", parts)))
    only_sentences(lambda: read(write_workbook(tmp_path / "a.xlsx", empty)))


def test_entities_are_refused(tmp_path):
    for entity in ('<!ENTITY a "aaa">', '<!ENTITY a SYSTEM "file:///etc/hostname">'):
        parts = plain_parts()
        parts["xl/sheet1.xml"] = f"<!DOCTYPE x [{entity}]>" + parts["xl/sheet1.xml"].replace("good2", "&a;")
        with pytest.raises(DataError, match="document type"):
            read(write_workbook(tmp_path / "a.xlsx", parts))


@pytest.mark.parametrize(
    ("part", "xml", "filling"),
    [
        ("xl/sheet1.xml", sheet_xml(HEADER + '<row r="2"><c t="inlineStr"><is><t>*</t></is></c></row>'), b"a"),
        ("xl/sheet1.xml", sheet_xml(HEADER + '<row r="2">*</row>'), b"<c/>"),
        ("xl/sheet1.xml", sheet_xml(HEADER + "*"), b"<row/>"),
        ("xl/sheet1.xml", f'<worksheet xmlns="{MAIN}">*</worksheet>', b"<x/>"),
        ("xl/strings.xml", f'<sst xmlns="{MAIN}">*</sst>', b"<si/>"),
        ("xl/styles.xml", f'<styleSheet xmlns="{MAIN}"><cellXfs>*</cellXfs></styleSheet>', b"<xf/>"),
        ("docProps/unused.xml", "*", b"a"),
    ],
)
@pytest.mark.parametrize("megabytes", [1, 120])
def test_memory_is_bounded(tmp_path, part, xml, filling, megabytes):
    if megabytes > 1 and filling != b"a":
        pytest.skip("the size is looked at before the contents")
    path = write_bomb(tmp_path / "a.xlsx", {**plain_parts(), part: xml}, part, megabytes, filling)
    before = peak_memory()
    only_sentences(lambda: read(path))
    assert peak_memory() - before < MEMORY
    if megabytes > 1:
        with pytest.raises(DataError, match=r"120 MB"):
            read(path)


def test_sizes_that_lie(tmp_path):
    xml = sheet_xml(HEADER + '<row r="2"><c t="inlineStr"><is><t>*</t></is></c></row>')
    for size in (0, 100, 1 << 20):
        path = write_bomb(tmp_path / "a.xlsx", {**plain_parts(), "xl/sheet1.xml": xml}, "xl/sheet1.xml", 60, b"a")
        claim_size(path, "xl/sheet1.xml", size)
        before = peak_memory()
        with pytest.raises(DataError, match=r"a\.xlsx"):
            read(path)
        assert peak_memory() - before < MEMORY


@pytest.mark.parametrize(
    "content", [b"", b"PK\3\4", b"PK\5\6" + bytes(18), b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(600), b"<html/>"]
)
@pytest.mark.parametrize("name", ["a.xlsx", "a.xls"])
def test_files_that_are_no_workbooks(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=name) as error:
        read(tmp_path / name)
    assert "\n" not in str(error.value) and len(str(error.value)) < 500


def test_other_ways_of_packing_are_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.xlsx", "w", zipfile.ZIP_LZMA) as archive:
        for name, xml in plain_parts().items():
            archive.writestr(name, xml)
    with pytest.raises(DataError, match="compression"):
        read(tmp_path / "a.xlsx")
