"""Memory that reading a corpus takes."""

import tracemalloc
from pathlib import Path

from src.text.corpus import iter_documents


def peak_memory(path: Path, documents: int | None = None) -> int:
    """Return the most bytes that Python's objects take while a file of so many documents is read."""
    tracemalloc.start()
    count = sum(1 for _ in iter_documents(path))
    size = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert documents in (None, count)
    return size
