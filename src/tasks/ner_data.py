"""Readers of sentences with tagged words, whose format is told apart by what a file holds.

Formats are columns (CoNLL: one word per line, a blank line after a sentence), lines (words, TAB, tags: BMES), names
(tables of texts and entity mentions), tokens (JSON with lists of words and tags) and spans (JSON with texts and
labelled characters).
"""

import itertools
import logging
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from model_utils.errors import DataError, first_few, shorten
from src.tasks.entities import (
    OUTSIDE,
    EntitySpan,
    Scheme,
    find_invalid_tags,
    find_orphan_continuations,
    find_scheme,
    is_tag,
    tag_entity,
)
from src.tasks.json_sentences import find_json_format, read_spans, read_tokens
from src.tasks.tagged_columns import DOCUMENT, is_comment, read_columns
from src.tasks.tagged_sentences import Sentence
from src.tasks.word_splitting import LONG_IDEOGRAPHS, LONG_WORDS, are_texts, split_words
from src.text.text_tables import JSON_SUFFIXES, SUFFIXES, read_table, suffix_of, text_lines
from src.utils import read_lines

logger = logging.getLogger(__name__)
FORMATS = ("columns", "lines", "names", "tokens", "spans")
_MOST_WORDS = 1000  # of a sentence; more are probably many sentences
_NO_TABLES = (*JSON_SUFFIXES, ".txt", ".tsv")  # endings of tables that may also have other formats


@dataclass(frozen=True)
class EntityColumns:
    """Columns of a table (text, name: an entity mention; label: its label) and of words with tags (word, tag).

    Attributes:
        tag_names: names of the tags in files that have their numbers.
    """

    text: str
    name: str
    label: str
    word: str = ""
    tag: str = ""
    tag_names: tuple[str, ...] = ()


def read_sentences(
    path: Path,
    data_format: str,
    columns: EntityColumns,
    labelled: bool = True,
    training: Path | None = None,
    labels: Sequence[str] = (),
    into_characters: bool = False,
) -> list[Sentence]:
    """Return the sentences of a file, in order.

    Args:
        data_format: one of FORMATS, or "auto" (find_format).
        labelled: True: every word must have a tag. False: tags are read if all sentences have some.
        training: training file, if there is one.
        labels: tags of the model, which NerSplit checks; empty: the tags of the file must follow one scheme.
        into_characters: split the texts of "spans" into characters (split_words).

    Raises:
        DataError: the file cannot be read, has another format (names the line), holds no sentences, has invalid tags,
            or was guessed to have columns that may be words of sentences.
    """
    path = Path(path)
    is_guessed = data_format == "auto"
    data_format = find_format(path, data_format, columns, labelled, training)
    hint = ""
    if is_guessed:
        logger.info(f"{path.name} is read as {data_format}")
        hint = f"; the format was guessed to be {data_format}, --data_format sets another"
    if data_format == "names":
        sentences = _read_names(path, columns, labelled)
    elif data_format == "tokens":
        sentences = list(read_tokens(path, columns.word, columns.tag, labelled, columns.tag_names))
    elif data_format == "spans":
        sentences = list(read_spans(path, columns.text, labelled, into_characters))
    elif data_format == "columns":
        sentences = list(read_columns(path, columns.word, columns.tag, labelled, hint))
    else:
        sentences = list(_read_lines(path, labelled, hint))
    if not sentences:
        raise DataError(f"{path} holds no sentences")
    if len(sentences) == 1 and len(sentences[0].words) > _MOST_WORDS:
        logger.warning(f"{path} is one sentence of {len(sentences[0].words):,} words: put a blank line behind each")
    if not labelled and not _has_tags(sentences, data_format, labels):
        if is_guessed and data_format == "columns":
            _check_guessed_words(path, sentences, labels)
        return [replace(sentence, tags=None) for sentence in sentences]
    if not labels:
        scheme, invalid = find_invalid_tags(tag for sentence in sentences for tag in sentence.tags or ())
        for sentence in sentences if invalid else ():
            for word, tag in enumerate(sentence.tags or ()):
                if tag in invalid:
                    raise DataError(f"{sentence.location(word)} has the tag {shorten(tag)}, allowed are {scheme.value}")
    _warn_of_unbegun(path, sentences, labels)
    return sentences


def _has_tags(sentences: Sequence[Sentence], data_format: str, labels: Sequence[str]) -> bool:
    """Return True if all sentences have tags, and most of these are valid."""
    untagged = sum(sentence.tags is None for sentence in sentences)
    if 0 < untagged < len(sentences) and data_format == "lines":
        file = sentences[0].file.name
        logger.info(f"{file}: {untagged:,} sentences have no tags, so the tags of the others are ignored")
    tags = [tag for sentence in sentences for tag in sentence.tags or ()]
    return not untagged and 2 * sum(tag in labels or is_tag(tag) for tag in tags) > len(tags)


def _check_guessed_words(path: Path, sentences: Sequence[Sentence], labels: Sequence[str]) -> None:
    """Raise DataError if the columns of a file without tags may be sentences."""
    for tag in itertools.chain.from_iterable(sentence.tags or () for sentence in sentences):
        if tag not in labels and not is_tag(tag):
            raise DataError(
                f"{path} was guessed to be columns, but the last one holds {shorten(tag)}, which is no tag: give "
                "--data_format lines if each line is a sentence, or --data_format columns if each is a word"
            )
    if are_texts([word for sentence in sentences for word in sentence.words]):
        raise DataError(
            f"{path} was guessed to be columns with a word in each line, but half of its words have more than "
            f"{LONG_WORDS} characters, or more than {LONG_IDEOGRAPHS} Chinese ones: answer raw text with "
            "predict.py, or give --data_format columns"
        )


def _warn_of_unbegun(path: Path, sentences: Sequence[Sentence], labels: Sequence[str]) -> None:
    """Warn of tags that continue an entity that has not begun."""
    tags = [sentence.tags or () for sentence in sentences]
    scheme = find_scheme(labels or itertools.chain.from_iterable(tags))
    unbegun = [] if scheme is Scheme.WORDS else find_orphan_continuations(tags, scheme)
    if unbegun:
        lines = [f"line {sentences[index].line_of(word)} ({tags[index][word]})" for index, word in unbegun]
        logger.warning(
            f"{path}: {len(unbegun):,} tags continue an entity that has not begun, and are read as its beginning: "
            f"{first_few(lines)}"
        )


def find_format(
    path: Path, data_format: str, columns: EntityColumns, labelled: bool = True, training: Path | None = None
) -> str:
    """Return the format of a file, one of FORMATS, which a data_format of "auto" leaves to be found.

    In this order: tokens or spans by the first JSON object; names for csv, jsonl, xls and xlsx, and where the first
    line has the columns of a table; lines if some line has several words, a TAB and as many tags, or every line has
    several words and a TAB; the training file's format for files without TABs; lines if most have several words, not
    all as many, and most of these end in no tag; columns.
    """
    if data_format != "auto":
        return data_format
    if labelled:
        training = None  # a labelled file needs no hint
    suffix = suffix_of(path)
    if suffix in SUFFIXES and suffix not in _NO_TABLES:
        return "names"
    if json_format := find_json_format(path, (columns.text, columns.name), columns.word, labelled):
        return json_format
    if suffix in JSON_SUFFIXES:
        return "spans" if training and find_format(training, data_format, columns) == "spans" else "names"
    header = next(iter(read_lines(path)), "").rstrip("\r\n").split("\t")
    column_numbers = [str(number) for number in range(1, len(header) + 1)] if len(header) > 1 else []
    if {columns.text, columns.name} <= {*header, *column_numbers}:
        return "names"
    if _are_lines(path):
        return "lines"
    if labelled or any("\t" in text for text in read_lines(path)):
        return "columns"
    if training:
        return "lines" if find_format(training, data_format, columns) == "lines" else "columns"
    texts = (text for text in read_lines(path) if not is_comment(text))
    rows = [row for text in texts if (row := text.split()) and row[0] != DOCUMENT]
    ends = [is_tag(row[-1]) for row in rows if len(row) > 1]
    has_several = len(set(map(len, rows))) > 1 and 2 * len(ends) > len(rows)
    return "lines" if has_several and 2 * sum(ends) < len(ends) else "columns"


def _are_lines(path: Path) -> bool:
    """Return True if a file has the format lines; a stray TAB, or a space in a word, in columns does not count."""
    filled_lines = lines_of_words = 0
    for text in read_lines(path):
        if is_comment(text):
            continue
        words, tab, tags = text.partition("\t")
        count = len(words.split()) if tab and "\t" not in tags.strip() else 0
        if count > 1 and count == len(tags.split()):
            return True
        filled_lines += bool(text.strip())
        lines_of_words += count > 1
    return lines_of_words > 0 and lines_of_words == filled_lines


def _read_lines(path: Path, labelled: bool, hint: str) -> Iterator[Sentence]:
    for line, text in enumerate(text_lines(path), 1):
        cells = [cell.split() for cell in text.split("\t")]
        if not any(cells):
            continue
        if not labelled and not cells[-1]:
            cells.pop()
        if len(cells) != 2 and (labelled or len(cells) > 1):
            raise DataError(
                f"{path}: line {line} has {len(cells)} column(s), expected are words, TAB, their tags{hint}"
            )
        if len(cells) == 2 and len(cells[0]) != len(cells[1]):
            raise DataError(f"{path}: line {line} has {len(cells[0])} words and {len(cells[1])} tags{hint}")
        words, *tags = (tuple(map(sys.intern, cell)) for cell in cells)  # one object for equal words
        yield Sentence(words, tags[0] if tags else None, path, (line,))


def _read_names(path: Path, columns: EntityColumns, labelled: bool) -> list[Sentence]:
    """Return the texts of a table, each once, tagged with the entity mentions of all its rows."""
    table = read_table(path)
    reads_names = labelled or table.has(columns.name)
    column_names = [columns.text, columns.name] if reads_names else [columns.text]
    if missing_columns := [column for column in column_names if not table.has(column)]:
        raise DataError(
            f"{path} is read as a table of texts and names, but has no column {shorten(missing_columns[0])} "
            f"(text_column, name_column), only {first_few(list(map(shorten, table.names)), 20)}; words with tags are "
            "read from lines with a word, TAB, its tag, or from JSON lines with lists of both, not from tables"
        )
    line_and_names: dict[str, tuple[int, list[str]]] = {}
    for line, (text, *names) in table.select(column_names):
        if text.strip():
            _, names_of_text = line_and_names.setdefault(text.strip(), (line, []))
            names_of_text.extend(name for name in names if name.strip())
        elif reads_names:
            raise DataError(f"{path}: line {line} is empty in column {columns.text!r}; fill it or remove the row")
    # Without any name, an unlabelled file has no gold tags.
    has_tags = labelled or any(names for _, names in line_and_names.values())
    sentences = []
    not_found: list[str] = []
    within_others: list[str] = []
    for text, (line, names) in line_and_names.items():
        words = tuple(text[start:end] for start, end in split_words(text))
        tags, missing, covered = _tag_names(words, names, columns.label)
        not_found += [f"line {line} ({name!r})" for name in missing]
        within_others += [f"line {line} ({name!r})" for name in covered]
        if words and not (missing and labelled):
            sentences.append(Sentence(words, tuple(tags) if has_tags and not missing else None, path, (line,)))
    if not_found:
        consequence = "their texts are left out" if labelled else "the file counts as unlabelled"
        found = f"{len(not_found):,} names do not occur in their texts"
        logger.info(f"{path.name}: {found}, so {consequence}: {first_few(not_found)}")
    if within_others:
        found = f"{len(within_others):,} names occur only within other names"
        logger.info(f"{path.name}: {found} and get no tags: {first_few(within_others)}")
    return sentences


def _tag_names(words: Sequence[str], names: Sequence[str], label: str) -> tuple[list[str], list[str], list[str]]:
    """Return BIO tags of the words of names, names that do not occur, and names that occur only within others.

    Names are whole words, in any case; longer ones are tagged first.
    """
    lowered = [word.lower() for word in words]
    tags = [OUTSIDE] * len(words)
    missing: list[str] = []
    covered: list[str] = []
    names_by_words = {tuple(name[start:end].lower() for start, end in split_words(name)): name for name in names}
    for name_words, name in sorted(names_by_words.items(), key=lambda item: -len(item[0])):
        size = len(name_words)
        starts = range(len(words) - size + 1) if size else ()
        entities = [EntitySpan(label, i, i + size) for i in starts if tuple(lowered[i : i + size]) == name_words]
        if not entities:
            missing.append(name)
        elif not sum(tag_entity(tags, entity) for entity in entities):
            covered.append(name)
    return tags, missing, covered
