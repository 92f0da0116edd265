"""Features of one split of a fine-tuning task, and their feature files, made once and found again.

A set of files lies under a name that is a hash of everything that made it, so that other examples, vocabularies
or settings never meet old features.
"""

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from model_utils.config import check_output_folder
from src.data.feature_files import Column, Ragged, RecordSet, facts_of, open_records
from src.data.record_writer import RecordWriter, pack_rows

TRAIN = "train"  # the split that is trained on
ROWS_AT_ONCE = 5000  # packed rows take several times the memory of arrays


@dataclass(frozen=True)
class Features:
    """Rows of a split, without padding, by column; arrays: what prediction needs beside the rows."""

    columns: dict[str, Column]
    values: dict[str, Ragged]
    arrays: dict[str, np.ndarray] = field(default_factory=dict)


class Split(Protocol):
    """A split of a task; examples: in the order of the features' rows."""

    name: str
    examples: Sequence[Any]

    def facts(self) -> dict[str, Any]:
        """Everything that decides about the features, as JSON values."""

    def features(self) -> Features: ...


class _MadeMeanwhileError(Exception):
    """Another process has written the same set."""


def cached_features(folder: Path, task: str, facts: Mapping[str, Any], make: Callable[[], Features]) -> RecordSet:
    """The feature files in `folder` that have these facts (JSON values), made if they are not there yet.

    Where several processes make the same ones, those of the first stay and the others wait for it.

    Raises:
        ConfigError: the folder cannot be written. DataError: the files are damaged, or the disk is full.
    """
    described = json.dumps({"task": task, **facts}, sort_keys=True)
    path = folder / f"{task}-{hashlib.sha256(described.encode()).hexdigest()[:16]}.mindrecord"
    if not facts_of(path).exists():
        check_output_folder(folder, "feature_dir")
        features = make()
        writer = RecordWriter(path, features.columns, {"task": task, **facts}, wait=True)
        with contextlib.suppress(_MadeMeanwhileError), writer:
            if facts_of(path).exists():
                raise _MadeMeanwhileError
            for values in _slices(features.values):
                writer.write(pack_rows(features.columns, values))
            for suffix, array in features.arrays.items():
                writer.add_array(suffix, array)
    return open_records(path, task, **facts)


def _slices(values: Mapping[str, Ragged]) -> Iterator[dict[str, Ragged]]:
    """The rows of all columns, some at a time."""
    ends = {name: np.concatenate([[0], np.cumsum(ragged.counts)]) for name, ragged in values.items()}
    rows = len(next(iter(values.values())).counts)
    for start in range(0, rows, ROWS_AT_ONCE):
        stop = min(start + ROWS_AT_ONCE, rows)
        yield {
            name: Ragged(ragged.values[ends[name][start] : ends[name][stop]], ragged.counts[start:stop])
            for name, ragged in values.items()
        }
