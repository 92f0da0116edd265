"""SIGTERM and Ctrl-C as a question that a run asks where it can save."""

import contextlib
import os
import signal
from contextlib import AbstractContextManager
from types import FrameType
from typing import Any, Self

from model_utils.messages import forgive_lost_readers


class StopSignals(AbstractContextManager):
    """Remembers the first SIGTERM or SIGINT in `received` (0 before); a second one ends the process at once.

    While MindSpore runs a graph it handles SIGINT itself and sends the process SIGTERM instead.
    """

    def __init__(self) -> None:
        self.received = 0
        self.before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for number in (signal.SIGTERM, signal.SIGINT):
            self.before[number] = signal.signal(number, self._remember)
        return self

    def _remember(self, number: int, _: FrameType | None) -> None:
        self.received = number
        for each in self.before:
            signal.signal(each, signal.SIG_DFL)
        forgive_lost_readers()  # of `| tee`, which Ctrl-C ends, too
        with contextlib.suppress(OSError):
            # Not print: a signal may arrive inside one, which cannot be entered twice.
            os.write(2, b"asked to stop: finishing this batch and saving; asking again ends the run at once\n")

    def __exit__(self, *_: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)
