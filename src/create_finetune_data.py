"""Features of classification and regression: texts with labels -> rows of token ids.

This module reads the user's own data (`--task_name custom`), src/tasks/glue.py reads GLUE. Rows are [CLS] a [SEP] with
segment 0, or [CLS] a [SEP] b [SEP] with segment 1 from b on, as in google-research/albert's classifier_utils.
"""

import functools
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
from src.data.features import WINDOWS, labelled_features, text_facts, token_columns
from src.data.packing import TEXT_COLUMNS
from src.text.text_tables import JSON_SUFFIXES, SUFFIXES, read_table, suffix_of
from src.tokenization import FullTokenizer
from src.utils import read_lines

logger = logging.getLogger(__name__)
LARGEST_SCORE = 1e6  # of a regression target: squared errors are summed in float32
NEGATIVE, POSITIVE = "negative", "positive"
INDICATOR_VALUES = {"0": False, "1": True, "false": False, "true": True}
UNLABELLED = {"", "-1"}  # values of all indicators in a row without gold labels
_LIST = re.compile(r"\[.*\]", re.DOTALL)
_SPLIT_NAMES = {"train": ("train",), "dev": ("dev", "valid", "validation", "val"), "test": ("test",)}
_MAX_NUMERIC_LABELS = 20  # more distinct numbers are probably regression targets
_SHOWN = 5  # file names or labels listed in a message
_RARE = 3  # training rows; a class with fewer can hardly be learnt
_WHOLE_NUMBER = re.compile(r"(-?(?:0|[1-9][0-9]*))\.0+")
_DECIMAL_COMMA = re.compile(r"[+-]?[0-9]+,[0-9]+")
_SEPARATORS = re.compile(r"\s*[,|;/，；、]\s*")
_MISSING_VALUES = {"nan", "none", "null", "nil", "na", "n/a", "#n/a", "<na>", "nat"}  # as exported tables write them


@dataclass(frozen=True, slots=True)
class Example:
    """One text or a pair of texts with the label of the file."""

    text_a: str
    text_b: str  # empty: only one text
    label: str | None  # None: unlabelled
    file: Path
    line: int

    @property
    def place(self) -> str:
        return f"{self.file}: line {self.line}"


@dataclass(frozen=True)
class TextColumns:
    """Columns of a table with texts and labels, by name or by number from 1; text_b may be empty.

    Attributes:
        names: column names of files without a header. A first row with the name text_a is still a header.
        separator: text between the labels of a row, which may then have any number of them, also as a JSON list; empty:
            a row has one label.
        indicators: columns of 0 and 1, one for each label, in place of `label`.
    """

    text_a: str = "text_a"
    text_b: str = ""
    label: str = "label"
    names: tuple[str, ...] = ()
    separator: str = ""
    indicators: tuple[str, ...] = ()

    def label_of(self, fields: Sequence[str], place: str) -> str | None:
        """Return the label in the fields of a row's label columns, or its labels with the separator between them.

        Raises:
            DataError: an indicator is neither 0 nor 1, or the labels are a list as pandas writes it.
        """
        if not self.indicators:
            if self.separator and _LIST.fullmatch(fields[0]):
                raise DataError(f"{place} has the list {shorten(fields[0])}: write labels as a{self.separator}b")
            return plain_label(fields[0]) or None
        values = [plain_label(field).lower() for field in fields]
        if set(values) <= UNLABELLED:
            return None
        for name, value in zip(self.indicators, values, strict=True):
            if value not in INDICATOR_VALUES:
                raise DataError(f"{place} has {shorten(value)} in column {name}, allowed are 0 and 1")
        return self.separator.join(itertools.compress(self.indicators, map(INDICATOR_VALUES.get, values))) or None


def read_examples(
    path: Path, columns: TextColumns, labelled: bool = True, skipped: list[str] | None = None
) -> list[Example]:
    """Return the examples of a table (src/text/text_tables.py), without white space around texts and labels.

    Args:
        labelled: True requires texts and a label in every row. False reads labels if there are any and keeps rows with
            empty texts, because every row of a test set is predicted.
        skipped: list that receives the error messages of invalid rows, which are skipped; rows with empty texts are
            kept. None: raise the first error.

    Raises:
        DataError: the file cannot be read, lacks a column or has no rows; a row is invalid.
    """
    list_column = (columns.label, columns.separator) if columns.separator else None
    table = read_table(path, columns.names, columns.text_a, list_column)
    texts = [columns.text_a, columns.text_b] if columns.text_b else [columns.text_a]
    label_columns = columns.indicators or (columns.label,)
    has_label = labelled or any(map(table.has, label_columns))
    selected = [*texts, *label_columns] if has_label else texts
    column_indices = [table.place(column) for column in selected]
    is_by_number = not {*selected} <= {*table.names}
    if is_by_number and not columns.names and suffix_of(path) not in JSON_SUFFIXES:
        # Column numbers suggest a file without a header.
        logger.info(
            f"{path}: the first line is the header ({', '.join(table.names)[:200]}); if it is not, set column_names"
        )
    first_required = 0 if skipped is None else len(selected) - 1
    required = slice(first_required, len(texts) if columns.separator else len(selected))
    examples = []
    for line, row in table.rows:
        try:
            fields = [field.strip() for field in table.pick(line, row, column_indices)]
            if labelled and "" in fields[required]:
                empty_column = selected[fields.index("", first_required)]
                raise DataError(f"{path}: line {line} is empty in column {empty_column!r}; fill it or remove the row")
            label = columns.label_of(fields[len(texts) :], f"{path}: line {line}") if has_label else None
        except DataError as error:
            if skipped is None:
                raise
            skipped.append(str(error))
            continue
        examples.append(Example(fields[0], fields[1] if columns.text_b else "", label, table.path, line))
    if not examples:
        raise DataError(f"{path} holds no examples")
    return examples


def read_polarity_files(positive: Path, negative: Path) -> list[Example]:
    """Return the examples of two files with one text per line, labelled "positive" and "negative"; skip empty lines."""
    examples = []
    for file, label in ((positive, POSITIVE), (negative, NEGATIVE)):
        texts = ((line, text.strip()) for line, text in enumerate(read_lines(file), 1))
        file_examples = [Example(text, "", label, file, line) for line, text in texts if text]
        if not file_examples:
            raise DataError(f"{file} holds no text")
        examples += file_examples
    return examples


class SplitFiles(Mapping[str, Path]):
    """Mapping of splits to files; a split with several files raises DataError only when it is read."""

    def __init__(self, files: Mapping[str, Sequence[Path]]) -> None:
        self._files = files

    def __getitem__(self, split: str) -> Path:
        file, *others = self._files[split]
        if others:
            names = ", ".join(path.name for path in (file, *others))
            raise DataError(f"{file.parent} holds several {split} files: {names}; name one with --{split}_file")
        return file

    def __contains__(self, split: object) -> bool:
        return split in self._files

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


def find_splits(data_dir: str, named: Mapping[str, str], endings: Sequence[str] | None = SUFFIXES) -> SplitFiles:
    """Return the files of the user's data by split; a named file takes precedence over one in data_dir.

    Args:
        data_dir: folder with train.*, dev.* (or valid, validation, val) and test.*; "" for none.
        named: split -> file name or "".
        endings: allowed suffixes of files in data_dir; None: any.

    Raises:
        DataError: data_dir is not a folder, or there is no file at all.
    """
    splits = {split: [Path(name)] for split, name in named.items() if name}
    if not data_dir:
        return SplitFiles(splits)
    folder = Path(data_dir)
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder")
    files = [path for path in sorted(folder.iterdir()) if endings is None or suffix_of(path) in endings]
    for split, names in _SPLIT_NAMES.items():
        split_files = [path for path in files if path.is_file() and path.name.split(".")[0] in names]
        if split_files:
            splits.setdefault(split, split_files)
    if not splits:
        allowed = "" if endings is None else f", as {', '.join('train' + ending for ending in endings)}"
        others = ", ".join(path.name for path in files[:_SHOWN] if path.is_file())
        advice = f"; name files with --train_file, --dev_file, --test_file: {others}" if others else ""
        raise DataError(f"{folder} holds no file named train, dev or test{allowed}{advice}")
    return SplitFiles(splits)


def find_labels(examples: Iterable[Example]) -> list[str]:
    """Return the sorted labels of training data; raise DataError if there are fewer than two."""
    examples = list(examples)
    labels = sorted({example.label for example in examples if example.label is not None})
    if len(labels) < 2:
        raise DataError(f"{examples[0].file} has {len(labels)} label(s) ({', '.join(labels)}), needed are at least two")
    return labels


def report_labels(examples: Sequence[Example], held_out: int) -> None:
    """Log the labels of a training file and the size of its dev split; warn if they look like regression targets."""
    counts = Counter(example.label or "" for example in examples)
    common = ", ".join(f"{label} ({count:,})" for label, count in counts.most_common(10))
    more = f" and {len(counts) - 10:,} more" if len(counts) > 10 else ""
    dev_count = f", {held_out:,} of them for development" if held_out else ""
    logger.info(f"{examples[0].file}: {len(examples):,} examples{dev_count}; {len(counts):,} labels: {common}{more}")
    if len(counts) > _MAX_NUMERIC_LABELS and all(_parse_number(label) is not None for label in counts):
        logger.warning(f"all {len(counts):,} labels are numbers, but used as classes; for regression set --num_class 1")


def _parse_number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def plain_label(label: str) -> str:
    """Return a whole number without decimals ("1" for pandas' "1.00"), and any other label unchanged."""
    return _WHOLE_NUMBER.sub(r"\1", label) if _WHOLE_NUMBER.fullmatch(label) else label


def drop_labels(examples: Sequence[Example], skip_labels: Collection[str], labelled: bool) -> list[Example]:
    """Return the examples without those that have a label of skip_labels, and log the number of dropped rows.

    Args:
        skip_labels: labels that mark rows without a gold label.
        labelled: False for a test file. It is unlabelled and keeps all rows if its labels are all in skip_labels or -1.

    Raises:
        DataError: no examples are left.
    """
    labels = {example.label for example in examples if example.label is not None}
    if not labelled and labels and labels <= {"-1", *skip_labels}:
        logger.info(f"{examples[0].file}: all labels are {', '.join(sorted(labels))}: it is unlabelled")
        return [replace(example, label=None) for example in examples]
    remaining = [example for example in examples if example.label not in skip_labels]
    if not remaining:
        raise DataError(f"{examples[0].file} holds no examples but those with a label of skip_labels")
    if len(remaining) < len(examples):
        skipped = ", ".join(sorted(labels & {*skip_labels}))
        rows = len(examples) - len(remaining)
        logger.info(f"{examples[0].file}: {rows:,} of {len(examples):,} rows are left out, their label is {skipped}")
    return remaining


@functools.cache
def warn_of_unmatched(file: Path, labels: frozenset[str]) -> None:
    """Log the labels of skip_labels that no row of a file has; once for a file, which may be read several times."""
    if labels:
        logger.warning(f"{file}: no row has the label {', '.join(map(shorten, sorted(labels)))} of skip_labels")


def label_warnings(counts: Counter[str]) -> list[str]:
    """Return warnings about labels that are probably not classes of their own.

    Args:
        counts: training rows by label.
    """
    spellings = defaultdict(list)
    for label in counts:
        number = _parse_number(label)
        spellings[" ".join(label.casefold().split()) if number is None else str(number)].append(label)
    components = {
        label: [
            text.strip("'\"") for text in _SEPARATORS.split(label.strip("[]{}()"))
        ]  # also a list as pandas writes it
        for label in counts
    }
    positions = defaultdict(set)  # component -> its positions in labels; 0: it is a whole label
    for label_components in components.values():
        for position, component in enumerate(label_components, 1):
            positions[component].add(position if len(label_components) > 1 else 0)
    decimal_commas = [label for label in counts if _DECIMAL_COMMA.fullmatch(label)]
    multi_labels = []
    for label, label_components in components.items():
        is_reused = any(component and len(positions[component]) > 1 for component in label_components)
        if len(label_components) > 1 and is_reused and label not in decimal_commas:
            multi_labels.append(label)
    numbers = [number for label in counts if (number := _parse_number(label)) is not None]
    is_placeholder = "-1" in counts and len(numbers) == len(counts) and min(numbers) == -1 and max(numbers) > 1
    findings = {
        "labels without letters or digits; if they mark unlabelled rows, name them with --skip_labels": [
            label for label in counts if not any(map(str.isalnum, label))
        ],
        "labels that mean a missing value in exported tables; if they do here, name them with --skip_labels": [
            label for label in counts if label.casefold() in _MISSING_VALUES
        ],
        "a label that often marks unlabelled rows; if so, set --skip_labels=-1": ["-1"] if is_placeholder else [],
        "numbers with a decimal comma, each a class of its own; write a decimal point": decimal_commas,
        "labels that look like several labels of one text; each combination is a class of its own": multi_labels,
        "labels that differ only in case, white space or notation; each is a class of its own": [
            label for similar in spellings.values() if len(similar) > 1 for label in similar
        ],
        f"labels with fewer than {_RARE} training rows, which can hardly be learnt": [
            label for label, count in counts.items() if count < _RARE
        ],
    }
    return [f"{finding}: {_listed(labels)}" for finding, labels in findings.items() if labels]


def _listed(labels: Sequence[str]) -> str:
    more = f" and {len(labels) - _SHOWN:,} more" if len(labels) > _SHOWN else ""
    return ", ".join(map(shorten, labels[:_SHOWN])) + more


def encode_pairs(
    texts_a: Sequence[str], texts_b: Sequence[str], tokenizer: FullTokenizer, max_seq_length: int
) -> tuple[dict[str, Ragged], np.ndarray]:
    """Encode one or two texts per row.

    A text that is too long loses tokens at its end; of a pair, the longer one, or the second if both are equally long
    (google's _truncate_seq_pair).

    Args:
        texts_b: second texts; one without tokens means that the row has a single text.
        max_seq_length: maximum tokens of a row, at least 3.

    Returns:
        Columns input_ids, input_mask and segment_ids, int32, without padding; truncated, (rows,) bool.
    """
    values, truncated, _ = encode_windows(texts_a, texts_b, tokenizer, max_seq_length, 0)
    return values, truncated


def encode_windows(
    texts_a: Sequence[str], texts_b: Sequence[str], tokenizer: FullTokenizer, max_seq_length: int, window_stride: int
) -> tuple[dict[str, Ragged], np.ndarray, np.ndarray]:
    """Encode one or two texts in one row or, if they are too long for it, in several.

    Args:
        texts_a, texts_b, max_seq_length: as in encode_pairs.
        window_stride: stride in tokens between consecutive windows of a text, at most a window's tokens; of a pair the
            longer text has windows, and each has the shorter one beside it, truncated to half of the room. 0: a single
            row, truncated as in encode_pairs.

    Returns:
        Columns input_ids, input_mask and segment_ids, int32, without padding; truncated, (texts,) bool; the index of
        each row's texts, (rows,).
    """
    rows = []
    first_segment_counts = []
    truncated = []
    row_counts = []
    for ids_a, ids_b in zip(tokenizer.encode_batch(texts_a), tokenizer.encode_batch(texts_b), strict=True):
        room = max_seq_length - (3 if ids_b else 2)
        if window_stride and len(ids_a) + len(ids_b) > room:
            pairs, is_truncated = _windows(ids_a, ids_b, room, window_stride)
        else:
            length_a = min(len(ids_a), max(room - len(ids_b), (room + 1) // 2))
            length_b = min(len(ids_b), room - length_a)
            pairs = [(ids_a[:length_a], ids_b[:length_b])]
            is_truncated = length_a + length_b < len(ids_a) + len(ids_b)
        for part_a, part_b in pairs:
            row = [tokenizer.cls_id, *part_a, tokenizer.sep_id]
            first_segment_counts.append(len(row))
            rows.append([*row, *part_b, tokenizer.sep_id] if ids_b else row)
        truncated.append(is_truncated)
        row_counts.append(len(pairs))
    counts = np.array([len(row) for row in rows], np.int64)
    input_ids = np.fromiter(itertools.chain.from_iterable(rows), np.int32, counts.sum())
    segment_counts = np.stack([first_segment_counts, counts - first_segment_counts], 1).ravel()
    segment_ids = np.repeat(np.tile(np.array([0, 1], np.int32), len(rows)), segment_counts)
    columns = zip(TEXT_COLUMNS, (input_ids, np.ones_like(input_ids), segment_ids), strict=True)
    values = {name: Ragged(array, counts) for name, array in columns}
    return values, np.array(truncated), np.repeat(np.arange(len(row_counts)), row_counts)


def _windows(
    ids_a: list[int], ids_b: list[int], room: int, window_stride: int
) -> tuple[list[tuple[list[int], list[int]]], bool]:
    """Return the tokens of both texts in each window, and whether the shorter text lost some."""
    a_is_long = len(ids_a) >= len(ids_b)
    long, whole = (ids_a, ids_b) if a_is_long else (ids_b, ids_a)
    short = whole[: room // 2]
    width = room - len(short)
    step = min(window_stride, width)
    parts = [long[start : start + width] for start in range(0, max(1, len(long) - width + step), step)]
    pairs = [(part, short) if a_is_long else (short, part) for part in parts]
    return pairs, len(short) < len(whole)


def mean_of_windows(values: np.ndarray, windows: np.ndarray) -> np.ndarray:
    """Return the mean over the rows of each text, (texts, *), of values (rows, *).

    Args:
        windows: (rows,) the text of each row, ascending; every text has a row.
    """
    starts = np.flatnonzero(np.diff(windows, prepend=-1))
    counts = np.diff(starts, append=len(windows)).reshape(-1, *[1] * (values.ndim - 1))
    return np.add.reduceat(values, starts) / counts.astype(values.dtype)


@dataclass(frozen=True)
class ClassificationSplit:
    """Examples of a split with the settings of their features.

    Attributes:
        labels: label names by id; None for regression.
        complete: whether the split has all examples of its file.
        other_label: advice in the error message for an unknown label.
        window_stride: as in encode_windows.
    """

    name: str
    examples: Sequence[Example]
    labels: Sequence[str] | None
    tokenizer: FullTokenizer
    max_seq_length: int
    complete: bool = True
    other_label: str = ""
    window_stride: int = 0

    def facts(self) -> dict[str, Any]:
        texts = ((example.text_a, example.text_b, example.label) for example in self.examples)
        source = {example.file.name for example in self.examples}
        labels = None if self.labels is None else list(self.labels)
        settings = {"max_seq_length": self.max_seq_length, "window_stride": self.window_stride, "labels": labels}
        return text_facts(source, texts, self.tokenizer, **settings)

    def features(self) -> Features:
        """Return the rows of the examples in order.

        Returns:
            Columns input_ids, input_mask, segment_ids and, unless all examples are unlabelled, label_ids: the label's
            id (int32) or the regression target (float32). Arrays: `labels` (examples,) and, with window_stride,
            `windows` (rows,), the example of each row.

        Raises:
            DataError: there are no examples; a label is unknown, not a number or missing in some rows only.
        """
        examples = self.examples
        max_tokens = self.max_seq_length
        if not examples:
            raise DataError("there are no examples to make features of")
        targets = self.targets()
        texts_a = [example.text_a for example in examples]
        texts_b = [example.text_b for example in examples]
        values, truncated, windows = encode_windows(texts_a, texts_b, self.tokenizer, max_tokens, self.window_stride)
        file = examples[0].file.name
        if len(windows) > len(examples):
            long_count = np.count_nonzero(np.bincount(windows) > 1)
            logger.info(
                f"{file}: {long_count:,} of {len(examples):,} examples have more than {max_tokens} tokens and are read "
                f"in windows: {len(windows):,} rows in total"
            )
        if truncated.any():
            finding = f"{truncated.sum():,} of {len(examples):,} examples have more than {max_tokens} tokens"
            effect = "the shorter text is cut to half a row" if self.window_stride else "are cut"
            logger.info(f"{file}: {finding} and {effect}")
        columns = token_columns(self.tokenizer, max_tokens)
        arrays = {WINDOWS: windows} if self.window_stride else {}
        if targets is None:
            return Features(columns, values, arrays)
        return labelled_features(columns, values, targets, **arrays)

    def targets(self) -> np.ndarray | None:
        """Return the label ids or regression targets, (examples,); None if all examples are unlabelled."""
        return _targets(self.examples, self.labels, self.other_label)


def score_of(example: Example) -> float:
    """Return the label of a regression example as a number; raise DataError if it is not a number or too large."""
    try:
        score = float(example.label or "")
    except ValueError:
        score = math.nan
    if not abs(score) <= LARGEST_SCORE:  # NaN fails the comparison
        decimal_comma = "; write a decimal point for the comma" if _DECIMAL_COMMA.fullmatch(example.label or "") else ""
        raise DataError(
            f"{example.place} has the label {shorten(example.label)}, allowed are numbers from {-LARGEST_SCORE:g} to "
            f"{LARGEST_SCORE:g}{decimal_comma}"
        )
    return score


def _targets(examples: Sequence[Example], labels: Sequence[str] | None, advice: str) -> np.ndarray | None:
    """Return the label ids or regression targets, (examples,); None if all examples are unlabelled."""
    unlabelled = [example for example in examples if example.label is None]
    if len(unlabelled) == len(examples):
        return None
    if unlabelled:
        raise DataError(f"{unlabelled[0].place} has no label, but other lines have one")
    if labels is None:
        return np.array([score_of(example) for example in examples], np.float32)
    ids = {label: index for index, label in enumerate(labels)}
    for example in examples:
        if example.label not in ids:
            allowed = ", ".join(labels)
            raise DataError(f"{example.place} has the label {shorten(example.label)}, allowed are {allowed}{advice}")
    return np.array([ids[example.label or ""] for example in examples], np.int32)
