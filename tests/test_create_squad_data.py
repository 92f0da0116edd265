"""SQuAD: files, windows, positions; google's own features as the reference."""

import copy
import json
import re
import tracemalloc

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from model_utils.errors import DataError
from src.create_squad_data import SquadAnswer, SquadQuestion, SquadSplit, SquadWindows, read_squad
from src.data.feature_cache import cached_features
from src.data.features import best_windows
from src.tokenization import FullTokenizer

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
PAD, UNK, CLS, SEP, MASK = range(5)
LETTERS = "abcdefghijklmnopqrst"
A, B, C, D, E, F, G, H = range(5, 13)  # ids of the first letters
LONG = {"context": "A b c d e", "qas": []}
LONG["qas"].append({"id": "1", "question": "f g", "answers": [{"text": "c d", "answer_start": 4}]})
LONG["qas"].append(
    {"id": "2", "question": "h", "answers": [{"text": "A", "answer_start": 0}, {"text": "A b", "answer_start": 0}]}
)
SHORT = {"context": "f g", "qas": [{"id": "3", "question": "i", "answers": [{"text": "g", "answer_start": 2}]}]}
SQUAD = {"version": "1.1", "data": [{"title": "Letters", "paragraphs": [LONG, SHORT]}]}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory) -> FullTokenizer:
    path = tmp_path_factory.mktemp("vocabulary") / "vocab.txt"
    path.write_text("\n".join([*SPECIALS, *LETTERS]))
    return FullTokenizer(path)


@pytest.fixture(scope="module")
def english(shared) -> FullTokenizer:
    return FullTokenizer(spm_model_file=shared / "data" / "vocab" / "30k-clean.model")


def write(tmp_path, document, name="dev.json"):
    path = tmp_path / name
    path.write_text(document if isinstance(document, str) else json.dumps(document), encoding="utf-8")
    return path


def first_question(document):
    return document["data"][0]["paragraphs"][0]["qas"][0]


def impossible(document, **changes):
    """The document, its first question without an answer."""
    document = copy.deepcopy(document)
    question = first_question(document)
    question |= {"answers": [], "is_impossible": True} | changes
    return document


def rows_of(features, name):
    """Lists of one column; numbers where it has a single value in each row."""
    values = features.values[name]
    rows = [row.tolist() for row in np.split(values.values, np.cumsum(values.counts)[:-1])]
    return rows if features.columns[name].per_token else [row[0] for row in rows]


def targets_of(features):
    columns = (rows_of(features, name) for name in ("start_positions", "end_positions", "is_impossible"))
    return list(zip(*columns, strict=True))


# --- reading ---


def test_a_file_is_read_in_its_order(tmp_path):
    questions = read_squad(write(tmp_path, SQUAD), version_2=False)
    assert questions == [
        SquadQuestion("1", "f g", "A b c d e", (SquadAnswer("c d", 4),), False, "dev.json"),
        SquadQuestion("2", "h", "A b c d e", (SquadAnswer("A", 0), SquadAnswer("A b", 0)), False, "dev.json"),
        SquadQuestion("3", "i", "f g", (SquadAnswer("g", 2),), False, "dev.json"),
    ]
    assert questions[0].context is questions[1].context
    assert read_squad(write(tmp_path, "\ufeff" + json.dumps(SQUAD)), version_2=True) == questions


def test_version_2_has_questions_without_an_answer(tmp_path):
    (question, other, _) = read_squad(write(tmp_path, impossible(SQUAD, plausible_answers=[])), version_2=True)
    assert question.is_impossible
    assert question.answers == ()
    assert not other.is_impossible
    document = copy.deepcopy(SQUAD)
    del first_question(document)["answers"]
    with pytest.raises(DataError, match=r"data\.0: answers is missing in question '1'"):
        read_squad(write(tmp_path, document), version_2=True)


@pytest.mark.parametrize(
    ("said", "version_2", "expected"), [(True, True, True), (True, False, False), (False, True, False)]
)
def test_questions_to_predict_may_say_that_they_have_no_answer(tmp_path, said, version_2, expected):
    path = write(tmp_path, impossible(SQUAD, is_impossible=said))
    question = read_squad(path, version_2, labelled=False)[0]
    assert question.is_impossible == expected
    assert question.answers == ()
    contradiction = write(tmp_path, impossible(SQUAD, answers=first_question(SQUAD)["answers"]))
    with pytest.raises(DataError, match="is_impossible is true"):
        read_squad(contradiction, version_2=True, labelled=False)


PARAGRAPH = ("data", 0, "paragraphs", 1)
QUESTION = (*PARAGRAPH, "qas", 0)
ANSWER = (*QUESTION, "answers", 0)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("data",), None),
        (("data",), {}),
        (("data", 0), "x"),
        (("data", 0, "paragraphs"), None),
        (PARAGRAPH, 7),
        ((*PARAGRAPH, "context"), None),
        ((*PARAGRAPH, "context"), " \n"),
        ((*PARAGRAPH, "qas"), None),
        ((*QUESTION, "id"), None),
        ((*QUESTION, "id"), 12),
        ((*QUESTION, "question"), None),
        ((*QUESTION, "answers"), {"text": ["g"]}),
        ((*QUESTION, "is_impossible"), "no"),
        ((*QUESTION, "is_impossible"), True),
        ((*ANSWER, "text"), None),
        ((*ANSWER, "answer_start"), None),
        ((*ANSWER, "answer_start"), "2"),
        ((*ANSWER, "answer_start"), True),
    ],
)
def test_what_is_not_squad_is_named_by_its_place(tmp_path, place, value):
    document = copy.deepcopy(SQUAD)
    node = document
    for key in place[:-1]:
        node = node[key]
    if value is None:
        del node[place[-1]]
    else:
        node[place[-1]] = value
    name = ".".join(map(str, place)).replace("data.0.", "data.0: ")
    if value is True and place[-1] == "is_impossible":
        name = "data.0: is_impossible is true in question '3'"
    with pytest.raises(DataError, match=rf"dev\.json.*{re.escape(name)}"):
        read_squad(write(tmp_path, document), version_2=True)


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        ('{"data": [', r"dev\.json is not JSON"),
        ('"data"', "data is 'data'"),
        ("7.5", "data is 7.5"),
        ('{"questions": "x"}', "data is None"),
        ({"data": []}, "no questions"),
        (SQUAD | {"data": SQUAD["data"] * 2}, "id '1'"),
    ],
)
def test_files_that_are_refused(tmp_path, document, reason):
    with pytest.raises(DataError, match=reason):
        read_squad(write(tmp_path, document), version_2=False)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(DataError, match=r"nowhere\.json"):
        read_squad(tmp_path / "nowhere.json", version_2=False)


# --- windows ---


def test_the_windows_of_a_book_take_memory_by_its_tokens():
    starts = np.arange(0, 200_000, 63)
    tracemalloc.start()
    best = best_windows(starts, np.minimum(126, 200_000 - starts))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(best) == 200_000 and peak < 10e6


def letters(count: int, answer: tuple[int, int] | None = None, question: str = "a b") -> SquadQuestion:
    """A context of so many letters, and the letters of the answer (the first one and the one after the last)."""
    text = " ".join((LETTERS * count)[:count])
    answers = (SquadAnswer(text[2 * answer[0] : 2 * answer[1] - 1], 2 * answer[0]),) if answer else ()
    return SquadQuestion(f"{count} {answer}", question, text, answers, answer is None)


def test_a_context_that_fits(tokenizer):
    features = SquadSplit("train", [letters(4, (1, 3))], tokenizer, 16, 8, 4).features()
    assert rows_of(features, "input_ids") == [[CLS, A, B, SEP, A, B, C, D, SEP]]
    assert rows_of(features, "input_mask") == [[1] * 9]
    assert rows_of(features, "segment_ids") == [[0, 0, 0, 0, 1, 1, 1, 1, 1]]
    assert rows_of(features, "p_mask") == [[0, 1, 1, 1, 0, 0, 0, 0, 1]]
    assert targets_of(features) == [(5, 6, 0)]
    assert features.arrays == {}
    padding = {name: column.padding for name, column in features.columns.items() if column.per_token}
    assert padding == {"input_ids": PAD, "input_mask": 0, "segment_ids": 0, "p_mask": 1}
    assert {values.values.dtype for values in features.values.values()} == {np.dtype(np.int32)}


def test_a_long_context_becomes_windows(tokenizer):
    features = SquadSplit("train", [letters(8, (3, 5))], tokenizer, 9, 2, 2).features()
    assert rows_of(features, "input_ids") == [
        [CLS, A, B, SEP, A, B, C, D, SEP],
        [CLS, A, B, SEP, C, D, E, F, SEP],
        [CLS, A, B, SEP, E, F, G, H, SEP],
    ]
    assert targets_of(features) == [(0, 0, 1), (5, 6, 0), (0, 0, 1)]  # the answer is D, E


def test_a_long_question_is_cut_and_leaves_room(tokenizer):
    features = SquadSplit("train", [letters(6, (0, 1), "c d e f")], tokenizer, 9, 3, 3).features()
    assert rows_of(features, "input_ids") == [[CLS, C, D, E, SEP, A, B, C, SEP], [CLS, C, D, E, SEP, D, E, F, SEP]]
    assert targets_of(features) == [(5, 5, 0), (0, 0, 1)]


def test_unanswerable_questions_point_at_cls(tokenizer):
    assert targets_of(SquadSplit("train", [letters(4)], tokenizer, 16, 8, 4).features()) == [(0, 0, 1)]


def test_an_answer_inside_words_takes_whole_tokens(tokenizer):
    question = SquadQuestion("1", "a", "[a] (b) c", (SquadAnswer("b) ", 5),))
    features = SquadSplit("train", [question], tokenizer, 32, 8, 4).features()
    start, end, _ = targets_of(features)[0]
    assert rows_of(features, "input_ids")[0][start : end + 1] == [B, UNK]


def test_answers_that_lie_elsewhere_are_left_out_of_training(tokenizer, capsys):
    context = "a b\u200b cd c"
    answers = [("b", 1), ("c", -1), ("b", 99), ("", 6), ("\u200b", 3), ("c", 8), ("B", 2)]
    questions = [
        SquadQuestion(f"q{number}", "d", context, (SquadAnswer(*answer), SquadAnswer("a", 0)), source="train.json")
        for number, answer in enumerate(answers)
    ]
    features = SquadSplit("train", questions, tokenizer, 16, 8, 4).features()
    assert targets_of(features) == [(6, 6, 0)]  # q5
    (said,) = capsys.readouterr().out.splitlines()
    assert re.search(r"^train\.json: 6 of 7 .*q0 \('b' at 1\), q1 \('c' at -1\), q2 \('b' at 99\)", said)
    evaluated = SquadSplit("dev", questions, tokenizer, 16, 8, 4).features()
    assert SquadWindows.of(evaluated.arrays.__getitem__).questions.tolist() == list(range(7))
    assert capsys.readouterr().out == ""
    for split, left in (("train", questions[:2]), ("dev", [])):
        with pytest.raises(DataError, match="no questions"):
            SquadSplit(split, left, tokenizer, 16, 8, 4).features()


def test_contexts_are_tokenized_once(tokenizer, tmp_path, monkeypatch):
    seen = []
    original = tokenizer.tokenize_with_offsets
    monkeypatch.setattr(tokenizer, "tokenize_with_offsets", lambda text: seen.append(text) or original(text))
    SquadSplit("train", read_squad(write(tmp_path, SQUAD), False), tokenizer, 16, 8, 4).features()
    assert seen == ["A b c d e", "f g"]


def test_windows_know_the_characters_of_their_tokens(tokenizer, tmp_path):
    questions = [letters(8), letters(2), letters(2, question="c d e"), SquadQuestion("x", "a", "Á  (ab) \u200b")]
    features = SquadSplit("dev", questions, tokenizer, 9, 2, 2).features()
    records = cached_features(tmp_path, "squad", {}, lambda: features)
    windows = SquadWindows.of(records.array)
    assert "start_positions" not in records.columns
    assert windows.questions.tolist() == [0, 0, 0, 1, 2, 3]
    assert windows.token_counts.tolist() == [4, 4, 4, 2, 2, 4]
    assert windows.context_starts.tolist() == [4, 4, 4, 4, 4, 3]
    texts = []
    for number, first, count in zip(windows.questions, windows.first_tokens, windows.token_counts, strict=True):
        spans = windows.token_spans[first:][:count].tolist()
        texts.append([questions[number].context[start:end] for start, end in spans])
    assert texts == [list("abcd"), list("cdef"), list("efgh"), list("ab"), list("ab"), ["Á", "(", "ab", ")"]]


def plain_max_context(starts, counts, position):
    """google's rule as its text says: the window with the largest smaller side, longer ones and then earlier first."""
    scores = {}
    for number, (start, count) in enumerate(zip(starts, counts, strict=True)):
        if start <= position < start + count:
            scores[number] = min(position - start, start + count - 1 - position) + 0.01 * count
    return max(scores, key=scores.get)


@given(st.integers(1, 40), st.integers(1, 8), st.integers(1, 10))
@example(310, 300, 200)  # the second window is so much shorter that the first has tokens nearer to its own end
def test_every_token_has_one_window_of_most_context(tokenizer, length, room, stride):
    questions = [letters(length, question="a"), letters(3, question="b"), letters(length, question="c")]
    features = SquadSplit("dev", questions, tokenizer, room + 4, stride, 1).features()
    windows = SquadWindows.of(features.arrays.__getitem__)
    most = windows.max_context()
    for number, question in enumerate(questions):
        (rows,) = np.nonzero(windows.questions == number)
        starts, counts = windows.first_tokens[rows] - windows.first_tokens[rows[0]], windows.token_counts[rows]
        tokens = len(question.context.split())
        assert starts.tolist() == list(range(0, starts[-1] + 1, min(stride, room)))
        assert starts[-1] + counts[-1] == tokens
        assert len(rows) == 1 or starts[-2] + room < tokens  # no window more than needed
        for row, start, count in zip(rows, starts, counts, strict=True):
            expected = [plain_max_context(starts, counts, start + at) == row - rows[0] for at in range(count)]
            assert most[row, :count].tolist() == expected
            assert not most[row, count:].any()


# --- real data ---


@pytest.mark.parametrize("version", [1, 2])
def test_windows_and_positions_are_googles(golden, shared, english, version, capsys):
    """All 1,089 and all 1,274 windows: token ids, segments, mask, positions. None differs."""
    path = golden / "squad_features" / f"squad_v{version}_dev.jsonl"
    wanted = [json.loads(line) for line in path.read_text().splitlines()]
    questions = read_squad(shared / "data" / f"squad_v{version}" / "dev.json", version == 2)
    features = SquadSplit("train", questions, english, 384, 128, 64).features()
    for name in ("input_ids", "segment_ids", "p_mask"):
        assert rows_of(features, name) == [row[name] for row in wanted]
    expected = [(row["start_position"], row["end_position"], row["is_impossible"]) for row in wanted]
    assert targets_of(features) == expected and capsys.readouterr().out == ""
    windows = SquadWindows.of(SquadSplit("dev", questions, english, 384, 128, 64).features().arrays.__getitem__)
    assert [questions[number].id for number in windows.questions] == [row["id"] for row in wanted]


def test_squadshifts_answers_lie_where_they_should(shared, english, capsys):
    questions = read_squad(shared / "data" / "squad_v1" / "squadshifts_new_wiki_v1.0.json", version_2=False)
    assert len(questions) == 7938 and max(len(question.answers) for question in questions) > 1
    features = SquadSplit("train", questions[:500], english, 384, 128, 64).features()
    assert sum(not flag for _, _, flag in targets_of(features)) >= 500 and capsys.readouterr().out == ""


def test_chinese_answers_are_found_by_character(shared, capsys):
    """In the form of XQuAD's Chinese part."""
    chinese = FullTokenizer(shared / "data/vocab/vocab_zh.txt")
    context = "沃尔特·惠特曼（Walt Whitman，1819年－1892年）生于长岛，1855年出版《草叶集》。"
    answers = ["沃尔特·惠特曼", "1819年", "Walt Whitman", "长岛", "《草叶集》", "草叶集"]
    questions = [
        SquadQuestion(str(number), "他是谁？", context, (SquadAnswer(text, context.index(text)),))
        for number, text in enumerate(answers)
    ]
    features = SquadSplit("train", questions, chinese, 64, 32, 16).features()
    windows = SquadWindows.of(SquadSplit("dev", questions, chinese, 64, 32, 16).features().arrays.__getitem__)
    assert capsys.readouterr().out == ""
    for row, (text, (start, end, impossible)) in enumerate(zip(answers, targets_of(features), strict=True)):
        shift = windows.first_tokens[row] - windows.context_starts[row]
        first, last = windows.token_spans[start + shift, 0], windows.token_spans[end + shift, 1]
        assert not impossible
        assert context[first:last] == text
    tokens = chinese.convert_ids_to_tokens(rows_of(features, "input_ids")[3][:7])
    assert tokens == "[CLS] 他 是 谁 ？ [SEP] 沃".split()


# --- manifest ---


def test_manifests_tell_everything_that_decides(tokenizer, tmp_path):
    def manifest(document=SQUAD, max_seq_length=16, doc_stride=8, max_query_length=4, training=True):
        questions = read_squad(write(tmp_path, document), version_2=True)
        lengths = (max_seq_length, doc_stride, max_query_length)
        return SquadSplit("train" if training else "dev", questions, tokenizer, *lengths).manifest()

    first = manifest()
    assert json.loads(json.dumps(first)) == first == manifest()
    assert first["source"] == ["dev.json"] and first["vocab_sha256"] == tokenizer.sha256
    moved, renamed = copy.deepcopy(SQUAD), copy.deepcopy(SQUAD)
    first_question(moved)["answers"][0]["answer_start"] = 5
    first_question(renamed)["question"] = "f"
    others = [manifest(document) for document in (moved, renamed, impossible(SQUAD))]
    others += [
        manifest(max_seq_length=15),
        manifest(doc_stride=7),
        manifest(max_query_length=3),
        manifest(training=False),
    ]
    assert all(other != first for other in others)
