"""Reader of columns files (one word per line, a blank line after a sentence) -> words, tags and lines of sentences.

Lines are split at TABs if the first one is, else at spaces and TABs. Skipped are -DOCSTART-, comments (lines before a
sentence that begin with "# " and are no word with a tag), a header and, if the first column numbers the words, the rows
of CoNLL-U for several words (1-2) or for none (8.1).
"""

import itertools
import logging
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from model_utils.errors import DataError, first_few, shorten
from src.tasks.entities import Scheme, misfits
from src.text.text_tables import text_lines

logger = logging.getLogger(__name__)
DOCUMENT = "-DOCSTART-"
_BLANKS = re.compile(r"[ \t]+")
_COUNT = re.compile(r"[0-9]{1,9}")
_UNCOUNTED = re.compile(r"[0-9]+[-.][0-9]+")
_NUMBERS = re.compile(r"[\W_]*[0-9][\W_0-9]*")  # no words, if a whole column holds nothing else
_HEADER_OF_SENTENCES = re.compile("sent(?!i)", re.IGNORECASE)
_HEADER_OF_WORDS = {"word", "words", "token", "tokens", "form"}
_HEADER_OF_TAGS = re.compile(r"(ner|[ux]?pos|chunk|entity|tags?|labels?)([_-](tags?|labels?))?", re.IGNORECASE)


class TaggedWords(NamedTuple):
    """Words of a sentence with their lines in the file and their tags, None if the file has none."""

    words: tuple[str, ...]
    tags: tuple[str, ...] | None
    lines: tuple[int, ...]


class _Layout(NamedTuple):
    """Indices of the columns (tag: None for a file without tags), and whether the first one numbers the words."""

    word: int
    tag: int | None
    is_counted: bool


Row = tuple[int, tuple[str, ...]]  # line, cells


def is_comment(text: str) -> bool:
    """Return True if a line before a sentence may be a comment."""
    return text.startswith(("# ", "#\t"))


def read_columns(
    path: Path, word_column: str = "", tag_column: str = "", labelled: bool = True, guess: str = ""
) -> Iterator[TaggedWords]:
    """Yield the sentences of a file.

    Args:
        word_column: name in the header or number from 1; "": the column that the header calls words, tokens or forms,
            else the first one or, if that numbers the words or holds the tags, the next.
        tag_column: name in the header or number from 1; "": the last column, or the first one if it alone holds tags.
        labelled: True if every word must have a tag.
        guess: hint on the file format, appended to errors about the number of columns.

    Raises:
        DataError: a row has another number of columns, or an empty word or tag, or a column is missing; names the line.
    """
    first = next((line for lines in _sentence_lines(path) for line in lines if not is_comment(line[1])), None)
    if first is None:
        return
    by_tabs = _is_split_by_tabs(first[1])
    top = first[0], tuple(_split(first[1], 0, by_tabs))
    width = len(top[1])
    has_header = _is_header(top[1], (word_column, tag_column))
    comments = []
    rows = []
    for lines in _sentence_lines(path):
        if has_header and first in lines:
            del lines[: lines.index(first) + 1]
        above = list(itertools.takewhile(lambda line: is_comment(line[1]), lines))
        comments.append(above)
        cells_by_line = [(line, _split(text, width, by_tabs)) for line, text in lines[len(above) :]]
        # One object for equal cells.
        rows.append([(line, tuple(map(sys.intern, cells))) for line, cells in cells_by_line])
    _check_widths(path, rows, width, labelled, guess)
    layout = _find_layout(path, top, has_header, rows, (word_column, tag_column), labelled)
    tags = {cells[layout.tag] for body in rows for _, cells in body} if layout.tag is not None else set()

    def is_comment_row(row: Row) -> bool:
        return layout.is_counted or len(row[1]) != width or layout.tag is None or row[1][layout.tag] not in tags

    for above, body in zip(comments, rows, strict=True):
        above_rows = [(line, tuple(_split(text, width, by_tabs))) for line, text in above]
        words = list(itertools.dropwhile(is_comment_row, above_rows))
        _check_widths(path, [words], width, labelled, guess)
        sentence = words + [row for row in body if not (layout.is_counted and _UNCOUNTED.fullmatch(row[1][0]))]
        if sentence:
            yield _tagged_words(path, sentence, layout, width, guess)


def _sentence_lines(path: Path) -> Iterator[list[tuple[int, str]]]:
    """Yield the numbered lines between blank ones and document marks."""
    lines: list[tuple[int, str]] = []
    for line, text in enumerate(itertools.chain(text_lines(path), [""]), 1):
        text = text.rstrip("\r\n")
        if text.strip(" \t") and DOCUMENT not in _BLANKS.split(text):
            lines.append((line, text))
        elif lines:
            yield lines
            lines = []


def _is_split_by_tabs(first: str) -> bool:
    """Return True if the first line is split at TABs; cells of two or three columns must contain no spaces then."""
    cells = [cell.strip(" ") for cell in first.strip(" \t").split("\t")]
    return len(cells) > 3 or (len(cells) > 1 and not any(" " in cell for cell in cells))


def _split(text: str, width: int, by_tabs: bool) -> list[str]:
    """Return the cells of a line, without empty ones at its end beyond `width`."""
    if by_tabs:
        cells = [cell.strip(" ") for cell in text.split("\t")]
        while len(cells) > max(1, width) and not cells[-1]:
            cells.pop()
        if len(cells) == width or not width or "" in cells:
            return cells
    return _BLANKS.split(text.strip(" \t"))


def _check_widths(path: Path, rows: Sequence[Sequence[Row]], width: int, labelled: bool, guess: str) -> None:
    for line, cells in itertools.chain.from_iterable(rows):
        if len(cells) != width or (labelled and width < 2):
            raise _width_error(path, line, len(cells), width, guess)


def _width_error(path: Path, line: int, count: int, width: int, guess: str) -> DataError:
    expected = f"{width}, as above" if width > 1 else "a word and its tag"
    return DataError(f"{path}: line {line} has {count} column(s), expected are {expected}{guess}")


def _tagged_words(path: Path, rows: Sequence[Row], layout: _Layout, width: int, guess: str) -> TaggedWords:
    columns = [layout.word] if layout.tag is None else [layout.word, layout.tag]
    for line, cells in rows:
        if any(not cells[index] or _BLANKS.search(cells[index]) for index in columns):
            count = len(_BLANKS.split(" ".join(cells).strip()))
            raise _width_error(path, line, count, width, guess)
    words = tuple(cells[layout.word] for _, cells in rows)
    tags = None if layout.tag is None else tuple(cells[layout.tag] for _, cells in rows)
    return TaggedWords(words, tags, tuple(line for line, _ in rows))


def _is_header(cells: Sequence[str], keys: tuple[str, str]) -> bool:
    """Return True if the first row contains word_column or tag_column, or usual names of both words and tags."""
    if any(key in cells for key in keys if key and not key.isdecimal()):
        return True
    return any(cell.lower() in _HEADER_OF_WORDS for cell in cells) and any(map(_HEADER_OF_TAGS.fullmatch, cells))


def _find_layout(
    path: Path,
    top: Row,
    has_header: bool,
    rows: Sequence[Sequence[Row]],
    keys: tuple[str, str],
    labelled: bool,
) -> _Layout:
    """Return the layout of a file, and log it where words are not in the first or tags may not be in the last column.

    Args:
        top: header, or first row of `rows`.
        keys: word_column and tag_column.
    """
    line, first = top
    width = len(first)
    if width == 1:
        return _Layout(0, None, False)
    names = first if has_header else []
    word_column, tag_column = keys
    named = next((str(index) for index, name in enumerate(names, 1) if name.lower() in _HEADER_OF_WORDS), "")
    word = _index(path, line, word_column or named, names, width)
    tag = _index(path, line, tag_column, names, width) if tag_column else width - 1
    if not word_column and not tag_column and _holds_tags(rows, 0) and not _holds_tags(rows, width - 1):
        tag = 0
        word = word or 1
        logger.info(f"{path.name}: tags are read from column 1, words from column {word + 1}")
    if word_column and word is None:
        raise _no_column(path, line, "word_column", word_column, first)
    if labelled and tag is None:
        raise _no_column(path, line, "tag_column", tag_column, first)
    is_counted = word != 0 and tag != 0 and _counts_words(path, rows, warns=word is None)
    if word is None and is_counted:
        if labelled and width < 3:
            raise DataError(
                f"{path}: line {line} has {width} columns, of which the first one counts words: a word or its tag is "
                "missing"
            )
        word = next((index for index in range(1, width) if index != tag), 1)
        logger.info(f"{path.name}: column 1 counts the words of each sentence, words are read from column {word + 1}")
    first_cells = [cells[0] for body in rows for _, cells in body]
    if word is None and len(first_cells) > 1 and all(map(_NUMBERS.fullmatch, first_cells)):
        raise DataError(
            f"{path}: column 1 holds numbers alone ({first_few(first_cells)}), which do not count the words of each "
            "sentence from 1: give word_column"
        )
    word = word or 0
    sentences = list(filter(None, rows))
    if len(sentences) == 1:
        _refuse_numbered_sentences(path, names, sentences[0], word)
    if word == tag:
        if labelled or tag_column:
            raise DataError(
                f"{path}: line {line} has word and tag in the same column, {word + 1} of {width}: give word_column and "
                "tag_column"
            )
        tag = None
    if labelled and not tag_column and tag == width - 1:
        _log_other_tags(path, rows, {word, tag}, width)
    return _Layout(word, tag, is_counted and word != 0)


def _refuse_numbered_sentences(path: Path, names: Sequence[str], rows: Sequence[Row], word: int) -> None:
    """Raise DataError if a column of a file without blank lines numbers sentences."""
    for index in range(len(rows[0][1])):
        ids = [cells[index] for _, cells in rows]
        is_named = bool(names) and _HEADER_OF_SENTENCES.match(names[index])
        are_numbers = index < word and all(not text or text[-1].isdecimal() for text in ids)
        if (is_named or are_numbers) and 1 < len({*ids}) < len(ids):
            raise DataError(
                f"{path}: column {index + 1} seems to number sentences ({first_few(list(dict.fromkeys(ids)))}), but "
                "only blank lines separate them: put one behind every sentence"
            )


def _index(path: Path, line: int, column: str, names: Sequence[str], width: int) -> int | None:
    """Return the index of a column given by name or number, None if it is empty or missing."""
    if column and names.count(column) > 1:
        raise DataError(f"{path}: line {line} has {names.count(column)} columns {column!r}: give the number of one")
    if column and column in names:
        return names.index(column)
    return int(column) - 1 if _COUNT.fullmatch(column) and 1 <= int(column) <= width else None


def _no_column(path: Path, line: int, key: str, column: str, first: Sequence[str]) -> DataError:
    return DataError(
        f"{path}: line {line} has no column {shorten(column)} ({key}), it has {len(first)}: "
        f"{first_few([shorten(cell) for cell in first], 20)}"
    )


def _counts_words(path: Path, rows: Sequence[Sequence[Row]], warns: bool) -> bool:
    """Return True if the first column numbers the words of every sentence, from 0, from 1 or through the file.

    Args:
        warns: log a warning if it does so for most sentences only.
    """
    counted = 0
    words = 0
    uncounted_lines = []
    last = -1
    for body in filter(None, rows):
        cells = [row[0] for _, row in body if not _UNCOUNTED.fullmatch(row[0])]
        counts = [int(cell) for cell in cells if _COUNT.fullmatch(cell)]
        words += len(cells)
        is_counted = len(counts) == len(cells) > 0 and counts[0] in (0, 1, last + 1)
        if is_counted and counts == list(range(counts[0], counts[0] + len(counts))):
            last = counts[-1]
            counted += 1
        else:
            uncounted_lines.append(body[0][0])
    if warns and uncounted_lines and counted > len(uncounted_lines):
        logger.warning(
            f"{path}: column 1 counts the words of {counted:,} sentences, but not of {len(uncounted_lines):,} (line "
            f"{uncounted_lines[0]}), so it is read as words; give word_column to read another"
        )
    return not uncounted_lines and words > 1


def _holds_tags(rows: Sequence[Sequence[Row]], index: int) -> bool:
    """Return True if a column holds tags of entities or spans, and not O alone."""
    scheme, invalid = misfits(cells[index] for body in rows for _, cells in body)
    return scheme is not Scheme.WORDS and not invalid


def _log_other_tags(path: Path, rows: Sequence[Sequence[Row]], used: set[int | None], width: int) -> None:
    """Log which other columns hold tags; with nested entities, outer ones may precede those of the last column."""
    tag_columns = [str(index + 1) for index in sorted({*range(width)} - used) if _holds_tags(rows, index)]
    if tag_columns:
        logger.info(f"{path.name}: tags are read from column {width}; tag_column can be {', '.join(tag_columns)}, too")
