"""Reading raw text: the layouts, the borders of documents, sentences, and what is refused."""

import json
import os
import pydoc_data.topics
import textwrap
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_utils.errors import DataError
from src.text import corpus
from src.text.corpus import iter_documents, split_sentences
from src.text.corpus_files import expand_glob
from tests.helpers.corpus_memory import peak_memory

WIKI = """<doc id="1" url="?curid=1" title="A &amp; B">
A & B

A is a letter. B is another.
History.
They are old.

</doc>
<doc id="2" url="?curid=2" title="Only a title">
Only a title


</doc>
<doc id="3" url="?curid=3" title="字">
字

字是文字。

</doc>
"""


def write(folder, text, name="text.txt"):
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


# --- layouts ---


WIKITEXT = (
    " \n = One = \n \n Some text . \n \n = = Part = = \n \n More = text . \n Last . \n \n = Two = \n \n Other . \n"
)
TOWN = "\nNew York\n\nA town. A state.\n</doc>\n"
ARTICLE = '{"id": "1", "revid": "2", "url": "u", "title": "A", "text": "AT&amp;T: 5 &lt; 6.\\nOne&nbsp;more."}\n'
COMEDY = ['{"To be": a comedy}', "[A man enters]", '["What?" he says.]']
LAYOUTS = {
    "WikiExtractor": (WIKI, [["A is a letter. B is another.", "History.", "They are old."], ["字是文字。"]]),
    "entities": (
        '<doc id="1" url="u" title="Q &amp; A">\nFirst &lt;b&gt; &amp; ?a=1&copy=2.\nTwo&#10;lines.\n</doc>\n',
        [["First <b> & ?a=1&copy=2.", "Two", "lines."]],
    ),
    "title first": ('<doc title="New_York" url="u">' + TOWN, [["A town. A state."]]),
    "title in single quotes": ("<doc id='2' title='New  York'>" + TOWN, [["A town. A state."]]),
    "title between": ('<doc url="u" title="New York" id="3">' + TOWN, [["A town. A state."]]),
    "entities in WikiExtractor's JSON alone": (
        ARTICLE + '{"text": "Write &amp; for &."}\n',
        [["AT&T: 5 < 6.", "One\xa0more."], ["Write &amp; for &."]],
    ),
    "half a character costs itself alone": (
        '{"text": "One \\ud83d."}\n{"text": "Two \\ud83d\\ude00.", "score": NaN}\n{"text": ""}',
        [["One \ufffd."], ["Two 😀."]],
    ),
    "blank lines": ("one\ntwo\n\n \t\n\nthree\n", [["one", "two"], ["three"]]),
    "wikitext": (WIKITEXT, [["Some text .", "More = text .", "Last ."], ["Other ."]]),
    "a footnote": ("[1]\nOne. Two.\n", [["[1]", "One. Two."]]),
    "a comedy": ("\n".join(COMEDY), [COMEDY]),
    "a comedy that begins with a bracket": ("\n".join(COMEDY[::-1]), [COMEDY[::-1]]),
    "braces": ("{Not JSON.\n\n{Nor this.\n", [["{Not JSON."], ["{Nor this."]]),
    "braces and quotes": ('{"one\n{"two\n', [['{"one', '{"two']]),
    "unusual line breaks": ("one\u2028two\x0bthree\x85four\n", [["one\u2028two\x0bthree\x85four"]]),
    "Windows": ("\ufeffone\r\ntwo\r\n\r\nthree\r\n", [["one", "two"], ["three"]]),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_documents_of_a_layout(tmp_path, layout):
    text, documents = LAYOUTS[layout]
    assert list(iter_documents(write(tmp_path, text))) == documents


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"title": "A", "content": "One. Two."}\n', ": line 1 has no 'text', but 'title', 'content'"),
        ('{"text": null}\n{"text": "One."}\n', ": line 1 has the 'text' None"),
        ('[{"text": "One."}]\n', ": line 1 is not a JSON object"),
        ('\n{\n  "text": "One."\n}\n', ": line 2 is not JSON"),
        ('[\n  {"text": "One."}\n]\n', ": line 1 is not JSON"),
        ('["One.", "Two."]\n', ": line 1 is not a JSON object"),
        ("{}\n", ": line 1 has no 'text', but nothing"),
        ('<mediawiki xmlns="u">\n<page>', r" is XML .*WikiExtractor"),
        ("\n<!DOCTYPE html>\n<p>A text.", " is XML or HTML"),
        ("A text.\nTwo.\n".encode("utf-16-le"), r" has NUL .*UTF-16"),
        ("A text.\rTwo.\r", r" .*carriage return"),
    ],
)
def test_what_is_in_no_layout_is_refused(tmp_path, text, reason):
    with pytest.raises(DataError, match=rf"text\.txt{reason}"):
        list(iter_documents(write(tmp_path, text)))


def test_a_rule_of_equal_signs_takes_time_in_proportion(tmp_path):
    begin = time.process_time()
    rule = "= " * 20_000 + "x"
    assert list(iter_documents(write(tmp_path, f"{rule}\nOne.\n"))) == [[rule, "One."]]
    assert time.process_time() - begin < 5


def test_a_document_of_json_may_be_longer_than_other_lines(tmp_path, monkeypatch):
    path = write(tmp_path, json.dumps({"text": "Word by word. " * 20}) + "\n" + json.dumps({"text": "Two."}) + "\n")
    monkeypatch.setattr(corpus, "MAX_LINE_BYTES", 50)
    assert [len(document[0]) for document in iter_documents(path)] == [279, 4]
    monkeypatch.setattr(corpus, "MAX_JSON_BYTES", 100)
    with pytest.raises(DataError, match=r"line 1 .* 100 bytes"):
        list(iter_documents(path))


def test_hard_line_breaks_are_joined_to_paragraphs(tmp_path):
    paragraphs = ["one two three four five six seven eight nine ten " * 8, "Short one.", "alpha beta gamma delta " * 12]
    paragraphs = [paragraph.strip() for paragraph in paragraphs]
    book = "\n\n\n\n".join("\n\n".join(textwrap.fill(part, 72) for part in paragraphs) for _ in range(2))
    assert list(iter_documents(write(tmp_path, book))) == [paragraphs, paragraphs]


CHINESE = "天地玄黄宇宙洪荒，日月盈昃辰宿列张。寒来暑往秋收冬藏" * 40
MIXED = "".join(f"第{number}行有3.1415926个abcdefgh字母，2024年{number % 7}月" for number in range(60))


def wrapped_by_columns(text, columns):
    lines, width = [""], 0
    for character in text:
        place = 1 if character.isascii() else 2
        if width + place > columns:
            lines, width = [*lines, ""], 0
        lines[-1] += character
        width += place
    return lines


@pytest.mark.parametrize("characters", [22, 38, 45, 60])
def test_hard_line_breaks_in_chinese_are_joined_without_spaces(tmp_path, characters):
    lines = [CHINESE[start : start + characters] for start in range(0, len(CHINESE), characters)]
    assert list(iter_documents(write(tmp_path, "\n".join(lines)))) == [[CHINESE]]


@pytest.mark.parametrize("indentation", ["\u3000\u3000", "    "])
@pytest.mark.parametrize("characters", [24, 34, 38])
def test_indented_lines_begin_paragraphs_in_chinese(tmp_path, characters, indentation):
    paragraphs = [f"“{CHINESE[:length]}。" for length in (50, 97, 10, 140, 61, 29, 88, 133, 75, 12, 201, 64)]
    lines = [
        (indentation + paragraph)[start : start + characters]
        for paragraph in paragraphs
        for start in range(0, len(indentation + paragraph), characters)
    ]
    assert list(iter_documents(write(tmp_path, "\n".join(lines)))) == [paragraphs]
    whole = [indentation + paragraph for paragraph in paragraphs]
    assert list(iter_documents(write(tmp_path, "\n".join(whole)))) == [paragraphs]


@pytest.mark.parametrize("kind", ["characters", "columns"])
def test_lines_of_ideographs_and_letters_are_broken_after_characters_or_columns(tmp_path, kind):
    lines = wrapped_by_columns(MIXED, 80)
    if kind == "characters":
        lines = [MIXED[start : start + 42] for start in range(0, len(MIXED), 42)]
    ((paragraph,),) = iter_documents(write(tmp_path, "\n".join(lines)))
    assert paragraph.replace(" ", "") == MIXED  # words and numbers that were broken have a space in them
    assert "年 " not in paragraph and " 月" not in paragraph and "个 " not in paragraph


@pytest.mark.parametrize("language", ["English", "Chinese"])
def test_sentences_as_lines_are_not_taken_for_broken_lines(tmp_path, language):
    topics = " ".join(pydoc_data.topics.topics[name] for name in ("assert", "if", "while", "try"))
    lines = {
        "English": split_sentences(" ".join(topics.split())),
        "Chinese": ["天地玄黄宇宙洪荒日月盈昃辰宿列张"[: 3 + number * 7 % 13] * 3 + "。" for number in range(60)],
    }[language]
    assert len(lines) > 20
    assert list(iter_documents(write(tmp_path, "\n".join(lines)))) == [lines]


@pytest.mark.parametrize(
    ("first", "last", "form"),
    [
        (4, 26, "“{}。”"),
        (4, 26, "A：{}。"),
        (4, 26, "{1}、{0}。"),
        (4, 26, "2019年{}"),
        (4, 26, "——{}"),
        (4, 26, "({1}){0}"),
        (21, 21, "{}。"),  # verses
        (15, 25, "{}"),  # headlines
    ],
)
def test_chinese_units_as_lines_are_not_taken_for_broken_lines(tmp_path, first, last, form):
    """Lines of first to last ideographs in a form with a place for them, and one for the line's number."""
    ideographs = "天地玄黄宇宙洪荒日月盈昃辰宿列张寒来暑往秋收冬藏闰余成岁律吕调阳" * 2
    sizes = [first + line * 7 % (last + 1 - first) for line in range(60)]
    lines = [form.format(ideographs[line % 9 : line % 9 + size], line) for line, size in enumerate(sizes)]
    assert list(iter_documents(write(tmp_path, "\n".join(lines)))) == [lines]


@given(
    st.lists(
        st.lists(st.text(st.sampled_from("ab é字.,"), min_size=1).map(str.strip).filter(bool), min_size=1), max_size=5
    )
)
def test_written_documents_are_read_back(tmp_path_factory, documents):
    text = "\n\n".join("\n".join(document) for document in documents)
    assert list(iter_documents(write(tmp_path_factory.mktemp("documents"), text))) == documents


# --- size ---


def test_long_documents_are_cut(tmp_path, monkeypatch):
    monkeypatch.setattr(corpus, "MAX_DOCUMENT_CHARACTERS", 30)
    lines = [f"line {number:04}" for number in range(20)]
    documents = list(iter_documents(write(tmp_path, "\n".join(lines))))
    assert [line for document in documents for line in document] == lines
    assert max(sum(map(len, document)) for document in documents) == 36  # the line that crosses 30 ends the document


@pytest.mark.parametrize("text", ["one two  three four five six seven", "天地玄黄宇宙洪荒日月盈昃", "é" * 50])
def test_long_lines_come_in_pieces(tmp_path, monkeypatch, text):
    monkeypatch.setattr(corpus, "MAX_LINE_BYTES", 10)
    (document,) = iter_documents(write(tmp_path, text))
    assert "".join(document).replace(" ", "") == text.replace(" ", "")
    assert all(len(piece.encode()) <= 10 for piece in document)
    assert {word for piece in document for word in piece.split()} >= set(text.split()) or " " not in text


def test_memory_does_not_grow_with_the_file(tmp_path):
    small = peak_memory(write(tmp_path, WIKI * 1_000, "small"), 2_000)
    assert peak_memory(write(tmp_path, WIKI * 10_000, "large"), 20_000) < 1.2 * small


@pytest.mark.parametrize("stop", [".", ""])
def test_broken_lines_without_blank_ones_are_cut_after_sentences(tmp_path, stop):
    words = " ".join(f"Word{number}{stop * (number % 12 == 0)}" for number in range(300_000))
    text = "\n".join(textwrap.wrap(words, 70))
    path = write(tmp_path, text)
    documents = list(iter_documents(path))
    assert [word for document in documents for unit in document for word in unit.split()] == text.split()
    units = [unit for document in documents for unit in document]
    assert max(map(len, units)) < corpus.MAX_PARAGRAPH_CHARACTERS + 200
    assert min(map(len, units[:-1])) > corpus.MAX_PARAGRAPH_CHARACTERS - 200
    assert all(unit.endswith(stop) for unit in units[:-1])
    assert max(sum(map(len, document)) for document in documents) < corpus.MAX_DOCUMENT_CHARACTERS + 20_000
    assert peak_memory(path) < 5_000_000


# --- files ---


def test_patterns_folders_and_lists(tmp_path):
    (tmp_path / "a/b").mkdir(parents=True)
    one, two = write(tmp_path, "x", "a/one.txt"), write(tmp_path, "x", "a/b/two, and more.txt")
    write(tmp_path, "x", "a/.hidden")
    assert expand_glob(str(tmp_path / "a")) == [two, one]
    assert expand_glob(f"{tmp_path}/a/*.txt") == [one]
    assert expand_glob(f"{tmp_path}/**/*.txt") == [two, one]
    assert expand_glob(str(two)) == [two]
    assert expand_glob(f"{one}, {tmp_path}/a/b/*,{one},{tmp_path}/a/b/../one.txt") == [two, one]


def test_folders_that_are_links_are_read_once(tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
    one, two = write(tmp_path, "x", "a/one.txt"), write(tmp_path, "x", "b/two.txt")
    (tmp_path / "a/linked").symlink_to(tmp_path / "b")
    (tmp_path / "b/back").symlink_to(tmp_path / "a")
    assert expand_glob(str(tmp_path / "a")) == [tmp_path / "a/linked/two.txt", one]
    assert expand_glob(str(tmp_path / "b")) == [tmp_path / "b/back/one.txt", two]


def test_a_list_may_be_longer_than_a_name(tmp_path):
    files = [write(tmp_path, "x", f"part_{number:04}.txt") for number in range(40)]
    assert expand_glob(",".join(map(str, files))) == files


def test_a_name_that_is_not_utf8_is_refused_before_work(tmp_path):
    with open(os.fsencode(tmp_path) + b"/\xce\xc4.txt", "w") as file:  # noqa: PTH123 - a name of bytes
        file.write("x")
    with pytest.raises(DataError, match=r"\\xce\\xc4\.txt is not UTF-8"):
        expand_glob(str(tmp_path))


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("nothing*", "no file matches"),
        ("", "is empty"),
        (" ,\n", "is empty"),
        ("empty.txt", "all are empty"),
        ("pipe", "device or a pipe"),
        ("p*", "device or a pipe"),
        ("loop", "leads to no file"),
        ("/dev/null", "device or a pipe"),
        ("folder", "no file matches"),
        (",".join(f"/nowhere/part_{number:05}.txt" for number in range(2000)), "no file matches"),
        ("n" * 100_000, "no file matches"),
        ("/" + "/".join(["folder"] * 10_000), "no file matches"),
    ],
)
def test_patterns_without_text_are_named_in_short(tmp_path, monkeypatch, pattern, reason):
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "", "empty.txt")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    os.mkfifo(tmp_path / "folder/pipe")
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(DataError, match=reason) as caught:
        expand_glob(pattern)
    assert len(str(caught.value)) < 500


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match="pipe cannot be read"):
        list(iter_documents(tmp_path / "pipe"))


def test_undecodable_byte_is_named_when_it_is_reached(tmp_path):
    good = "a good line\n\n" * 20_000
    documents = iter_documents(write(tmp_path, good.encode() + b"bad \xff byte\n"))
    assert next(documents) == ["a good line"]
    with pytest.raises(DataError, match=rf"text\.txt: byte 0xff at offset {len(good) + 4} "):
        list(documents)


# --- sentences ---


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("One. Two! Three? Four", ["One.", "Two!", "Three?", "Four"]),
        ('He said "No." Then he left.', ['He said "No."', "Then he left."]),
        ("Mr. A. Smith of the U.S. army, e.g. him, came.", ["Mr. A. Smith of the U.S. army, e.g. him, came."]),
        ('"Why?" she asked. So did I. He left...', ['"Why?" she asked.', "So did I.", "He left..."]),
        ("Version 2.10 is at example.org now. Yes.", ["Version 2.10 is at example.org now.", "Yes."]),
        ("It ended in 1999 . Then <unk> came .", ["It ended in 1999 .", "Then <unk> came ."]),
        ("他来了。“你好！”她说：走吧？好", ["他来了。", "“你好！”", "她说：走吧？", "好"]),
        ("你好吗?我很好!!谢谢", ["你好吗?", "我很好!!", "谢谢"]),
        ("Yahoo!奇摩好用", ["Yahoo!奇摩好用"]),
        ("价格?100元", ["价格?100元"]),
        ("", []),
    ],
)
def test_sentences(text, sentences):
    assert split_sentences(text) == sentences


def test_a_run_of_stops_takes_time_in_proportion():
    tries = []
    for length in (50_000, 200_000):
        start = time.process_time()
        assert len(split_sentences("It ends in dots" + "." * length + "12")) == 1
        tries.append(time.process_time() - start)
    assert tries[1] < 8 * tries[0] + 0.05  # quadratic: 16 times


@given(st.text(st.sampled_from('ab AB.!?。！"” \n'), max_size=40))
def test_sentences_keep_all_text(text):
    sentences = split_sentences(text)
    assert "".join("".join(sentences).split()) == "".join(text.split())
    assert all(sentence == sentence.strip() != "" for sentence in sentences)
