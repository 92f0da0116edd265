"""The same questions come out of every form of a SQuAD file, and errors in JSON lines name the line."""

import gzip
import json
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
Articles = dict[str, list[tuple[str, str]]]  # title -> (context, id of a question) one after the other

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
    return flat(question) | {
        "answers": [{"text": answer.text, "answer_start": answer.start} for answer in question.answers],
        "is_impossible": question.is_impossible,
    }


def article(question: SquadQuestion) -> Record:
    asked = flat(question) | {
        "answers": [{"text": answer.text, "answer_start": answer.start} for answer in question.answers]
    }
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
    path = tmp_path / "dev.json"
    path.write_text(FILES[layout]([RECORDS[kind](QUESTIONS[1])]), encoding="utf-8")
    assert without_sources(read_squad(path, version_2=False)) == without_sources(QUESTIONS[1:2])


def test_a_compressed_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "dev.jsonl.gz"
    path.write_bytes(gzip.compress(json_lines(list(map(flat, QUESTIONS))).encode()))
    assert without_sources(read_squad(path, version_2=True)) == without_sources(QUESTIONS)


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(str.strip)


@given(st.lists(st.builds(SquadQuestion, TEXTS, TEXTS, TEXTS), min_size=1, unique_by=lambda question: question.id))
def test_any_text_comes_out_of_json_lines(
    tmp_path_factory: pytest.TempPathFactory, questions: list[SquadQuestion]
) -> None:
    path = tmp_path_factory.mktemp("squad") / "test.jsonl"
    path.write_text(json_lines_with_blank_ones(list(map(flat, questions))), encoding="utf-8", newline="")
    assert without_sources(read_squad(path, version_2=False, labelled=False)) == without_sources(questions)


@pytest.mark.parametrize("kind", RECORDS)
def test_features_of_lines_are_those_of_the_document(tmp_path: Path, kind: str) -> None:
    vocabulary = tmp_path / "vocab.txt"
    vocabulary.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "ann", "saw", "lyon", "who"]))
    tokenizer = FullTokenizer(vocabulary)
    ids = []
    for layout, record in (("document", article), ("lines", RECORDS[kind])):
        path = tmp_path / f"{layout}.json"
        path.write_text(FILES[layout](list(map(record, QUESTIONS))), encoding="utf-8")
        features = SquadSplit("train", read_squad(path, True), tokenizer, 16, 8, 4).features()
        ids.append({name: ragged.values.tolist() for name, ragged in features.values.items()})
    assert ids[0] == ids[1]


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
    with pytest.raises(DataError, match="line 1: answers is missing"):
        read_squad(path, version_2=True)


def test_empty_lists_are_a_question_without_an_answer_of_version_2_alone(tmp_path: Path) -> None:
    path = tmp_path / "dev.jsonl"
    path.write_text(json_lines(list(map(flat, QUESTIONS))))
    assert [question.is_impossible for question in read_squad(path, version_2=True)] == [False, False, True] + [
        False
    ] * 2
    with pytest.raises(DataError, match=r"line 3: answers is empty.*run_squad_v2\.py"):
        read_squad(path, version_2=False)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"id": None}, "id is missing"),
        ({"id": 7}, "id is 7"),
        ({"context": None}, "context is missing"),
        ({"context": " "}, "context is empty"),
        ({"question": None}, "question is missing"),
        ({"question": ["What?"]}, "question is"),
        ({"answers": None}, "answers is missing"),
        ({"answers": "Ann"}, 'answers is "Ann"'),
        ({"answers": {"text": ["Ann"]}}, r"answers\.answer_start is missing"),
        ({"answers": {"answer_start": [0]}}, r"answers\.text is missing"),
        ({"answers": {"text": "Ann", "answer_start": [0]}}, r"answers\.text is"),
        ({"answers": {"text": ["Ann"], "answer_start": 0}}, r"answers\.answer_start is 0"),
        ({"answers": {"text": ["Ann", "Lyon"], "answer_start": [0]}}, r"answers\.answer_start is .*1.* 2"),
        ({"answers": {"text": ["Ann", 3], "answer_start": [0, 1]}}, r"answers\.text\[1\] is 3"),
        ({"answers": {"text": ["Ann"], "answer_start": ["0"]}}, r"answers\.answer_start\[0\] is \"0\""),
        ({"answers": {"text": ["Ann"], "answer_start": [True]}}, r"answers\.answer_start\[0\] is true"),
        ({"answers": {"text": ["Ann"], "answer_start": [0.5]}}, r"answers\.answer_start\[0\] is 0\.5"),
        ({"answers": {"text": [], "answer_start": []}, "is_impossible": False}, "is_impossible is false"),
        ({"is_impossible": True}, "is_impossible is true"),
    ],
)
@pytest.mark.parametrize("line", [1, 4, 5])
def test_what_is_wrong_in_a_flat_record_is_named_with_its_line(
    tmp_path: Path, changes: Record, message: str, line: int
) -> None:
    records = [flat(question) for question in QUESTIONS]
    records[line - 1] = {**flat(QUESTIONS[0]), "id": "new", **changes}
    records[line - 1] = {key: value for key, value in records[line - 1].items() if value is not None}
    path = tmp_path / "dev.jsonl"
    path.write_text(json_lines(records))
    with pytest.raises(DataError, match=rf"dev\.jsonl .*line {line}: {message}"):
        read_squad(path, version_2=True)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"id": "1"', "line 3 is not JSON"),
        ("Extra", "line 3 is not JSON"),
        ('{"id": "1"}}', "line 3 is not JSON"),
        ('{"id": NaN}', "line 3 is not JSON"),
        ('{"id": "\\ud83d"}', "line 3 is not JSON"),
        ("[1]", "line 3 is"),
        ("7", "line 3 is 7"),
        ("null", "line 3 is None"),
        ("{}", "line 3: paragraphs is missing"),
        ('{"paragraphs": [{"context": "x"}]}', r"line 3: paragraphs\[0\]\.qas is missing"),
    ],
)
@pytest.mark.parametrize("record", [flat, article])
def test_a_line_that_is_no_record_is_named(
    tmp_path: Path, text: str, message: str, record: Callable[[SquadQuestion], Record]
) -> None:
    path = tmp_path / "dev.jsonl"
    lines = [json.dumps(record(question)) for question in QUESTIONS]
    path.write_text("\n".join([lines[0], "", text, *lines[1:]]))
    with pytest.raises(DataError, match=message):
        read_squad(path, version_2=True)


def test_ids_are_given_once_in_every_form(tmp_path: Path) -> None:
    path = tmp_path / "dev.jsonl"
    path.write_text(json_lines([flat(question) for question in (*QUESTIONS, QUESTIONS[1])]))
    with pytest.raises(DataError, match="two questions have the id 'b'"):
        read_squad(path, version_2=True)


@pytest.mark.parametrize("text", ["", "\n\n", "not JSON", "{", '{"data": [', "{}\n{}"])
def test_files_without_records_are_refused_by_name(tmp_path: Path, text: str) -> None:
    path = tmp_path / "dev.jsonl"
    path.write_text(text)
    with pytest.raises(DataError, match=r"dev\.jsonl"):
        read_squad(path, version_2=True)


def test_sentences_stay_short_whatever_the_file_holds(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    long = "x" * 20_000
    for changes in ({"id": [long]}, {"answers": long}, {"answers": {"text": [[long]], "answer_start": [0]}}):
        path = tmp_path / "dev.jsonl"
        path.write_text(json_lines([flat(QUESTIONS[0]) | changes] * 2))
        with pytest.raises(DataError, match="line 1") as caught:
            read_squad(path, version_2=True)
        assert len(str(caught.value)) < 500
    vocabulary = tmp_path / "vocab.txt"
    vocabulary.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]))
    context = f"a {long}"
    asked = SquadQuestion(long, "Who?", context, (SquadAnswer(long, 0),))
    good = SquadQuestion("1", "Who?", context, (SquadAnswer("a", 0),))
    SquadSplit("train", [asked, good], FullTokenizer(vocabulary), 16, 8, 4).features()
    assert 100 < len(capsys.readouterr().out) < 1000
