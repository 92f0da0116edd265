"""SIGTERM, Ctrl-C and the end of the terminal, remembered until the run can save."""

import contextlib
import os
import signal
import sys
from contextlib import AbstractContextManager
from types import FrameType
from typing import Any, Self, TextIO

from model_utils.messages import forgive_lost_readers, silence


class StopSignals(AbstractContextManager):
    """Handlers that remember the first SIGTERM, SIGINT or SIGHUP in `received` (0 before).

    A second SIGTERM or SIGINT ends the process at once. At the end of a terminal the kernel and the shell may both send
    SIGHUP, the second one even after the run: later ones are ignored. Under nohup it stays ignored. While MindSpore
    runs a graph it handles SIGINT itself and sends the process SIGTERM instead.
    """

    def __init__(self) -> None:
        self.received = 0
        self.previous_handlers: dict[int, Any] = {}
        self.terminals: list[TextIO] = []

    def __enter__(self) -> Self:
        forgive_lost_readers()  # of `| tee`, which Ctrl-C ends, too, or of a terminal that is left without a signal
        self.terminals = [stream for stream in (sys.stdout, sys.stderr) if stream.isatty()]
        for signal_number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if signal_number != signal.SIGHUP or signal.getsignal(signal_number) != signal.SIG_IGN:
                self.previous_handlers[signal_number] = signal.signal(signal_number, self._remember)
        return self

    def _remember(self, signal_number: int, _: FrameType | None) -> None:
        self.received = signal_number
        for handled in self.previous_handlers:
            signal.signal(handled, signal.SIG_IGN if handled == signal.SIGHUP else signal.SIG_DFL)
        if signal_number == signal.SIGHUP:
            for stream in self.terminals:
                silence(stream)
        with contextlib.suppress(OSError):
            # Not print: a signal may arrive inside one, which cannot be entered twice.
            os.write(2, b"asked to stop: finishing this batch and saving; asking again ends the run at once\n")

    def __exit__(self, *_: object) -> None:
        for signal_number, handler in self.previous_handlers.items():
            if signal_number == signal.SIGHUP and self.received == signal.SIGHUP:
                continue  # a second SIGHUP may come after the run
            signal.signal(signal_number, handler)
