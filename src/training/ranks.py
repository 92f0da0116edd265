"""What the processes of a distributed run tell each other beside gradients: by files, and never inside a collective.

A CPU's collective ends the job when one rank waits in it for another for more than 30 s, and ranks are further apart
than that whenever one of them compiles, makes or checks files, or evaluates. So they meet by files first, which may
take WAIT_MINUTES, and enter a collective together.
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

WAIT_MINUTES = 120.0  # for what one rank does alone; a rank that has ended is noticed at once
LAUNCHER = "ALBERT_LAUNCHER"  # in the environment: the process id of scripts/launch.py
LONGEST_PAUSE = 0.05  # s between two looks at a file


class Ranks:
    """This process among those that train together on one machine.

    Args:
        rank, size: this process and how many there are; rank 0 writes.
        folder: seen by all of them, made for this start of them alone; rank r's value of meeting m is r.m in it, and
            ended-r says that rank r has ended (scripts/launch.py). None for a single process.
        wait_minutes: how long the others are waited for.
        launcher: process id of this one's parent, without which nobody would hand a signal on to it; None: nobody does.
    """

    def __init__(
        self,
        rank: int = 0,
        size: int = 1,
        folder: Path | None = None,
        wait_minutes: float = WAIT_MINUTES,
        launcher: int | None = None,
    ) -> None:
        self.rank, self.size, self.folder, self.wait_minutes = rank, size, folder, wait_minutes
        self.launcher = launcher
        self.meetings = 0

    @property
    def writer(self) -> bool:
        return self.rank == 0

    def gather(self, value: Any, what: str) -> list[Any]:
        """The values of all ranks, in their order; returns when all of them have come here.

        Args:
            value: anything that pickles.
            what: this meeting, for the error: "rank 1 has not come to WHAT". The same on every rank.

        Raises:
            UserError: a rank ended, or did not come in time, or what started them all has ended.
        """
        if self.size == 1:
            return [value]
        self._check_launcher(what)
        self.meetings += 1
        path = self._path(self.rank, self.meetings)
        unfinished = path.with_suffix(".unfinished")
        with naming(unfinished):
            unfinished.write_bytes(pickle.dumps((what, value)))
        unfinished.rename(path)
        values = [value if rank == self.rank else self._value_of(rank, what) for rank in range(self.size)]
        # All have come to this meeting, so all have read what was said at the one before it.
        self._path(self.rank, self.meetings - 1).unlink(missing_ok=True)
        return values

    def wait(self, what: str) -> None:
        """Return when all ranks have come here; arguments and errors as gather."""
        self.gather(None, what)

    def sum(self, array: np.ndarray, what: str) -> np.ndarray:
        """The sum of an array over all ranks, the same to the last bit on each; arguments and errors as gather."""
        return np.sum(self.gather(array, what), axis=0)

    def must_agree(self, facts: dict[str, Any], what: str) -> None:
        """Raise UserError where a rank has another value than rank 0; it names the rank, the key and both."""
        first, *others = self.gather(facts, what)
        for rank, theirs in enumerate(others, 1):
            if difference := first_difference(first, theirs):
                key, left, right = difference
                raise UserError(
                    f"the ranks differ in {what}: {key} is {left!r} on rank 0 and {right!r} on rank {rank}; they "
                    "must read the same files with the same configuration"
                )

    def _path(self, rank: int, meeting: int) -> Path:
        assert self.folder is not None
        return self.folder / f"{rank}.{meeting}"

    def _check_launcher(self, what: str) -> None:
        if self.launcher not in (None, os.getppid()):
            raise UserError(f"scripts/launch.py (process {self.launcher}) has ended, this rank ends at {what}")

    def _value_of(self, rank: int, what: str) -> Any:
        assert self.folder is not None
        path, ended = self._path(rank, self.meetings), self.folder / f"ended-{rank}"
        deadline, pause = time.monotonic() + 60 * self.wait_minutes, 1e-4
        while not path.exists():
            if ended.exists() and not path.exists():  # it may have come here last
                raise UserError(f"rank {rank} has ended while this one waited for it at {what}")
            if not path.exists():
                self._check_launcher(what)
            if time.monotonic() > deadline:
                raise UserError(
                    f"rank {rank} has not come to {what} within {self.wait_minutes:g} minutes (WAIT_MINUTES in "
                    f"{Path(__file__).name}): its log says what it does"
                )
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
        theirs, value = pickle.loads(path.read_bytes())
        if theirs != what:
            raise RuntimeError(f"rank {rank} is at {theirs} while rank {self.rank} is at {what}")
        return value


ALONE = Ranks()  # a process by itself


def ranks_of(device: Device) -> Ranks:
    """The ranks that this device's process is one of, as scripts/launch.py started them."""
    if device.rank_size == 1:
        return ALONE
    folder, launcher = Path(os.environ[RANKS_FOLDER]), int(os.environ[LAUNCHER])
    return Ranks(device.rank, device.rank_size, folder, launcher=launcher)
