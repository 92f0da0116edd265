"""Barriers and exchange of small values between the ranks of a distributed run.

MindSpore's collectives on CPUs abort the job if a rank waits longer than 30 s, as while another compiles, writes or
evaluates. So ranks first synchronise through the job's rendezvous, for up to WAIT_MINUTES.
"""

import functools
import os
import pickle
from dataclasses import dataclass
from typing import Any

import numpy as np

from model_utils.device import Device
from model_utils.errors import UserError
from model_utils.flat_dicts import first_difference
from model_utils.rendezvous import ADDRESS, KEY, LAUNCHER, Rendezvous, RendezvousClient

WAIT_MINUTES = 120.0  # timeout of a barrier, for work that one rank does alone; a rank that ended is noticed at once


@dataclass(eq=False)
class Ranks:
    """Process group of the ranks that train together, as seen by this rank.

    Args:
        rank, size: rank of this process and number of ranks; rank 0 writes the run's files.
        rendezvous: has the barriers of the job's ranks; None for a single process.
        wait_minutes: timeout of a barrier.
        barriers: number of the last barrier that this rank has reached.
    """

    rank: int = 0
    size: int = 1
    rendezvous: Rendezvous | RendezvousClient | None = None
    wait_minutes: float = WAIT_MINUTES
    barriers: int = 0

    @property
    def is_writer(self) -> bool:
        """Return True if this rank writes the run's files."""
        return self.rank == 0

    def gather(self, value: Any, barrier_name: str) -> list[Any]:
        """Return the values of all ranks, in their order. Collective: every rank calls it at the same points.

        Args:
            value: anything that pickles.
            barrier_name: for errors, as in "rank 1 did not reach NAME"; the same on every rank.

        Raises:
            UserError: a rank ended or timed out, or the launcher has ended.
        """
        if self.rendezvous is None:
            return [value]
        self.barriers += 1
        pickled = pickle.dumps(value)
        entries = self.rendezvous.exchange(self.rank, self.barriers, barrier_name, pickled, 60 * self.wait_minutes)
        for rank, (name, _) in enumerate(entries):
            if name != barrier_name:
                raise RuntimeError(f"rank {rank} is at {name} while rank {self.rank} is at {barrier_name}")
        return [pickle.loads(entry) for _, entry in entries]  # noqa: S301 - written by a rank of this job

    def wait(self, barrier_name: str) -> None:
        """Wait until all ranks call it (a barrier). Collective; arguments and errors as gather."""
        self.gather(None, barrier_name)

    def sum(self, array: np.ndarray, barrier_name: str) -> np.ndarray:
        """Return the sum of an array over all ranks, bit-identical on each; collective, arguments as gather."""
        return np.sum(self.gather(array, barrier_name), axis=0)

    def must_agree(self, entries: dict[str, Any], subject: str) -> None:
        """Raise UserError if a rank has another value than rank 0, naming rank, key and both values. Collective."""
        first, *others = self.gather(entries, subject)
        for rank, rank_entries in enumerate(others, 1):
            if difference := first_difference(first, rank_entries):
                key, left, right = difference
                values = f"{key} is {left!r} on rank 0 and {right!r} on rank {rank}"
                raise UserError(f"the ranks differ in {subject}: {values}; give all the same files and configuration")


ALONE = Ranks()  # process group of a single process


@functools.cache  # barriers are numbered, so that a process must have one group
def ranks_of(device: Device) -> Ranks:
    """Return the process group of this device's process, as scripts/launch.py started it."""
    if device.rank_size == 1:
        return ALONE
    host, _, port = os.environ[ADDRESS].rpartition(":")
    client = RendezvousClient((host, int(port)), os.environ[KEY].encode(), launcher=int(os.environ[LAUNCHER]))
    return Ranks(device.rank, device.rank_size, client)
