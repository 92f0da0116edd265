"""The phases of a run: parts of it, one after the other, with data, batches and a learning rate of their own.

A phase begins with the first update before which the share of the run that is over has reached the shares of the phases
before it. At which updates phases began, which the state keeps, restores the place in the data. A run that names no
phases is one.
"""

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from math import fsum
from typing import Protocol

import numpy as np

Batch = dict[str, np.ndarray]


class PhaseData(Protocol):
    """Micro-batches of this rank, in an order of rows that is a function of the epoch.

    batches_per_epoch: of this rank. rows_at_once: rows of a micro-batch of all ranks together.
    """

    batches_per_epoch: int
    rows_at_once: int

    def batches(self, epoch: int, start: int = 0) -> Iterator[Batch]: ...

    def width_shares(self) -> list[tuple[int, float]]: ...


@dataclass(frozen=True)
class Phase:
    """A part of a run.

    accumulation_steps: micro-batches of an update. share: of the run.
    rate_factor: what the schedule's learning rate is multiplied by.
    source: phases of one source go through its rows together: each begins where the one before it stopped.
    description: for the log.
    shuffled: whether an epoch has an order of its own; else the rows go round in a circle.
    """

    data: PhaseData
    accumulation_steps: int = 1
    share: float = 1.0
    rate_factor: float = 1.0
    source: str = ""
    description: str = ""
    shuffled: bool = True


_ROUNDING = 1e-9  # of shares, far less than an update of the longest run


class Phases:
    """All phases of a run in their order, and how many of them have begun.

    Attributes:
        starts: updates before the first one of each phase that has begun.
    """

    def __init__(self, phases: Sequence[Phase]) -> None:
        self.all = tuple(phases)
        self.starts = [0]
        # A little less, because 0.1 + 0.2 is more than 0.3, the share that is over after 3 updates of 10.
        self.begins = [fsum(phase.share for phase in self.all[:i]) - _ROUNDING for i in range(len(self.all))]

    @property
    def number(self) -> int:
        """Of the current phase, counted from 1."""
        return len(self.starts)

    @property
    def current(self) -> Phase:
        return self.all[self.number - 1]

    @property
    def several(self) -> bool:
        """Whether the run has more than one."""
        return len(self.all) > 1

    @property
    def accumulate(self) -> bool:
        """Whether some update has several micro-batches."""
        return any(phase.accumulation_steps > 1 for phase in self.all)

    def next_is_due(self, share: float) -> bool:
        """Whether the next update belongs to a later phase, where this share of the run is over."""
        return self.number < len(self.all) and share >= self.begins[self.number]

    def begin(self, step: int, share: float) -> None:
        """Begin what is due after `step` updates."""
        while self.next_is_due(share):
            self.starts.append(step)

    def micro_batches_before(self, step: int) -> int:
        """Number of the next micro-batch after `step` updates, counted from the first one of the source's epoch 0.

        Where the size of batches changes, a batch begins at a multiple of its size: rows are left out rather than
        repeated.
        """
        rows: dict[str, tuple[int, int]] = {}  # epochs, and rows in the next one, that each source has given
        number = 0
        for phase, start, end in zip(self.all, self.starts, [*self.starts[1:], step], strict=False):
            size, batches = phase.data.rows_at_once, phase.data.batches_per_epoch
            epoch, used = rows.get(phase.source, (0, 0))
            first = -(-used // size)
            if phase.shuffled:  # smaller batches may have used rows that are too few for one more of these
                first = epoch * batches + min(first, batches)
            number = first + (end - start) * phase.accumulation_steps
            epoch, batch = divmod(number, batches) if phase.shuffled else (0, number)
            rows[phase.source] = epoch, batch * size
        return number

    def position(self, step: int) -> tuple[int, int]:
        """Epoch and number of the next micro-batch of the current phase."""
        return divmod(self.micro_batches_before(step), self.current.data.batches_per_epoch)

    def epochs(self, step: int) -> float:
        """Passes through the current source."""
        return self.micro_batches_before(step) / self.current.data.batches_per_epoch

    def micro_batches(self, step: int) -> Generator[list[Batch]]:
        """Those of each update after `step`, in the current phase, without end."""
        phase = self.current
        epoch, start = self.position(step)
        micro_batches: list[Batch] = []
        while True:
            for batch in phase.data.batches(epoch, start):
                micro_batches.append(batch)
                if len(micro_batches) == phase.accumulation_steps:
                    yield micro_batches
                    micro_batches = []
            epoch, start = epoch + 1, 0
