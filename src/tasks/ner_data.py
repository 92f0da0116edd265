"""Reader and encoder of sentences with tagged words -> rows of token ids, for token classification.

File formats are columns (CoNLL: one word per line, a blank line after a sentence), lines (words, TAB, tags: BMES),
names (tables of texts and entity mentions), tokens (JSON with lists of words and tags) and spans (JSON with texts and
labelled characters). The tag of a word is learnt and predicted at its first token.
"""

import itertools
import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from model_utils.errors import DataError, first_few, shorten
from src.data.feature_cache import Features
from src.data.feature_files import Column, Ragged
from src.data.features import best_windows, text_facts, token_columns
from src.tasks.entities import OUTSIDE, Scheme, find_scheme, is_tag, misfits, unbegun_words
from src.tasks.json_sentences import find_json_format, read_spans, read_tokens
from src.tasks.tagged_columns import DOCUMENT, is_comment, read_columns
from src.tasks.word_splitting import LONG_IDEOGRAPHS, LONG_WORDS, are_texts, split_words
from src.text.text_tables import JSON_SUFFIXES, SUFFIXES, read_table, suffix_of, text_lines
from src.tokenization import FullTokenizer
from src.utils import read_lines

logger = logging.getLogger(__name__)
FORMATS = ("columns", "lines", "names", "tokens", "spans")
_NO_TABLES = (*JSON_SUFFIXES, ".txt", ".tsv")  # endings of tables that may also have other formats


@dataclass(frozen=True, slots=True)
class Sentence:
    """Words of a sentence, their tags if it is labelled, and its position in a file.

    Attributes:
        lines_a_word: 1 if each word has its own line, else 0.
        lines: lines of the words, where they are not consecutive.
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
    names: EntityColumns,
    labelled: bool = True,
    training: Path | None = None,
    labels: Sequence[str] = (),
    into_characters: bool = False,
) -> list[Sentence]:
    """Return the sentences of a file, in order.

    Args:
        data_format: one of FORMATS, or "auto", which chooses in this order: tokens or spans by the first JSON object;
            names for csv, jsonl, xls and xlsx and where the first line has the columns of `names`; lines if some line
            has several words, a TAB and as many tags, or every line has several words and a TAB; the training file's
            format for files without TABs; lines if the lines differ in their number of words and most end in no tag;
            columns.
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
    data_format = find_format(path, data_format, names, labelled, training)
    if is_guessed:
        logger.info(f"{path.name} is read as {data_format}")
    if data_format == "names":
        sentences = _read_names(path, names, labelled)
    elif data_format in ("tokens", "spans"):
        sentences = _read_json(path, data_format, names, labelled, into_characters)
    else:
        guess = f"; the format was guessed to be {data_format}, --data_format sets another" if is_guessed else ""
        if data_format == "columns":
            sentences = _read_columns(path, names, labelled, guess)
        else:
            sentences = list(_read_lines(path, labelled, guess))
    if not sentences:
        raise DataError(f"{path} holds no sentences")
    if not labelled and not _has_tags(sentences, data_format, labels):
        if is_guessed and data_format == "columns":
            _check_guessed_words(path, sentences, labels)
        return [replace(sentence, tags=None) for sentence in sentences]
    if not labels:
        _check_tags(sentences)
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
    for sentence in sentences:
        for tag in sentence.tags or ():
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


def _check_tags(sentences: Sequence[Sentence]) -> None:
    """Raise DataError if a tag breaks the scheme of the others."""
    scheme, invalid = misfits(tag for sentence in sentences for tag in sentence.tags or ())
    if not invalid:
        return
    for sentence in sentences:
        for word, tag in enumerate(sentence.tags or ()):
            if tag in invalid:
                raise DataError(f"{sentence.place(word)} has the tag {shorten(tag)}, allowed are {scheme.value}")


def _warn_of_unbegun(path: Path, sentences: Sequence[Sentence], labels: Sequence[str]) -> None:
    """Warn of tags that continue an entity that has not begun."""
    tags = [sentence.tags or () for sentence in sentences]
    scheme = find_scheme(labels or itertools.chain.from_iterable(tags))
    unbegun = [] if scheme is Scheme.WORDS else unbegun_words(tags, scheme)
    if unbegun:
        lines = [f"line {sentences[index].line_of(word)} ({tags[index][word]})" for index, word in unbegun]
        logger.warning(
            f"{path}: {len(unbegun):,} tags continue an entity that has not begun, and are read as its beginning: "
            f"{first_few(lines)}"
        )


def find_format(
    path: Path, data_format: str, names: EntityColumns, labelled: bool = True, training: Path | None = None
) -> str:
    """Return the format of a file, one of FORMATS; "auto" is resolved as read_sentences describes."""
    if data_format != "auto":
        return data_format
    suffix = suffix_of(path)
    if suffix in SUFFIXES and suffix not in _NO_TABLES:
        return "names"
    if json_format := find_json_format(path, (names.text, names.name), names.word, labelled):
        return json_format
    if suffix in JSON_SUFFIXES:
        has_spans = not labelled and training is not None and find_format(training, data_format, names) == "spans"
        return "spans" if has_spans else "names"
    header = next(iter(read_lines(path)), "").rstrip("\r\n").split("\t")
    column_numbers = [str(number) for number in range(1, len(header) + 1)] if len(header) > 1 else []
    if {names.text, names.name} <= {*header, *column_numbers}:
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


def _read_columns(path: Path, names: EntityColumns, labelled: bool, guess: str) -> list[Sentence]:
    sentences = []
    for words, tags, lines in read_columns(path, names.word, names.tag, labelled, guess):
        has_gaps = lines[-1] - lines[0] >= len(lines)
        sentences.append(Sentence(words, tags, path, lines[0], 1, lines if has_gaps else ()))
    return sentences


def _read_lines(path: Path, labelled: bool, guess: str) -> Iterator[Sentence]:
    for line, text in enumerate(text_lines(path), 1):
        cells = [cell.split() for cell in text.split("\t")]
        if not any(cells):
            continue
        if len(cells) != 2 and (labelled or len(cells) > 1):
            expected = f"words, TAB, their tags{guess}"
            raise DataError(f"{path}: line {line} has {len(cells)} column(s), expected are {expected}")
        if len(cells) == 2 and len(cells[0]) != len(cells[1]):
            raise DataError(f"{path}: line {line} has {len(cells[0])} words and {len(cells[1])} tags{guess}")
        words, *tags = (tuple(map(sys.intern, cell)) for cell in cells)  # one object for equal words
        yield Sentence(words, tags[0] if tags else None, path, line)


def _read_json(
    path: Path, data_format: str, columns: EntityColumns, labelled: bool, into_characters: bool
) -> list[Sentence]:
    if data_format == "tokens":
        sentences = read_tokens(path, columns.word, columns.tag, labelled, columns.tag_names)
    else:
        sentences = read_spans(path, columns.text, labelled, into_characters)
    return [Sentence(words, tags, path, line) for words, tags, (line,) in sentences]


def _read_names(path: Path, columns: EntityColumns, labelled: bool) -> list[Sentence]:
    """Return the texts of a table, each once, tagged with the entity mentions of all its rows."""
    table = read_table(path)
    reads_names = labelled or table.has(columns.name)
    column_names = [columns.text, columns.name] if reads_names else [columns.text]
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
    missing: list[str] = []
    covered: list[str] = []
    for text, (line, names) in line_and_names.items():
        words = [text[start:end] for start, end in split_words(text)]
        tags, missing_here, covered_here = tag_names_in(words, names, columns.label)
        missing += [f"line {line} ({name!r})" for name in missing_here]
        covered += [f"line {line} ({name!r})" for name in covered_here]
        if words and not (missing_here and labelled):
            is_tagged = has_tags and not missing_here
            sentences.append(Sentence(tuple(words), tuple(tags) if is_tagged else None, path, line))
    if missing:
        consequence = "which are left out" if labelled else "so the file counts as unlabelled"
        logger.info(
            f"{path.name}: {len(missing):,} names do not occur in their texts, {consequence}: {first_few(missing)}"
        )
    if covered:
        logger.info(
            f"{path.name}: {len(covered):,} names get no tags, since longer or earlier names cover them: "
            f"{first_few(covered)}"
        )
    return sentences


def tag_names_in(words: Sequence[str], names: Sequence[str], label: str) -> tuple[list[str], list[str], list[str]]:
    """Tag the words of a sentence where names occur: whole words, in any case, longer names first.

    Returns:
        tags: BIO tags of the words.
        missing: names that do not occur.
        covered: names that occur only where other names have the tags.
    """
    lowered = [word.lower() for word in words]
    tags = [OUTSIDE] * len(words)
    missing: list[str] = []
    covered: list[str] = []
    names_by_words = {tuple(name[start:end].lower() for start, end in split_words(name)): name for name in names}
    for name_words, name in sorted(names_by_words.items(), key=lambda item: -len(item[0])):
        size = len(name_words)
        starts = []
        if size > 0:
            starts = [i for i in range(len(words) - size + 1) if tuple(lowered[i : i + size]) == name_words]
        is_tagged = False
        for start in starts:
            if set(tags[start : start + size]) == {OUTSIDE}:
                tags[start : start + size] = [f"B-{label}", *([f"I-{label}"] * (size - 1))]
                is_tagged = True
        if not is_tagged:
            (covered if starts else missing).append(name)
    return tags, missing, covered


@dataclass(frozen=True)
class NerSplit:
    """Sentences of a split, with `labels`, the tags by id."""

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
        """Return one row per sentence, in order; a long sentence has one row per window.

        Windows overlap by half, and a word belongs to the window with most of its context.

        Returns:
            Columns input_ids, input_mask, segment_ids (int32) and, if all sentences are labelled, label_ids (int32)
            and label_weights (float32, 1 at the first token of each word of the row); all per_token.
            Arrays `words` (all words, 2) int32, row and position of each word; `sentence_words` (sentences,) int32,
            number of words.
        """
        sentences = self.examples
        tokenizer = self.tokenizer
        if not sentences:
            raise DataError("the split has no sentences")
        label_ids = _label_ids(sentences, self.labels)
        word_counts = np.array([len(sentence.words) for sentence in sentences], np.int64)
        pieces = tokenizer.encode_batch(word for sentence in sentences for word in sentence.words)
        ids: list[int] = []
        lengths: list[int] = []
        word_positions = np.zeros((word_counts.sum(), 2), np.int32)
        room = self.max_seq_length - 2
        step = max(1, room // 2)
        first_word = 0
        for word_count in word_counts.tolist():
            end_word = first_word + word_count
            word_tokens = [piece or [tokenizer.unk_id] for piece in pieces[first_word:end_word]]
            tokens = list(itertools.chain.from_iterable(word_tokens))
            first_tokens = np.cumsum([0, *map(len, word_tokens[:-1])])
            starts = np.arange(0, max(0, len(tokens) - room) + step, step)
            sizes = np.minimum(len(tokens) - starts, room)
            windows = best_windows(starts, sizes)[first_tokens]
            rows = len(lengths) + windows
            word_positions[first_word:end_word] = np.stack([rows, first_tokens - starts[windows] + 1], 1)
            for start, size in zip(starts.tolist(), sizes.tolist(), strict=True):
                ids += [tokenizer.cls_id, *tokens[start : start + size], tokenizer.sep_id]
                lengths.append(size + 2)
            first_word = end_word
        row_lengths = np.array(lengths, np.int64)
        input_ids = np.array(ids, np.int32)
        columns = token_columns(tokenizer, self.max_seq_length)
        arrays = (input_ids, np.ones_like(input_ids), np.zeros_like(input_ids))
        values = {name: Ragged(array, row_lengths) for name, array in zip(columns, arrays, strict=True)}
        if label_ids is not None:
            row_starts = np.cumsum(row_lengths) - row_lengths
            indices = row_starts[word_positions[:, 0]] + word_positions[:, 1]
            columns["label_ids"] = Column("int32", self.max_seq_length, 0, True)
            columns["label_weights"] = Column("float32", self.max_seq_length, 0, True)
            for name, word_values in (("label_ids", label_ids), ("label_weights", 1)):
                array = np.zeros(len(input_ids), columns[name].dtype)
                array[indices] = word_values
                values[name] = Ragged(array, row_lengths)
        return Features(columns, values, {"words": word_positions, "sentence_words": word_counts.astype(np.int32)})


def _label_ids(sentences: Sequence[Sentence], labels: Sequence[str]) -> np.ndarray | None:
    """Return the label ids (all words,), None if a sentence has no tags; raise DataError for unknown tags."""
    if any(sentence.tags is None for sentence in sentences):
        return None
    ids = {label: index for index, label in enumerate(labels)}
    for sentence in sentences:
        for word, tag in enumerate(sentence.tags or ()):
            if tag not in ids:
                raise DataError(f"{sentence.place(word)} has the tag {shorten(tag)}, allowed are {', '.join(labels)}")
    return np.array([ids[tag] for sentence in sentences for tag in sentence.tags or ()], np.int32)


def word_logits(array: Callable[[str], np.ndarray], logits: Ragged) -> list[np.ndarray]:
    """Return the logits (words, C) of each sentence from a network's logits for all tokens (tokens, C).

    Args:
        array: returns an array of NerSplit's features by name.
    """
    rows, positions = array("words").T
    row_starts = np.cumsum(logits.counts) - logits.counts
    return np.split(logits.values[row_starts[rows] + positions], np.cumsum(array("sentence_words"))[:-1])
