"""Text files that are named by URLs: s3://, hdfs://, https:// and all else that fsspec opens."""

import glob
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import SimpleNamespace
from typing import Any, TypeAlias

from model_utils.errors import DataError
from model_utils.optional import require

_BUFFER_BYTES = 1 << 20


@dataclass(frozen=True)
class RemoteFile:
    """File of one of fsspec's file systems, with the methods of Path that readers of text need."""

    url: str
    file_system: Any
    path: str
    size: int

    def __str__(self) -> str:
        return self.url

    def absolute(self) -> PurePosixPath:
        """Return a path by which remote files are ordered, and named in manifests, as files of a folder are.

        It has no query, which may hold a signature.
        """
        return PurePosixPath("/", re.sub("^(https?://[^?#]*).*", r"\1", self.url))

    def resolve(self) -> "RemoteFile":
        return self

    def stat(self) -> SimpleNamespace:
        return SimpleNamespace(st_size=self.size)

    def open_bytes(self) -> io.BufferedReader:
        """Open the file for reading; raise OSError, also while reading, whatever the protocol's library raises."""
        try:
            return io.BufferedReader(_Stream(self.file_system.open(self.path, "rb")), _BUFFER_BYTES)
        except Exception as error:
            raise OSError(_describe(error)) from error


TextFile: TypeAlias = Path | RemoteFile


class _Stream(io.RawIOBase):
    def __init__(self, file: Any) -> None:
        self._file = file
        self._position = 0

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: Any) -> int:
        try:
            content = self._file.read(len(buffer))
        except Exception as error:
            raise OSError(_describe(error)) from error
        buffer[: len(content)] = content
        self._position += len(content)
        return len(content)

    def close(self) -> None:
        self._file.close()
        super().close()


def is_url(name: str) -> bool:
    """Return True for a name that fsspec opens."""
    return "://" in name


def find_remote_files(pattern: str) -> list[RemoteFile]:
    """Return the files of a URL of a file, a folder (all but hidden ones below it) or a pattern; [] if there is none.

    Raises:
        UserError: fsspec or the protocol's library is missing, the server refuses, or it does not tell a file's size.
    """
    fsspec = require("fsspec.core", "requirements-scale.txt", pattern)
    try:
        file_system, path = fsspec.url_to_fs(pattern)
        sizes = dict(_sizes(file_system, path))
    except Exception as error:  # each library has errors of its own
        raise DataError(f"{pattern} cannot be read: {_describe(error)}") from error
    if None in sizes.values():
        raise DataError(f"{pattern} cannot be read: its server does not tell the size of files")
    return [RemoteFile(file_system.unstrip_protocol(name), file_system, name, size) for name, size in sizes.items()]


def _sizes(file_system: Any, path: str) -> Iterator[tuple[str, int]]:
    try:
        found = {path: file_system.info(path)}
    except FileNotFoundError:
        found = file_system.glob(path, detail=True) if glob.has_magic(path) else {}
    named = len(re.split(r"[*?[]", path)[0])  # characters that the user wrote, which may name a hidden folder
    for name, entry in found.items():
        below = file_system.find(name, detail=True) if entry["type"] == "directory" else {name: entry}
        for file, file_entry in below.items():
            if "/." not in file[max(0, named - 1) :]:
                yield file, file_entry["size"]


def _describe(error: Exception) -> str:
    """Return the first line of an error, with its class, which some messages need to be understood."""
    return f"{type(error).__name__}: {error}".splitlines()[0]
