"""Cache of the feature files of fine-tuning splits.

The name of a set contains a hash of everything it was made from, so other examples, vocabularies or settings never
find old features.
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
from src.data.feature_files import Column, Ragged, RecordSet, manifest_path, open_records
from src.data.record_writer import RecordWriter, pack_rows

TRAIN = "train"  # the split that is trained on
ROWS_AT_ONCE = 5000  # packed rows take several times the memory of arrays


@dataclass(frozen=True)
class Features:
    """Rows of a split, without padding, by column; `arrays` holds what prediction needs besides the rows."""

    columns: dict[str, Column]
    values: dict[str, Ragged]
    arrays: dict[str, np.ndarray] = field(default_factory=dict)


class Split(Protocol):
    """Interface of a task's split; `examples` has the order of the feature rows."""

    @property
    def name(self) -> str: ...

    @property
    def examples(self) -> Sequence[Any]: ...

    def manifest(self) -> dict[str, Any]:
        """Return everything that determines the features, as JSON values."""

    def features(self) -> Features: ...


class _MadeMeanwhileError(Exception):
    """Signal that another process has completed the same set."""


def cached_features(folder: Path, task: str, manifest: Mapping[str, Any], make: Callable[[], Features]) -> RecordSet:
    """Open the feature files in `folder` with these manifest entries; make them first if they are missing.

    If several processes make the same set, the first one writes it and the others wait.

    Args:
        manifest: everything that determines the features, as JSON values.
        make: returns the features; called only if the files are missing.

    Raises:
        ConfigError: the folder cannot be written.
        DataError: the files are damaged, or the disk is full.
    """
    key = json.dumps({"task": task, **manifest}, sort_keys=True)
    path = folder / f"{task}-{hashlib.sha256(key.encode()).hexdigest()[:16]}.mindrecord"
    if not manifest_path(path).exists():
        check_output_folder(folder, "feature_dir")
        features = make()
        writer = RecordWriter(path, features.columns, {"task": task, **manifest}, wait=True)
        with contextlib.suppress(_MadeMeanwhileError), writer:
            if manifest_path(path).exists():
                raise _MadeMeanwhileError
            for values in _slices(features.values):
                writer.write(pack_rows(features.columns, values))
            for suffix, array in features.arrays.items():
                writer.add_array(suffix, array)
    return open_records(path, task, **manifest)


def _slices(values: Mapping[str, Ragged]) -> Iterator[dict[str, Ragged]]:
    """Yield the rows of all columns, ROWS_AT_ONCE at a time."""
    offsets = {name: ragged.offsets for name, ragged in values.items()}
    rows = len(next(iter(values.values())).counts)
    for start in range(0, rows, ROWS_AT_ONCE):
        stop = min(start + ROWS_AT_ONCE, rows)
        yield {
            name: Ragged(ragged.values[offsets[name][start] : offsets[name][stop]], ragged.counts[start:stop])
            for name, ragged in values.items()
        }
