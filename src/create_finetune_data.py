"""Features of classification and regression: texts with labels -> rows of token ids (src/data/text_rows.py).

This module reads the user's own data (`--task_name custom`), src/tasks/glue.py reads GLUE.
"""

import itertools
import logging
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from model_utils.errors import DataError, shorten
from src.data.feature_cache import Features
from src.data.features import WINDOWS, labelled_features, text_manifest, token_columns
from src.data.text_rows import encode_windows
from src.text.arrow_tables import is_saved_dataset, saved_splits, split_stem
from src.text.text_tables import SUFFIXES, TableOptions, names_its_columns, read_table, suffix_of
from src.tokenization import FullTokenizer
from src.utils import read_lines

logger = logging.getLogger(__name__)
MAX_SCORE = 1e6  # of a regression target: squared errors are summed in float32
NEGATIVE, POSITIVE = "negative", "positive"
INDICATOR_VALUES = {"0": False, "1": True, "false": False, "true": True}
UNLABELLED = {"", "-1"}  # values of all indicators in a row without gold labels
_LIST = re.compile(r"\[.*\]", re.DOTALL)
_SPLIT_NAMES = {"train": ("train",), "dev": ("dev", "valid", "validation", "val"), "test": ("test",)}
_SHOWN = 5  # file names listed in a message
DECIMAL_COMMA = re.compile(r"[+-]?[0-9]+,[0-9]+")
_WHOLE_NUMBER = re.compile(r"(-?(?:0|[1-9][0-9]*))\.0+")


@dataclass(frozen=True, slots=True)
class Example:
    """One text or a pair of texts with the label of the file."""

    text_a: str
    text_b: str  # empty: only one text
    label: str | None  # None: unlabelled, or none of several labels; "": none of the labels of indicator columns
    file: Path
    line: int

    @property
    def location(self) -> str:
        return f"{self.file}: line {self.line}"


@dataclass(frozen=True)
class TextColumns:
    """Columns of a table with texts and labels, by name or by number from 1; text_b may be empty.

    Attributes:
        names: column names of files without a header. A first row with the name text_a is still a header.
        separator: text between the labels of a row, which may then have any number of them, also as a JSON list; empty:
            a row has one label.
        indicator_columns: columns of 0 and 1, one for each label, in place of `label`.
        list_text: column of a text that JSON files hold as a list of words.
        optional_label: True keeps rows without a label.
        options: how the tables are stored; None: there are no options for it.
    """

    text_a: str = "text_a"
    text_b: str = ""
    label: str = "label"
    names: tuple[str, ...] = ()
    separator: str = ""
    indicator_columns: tuple[str, ...] = ()
    list_text: str = ""
    optional_label: bool = False
    options: TableOptions | None = None

    def texts(self) -> dict[str, str]:
        """Return the columns of the texts by their keys in records."""
        columns = {"text_a": self.text_a, "text_b": self.text_b}
        return {key: column for key, column in columns.items() if column}

    def label_of(self, fields: Sequence[str], location: str) -> str | None:
        """Return the label in the fields of a row's label columns, or its labels with the separator between them.

        Indicators that are all 0 give "", those that are all UNLABELLED None.

        Raises:
            DataError: an indicator is neither 0 nor 1, or the labels are a list as pandas writes it.
        """
        if not self.indicator_columns:
            if self.separator and _LIST.fullmatch(fields[0]):
                raise DataError(f"{location} has the list {shorten(fields[0])}: write labels as a{self.separator}b")
            return plain_label(fields[0]) or None
        values = [plain_label(field).lower() for field in fields]
        if set(values) <= UNLABELLED:
            return None
        for name, value in zip(self.indicator_columns, values, strict=True):
            if value not in INDICATOR_VALUES:
                raise DataError(f"{location} has {shorten(value)} in column {name}, allowed are 0 and 1")
        return self.separator.join(itertools.compress(self.indicator_columns, map(INDICATOR_VALUES.get, values)))


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
    if columns.list_text:
        list_column = (columns.list_text, " ")
    table = read_table(path, columns.names, columns.text_a, list_column, columns.options)
    texts = [*columns.texts().values()]
    label_columns = columns.indicator_columns or (columns.label,)
    has_label = labelled or any(map(table.has, label_columns))
    selected = [*texts, *label_columns] if has_label else texts
    column_indices = [table.column_index(column) for column in selected]
    is_by_number = not {*selected} <= {*table.names}
    if is_by_number and not columns.names and not names_its_columns(path):
        # Column numbers suggest a file without a header.
        logger.info(
            f"{path}: the first line is the header ({', '.join(table.names)[:200]}); if it is not, set column_names"
        )
    first_required = 0 if skipped is None else len(selected) - 1
    has_optional_label = bool(columns.separator) or columns.optional_label
    required = slice(first_required, len(texts) if has_optional_label else len(selected))
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


def read_polarity_files(positive: Path, negative: Path, encoding: str | None = None) -> list[Example]:
    """Return the examples of two files with one text per line, labelled "positive" and "negative"; skip empty lines."""
    examples = []
    for file, label in ((positive, POSITIVE), (negative, NEGATIVE)):
        texts = ((line, text.strip()) for line, text in enumerate(read_lines(file, encoding=encoding), 1))
        file_examples = [Example(text, "", label, file, line) for line, text in texts if text]
        if not file_examples:
            raise DataError(f"{file} holds no text")
        examples += file_examples
    return examples


class SplitFiles(dict[str, Any]):
    """Files by split; a split without a file, or with a list of several, raises DataError only when it is read."""

    def __missing__(self, split: str) -> Path:
        raise DataError(f"there are no {split} examples: give {split}_file, or put {split}.* into data_dir")

    def __getitem__(self, split: str) -> Path:
        file = super().__getitem__(split)
        if isinstance(file, list):
            names = ", ".join(path.name for path in file)
            raise DataError(f"{file[0].parent} holds several {split} files: {names}; name one with --{split}_file")
        return file


def find_splits(data_dir: str, named: Mapping[str, str], endings: Sequence[str] | None = SUFFIXES) -> SplitFiles:
    """Return the files of the user's data by split; a named file takes precedence over one in data_dir.

    Args:
        data_dir: folder with train.*, dev.* (or valid, validation, val) and test.*, or of save_to_disk; "" for none.
        named: split -> file name or "".
        endings: allowed suffixes of files in data_dir; None: any.

    Raises:
        DataError: data_dir is not a folder, or there is no file at all.
    """
    splits = SplitFiles({split: Path(name) for split, name in named.items() if name})
    if not data_dir:
        return splits
    folder = Path(data_dir)
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder")
    files = [path for path in sorted(folder.iterdir()) if endings is None or suffix_of(path) in endings]
    files = [path for path in files if path.is_file()]
    if endings is not None:
        files += saved_splits(folder) or [path for path in sorted(folder.iterdir()) if is_saved_dataset(path)]
    for split, names in _SPLIT_NAMES.items():
        split_files = [path for path in files if split_stem(path.name) in names]
        if split_files:
            splits.setdefault(split, split_files if len(split_files) > 1 else split_files[0])
    if not splits:
        allowed = "" if endings is None else f", as {', '.join('train' + ending for ending in endings)}"
        others = ", ".join(path.name for path in files[:_SHOWN])
        advice = f"; name files with --train_file, --dev_file, --test_file: {others}" if others else ""
        raise DataError(f"{folder} holds no file named train, dev or test{allowed}{advice}")
    return splits


def plain_label(label: str) -> str:
    """Return a whole number without decimals ("1" for pandas' "1.00"), and any other label unchanged."""
    return _WHOLE_NUMBER.sub(r"\1", label) if _WHOLE_NUMBER.fullmatch(label) else label


@dataclass(frozen=True)
class ClassificationSplit:
    """Examples of a split with the settings of their features.

    Attributes:
        labels: label names by id; None for regression.
        complete: whether the split has all examples of its file.
        other_label: advice in the error message for an unknown label.
        window_stride: as in encode_windows.
        separator: text between the labels of an example, which may have any number of them; "": it has one label.
    """

    name: str
    examples: Sequence[Example]
    labels: Sequence[str] | None
    tokenizer: FullTokenizer
    max_seq_length: int
    complete: bool = True
    other_label: str = ""
    window_stride: int = 0
    separator: str = ""

    def manifest(self) -> dict[str, Any]:
        # _has_empty_sets tells None and "" apart.
        texts = ((example.text_a, example.text_b, example.label or None) for example in self.examples)
        source = {example.file.name for example in self.examples}
        labels = None if self.labels is None else list(self.labels)
        settings: dict[str, Any] = {"max_seq_length": self.max_seq_length, "window_stride": self.window_stride}
        settings["labels"] = labels
        if self.separator:
            settings["label_separator"] = self.separator
        if self._has_empty_sets:
            settings["labelled"] = True
        return text_manifest(source, texts, self.tokenizer, **settings)

    def features(self) -> Features:
        """Return the rows of the examples in order.

        Returns:
            Columns input_ids, input_mask, segment_ids and, unless all examples are unlabelled, label_ids: the label's
            id (int32), the regression target (float32), or a decision about each label (C,) float32. Arrays: `labels`
            (examples, ...) and, with window_stride, `windows` (rows,), the example of each row.

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
            logger.info(f"{file}: {long_count:,} of {len(examples):,} examples are read in several windows")
        if truncated.any():
            count = f"{truncated.sum():,} of {len(examples):,}"
            logger.info(f"{file}: {count} examples have more than {max_tokens} tokens and are cut")
        columns = token_columns(self.tokenizer, max_tokens)
        arrays = {WINDOWS: windows} if self.window_stride else {}
        if targets is None:
            return Features(columns, values, arrays)
        return labelled_features(columns, values, targets, **arrays)

    def targets(self) -> np.ndarray | None:
        """Return label ids or regression targets (examples,), or decisions (examples, C); None without any label."""
        unlabelled = [example for example in self.examples if example.label is None]
        if len(unlabelled) == len(self.examples) and not self._has_empty_sets:
            return None
        if self.separator:
            targets = np.zeros((len(self.examples), len(self._label_ids)), np.float32)
            for row, example in enumerate(self.examples):
                targets[row, [self._label_id(example, label) for label in labels_in(example, self.separator)]] = 1
            return targets
        if unlabelled:
            raise DataError(f"{unlabelled[0].location} has no label, but other lines have one")
        if self.labels is None:
            return np.array([score_of(example) for example in self.examples], np.float32)
        return np.array([self._label_id(example, example.label) for example in self.examples], np.int32)

    def _label_id(self, example: Example, label: str | None) -> int:
        if label not in self._label_ids:
            allowed = f"{', '.join(self.labels or ())}{self.other_label}"
            raise DataError(f"{example.location} has the label {shorten(label)}, allowed are {allowed}")
        return self._label_ids[label]

    @cached_property
    def _has_empty_sets(self) -> bool:
        """True for labelled rows without any of several labels; test rows with empty cells are unlabelled."""
        labels = {example.label for example in self.examples}
        return bool(self.separator) and (labels == {""} or (self.name != "test" and labels == {None}))

    @cached_property
    def _label_ids(self) -> dict[str | None, int]:
        return {label: index for index, label in enumerate(self.labels or ())}


def labels_in(example: Example, separator: str) -> list[str]:
    """Return the labels of an example that may have several, without white space around them."""
    parts = (part.strip() for part in (example.label or "").split(separator))
    return [plain_label(part) for part in parts if part]


def score_of(example: Example) -> float:
    """Return the label of a regression example as a number; raise DataError if it is not a number or too large."""
    try:
        score = float(example.label or "")
    except ValueError:
        score = math.nan
    if not abs(score) <= MAX_SCORE:  # NaN fails the comparison
        allowed = f"numbers from {-MAX_SCORE:g} to {MAX_SCORE:g}"
        if DECIMAL_COMMA.fullmatch(example.label or ""):
            allowed += "; write a decimal point for the comma"
        raise DataError(f"{example.location} has the label {shorten(example.label)}, allowed are {allowed}")
    return score
