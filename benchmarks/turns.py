"""Programs that are measured against each other, each in its own process, of which only one runs at a time."""

import ctypes
import multiprocessing
import os
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, Self

import psutil

from model_utils.errors import UserError
from model_utils.memory import peak_memory

QUIET = 0.05  # share of the machine's CPU time that others may use before a figure means little
PR_SET_PDEATHSIG = 1  # linux/prctl.h


class Contender:
    """Object in a new process, which is stopped between calls of its methods.

    Idle threads of a library spin while they wait for its next task and would take the cores of the other contender.
    SIGSTOP keeps them from it.

    Args:
        make: a class or function of a module; called with the arguments in the new process.

    Raises:
        UserError: `make` or a method raised it.
        RuntimeError: the process ended; its traceback is on stderr.
    """

    def __init__(self, make: Callable[..., object], *arguments: Any) -> None:
        # A new interpreter, not a fork: the libraries start threads of their own.
        context = multiprocessing.get_context("spawn")
        if "OMP_NUM_THREADS" not in os.environ:
            os.unsetenv("OMP_NUM_THREADS")  # which MindSpore puts into this process, unseen by Python
        self._pipe, child_pipe = context.Pipe()
        self._process = context.Process(target=_serve, args=(child_pipe, make, arguments))
        self._process.start()
        assert self._process.pid is not None  # None only before the start
        self._pid = self._process.pid
        child_pipe.close()
        try:
            self._answer()
        except BaseException:
            self.close()
            raise

    def call(self, method: str, *arguments: Any) -> Any:
        """Continue the process, call a method of its object, and stop the process again."""
        os.kill(self._pid, signal.SIGCONT)
        self._pipe.send((method, arguments))
        return self._answer()

    def peak_memory(self) -> int:
        """Return the bytes of memory that the process has held at most."""
        return peak_memory(self._pid)

    def _answer(self) -> Any:
        try:
            answer = self._pipe.recv()
        except EOFError:
            self._process.join()
            raise RuntimeError(f"a benchmark's process ended with code {self._process.exitcode}") from None
        if isinstance(answer, UserError):
            raise answer
        os.kill(self._pid, signal.SIGSTOP)
        return answer

    def close(self) -> None:
        """End the process, stopped or not."""
        self._process.kill()
        self._process.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _serve(pipe: Connection, make: Callable[..., object], arguments: tuple[Any, ...]) -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # a stopped process would outlive its parent
    os.setpgrp()  # Ctrl-C is the parent's to answer
    try:
        contender = make(*arguments)
        pipe.send("made")
        while True:
            method, values = pipe.recv()
            pipe.send(getattr(contender, method)(*values))
    except UserError as error:
        pipe.send(error)


class OtherPrograms:
    """Context that measures the share of the machine's CPU time that other programs use, into `share` at its end.

    Processes started inside count as this program if they end inside.
    """

    share = 0.0

    def __enter__(self) -> Self:
        self._before = _machine_seconds()
        return self

    def __exit__(self, *_: object) -> None:
        others, total = self._before
        others_after, total_after = _machine_seconds()
        if total_after > total:  # the kernel counts in hundredths of a second
            self.share = (others_after - others) / (total_after - total)


def describe_others(share: float) -> str:
    """Return a sentence about OtherPrograms.share."""
    advice = "" if share < QUIET else ": these figures say little, measure again on a quiet machine"
    return f"other programs used {share:.0%} of the machine's CPU time meanwhile{advice}"


def _machine_seconds() -> tuple[float, float]:
    """Return CPU seconds over all cores since boot: those of other programs, and all."""
    times = psutil.cpu_times()
    own = os.times()
    busy = times.user + times.nice + times.system + times.irq + times.softirq + times.steal
    return busy - sum(own[:4]), busy + times.idle + times.iowait
