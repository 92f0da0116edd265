"""Every form of a SQuAD file gives the same questions, and errors in JSON lines name the line."""

import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_utils.errors import DataError
from src.create_squad_data import SquadAnswer, SquadQuestion, SquadSplit, read_squad
from src.tokenization import FullTokenizer

Record = dict[str, Any]

QUESTIONS = [
    SquadQuestion("a", "Who?", "Ann saw Lyon.", (SquadAnswer("Ann", 0),)),
    SquadQuestion("b", "What?", "Ann saw Lyon.", (SquadAnswer("Lyon", 8), SquadAnswer("Lyon.", 8))),
    SquadQuestion("c", "Why?", "Ann saw Lyon.", (), True),
    SquadQuestion("字", "什么？", "这是\u2028北京城。", (SquadAnswer("北京", 3),)),
    SquadQuestion("d", "Where?", "Ann saw Lyon.", (SquadAnswer("Lyon", 8),)),
]


def flat(question: SquadQuestion) -> Record:
    """Return a question as Hugging Face's datasets write it."""
    texts = [answer.text for answer in question.answers]
    starts = [answer.start for answer in question.answers]
    return {
        "id": question.id,
        "title": "A title",
        "context": question.context,
        "question": question.question,
        "answers": {"text": texts, "answer_start": starts},
    }


def flat_with_objects(question: SquadQuestion) -> Record:
    return with_objects(question) | {"is_impossible": question.is_impossible}


def with_objects(question: SquadQuestion) -> Record:
    return flat(question) | {"answers": [{"text": one.text, "answer_start": one.start} for one in question.answers]}


def article(question: SquadQuestion) -> Record:
    asked = with_objects(question)
    context = asked.pop("context")
    return {"title": asked.pop("title"), "paragraphs": [{"context": context, "qas": [asked]}]}


def json_lines(records: list[Record]) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


def json_lines_with_blank_ones(records: list[Record]) -> str:
    return "\ufeff\r\n" + "\r\n\r\n".join(json.dumps(record, ensure_ascii=False) for record in records)


RECORDS: dict[str, Callable[[SquadQuestion], Record]] = {
    "flat": flat,
    "flat with objects": flat_with_objects,
    "articles": article,
}
FILES: dict[str, Callable[[list[Record]], str]] = {
    "lines": json_lines,
    "blank lines": json_lines_with_blank_ones,
    "list": json.dumps,
    "document": lambda records: json.dumps({"version": "1.1", "data": records}),
    "indented document": lambda records: json.dumps({"data": records}, indent=2),
}


def without_sources(questions: list[SquadQuestion]) -> list[tuple]:
    return [(one.id, one.question, one.context, one.answers, one.is_impossible) for one in questions]


@pytest.mark.parametrize("name", ["dev.json", "dev.jsonl", "dev.ndjson"])
@pytest.mark.parametrize("layout", FILES)
@pytest.mark.parametrize("kind", RECORDS)
def test_the_same_questions_come_out_of_every_form(tmp_path: Path, kind: str, layout: str, name: str) -> None:
    path = tmp_path / name
    path.write_text(FILES[layout]([RECORDS[kind](question) for question in QUESTIONS]), encoding="utf-8", newline="")
    for labelled in (True, False):
        questions = read_squad(path, version_2=True, labelled=labelled)
        expected = without_sources(QUESTIONS)
        if not labelled and kind != "flat with objects":
            expected[2] = (*expected[2][:4], False)  # a question without an answer may be one that is not told
        assert without_sources(questions) == expected
        assert {question.source for question in questions} == {name}
    assert len({id(question.context) for question in questions}) == 2


@pytest.mark.parametrize("kind", RECORDS)
@pytest.mark.parametrize("layout", FILES)
def test_one_question_is_enough(tmp_path: Path, kind: str, layout: str) -> None:
    """Also of a compressed file."""
    path = tmp_path / "dev.json"
    path.write_bytes(gzip.compress(FILES[layout]([RECORDS[kind](QUESTIONS[1])]).encode()))
    assert without_sources(read_squad(path, version_2=False)) == without_sources(QUESTIONS[1:2])


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(str.strip)


@given(st.lists(st.builds(SquadQuestion, TEXTS, TEXTS, TEXTS), min_size=1, unique_by=lambda question: question.id))
def test_any_text_comes_out_of_json_lines(
    tmp_path_factory: pytest.TempPathFactory, questions: list[SquadQuestion]
) -> None:
    path = tmp_path_factory.mktemp("squad") / "test.jsonl"
    path.write_text(json_lines_with_blank_ones(list(map(flat, questions))), encoding="utf-8", newline="")
    assert without_sources(read_squad(path, version_2=False, labelled=False)) == without_sources(questions)


def test_questions_to_predict_need_no_answers(tmp_path: Path) -> None:
    records = list(map(flat, QUESTIONS))
    del records[0]["answers"]
    records[1]["answers"] = {"text": [], "answer_start": []}
    path = tmp_path / "test.jsonl"
    path.write_text(json_lines(records))
    for version_2 in (False, True):
        questions = read_squad(path, version_2, labelled=False)
        assert [len(question.answers) for question in questions] == [0, 0, 0, 1, 1]
        assert not any(question.is_impossible for question in questions)
    with pytest.raises(DataError, match="line 1: answers is missing in question 'a'"):
        read_squad(path, version_2=True)


def test_empty_lists_are_a_question_without_an_answer_of_version_2_alone(tmp_path: Path) -> None:
    path = tmp_path / "dev.jsonl"
    path.write_text(json_lines(list(map(flat, QUESTIONS))))
    impossible = [question.id for question in read_squad(path, version_2=True) if question.is_impossible]
    assert impossible == ["c"]
    with pytest.raises(DataError, match=r"line 3: answers is empty in question 'c'; .*run_squad_v2\.py"):
        read_squad(path, version_2=False)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"id": None}, "id"),
        ({"id": 7}, "id"),
        ({"context": None}, "context"),
        ({"context": " "}, "context"),
        ({"question": None}, "question"),
        ({"question": ["What?"]}, "question"),
        ({"answers": None}, "answers"),
        ({"answers": "Ann"}, "answers"),
        ({"answers": {"text": ["Ann"]}}, "answers"),
        ({"answers": {"answer_start": [0]}}, "answers"),
        ({"answers": {"text": "Ann", "answer_start": [0]}}, "answers"),
        ({"answers": {"text": ["Ann"], "answer_start": 0}}, "answers"),
        ({"answers": {"text": ["Ann", "Lyon"], "answer_start": [0]}}, "answers"),
        ({"answers": {"text": ["Ann", 3], "answer_start": [0, 1]}}, "answers.1.text"),
        ({"answers": {"text": ["Ann"], "answer_start": ["0"]}}, "answers.0.answer_start"),
        ({"answers": {"text": ["Ann"], "answer_start": [True]}}, "answers.0.answer_start"),
        ({"answers": {"text": ["Ann"], "answer_start": [0.5]}}, "answers.0.answer_start"),
        ({"answers": {"text": [], "answer_start": []}, "is_impossible": False}, "is_impossible"),
        ({"is_impossible": True}, "is_impossible"),
    ],
)
@pytest.mark.parametrize("line", [1, 4, 5])
def test_what_is_wrong_in_a_flat_record_is_named_with_its_line(
    tmp_path: Path, changes: Record, named: str, line: int
) -> None:
    records = list(map(flat, QUESTIONS))
    changed = {**flat(QUESTIONS[0]), "id": "new", **changes}
    records[line - 1] = {key: value for key, value in changed.items() if value is not None}
    path = tmp_path / "dev.jsonl"
    path.write_text(json_lines(records))
    with pytest.raises(DataError, match=rf"dev\.jsonl: line {line}: {re.escape(named)} is "):
        read_squad(path, version_2=True)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"id": "1"', "is not JSON"),
        ("Extra", "is not JSON"),
        ('{"id": "1"}}', "is not JSON"),
        ('{"id": NaN}', "is not JSON"),
        ('{"id": "\\ud83d"}', "is not JSON"),
        ("[1]", "needed is"),
        ("7", "needed is"),
        ("null", "needed is"),
        ("{}", "paragraphs"),
        ('{"paragraphs": [{"context": "x"}]}', r"paragraphs\.0\.qas"),
    ],
)
@pytest.mark.parametrize("record", [flat, article])
def test_a_line_that_is_no_record_is_named(tmp_path: Path, text: str, reason: str, record: Callable) -> None:
    path = tmp_path / "dev.jsonl"
    lines = [json.dumps(record(question)) for question in QUESTIONS]
    path.write_text("\n".join([lines[0], "", text, *lines[1:]]))
    with pytest.raises(DataError, match=rf"line 3:? {reason}"):
        read_squad(path, version_2=True)


TWICE = json_lines([flat(question) for question in (*QUESTIONS, QUESTIONS[1])])


@pytest.mark.parametrize(
    ("text", "reason"),
    [(text, "") for text in ("", "\n\n", "not JSON", "{", '{"data": [', "{}\n{}")] + [(TWICE, ".*id 'b'")],
)
def test_files_are_refused_by_name(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "dev.jsonl"
    path.write_text(text)
    with pytest.raises(DataError, match=rf"dev\.jsonl{reason}"):
        read_squad(path, version_2=True)


LONG = "x" * 20_000


@pytest.mark.parametrize(
    "changes", [{"id": [LONG]}, {"answers": LONG}, {"answers": {"text": [[LONG]], "answer_start": [0]}}]
)
def test_errors_do_not_quote_long_values(tmp_path: Path, changes: Record) -> None:
    path = tmp_path / "dev.jsonl"
    path.write_text(json_lines([flat(QUESTIONS[0]) | changes] * 2))
    with pytest.raises(DataError, match="line 1") as caught:
        read_squad(path, version_2=True)
    assert len(str(caught.value)) < 500


def test_warnings_do_not_quote_long_values(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    vocabulary = tmp_path / "vocab.txt"
    vocabulary.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]))
    context = f"a {LONG}"
    misplaced = SquadQuestion(LONG, "Who?", context, (SquadAnswer(LONG, 0),))
    good = SquadQuestion("1", "Who?", context, (SquadAnswer("a", 0),))
    SquadSplit("train", [misplaced, good], FullTokenizer(vocabulary), 16, 8, 4).features()
    assert 100 < len(capsys.readouterr().out) < 1000
