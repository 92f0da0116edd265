"""Console messages: sentences on a stream, past progress bars. Modules log with logging.getLogger(__name__)."""

import io
import logging
import os
import sys
from typing import TextIO

from tqdm import tqdm

# Ours; what other libraries have to say below a warning is not for the reader of a command's output.
PROJECT = (
    *("src", "model_utils", "dataset", "scripts", "benchmarks"),
    *("run_pretrain", "pretrain_eval", "export", "predict", "__main__"),
)


class _Sentences(logging.Handler):
    """Writes to the standard stream of that name, whatever it is at the time."""

    forgiving = False  # whether a message that nobody can read, or its stream does not take, may be lost

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
    """From now on a message that nobody reads, or no disk holds, is lost, where it ended the command before."""
    _Sentences.forgiving = True


def silence(stream: TextIO) -> None:
    """Let a stream lead nowhere: what it still holds, and what else is written, would fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def show_messages(stream: str = "stdout") -> None:
    """Show the messages of this project on stdout or stderr; a program that imports it decides by itself.

    That stream, and stderr, lead nowhere where the process was started without them (`2>&-`), and show characters that
    their encoding lacks by number.
    """
    for name in {stream, "stderr"}:
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))
        if isinstance(getattr(sys, name), io.TextIOWrapper):
            getattr(sys, name).reconfigure(errors="backslashreplace")
    root = logging.getLogger()
    root.handlers = [handler for handler in root.handlers if not isinstance(handler, _Sentences)]
    root.addHandler(_Sentences(stream))
    set_level(logging.INFO)


def set_level(level: int) -> None:
    """What is less important is not shown: INFO, or WARNING on the ranks of a distributed run that do not write."""
    for name in PROJECT:
        logging.getLogger(name).setLevel(level)
