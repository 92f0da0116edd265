"""Barriers and exchange of small values between the ranks of a distributed run, through files.

MindSpore's collectives on CPUs abort the job if a rank waits longer than 30 s, and ranks differ by more than that
whenever one compiles, writes or checks files, or evaluates. So ranks synchronise through files first, for up to
WAIT_MINUTES, and then enter a collective together.
"""

import os
import pickle
import time
from pathlib import Path
from typing import Any

import numpy as np

from model_utils.device import RANKS_FOLDER, Device
from model_utils.errors import UserError
from model_utils.facts import first_difference
from model_utils.files import naming

WAIT_MINUTES = 120.0  # timeout of a barrier, for work that one rank does alone; a rank that ended is noticed at once
LAUNCHER = "ALBERT_LAUNCHER"  # environment variable: the process id of scripts/launch.py
LONGEST_PAUSE = 0.05  # s between two checks of a file


class Ranks:
    """Process group of the ranks that train together on one machine, as seen by this rank.

    Args:
        rank, size: rank of this process and number of ranks; rank 0 writes the run's files.
        folder: folder of this launch, shared by all ranks. The file r.b holds rank r's value at barrier b; ended-r
            exists once rank r has ended (scripts/launch.py). None for a single process.
        wait_minutes: timeout of a barrier.
        launcher: process id of the parent, which forwards signals; this rank ends if the parent has. None: no parent.
    """

    def __init__(
        self,
        rank: int = 0,
        size: int = 1,
        folder: Path | None = None,
        wait_minutes: float = WAIT_MINUTES,
        launcher: int | None = None,
    ) -> None:
        self.rank = rank
        self.size = size
        self.folder = folder
        self.wait_minutes = wait_minutes
        self.launcher = launcher
        self.barriers = 0

    @property
    def writer(self) -> bool:
        return self.rank == 0

    def gather(self, value: Any, what: str) -> list[Any]:
        """Return the values of all ranks, in their order. Collective: every rank calls it at the same points.

        Args:
            value: anything that pickles.
            what: name of the barrier for errors, as in "rank 1 has not come to WHAT"; the same on every rank.

        Raises:
            UserError: a rank ended or timed out, or the launcher has ended.
        """
        if self.size == 1:
            return [value]
        self._check_launcher(what)
        self.barriers += 1
        path = self._path(self.rank, self.barriers)
        unfinished = path.with_suffix(".unfinished")
        with naming(unfinished):
            unfinished.write_bytes(pickle.dumps((what, value)))
        unfinished.rename(path)
        values = [value if rank == self.rank else self._value_of(rank, what) for rank in range(self.size)]
        # All ranks have reached this barrier, so all have read the values of the previous one.
        self._path(self.rank, self.barriers - 1).unlink(missing_ok=True)
        return values

    def wait(self, what: str) -> None:
        """Wait until all ranks call it (a barrier). Collective; arguments and errors as gather."""
        self.gather(None, what)

    def sum(self, array: np.ndarray, what: str) -> np.ndarray:
        """Return the sum of an array over all ranks, bit-identical on each; collective, arguments as gather."""
        return np.sum(self.gather(array, what), axis=0)

    def must_agree(self, facts: dict[str, Any], what: str) -> None:
        """Raise UserError if a rank has another value than rank 0, naming rank, key and both values. Collective."""
        first, *others = self.gather(facts, what)
        for rank, rank_facts in enumerate(others, 1):
            if difference := first_difference(first, rank_facts):
                key, left, right = difference
                raise UserError(
                    f"the ranks differ in {what}: {key} is {left!r} on rank 0 and {right!r} on rank {rank}; they "
                    "must read the same files with the same configuration"
                )

    def _path(self, rank: int, barrier: int) -> Path:
        """Return the file with a rank's value at a barrier."""
        assert self.folder is not None
        return self.folder / f"{rank}.{barrier}"

    def _check_launcher(self, what: str) -> None:
        """Raise UserError if the launcher has ended."""
        if self.launcher not in (None, os.getppid()):
            raise UserError(f"scripts/launch.py (process {self.launcher}) has ended, this rank ends at {what}")

    def _value_of(self, rank: int, what: str) -> Any:
        """Wait for a rank's value at the current barrier and return it."""
        assert self.folder is not None
        path = self._path(rank, self.barriers)
        ended = self.folder / f"ended-{rank}"
        deadline = time.monotonic() + 60 * self.wait_minutes
        pause = 1e-4
        while not path.exists():
            if ended.exists() and not path.exists():  # it may have written its value just before it ended
                raise UserError(f"rank {rank} has ended while this one waited for it at {what}")
            if not path.exists():
                self._check_launcher(what)
            if time.monotonic() > deadline:
                raise UserError(
                    f"rank {rank} has not come to {what} within {self.wait_minutes:g} minutes (WAIT_MINUTES in "
                    f"{Path(__file__).name}): see its log"
                )
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
        rank_barrier, value = pickle.loads(path.read_bytes())  # noqa: S301 - written by a rank of this job, in its folder
        if rank_barrier != what:
            raise RuntimeError(f"rank {rank} is at {rank_barrier} while rank {self.rank} is at {what}")
        return value


ALONE = Ranks()  # process group of a single process


def ranks_of(device: Device) -> Ranks:
    """Return the process group of this device's process, as scripts/launch.py started it."""
    if device.rank_size == 1:
        return ALONE
    folder = Path(os.environ[RANKS_FOLDER])
    launcher = int(os.environ[LAUNCHER])
    return Ranks(device.rank, device.rank_size, folder, launcher=launcher)
