"""Files of a corpus: which ones paths, URLs and patterns name, and how much text they hold."""

import glob
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePath
from typing import NoReturn

from model_utils.errors import DataError, shorten
from model_utils.remote_files import RemoteFile, TextFile, find_remote_files, is_url
from model_utils.schema import Config, option
from src.text.arrow_tables import text_bytes
from src.text.text_tables import is_arrow
from src.utils import estimate_text_bytes


class CorpusConfig(Config):
    """Text files and their reading options."""

    input_file: str = option(
        "",
        "text or Parquet files; paths, URLs or patterns; comma-separated; text also compressed (gzip, zstd, bzip2, xz)",
        required=True,
    )
    text_key: str = option("text", "key or column of the text; in JSON lines and Parquet files")


def expand_glob(pattern: str) -> list[TextFile]:
    """Return the sorted files that match a path, a folder, a glob pattern, a URL or a comma-separated list of these.

    A folder stands for all files below it, except hidden ones; links to folders are followed.

    Raises:
        DataError: an item of the list matches no file, a device or pipe, a link to nothing, a file whose name is not
            UTF-8 or a folder that cannot be read; or all files are empty.
    """
    if not pattern.replace(",", "").strip():
        raise DataError("the pattern of input files is empty; give a path or a glob pattern in quotes")
    is_one = not is_url(pattern) and bool(_match(pattern))
    names = [pattern] if is_one else [name.strip() for name in pattern.split(",") if name.strip()]
    files: dict[TextFile, TextFile] = {}  # by real path: a file may have several names
    for name in names:
        matches: Sequence[TextFile] = find_remote_files(name) if is_url(name) else _match(name)
        if not matches:
            raise DataError(f"no file matches {shorten(name)}; give paths or glob patterns, separated by commas")
        for path in matches:
            try:
                str(path).encode()
            except UnicodeEncodeError:
                escaped_path = os.fsencode(str(path)).decode("utf-8", "backslashreplace")
                raise DataError(f"the name of the file {escaped_path} is not UTF-8: rename it") from None
            files.setdefault(path.resolve(), path)
    if not any(path.stat().st_size for path in files):
        raise DataError(f"{shorten(pattern)} matches {len(files)} file(s), and all are empty")
    return sorted(files.values(), key=_order)


def _order(file: TextFile) -> tuple[bool, PurePath]:
    if isinstance(file, RemoteFile):
        return True, file.absolute()
    return False, file


def corpus_bytes(paths: Iterable[TextFile], text_key: str) -> int:
    """Return about how many bytes of text the files hold."""
    texts = []
    table_bytes = 0
    for path in paths:
        if isinstance(path, Path) and is_arrow(path):
            table_bytes += text_bytes(path, text_key)
        else:
            texts.append(path)
    return estimate_text_bytes(texts) + table_bytes


def _match(pattern: str) -> list[Path]:
    """Return all files of one path, folder or glob pattern."""
    exists = os.path.exists(pattern)  # noqa: PTH110 - Path.exists() raises OSError for a list that is too long for a name
    names = [pattern] if exists else glob.glob(pattern, recursive=True)  # noqa: PTH207 - absolute
    files: list[Path] = []
    for path in map(Path, names):
        if path.is_dir():
            files += _files_below(path)
        elif not path.exists():
            raise DataError(f"{path} is a link that leads to no file: correct or remove it")
        elif not path.is_file():
            raise DataError(f"{path} is a device or a pipe, which cannot be read twice; write the text to a file")
        else:
            files.append(path)
    return files


def _files_below(folder: Path) -> Iterator[Path]:
    """Yield the files below a folder, except hidden ones; follow links, but read no folder twice."""

    def refuse(error: OSError) -> NoReturn:
        raise DataError(f"{error.filename} cannot be read: {error.strerror}") from error

    visited = set()
    for current, folders, names in os.walk(folder, onerror=refuse, followlinks=True):
        if (real_path := os.path.realpath(current)) in visited:
            folders.clear()
            continue
        visited.add(real_path)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        visible = (Path(current, name) for name in names if not name.startswith("."))
        yield from (file for file in visible if file.is_file())
