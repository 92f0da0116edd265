"""Number of compute threads of this process, shared by MindSpore's operations and the project's C++ layers."""

import contextlib
import math
import os

from model_utils.control_groups import limits
from model_utils.errors import DeviceError

_chosen_threads = 0  # of this process; 0: not chosen yet


def choose_threads(threads: int, processes: int = 1) -> int:
    """Set the number of compute threads of this process, one of `processes` that share the machine, and return it.

    Args:
        threads: 0: OMP_NUM_THREADS, or this process's share of the cores that a container's limit allows.

    Raises:
        DeviceError: this process may not use as many cores, or already computes with another number.
    """
    global _chosen_threads
    cores = len(os.sched_getaffinity(0))
    if threads > cores:
        raise DeviceError(f"threads is {threads}, but this process may use {cores} core(s): allowed is 0 to {cores}")
    threads = threads or _default_threads(cores, processes)
    if _chosen_threads not in (0, threads):
        raise DeviceError(
            f"this process already computes with {_chosen_threads} thread(s) and cannot change to {threads}"
        )
    _chosen_threads = threads
    return threads


def _default_threads(cores: int, processes: int) -> int:
    """Return OMP_NUM_THREADS, at most `cores`, or without it this process's share of the available cores."""
    # os.environ still has the user's value: MindSpore sets the variable to 1 below Python.
    omp_threads = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    if omp_threads.isdecimal() and int(omp_threads):
        return min(cores, int(omp_threads))
    return max(1, min(cores, math.ceil(cpu_limit())) // processes)


def threads() -> int:
    """Return the number of compute threads, choosing it at the first call."""
    return _chosen_threads or choose_threads(0)


def cpu_limit() -> float:
    """Return how many CPUs' time the control group and its parents allow; all CPUs if there is no limit."""
    limit = float(os.cpu_count() or 1)
    for text in limits("cpu.max"):
        with contextlib.suppress(ValueError):  # "max", no limit
            quota, period = map(int, text.split())
            limit = min(limit, quota / period)
    return limit
