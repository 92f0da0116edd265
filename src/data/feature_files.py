"""Feature files: MindRecords with the facts that made them, written completely or not at all, verified before reading.

A set lies in one folder:

NAME.mindrecord, NAME.mindrecord.db   the rows, without padding; of N > 1 files NAME.mindrecord0 ... N-1 and their .db
NAME.lengths.npy                      (rows,) int32, tokens of every row, in the order of reading
NAME.checksums.npy                    (rows,) uint32, CRC-32 of every row, in the order of reading
NAME.SUFFIX.npy, other files          whatever else the maker of the set puts beside it
NAME.facts.json                       what made the set, and the sha256 of every file; its presence means complete

Every file is hashed before its rows are read, and every row is checked when it is (src/data/row_reader.py).
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
from model_utils.facts import first_difference, flatten
from model_utils.json_files import FileName, Schema, Sha256, read_file, read_json
from src.utils import opened

FORMAT_VERSION = 1
SUFFIX = ".mindrecord"
CHECKSUMS = ".checksums.npy"  # which version 0.1.0 did not make


@dataclass(frozen=True)
class Column:
    """A column of a feature file.

    width: entries of a row after padding, the most a row can have; 0: a single value without an axis of its own.
    padding: the value that fills a row up.
    per_token: whether a row has one entry for each of its tokens; such columns may be padded to less than `width`.
    """

    dtype: Literal["int32", "float32"]
    width: Annotated[int, Field(ge=0)]
    padding: int = 0
    per_token: bool = False


class FactsSchema(Schema):
    """What facts.json says of every set of feature files; each task adds what else made its own."""

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


@dataclass(frozen=True)
class RecordSet:
    """A verified set of feature files; lengths: (rows,) int32, tokens of every row, in the order of `files`."""

    folder: Path
    name: str
    files: list[Path]
    facts: dict[str, Any]
    lengths: np.ndarray

    @property
    def num_rows(self) -> int:
        return self.facts["rows"]

    @property
    def columns(self) -> dict[str, Column]:
        return {name: Column(**column) for name, column in self.facts["columns"].items()}

    @property
    def checksums(self) -> np.ndarray | None:
        """CRC-32 of every row, (rows,) uint32, in the order of `files`; None: version 0.1.0 made the set."""
        return self.array("checksums") if f"{self.name}{CHECKSUMS}" in self.facts["files"] else None

    def array(self, suffix: str) -> np.ndarray:
        """Return what add_array put beside the rows; DataError: it has changed since the set was made."""
        return read_array(self.folder / f"{self.name}.{suffix}.npy", self.facts)


def open_records(
    location: str | Path, task: str, where_said: Mapping[str, Any] | None = None, **expected: Any
) -> RecordSet:
    """Find and verify a set of feature files.

    Args:
        location: the folder that holds the set, or DIR/NAME.mindrecord where it holds several.
        where_said: facts that must hold where the set says anything about them; None means any.
        expected: facts that must hold beside the task; None means any.

    Raises:
        DataError: there is no complete set, it was made for something else (both are named), or a file is damaged.
    """
    path = _find_facts(Path(location))
    facts = read_facts(path)
    said = {name: value for name, value in (where_said or {}).items() if name in facts}
    for name, value in {"format_version": FORMAT_VERSION, "task": task, **said, **expected}.items():
        if value is not None and facts.get(name) != value:
            raise DataError(f"{path}: the files were made with {name} {shorten(facts.get(name))}, needed is {value!r}")
    for name, checksum in facts["files"].items():
        file = path.with_name(name)
        if not file.exists():
            raise DataError(f"{file} is missing; {path.name} names it")
        if (actual := sha256_of(file)) != checksum:
            raise DataError(
                f"{file} is damaged or was replaced: its sha256 is {actual}, {path.name} says {checksum}; "
                "remove these files and make them again"
            )
    name = path.name.removesuffix(".facts.json")
    files = [path.with_name(file) for file in facts["record_files"]]
    return RecordSet(path.parent, name, files, facts, read_array(path.with_name(f"{name}.lengths.npy"), facts))


def read_array(file: Path, facts: Mapping[str, Any]) -> np.ndarray:
    """Return the array in a file of a set; DataError: it is not the one that the facts name."""
    content = read_file(file)
    if hashlib.sha256(content).hexdigest() != facts["files"].get(file.name):
        raise DataError(f"{file} has changed since it was made; make these files again")
    return np.load(io.BytesIO(content))


def is_complete(path: Path, facts: Mapping[str, Any]) -> bool:
    """Return whether the set DIR/NAME.mindrecord is there already.

    Raises:
        DataError: a set of that name was made with other facts; names the first that differs.
    """
    there = facts_of(path)
    if not there.exists():
        return False
    found = flatten(read_facts(there))
    wanted = flatten(json.loads(json.dumps(facts)))
    # Of each fact all counts that the set says: a file that is no longer among the source's is a difference, too.
    if difference := first_difference(wanted, {key: found[key] for key in found if key.partition(".")[0] in facts}):
        key, asked, made = difference
        raise DataError(
            f"{there}: these files were made with {key} {shorten(made)}, asked for is {shorten(asked)}; give another "
            "output_file, or remove them"
        )
    return True


def facts_of(path: Path) -> Path:
    """NAME.facts.json of NAME.mindrecord."""
    return path.with_name(f"{path.stem}.facts.json")


def sha256_of(path: Path) -> str:
    """Hexadecimal sha256 of a file; a DataError where it cannot be read."""
    with opened(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def mindspore_reason(error: RuntimeError | ValueError) -> str:
    """The line that says what is wrong among the many of MindSpore's data errors."""
    reasons = [line.removeprefix("[ERROR] ") for line in str(error).splitlines() if line.startswith("[ERROR] ")]
    return reasons[0] if reasons else str(error)


def read_facts(path: Path) -> dict[str, Any]:
    """What NAME.facts.json says; DataError: it is missing, damaged or incomplete."""
    facts = read_json(path, FactsSchema).model_dump(exclude_unset=True)
    name = path.name.removesuffix(".facts.json")
    if lost := {*facts["record_files"], f"{name}.lengths.npy"} - set(facts["files"]):
        raise DataError(f"{path}: files has no checksum of {min(lost)}")
    return facts


def _find_facts(location: Path) -> Path:
    if location.suffix == SUFFIX:
        path = facts_of(location)
        if not path.exists():
            raise DataError(f"{location} is not there or was not finished: there is no {path}")
        return path
    if not location.is_dir():
        raise DataError(f"{location} is not a folder of feature files" + ("" if location.exists() else ", nor there"))
    found = sorted(location.glob("*.facts.json"))
    if len(found) > 1:
        names = ", ".join(path.name for path in found)
        raise DataError(f"{location} holds several sets of feature files ({names}); name one as DIR/NAME{SUFFIX}")
    if not found and any(location.glob(f"*{SUFFIX}*")):
        raise DataError(
            f"{location} holds {SUFFIX} files without NAME.facts.json: they were not finished, or not made by this "
            "program; make them again"
        )
    if not found:
        raise DataError(
            f"{location} holds no feature files; those of pre-training are made by python -m "
            "src.create_pretraining_data"
        )
    return found[0]
