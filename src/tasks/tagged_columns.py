"""Reader of columns files: one word per line, a blank line after a sentence.

Lines are split at TABs if the first one is, else at spaces and TABs. Skipped are -DOCSTART-, comments (lines before a
sentence that begin with "# " and are no word with a tag), a header and, if the first column numbers the words, the rows
of CoNLL-U for several words (1-2) or for none (8.1).
"""

import itertools
import logging
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from model_utils.errors import DataError, first_few, shorten
from src.tasks.entities import Scheme, find_invalid_tags
from src.tasks.tagged_sentences import Sentence
from src.text.text_tables import text_lines

logger = logging.getLogger(__name__)
DOCUMENT = "-DOCSTART-"
_BLANKS = re.compile(r"[ \t]+")
_WORD_NUMBER = re.compile(r"[0-9]{1,9}")
_RANGE_OR_EMPTY_NODE = re.compile(r"[0-9]+[-.][0-9]+")
_NUMBERS = re.compile(r"[\W_]*[0-9][\W_0-9]*")  # no words, if a whole column holds nothing else
_NO_VALUE = "_"  # CoNLL-U's mark of an empty cell
_HEADER_OF_SENTENCES = re.compile("sent(?!i)", re.IGNORECASE)  # not sentiment
_HEADER_OF_WORDS = {"word", "words", "token", "tokens", "form"}
_HEADER_OF_TAGS = re.compile(r"(ner|[ux]?pos|chunk|entity|tags?|labels?)([_-](tags?|labels?))?", re.IGNORECASE)


class _Row(NamedTuple):
    """Cells of a line, which counts from 1."""

    line: int
    cells: list[str]


_Sentences = Sequence[Sequence[_Row]]


class _Layout(NamedTuple):
    """Indices of the columns (tag: None for a file without tags), and whether the first one numbers the words."""

    word: int
    tag: int | None
    has_word_numbers: bool


def is_comment(text: str) -> bool:
    """Return True if a line before a sentence may be a comment."""
    return text.startswith(("# ", "#\t"))


def read_columns(
    path: Path, word_column: str = "", tag_column: str = "", labelled: bool = True, hint: str = ""
) -> Iterator[Sentence]:
    """Yield the sentences of a file.

    Args:
        word_column: name in the header or number from 1; "": the column that the header calls words, tokens or forms,
            else the first one or, if that numbers the words or holds the tags, the next.
        tag_column: name in the header or number from 1; "": the last column, or the first one if it alone holds tags.
        labelled: True if every word must have a tag.
        hint: end of errors about the number of columns.

    Raises:
        DataError: a row has another number of columns, or an empty word or tag, or a column is missing; names the line.
    """
    blocks = list(_blocks(path))
    first_line = next((line for block in blocks for line in block if not is_comment(line[1])), None)
    if first_line is None:
        return
    by_tabs = _is_split_by_tabs(first_line[1])
    first = _Row(first_line[0], _split(first_line[1], 0, by_tabs))
    width = len(first.cells)
    if labelled and width < 2:
        raise _width_error(path, first, width, hint)
    has_header = _is_header(first.cells, word_column, tag_column)
    comments: list[list[_Row]] = []
    sentences: list[list[_Row]] = []
    for block in blocks:
        if has_header and first_line in block:
            del block[: block.index(first_line) + 1]
        rows = [_Row(line, _split(text, width, by_tabs)) for line, text in block]
        count = sum(1 for _ in itertools.takewhile(lambda line: is_comment(line[1]), block))
        comments.append(rows[:count])
        sentences.append(rows[count:])
    _check_widths(path, itertools.chain.from_iterable(sentences), width, hint)
    layout = _find_layout(path, first, has_header, sentences, word_column, tag_column, labelled)
    tags = set() if layout.tag is None else {row.cells[layout.tag] for rows in sentences for row in rows}

    def is_word(row: _Row) -> bool:
        """Return True for a row that begins with the word #, and has a tag."""
        if layout.has_word_numbers or layout.tag is None:
            return False
        return len(row.cells) == width and row.cells[layout.tag] in tags

    for above, rows in zip(comments, sentences, strict=True):
        words = list(itertools.dropwhile(lambda row: not is_word(row), above))
        _check_widths(path, words, width, hint)
        words += [row for row in rows if not (layout.has_word_numbers and _RANGE_OR_EMPTY_NODE.fullmatch(row.cells[0]))]
        if words:
            yield _sentence(path, words, layout, width, hint)


def _blocks(path: Path) -> Iterator[list[tuple[int, str]]]:
    """Yield the numbered lines between blank ones and document marks."""
    block: list[tuple[int, str]] = []
    for line, text in enumerate(itertools.chain(text_lines(path), [""]), 1):
        text = text.rstrip("\r\n")
        if text.strip(" \t") and DOCUMENT not in _BLANKS.split(text):
            block.append((line, text))
        elif block:
            yield block
            block = []


def _is_split_by_tabs(first: str) -> bool:
    """Return True if the first line is split at TABs; cells of two or three columns must contain no spaces then."""
    cells = [cell.strip(" ") for cell in first.strip(" \t").split("\t")]
    return len(cells) > 3 or (len(cells) > 1 and not any(" " in cell for cell in cells))


def _split(text: str, width: int, by_tabs: bool) -> list[str]:
    """Return the cells of a line, without empty ones at its end beyond `width`; equal cells are one object."""
    if by_tabs:
        cells = [sys.intern(cell.strip(" ")) for cell in text.split("\t")]
        while len(cells) > max(1, width) and not cells[-1]:
            cells.pop()
        if len(cells) == width or not width or "" in cells:
            return cells
    return list(map(sys.intern, _BLANKS.split(text.strip(" \t"))))


def _check_widths(path: Path, rows: Iterable[_Row], width: int, hint: str) -> None:
    for row in rows:
        if len(row.cells) != width:
            raise _width_error(path, row, width, hint)


def _width_error(path: Path, row: _Row, width: int, hint: str) -> DataError:
    count = len(_BLANKS.split(" ".join(row.cells).strip())) if len(row.cells) == width else len(row.cells)
    expected = f"{width}, as above" if width > 1 else "a word and its tag"
    return DataError(f"{path}: line {row.line} has {count} column(s), expected are {expected}{hint}")


def _sentence(path: Path, rows: Sequence[_Row], layout: _Layout, width: int, hint: str) -> Sentence:
    columns = [layout.word] if layout.tag is None else [layout.word, layout.tag]
    for row in rows:
        if any(not row.cells[index] or _BLANKS.search(row.cells[index]) for index in columns):
            raise _width_error(path, row, width, hint)
    words, *tags = (tuple(row.cells[index] for row in rows) for index in columns)
    return Sentence(words, tags[0] if tags else None, path, tuple(row.line for row in rows))


def _is_header(cells: Sequence[str], *keys: str) -> bool:
    """Return True if the first row contains word_column or tag_column, or usual names of both words and tags."""
    if any(key in cells for key in keys if key and not key.isdecimal()):
        return True
    return any(cell.lower() in _HEADER_OF_WORDS for cell in cells) and any(map(_HEADER_OF_TAGS.fullmatch, cells))


def _find_layout(
    path: Path, first: _Row, has_header: bool, sentences: _Sentences, word_column: str, tag_column: str, labelled: bool
) -> _Layout:
    """Return the layout of a file; log it where words are not in the first or tags not in the last column.

    Args:
        first: header, or first row of the sentences.
    """
    width = len(first.cells)
    if width == 1:
        return _Layout(0, None, False)
    names = first.cells if has_header else []
    found = f"{path}: line {first.line} has {width} columns"
    word, tag = _locate_columns(path, first, names, sentences, word_column, tag_column)
    needed = {"word_column": (word_column, word), "tag_column": (tag_column if labelled else "", tag)}
    for key, (column, index) in needed.items():
        if column and index is None:
            cells = first_few([shorten(cell) for cell in first.cells], 20)
            raise DataError(f"{found}, but no column {shorten(column)} ({key}): {cells}")
    has_word_numbers = 0 not in (word, tag) and _has_word_numbers(path, sentences, warns=word is None)
    if word is None and has_word_numbers:
        if labelled and width < 3:
            raise DataError(f"{found}, of which the first one counts words: a word or its tag is missing")
        word = next((index for index in range(1, width) if index != tag), 1)
        logger.info(f"{path.name}: column 1 counts the words of each sentence, words are read from column {word + 1}")
    if word is None:
        _refuse_other_numbers(path, sentences)
        word = 0
    filled = list(filter(None, sentences))
    if len(filled) == 1:
        _refuse_numbered_sentences(path, names, filled[0], word)
    if labelled and not tag_column and tag is not None:
        _refuse_missing_tags(path, filled, tag)
    if word == tag and (labelled or tag_column):
        raise DataError(f"{found}, of which {word + 1} has both word and tag: give word_column and tag_column")
    return _Layout(word, None if word == tag else tag, has_word_numbers and word != 0)


def _locate_columns(
    path: Path, first: _Row, names: Sequence[str], sentences: _Sentences, word_column: str, tag_column: str
) -> tuple[int | None, int | None]:
    """Return the indices of word and tag column; None: not found, or of the word: not named.

    Without names tags are in the last column, or in the first one if it holds tags and the last one does not.
    """
    last = len(first.cells) - 1
    named = next((str(index) for index, name in enumerate(names, 1) if name.lower() in _HEADER_OF_WORDS), "")
    word = _index(path, first, word_column or named, names)
    tag = _index(path, first, tag_column, names) if tag_column else last
    if not word_column and not tag_column and _holds_tags(sentences, 0) and not _holds_tags(sentences, last):
        tag = 0
        word = word or 1
        logger.info(f"{path.name}: tags are read from column 1, words from column {word + 1}")
    return word, tag


def _refuse_other_numbers(path: Path, sentences: _Sentences) -> None:
    """Raise DataError if the first column, which would hold the words, holds numbers alone."""
    cells = [row.cells[0] for rows in sentences for row in rows]
    if len(cells) > 1 and all(map(_NUMBERS.fullmatch, cells)):
        raise DataError(
            f"{path}: column 1 holds numbers alone ({first_few(cells)}), which do not count the words of each sentence "
            "from 1: give word_column"
        )


def _refuse_missing_tags(path: Path, sentences: _Sentences, tag: int) -> None:
    """Raise DataError if most lines have no value in the tag column."""
    rows = itertools.chain.from_iterable(sentences)
    tags = [row.cells[tag] for row in rows if not _RANGE_OR_EMPTY_NODE.fullmatch(row.cells[0])]
    if 2 * tags.count(_NO_VALUE) > len(tags):
        raise DataError(f"{path}: column {tag + 1} has no value ({_NO_VALUE}) in most lines: give tag_column")


def _refuse_numbered_sentences(path: Path, names: Sequence[str], rows: Sequence[_Row], word: int) -> None:
    """Raise DataError if a column of a file without blank lines numbers sentences."""
    for index, cells in enumerate(zip(*(row.cells for row in rows), strict=True)):
        is_named = bool(names) and _HEADER_OF_SENTENCES.match(names[index])
        are_numbers = index < word and all(not cell or cell[-1].isdecimal() for cell in cells)
        if (is_named or are_numbers) and 1 < len(set(cells)) < len(cells):
            raise DataError(
                f"{path}: column {index + 1} seems to number sentences ({first_few(list(dict.fromkeys(cells)))}), but "
                "only blank lines separate them: put one behind every sentence"
            )


def _index(path: Path, first: _Row, column: str, names: Sequence[str]) -> int | None:
    """Return the index of a column given by name or number, None if it is empty or missing."""
    if column and names.count(column) > 1:
        raise DataError(f"{path}: line {first.line} has several columns {column!r}: give the number of one")
    if column and column in names:
        return names.index(column)
    return int(column) - 1 if _WORD_NUMBER.fullmatch(column) and 1 <= int(column) <= len(first.cells) else None


def _has_word_numbers(path: Path, sentences: _Sentences, warns: bool) -> bool:
    """Return True if the first column numbers the words of every sentence, from 0, from 1 or through the file.

    Args:
        warns: log a warning if it does so for most sentences only.
    """
    words = 0
    counted = 0
    uncounted_lines = []
    last = -1
    for rows in filter(None, sentences):
        cells = [row.cells[0] for row in rows if not _RANGE_OR_EMPTY_NODE.fullmatch(row.cells[0])]
        counts = [int(cell) for cell in cells if _WORD_NUMBER.fullmatch(cell)]
        has_word_numbers = len(counts) == len(cells) > 0 and counts[0] in (0, 1, last + 1)
        if has_word_numbers and counts == list(range(counts[0], counts[0] + len(counts))):
            last = counts[-1]
            counted += 1
        else:
            uncounted_lines.append(rows[0].line)
        words += len(cells)
    if warns and counted > len(uncounted_lines) > 0:
        logger.warning(
            f"{path}: column 1 counts the words of {counted:,} sentences, but not of {len(uncounted_lines):,} (line "
            f"{uncounted_lines[0]}), so it is read as words; give word_column to read another"
        )
    return words > 1 and not uncounted_lines


def _holds_tags(sentences: _Sentences, index: int) -> bool:
    """Return True if a column holds tags of entities or spans, and not O alone."""
    scheme, invalid = find_invalid_tags(row.cells[index] for rows in sentences for row in rows)
    return scheme is not Scheme.WORDS and not invalid
