"""Tables of predictions: every field comes back, and numbers are told apart."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from src.tasks.prediction_table import write_prediction_table
from src.tasks.record_processor import shortest
from src.text.text_tables import read_table

ESCAPES = {r"\\": "\\", r"\t": "\t", r"\n": "\n", r"\r": "\r"}


def unescape(field: str) -> str:
    parts, place = [], 0
    while place < len(field):
        step = 2 if field[place] == "\\" else 1
        parts.append(ESCAPES[field[place : place + 2]] if step == 2 else field[place])
        place += step
    return "".join(parts)


@given(st.lists(st.text(st.characters(codec="utf-8")), min_size=1, max_size=5))
def test_every_text_stays_in_its_field(tmp_path_factory, texts):
    folder = tmp_path_factory.mktemp("table")
    write_prediction_table(folder, "dev", {"index": range(len(texts)), "text": texts})
    table = read_table(folder / "predictions_dev.tsv")
    assert table.names == ["index", "text"]
    assert [(line, row[0], unescape(row[1])) for line, row in table.rows] == [
        (number + 2, str(number), text) for number, text in enumerate(texts)
    ]


def test_numbers_come_back_exactly(tmp_path):
    scores = np.nextafter(np.float32([0.1, 2.5, 1e-7, -3e5]), np.float32(9))
    write_prediction_table(tmp_path, "test", {"score": scores, "label": np.array([0, 1, 2, 3], np.int32)})
    rows = [row for _, row in read_table(tmp_path / "predictions_test.tsv").rows]
    assert [np.float32(score) for score, _ in rows] == scores.tolist()
    assert max(len(score) for score, _ in rows) < 16  # no digits of float64
    assert [label for _, label in rows] == list("0123")


def test_a_float32_has_as_few_digits_as_tell_it(tmp_path):
    hundredths = [f"{number / 100}" for number in range(0, 500)]
    scores = np.array(hundredths, np.float32)
    write_prediction_table(tmp_path, "dev", {"score": scores})
    assert [row[0] for _, row in read_table(tmp_path / "predictions_dev.tsv").rows] == hundredths
    assert shortest(scores) == [float(text) for text in hundredths]
    assert [str(value) for value in shortest(scores.reshape(100, 5))[1]] == hundredths[5:10]
