"""Writing files so that a reader, or the same run after a kill, never sees half of one."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any


def sync_to_disk(path: Path) -> None:
    """Wait until a file or a folder's list of names is on the disk itself."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a temporary file in the same folder, then give it its name.

    An older file of that name stays whole until the new one is on the disk. The temporary name ends as `path` does,
    for writers that choose the format by it.

    Raises:
        OSError: what writing raised; the temporary file is gone then.
    """
    temporary = path.with_name(f"unfinished-{os.getpid()}-{path.name}")
    try:
        write(temporary)
        sync_to_disk(temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_to_disk(path.parent)


def write_json(path: Path, value: Any) -> None:
    """Write an indented JSON file atomically; not-a-number is refused, because JSON has no word for it."""
    text = json.dumps(value, indent=2, allow_nan=False) + "\n"
    write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))
