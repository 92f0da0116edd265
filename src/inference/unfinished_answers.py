"""Unfinished answers: JSON lines beside the output, from which the same command resumes after a kill.

Their file is OUTPUT.FINGERPRINT.unfinished. The fingerprint is that of the options and the contents of input and model.
"""

import contextlib
import glob
import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from model_utils.errors import DataError
from model_utils.files import scratch_folder, try_lock
from src.data.feature_files import sha256_of

logger = logging.getLogger(__name__)
DIGITS = 16  # of a fingerprint
FAILED = {"id", "line", "error"}  # keys of a record that could not be answered


@dataclass
class Answers:
    """Lines of JSON in an open file, their number, and the number of records among them that could not be answered.

    check: raises an error for a record, given with its index, that the output cannot hold.
    """

    stream: TextIO
    count: int = 0
    failed: int = 0
    check: Callable[[dict[str, Any], int], object] | None = None

    def write(self, record: dict[str, Any]) -> None:
        """Append a record."""
        if self.check:
            self.check(record, self.count)
        self.stream.write(json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n")
        self.count += 1
        self.failed += record.keys() == FAILED


def fingerprint_of(files: Sequence[str], *settings: object) -> str:
    """Return a hash of the contents of files and folders, and of settings by their repr; "" for standard input, "-"."""
    if "-" in files:
        return ""
    digest = hashlib.sha256(repr(settings).encode())
    for path in map(Path, filter(None, files)):
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            digest.update(sha256_of(file).encode() if file.is_file() else b"")
    return digest.hexdigest()[:DIGITS]


@contextlib.contextmanager
def unfinished_answers(output: Path, fingerprint: str, chunk_size: int) -> Iterator[tuple[Path, Answers]]:
    """Yield the file of unfinished answers and its Answers, which begin with those of an earlier run.

    Args:
        output: where the answers will go, no link.
        fingerprint: of the run; "": no run resumes from its answers. Answers with another one are removed.
        chunk_size: records per call of the predictor; a run resumes after a whole number of chunks. A run that fails
            with fewer answers removes the file.
    """
    with contextlib.ExitStack() as at_end:
        name = os.fsdecode(os.fsencode(output.name)[:200])  # the limit of a name is 255 bytes
        folder = output.parent if fingerprint else at_end.enter_context(scratch_folder(output))
        path = folder / f"{name}.{fingerprint}.unfinished"
        for other in folder.glob(f"{glob.escape(name)}.{'[0-9a-f]' * DIGITS}.unfinished"):
            if other != path:
                with _locked(other):
                    other.unlink()
                logger.warning(f"{other} is removed: the input, the model or an option has changed")
        stream = at_end.enter_context(_locked(path))
        count, failed, size = _count_complete_answers(path, chunk_size)
        stream.truncate(size)
        if count:
            logger.info(f"going on behind {count:,} answers in {path}")
        answers = Answers(stream, count, failed)
        try:
            yield path, answers
        except BaseException:
            if answers.count < chunk_size:
                path.unlink(missing_ok=True)
            elif fingerprint:
                logger.info(f"{path} keeps the answers: the same command goes on behind them")
            raise
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[TextIO]:
    """Open a file, which must be no link, for appending; raise DataError if another process has done so."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "a", encoding="utf-8") as stream:
        with contextlib.suppress(OSError):  # this file system has no locks
            if not try_lock(descriptor):
                raise DataError(f"another process writes {path}: wait for its end, or choose another output")
        yield stream


def _count_complete_answers(path: Path, chunk_size: int) -> tuple[int, int, int]:
    """Return (answers, failed answers, bytes) of all whole chunks before the first damaged line."""
    whole = (0, 0, 0)
    failed = size = 0
    with path.open("rb") as lines:
        for count, line in enumerate(lines, 1):
            try:
                failed += json.loads(line[:-1]).keys() == FAILED  # without its line end the last line is no JSON
            except (ValueError, AttributeError):  # half a line, or zeros after the computer's failure
                break
            size += len(line)
            if count % chunk_size == 0:
                whole = (count, failed, size)
    return whole
