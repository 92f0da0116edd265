"""Console messages that do not break progress bars. Modules log with logging.getLogger(__name__)."""

import io
import logging
import os
import sys
from typing import TextIO

from tqdm import tqdm

# Loggers of this project; other libraries are shown from WARNING up.
PROJECT = "src model_utils dataset scripts benchmarks run_pretrain pretrain_eval export predict __main__".split()


class _ConsoleHandler(logging.Handler):
    """Log handler that writes to sys.stdout or sys.stderr, looked up by name at every message."""

    forgiving = False  # True: a message that cannot be written is dropped

    def __init__(self, stream: str) -> None:
        super().__init__()
        self.stream = stream

    def emit(self, record: logging.LogRecord) -> None:
        stream = getattr(sys, self.stream)
        try:
            tqdm.write(self.format(record), file=stream)
            stream.flush()
        except OSError:
            if not self.forgiving:
                raise
            silence(stream)


def forgive_lost_readers() -> None:
    """Drop messages that cannot be written (closed pipe, full disk) from now on, instead of ending the command."""
    _ConsoleHandler.forgiving = True


def silence(stream: TextIO) -> None:
    """Redirect a stream to /dev/null, because flushing its buffer would fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def show_messages(stream: str = "stdout") -> None:
    """Show this project's messages on "stdout" or "stderr"; for commands, not for programs that import the project.

    Streams that the process was started without (`2>&-`) are replaced by /dev/null; characters that a stream's
    encoding lacks are written as backslash escapes.
    """
    for name in {stream, "stderr"}:
        output = getattr(sys, name)
        if output is None:
            output = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
            setattr(sys, name, output)
        if isinstance(output, io.TextIOWrapper):
            output.reconfigure(errors="backslashreplace")
    root = logging.getLogger()
    root.handlers = [handler for handler in root.handlers if not isinstance(handler, _ConsoleHandler)]
    root.addHandler(_ConsoleHandler(stream))
    set_level(logging.INFO)


def set_level(level: int) -> None:
    """Set the level of this project's loggers: INFO, or WARNING on ranks other than 0."""
    for name in PROJECT:
        logging.getLogger(name).setLevel(level)
