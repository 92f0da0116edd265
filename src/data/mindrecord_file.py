"""Writer of one MindRecord file that knows when the file is full: MindSpore reports it late or not at all."""

import math
import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from model_utils.errors import DataError

# With MindSpore's own sizes (pages of 32 MiB, a header of 16 MiB) every file takes at least 50 MB.
PAGE_BYTES = 1 << 20
HEADER_BYTES = 1 << 21
ENTRY_BYTES = 512  # header bytes for each page of rows: twice what was measured
MAX_OVERESTIMATE = 3  # factor of an estimate from bytes of text; JSON escapes of letters alone double it
FORBIDDEN = "\\/:*?\"<>|`&;'"  # characters that MindSpore refuses in a file name


def capacity() -> int:
    """Return the bytes of rows that a file can hold; the list of pages in its header limits them."""
    return HEADER_BYTES // ENTRY_BYTES * PAGE_BYTES


def files_needed(path: Path, row_bytes: float, file_num: int) -> int:
    """Return the number of files for the rows: `file_num`, or as many as needed if it is 0.

    Args:
        row_bytes: estimated size of all rows.

    Raises:
        DataError: `file_num` files are too few even if the estimate is MAX_OVERESTIMATE times the actual size.
    """
    needed = math.ceil(row_bytes / capacity())
    if file_num and math.ceil(row_bytes / MAX_OVERESTIMATE / capacity()) > file_num:
        raise too_many(path, file_num, needed)
    return file_num or needed


def too_many(path: Path, file_num: int, needed: int) -> DataError:
    """Return the error for examples that do not fit into `file_num` files."""
    return DataError(
        f"{path}: the examples do not fit into {file_num} file(s) of {capacity() / 1e6:,.0f} MB; give output_file_num "
        f"0, or at least {needed}"
    )


class MindRecordFile:
    """New file that packed rows are appended to; MindSpore writes PATH.db, an index of the rows, beside it."""

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

    def count_fitting(self, rows: Sequence[bytes]) -> int:
        """Return how many of these rows, from the first on, still fit into the file."""
        ends = self._bytes + np.cumsum([len(row) for row in rows])
        return int(np.searchsorted(ends, capacity(), side="right"))

    def write(self, rows: list[bytes]) -> None:
        if rows:
            # FileWriter.write_raw_data calls this after packing the rows.
            self._writer._writer._writer.write_raw_data({}, rows, True, False)
            self._bytes += sum(map(len, rows))

    def commit(self) -> None:
        """Write the last page and the index; the file cannot be read before."""
        self._writer.commit()

    def rename(self, name: str) -> None:
        """Rename a committed file and its index, which repeats the name."""
        target = self.path.with_name(name)
        self.path.rename(target)
        Path(f"{self.path}.db").rename(f"{target}.db")
        index = sqlite3.connect(f"{target}.db")
        with index:
            index.execute("UPDATE SHARD_NAME SET NAME = ?", (name,))
        index.close()
        self.path = target
