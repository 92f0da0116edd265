"""Files of records and of answers: lines and their numbers, standard streams and pipes, what is refused before work."""

import contextlib
import gzip
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openpyxl
import pytest

import predict
from model_utils.config import _sentence
from model_utils.errors import ConfigError, DataError
from src.inference.deploy_config import PredictConfig
from src.inference.record_files import check_inputs, check_output, read_records, write_records
from src.text.text_tables import TableOptions
from tests.helpers.folder_state import folder_state


@contextlib.contextmanager
def ends_in(sentence: str) -> Iterator[None]:
    """The block ends in an error that run_main prints as this sentence, a pattern."""
    with pytest.raises((DataError, OSError)) as error:
        yield
    assert re.search(sentence, _sentence(error.value, None))


def records_of(path: Path, content: bytes, input_format: str = "auto") -> list[tuple[int, Any]]:
    """(line, record or error)."""
    path.write_bytes(content)
    return [(each.line, each.error or each.record) for each in read_records(str(path), input_format, "text_a")]


def test_json_lines(tmp_path: Path) -> None:
    content = (
        b'\xef\xbb\xbf{"text_a": "x", "id": 1}\r\n\n{"text_a"\n[1]\n{"text_a": "\xff"}\n{"text_a": "\xe5\xa5\xbd"}'
        b'\n \t\nnull\n0\nfalse\n""\n[]\n{}'
    )
    found = records_of(tmp_path / "a.jsonl", content)
    assert [line for line, _ in found] == [1, 3, 4, 5, 6, *range(8, 14)]
    assert found[0][1] == {"text_a": "x", "id": 1} and found[4][1] == {"text_a": "好"} and found[-1][1] == {}
    assert [error for _, error in found[5:-1]] == [f"line {line} is not a JSON object" for line in range(8, 13)]
    assert "line 3 is not JSON" in found[1][1]
    assert found[2][1] == "line 4 is not a JSON object" and found[3][1] == "line 5 is not UTF-8 text"


@pytest.mark.parametrize("value", ["NaN", "1e999", r'"\ud800"', "[" * 100_000])
def test_what_cannot_be_written_again_costs_its_own_line_only(value: str, tmp_path: Path) -> None:
    content = f'{{"text_a": "x", "more": {value}}}\n{{"text_a": "y"}}\n'.encode()
    found = records_of(tmp_path / "a.jsonl", content)
    assert "line 1 is not JSON" in found[0][1] and found[1] == (2, {"text_a": "y"})


def test_tables(tmp_path: Path) -> None:
    found = records_of(tmp_path / "a.tsv", b"text_a\ttext_b\tid\none\t\t7\ntwo\n")
    assert found[0] == (2, {"text_a": "one", "id": "7"})
    assert found[1][0] == 3 and "line 3 has 1 column(s)" in found[1][1]
    assert records_of(tmp_path / "a.csv", b'text_a,id\n"one, two",7\n') == [(2, {"text_a": "one, two", "id": "7"})]
    with pytest.raises(DataError, match=r"b\.tsv has 2 columns 'text_a'"):
        records_of(tmp_path / "b.tsv", b"text_a\tid\ttext_a\none\t7\ttwo\n")
    assert records_of(tmp_path / "c.csv", b"text_a,,,id\none,,,7\n") == [(2, {"text_a": "one", "id": "7"})]


def test_tables_in_another_encoding_and_sheets(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes("text_a,id\n很好,7\n".encode("gb18030"))
    book = openpyxl.Workbook()
    book.create_sheet("second").append(["text_a"])
    book["second"].append(["很好"])
    book.save(tmp_path / "a.xlsx")
    (tmp_path / "b.csv").write_text("text_a;id, name\n很好;7\n", encoding="utf-8")
    for name, options in (
        ("a.csv", TableOptions("gb18030")),
        ("a.xlsx", TableOptions(sheet="second")),
        ("b.csv", TableOptions(delimiter=";")),
    ):
        check_inputs([(str(tmp_path / name), "auto")], options)
        [record] = read_records(str(tmp_path / name), "auto", "text_a", options)
        assert record.record["text_a"] == "很好"
    with pytest.raises(DataError, match=r"a\.csv: .*--encoding gb18030"):
        check_inputs([(str(tmp_path / "a.csv"), "auto")])
    with pytest.raises(DataError, match=r"a\.xlsx has no sheet 'third'"):
        check_inputs([(str(tmp_path / "a.xlsx"), "auto")], TableOptions(sheet="third"))
    for name in ("a.jsonl", "a.txt", "-"):
        with pytest.raises(ConfigError, match="encoding, sheet and delimiter apply to tables"):
            check_inputs([(name, "auto")], TableOptions("gb18030"))
    (tmp_path / "a.jsonl").write_text('{"text_a": "one"}\n', encoding="utf-8")
    check_inputs([(str(tmp_path / "a.jsonl"), "auto"), (str(tmp_path / "a.csv"), "auto")], TableOptions("gb18030"))


def test_tables_may_be_compressed(tmp_path: Path) -> None:
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(b"text_a,id\nfine,7\n"))
    check_inputs([(str(tmp_path / "a.csv.gz"), "auto")])
    [record] = read_records(str(tmp_path / "a.csv.gz"), "auto", "text_a")
    assert record.record == {"text_a": "fine", "id": "7"}


def test_lines_may_be_compressed(tmp_path: Path) -> None:
    for name, content in (("a.jsonl.gz", b'{"text_a": "fine"}\n'), ("a.txt.gz", b"fine\n")):
        assert records_of(tmp_path / name, gzip.compress(content)) == [(1, {"text_a": "fine"})]
        check_inputs([(str(tmp_path / name), "auto")])
        (tmp_path / name).write_bytes(gzip.compress(content)[:15])
        with pytest.raises(DataError, match="damaged or cut short"):
            check_inputs([(str(tmp_path / name), "auto")])


def test_text_is_not_utf_16(tmp_path: Path) -> None:
    for encoding in ("utf-16", "utf-16-le"):
        (tmp_path / "a.txt").write_text("one\ntwo\n", encoding=encoding)
        with pytest.raises(DataError, match="as UTF-16 has"):
            check_inputs([(str(tmp_path / "a.txt"), "auto")])


def test_a_failed_formula_costs_no_record(tmp_path: Path) -> None:
    book = openpyxl.Workbook()
    for row in (("text_a", "price"), ("fine", "#N/A"), ("good", 3)):
        book.active.append(row)
    book.active["B2"].data_type = "e"
    book.save(tmp_path / "a.xlsx")
    found = [each.record for each in read_records(str(tmp_path / "a.xlsx"), "auto", "text_a")]
    assert found == [{"text_a": "fine"}, {"text_a": "good", "price": "3"}]


def test_columns_that_are_not_read_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.table({"text_a": ["fine"], "tokens": [["a", "b"]]}), tmp_path / "a.parquet")
    check_inputs([(str(tmp_path / "a.parquet"), "auto")])
    assert "tokens" in caplog.text
    assert [each.record for each in read_records(str(tmp_path / "a.parquet"), "auto", "text_a")] == [{"text_a": "fine"}]


def test_plain_lines_keep_their_number(tmp_path: Path) -> None:
    found = records_of(tmp_path / "a.txt", b"one\n\n two \r\n")
    assert found == [(1, {"text_a": "one"}), (2, {"text_a": ""}), (3, {"text_a": " two "})]
    assert records_of(tmp_path / "b.jsonl", b"{}\n", "text") == [(1, {"text_a": "{}"})]
    assert records_of(tmp_path / "b.ndjson", b'{"text_a": "one"}\n') == [(1, {"text_a": "one"})]
    for input_format, expected in (
        ("text", [(1, {"text_a": "a\tb"}), (2, {"text_a": "c\td"})]),
        ("table", [(2, {"a": "c", "b": "d"})]),
    ):
        assert records_of(tmp_path / "c.txt", b"a\tb\nc\td\n", input_format) == expected
        check_inputs([(str(tmp_path / "c.txt"), input_format)])


@pytest.mark.parametrize(
    ("name", "input_format", "sentence"),
    [
        ("nowhere", "auto", "nowhere.*: No such file"),
        ("nowhere.tsv", "auto", r"nowhere\.tsv cannot be read: No such file"),
        ("empty.tsv", "auto", r"empty\.tsv is empty"),
        (".", "text", "it is a folder, a device or a pipe"),
        ("pipe", "table", "pipe is not"),
        ("n" * 300, "text", "File name too long"),
        ("-", "table", "standard input .* table"),
        ("late.tsv", "auto", r"late\.tsv: byte 0xff at offset .* is not UTF-8 text"),
    ],
)
def test_an_input_that_cannot_be_is_refused_before_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, input_format: str, sentence: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty.tsv").touch()
    Path("late.tsv").write_bytes(b"text_a\n" + 40_000 * b"a text\n" + b"\xff\n")
    os.mkfifo("pipe")
    before = folder_state(tmp_path)
    with ends_in(sentence):
        check_inputs([(name, input_format)])
    with ends_in(sentence):
        list(read_records(name, input_format, "text_a"))
    with ends_in(sentence):
        predict.main(PredictConfig(model="nowhere", input=name, output="new/out", input_format=input_format))
    assert folder_state(tmp_path) == before


def test_half_an_output_is_never_seen(tmp_path: Path) -> None:
    file = tmp_path / "out.jsonl"
    file.write_text("old")
    with pytest.raises(ValueError, match="not JSON compliant"), write_records(str(file)) as answers:
        answers.write({"score": float("nan")})
    assert file.read_text() == "old" and [path.name for path in tmp_path.iterdir()] == ["out.jsonl"]
    with write_records(str(file)) as answers:
        answers.write({"label": "好"})
    assert file.read_text(encoding="utf-8") == '{"label": "好"}\n'


def test_an_output_that_cannot_be_is_refused_before_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "in.jsonl").touch()
    (tmp_path / "link").symlink_to(tmp_path / "in.jsonl")
    source = str(tmp_path / "in.jsonl")
    for same in ("in.jsonl", "link"):
        with pytest.raises(ConfigError, match="it is also the input") as error:
            check_output(str(tmp_path / same), source)
        assert (error.value.key, error.value.value) == ("output", str(tmp_path / same))
    with pytest.raises(ConfigError, match="only the shell expands ~") as error:
        check_output("~/out", source)
    assert (error.value.key, error.value.value) == ("output", "~/out")
    for name, sentence in (
        ("", "is a folder"),
        ("in.jsonl/x", "in.jsonl: Not a directory"),
        ("x" * 300, "name too long"),
    ):
        with ends_in(sentence):
            check_output(str(tmp_path / name), source)
    (tmp_path / "elsewhere").symlink_to("new/folder/out.jsonl")
    for name in ("new/out.jsonl", "elsewhere"):
        check_output(str(tmp_path / name), str(tmp_path / "nowhere"))
    assert not (tmp_path / "new").exists()
    with write_records(str(tmp_path / "elsewhere")) as answers:
        answers.write({"label": "good"})
    assert (tmp_path / "new/folder/out.jsonl").read_text() == '{"label": "good"}\n'
    asked: list[Path] = []
    monkeypatch.setattr("src.inference.record_files.check_writable", asked.append)
    check_output(str(tmp_path / "elsewhere"), source)
    assert asked == [tmp_path / "new/folder"]  # where writing happens


@pytest.mark.parametrize("ending", ["xls", "parquet", "jsonl.gz", "html"])
def test_an_output_whose_ending_promises_something_else_is_refused(tmp_path: Path, ending: str) -> None:
    with pytest.raises(ConfigError, match=rf"\.{ending.rpartition('.')[2]}.*\.jsonl"):
        check_output(str(tmp_path / f"out.{ending}"), "-")


def test_an_output_that_is_a_pipe_is_refused_and_stays(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "out.jsonl")
    with pytest.raises(DataError, match=r"out\.jsonl"):
        check_output(str(tmp_path / "out.jsonl"), "-")
    assert (tmp_path / "out.jsonl").is_fifo()


@pytest.mark.parametrize("name", ["out", "out.jsonl", "out.NDJSON", "out.json", "out.txt"])
def test_an_output_of_json_lines_is_allowed(tmp_path: Path, name: str) -> None:
    check_output(str(tmp_path / name), "-")


def test_standard_output_that_is_closed_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        with (
            pytest.raises(DataError, match="standard output cannot be written: Broken pipe"),
            write_records("-") as answers,
        ):
            answers.write({"label": "good"})
        monkeypatch.undo()
