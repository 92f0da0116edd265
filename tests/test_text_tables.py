"""Tables: every kind of file gives the same rows, with their line numbers, and what is wrong is named by its line."""

import csv
import gzip
import logging
import os
import struct

import openpyxl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_utils.errors import ConfigError, DataError
from src.create_finetune_data import find_splits
from src.text.text_tables import TableOptions, read_table
from src.utils import read_lines

COLUMNS = ["text", "label"]


def write(folder, name, text):
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def rows_of(path, columns=("text", "label"), names=(), header_holds=""):
    return list(read_table(path, names, header_holds).select(columns))


def xlsx(path, rows):
    book = openpyxl.Workbook()
    for row in rows:
        book.active.append(row)
    book.save(path)
    return path


def xls(path, cells):
    """A sheet in Excel 2's form: a stream of records, each of which has a kind, a size and contents."""
    records = [(0x09, struct.pack("<HH", 2, 0x10))]
    for (row, column), value in cells.items():
        place = struct.pack("<HH3x", row, column)
        if isinstance(value, str):
            records.append((0x04, place + bytes([len(value)]) + value.encode("latin-1")))
        elif isinstance(value, bytes | bool):  # an error's code, or a truth value
            records.append((0x05, place + bytes([ord(value) if isinstance(value, bytes) else value])))
            records[-1] = (0x05, records[-1][1] + bytes([isinstance(value, bytes)]))
        else:
            records.append((0x03, place + struct.pack("<d", value)))
    records.append((0x0A, b""))
    path.write_bytes(b"".join(struct.pack("<HH", kind, len(data)) + data for kind, data in records))
    return path


# --- kinds ---


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.tsv", 'text\tlabel\nfine, "really"\t1\n\n字\t0\n'),
        ("a.tsv", '\ufefftext\tlabel\r\nfine, "really"\t1\r\n\r\n字\t0'),
        ("a.txt", 'label\ttext\t\n1\tfine, "really"\n  \n0\t字\t\n'),
        ("a.tsv", 'text\tlabel\nfine, "really"\t1\n \t\n字\t0\n'),
        ("a.csv", 'text,label\n"fine, ""really""",1\n\n字,0\n'),
        ("a.csv", 'text,label,\r\n"fine, ""really""",1,\r\n,,\r\n字,0,\r\n'),
        ("a.csv", '\ufefftext,label\r\n"fine, ""really""",1\r\n  \r\n字,0\r\n'),
        ("a.jsonl", '{"text": "fine, \\"really\\"", "label": 1}\n\n{"label": 0.0, "text": "字", "other": []}\n'),
        ("a.ndjson", '{"text": "fine, \\"really\\"", "label": 1}\n\n{"label": 0.0, "text": "字"}\n'),
        ("a.json", '\ufeff{"label": "1", "more": {}, "text": "fine, \\"really\\""}\r\n\r\n{"text": "字", "label": 0}'),
    ],
)
def test_kinds_of_text_files(tmp_path, name, text):
    first = 1 if name.endswith(("json", "jsonl")) else 2
    assert rows_of(write(tmp_path, name, text)) == [(first, ['fine, "really"', "1"]), (first + 2, ["字", "0"])]


def test_quotes_in_tsv_are_text(tmp_path):
    path = write(tmp_path, "a.tsv", 'text\tlabel\n"one\t1\ntwo" three\t0\n"four"\t1\n')
    assert [fields[0] for _, fields in rows_of(path)] == ['"one', 'two" three', '"four"']


def test_csv_fields_hold_line_breaks_and_tabs_and_count_from_their_first_line(tmp_path):
    path = write(tmp_path, "a.csv", 'text,label\r\n"a\tb\r\nc",1\r\nd e"f,0\r\n')
    assert rows_of(path) == [(2, ["a\tb\r\nc", "1"]), (4, ['d e"f', "0"])]


@pytest.mark.parametrize("delimiter", [";", ",", "\t", "~"])
def test_a_first_line_that_states_the_delimiter_is_obeyed(tmp_path, delimiter):
    text = f"sep={delimiter}\r\ntext{delimiter}label\r\n'a b'{delimiter}1\r\nc{delimiter}2\r\n"
    assert rows_of(write(tmp_path, "a.csv", text)) == [(3, ["'a b'", "1"]), (4, ["c", "2"])]
    with pytest.raises(DataError, match="line 3 has 3 column"):
        rows_of(write(tmp_path, "b.csv", text.replace("1", f"1{delimiter}1")))


def test_unusual_line_breaks_stay_inside_a_field(tmp_path):
    assert rows_of(write(tmp_path, "a.tsv", "text\tlabel\na\u2028b\x0bc\x85d\re\t1\n")) == [
        (2, ["a\u2028b\x0bc\x85d\re", "1"])
    ]


def test_excel_workbooks(tmp_path):
    rows = [["text", "label"], ["fine", 1], [], ["字", 0.5], [None, True]]
    expected = [(2, ["fine", "1"]), (4, ["字", "0.5"]), (5, ["", "true"])]
    assert rows_of(xlsx(tmp_path / "a.xlsx", rows)) == expected


def test_sheets_by_name_or_number_of_the_visible_ones(tmp_path, caplog):
    book = openpyxl.Workbook()
    book.active.title = "old"
    for title in ("2", "dev", "empty"):
        book.create_sheet(title)
    for sheet in book.worksheets[:3]:
        sheet.append(["text", "label"])
        sheet.append([sheet.title, 1])
    book["old"].sheet_state = "hidden"
    book.save(tmp_path / "a.xlsx")
    for name, title in {"": "2", "1": "2", "2": "2", "dev": "dev", "old": "old"}.items():
        caplog.clear()
        assert list(read_table(tmp_path / "a.xlsx", options=TableOptions(sheet=name)).select(["text"])) == [
            (2, [title])
        ]
        assert ("'dev'" in caplog.text) == (not name)
    for name in ("train", "4", "0", "9" * 5000):
        with pytest.raises(DataError, match=r"a\.xlsx has no sheet .*'old', '2', 'dev', 'empty'"):
            read_table(tmp_path / "a.xlsx", options=TableOptions(sheet=name))
    for name in ("empty", "3"):
        with pytest.raises(DataError, match="'empty' is empty"):
            read_table(tmp_path / "a.xlsx", options=TableOptions(sheet=name))


def test_sheets_of_old_workbooks(tmp_path):
    path = xls(tmp_path / "a.xls", {(0, 0): "text", (1, 0): "fine"})
    assert list(read_table(path, options=TableOptions(sheet="1")).select(["text"])) == [(2, ["fine"])]
    with pytest.raises(DataError, match=r"a\.xls has no sheet '2'"):
        read_table(path, options=TableOptions(sheet="2"))


def test_old_excel_workbooks(tmp_path):
    cells = {(0, 0): "text", (0, 1): "label", (1, 0): "fine", (1, 1): 1.0, (3, 0): "good", (3, 1): 0.5}
    assert rows_of(xls(tmp_path / "a.xls", cells)) == [(2, ["fine", "1"]), (4, ["good", "0.5"])]


def test_truth_values_and_errors_are_the_same_in_old_and_new_workbooks(tmp_path):
    rows = [["text", "label"], ["fine", True], ["#N/A", False]]
    cells = {(row, column): value for row, each in enumerate(rows) for column, value in enumerate(each)}
    for path in (xls(tmp_path / "a.xls", cells | {(2, 0): bytes([42])}), xlsx(tmp_path / "a.xlsx", rows)):
        assert rows_of(path, ["label"]) == [(2, ["true"]), (3, ["false"])]
        with pytest.raises(DataError, match="line 3 has no text or number as 'text'"):
            rows_of(path)


def test_a_row_of_failed_formulas_alone_is_no_empty_one(tmp_path):
    cells = {(0, 0): "text", (1, 0): bytes([42]), (2, 0): "fine"}
    for path in (xls(tmp_path / "a.xls", cells), xlsx(tmp_path / "a.xlsx", [["text"], ["#N/A"], ["fine"]])):
        with pytest.raises(DataError, match="line 2 has no text or number as 'text'"):
            rows_of(path, ["text"])


def test_line_breaks_in_cells_are_those_of_the_text(tmp_path):
    """Excel writes a carriage return as _x000D_."""
    path = xlsx(tmp_path / "a.xlsx", [["text", "label"], ["good_x000D_\nfilm _x0041_", 1]])
    assert rows_of(path) == [(2, ["good\r\nfilm _x0041_", "1"])]


def test_control_characters_in_cells_are_those_of_the_text(tmp_path):
    """Excel and xlsxwriter write a vertical TAB, as texts of PowerPoint have, as _x000B_."""
    path = xlsx(tmp_path / "a.xlsx", [["text", "label"], ["good_x000B_film_x001F_ _x005F_x000B_", 1]])
    assert rows_of(path) == [(2, ["good\x0bfilm\x1f _x000B_", "1"])]


def test_a_number_of_a_column_may_have_any_length(tmp_path):
    with pytest.raises(DataError, match="has no column"):
        rows_of(write(tmp_path, "a.tsv", "text\tlabel\ngood\t1\n"), columns=["9" * 5000])


def test_long_texts_of_csv(tmp_path):
    long = "a, " * 100_000
    assert rows_of(write(tmp_path, "a.csv", f'text,label\n"{long}",1\n')) == [(2, [long, "1"])]


field = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=8)


@given(st.lists(st.tuples(field, field), min_size=1, max_size=5))
def test_tsv_gives_back_what_was_written(tmp_path_factory, rows):
    text = "text\tlabel\n" + "".join(f"{a}\t{b}\n" for a, b in rows)
    found = rows_of(write(tmp_path_factory.mktemp("tsv"), "a.tsv", text))
    assert found == [(line, list(row)) for line, row in enumerate(rows, 2)]


# --- columns ---


def test_columns_by_name_or_number(tmp_path):
    path = write(tmp_path, "a.tsv", "id\ttext \tlabel\n7\ta\t1\n")
    assert rows_of(path, ["text", "1"]) == [(2, ["a", "7"])]
    assert read_table(path).has("3") and not read_table(path).has("4") and not read_table(path).has("0")


def test_a_name_wins_over_a_number_and_says_so(tmp_path, caplog):
    """A first line of an example may end with a label that looks like a number."""
    assert rows_of(write(tmp_path, "a.tsv", "2\t1\na\tb\n"), ["1", "2"]) == [(2, ["b", "a"])]
    assert "a.tsv: column 2" in caplog.text
    caplog.clear()
    assert rows_of(write(tmp_path, "a.tsv", "1\t7\na\tb\n"), ["1", "2", "7"]) == [(2, ["a", "b", "b"])]
    assert not caplog.text


def test_a_file_without_header(tmp_path):
    path = write(tmp_path, "a.tsv", "a\t1\nb\t0\n")
    assert rows_of(path, names=COLUMNS) == [(1, ["a", "1"]), (2, ["b", "0"])]
    assert rows_of(path, ["2"], names=COLUMNS) == [(1, ["1"]), (2, ["0"])]


def test_a_header_is_known_by_the_column_it_holds(tmp_path):
    path = write(tmp_path, "a.tsv", "qid\ttext\n0\ta\n")
    assert rows_of(path, ["text"], COLUMNS, "text") == [(2, ["a"])]
    numbers = write(tmp_path, "b.tsv", "a\t1\n")
    assert rows_of(numbers, ["1"], COLUMNS, "1") == [(1, ["a"])]


def test_last_columns_may_be_missing_altogether(tmp_path):
    table = read_table(write(tmp_path, "a.tsv", "a\nb\n"), COLUMNS)
    assert not table.has("label")
    assert list(table.select(["text"])) == [(1, ["a"]), (2, ["b"])]


# --- what is wrong ---


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.tsv", "text\tlabel\na\t1\n\nb\n", r"a\.tsv: line 4 has 1 column\(s\), expected are 2 \(text, label\)"),
        ("a.tsv", "text\tlabel\na\tb\t1\n", r"line 2 has 3 column\(s\), expected are 2"),
        ("a.tsv", "text\tvalue\na\t1\n", r"a\.tsv has no column 'label', it has 2: 'text', 'value'"),
        ("a.tsv", "text\tlabel\tlabel\na\t1\t1\n", "has 2 columns 'label'; name one by its number"),
        ("a.tsv", "", r"a\.tsv is empty"),
        ("a.jsonl", '{}\n{"text": "fine", "label": 1}\n', r"a\.jsonl: line 1 has no keys, which are the columns"),
        ("a.tsv", "\n\r\n", r"a\.tsv is empty"),
        ("a.tsv", b"text\tlabel\na\xff\t1\n", r"byte 0xff at offset 12 is not UTF-8"),
        ("a.tsv", b"\xef\xbb\xbftext\tlabel\na\t\xe4\n", r"byte 0xe4 at offset 16 is not UTF-8"),
        ("a.csv", 'text,label\na,1\n"b,0\nc,1\n', r"the row that begins in line 3 is not CSV"),
        ("a.csv", 'text,label\n"a"b,1\n', r"line 2 is not CSV: ',' expected after"),
        ("a.csv", "text,label\na\n", r"line 2 has 1 column"),
        ("a.jsonl", '{"text": "a", "label": 1}\n{"text": \n', r"line 2 is not JSON"),
        ("a.json", '{\n "text": "a"}\n', r"line 1 is not JSON: .*one object in each line, or a list of objects"),
        ("a.json", '{"text": {"0": "a"}, "label": {"0": 1}}', r"line 1 .*alone \('text', 'label'\).*each row"),
        ("a.json", '{"data": [{"text": "a", "label": 1}]}', r"line 1 .*alone \('data'\)"),
        ("a.jsonl", '["a"]\n', r"line 1 is not a JSON object"),
        ("a.json", '[{"text": "a"},\n', r"a\.json is not JSON"),
        ("a.json", '[{"text": "a", "label": 1}, 3]\n', r"line 2 is not a JSON object"),
        ("a.jsonl", '{"text": "a", "label": 1}\n{"text": "b"}\n', r"line 2 has no text or number as 'label'"),
        ("a.jsonl", '{"text": ["a"], "label": 1}\n', r"line 1 has no text or number as 'text'"),
        ("a.xlsx", "text\tlabel\n", r"a\.xlsx is damaged, locked or not an Excel workbook"),
        ("a.xls", "text\tlabel\n", r"a\.xls is damaged, locked or not an Excel workbook"),
        ("a.pdf", "text", r"a\.pdf .*\.tsv, \.txt, \.csv"),
    ],
)
def test_faults(tmp_path, name, text, message):
    path = write(tmp_path, name, text)
    with pytest.raises(DataError, match=message):
        rows_of(path)


def test_a_damaged_workbook(tmp_path):
    path = xlsx(tmp_path / "a.xlsx", [["text", "label"], ["a", 1]])
    content = bytearray(path.read_bytes())
    content[len(content) // 3 : len(content) // 2] = bytes(len(content) // 2 - len(content) // 3)
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"a\.xlsx is damaged, locked or not an Excel workbook"):
        rows_of(path)


@pytest.mark.parametrize("name", ["a.tsv", "a.csv", "a.jsonl", "a.xls", "a.xlsx"])
def test_missing_files(tmp_path, name):
    with pytest.raises(DataError, match="cannot be read: No such file"):
        rows_of(tmp_path / name)


def test_lines_keep_their_ends(tmp_path):
    assert list(read_lines(write(tmp_path, "a.txt", "\ufeffa\r\n\nb"))) == ["a\r\n", "\n", "b"]


@pytest.mark.parametrize("name", ["a.tsv", "a.jsonl", "a.csv", "a.xlsx", "a.xls"])
def test_a_pipe_is_not_waited_for(tmp_path, name):
    os.mkfifo(tmp_path / name)
    with pytest.raises(DataError, match="it is a folder, a device or a pipe, and no file"):
        rows_of(tmp_path / name)


@pytest.mark.parametrize("value", ["NaN", '"\\ud800"', "[" * 1000 + "]" * 1000])
def test_json_that_cannot_be_written_again_is_refused_with_its_line(tmp_path, value):
    with pytest.raises(DataError, match="line 2 is not JSON"):
        rows_of(
            write(tmp_path, "a.jsonl", '{"text": "x", "label": 1}\n{"text": "x", "label": 1, "more": ' + value + "}\n")
        )


def test_keys_that_the_first_line_of_json_lacks_are_named(tmp_path, caplog):
    path = write(tmp_path, "a.jsonl", '{"text": "x"}\n{"text": "y", "label": 1}\n{"text": "z", "label": 0}\n')
    with caplog.at_level(logging.WARNING):
        list(read_table(path).rows)
    assert len(caplog.messages) == 1
    assert f"{path}: key 'label' of line 2" in caplog.text


def test_a_blank_after_a_comma_belongs_to_no_field(tmp_path):
    file = write(tmp_path, "a.csv", 'text, label\n"hello, you", "pos"\nbye, neg\n')
    assert [row for _, row in rows_of(file)] == [["hello, you", "pos"], ["bye", "neg"]]


@pytest.mark.parametrize("cells", [('"{}"', "{}"), ("{}", '"{}"'), ('say "{}', "{}"), ('"', "{}")])
def test_quoted_columns_of_tsv_are_named(tmp_path, caplog, cells):
    rows = "".join("\t".join(cells).format(number, number) + "\n" for number in range(3))
    rows_of(write(tmp_path, "a.tsv", f"text\tlabel\n{rows}"))
    quoted = [name for name, cell in zip(COLUMNS, cells, strict=True) if cell == '"{}"']
    assert [name for name in COLUMNS if repr(name) in caplog.text] == quoted


def test_a_quoted_field_that_a_tab_tears_apart_is_preceded_by_the_warning(tmp_path, caplog):
    rows = read_table(write(tmp_path, "a.tsv", 'text\tlabel\n"a"\t1\n"b\tc"\t1\n')).select(COLUMNS)
    with pytest.raises(DataError, match="line 3"):
        list(rows)
    rows.close()


@pytest.mark.parametrize("name", ["a.tsv", "a.txt", "a.csv", "a.jsonl", "a.ndjson", "a.json"])
def test_carriage_returns_alone_and_other_encodings_are_named(tmp_path, name):
    rows = ["text\tlabel", "好\t1"] if name in ("a.tsv", "a.txt") else ["text,label", "好,1"]
    rows = rows if "json" not in name else ['{"text": "好", "label": 1}'] * 2
    content = "\n".join(rows) + "\n"
    for raw, cause in [
        (content.replace("\n", "\r").encode(), "carriage returns alone"),
        (content.encode("utf-16"), "UTF-16"),
        (content.encode("utf-16-le"), "UTF-16|not UTF-8"),
        (content.encode("gb18030"), "GB18030"),
    ]:
        with pytest.raises(DataError, match=cause):
            rows_of(write(tmp_path, name, raw))


CONTENT = {"a.tsv": "text\tlabel\n{}\t1\n", "a.csv": "text,label\n{},1\n", "a.json": '[{{"text": "{}", "label": 1}}]'}
CHINESE = "这家店的菜很好吃"


@pytest.mark.parametrize("name", [*CONTENT, "a.csv.gz"])
@pytest.mark.parametrize(
    ("encoding", "text"),
    [
        *[(encoding, CHINESE) for encoding in ("gb18030", "utf-16", "utf-16-le", "utf-8", "UTF8", "utf-8-sig", "big5")],
        ("latin-1", "déjà vu"),
        ("cp1252", "“déjà vu”"),
    ],
)
def test_named_encodings(tmp_path, name, encoding, text):
    text = "好" * 3000 if encoding == "big5" else text  # more than a chunk, which may end inside a character
    raw = CONTENT[name.removesuffix(".gz")].format(text).encode(encoding)
    path = write(tmp_path, name, gzip.compress(raw) if name.endswith(".gz") else raw)
    assert [fields for _, fields in read_table(path, options=TableOptions(encoding)).select(COLUMNS)] == [[text, "1"]]


@pytest.mark.parametrize("name", ["a.tsv", "a.csv", "a.json"])
@pytest.mark.parametrize(
    ("encoding", "named"),
    [
        ("utf-8", "gb18030 latin-1 cp1252 utf-16 utf-16-le"),
        ("gb18030", "utf-16 utf-16-be"),
        ("utf-16-le", "gb18030 latin-1 utf-8 utf-16"),
        ("latin-1", "ascii utf-16"),
    ],
)
def test_a_file_in_another_encoding_than_named_is_refused(tmp_path, name, encoding, named):
    text = "déjà" if encoding == "latin-1" else CHINESE
    path = write(tmp_path, name, CONTENT[name].format(text).encode(encoding))
    for wrong in named.split():
        with pytest.raises(DataError, match=name):
            list(read_table(path, options=TableOptions(wrong)).rows)


@pytest.mark.parametrize(
    ("encoding", "named"), [("gb18030", "--encoding gb18030"), ("utf-16", "UTF-16|utf-16"), ("latin-1", "cp1252")]
)
def test_the_option_is_named_where_there_is_one(tmp_path, encoding, named):
    text = "déjà" if encoding == "latin-1" else CHINESE
    path = write(tmp_path, "a.csv", CONTENT["a.csv"].format(text).encode(encoding))
    with pytest.raises(DataError, match=f"--encoding.*({named})|{named}"):
        list(read_table(path, options=TableOptions()).rows)
    with pytest.raises(DataError) as error:
        list(read_table(path).rows)
    assert "--encoding" not in str(error.value)


@pytest.mark.parametrize("encoding", ["gbk18030", "hex", "", "utf-8\0", "x" * 5000])
def test_unknown_encodings_are_refused(encoding):
    with pytest.raises(ConfigError) as error:
        TableOptions(encoding)
    assert error.value.key == "encoding" and error.value.value == encoding


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("text;label\na;1\n", "1"),
        ("text;label\na;0,5\n", "0,5"),
        ('text;label\na;"b; c"\n', "b; c"),
        ("text\tlabel\na\t1\n", "1"),
        ("text|label\na|1\n", "1"),
        ("text,label\na,1;2\n", "1;2"),
    ],
)
def test_what_separates_the_fields_of_a_csv_is_in_its_first_line(tmp_path, text, label):
    assert rows_of(write(tmp_path, "a.csv", text)) == [(2, ["a", label])]


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.txt"])
@pytest.mark.parametrize("delimiter", [";", "|", ",", r"\t", "\t", "§"])
def test_a_delimiter_may_be_named(tmp_path, name, delimiter):
    """Also where the first line has commas, or is no header."""
    separator = "\t" if delimiter == r"\t" else delimiter
    rows = [["Hello, you; and | all\there", "0,5"], ['a "quote"\nin two lines', "§1"]]
    for names in ([], ["text", "label"]):
        with (tmp_path / name).open("w", newline="", encoding="utf-8") as stream:
            csv.writer(stream, delimiter=separator).writerows([*([] if names else [["text, long", "label"]]), *rows])
        table = read_table(tmp_path / name, names, options=TableOptions(delimiter=delimiter))
        assert [fields for _, fields in table.select(table.names)] == rows


@pytest.mark.parametrize("delimiter", [";;", "semicolon", '"', "\n", "\r", "\0", r"\t\t", r"\n"])
def test_what_no_delimiter_is(delimiter):
    with pytest.raises(ConfigError) as error:
        TableOptions(delimiter=delimiter)
    assert error.value.key == "delimiter"


@pytest.mark.parametrize(("name", "delimiter"), [("a.csv", ""), ("a.tsv", ""), ("a.csv", ",")])
def test_the_delimiter_to_give_is_named(tmp_path, name, delimiter):
    path = write(tmp_path, name, "text, long;label;more\nHello, you, too;1;2\n")
    with pytest.raises(DataError, match=r"semicolons: give --delimiter ';'"):
        list(read_table(path, options=TableOptions(delimiter=delimiter)).select(["label"]))


def test_other_separators_are_named(tmp_path):
    with pytest.raises(DataError, match=r"separated by .*commas"):
        rows_of(write(tmp_path, "a.tsv", "text,label\na,1\n"))


@pytest.mark.parametrize("text", ['[{"text": "a", "label": 1}]', '\n[\n  {"text": "a",\n   "label": 1}\n]\n'])
def test_a_list_of_objects_is_a_table(tmp_path, text):
    assert rows_of(write(tmp_path, "a.json", text)) == [(1, ["a", "1"])]


@pytest.mark.parametrize("name", ["train.csv.gz", "train.CSV.GZ"])
def test_compressed_tables_have_the_form_of_their_inner_suffix(tmp_path, name):
    (tmp_path / name).write_bytes(gzip.compress(b"text,label\na,1\n"))
    assert rows_of(tmp_path / name) == [(2, ["a", "1"])]
    assert find_splits(str(tmp_path), {})["train"] == tmp_path / name


def test_a_missing_column_of_a_workbook_says_nothing_of_commas(tmp_path):
    with pytest.raises(DataError, match="'label'") as error:
        rows_of(xlsx(tmp_path / "a.xlsx", [["text", "value;more"], ["a", 1]]))
    assert "comma" not in str(error.value)


def test_long_names_of_columns_are_shortened(tmp_path):
    for header in ("\t".join("c" * 300 for _ in range(200)), "\t".join(["c" * 9000] * 2)):
        for columns in (COLUMNS, ["c" * 9000]):
            with pytest.raises(DataError) as error:
                rows_of(write(tmp_path, "a.tsv", header + "\nx\n"), columns)
            assert len(str(error.value)) < 3000
