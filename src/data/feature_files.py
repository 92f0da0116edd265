"""Feature files: MindRecords with a manifest, written completely or not at all, verified before reading.

A set lies in one folder:

NAME.mindrecord, NAME.mindrecord.db   the rows, without padding; NAME.mindrecord0 ... N-1 (and .db) if N > 1 files
NAME.lengths.npy                      (rows,) int32, tokens of every row, in the order of reading
NAME.checksums.npy                    (rows,) uint32, CRC-32 of every row, in the order of reading
NAME.SUFFIX.npy, other files          whatever else belongs to the set
NAME.facts.json                       the manifest: what the set was made from, and the sha256 of every file

The manifest is written last: a set that has one is complete. Every file is hashed when a set is opened, by several
ranks in shares, and every row is verified when it is read (src/data/row_reader.py).
"""

import hashlib
import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from model_utils.errors import DataError, shorten
from model_utils.flat_dicts import first_difference, flatten
from model_utils.json_files import FileName, Schema, Sha256, read_file, read_json
from model_utils.remote_files import TextFile
from src.utils import opened

FORMAT_VERSION = 1
SUFFIX = ".mindrecord"


@dataclass(frozen=True)
class Column:
    """A column of a feature file.

    Attributes:
        width: entries of a padded row; 0: a single value without an axis of its own.
        padding: the value that pads a row.
        per_token: a row has one entry for each of its tokens; such columns may be padded to less than `width`.
    """

    dtype: Literal["int32", "float32"]
    width: Annotated[int, Field(ge=0)]
    padding: int = 0
    per_token: bool = False


class ManifestSchema(Schema):
    """Keys of every manifest; a task adds its own."""

    format_version: int
    task: str
    rows: int = Field(ge=1)
    columns: dict[str, Column]
    record_files: list[FileName] = Field(min_length=1)
    files: dict[FileName, Sha256]
    max_seq_length: int = Field(512, ge=1)
    vocab_size: int = Field(30000, ge=1)
    vocab_file: FileName = ""
    vocab_sha256: str = ""
    do_lower_case: bool = True


@dataclass(frozen=True)
class Ragged:
    """Rows of different lengths in one array: values (sum of counts,), counts (rows,)."""

    values: np.ndarray
    counts: np.ndarray

    @property
    def offsets(self) -> np.ndarray:
        """Index in `values` of the first entry of each row, and behind the last row: (rows + 1,) int64."""
        return np.concatenate([[0], np.cumsum(self.counts)])


@dataclass(frozen=True)
class RecordSet:
    """A verified set of feature files; lengths: (rows,) int32, tokens of every row, in the order of `files`."""

    folder: Path
    name: str
    files: list[Path]
    manifest: dict[str, Any]
    lengths: np.ndarray

    @property
    def num_rows(self) -> int:
        return self.manifest["rows"]

    @property
    def columns(self) -> dict[str, Column]:
        return {name: Column(**column) for name, column in self.manifest["columns"].items()}

    def has_array(self, suffix: str) -> bool:
        """Return True if the set has the array."""
        return f"{self.name}.{suffix}.npy" in self.manifest["files"]

    def array(self, suffix: str) -> np.ndarray:
        """Return an array of the set (RecordWriter.add_array); raise DataError if its file has changed."""
        return read_array(self.folder / f"{self.name}.{suffix}.npy", self.manifest)


def open_records(
    location: str | Path,
    task: str,
    if_stated: Mapping[str, Any] | None = None,
    rank: int = 0,
    rank_size: int = 1,
    **expected: Any,
) -> RecordSet:
    """Find and verify a set of feature files.

    Args:
        location: the folder that holds the set, or DIR/NAME.mindrecord where it holds several.
        if_stated: entries that must match if the manifest has them; None accepts any value.
        rank, rank_size: each of several ranks hashes its share of the files. Rows are verified when they are read.
        expected: entries that the manifest must have; None accepts any value.

    Raises:
        DataError: there is no complete set, an entry differs (both values are named), or a file is damaged.
    """
    path = _find_manifest(Path(location))
    manifest = read_manifest(path)
    stated = {name: value for name, value in (if_stated or {}).items() if name in manifest}
    for name, value in {"format_version": FORMAT_VERSION, "task": task, **stated, **expected}.items():
        if value is not None and manifest.get(name) != value:
            raise DataError(
                f"{path}: the files were made with {name} {shorten(manifest.get(name))}, needed is {value!r}"
            )
    for name, checksum in list(manifest["files"].items())[rank::rank_size]:
        file = path.with_name(name)
        if sha256_of(file) != checksum:
            raise DataError(f"{file} is damaged or was replaced: {path.name} has another sha256; make it again")
    name = path.name.removesuffix(".facts.json")
    files = [path.with_name(file) for file in manifest["record_files"]]
    return RecordSet(path.parent, name, files, manifest, read_array(path.with_name(f"{name}.lengths.npy"), manifest))


def read_array(file: Path, manifest: Mapping[str, Any]) -> np.ndarray:
    """Return the array in a file of a set; raise DataError if the file is not the one in the manifest."""
    content = read_file(file)
    if hashlib.sha256(content).hexdigest() != manifest["files"].get(file.name):
        raise DataError(f"{file} has changed since it was made; make these files again")
    return np.load(io.BytesIO(content))


def is_complete(path: Path, manifest: Mapping[str, Any]) -> bool:
    """Return True if the set DIR/NAME.mindrecord exists already.

    Raises:
        DataError: a set of that name has a different manifest; names the first entry that differs.
    """
    file = manifest_path(path)
    if not file.exists():
        return False
    stored = flatten(read_manifest(file))
    requested = flatten(json.loads(json.dumps(manifest)))
    # All stored entries below a requested key count: a source file that was removed since is a difference, too.
    comparable = {key: value for key, value in stored.items() if key.partition(".")[0] in manifest}
    if difference := first_difference(requested, comparable):
        key, requested_value, stored_value = difference
        raise DataError(
            f"{file}: these files were made with {key} {shorten(stored_value)}, asked for is "
            f"{shorten(requested_value)}; give another output_file, or remove them"
        )
    return True


def manifest_path(path: Path) -> Path:
    """Return the path of the manifest, NAME.facts.json, of NAME.mindrecord."""
    return path.with_name(f"{path.stem}.facts.json")


def sha256_of(path: TextFile) -> str:
    """Return the hexadecimal sha256 of a file; raise DataError if it cannot be read."""
    with opened(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def mindspore_reason(error: RuntimeError | ValueError) -> str:
    """Return the first line of an error of MindSpore's data library that states the cause."""
    reasons = [line.removeprefix("[ERROR] ") for line in str(error).splitlines() if line.startswith("[ERROR] ")]
    return reasons[0] if reasons else str(error)


def read_manifest(path: Path) -> dict[str, Any]:
    """Return the manifest NAME.facts.json; raise DataError if it is missing, damaged or incomplete."""
    manifest = read_json(path, ManifestSchema).model_dump(exclude_unset=True)
    name = path.name.removesuffix(".facts.json")
    required = {*manifest["record_files"], f"{name}.lengths.npy", f"{name}.checksums.npy"}
    if missing := required - set(manifest["files"]):
        raise DataError(f"{path} does not list {min(missing)} in files; remove these files and make them again")
    return manifest


def _find_manifest(location: Path) -> Path:
    """Return the path of the only manifest at a location; raise DataError if there is none or several."""
    if location.suffix == SUFFIX:
        manifests = [manifest_path(location)] if manifest_path(location).exists() else []
    else:
        manifests = sorted(location.glob("*.facts.json"))
    if len(manifests) > 1:
        names = ", ".join(path.name for path in manifests)
        raise DataError(f"{location} holds several sets of feature files ({names}); name one as DIR/NAME{SUFFIX}")
    if not manifests:
        raise DataError(f"{location} has no finished feature files (NAME.facts.json); make them, or name others")
    return manifests[0]
