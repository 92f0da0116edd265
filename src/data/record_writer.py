"""Writing sets of feature files (src/data/feature_files.py): all of a set, or nothing."""

import contextlib
import errno
import fcntl
import itertools
import logging
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from model_utils.errors import DataError
from model_utils.files import make_readable, sync_to_disk
from model_utils.json_files import write_checked
from src.data.feature_files import FORMAT_VERSION, SUFFIX, Column, Ragged, facts_of, mindspore_reason, sha256_of
from src.data.mindrecord_file import FORBIDDEN, MindRecordFile, too_many
from src.data.row_reader import checksums_of

logger = logging.getLogger(__name__)
INDEX_PATH_BYTES = 512  # of the path to a .db, by SQLite
INDEX_BYTES = 64  # of each row in the .db, which is written last
SPARE_BYTES = 16 << 20  # MindSpore crashes when a disk is full; it stops by itself only at 10 MB before that


@dataclass(frozen=True)
class PackedRows:
    """Rows in MindRecord's own form, and (rows,) int32 tokens and uint32 checksum of each."""

    rows: list[bytes]
    lengths: np.ndarray
    checksums: np.ndarray

    def take(self, order: np.ndarray) -> "PackedRows":
        return PackedRows([self.rows[index] for index in order], self.lengths[order], self.checksums[order])


def pack_rows(columns: Mapping[str, Column], values: Mapping[str, Ragged]) -> PackedRows:
    """Encode rows as MindRecord stores them: for each column in alphabetical order its size in 8 bytes and its bytes.

    FileWriter.write_raw_data does the same ten times slower, and only where MindSpore is loaded.
    """
    assert len(columns) > 1, "MindRecord stores a single column in another form"
    parts: list[list[bytes]] = []
    lengths = next(values[name].counts for name, column in columns.items() if column.per_token)
    for name in sorted(columns):
        ragged = values[name]
        assert ragged.values.dtype == columns[name].dtype, f"{name} has dtype {ragged.values.dtype}"
        assert len(ragged.counts) == len(lengths), f"{name} has {len(ragged.counts)} rows"
        assert ragged.counts.min(initial=1) > 0, f"{name} has a row of no entries, which MindRecord reads as a scalar"
        ends = np.concatenate([[0], np.cumsum(ragged.counts)]) * ragged.values.itemsize
        sizes = np.diff(ends).astype(">i8").tobytes()
        blob = ragged.values.tobytes()
        parts.append([sizes[start : start + 8] for start in range(0, len(sizes), 8)])
        parts.append([blob[start:end] for start, end in itertools.pairwise(ends.tolist())])
    checksums = checksums_of(
        {name: values[name].values for name in columns}, {name: values[name].counts for name in columns}
    )
    return PackedRows([b"".join(pieces) for pieces in zip(*parts, strict=True)], lengths.astype(np.int32), checksums)


class RecordWriter(contextlib.AbstractContextManager):
    """Writes a set of feature files into a temporary folder and moves it to its place when it is complete.

    An exception in the context leaves nothing behind; what a killed process left goes with the set's next writer.

    Args:
        path: DIR/NAME.mindrecord.
        facts: what made the set, as JSON values.
        file_num: files that the rows are dealt out to, one after the other; 0: a file is begun when one is full.
        wait: until no other process is writing the same set; it may then be complete.

    Raises:
        DataError: the folder cannot be written, the disk is full, another process is writing the same set and `wait` is
            false, or there are fewer rows than files or more than they take.
    """

    def __init__(
        self,
        path: str | Path,
        columns: Mapping[str, Column],
        facts: Mapping[str, Any],
        file_num: int = 0,
        wait: bool = False,
    ) -> None:
        self.path = check_record_path(path)
        self.columns, self.facts, self.file_num, self.wait = dict(columns), dict(facts), file_num, wait
        self.rows = 0
        self._lengths: list[np.ndarray] = []
        self._checksums: list[np.ndarray] = []
        self._arrays: dict[str, np.ndarray] = {}
        self._files: list[MindRecordFile] = []
        self._folder = unfinished_folder(self.path)
        self._lock: int | None = None

    def __enter__(self) -> Self:
        try:
            with self._errors():
                self._begin()
        except BaseException:
            self._clean()
            raise
        return self

    def _begin(self) -> None:
        while self._lock is None:
            self._lock_folder()
        for leftover in self._folder.iterdir():
            leftover.unlink()
        self._files = [self._open(self._name(number, self.file_num)) for number in range(self.file_num or 1)]

    def _lock_folder(self) -> None:
        """Lock the folder for this process, unless the one that had it has removed it meanwhile.

        Its name can be foreseen, so that writers of one set meet: a link, or a folder of somebody else, is refused.
        """
        self._folder.parent.mkdir(parents=True, exist_ok=True)
        self._folder.mkdir(mode=0o700, exist_ok=True)
        with contextlib.ExitStack() as stack, contextlib.suppress(FileNotFoundError):
            lock = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            stack.callback(os.close, lock)
            if os.fstat(lock).st_uid != os.geteuid():
                raise PermissionError(errno.EPERM, "another user made this folder; remove it", str(self._folder))
            os.chmod(lock, 0o700)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if not self.wait:
                    raise DataError(f"another process is writing {self.path}; wait for it") from None
                logger.info(f"another process is writing {self.path}: waiting for it")
                fcntl.flock(lock, fcntl.LOCK_EX)
            if os.path.samestat(os.fstat(lock), os.stat(self._folder)):
                stack.pop_all()
                self._lock = lock

    def _clean(self) -> None:
        if self._lock is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            os.close(self._lock)

    def write(self, packed: PackedRows) -> None:
        with self._errors():
            needed = sum(map(len, packed.rows)) + (self.rows + len(packed.rows)) * INDEX_BYTES + SPARE_BYTES
            if shutil.disk_usage(self._folder).free < needed:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            if self.file_num:
                self._deal(packed.rows)
            else:
                self._append(packed.rows)
        self._lengths.append(packed.lengths)
        self._checksums.append(packed.checksums)
        self.rows += len(packed.rows)

    def add_array(self, suffix: str, array: np.ndarray) -> None:
        """Put an array beside the rows, as NAME.SUFFIX.npy."""
        self._arrays[suffix] = array

    def add_file(self, file: Path) -> None:
        """Put a copy of a file beside the rows, under its own name; another one of that name is a DataError."""
        there = self.path.with_name(file.name)
        if there.exists() and sha256_of(there) != sha256_of(file):
            raise DataError(f"{there} is another file than {file}; give another folder to write to")
        with self._errors():
            shutil.copyfile(file, self._folder / file.name)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                with self._errors():
                    self._finish()
        finally:
            self._clean()

    def _name(self, number: int, files: int) -> str:
        return self.path.name if files <= 1 else f"{self.path.name}{number}"

    def _open(self, name: str) -> MindRecordFile:
        return MindRecordFile(self._folder / name, {name: column.dtype for name, column in self.columns.items()})

    def _deal(self, rows: list[bytes]) -> None:
        """One row to each file in turn."""
        for number, file in enumerate(self._files):
            share = rows[(number - self.rows) % self.file_num :: self.file_num]
            if file.fitting(share) < len(share):
                raise too_many(self.path, self.file_num, self.file_num + 1)
            file.write(share)

    def _append(self, rows: list[bytes]) -> None:
        """All rows to the last file while it takes them, then to the next one."""
        while (fitting := self._files[-1].fitting(rows)) < len(rows):
            self._files[-1].write(rows[:fitting])
            self._files[-1].commit()
            self._files.append(self._open(self._name(len(self._files), 2)))
            rows = rows[fitting:]
        self._files[-1].write(rows)

    def _finish(self) -> None:
        if self.rows < len(self._files):
            raise DataError(
                f"{self.path}: {self.rows} examples cannot fill {len(self._files)} files; "
                "give more text or a smaller output_file_num"
            )
        for file in self._files if self.file_num else self._files[-1:]:
            file.commit()
        file_names = [self._name(number, len(self._files)) for number in range(len(self._files))]
        if self._files[0].path.name != file_names[0]:  # begun as the only one
            self._files[0].rename(file_names[0])
        self._check_readable()
        lengths = self._in_reading_order(self._lengths)
        checksums = self._in_reading_order(self._checksums)
        for suffix, array in {"lengths": lengths, "checksums": checksums, **self._arrays}.items():
            np.save(self._folder / f"{self.path.stem}.{suffix}.npy", array)
        files = sorted(self._folder.iterdir())
        facts = {
            "format_version": FORMAT_VERSION,
            **self.facts,
            "rows": self.rows,
            "columns": {name: asdict(column) for name, column in sorted(self.columns.items())},
            "record_files": file_names,
            "files": {file.name: sha256_of(file) for file in files},
        }
        facts_of(self.path).unlink(missing_ok=True)
        for file in files:
            make_readable(file)
            sync_to_disk(file)
            file.replace(self.path.parent / file.name)
        write_checked(facts_of(self.path), facts)

    def _in_reading_order(self, pieces: list[np.ndarray]) -> np.ndarray:
        values = np.concatenate(pieces)
        dealt = self.file_num or 1
        return np.concatenate([values[number::dealt] for number in range(dealt)])

    def _check_readable(self) -> None:
        """MindSpore reports success for some files that it cannot read."""
        from mindspore.dataset import MindDataset

        files = [str(file.path) for file in self._files]
        found = MindDataset(files, shuffle=False).get_dataset_size()
        if found != self.rows:
            raise RuntimeError(f"{found} of {self.rows} rows can be read back")

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Errors of the disk as sentences."""
        try:
            yield
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            reason = "the disk is full" if full else f"{error.filename or self._folder}: {error.strerror}"
        except RuntimeError as error:
            reason = mindspore_reason(error)
        else:
            return
        raise DataError(f"{self.path} cannot be written: {reason}; nothing was kept")


def check_record_path(path: str | Path) -> Path:
    """The path of a set to be written; a DataError where MindSpore or SQLite could not write there."""
    path = Path(path)
    if path.suffix != SUFFIX or (path.exists() and not path.is_file()):
        raise DataError(f"the output file is {str(path)!r}, allowed is DIR/NAME{SUFFIX}, where no folder or device is")
    size = len(os.fsencode(unfinished_folder(path).absolute() / f"{path.name}999.db-journal"))
    if size > INDEX_PATH_BYTES:
        raise DataError(
            f"the output file is {str(path)!r}; with the folder that it is made in, the path has {size} bytes, allowed "
            f"are {INDEX_PATH_BYTES}"
        )
    if forbidden := sorted(set(path.name) & set(FORBIDDEN)):
        raise DataError(
            f"the output file is {str(path)!r}; MindRecord files are not allowed to have {' '.join(forbidden)} in "
            "their name"
        )
    return path


def unfinished_folder(path: Path) -> Path:
    """Where the files of a set lie until they are complete."""
    return path.with_name(f"unfinished-{path.stem}")
