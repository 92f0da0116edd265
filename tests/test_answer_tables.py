"""Answers as tables: what csv and openpyxl read of them."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from openpyxl import load_workbook

from model_utils.errors import DataError
from src.inference.record_files import check_output, write_records
from src.text.text_tables import read_table

RECORDS: list[dict[str, Any]] = [
    {"text_a": 'a "warm", funny\nfilm', "label": "good", "probabilities": {"good": 0.75, "bad": 0.25}},
    {"text_a": "=1+1", "label": "bad", "probabilities": {"good": 0.1, "bad": 0.9}, "truncated": True},
    {"id": 7, "line": 3, "error": "the record has no text_a"},
    {"text_a": "tab\there, 好", "entities": [{"text": "Ada", "label": "PER"}], "score": None},
]
NAMES = ["text_a", "label", "probabilities.good", "probabilities.bad", "truncated", "id", "line", "error"]
NAMES += ["entities", "score"]


def written(path: Path, records: list[dict[str, Any]]) -> Path:
    check_output(str(path), "-")
    with write_records(str(path)) as answers:
        for record in records:
            answers.write(record)
    return path


def test_fields_are_those_that_csv_reads(tmp_path: Path) -> None:
    with written(tmp_path / "out.CSV", RECORDS).open(newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    assert list(rows[0]) == NAMES
    assert [row["text_a"] for row in rows] == [record.get("text_a", "") for record in RECORDS]
    assert rows[0]["probabilities.bad"] == "0.25" and rows[1]["truncated"] == "True" and rows[2]["id"] == "7"
    assert json.loads(rows[3]["entities"]) == RECORDS[3]["entities"]


def test_a_lone_carriage_return_stays_within_its_csv_field(tmp_path: Path) -> None:
    file = written(tmp_path / "out.csv", [{"text_a": "first\rsecond", "label": "good"}])
    with file.open(newline="", encoding="utf-8") as stream:
        assert list(csv.reader(stream)) == [["text_a", "label"], ["first\rsecond", "good"]]


def test_cells_are_those_that_openpyxl_reads(tmp_path: Path) -> None:
    sheet = load_workbook(written(tmp_path / "out.xlsx", RECORDS)).active
    rows = [dict(zip(NAMES, row, strict=True)) for row in sheet.iter_rows(min_row=2, values_only=True)]
    assert [cell.value for cell in sheet[1]] == NAMES
    assert [row["text_a"] for row in rows] == [record.get("text_a") for record in RECORDS]
    assert sheet["A3"].data_type == "s"  # no formula
    assert rows[0]["probabilities.bad"] == 0.25 and rows[1]["truncated"] is True and rows[2]["id"] == 7


def test_tab_separated_fields_are_read_as_tables_of_texts_are(tmp_path: Path) -> None:
    table = read_table(written(tmp_path / "out.tsv", RECORDS))
    rows = [dict(zip(NAMES, fields, strict=True)) for _, fields in table.select(NAMES)]
    assert [row["text_a"] for row in rows] == ['a "warm", funny\\nfilm', "=1+1", "", "tab\\there, 好"]
    assert rows[0]["probabilities.bad"] == "0.25" and json.loads(rows[3]["entities"]) == RECORDS[3]["entities"]


def test_a_text_that_no_cell_holds_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"row 3 .* 32,768 characters"):
        written(tmp_path / "out.xlsx", [{"text_a": "a"}, {"text_a": "a" * 32_768}])
    assert not list(tmp_path.iterdir())


def test_characters_that_no_workbook_holds_are_replaced(tmp_path: Path) -> None:
    records = [{"text_a": "a\x00b\x1fc", "id": 12_345_678_901_234_567}]
    sheet = load_workbook(written(tmp_path / "out.xlsx", records)).active
    assert sheet["A2"].value == "a\ufffdb\ufffdc"
    assert sheet["B2"].value == "12345678901234567"  # as a number Excel would round it


@pytest.mark.parametrize("ending", [".csv", ".tsv", ".xlsx"])
def test_two_values_for_a_column_are_refused(tmp_path: Path, ending: str) -> None:
    record = {"probabilities.good": "mine", "probabilities": {"good": 0.9}}
    for items in (record.items(), reversed(record.items())):
        with pytest.raises(DataError, match=r"probabilities\.good"):
            written(tmp_path / f"out{ending}", [dict(items)])
        assert not list(tmp_path.iterdir())


def test_columns_of_all_records_count(tmp_path: Path) -> None:
    records = [{f"{number}.{column}": 1 for column in range(2_000)} for number in range(9)]
    with pytest.raises(DataError, match="16,384 columns"):
        written(tmp_path / "out.xlsx", records)
    with pytest.raises(DataError, match="40,000 characters"):
        written(tmp_path / "out.xlsx", [{"a" * 40_000: 1}])


def test_what_a_workbook_cannot_hold_is_refused_before_the_next_record(tmp_path: Path) -> None:
    """Not at the end, when all records have been answered."""
    with write_records(str(tmp_path / "out.xlsx")) as answers, pytest.raises(DataError, match="row 2"):
        answers.write({"text_a": "a" * 32_768})
