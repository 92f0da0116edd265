"""Labels of training data: which there are, which rows are left out, and which are probably no classes."""

import functools
import logging
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from model_utils.errors import DataError, shorten
from src.create_finetune_data import DECIMAL_COMMA, Example

logger = logging.getLogger(__name__)
_MAX_NUMERIC_LABELS = 20  # more distinct numbers are probably regression targets
_SHOWN = 5  # labels listed in a message
_RARE = 3  # training rows; a class with fewer can hardly be learnt
_SEPARATORS = re.compile(r"\s*[,|;/，；、]\s*")
_MISSING_VALUES = {"nan", "none", "null", "nil", "na", "n/a", "#n/a", "<na>", "nat"}  # as exported tables write them


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
    components = {}
    for label in counts:
        texts = _SEPARATORS.split(label.strip("[]{}()"))  # also of a list as pandas writes it
        components[label] = [text.strip("'\"") for text in texts]
    positions = defaultdict(set)  # component -> its positions in labels; 0: it is a whole label
    for label_components in components.values():
        for position, component in enumerate(label_components, 1):
            positions[component].add(position if len(label_components) > 1 else 0)
    decimal_commas = [label for label in counts if DECIMAL_COMMA.fullmatch(label)]
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
