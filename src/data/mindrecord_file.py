"""One MindRecord file that is being written, and when it is full, which MindSpore says at its end or not at all."""

import math
import os
import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from model_utils.errors import DataError

# With MindSpore's own sizes (pages of 32 MiB, a header of 16 MiB) every file takes at least 50 MB.
PAGE_BYTES = 1 << 20
HEADER_BYTES = 1 << 21
ENTRY_BYTES = 512  # of the header, for a page of rows and what goes with it: twice what was measured
# An estimate from bytes of text may be so many times too high; it is twice as high where JSON has escapes for letters.
TOO_HIGH = 3
FORBIDDEN = "\\/:*?\"<>|`&;'"  # in the name of a file, by MindSpore


def capacity() -> int:
    """Bytes of rows that a file takes; the list of its pages in its header grows with them."""
    return HEADER_BYTES // ENTRY_BYTES * PAGE_BYTES


def files_needed(path: Path, row_bytes: float, file_num: int) -> int:
    """How many files will hold rows of about so many bytes: file_num, or for 0 as many as it takes.

    Raises:
        DataError: file_num would not do even if the estimate is TOO_HIGH times what comes.
    """
    needed = math.ceil(row_bytes / capacity())
    if file_num and math.ceil(row_bytes / TOO_HIGH / capacity()) > file_num:
        raise too_many(path, file_num, needed)
    return file_num or needed


def too_many(path: Path, file_num: int, needed: int) -> DataError:
    """The error of examples that need more files than they may have."""
    return DataError(
        f"{path}: the examples do not fit into {file_num} file(s) of {capacity() / 1e6:,.0f} MB; give output_file_num "
        f"0, or at least {needed}"
    )


class MindRecordFile:
    """A new file to which packed rows are appended; MindSpore puts PATH.db, an index of the rows, beside it."""

    def __init__(self, path: Path, dtypes: Mapping[str, str]) -> None:
        from mindspore.mindrecord import FileWriter

        self.path = path
        self._bytes = 0
        self._writer = FileWriter(str(path))
        self._writer.set_page_size(PAGE_BYTES)
        self._writer.set_header_size(HEADER_BYTES)
        self._writer.add_schema({name: {"type": dtype, "shape": [-1]} for name, dtype in dtypes.items()})
        self._writer._writer.open(self._writer._paths, False)
        self._writer._writer.set_shard_header(self._writer._header)

    def fitting(self, rows: Sequence[bytes]) -> int:
        """How many of the first of these rows the file still takes."""
        ends = self._bytes + np.cumsum([len(row) for row in rows])
        return int(np.searchsorted(ends, capacity(), side="right"))

    def write(self, rows: list[bytes]) -> None:
        if rows:
            # What FileWriter.write_raw_data calls when it has packed the rows.
            self._writer._writer._writer.write_raw_data({}, rows, True, False)
            self._bytes += sum(map(len, rows))

    def commit(self) -> None:
        """Write what is left, and the index; before that nothing can be read."""
        self._writer.commit()

    def rename(self, name: str) -> None:
        """Give a committed file another name, which its index repeats."""
        target = self.path.with_name(name)
        os.rename(self.path, target)
        os.rename(f"{self.path}.db", f"{target}.db")
        index = sqlite3.connect(f"{target}.db")
        with index:
            index.execute("UPDATE SHARD_NAME SET NAME = ?", (name,))
        index.close()
        self.path = target
