"""Console messages: sentences on a stream, past progress bars. Modules log with logging.getLogger(__name__)."""

import logging
import sys

from tqdm import tqdm

# Ours; what other libraries have to say below a warning is not for the reader of a command's output.
PROJECT = ("src", "model_utils", "dataset", "scripts", "benchmarks", "run_pretrain", "pretrain_eval", "__main__")


class _Sentences(logging.Handler):
    """Writes to the standard stream of that name, whatever it is at the time."""

    def __init__(self, stream: str) -> None:
        super().__init__()
        self.stream = stream

    def emit(self, record: logging.LogRecord) -> None:
        tqdm.write(self.format(record), file=getattr(sys, self.stream))
        getattr(sys, self.stream).flush()


def show_messages(stream: str = "stdout") -> None:
    """Show the messages of this project on stdout or stderr; a program that imports it decides by itself."""
    root = logging.getLogger()
    root.handlers = [handler for handler in root.handlers if not isinstance(handler, _Sentences)]
    root.addHandler(_Sentences(stream))
    set_level(logging.INFO)


def set_level(level: int) -> None:
    """What is less important is not shown: INFO, or WARNING on the ranks of a distributed run that do not write."""
    for name in PROJECT:
        logging.getLogger(name).setLevel(level)
