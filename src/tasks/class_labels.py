"""Labels of training data: which there are, which rows are left out, and which are probably no classes."""

import functools
import logging
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from model_utils.errors import DataError, shorten
from src.create_finetune_data import DECIMAL_COMMA, Example, labels_in

logger = logging.getLogger(__name__)
_MAX_NUMERIC_LABELS = 20  # more distinct numbers are probably regression targets
_SHOWN = 5  # labels listed in a message
_RARE = 3  # training rows; a class with fewer can hardly be learnt
_SEPARATORS = re.compile(r"\s*[,|;/，；、]\s*")
_MISSING_VALUES = {"nan", "none", "null", "nil", "na", "n/a", "#n/a", "<na>", "nat"}  # as exported tables write them


def find_labels(examples: Sequence[Example], held_out: int = 0, separator: str = "") -> list[str]:
    """Return the sorted labels of a training file, and log them; warn if they look like regression targets.

    Args:
        held_out: number of examples that are split off for development.
        separator: text between several labels of an example; "": each has one.

    Raises:
        DataError: there are fewer than two labels.
    """
    file = examples[0].file
    counts = count_labels(examples, separator)
    if len(counts) < 2:
        raise DataError(f"{file} has {len(counts)} label(s) ({', '.join(counts)}), needed are at least two")
    common = ", ".join(f"{label} ({count:,})" for label, count in counts.most_common(10))
    more = f" and {len(counts) - 10:,} more" if len(counts) > 10 else ""
    size = f"{len(examples):,} examples"
    if held_out:
        size += f", {held_out:,} of them for development"
    logger.info(f"{file}: {size}; {len(counts):,} labels: {common}{more}")
    if not separator and len(counts) > _MAX_NUMERIC_LABELS and None not in map(_parse_number, counts):
        logger.warning(f"all {len(counts):,} labels are numbers, but used as classes; for regression set --num_class 1")
    return sorted(counts)


def count_labels(examples: Sequence[Example], separator: str) -> Counter[str]:
    """Return the number of examples with each label; separator: as in find_labels."""
    counts: Counter[str] = Counter()
    for example in examples:
        counts.update(labels_in(example, separator) if separator else filter(None, [example.label]))
    return counts


def _parse_number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def drop_labels(examples: Sequence[Example], skip_labels: Collection[str], labelled: bool) -> list[Example]:
    """Return the examples without those that have a label of skip_labels, and log the number of dropped rows.

    Args:
        skip_labels: labels that mark rows without a gold label; "": rows that have none.
        labelled: False for a test file. It is unlabelled and keeps all rows if its labels are all in skip_labels or -1.

    Raises:
        DataError: no examples are left.
    """
    labels = {example.label or "" for example in examples}
    if not labelled and labels <= {"", "-1", *skip_labels}:
        if marks := sorted(labels - {""}):
            logger.info(f"{examples[0].file}: all labels are {', '.join(map(shorten, marks))}: it is unlabelled")
        return [replace(example, label=None) for example in examples]
    remaining = [example for example in examples if (example.label or "") not in skip_labels]
    if not remaining:
        raise DataError(f"{examples[0].file} holds no examples but those with a label of skip_labels")
    if len(remaining) < len(examples):
        skipped = ", ".join(map(shorten, sorted(labels & {*skip_labels})))
        rows = len(examples) - len(remaining)
        logger.info(f"{examples[0].file}: {rows:,} of {len(examples):,} rows are left out, their label is {skipped}")
    return remaining


def drop_unlabelled(examples: Sequence[Example], labelled: bool) -> list[Example]:
    """Return the examples without those whose indicators are all -1 or empty, and log the number of dropped rows.

    Args:
        labelled: False for a test file, which keeps all rows if it has no others.

    Raises:
        DataError: no examples are left.
    """
    file = examples[0].file
    remaining = [example for example in examples if example.label is not None]
    if not remaining and labelled:
        raise DataError(f"{file} has no row with gold labels: all indicator_columns are -1 or empty")
    if 0 < len(remaining) < len(examples):
        rows = len(examples) - len(remaining)
        logger.info(f"{file}: {rows:,} of {len(examples):,} rows are left out, their indicators are all -1 or empty")
    return remaining or list(examples)


@functools.cache
def warn_of_unmatched(file: Path, labels: frozenset[str]) -> None:
    """Log the labels of skip_labels that no row of a file has; once for a file, which may be read several times."""
    if labels:
        logger.warning(f"{file}: no row has the label {', '.join(map(shorten, sorted(labels)))} of skip_labels")


def _spelling(label: str) -> str:
    """Return a label without differences in case, white space, Unicode's forms and invisible characters."""
    text = unicodedata.normalize("NFKC", label).casefold()
    return " ".join("".join(char for char in text if unicodedata.category(char) != "Cf").split())


def _marked_as_missing(counts: Counter[str], numbers: Mapping[str, float | None]) -> list[str]:
    """Return the labels that may mark rows without one, such as "none" or, beside 0 and 2, -1."""
    marks = set(_MISSING_VALUES)
    values = [number for number in numbers.values() if number is not None]
    if len(values) == len(counts) and min(values) == -1 and max(values) > 1:  # not -1, 0 and 1
        marks.add("-1")
    return [label for label in counts if label.casefold() in marks or not any(map(str.isalnum, label))]


def _joined_labels(counts: Counter[str]) -> list[str]:
    """Return the labels that look like several labels of one text.

    Such a label has a part that is a label itself, or stands at another position of another label.
    """
    parts = {}
    for label in counts:
        texts = _SEPARATORS.split(label.strip("[]{}()"))  # also of a list as pandas writes it
        parts[label] = [text.strip("'\"") for text in texts]
    positions = defaultdict(set)  # part -> its positions in labels; 0: it is a whole label
    for label_parts in parts.values():
        for position, part in enumerate(label_parts, 1):
            positions[part].add(position if len(label_parts) > 1 else 0)
    return [
        label
        for label, label_parts in parts.items()
        if len(label_parts) > 1 and any(part and len(positions[part]) > 1 for part in label_parts)
    ]


def _similar_labels(numbers: Mapping[str, float | None]) -> list[str]:
    """Return the labels that differ from others only in case, white space or notation."""
    spellings = defaultdict(list)
    for label, number in numbers.items():
        spellings[_spelling(label) if number is None else str(number)].append(label)
    return [label for similar in spellings.values() if len(similar) > 1 for label in similar]


def label_warnings(counts: Counter[str], separator: str = "") -> list[str]:
    """Return warnings about labels that are probably not classes of their own.

    Args:
        counts: training rows by label.
        separator: as in find_labels.
    """
    numbers = {label: _parse_number(label) for label in counts}
    decimal_commas = [label for label in counts if DECIMAL_COMMA.fullmatch(label)]
    remedy = "leave their cells empty" if separator else "name them with --skip_labels"
    joined = "each combination is a class of its own"
    if separator:
        joined = f"they need {separator} between them (--label_separator)"
    findings = {
        f"labels that may mark rows without one; if they do, {remedy}": _marked_as_missing(counts, numbers),
        "numbers with a decimal comma, each a class of its own; write a decimal point": decimal_commas,
        f"labels that look like several labels of one text; {joined}": [
            label for label in _joined_labels(counts) if label not in decimal_commas
        ],
        "labels that differ only in case, white space or notation; each is a class of its own": _similar_labels(
            numbers
        ),
        f"labels with fewer than {_RARE} training rows, which can hardly be learnt": [
            label for label, count in counts.items() if count < _RARE
        ],
    }
    warnings = []
    for finding, labels in findings.items():
        if labels:
            more = f" and {len(labels) - _SHOWN:,} more" if len(labels) > _SHOWN else ""
            warnings.append(f"{finding}: {', '.join(map(shorten, labels[:_SHOWN]))}{more}")
    return warnings
