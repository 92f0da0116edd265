"""Generated files of tagged words: the same sentences in many layouts, and what breaks each of them."""

from collections.abc import Callable
from dataclasses import dataclass

from hypothesis import strategies as st

Sentences = list[list[tuple[str, str]]]  # word and tag

WORDS = st.sampled_from(["In", "Bonn", "1", "2", "3", "#", "1-2", "8.1", "北京", "O", "B-X", "word", "\u3000", "a/b"])
SCHEMES = {
    "bio": ["O", "B-PER", "I-PER", "B-LOC"],
    "bioes": ["O", "B_PER", "I_PER", "E_PER", "S_LOC"],
    "io": ["O", "I-PER", "I-LOC"],
    "bare": ["B", "I", "O"],
    "segments": ["B", "M", "E", "S"],
    "speech": ["NN", "VB", "PUNCT", "O"],
}
NUMBERINGS: dict[str, Callable[[int, int], int]] = {  # number of a word, of its index in the sentence and in the file
    "from 1": lambda word, _: word + 1,
    "from 0": lambda word, _: word,
    "through": lambda _, before: before + 1,
}


@dataclass(frozen=True)
class TaggedFile:
    """A columns file, the keys to read it with, and what it says.

    lines: of every word of every sentence. rows: all lines, so that one of them can be broken.
    """

    text: str
    word_column: str
    tag_column: str
    sentences: Sentences
    lines: list[list[int]]


@st.composite
def tagged_files(draw: Callable) -> TaggedFile:
    """A file that can be read without a question."""
    tags = SCHEMES[draw(st.sampled_from(sorted(SCHEMES)))]
    pairs = st.tuples(WORDS, st.sampled_from(tags))
    # All tags occur, and two words that are no numbers, so that neither scheme nor words are a matter of chance.
    first = [("Ann", tags[0]), *(("went", tag) for tag in tags)]
    sentences = [first, *draw(st.lists(st.lists(pairs, min_size=1, max_size=4), max_size=4))]
    numbering = draw(st.sampled_from([None, *NUMBERINGS]))
    between = draw(st.integers(0, 2))
    separator = draw(st.sampled_from(["\t", " "]))
    extra = draw(st.sampled_from(["_", ""])) if separator == "\t" else "_"
    tag_is_last = draw(st.booleans())
    header = draw(st.sampled_from(["", "named", "guessed"]))
    line_end = draw(st.sampled_from(["\n", "\r\n"]))
    comments = draw(st.sampled_from([[], ["# sent_id = 1"], ["#\thttp://x.org [2009]", "# text = a b c d"]]))
    gaps = draw(st.booleans()) and numbering not in (None, "through")
    names = [*(["id"] if numbering else []), "word", *(["pad"] * between), "ner_tag", *([] if tag_is_last else ["x"])]

    rows: list[str] = []

    def add(number: str, word: str, tag: str) -> None:
        cells = [*([number] if numbering else []), word, *([extra] * between), tag, *([] if tag_is_last else ["_"])]
        rows.append(separator.join(cells))

    if header:
        rows.append(separator.join(names))
    lines: list[list[int]] = []
    before = 0
    for index, sentence in enumerate(sentences):
        rows += ["-DOCSTART- -X- -X- O", ""] if index == 1 else []
        rows += comments
        if gaps:
            add("1-2", "went", "_")
        lines.append([])
        for position, (word, tag) in enumerate(sentence):
            add(str(NUMBERINGS[numbering](position, before)) if numbering else "", word, tag)
            lines[-1].append(len(rows))
            before += 1
        if gaps:
            add("8.1", "went", "_")
        rows.append("")
    word_column = "word" if header == "named" else draw(st.sampled_from(["", str(1 + bool(numbering))]))
    tag_column = "ner_tag" if header == "named" else str(names.index("ner_tag") + 1)
    if tag_is_last and header != "named":
        tag_column = draw(st.sampled_from(["", tag_column]))
    return TaggedFile(line_end.join(rows), word_column, tag_column, sentences, lines)


@st.composite
def broken_files(draw: Callable) -> tuple[str, str, str, int]:
    """A file of three columns, its word_column and tag_column, and the line that an error is to name."""
    rows = [f"word{index}\tNN\t{tag}" for index, tag in enumerate(["O", "B-PER", "I-PER", "O"] * 3)]
    line = draw(st.integers(2, len(rows)))
    kind = draw(st.sampled_from(["wide", "narrow", "no word", "no tag", "two words", "a comment", "tag", *KEYS]))
    if kind in KEYS:
        return "\n".join(rows), *KEYS[kind], 1
    wrong = {
        "wide": "word\tNN\tO\tO",
        "narrow": "word\tO",
        "no word": "\tNN\tO",
        "no tag": "word\tNN\t",
        "two words": "a word\tNN\tO",
        "a comment": "# text = a b",
        "tag": draw(st.sampled_from(["word\tNN\tb-PER", "word\tNN\tPER", "word\tNN\tB", "word\tNN\tB-"])),
    }
    rows[line - 1] = wrong[kind]
    return "\n".join(rows), "", "", line


KEYS = {  # word_column and tag_column that no file of three columns without a header has
    "too far": ("4", ""),
    "zero": ("", "0"),
    "negative": ("", "-1"),
    "name": ("", "ner"),
    "same": ("3", ""),
    "one": ("", "1"),
}
