"""Sentences with tagged words -> rows of token ids, for token classification.

Read are columns (CoNLL: a word a line, a blank line after a sentence), lines (words, TAB, tags: BMES files), and
tables of texts and entity mentions. The tag of a word is learnt and predicted at its first token.
"""

import itertools
import logging
import re
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from model_utils.errors import DataError, first_few, shorten
from src.data.feature_cache import Features
from src.data.feature_files import Column, Ragged
from src.data.features import best_windows, text_facts, token_columns
from src.tasks.entities import OUTSIDE, Scheme, find_scheme, is_tag, misfits, unbegun_words
from src.tasks.tagged_columns import DOCUMENT, is_comment, read_columns
from src.text.text_tables import SUFFIXES, read_table, text_lines
from src.tokenization import FullTokenizer
from src.utils import read_lines

logger = logging.getLogger(__name__)
FORMATS = ("columns", "lines", "names")
LONG_WORDS, LONG_IDEOGRAPHS = 15, 2  # characters, ideographs; where half of the words have more, they are whole texts
_TEXT_TABLES = tuple(suffix for suffix in SUFFIXES if suffix not in (".txt", ".tsv"))  # these may be columns
_IDEOGRAPH = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_LETTER = rf"(?:(?![{_IDEOGRAPH}])[\w\u0300-\u036f])"
_CHARACTER = re.compile(r"\S")
_IDEOGRAPHS = re.compile(f"[{_IDEOGRAPH}]")
# An ideograph; letters and digits, with points, commas and hyphens inside; 's and the like; any other character.
_LETTERS = re.compile(rf"{_LETTER}+")
_WORD = re.compile(rf"[{_IDEOGRAPH}]|{_LETTER}+(?:[-.,]{_LETTER}+)*|['’]{_LETTER}+|[^\w\s]")


@dataclass(frozen=True, slots=True)
class Sentence:
    """Words, their tags if it is labelled, and its place.

    lines_a_word: 1 where each word has a line, else 0. lines: of the words where they do not follow each other.
    """

    words: tuple[str, ...]
    tags: tuple[str, ...] | None = None
    file: Path = Path()
    line: int = 0
    lines_a_word: int = 0
    lines: tuple[int, ...] = ()

    def line_of(self, word: int) -> int:
        return self.lines[word] if self.lines else self.line + word * self.lines_a_word

    def place(self, word: int) -> str:
        return f"{self.file}: line {self.line_of(word)}"


@dataclass(frozen=True)
class EntityColumns:
    """The columns of a table with a text and an entity mention in it, and the label of these entities.

    word, tag: the columns of a columns file, as src.tasks.tagged_columns has them.
    """

    text: str
    name: str
    label: str
    word: str = ""
    tag: str = ""


def split_words(text: str, into_characters: bool = False) -> list[tuple[int, int]]:
    """First character and the one after the last of every word: of English, by and large, as CoNLL-2003 splits them; of
    Chinese, every ideograph; or every character that is no space, where a model's training text was split so."""
    return [match.span() for match in (_CHARACTER if into_characters else _WORD).finditer(text)]


def splits_characters(words: Iterable[str]) -> bool:
    """Whether a text was split into characters: every ideograph, and letters and digits but for a few words."""
    ends: dict[bool, list[bool]] = {True: [], False: []}
    for word in words:
        ends[bool(_LETTERS.fullmatch(word))].append(len(word) > 1)
    of_letters, of_others = ends[True], ends[False]
    return 10 * sum(of_letters) <= len(of_letters) and 100 * sum(of_others) <= len(of_others)


def are_texts(words: Sequence[str]) -> bool:
    """Whether half of the words are too long for words."""
    ideographs = [len(_IDEOGRAPHS.findall(word)) for word in words]
    return statistics.median(map(len, words)) > LONG_WORDS or statistics.median(ideographs) > LONG_IDEOGRAPHS


def read_sentences(
    path: Path,
    data_format: str,
    names: EntityColumns,
    labelled: bool = True,
    training: Path | None = None,
    labels: Sequence[str] = (),
) -> list[Sentence]:
    """Return the sentences of a file, in their order.

    Args:
        data_format: one of FORMATS, or "auto": names for csv, jsonl, xls and xlsx and where the first line has their
            columns, lines where several words, a TAB and as many tags make some line, or several words and a TAB every
            line, else columns. A file that has no TAB because it is without tags is as the training file is; where that
            is not known, its lines are sentences if they have unlike numbers of words and most end in no tag.
        labelled: every word must have a tag. Otherwise tags are read where all sentences have some.
        labels: the model's tags, which NerSplit holds the file's against; none: these must be of one scheme.

    Raises:
        DataError: the file cannot be read, is of another form (names the line), holds no sentences, some words have
            what is no tag, or columns that were guessed may be words of sentences.
    """
    path, given = Path(path), data_format
    data_format = find_format(path, given, names, labelled, training)
    if data_format == "names":
        sentences = _read_names(path, names, labelled)
    else:
        guess = f"; the format was guessed to be {data_format}, --data_format names another" if given == "auto" else ""
        if data_format == "columns":
            sentences = _read_columns(path, names, labelled, guess)
        else:
            sentences = list(_read_lines(path, labelled, guess))
    if not sentences:
        raise DataError(f"{path} holds no sentences")
    if not labelled and not _has_tags(sentences, data_format, labels):
        if given == "auto" and data_format == "columns":
            _check_guessed_words(path, sentences, labels)
        return [replace(sentence, tags=None) for sentence in sentences]
    if not labels:
        _check_tags(sentences)
    _warn_of_unbegun(path, sentences, labels)
    return sentences


def _has_tags(sentences: Sequence[Sentence], data_format: str, labels: Sequence[str]) -> bool:
    """Return whether all sentences have something that is a tag for most words."""
    untagged = sum(sentence.tags is None for sentence in sentences)
    if 0 < untagged < len(sentences) and data_format == "lines":
        file = sentences[0].file.name
        logger.info(f"{file}: {untagged:,} sentences have no tags, so that the file counts as one without")
    tags = [tag for sentence in sentences for tag in sentence.tags or ()]
    return not untagged and 2 * sum(tag in labels or is_tag(tag) for tag in tags) > len(tags)


def _check_guessed_words(path: Path, sentences: Sequence[Sentence], labels: Sequence[str]) -> None:
    """Raise DataError where the columns of a file without tags may be sentences instead."""
    tags = (tag for sentence in sentences for tag in sentence.tags or ())
    other = next((tag for tag in tags if tag not in labels and not is_tag(tag)), None)
    if other is not None:
        raise DataError(
            f"{path} was guessed to be columns, but the last one holds {shorten(other)}, which is no tag: give "
            "--data_format lines if each line is a sentence, or --data_format columns if each is a word"
        )
    if are_texts([word for sentence in sentences for word in sentence.words]):
        raise DataError(
            f"{path} was guessed to be columns with a word in each line, but half of its words have more than "
            f"{LONG_WORDS} characters, or more than {LONG_IDEOGRAPHS} Chinese ones: answer raw text with "
            "predict.py, or give --data_format columns"
        )


def _check_tags(sentences: Sequence[Sentence]) -> None:
    """Raise DataError where a tag breaks the scheme of the others."""
    scheme, wrong = misfits(tag for sentence in sentences for tag in sentence.tags)
    for sentence in sentences if wrong else ():
        for word, tag in enumerate(sentence.tags):
            if tag in wrong:
                raise DataError(f"{sentence.place(word)} has the tag {shorten(tag)}, allowed are {scheme.value}")


def _warn_of_unbegun(path: Path, sentences: Sequence[Sentence], labels: Sequence[str]) -> None:
    tags = [sentence.tags for sentence in sentences]
    scheme = find_scheme(labels or itertools.chain.from_iterable(tags))
    unbegun = [] if scheme is Scheme.WORDS else unbegun_words(tags, scheme)
    if unbegun:
        lines = [f"line {sentences[index].line_of(word)} ({tags[index][word]})" for index, word in unbegun]
        logger.warning(
            f"{path}: {len(unbegun):,} tags go on with an entity that nothing begins, and are read as its beginning: "
            f"{first_few(lines)}"
        )


def find_format(
    path: Path, data_format: str, names: EntityColumns, labelled: bool = True, training: Path | None = None
) -> str:
    """The one of FORMATS that a file has, by its name and its lines where data_format does not say."""
    if data_format != "auto":
        return data_format
    if path.suffix.lower() in _TEXT_TABLES:
        return "names"
    header = next(iter(read_lines(path)), "").rstrip("\r\n").split("\t")
    numbers = [str(number) for number in range(1, len(header) + 1)] if len(header) > 1 else []
    if {names.text, names.name} <= {*header, *numbers}:
        return "names"
    if _are_lines(path):
        return "lines"
    if labelled or any("\t" in text for text in read_lines(path)):
        return "columns"
    if training is not None:
        return "lines" if find_format(training, data_format, names) == "lines" else "columns"
    texts = (text for text in read_lines(path) if not is_comment(text))
    rows = [row for text in texts if (row := text.split()) and row[0] != DOCUMENT]
    ends = [is_tag(row[-1]) for row in rows if len(row) > 1]
    return "lines" if len(set(map(len, rows))) > 1 and 2 * sum(ends) < len(ends) else "columns"


def _are_lines(path: Path) -> bool:
    """Whether a file is of words, TAB, their tags; one stray TAB or one space in a word does not make columns that."""
    filled = several = 0
    for text in read_lines(path):
        if is_comment(text):
            continue
        words, tab, tags = text.partition("\t")
        count = len(words.split()) if tab and "\t" not in tags.strip() else 0
        if count > 1 and count == len(tags.split()):
            return True
        filled += bool(text.strip())
        several += count > 1
    return 0 < several == filled


def _read_columns(path: Path, names: EntityColumns, labelled: bool, guess: str) -> list[Sentence]:
    sentences = []
    for words, tags, lines in read_columns(path, names.word, names.tag, labelled, guess):
        has_gaps = lines[-1] - lines[0] >= len(lines)
        sentences.append(Sentence(words, tags, path, lines[0], 1, lines if has_gaps else ()))
    return sentences


def _read_lines(path: Path, labelled: bool, guess: str) -> Iterator[Sentence]:
    for line, text in enumerate(text_lines(path), 1):
        parts = [part.split() for part in text.split("\t")]
        if not any(parts):
            continue
        if len(parts) != 2 and (labelled or len(parts) > 1):
            expected = f"words, TAB, their tags{guess}"
            raise DataError(f"{path}: line {line} has {len(parts)} column(s), expected are {expected}")
        if len(parts) == 2 and len(parts[0]) != len(parts[1]):
            raise DataError(f"{path}: line {line} has {len(parts[0])} words and {len(parts[1])} tags{guess}")
        yield Sentence(tuple(parts[0]), tuple(parts[1]) if len(parts) == 2 else None, path, line)


def _read_names(path: Path, columns: EntityColumns, labelled: bool) -> list[Sentence]:
    """The texts of a table, each once, with the entity mentions of all its rows; a row may have none."""
    table, needed = read_table(path), labelled
    labelled = labelled or table.has(columns.name)
    wanted = [columns.text, *([columns.name] * labelled)]
    found: dict[str, tuple[int, list[str]]] = {}
    for line, (text, *names) in table.select(wanted):
        if text.strip():
            found.setdefault(text.strip(), (line, []))[1].extend(name for name in names if name.strip())
        elif labelled:
            raise DataError(f"{path}: line {line} is empty in column {columns.text!r}; fill it or remove the row")
    labelled = needed or any(names for _, names in found.values())  # a column that is empty tells nothing
    sentences, missing, hidden = [], [], []
    for text, (line, names) in found.items():
        words = [text[start:end] for start, end in split_words(text)]
        tags, unfound, covered = tag_names_in(words, names, columns.label)
        missing += [f"line {line} ({name!r})" for name in unfound]
        hidden += [f"line {line} ({name!r})" for name in covered]
        if words and not (unfound and needed):
            known = labelled and not unfound
            sentences.append(Sentence(tuple(words), tuple(tags) if known else None, path, line))
    if missing:
        so = "which are left out" if needed else "so that the file counts as one without entities"
        logger.info(f"{path.name}: {len(missing):,} names do not occur in their texts, {so}: {first_few(missing)}")
    if hidden:
        logger.info(
            f"{path.name}: {len(hidden):,} names occur only where a longer or an earlier one has the words' tags, and "
            f"have none: {first_few(hidden)}"
        )
    return sentences


def tag_names_in(words: Sequence[str], names: Sequence[str], label: str) -> tuple[list[str], list[str], list[str]]:
    """BIO tags of words, wherever a name occurs in them (whole words, in any case), longer names first.

    Also returns the names that do not occur, and those that do only where others have the tags.
    """
    lowered, tags, unfound, covered = [word.lower() for word in words], [OUTSIDE] * len(words), [], []
    split = {tuple(name[start:end].lower() for start, end in split_words(name)): name for name in names}
    for wanted, name in sorted(split.items(), key=lambda item: -len(item[0])):
        size, tagged = len(wanted), False
        places = [i for i in range(len(words) - size + 1) if wanted and tuple(lowered[i : i + size]) == wanted]
        for first in places:
            if set(tags[first : first + size]) == {OUTSIDE}:
                tags[first : first + size] = [f"B-{label}", *([f"I-{label}"] * (size - 1))]
                tagged = True
        if not tagged:
            (covered if places else unfound).append(name)
    return tags, unfound, covered


@dataclass(frozen=True)
class NerSplit:
    """Sentences of a split; labels: tags by id."""

    name: str
    examples: Sequence[Sentence]
    labels: Sequence[str]
    tokenizer: FullTokenizer
    max_seq_length: int

    def facts(self) -> dict[str, Any]:
        tagged = ((sentence.words, sentence.tags) for sentence in self.examples)
        source = {sentence.file.name for sentence in self.examples}
        return text_facts(source, tagged, self.tokenizer, max_seq_length=self.max_seq_length, labels=list(self.labels))

    def features(self) -> Features:
        """One row for each sentence, in their order; of one that is too long, one for each window.

        Windows overlap by half, and a word belongs to the one that shows most of its surroundings.

        Returns:
            Columns input_ids, input_mask, segment_ids, int32, and where all sentences are labelled label_ids (int32)
            and label_weights (float32, 1 at the first token of each word of the row); all per_token.
            Arrays `words` (all words, 2) int32: row and position of each; `sentence_words` (sentences,) words of each.
        """
        sentences, tokenizer = self.examples, self.tokenizer
        if not sentences:
            raise DataError("there are no sentences to make features of")
        targets = _targets(sentences, self.labels)
        counts = np.array([len(sentence.words) for sentence in sentences], np.int64)
        pieces = tokenizer.encode_batch(word for sentence in sentences for word in sentence.words)
        ids: list[int] = []
        lengths, places = [], np.zeros((counts.sum(), 2), np.int32)
        room, word = self.max_seq_length - 2, 0
        for count in counts.tolist():
            own = [piece or [tokenizer.unk_id] for piece in pieces[word : word + count]]
            tokens = list(itertools.chain.from_iterable(own))
            firsts = np.cumsum([0, *map(len, own[:-1])])
            step = max(1, room // 2)
            starts = np.arange(0, max(0, len(tokens) - room) + step, step)
            sizes = np.minimum(len(tokens) - starts, room)
            window = best_windows(starts, sizes)[firsts]
            places[word : word + count] = np.stack([len(lengths) + window, firsts - starts[window] + 1], 1)
            for start, size in zip(starts.tolist(), sizes.tolist(), strict=True):
                ids += [tokenizer.cls_id, *tokens[start : start + size], tokenizer.sep_id]
                lengths.append(size + 2)
            word += count
        rows = np.array(lengths, np.int64)
        input_ids = np.array(ids, np.int32)
        columns = token_columns(tokenizer, self.max_seq_length)
        filled = (input_ids, np.ones_like(input_ids), np.zeros_like(input_ids))
        values = {name: Ragged(column, rows) for name, column in zip(columns, filled, strict=True)}
        if targets is not None:
            at = (np.cumsum(rows) - rows)[places[:, 0]] + places[:, 1]
            for name, dtype, entries in (("label_ids", "int32", targets), ("label_weights", "float32", 1)):
                column = np.zeros(len(input_ids), dtype)
                column[at] = entries
                columns[name], values[name] = Column(dtype, self.max_seq_length, 0, True), Ragged(column, rows)
        return Features(columns, values, {"words": places, "sentence_words": counts.astype(np.int32)})


def _targets(sentences: Sequence[Sentence], labels: Sequence[str]) -> np.ndarray | None:
    """(all words,) label ids; None if there are sentences without."""
    if any(sentence.tags is None for sentence in sentences):
        return None
    ids = {label: index for index, label in enumerate(labels)}
    for sentence in sentences:
        for word, tag in enumerate(sentence.tags):
            if tag not in ids:
                raise DataError(f"{sentence.place(word)} has the tag {shorten(tag)}, allowed are {', '.join(labels)}")
    return np.array([ids[tag] for sentence in sentences for tag in sentence.tags], np.int32)


def word_logits(array: Callable[[str], np.ndarray], logits: Ragged) -> list[np.ndarray]:
    """(words, C) for each sentence, of a network's outputs for all tokens, (tokens, C).

    Args:
        array: gives an array of NerSplit's features by its name.
    """
    rows, positions = array("words").T
    first = np.cumsum(logits.counts) - logits.counts
    return np.split(logits.values[first[rows] + positions], np.cumsum(array("sentence_words"))[:-1])
