"""How many threads compute in this process, in MindSpore's operations and the project's own alike."""

import contextlib
import math
import os

from model_utils.control_groups import limits
from model_utils.errors import DeviceError

_threads = [0]


def choose_threads(threads: int, processes: int = 1) -> int:
    """How many compute from now on. Their number.

    Args:
        threads: 0: OMP_NUM_THREADS, or as many as there are cores for each process, and as the control group (a
            container's limit) lets compute at once.
        processes: that share the machine.

    Raises:
        DeviceError: this process may not use as many cores, or computes with another number already.
    """
    cores = len(os.sched_getaffinity(0))
    if threads > cores:
        raise DeviceError(f"threads is {threads}, but this process may use {cores} core(s): allowed is 0 to {cores}")
    # As the user set it: MindSpore puts 1 there, unseen by Python.
    named = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    share = max(1, min(cores, math.ceil(cpu_limit())) // processes)
    threads = threads or (min(cores, int(named)) if named.isdecimal() and int(named) else share)
    if _threads[0] not in (0, threads):
        raise DeviceError(f"this process computes with {_threads[0]} thread(s) already and cannot change to {threads}")
    _threads[0] = threads
    return threads


def threads() -> int:
    """How many compute."""
    return _threads[0] or choose_threads(0)


def cpu_limit() -> float:
    """CPUs whose time the control group (version 2) and those above it allow; all of the machine where none does."""
    limit = float(os.cpu_count() or 1)
    for text in limits("cpu.max"):
        with contextlib.suppress(ValueError):  # "max", no limit
            quota, period = map(int, text.split())
            limit = min(limit, quota / period)
    return limit
