"""Files of tagged words in many layouts give the sentences that they hold, or an error that names the line."""

from pathlib import Path

import pytest

from model_utils.errors import DataError
from src.tasks.ner_data import EntityColumns, read_sentences
from tests.faults.cases import COUNTS, explore
from tests.faults.tagged_files import TaggedFile, broken_files, tagged_files

TABLE = ("review", "dish_name", "DISH")


def read(path: Path, text: str, word: str = "", tag: str = "", **options: object) -> list[tuple[str, str]]:
    """Words and tags of every sentence, spaces between them."""
    path.write_bytes(text.encode())
    sentences = read_sentences(path, "columns", EntityColumns(*TABLE, word, tag), **options)
    return [(" ".join(one.words), " ".join(one.tags or ())) for one in sentences]


@COUNTS
def test_layouts(tmp_path: Path, count: int) -> None:
    def check(case: TaggedFile) -> None:
        file = tmp_path / "train.txt"
        file.write_bytes(case.text.encode())
        columns = EntityColumns(*TABLE, case.word_column, case.tag_column)
        sentences = read_sentences(file, "auto", columns)
        assert [list(zip(one.words, one.tags, strict=True)) for one in sentences] == case.sentences
        assert [[one.line_of(word) for word in range(len(one.words))] for one in sentences] == case.lines

    explore(count, tagged_files(), check)


@COUNTS
def test_broken_lines_are_named(tmp_path: Path, count: int) -> None:
    def check(case: tuple[str, str, str, int]) -> None:
        text, word, tag, line = case
        (tmp_path / "train.txt").write_text(text)
        with pytest.raises(DataError) as raised:
            read_sentences(tmp_path / "train.txt", "auto", EntityColumns(*TABLE, word, tag))
        assert f"train.txt: line {line} " in str(raised.value)

    explore(count, broken_files(), check)


def test_a_header_names_the_words(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = "sentence_id\twords\tlabels\n7\tEU\tB-ORG\n7\tsays\tO\n"
    assert read(tmp_path / "a.txt", rows) == [("EU says", "B-ORG O")]
    assert read(tmp_path / "a.txt", rows + "\n8\tHi\tO\n") == [("EU says", "B-ORG O"), ("Hi", "O")]
    assert not caplog.records


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("sentence_id\twords\tlabels\n7\tEU\tB-ORG\n7\tsays\tO\n8\tHi\tO\n", ""),
        ("words\tsent\tlabels\nEU\ta\tB-ORG\nsays\ta\tO\nHi\tb\tO\n", ""),
        ("Sentence #\tWord\tPOS\tTag\nSentence: 1\tEU\tN\tO\n\tsays\tV\tO\n\tso\tR\tO\nSentence: 2\tHi\tX\tO\n", ""),
        ("1 EU B-ORG\n1 says O\n2 Hi O\n", "2"),
        ("d1 1 EU B-ORG\nd1 1 says O\nd1 2 Hi O\n", "3"),
        ("1 EU B-ORG\n2 says O\n1 Hi O\n", "2"),
    ],
)
def test_sentences_that_only_numbers_separate_are_refused(tmp_path: Path, text: str, word: str) -> None:
    with pytest.raises(DataError, match="number sentences"):
        read(tmp_path / "a.txt", text, word)


@pytest.mark.parametrize("data_format", ["columns", "lines", "auto"])
def test_carriage_returns_alone_are_refused(tmp_path: Path, data_format: str) -> None:
    file = tmp_path / "a.txt"
    file.write_bytes(b"EU B-ORG\rsays O\r\rHi O\r")
    with pytest.raises(DataError, match="carriage returns alone"):
        read_sentences(file, data_format, EntityColumns(*TABLE))


def test_numbers_that_do_not_count_every_sentence_are_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = "1 CD O\n2 CD O\n3 CD B-A\n\na DT O\n"
    assert read(tmp_path / "a.txt", rows) == [("1 2 3", "O O B-A"), ("a", "O")]
    assert "counts" not in capsys.readouterr().out


def test_a_column_of_numbers_that_do_not_count_is_refused_unless_it_is_named(tmp_path: Path) -> None:
    rows = "1 a O\n2 b B-A\n\n1 c O\n2 d O\n\n1 e O\n3 f O\n"
    with pytest.raises(DataError, match="word_column"):
        read(tmp_path / "a.txt", rows)
    assert read(tmp_path / "a.txt", rows, word="1")[2] == ("1 3", "O O")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1 a O\n\n1 b O\n", ["a", "b"]),  # sentences of one word
        ("1 a O\n", ["1"]),
        ("0 a O\n1 b O\n\n0 c O\n", ["a b", "c"]),
        ("1 a O\n2 b O\n\n3 c O\n4 d O\n", ["a b", "c d"]),  # through the file
        ("1-2 ab O\n1 a O\n2 b O\n2.1 x O\n\n1 c O\n", ["a b", "c"]),
    ],
)
def test_what_counts_words(tmp_path: Path, text: str, expected: list[str]) -> None:
    assert [words for words, _ in read(tmp_path / "a.txt", text)] == expected


@pytest.mark.parametrize(
    "counters", ["7 8", "2 3", "1-1 1-2", "1. 2.", "1) 2)", "[1] [2]", "0:1 0:2", "1.1 1.2", "1 1", "0-5 6-9"]
)
def test_numbers_that_count_in_another_way_are_refused(tmp_path: Path, counters: str) -> None:
    first, second = counters.split()
    rows = f"1 a O\n2 b O\n\n{first} c O\n{second} d O\n" if counters == "7 8" else f"{first} a O\n{second} b O\n"
    with pytest.raises(DataError, match="column 1 holds numbers alone"):
        read(tmp_path / "a.txt", rows)
    assert read(tmp_path / "a.txt", rows, "1")[-1] == (counters, "O O")


def test_a_column_that_counts_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert read(tmp_path / "a.txt", "1\tIn\tO\tO\n2\tBonn\tB-LOC\tB-ORG\n") == [("In Bonn", "O B-ORG")]
    assert "column 1 counts" in capsys.readouterr().out
    assert read(tmp_path / "a.txt", "1\tIn\tO\tO\n2\tBonn\tB-LOC\tO\n", tag="3") == [("In Bonn", "O B-LOC")]
    with pytest.raises(DataError, match="line 1 has 2 columns"):
        read(tmp_path / "a.txt", "1\tIn\n2\tBonn\n")


def test_files_without_tags(tmp_path: Path) -> None:
    for text, word, tag in (
        ("In\nBonn\n", "2", "1"),
        ("# id = 1\nIn\nBonn\n", "", ""),
        ("1\tIn\n2\tBonn\n", "", ""),
        ("1\tIn\n2\tBonn\n", "2", "3"),
        ("token\nIn\nBonn\n", "token", "ner"),
        ("In\nBonn\n", "token", "ner"),
        ("id\ttoken\n1\tIn\n2\tBonn\n", "token", "ner"),
    ):
        assert read(tmp_path / "a.txt", text, word, tag, labelled=False) == [("In Bonn", "")]


def test_a_word_that_is_a_hash(tmp_path: Path) -> None:
    assert read(tmp_path / "a.txt", "# x\n# O\n1 O\n# B-X\n\n# O\na O\n") == [("# 1 #", "O O B-X"), ("# a", "O O")]
    assert read(tmp_path / "a.txt", "# newdoc\n# NN\n1 CD\n# NN\n") == [("# 1 #", "NN CD NN")]


def test_entities_that_nothing_begins_are_told_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    read(tmp_path / "a.txt", "in I-LOC\nBonn B-LOC\n\na O\nb B-X\n\nx I-X\n\ny E-X\n\nz I-X\n\n")
    said = capsys.readouterr().out
    assert said.count("a.txt: 4 tags") == 1 and "line 1 (I-LOC), line 7 (I-X), line 9 (E-X), ..." in said
    read(tmp_path / "a.txt", "in I-LOC\nBonn I-LOC\n\na O\nb I-X\n")
    assert not capsys.readouterr().out


def test_a_column_that_counts_most_sentences_only_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    text = "1\tIn\tO\n2\tBonn\tB-LOC\n\n1\tEU\tB-ORG\n2\tsays\tO\n\n_\tHi\tO\n"
    read(tmp_path / "a.txt", text)
    assert "line 7" in caplog.text and "word_column" in caplog.text
