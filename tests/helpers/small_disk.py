"""A disk that is too small for a file."""

import contextlib
import resource
from collections.abc import Iterator


@contextlib.contextmanager
def no_file_beyond(size: int) -> Iterator[None]:
    """Let write() fail, without a word of the file, where one grows beyond so many bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
