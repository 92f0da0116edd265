"""Feature files: MindRecords with the facts that made them, written completely or not at all, verified before reading.

A set lies in one folder:

NAME.mindrecord, NAME.mindrecord.db        the rows; with N > 1 files NAME.mindrecord0 ... N-1, each with its .db
NAME.lengths.npy                           (rows,) int32, tokens of every row, in the order of reading
NAME.facts.json                            what made the set, and the sha256 of every file; its presence means complete

Rows are stored without padding. MindSpore does not notice damaged rows (it returns wrong ones, or takes all memory),
so every file is hashed before MindSpore opens it.
"""

import contextlib
import errno
import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from model_utils.errors import DataError
from src.utils import sync_to_disk, write_json

FORMAT_VERSION = 1
SUFFIX = ".mindrecord"
# MindSpore's own sizes (32 MiB pages, 16 MiB header) make every file at least 50 MB. A header of this size lists
# pages for about 10 GB in one file.
PAGE_BYTES = 1 << 20
HEADER_BYTES = 1 << 21


@dataclass(frozen=True)
class Column:
    """A column of a feature file.

    dtype: int32 or float32.
    width: entries of a row after padding, the most a row can have; 0: a single value without an axis of its own.
    padding: the value that fills a row up.
    per_token: whether a row has one entry for each of its tokens; such columns may be padded to less than `width`.
    """

    dtype: str
    width: int
    padding: int = 0
    per_token: bool = False


@dataclass(frozen=True)
class Ragged:
    """Rows of different lengths, one after the other: values (sum of counts,), counts (rows,)."""

    values: np.ndarray
    counts: np.ndarray


@dataclass(frozen=True)
class PackedRows:
    """Rows in MindRecord's own form, and (rows,) int32 tokens of each."""

    rows: list[bytes]
    lengths: np.ndarray


def pack_rows(columns: Mapping[str, Column], values: Mapping[str, Ragged]) -> PackedRows:
    """Encode rows as MindRecord stores them: for each column in alphabetical order its size in 8 bytes and its bytes.

    FileWriter does the same one row at a time in Python, ten times slower and only where MindSpore is loaded; here
    worker processes do it, which need not load it.

    Args:
        values: the rows of every column, as numpy arrays of the column's dtype.
    """
    parts: list[list[bytes]] = []
    lengths = None
    for name in sorted(columns):
        column, ragged = columns[name], values[name]
        assert ragged.values.dtype == column.dtype, f"{name} is {ragged.values.dtype}"
        ends = np.concatenate([[0], np.cumsum(ragged.counts)]) * ragged.values.itemsize
        sizes = np.diff(ends).astype(">i8").tobytes()
        blob, ends = ragged.values.tobytes(), ends.tolist()
        parts.append([sizes[start : start + 8] for start in range(0, len(sizes), 8)])
        parts.append([blob[start:end] for start, end in zip(ends, ends[1:], strict=False)])
        if column.per_token:
            lengths = ragged.counts.astype(np.int32)
    assert lengths is not None, "no column has one entry per token"
    return PackedRows([b"".join(pieces) for pieces in zip(*parts, strict=True)], lengths)


class RecordWriter:
    """Writes a set of feature files into a temporary folder beside it, and gives it its names when all is written.

    Use as a context manager: an exception inside leaves nothing behind.

    Args:
        path: DIR/NAME.mindrecord.
        columns: at least two; the facts name them.
        facts: what made the set, JSON values; those of MindSpore's reader (files, rows, columns) are added.
        file_num: files that the rows are dealt out to, one after the other.

    Raises:
        DataError: the path has no .mindrecord, the disk is full, or there are fewer rows than files.
    """

    def __init__(
        self, path: str | Path, columns: Mapping[str, Column], facts: Mapping[str, Any], file_num: int = 1
    ) -> None:
        self.path = check_output_path(path)
        self.columns = dict(columns)
        self.facts = dict(facts)
        self.file_names = [self.path.name] if file_num == 1 else [f"{self.path.name}{i}" for i in range(file_num)]
        self.rows = 0
        self._lengths: list[np.ndarray] = []
        self._arrays: dict[str, np.ndarray] = {}
        self._writers: list[Any] = []
        self._folder = self.path.parent / f"unfinished-{os.getpid()}-{self.path.stem}"

    def __enter__(self) -> Self:
        with _disk_errors(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            _remove_leftovers(self.path)
            self._folder.mkdir()
        return self

    def write(self, packed: PackedRows) -> None:
        """Append rows."""
        if not self._writers:
            self._writers = [self._open(name) for name in self.file_names]
        with _disk_errors(self.path):
            for number, writer in enumerate(self._writers):
                share = packed.rows[(number - self.rows) % len(self._writers) :: len(self._writers)]
                if share:
                    # What FileWriter.write_raw_data calls after it has packed each row itself.
                    writer._writer._writer.write_raw_data({}, share, True, False)
        self._lengths.append(packed.lengths)
        self.rows += len(packed.rows)

    def add_array(self, suffix: str, array: np.ndarray) -> None:
        """Put an array beside the rows, as NAME.suffix.npy."""
        self._arrays[suffix] = array

    def _open(self, name: str) -> Any:
        from mindspore.mindrecord import FileWriter

        writer = FileWriter(str(self._folder / name))
        writer.set_page_size(PAGE_BYTES)
        writer.set_header_size(HEADER_BYTES)
        writer.add_schema({key: {"type": column.dtype, "shape": [-1]} for key, column in self.columns.items()})
        writer._writer.open(writer._paths, False)
        writer._writer.set_shard_header(writer._header)
        return writer

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                with _disk_errors(self.path):
                    self._finish()
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _finish(self) -> None:
        if self.rows < len(self.file_names):
            raise DataError(
                f"{self.path}: there are {self.rows} examples for {len(self.file_names)} file(s); "
                "give more text or a smaller output_file_num"
            )
        for writer in self._writers:
            writer.commit()
        lengths = np.concatenate(self._lengths)
        in_reading_order = [lengths[number :: len(self.file_names)] for number in range(len(self.file_names))]
        arrays = {"lengths": np.concatenate(in_reading_order), **self._arrays}
        for suffix, array in arrays.items():
            np.save(self._folder / f"{self.path.stem}.{suffix}.npy", array)
        self._check_readable()
        files = sorted(self._folder.iterdir())
        facts = {
            "format_version": FORMAT_VERSION,
            **self.facts,
            "rows": self.rows,
            "columns": {name: asdict(column) for name, column in sorted(self.columns.items())},
            "record_files": self.file_names,
            "files": {file.name: sha256_of(file) for file in files},
        }
        for file in files:
            sync_to_disk(file)
            file.replace(self.path.parent / file.name)
        write_json(facts_path(self.path), facts)

    def _check_readable(self) -> None:
        """MindSpore reports success for a file whose pages no longer fit into its header."""
        from mindspore.dataset import MindDataset

        files = [str(self._folder / name) for name in self.file_names]
        try:
            found = MindDataset(files, shuffle=False).get_dataset_size()
        except RuntimeError:
            found = 0
        if found != self.rows:
            raise DataError(
                f"{self.path}: {self.rows} examples do not fit into {len(files)} file(s); give a larger output_file_num"
            )


def check_output_path(path: str | Path) -> Path:
    """The path as Path.

    Raises:
        DataError: the name does not end with .mindrecord, or a folder has it.
    """
    path = Path(path)
    if path.suffix != SUFFIX or path.is_dir():
        raise DataError(f"the output file is {str(path)!r}, allowed is DIR/NAME{SUFFIX}")
    return path


def finished_rows(path: Path, facts: Mapping[str, Any]) -> int | None:
    """Number of rows of the complete set that is already there, None if there is none.

    Raises:
        DataError: it was made from other facts.
    """
    there = facts_path(path)
    if not there.exists():
        return None
    found = json.loads(there.read_text(encoding="utf-8"))
    for name, value in json.loads(json.dumps(facts)).items():
        if found.get(name) != value:
            raise DataError(
                f"{there}: these files were made with {name} {found.get(name)!r}, asked for is {value!r}; give another "
                "output_file, or remove them"
            )
    return found["rows"]


def facts_path(path: Path) -> Path:
    """NAME.facts.json of NAME.mindrecord."""
    return path.with_name(f"{path.stem}.facts.json")


def sha256_of(path: Path) -> str:
    """Hexadecimal sha256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def _disk_errors(path: Path) -> Any:
    try:
        yield
    except OSError as error:
        reason = "the disk is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else error.strerror
        raise DataError(f"{path} cannot be written: {reason}; nothing was kept") from error


def _remove_leftovers(path: Path) -> None:
    """Remove temporary folders of killed runs for the same output."""
    for folder in path.parent.glob(f"unfinished-*-{path.stem}"):
        pid = folder.name.split("-")[1]
        if not (pid.isdecimal() and Path(f"/proc/{pid}").exists() and int(pid) != os.getpid()):
            shutil.rmtree(folder, ignore_errors=True)


@dataclass(frozen=True)
class RecordSet:
    """A verified set of feature files.

    files: the MindRecord files, in the order of reading.
    lengths: (rows,) int32, tokens of every row, in that order.
    """

    folder: Path
    name: str
    files: list[Path]
    facts: dict[str, Any]
    lengths: np.ndarray

    @property
    def num_rows(self) -> int:
        """Rows of all files."""
        return self.facts["rows"]

    @property
    def columns(self) -> dict[str, Column]:
        """The columns by name."""
        return {name: Column(**column) for name, column in self.facts["columns"].items()}

    def array(self, suffix: str) -> np.ndarray:
        """The array NAME.suffix.npy."""
        return np.load(self.folder / f"{self.name}.{suffix}.npy")


def open_records(location: str | Path, task: str, **expected: Any) -> RecordSet:
    """Find and verify a set of feature files; nothing is left for MindSpore to stumble over.

    Args:
        location: the folder that holds the set, or DIR/NAME.mindrecord where it holds several.
        task: the task that the rows must have been made for.
        expected: other facts that must hold, by name; None means any.

    Raises:
        DataError: there is no complete set, it was made for something else (both facts are named), or a file is
            damaged.
    """
    path = _find_facts(Path(location))
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
        version, found = facts["format_version"], {"task": facts["task"], **facts}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} does not hold the facts of a set of feature files: {error!r}") from error
    if version != FORMAT_VERSION:
        raise DataError(f"{path}: the files have format version {version}, this program reads {FORMAT_VERSION}")
    for name, value in {"task": task, **expected}.items():
        if value is not None and found.get(name) != value:
            raise DataError(f"{path}: the files were made with {name} {found.get(name)!r}, needed is {value!r}")
    for name, checksum in facts["files"].items():
        file = path.parent / name
        if not file.exists():
            raise DataError(f"{file} is missing; {path.name} names it")
        if (actual := sha256_of(file)) != checksum:
            raise DataError(
                f"{file} is damaged or was replaced: its sha256 is {actual}, {path.name} says {checksum}; "
                "make the files again"
            )
    name = path.name.removesuffix(".facts.json")
    files = [path.parent / name for name in facts["record_files"]]
    return RecordSet(path.parent, name, files, facts, np.load(path.parent / f"{name}.lengths.npy"))


def _find_facts(location: Path) -> Path:
    if location.suffix == SUFFIX:
        path = facts_path(location)
        if not path.exists():
            raise DataError(f"{location} is not there or was not finished: {path} is missing")
        return path
    if not location.is_dir():
        raise DataError(f"{location} is not a folder of feature files")
    found = sorted(location.glob("*.facts.json"))
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(path.name for path in found)
        raise DataError(f"{location} holds several sets of feature files ({names}); name one as DIR/NAME{SUFFIX}")
    if any(location.glob(f"*{SUFFIX}*")):
        raise DataError(
            f"{location} holds {SUFFIX} files without NAME.facts.json: they were not finished, or not made by this "
            "program; make them again with it"
        )
    raise DataError(f"{location} holds no feature files")
