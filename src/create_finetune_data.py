"""Texts with labels -> rows of token ids, for classification and regression.

Anyone's own data is read here (`--task_name custom`), GLUE's in src/tasks/glue.py. Rows are [CLS] a [SEP] with segment
0, or [CLS] a [SEP] b [SEP] with segment 1 from b on, as google-research/albert's classifier_utils makes them.
"""

import itertools
import logging
import math
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from model_utils.errors import DataError, shorten
from src.data.feature_cache import Features
from src.data.feature_files import Ragged
from src.data.features import labelled_features, text_facts, token_columns
from src.data.packing import TEXT_COLUMNS
from src.text.text_tables import JSON_SUFFIXES, SUFFIXES, read_table
from src.tokenization import FullTokenizer
from src.utils import read_lines

logger = logging.getLogger(__name__)
LARGEST_SCORE = 1e6  # of a regression: squares of errors are summed in float32
NEGATIVE, POSITIVE = "negative", "positive"
_SPLIT_NAMES = {"train": ("train",), "dev": ("dev", "valid", "validation", "val"), "test": ("test",)}
_MOST_NUMBERS = 20  # labels that are numbers, before they are likely scores
_SHOWN = 5  # names of other files, or labels, in a message
_RARE = 3  # training rows, below which a class cannot be learnt
_WHOLE_NUMBER = re.compile(r"(-?(?:0|[1-9][0-9]*))\.0+")
_SEPARATORS = re.compile(r"\s*[,|;/，；、]\s*")
_MISSING = {"nan", "none", "null", "nil", "na", "n/a", "#n/a", "<na>", "nat"}  # what exports write for no value


@dataclass(frozen=True, slots=True)
class Example:
    """One text, or two (else text_b is empty), with the label as the file has it; None: unlabelled."""

    text_a: str
    text_b: str
    label: str | None
    file: Path
    line: int

    @property
    def place(self) -> str:
        return f"{self.file}: line {self.line}"


@dataclass(frozen=True)
class TextColumns:
    """Which columns of a table hold what, by their names or numbers from 1; text_b may be empty.

    names: of the columns of files without a header. Where the first row holds text_a's name, it is one all the same.
    """

    text_a: str = "text_a"
    text_b: str = ""
    label: str = "label"
    names: tuple[str, ...] = ()


def read_examples(
    path: Path, columns: TextColumns, labelled: bool = True, skipped: list[str] | None = None
) -> list[Example]:
    """The examples of a table (src/text/text_tables.py); white space around texts and labels is taken off.

    Args:
        labelled: every row must have its texts and a label. Otherwise labels are read where there are any, and a row
            with an empty text stays: every row of a test set is to be predicted.
        skipped: takes the error sentences of broken rows, which are left out, while one with an empty text stays; None:
            the first sentence is raised.

    Raises:
        DataError: the file cannot be read, lacks a column or has no rows; a row is not as it must be.
    """
    table = read_table(path, columns.names, columns.text_a)
    has_label = labelled or table.has(columns.label)
    wanted = [columns.text_a, *([columns.text_b] * bool(columns.text_b)), *([columns.label] * has_label)]
    places = [table.place(column) for column in wanted]
    by_number = not {*wanted} <= {*table.names}
    if by_number and not columns.names and path.suffix.lower() not in JSON_SUFFIXES:  # is there a header at all?
        logger.info(
            f"{path}: its first line is taken for the header ({', '.join(table.names)[:200]}), see column_names"
        )
    first_needed = 0 if skipped is None else len(wanted) - 1
    examples = []
    for line, row in table.rows:
        try:
            texts = [text.strip() for text in table.pick(line, row, places)]
            if labelled and "" in texts[first_needed:]:
                empty = wanted[texts.index("", first_needed)]
                raise DataError(f"{path}: line {line} is empty in column {empty!r}; fill it or remove the row")
        except DataError as error:
            if skipped is None:
                raise
            skipped.append(str(error))
            continue
        label = plain_label(texts.pop()) or None if has_label else None
        examples.append(Example(texts[0], texts[1] if columns.text_b else "", label, table.path, line))
    if not examples:
        raise DataError(f"{path} holds no examples")
    return examples


def read_polarity_files(positive: Path, negative: Path) -> list[Example]:
    """The examples of two files with one text a line, labelled "positive" and "negative"; empty lines are left out."""
    examples = []
    for file, label in ((positive, POSITIVE), (negative, NEGATIVE)):
        texts = ((line, text.strip()) for line, text in enumerate(read_lines(file), 1))
        found = [Example(text, "", label, file, line) for line, text in texts if text]
        if not found:
            raise DataError(f"{file} holds no text")
        examples += found
    return examples


class SplitFiles(Mapping[str, Path]):
    """The files of one's own texts by split; several of one split are a DataError only where it is read."""

    def __init__(self, files: Mapping[str, Sequence[Path]]) -> None:
        self._files = files

    def __getitem__(self, split: str) -> Path:
        first, *others = self._files[split]
        if others:
            there = ", ".join(path.name for path in (first, *others))
            raise DataError(f"{first.parent} holds several {split} files: {there}; name one with --{split}_file")
        return first

    def __contains__(self, split: object) -> bool:
        return split in self._files

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


def find_splits(data_dir: str, named: Mapping[str, str], endings: Sequence[str] | None = SUFFIXES) -> SplitFiles:
    """The files of one's own texts by split: those that are named, and of the others those that are there.

    Args:
        data_dir: a folder with train.*, dev.* (or valid, validation, val) and test.*; "" for none.
        named: by split, the name of a file or "".
        endings: of the files' names in data_dir; None: any.
    """
    splits = {split: [Path(name)] for split, name in named.items() if name}
    if not data_dir:
        return SplitFiles(splits)
    folder = Path(data_dir)
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder")
    files = [path for path in sorted(folder.iterdir()) if endings is None or path.suffix.lower() in endings]
    for split, names in _SPLIT_NAMES.items():
        found = [path for path in files if path.is_file() and path.name.split(".")[0] in names]
        if found:
            splits.setdefault(split, found)
    if not splits:
        allowed = "" if endings is None else f", as {', '.join('train' + ending for ending in endings)}"
        others = ", ".join(path.name for path in files[:_SHOWN] if path.is_file())
        advice = f"; name files with --train_file, --dev_file, --test_file: {others}" if others else ""
        raise DataError(f"{folder} holds no file named train, dev or test{allowed}{advice}")
    return SplitFiles(splits)


def find_labels(examples: Iterable[Example]) -> list[str]:
    """The sorted labels of training data; fewer than two are a DataError."""
    examples = list(examples)
    labels = sorted({example.label for example in examples if example.label is not None})
    if len(labels) < 2:
        raise DataError(f"{examples[0].file} has {len(labels)} label(s) ({', '.join(labels)}), needed are at least two")
    return labels


def report_labels(examples: Sequence[Example], held_out: int) -> None:
    """Say which labels the examples of a training file have, of which some are held out for development.

    Many different numbers are scores rather than labels.
    """
    counts = Counter(example.label for example in examples)
    named = ", ".join(f"{label} ({count:,})" for label, count in counts.most_common(10))
    more = f" and {len(counts) - 10:,} more" if len(counts) > 10 else ""
    share = f", {held_out:,} of them for development" if held_out else ""
    logger.info(f"{examples[0].file}: {len(examples):,} examples{share}; {len(counts):,} labels: {named}{more}")
    if len(counts) > _MOST_NUMBERS and all(_number_of(label) is not None for label in counts):
        logger.warning(f"all {len(counts):,} labels are numbers, each a class: for scores give --num_class 1")


def _number_of(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def plain_label(label: str) -> str:
    """Return a whole number without its decimals ("1" for "1.00", as pandas writes it); any other label as it is."""
    return _WHOLE_NUMBER.sub(r"\1", label) if _WHOLE_NUMBER.fullmatch(label) else label


def drop_labels(examples: Sequence[Example], skip_labels: Collection[str], labelled: bool) -> list[Example]:
    """Return the examples without those whose label says that there is none, and log their count.

    Args:
        skip_labels: the labels of such rows.
        labelled: False for a test file. Where all its labels are such ones or -1, it is unlabelled and keeps all rows.

    Raises:
        DataError: no other examples are left.
    """
    labels = {example.label for example in examples}
    if not labelled and labels - {None} and labels <= {None, "-1", *skip_labels}:
        logger.info(f"{examples[0].file}: all labels are {', '.join(sorted(labels - {None}))}: it is unlabelled")
        return [replace(example, label=None) for example in examples]
    kept = [example for example in examples if example.label not in skip_labels]
    if not kept:
        raise DataError(f"{examples[0].file} holds no examples but those with a label of skip_labels")
    if len(kept) < len(examples):
        skipped = ", ".join(sorted(labels & {*skip_labels}))
        rows = len(examples) - len(kept)
        logger.info(f"{examples[0].file}: {rows:,} of {len(examples):,} rows are left out, their label is {skipped}")
    return kept


def label_warnings(counts: Counter[str]) -> list[str]:
    """Return warnings about labels that are probably no classes of their own.

    Args:
        counts: training rows by label.
    """
    spellings = defaultdict(list)
    for label in counts:
        number = _number_of(label)
        spellings[" ".join(label.casefold().split()) if number is None else str(number)].append(label)
    parts = {
        label: [part.strip("'\"") for part in _SEPARATORS.split(label.strip("[]{}()"))]  # a list as pandas writes it
        for label in counts
    }
    places = defaultdict(set)  # of a part: the places at which labels have it; 0 in a label without other parts
    for split in parts.values():
        for place, part in enumerate(split, 1):
            places[part].add(place if len(split) > 1 else 0)
    several = [
        label
        for label, split in parts.items()
        if len(split) > 1 and any(part and len(places[part]) > 1 for part in split)
    ]
    numbers = {_number_of(label) for label in counts}
    unlabelled = "-1" in counts and None not in numbers and min(numbers) == -1 and max(numbers) > 1
    findings = {
        "labels without letters or digits; where they mark rows without a label, name them with --skip_labels": [
            label for label in counts if not any(map(str.isalnum, label))
        ],
        "labels that stand for missing values in exported tables; where they do, name them with --skip_labels": [
            label for label in counts if label.casefold() in _MISSING
        ],
        "a label that often marks rows without one; where it does, give --skip_labels=-1": ["-1"] if unlabelled else [],
        "multi-label data, where a text has several labels; each combination is a class here": several,
        "labels that differ in case, white space or notation alone; each is a class here": [
            label for alike in spellings.values() if len(alike) > 1 for label in alike
        ],
        f"labels with fewer than {_RARE} training rows, which can hardly be learnt": [
            label for label, count in counts.items() if count < _RARE
        ],
    }
    return [f"{what}: {_listed(labels)}" for what, labels in findings.items() if labels]


def _listed(labels: Sequence[str]) -> str:
    more = f" and {len(labels) - _SHOWN:,} more" if len(labels) > _SHOWN else ""
    return ", ".join(map(shorten, labels[:_SHOWN])) + more


def encode_pairs(
    texts_a: Sequence[str], texts_b: Sequence[str], tokenizer: FullTokenizer, max_seq_length: int
) -> tuple[dict[str, Ragged], np.ndarray]:
    """Rows of one or two texts each, without padding, int32, and which of them were truncated, (rows,) bool.

    What is too long is cut at its end: of a pair, the longer text token by token, and the second where both are equally
    long (google's _truncate_seq_pair).

    Args:
        texts_b: an empty one, or one without tokens, stands for none.
        max_seq_length: tokens of a row, at least 3.
    """
    rows, first_counts, truncated = [], [], []
    for a, b in zip(tokenizer.encode_batch(texts_a), tokenizer.encode_batch(texts_b), strict=True):
        room = max_seq_length - (3 if b else 2)
        keep_a = min(len(a), max(room - len(b), (room + 1) // 2))
        keep_b = min(len(b), room - keep_a)
        row = [tokenizer.cls_id, *a[:keep_a], tokenizer.sep_id]
        first_counts.append(len(row))
        rows.append([*row, *b[:keep_b], tokenizer.sep_id] if b else row)
        truncated.append(keep_a + keep_b < len(a) + len(b))
    counts = np.array([len(row) for row in rows], np.int64)
    input_ids = np.fromiter(itertools.chain.from_iterable(rows), np.int32, counts.sum())
    halves = np.stack([first_counts, counts - first_counts], 1).ravel()
    segment_ids = np.repeat(np.tile(np.array([0, 1], np.int32), len(rows)), halves)
    columns = zip(TEXT_COLUMNS, (input_ids, np.ones_like(input_ids), segment_ids), strict=True)
    return {name: Ragged(values, counts) for name, values in columns}, np.array(truncated)


@dataclass(frozen=True)
class ClassificationSplit:
    """Examples of a split; labels: by id, None for regression; complete: whether none of its file is left out.

    other_label: advice for a label that is none of `labels`.
    """

    name: str
    examples: Sequence[Example]
    labels: Sequence[str] | None
    tokenizer: FullTokenizer
    max_seq_length: int
    complete: bool = True
    other_label: str = ""

    def facts(self) -> dict[str, Any]:
        texts = ((example.text_a, example.text_b, example.label) for example in self.examples)
        source = {example.file.name for example in self.examples}
        named = None if self.labels is None else list(self.labels)
        return text_facts(source, texts, self.tokenizer, max_seq_length=self.max_seq_length, labels=named)

    def features(self) -> Features:
        """Rows of the examples, in their order.

        Returns:
            Columns input_ids, input_mask, segment_ids and, unless all examples are unlabelled, label_ids: the label's
            id (int32), or the score (float32). The same as array `labels` (rows,).

        Raises:
            DataError: there are no examples; a label is unknown, missing while others are there, or no number.
        """
        examples, most = self.examples, self.max_seq_length
        if not examples:
            raise DataError("there are no examples to make features of")
        targets = _targets(examples, self.labels, self.other_label)
        texts_a, texts_b = [example.text_a for example in examples], [example.text_b for example in examples]
        values, truncated = encode_pairs(texts_a, texts_b, self.tokenizer, most)
        if truncated.any():
            logger.info(
                f"{examples[0].file.name}: {truncated.sum():,} of {len(examples):,} examples have more than {most} "
                "tokens and are cut"
            )
        columns = token_columns(self.tokenizer, most)
        if targets is None:
            return Features(columns, values)
        return labelled_features(columns, values, targets)


def score_of(example: Example) -> float:
    """The label of an example of a regression task; a DataError if it is no number, or too large a one."""
    try:
        score = float(example.label or "")
    except ValueError:
        score = math.nan
    if not abs(score) <= LARGEST_SCORE:
        raise DataError(
            f"{example.place} has the label {shorten(example.label)}, allowed are numbers from {-LARGEST_SCORE:g} to "
            f"{LARGEST_SCORE:g}"
        )
    return score


def _targets(examples: Sequence[Example], labels: Sequence[str] | None, advice: str) -> np.ndarray | None:
    """(rows,) label ids or scores; None if all are unlabelled."""
    missing = [example for example in examples if example.label is None]
    if len(missing) == len(examples):
        return None
    if missing:
        raise DataError(f"{missing[0].place} has no label, and other lines have one")
    if labels is None:
        return np.array([score_of(example) for example in examples], np.float32)
    ids = {label: index for index, label in enumerate(labels)}
    for example in examples:
        if example.label not in ids:
            allowed = ", ".join(labels)
            raise DataError(f"{example.place} has the label {shorten(example.label)}, allowed are {allowed}{advice}")
    return np.array([ids[example.label] for example in examples], np.int32)
