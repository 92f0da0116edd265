"""RACE: folders, google's construction of the texts, rows interleaved by token."""

import json
import tarfile

import numpy as np
import pytest

from model_utils.errors import DataError
from src.tasks.race_data import RaceSplit, encode_questions, read_race
from src.tokenization import FullTokenizer

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = [*"abcdefghij", "_", "."]
PAD, UNK, CLS, SEP, MASK = range(5)
PASSAGE = {
    "id": "middle1.txt",
    "article": "a b c d e f",
    "questions": ["g ?", "h _ i _"],
    "options": [["a", "b", "c c c", "d"], ["e", "f", "g", "h"]],
    "answers": ["C", "A"],
}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory) -> FullTokenizer:
    path = tmp_path_factory.mktemp("vocabulary") / "vocab.txt"
    path.write_text("\n".join(SPECIALS + WORDS))
    return FullTokenizer(path)


@pytest.fixture(scope="module")
def english(shared) -> FullTokenizer:
    return FullTokenizer(spm_model_file=shared / "data/vocab/30k-clean.model")


@pytest.fixture(scope="module")
def real(shared, tmp_path_factory):
    """A few passages of each level of the development set."""
    folder = tmp_path_factory.mktemp("race")
    wanted = {"middle": 3, "high": 3}
    with tarfile.open(shared / "data" / "race" / "RACE.tar.gz") as archive:
        for member in archive:
            level = member.name.split("/")[2] if member.name.startswith("RACE/dev/") else ""
            if member.isfile() and wanted.get(level):
                archive.extract(member, folder)
                wanted[level] -= 1
            if not any(wanted.values()):
                return folder
    raise AssertionError("the archive has other contents")


def write(folder, passage, split="dev", level="middle", name="1.txt"):
    path = folder / "RACE" / split / level / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(passage if isinstance(passage, str) else json.dumps(passage))
    return path


def choices_of(values, row, name="input_ids"):
    """Token columns of one row, choice by choice."""
    return np.split(values[name].values, np.cumsum(values[name].counts)[:-1])[row].reshape(-1, 4).T


def real_tokens(values, row):
    """Ids of the four choices of a row, without padding."""
    masks = choices_of(values, row, "input_mask").astype(bool)
    return [ids[mask].tolist() for ids, mask in zip(choices_of(values, row), masks, strict=True)]


# --- reading ---


def test_levels_apart_and_together(tmp_path):
    write(tmp_path, PASSAGE, name="2.txt")
    write(tmp_path, PASSAGE, name="10.txt")
    write(tmp_path, PASSAGE, level="high")
    for folder in (tmp_path, tmp_path / "RACE"):
        middle, high, both = (read_race(folder, "dev", level) for level in ("middle", "high", "all"))
        names = ["10.txt/0", "10.txt/1", "2.txt/0", "2.txt/1"]
        assert [question.id for question in middle] == [f"middle/{name}" for name in names]
        assert [(question.id, question.level) for question in high] == [("high/1.txt/0", 1), ("high/1.txt/1", 1)]
        assert both == middle + high
    assert [question.answer for question in high] == [2, 0]
    assert high[1].question == "h _ i _" and high[1].options == ("e", "f", "g", "h")


def test_folders_without_passages(tmp_path):
    write(tmp_path, PASSAGE)
    with pytest.raises(DataError, match="RACE/dev/high"):
        read_race(tmp_path, "dev")
    with pytest.raises(DataError, match="nowhere/test/middle"):
        read_race(tmp_path / "nowhere", "test")


def test_passages_without_questions(tmp_path):
    write(tmp_path, PASSAGE | {"questions": [], "options": [], "answers": []})
    with pytest.raises(DataError, match="RACE holds no questions of dev"):
        read_race(tmp_path, "dev", "middle")
    (tmp_path / "RACE" / "m-train.json").write_text("[]")
    with pytest.raises(DataError, match="holds no questions of train"):
        read_race(tmp_path, "train")


FOUR = ["a", "b", "c", "d"]


@pytest.mark.parametrize(
    ("passage", "reason"),
    [
        (PASSAGE | {"article": None}, "article"),
        (PASSAGE | {"article": " \n"}, "blank article"),
        (PASSAGE | {"answers": ["C"]}, "different lengths"),
        (PASSAGE | {"questions": "g ?"}, "questions is 'g"),
        (PASSAGE | {"questions": 2}, "questions is 2"),
        (PASSAGE | {"questions": ["g ?", 3]}, r"questions\.1 is 3"),
        (PASSAGE | {"options": [FOUR, ["e"]]}, r"options\.1 is \['e'\], allowed is at least 2 items, not 1"),
        (PASSAGE | {"options": [FOUR, ["e"] * 27]}, r"options\.1 .*at most 26"),
        (PASSAGE | {"options": [["a", "b"], ["e", "f"]]}, r"answers\.0 is 'C', .*A to B"),
        (PASSAGE | {"options": [FOUR, ["e", "f", "g", 1]]}, r"options\.1\.3 is 1"),
        (PASSAGE | {"answers": ["C", "E"]}, r"answers\.1 is 'E', .*A to D"),
        (PASSAGE | {"answers": ["C", "AB"]}, "'AB'"),
        (PASSAGE | {"answers": ["C", ""]}, "''"),
        (PASSAGE | {"answers": ["C", 0]}, r"answers\.1 is 0"),
        ('{"article": "a"', "is not JSON"),
        ('{"article": "a", "questions": []}', "options is missing"),
        ("[]", "an object"),
    ],
)
def test_passages_that_are_refused(tmp_path, passage, reason):
    write(tmp_path, passage)
    with pytest.raises(DataError, match=rf"middle/1\.txt.*{reason}"):
        read_race(tmp_path, "dev", "middle")


C3_PASSAGES = [
    [["a b", "c d"], [{"question": "g ?", "choice": ["a", "b"], "answer": "b"}], "0-1"],
    [
        ["e"],
        [{"question": "h", "choice": [*"abcd"], "answer": "a"}, {"question": "i", "choice": [*"cba"], "answer": "b"}],
        7,
    ],
]


def write_c3(folder, passages, name="m-dev.json"):
    (folder / name).write_text(passages if isinstance(passages, str) else json.dumps(passages), encoding="utf-8")


def test_c3_has_the_questions_of_all_its_files(tmp_path, tokenizer):
    for name, passages in (("m-dev.json", C3_PASSAGES), ("c3-d-dev.json", C3_PASSAGES[:1]), ("train.json", [])):
        write_c3(tmp_path, passages, name)
    questions = read_race(tmp_path, "dev")
    assert [(one.article, one.question, one.options, one.options[one.answer]) for one in questions] == [
        ("a b\nc d", "g ?", ("a", "b"), "b"),
        ("a b\nc d", "g ?", ("a", "b"), "b"),
        ("e", "h", ("a", "b", "c", "d"), "a"),
        ("e", "i", ("c", "b", "a"), "b"),
    ]
    assert [one.id for one in questions] == ["c3-d-dev.json/0/0", "m-dev.json/0/0", "m-dev.json/1/0", "m-dev.json/1/1"]
    with pytest.raises(DataError, match="no questions of train"):
        read_race(tmp_path, "train")
    features = RaceSplit("dev", questions, tokenizer, 16, 8).features()
    assert features.arrays["option_counts"].tolist() == [2, 2, 4, 3]
    assert features.arrays["labels"].tolist() == [1, 1, 0, 1]
    with pytest.raises(DataError, match=r"test/middle"):
        read_race(tmp_path, "test")
    with pytest.raises(DataError, match=r"c3-d-dev\.json has no levels"):
        read_race(tmp_path, "dev", "high")


def test_a_folder_of_a_split_has_precedence_over_c3(tmp_path):
    write(tmp_path, PASSAGE, level="middle")
    write_c3(tmp_path / "RACE", C3_PASSAGES)
    assert [one.id for one in read_race(tmp_path, "dev", "middle")] == ["middle/1.txt/0", "middle/1.txt/1"]


def c3_question(**changes):
    return [[["a"], [{"question": "g", "choice": ["a", "b"], "answer": "b"} | changes], "1"]]


@pytest.mark.parametrize(
    ("passages", "reason"),
    [
        ({}, "passages is {}"),
        ("[", "is not JSON"),
        (["a"], r"passages\.0 is 'a'"),
        ([[]], r"passages\.0\.0 is missing"),
        ([[["a"], "b", 1]], r"passages\.0\.1 is 'b'"),
        ([[[1], [], 1]], r"passages\.0\.0\.0 is 1"),
        ([[[" "], [], 1]], r"passages\.0\.0 is blank"),
        ([[["a"], ["b"], 1]], r"passages\.0\.1\.0 is 'b'"),
        (c3_question(question=None), r"passages\.0\.1\.0\.question is None"),
        (c3_question(choice=["b"]), r"passages\.0\.1\.0\.choice .*at least 2"),
        (c3_question(choice="ab"), r"passages\.0\.1\.0\.choice is 'ab'"),
        (c3_question(choice=["b", 1]), r"passages\.0\.1\.0\.choice\.1 is 1"),
        (c3_question(answer="B"), r"passages\.0\.1\.0\.answer is 'B'"),
        (c3_question(answer=None), r"passages\.0\.1\.0\.answer is None"),  # CLUE's test set has no answers
        (c3_question(answer=["b"]), r"passages\.0\.1\.0\.answer is \['b'\]"),
    ],
)
def test_c3_that_is_refused(tmp_path, passages, reason):
    write_c3(tmp_path, passages)
    with pytest.raises(DataError, match=rf"m-dev\.json.*{reason}"):
        read_race(tmp_path, "dev")


def test_no_questions_are_refused(tokenizer):
    with pytest.raises(DataError, match="no questions"):
        RaceSplit("dev", [], tokenizer, 32, 16).features()


# --- features ---


def test_the_option_fills_every_blank_or_follows(tokenizer):
    rows = [("a b", "c ?", ["f", "g", "h", ""]), ("a b", "d _ e _", ["i", "j j", "a", "b"])]
    values, truncated = encode_questions(rows, tokenizer, 32, 16, 4)
    a, b, c, d, e, f, g, h, i, j = range(5, 15)
    start = [CLS, a, b, SEP]
    assert real_tokens(values, 0) == [[*start, c, UNK, *rest, SEP] for rest in ([f], [g], [h], [])]
    assert real_tokens(values, 1) == [[*start, d, *o, e, *o, SEP] for o in ([i], [j, j], [a], [b])]
    assert not truncated.any()


def test_choices_are_interleaved_and_padded_to_the_longest(tokenizer):
    values, _ = encode_questions([("a", "b", ["c", "c c c", "", "c"])], tokenizer, 32, 16, 4)
    assert values["input_ids"].counts.tolist() == [4 * 8]
    assert values["input_ids"].values[:8].tolist() == [CLS] * 4 + [5] * 4
    assert choices_of(values, 0)[0].tolist() == [CLS, 5, SEP, 6, 7, SEP, PAD, PAD]
    assert choices_of(values, 0, "input_mask").sum(1).tolist() == [6, 8, 5, 6]
    assert choices_of(values, 0, "segment_ids").tolist() == [
        [0, 0, 0, 1, 1, 1, 0, 0],
        [0, 0, 0, 1, 1, 1, 1, 1],
        [0, 0, 0, 1, 1, 0, 0, 0],
        [0, 0, 0, 1, 1, 1, 0, 0],
    ]


def test_the_end_of_the_question_and_the_beginning_of_the_article_stay(tokenizer):
    rows = [("a b c d e f", "g h", options) for options in (["i j", "i", "", "i i i"], ["i"] * 4)]
    values, truncated = encode_questions(rows, tokenizer, 10, 3, 4)
    a, b, c, d, e, _, g, h, i, j = range(5, 15)
    assert real_tokens(values, 0) == [
        [CLS, a, b, c, d, SEP, h, i, j, SEP],
        [CLS, a, b, c, d, SEP, g, h, i, SEP],
        [CLS, a, b, c, d, e, SEP, g, h, SEP],
        [CLS, a, b, c, d, SEP, i, i, i, SEP],
    ]
    assert truncated.tolist() == [True, True]
    assert not encode_questions([("a b c d", "g h", ["i"] * 4)], tokenizer, 10, 3, 4)[1].any()


def test_rows_of_real_passages_are_googles(real, english):
    """google's convert_single_example, as its text says, on every choice."""
    questions = read_race(real, "dev")
    width, most = 256, 24
    features = RaceSplit("dev", questions, english, width, most).features()
    assert len(questions) > 12 and {question.level for question in questions} == {0, 1}
    for row, question in enumerate(questions):
        asked = english.preprocess(question.question)
        for option, found in zip(question.options, real_tokens(features.values, row), strict=True):
            option = english.preprocess(option)
            text = asked.replace("_", option) if "_" in asked else f"{asked} {option}"
            ending = english.tokenize(text)[-most:]
            article = english.tokenize(english.preprocess(question.article))[: width - 3 - len(ending)]
            assert found == english.convert_tokens_to_ids(["[CLS]", *article, "[SEP]", *ending, "[SEP]"])


def test_features_of_real_passages(real, english, capsys):
    questions = read_race(real, "dev")
    features = RaceSplit("dev", questions, english, 256, 24).features()
    assert f" of {len(questions)} questions are truncated" in capsys.readouterr().out
    assert features.columns["input_ids"].width == 4 * 256 and features.columns["input_ids"].per_token
    assert features.arrays["labels"].tolist() == [question.answer for question in questions]
    assert features.values["label_ids"].values.dtype == np.int32
    assert features.arrays["question_ids"].tolist() == [question.id for question in questions]
    assert features.arrays["levels"].tolist() == [question.level for question in questions]
    rows = (choices_of(features.values, row, "input_mask") for row in range(len(questions)))
    assert all(mask.sum(1).max() == mask.shape[1] for mask in rows)


def test_articles_are_tokenized_once(tokenizer, tmp_path, monkeypatch):
    write(tmp_path, PASSAGE)
    seen = []
    encode_batch = tokenizer.encode_batch
    monkeypatch.setattr(tokenizer, "encode_batch", lambda texts: seen.extend(texts) or encode_batch(texts))
    RaceSplit("dev", read_race(tmp_path, "dev", "middle"), tokenizer, 32, 16).features()
    assert seen.count(PASSAGE["article"]) == 1


def test_manifests_tell_everything_that_decides(tokenizer, tmp_path):
    def manifest(passage=PASSAGE, max_seq_length=32, max_qa_length=16, **options):
        write(tmp_path, passage)
        questions = read_race(tmp_path, "dev", "middle")
        return RaceSplit("dev", questions, tokenizer, max_seq_length, max_qa_length, **options).manifest()

    first = manifest()
    assert json.loads(json.dumps(first)) == first == manifest()
    changes = [{"article": "a"}, {"questions": ["g ?", "h"]}, {"answers": ["C", "B"]}]
    assert all(manifest(PASSAGE | change) != first for change in changes)
    assert manifest(max_seq_length=33) != first != manifest(max_qa_length=15)
    assert manifest(num_choices=5) == first | {"num_choices": 5}  # features of four choices are those of before


@pytest.mark.parametrize("count", [2, 3, 5, 26])
def test_questions_of_one_file_may_have_different_numbers_of_options(tokenizer, tmp_path, count):
    options = [FOUR, ["e"] * (count - 1) + ["f"]]
    write(tmp_path, PASSAGE | {"options": options, "answers": ["C", chr(ord("A") + count - 1)]})
    questions = read_race(tmp_path, "dev", "middle")
    assert [(len(question.options), question.answer) for question in questions] == [(4, 2), (count, count - 1)]
    width = max(4, count)
    features = RaceSplit("dev", questions, tokenizer, 32, 16, width).features()
    assert features.arrays["option_counts"].tolist() == [4, count]
    masks = np.split(features.values["input_mask"].values, np.cumsum(features.values["input_mask"].counts)[:-1])
    for mask, options_of_row in zip(masks, (4, count), strict=True):
        has_tokens = mask.reshape(-1, width).any(0)
        assert has_tokens.tolist() == [True] * options_of_row + [False] * (width - options_of_row)
