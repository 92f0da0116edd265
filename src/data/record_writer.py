"""Writer of sets of feature files (src/data/feature_files.py): a complete set, or nothing."""

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
from model_utils.files import make_readable, open_folder, sync_to_disk, try_lock
from model_utils.json_files import write_checked
from src.data.feature_files import FORMAT_VERSION, SUFFIX, Column, Ragged, manifest_path, mindspore_reason, sha256_of
from src.data.mindrecord_file import FORBIDDEN, MindRecordFile, too_many
from src.data.row_reader import checksums_of

logger = logging.getLogger(__name__)
INDEX_PATH_BYTES = 512  # SQLite's limit of the path to a .db
INDEX_BYTES = 64  # bytes of each row in the .db, which is written last
SPARE_BYTES = 16 << 20  # MindSpore crashes when a disk is full; its own check leaves only 10 MB


@dataclass(frozen=True)
class PackedRows:
    """Rows in MindRecord's format; lengths: (rows,) int32 tokens; checksums: (rows,) uint32."""

    rows: list[bytes]
    lengths: np.ndarray
    checksums: np.ndarray

    def take(self, order: np.ndarray) -> "PackedRows":
        return PackedRows([self.rows[index] for index in order], self.lengths[order], self.checksums[order])


def pack_rows(columns: Mapping[str, Column], values: Mapping[str, Ragged]) -> PackedRows:
    """Encode rows as MindRecord stores them: for each column in alphabetical order its size in 8 bytes and its bytes.

    FileWriter.write_raw_data takes ten times as long for the same, and needs MindSpore in every worker process.
    """
    assert len(columns) > 1, "MindRecord stores a single column in another form"
    parts: list[list[bytes]] = []
    lengths = next(values[name].counts for name, column in columns.items() if column.per_token)
    for name in sorted(columns):
        ragged = values[name]
        assert ragged.values.dtype == columns[name].dtype, f"{name} has dtype {ragged.values.dtype}"
        assert len(ragged.counts) == len(lengths), f"{name} has {len(ragged.counts)} rows"
        assert ragged.counts.min(initial=1) > 0, f"{name} has a row without entries, which MindRecord reads as a scalar"
        offsets = ragged.offsets * ragged.values.itemsize
        sizes = np.diff(offsets).astype(">i8").tobytes()
        blob = ragged.values.tobytes()
        parts.append([sizes[start : start + 8] for start in range(0, len(sizes), 8)])
        parts.append([blob[start:end] for start, end in itertools.pairwise(offsets.tolist())])
    checksums = checksums_of(
        {name: values[name].values for name in columns}, {name: values[name].counts for name in columns}
    )
    return PackedRows([b"".join(pieces) for pieces in zip(*parts, strict=True)], lengths.astype(np.int32), checksums)


class RecordWriter(contextlib.AbstractContextManager):
    """Context manager that writes a set of feature files to a temporary folder and moves it when it is complete.

    An exception in the context leaves nothing behind; the set's next writer removes what a killed process left.

    Args:
        path: DIR/NAME.mindrecord.
        manifest: what the set is made from, as JSON values.
        file_num: files that get the rows in turn; 0: begin another file when one is full.
        wait: wait while another process is writing the same set, which may be complete afterwards.

    Raises:
        DataError: the folder cannot be written, the disk is full, another process is writing the same set and `wait` is
            false, or the rows are fewer than the files or do not fit into them.
    """

    def __init__(
        self,
        path: str | Path,
        columns: Mapping[str, Column],
        manifest: Mapping[str, Any],
        file_num: int = 0,
        wait: bool = False,
    ) -> None:
        self.path = check_record_path(path)
        self.columns = dict(columns)
        self.manifest = dict(manifest)
        self.file_num = file_num
        self.wait = wait
        self.rows = 0
        self._lengths: list[np.ndarray] = []
        self._checksums: list[np.ndarray] = []
        self._arrays: dict[str, np.ndarray] = {}
        self._files: list[MindRecordFile] = []
        self._folder = unfinished_folder(self.path)

    def __enter__(self) -> Self:
        with self._errors(), self._lock_folder() as at_end:
            for leftover in self._folder.iterdir():
                leftover.unlink()
            file_num = self.file_num or 1
            self._files = [self._open(self._name(index, is_only=file_num == 1)) for index in range(file_num)]
            self._at_end = at_end.pop_all()
        return self

    def _lock_folder(self) -> contextlib.ExitStack:
        """Lock the temporary folder; return the context that removes it and releases the lock.

        All writers of a set use the same, predictable name: a link or a folder of another user is refused.
        """
        while True:
            self._folder.parent.mkdir(parents=True, exist_ok=True)
            self._folder.mkdir(mode=0o700, exist_ok=True)
            with contextlib.ExitStack() as at_end, contextlib.suppress(FileNotFoundError):  # its owner has removed it
                lock = at_end.enter_context(open_folder(self._folder))
                if os.fstat(lock).st_uid != os.geteuid():
                    raise PermissionError(errno.EPERM, "another user made this folder; remove it", str(self._folder))
                os.fchmod(lock, 0o700)
                if not try_lock(lock):
                    if not self.wait:
                        raise DataError(f"another process is writing {self.path}; wait until it ends")
                    logger.info(f"waiting for another process that is writing {self.path}")
                    fcntl.flock(lock, fcntl.LOCK_EX)
                if os.path.samestat(os.fstat(lock), self._folder.stat()):
                    at_end.callback(shutil.rmtree, self._folder, ignore_errors=True)
                    return at_end.pop_all()

    def write(self, packed: PackedRows) -> None:
        """Append rows."""
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
        """Copy a file beside the rows; raise DataError if a different file of that name is there."""
        target = self.path.with_name(file.name)
        if target.exists() and sha256_of(target) != sha256_of(file):
            raise DataError(f"{target} differs from {file}; give another folder to write to")
        with self._errors():
            shutil.copyfile(file, self._folder / file.name)

    def __exit__(self, error_type: type[BaseException] | None, *_: object) -> None:
        with self._at_end, self._errors():
            if error_type is None:
                self._finish()

    def _name(self, index: int, is_only: bool) -> str:
        return self.path.name if is_only else f"{self.path.name}{index}"

    def _open(self, name: str) -> MindRecordFile:
        return MindRecordFile(self._folder / name, {name: column.dtype for name, column in self.columns.items()})

    def _deal(self, rows: list[bytes]) -> None:
        """Write one row to each file in turn."""
        for index, file in enumerate(self._files):
            file_rows = rows[(index - self.rows) % self.file_num :: self.file_num]
            if file.count_fitting(file_rows) < len(file_rows):
                raise too_many(self.path, self.file_num, self.file_num + 1)
            file.write(file_rows)

    def _append(self, rows: list[bytes]) -> None:
        """Write rows to the last file; begin another one when it is full."""
        while (count := self._files[-1].count_fitting(rows)) < len(rows):
            self._files[-1].write(rows[:count])
            self._files[-1].commit()
            self._files.append(self._open(self._name(len(self._files), is_only=False)))
            rows = rows[count:]
        self._files[-1].write(rows)

    def _finish(self) -> None:
        if self.rows < len(self._files):
            raise DataError(f"{self.path}: {self.rows} examples cannot fill {len(self._files)} files (output_file_num)")
        # Without file_num all files but the last were committed when they were full.
        for record_file in self._files if self.file_num else self._files[-1:]:
            record_file.commit()
        is_only = len(self._files) == 1
        file_names = [self._name(index, is_only) for index in range(len(self._files))]
        if self._files[0].path.name != file_names[0]:  # named as the only file before the others were begun
            self._files[0].rename(file_names[0])
        self._check_readable()
        lengths = self._in_reading_order(self._lengths)
        checksums = self._in_reading_order(self._checksums)
        for suffix, array in {"lengths": lengths, "checksums": checksums, **self._arrays}.items():
            np.save(self._folder / f"{self.path.stem}.{suffix}.npy", array)
        files = sorted(self._folder.iterdir())
        manifest = {
            "format_version": FORMAT_VERSION,
            **self.manifest,
            "rows": self.rows,
            "columns": {name: asdict(column) for name, column in sorted(self.columns.items())},
            "record_files": file_names,
            "files": {file.name: sha256_of(file) for file in files},
        }
        manifest_path(self.path).unlink(missing_ok=True)
        for file in files:
            make_readable(file)
            sync_to_disk(file)
            file.replace(self.path.parent / file.name)
        write_checked(manifest_path(self.path), manifest)

    def _in_reading_order(self, pieces: list[np.ndarray]) -> np.ndarray:
        """Concatenate values of rows and reorder them from the order of writing to that of the files."""
        values = np.concatenate(pieces)
        files = self.file_num or 1
        return np.concatenate([values[index::files] for index in range(files)])

    def _check_readable(self) -> None:
        """Raise RuntimeError if rows are lost: MindSpore reports success for some files that it cannot read."""
        from mindspore.dataset import MindDataset

        files = [str(file.path) for file in self._files]
        readable = MindDataset(files, shuffle=False).get_dataset_size()
        if readable != self.rows:
            raise RuntimeError(f"{readable} of {self.rows} rows can be read back")

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Turn errors of the disk and of MindSpore into DataErrors."""
        try:
            yield
        except OSError as error:
            is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            reason = "the disk is full" if is_full else f"{error.filename or self._folder}: {error.strerror}"
        except RuntimeError as error:
            reason = mindspore_reason(error)
        else:
            return
        raise DataError(f"{self.path} cannot be written: {reason}; nothing was kept")


def check_record_path(path: str | Path) -> Path:
    """Return the path of a new set; raise DataError if MindSpore or SQLite cannot write there."""
    path = Path(path)
    if path.suffix != SUFFIX or (path.exists() and not path.is_file()):
        raise DataError(f"the output file is {str(path)!r}, allowed is DIR/NAME{SUFFIX} that is no folder or device")
    size = len(os.fsencode(unfinished_folder(path).absolute() / f"{path.name}999.db-journal"))
    if size > INDEX_PATH_BYTES:
        raise DataError(
            f"the output {str(path)!r} is too long: paths of its temporary files have {size} bytes, allowed are "
            f"{INDEX_PATH_BYTES}"
        )
    if forbidden := sorted(set(path.name) & set(FORBIDDEN)):
        raise DataError(f"the name of the output {str(path)!r} has {' '.join(forbidden)}, which MindRecord refuses")
    return path


def unfinished_folder(path: Path) -> Path:
    """Return the temporary folder that holds the files of a set until all are complete."""
    return path.with_name(f"unfinished-{path.stem}")
