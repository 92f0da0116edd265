"""Sentences from columns, lines and names, and their rows: every word is learnt exactly once, at its first token."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import openpyxl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_utils.errors import DataError
from src.data.feature_files import Ragged
from src.tasks.entities import all_tags
from src.tasks.ner_data import EntityColumns, read_sentences
from src.tasks.tagged_sentences import NerSplit, Sentence, word_logits
from src.tasks.word_splitting import split_words, splits_characters
from src.tokenization import FullTokenizer, build_tokenizer

NAMES = EntityColumns("review", "dish_name", "DISH")
LETTERS = "abcdefghij"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> FullTokenizer:
    """WordPiece with letters: a word has as many tokens as letters."""
    file = tmp_path_factory.mktemp("vocab") / "vocab.txt"
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, *(f"##{letter}" for letter in LETTERS)]
    file.write_text("\n".join(tokens) + "\n")
    return build_tokenizer(str(file), "", True)


def write(path: Path, text: str) -> Path:
    path.write_bytes(text.encode())
    return path


def tagged(sentences: list[Sentence]) -> list[tuple[str, str]]:
    return [(" ".join(sentence.words), " ".join(sentence.tags or ())) for sentence in sentences]


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_columns(tmp_path: Path, line_end: str) -> None:
    text = "\ufeff-DOCSTART- -X- O\n\nEU NNP B-ORG\nrejects VBZ O\n\n\nPeter\tNNP\tB-PER\n  \n. . O".replace(
        "\n", line_end
    )
    sentences = read_sentences(write(tmp_path / "train.txt", text), "auto", NAMES)
    assert tagged(sentences) == [("EU rejects", "B-ORG O"), ("Peter", "B-PER"), (".", "O")]
    assert sentences[0].location(1) == f"{tmp_path / 'train.txt'}: line 4"


def test_raw_text_is_not_taken_for_words(tmp_path: Path) -> None:
    training = write(tmp_path / "train.csv", "review,dish_name\n点了一份毛血旺，很辣,毛血旺\n")
    text = write(
        tmp_path / "test.txt", "店里的毛血旺做得非常好吃，下次还会再来的\n上菜太慢了，等了一个多小时也没有人来管\n"
    )
    with pytest.raises(DataError, match=r"test\.txt was guessed to be columns .* answer raw text with predict\.py"):
        read_sentences(text, "auto", NAMES, labelled=False, training=training)
    assert len(read_sentences(text, "columns", NAMES, labelled=False)[0].words) == 2
    short = write(tmp_path / "short.txt", "味道很好\n王小明在北京工作\n好吃\n")
    with pytest.raises(DataError, match=r"half of its words have more than 15 characters, or more than 2 Chinese ones"):
        read_sentences(short, "auto", NAMES, labelled=False)
    words = write(tmp_path / "words.txt", "味道\n很\n好\n\n王小明\n在\n北京\n工作\n")
    assert [len(each.words) for each in read_sentences(words, "auto", NAMES, labelled=False)] == [3, 4]


def test_columns_of_names_by_number(tmp_path: Path) -> None:
    table = write(tmp_path / "train.tsv", "text\tname\n点了一份毛血旺\t毛血旺\n")
    (sentence,) = read_sentences(table, "auto", EntityColumns("1", "2", "DRINK"))
    assert sentence.tags[-3:] == ("B-DRINK", "I-DRINK", "I-DRINK")


def test_lines(tmp_path: Path) -> None:
    text = "吴 重 阳 ，\tB-NAME M-NAME E-NAME O\n\n好\tO\n"
    sentences = read_sentences(write(tmp_path / "train.char.bmes", text), "auto", NAMES)
    assert tagged(sentences) == [("吴 重 阳 ，", "B-NAME M-NAME E-NAME O"), ("好", "O")]
    assert sentences[0].location(2) == f"{tmp_path / 'train.char.bmes'}: line 1"


def test_columns_with_a_word_that_is_a_space(tmp_path: Path) -> None:
    text = "吴\tB-NAME\n \tO\n重\tO\n"
    with pytest.raises(DataError, match=r"line 2 has 1 column\(s\), expected are 2"):
        read_sentences(write(tmp_path / "train.txt", text), "auto", NAMES)


def test_one_stray_tab_or_space_makes_no_lines_of_columns(tmp_path: Path) -> None:
    sentences = read_sentences(write(tmp_path / "train.txt", "EU B-ORG \nx O\t\n"), "auto", NAMES)
    assert tagged(sentences) == [("EU x", "B-ORG O")]
    file = write(tmp_path / "dev.txt", "EU\tB-ORG\n1 1/2\tO\nrises\tO\n")
    with pytest.raises(DataError, match=r"line 2 has 3 column\(s\), expected are 2, as above; the format was guessed"):
        read_sentences(file, "auto", NAMES)


def test_sentences_of_single_words_do_not_hide_that_lines_are_sentences(tmp_path: Path) -> None:
    file = write(tmp_path / "train.bmes", "好\tO\n是\tO\n吴 重\tB-NAME E-NAME\n好 好\tO\n")
    with pytest.raises(DataError, match=r"line 4 has 2 words and 1 tags; .* to be lines, --data_format"):
        read_sentences(file, "auto", NAMES)
    with pytest.raises(DataError, match=r"line 4 has 2 words and 1 tags$"):
        read_sentences(file, "lines", NAMES)


def test_a_table_of_names_is_known_by_its_header(tmp_path: Path) -> None:
    text = "name\treview\tdish_name\nAnn\tFried rice again.\tfried rice\n"
    assert tagged(read_sentences(write(tmp_path / "train.tsv", text), "auto", NAMES)) == [
        ("Fried rice again .", "B-DISH I-DISH O O")
    ]


def test_a_table_of_names_may_be_a_workbook(tmp_path: Path) -> None:
    book = openpyxl.Workbook()
    for row in (["review", "dish_name"], ["Fried rice again.", "fried rice"]):
        book.active.append(row)
    book.save(tmp_path / "train.xlsx")
    assert tagged(read_sentences(tmp_path / "train.xlsx", "auto", NAMES)) == [
        ("Fried rice again .", "B-DISH I-DISH O O")
    ]


def test_an_empty_column_of_names_tells_nothing(tmp_path: Path) -> None:
    file = write(tmp_path / "test.csv", "review,dish_name\nGood soup,\nBad tea,\n")
    assert [one.tags for one in read_sentences(file, "auto", NAMES, labelled=False)] == [None, None]
    assert [one.tags for one in read_sentences(file, "auto", NAMES)] == [("O", "O"), ("O", "O")]


def test_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (
        "review,dish_name\n"
        '"I like Chicken Rice, and chicken rice balls!","chicken rice"\n'
        '"I like Chicken Rice, and chicken rice balls!",chicken rice balls\n'
        "No dish here.,\n"
        "Great prices!,rice\n"
    )
    sentences = read_sentences(write(tmp_path / "dishes.csv", text), "auto", NAMES)
    assert tagged(sentences) == [
        ("I like Chicken Rice , and chicken rice balls !", "O O B-DISH I-DISH O O B-DISH I-DISH I-DISH O"),
        ("No dish here .", "O O O O"),
    ]
    assert "line 5 ('rice')" in capsys.readouterr().out


def test_names_that_only_occur_in_others_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The longer one of overlapping names has the tags; a name that also occurs elsewhere is no overlap."""
    text = "review,dish_name\n" + "".join(
        f"{review},{name}\n"
        for review, names in (
            ("beef noodle soup", ("beef noodle", "noodle soup")),
            ("chicken rice and rice", ("rice", "chicken rice", "Rice")),
        )
        for name in names
    )
    sentences = read_sentences(write(tmp_path / "dishes.csv", text), "auto", NAMES)
    assert tagged(sentences) == [
        ("beef noodle soup", "B-DISH I-DISH O"),
        ("chicken rice and rice", "B-DISH I-DISH O B-DISH"),
    ]
    assert "line 2 ('noodle" in capsys.readouterr().out


def test_no_text_to_predict_is_left_out_because_of_its_names(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    file = write(tmp_path / "test.csv", "review,dish_name\nGood soup.,soup\nBad noodels.,noodles\nNothing.,\n")
    bare = read_sentences(file, "auto", NAMES, labelled=False)
    assert [(" ".join(one.words), one.tags) for one in bare] == [
        ("Good soup .", None),
        ("Bad noodels .", None),
        ("Nothing .", None),
    ]
    assert "line 3 ('noodles')" in (said := capsys.readouterr().out) and "unlabelled" in said


def test_what_is_to_be_predicted_needs_no_tags(tmp_path: Path) -> None:
    bare = read_sentences(write(tmp_path / "a.txt", "EU\nrejects\n\nPeter\n"), "columns", NAMES, labelled=False)
    assert [(one.words, one.tags) for one in bare] == [(("EU", "rejects"), None), (("Peter",), None)]
    lines = read_sentences(write(tmp_path / "b.txt", "a b\nc\n"), "lines", NAMES, labelled=False)
    assert [(one.words, one.tags) for one in lines] == [(("a", "b"), None), (("c",), None)]
    assert read_sentences(write(tmp_path / "b.txt", "a b\t\nc\n"), "lines", NAMES, labelled=False) == lines
    for name, text in (("d.txt", "a b\nc d\n"), ("e.txt", "a b\nc d e\n")):  # of the first one only training tells
        file = write(tmp_path / name, text)
        training = write(tmp_path / "train.bmes", "a b\tO O\n") if name == "d.txt" else None
        found = read_sentences(file, "auto", NAMES, labelled=False, training=training)
        assert [one.words for one in found] == [tuple(line.split()) for line in text.splitlines()]
    # A last column that holds something else than tags is no label.
    parts = read_sentences(write(tmp_path / "c.txt", "EU NNP\nrejects VBZ\n"), "columns", NAMES, labelled=False)
    assert [(one.words, one.tags) for one in parts] == [(("EU", "rejects"), None)]


@pytest.mark.parametrize("text", ["\nEU rejects German call\n", "\na b c\nd e O\n", "\na\tb c\n"])
def test_sentences_that_could_be_columns_lose_no_words_in_silence(tmp_path: Path, text: str) -> None:
    file = write(tmp_path / "test.txt", text)
    training = write(tmp_path / "train.txt", "EU B-ORG\n")
    for known in (None, training):
        with pytest.raises(DataError, match=r"test\.txt was .* '(call|c)', which is no tag: .* lines if .* columns if"):
            read_sentences(file, "auto", NAMES, labelled=False, training=known)
    sentences = read_sentences(file, "columns", NAMES, labelled=False)
    assert [one.words for one in sentences] == [tuple(line.split()[0] for line in text.strip().splitlines())]


def test_tags_are_not_passed_over_because_of_a_wrong_one(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """Nor those of a file of which some sentences have none, without a word."""
    file = write(tmp_path / "test.txt", "EU B-ORG\nrej O\n\nx b-PER\n")
    with pytest.raises(DataError, match=r"test\.txt: line 4 has the tag 'b-PER'"):
        read_sentences(file, "auto", NAMES, labelled=False)
    file = write(tmp_path / "test.bmes", "a b\tO O\nc d\n")
    assert [one.tags for one in read_sentences(file, "auto", NAMES, labelled=False)] == [None, None]
    assert "test.bmes: 1 sentences have no tags" in capsys.readouterr().out


def test_text_of_characters_is_known() -> None:
    characters = [*"吴重阳，2018年生于a市。" * 50]
    assert splits_characters(characters) and splits_characters([*characters, "..."])
    assert splits_characters([*characters, "2018"])
    assert not splits_characters([*"吴重阳生于年市" * 9, "2018", "iPhone15", "a"])
    assert not splits_characters([*"吴重阳" * 9, "上海", "北京"]) and not splits_characters("I saw a dog .".split())


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.txt", "EU B-ORG\nrejects\n", "line 2 has 1 column(s), expected are 2, as above"),
        ("a.txt", "EU\nrejects\n", "line 1 has 1 column(s), expected are a word and its tag"),
        ("a.txt", "EU B-ORG\n\nrejects VBZ\n", "line 3 has the tag 'VBZ', allowed are O, B-LABEL"),
        ("a.bmes", "a b\tO\n", "line 1 has 2 words and 1 tags"),
        ("a.bmes", "a b\tO O\nc d\n", "line 2 has 1 column(s), expected are words, TAB, their tags"),
        ("a.txt", "\n \n", "holds no sentences"),
        ("a.csv", "review,dish_name\n,rice\n", "line 2 is empty in column 'review'"),
        ("a.csv", "text,dish_name\na,rice\n", "has no column 'review'"),
    ],
)
def test_bad_files(tmp_path: Path, name: str, text: str, message: str) -> None:
    with pytest.raises(DataError) as raised:
        read_sentences(write(tmp_path / name, text), "auto", NAMES)
    assert message in str(raised.value)
    assert name in str(raised.value)


def test_words() -> None:
    text = "Don't pay $3,500.50 in 北京abc (well-known U.S. shop)!"
    words = "Don 't pay $ 3,500.50 in 北 京 abc ( well-known U.S . shop ) !"
    assert [text[start:end] for start, end in split_words(text)] == words.split()
    with_marks = "नमस्ते दुनिया مُحَمَّد สวัสดี cafe\u0301"
    assert [with_marks[start:end] for start, end in split_words(with_marks)] == with_marks.split()


@given(
    st.lists(st.lists(st.text("abcdefghij?", min_size=1, max_size=7), min_size=1, max_size=12), min_size=1, max_size=4),
    st.integers(5, 20),
)
def test_every_word_is_learnt_once_at_its_first_token(
    tokenizer: FullTokenizer, sentences: list[list[str]], length: int
) -> None:
    labels = ["O", "B-X"]
    random = np.random.default_rng(0)
    labelled = [Sentence(tuple(words), tuple(random.choice(labels, len(words)).tolist())) for words in sentences]
    features = NerSplit("train", labelled, labels, tokenizer, length).features()
    counts = features.values["input_ids"].counts
    assert counts.max() <= length
    weights, targets = features.values["label_weights"].values, features.values["label_ids"].values
    assert weights.sum() == sum(map(len, sentences))
    # Logits that are right at the weighted tokens, and nowhere else, give all tags back.
    logits = Ragged(np.zeros((counts.sum(), 2), np.float32), counts)
    logits.values[np.arange(len(targets)), targets] = weights
    found = [[labels[index] for index in one.argmax(1)] for one in word_logits(features.arrays.__getitem__, logits)]
    assert found == [list(sentence.tags) for sentence in labelled]
    # And the token there is the word's first one.
    first_tokens = tokenizer.encode_batch(word for words in sentences for word in words)
    ids = np.split(features.values["input_ids"].values, np.cumsum(counts)[:-1])
    assert [ids[row][position] for row, position in features.arrays["words"]] == [each[0] for each in first_tokens]


def test_a_long_sentence_shows_every_word_its_surroundings(tokenizer: FullTokenizer) -> None:
    features = NerSplit("dev", [Sentence(("a",) * 40, ("O",) * 40)], ["O"], tokenizer, 18).features()
    rows, positions = features.arrays["words"].T
    before, after = positions - 1, features.values["input_ids"].counts[rows] - 2 - positions
    inside = slice(8, -8)
    assert np.minimum(before, after)[inside].min() >= 3  # a quarter of the 16 tokens that a window has


def test_tokens_of_words_with_capitals_have_segment_id_1(tokenizer: FullTokenizer) -> None:
    words = ("bad", "Jade", "Äbc", "aDIG", "(\u200bBad", "jade", "3") * 4
    split = NerSplit("dev", [Sentence(words)], ["O", "B-X"], tokenizer, 24, mark_capitals=True)
    features = split.features()
    plain = replace(split, mark_capitals=False).features()
    tokens, segments = (features.values[name].values for name in ("input_ids", "segment_ids"))
    np.testing.assert_array_equal(tokens, plain.values["input_ids"].values)
    assert not plain.values["segment_ids"].values.any()
    is_marked = {word: word in ("Jade", "Äbc", "(\u200bBad") for word in words}
    starts = features.values["input_ids"].offsets[features.arrays["words"][:, 0]] + features.arrays["words"][:, 1]
    assert len(features.values["input_ids"].counts) > 1  # windows
    for word, start, pieces in zip(words, starts, tokenizer.encode_batch(words), strict=True):
        assert set(segments[start : start + len(pieces)]) == {int(is_marked[word])}
    assert not segments[np.isin(tokens, [tokenizer.cls_id, tokenizer.sep_id])].any()


def test_unknown_tag(tokenizer: FullTokenizer) -> None:
    sentence = Sentence(("a", "b"), ("O", "B-Y"), Path("dev.txt"), (7, 8))
    with pytest.raises(DataError, match=r"dev\.txt: line 8 has the tag 'B-Y', allowed are O, B-X"):
        NerSplit("dev", [sentence], ["O", "B-X"], tokenizer, 16).features()


def test_manifests_tell_tags_and_labels_apart(tokenizer: FullTokenizer) -> None:
    first, second = Sentence(("a",), ("O",)), Sentence(("a",), ("B-X",))
    labels = ["O", "B-X"]
    split = NerSplit("dev", [first], labels, tokenizer, 16)
    changes = [{}, {"examples": [second]}, {"labels": labels[::-1]}, {"max_seq_length": 17}, {"mark_capitals": True}]
    assert len({str(replace(split, **change).manifest()) for change in changes}) == len(changes)


@pytest.mark.parametrize(
    ("file", "sentences", "labels"), [("conll2003/train.txt", 14_041, 9), ("resume_zh/train.char.bmes", 3_821, 33)]
)
def test_real_files(shared: Path, file: str, sentences: int, labels: int) -> None:
    read = read_sentences(shared / "data/ner" / file, "auto", NAMES)
    assert len(read) == sentences
    assert len(all_tags(tag for sentence in read for tag in sentence.tags)) == labels
