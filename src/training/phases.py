"""Phases of a run: consecutive parts with their own data, batch size and learning rate.

A phase begins with the first update at which the progress of the run has reached the sum of the shares before it.
Checkpoints keep the updates at which phases began, from which the position in the data is restored.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from math import fsum

import numpy as np

from src.data.batches import FeatureDataset
from src.data.mixed_batches import MixedDataset
from src.pretraining_data.checked_data import PretrainingData

Batch = dict[str, np.ndarray]


@dataclass(frozen=True)
class Phase:
    """Part of a run.

    data: with the micro-batches of this rank, whose order depends only on the epoch.
    accumulation_steps: micro-batches per update.
    share: share of the run.
    rate_factor: multiplies the schedule's learning rate.
    source: identifies the data; a phase continues in the rows where the previous phase of its source stopped.
    description: text for the log.
    shuffled: True if every epoch has its own order of rows; False: the rows are read cyclically.
    """

    data: FeatureDataset | MixedDataset | PretrainingData
    accumulation_steps: int = 1
    share: float = 1.0
    rate_factor: float = 1.0
    source: str = ""
    description: str = ""
    shuffled: bool = True


_ROUNDING = 1e-9  # tolerance of shares, far less than one update of the longest run


class Phases:
    """Phases of a run in their order; `starts` has the updates before each one that has begun."""

    def __init__(self, phases: Sequence[Phase]) -> None:
        self.all = tuple(phases)
        self.starts = [0]
        # Progress at which each phase begins, minus a tolerance: 0.1 + 0.2 > 0.3, but after 3 of 10 updates a phase at
        # 0.3 must begin.
        self.start_shares = [fsum(phase.share for phase in self.all[:i]) - _ROUNDING for i in range(len(self.all))]

    @property
    def number(self) -> int:
        """Number of the current phase, counted from 1."""
        return len(self.starts)

    @property
    def current(self) -> Phase:
        return self.all[self.number - 1]

    @property
    def several(self) -> bool:
        """True if the run has more than one phase."""
        return len(self.all) > 1

    @property
    def accumulate(self) -> bool:
        """True if a phase accumulates gradients over several micro-batches."""
        return any(phase.accumulation_steps > 1 for phase in self.all)

    def next_is_due(self, share: float) -> bool:
        """Return True if the next update belongs to a later phase when this share of the run is over."""
        return self.number < len(self.all) and share >= self.start_shares[self.number]

    def begin(self, step: int, share: float) -> None:
        """Begin the phases that are due after `step` updates."""
        while self.next_is_due(share):
            self.starts.append(step)

    def micro_batches_before(self, step: int) -> int:
        """Return the index of the next micro-batch after `step` updates, from the start of its source's epoch 0.

        Replays the phases: each continues its source where the last phase with this source ended. After a change of
        the batch size an update begins at a multiple of its rows: rows are skipped, never repeated. A source that is
        not shuffled is one endless epoch.
        """
        rows_read: dict[str, tuple[int, int]] = {}  # source -> (complete epochs, rows of the next one)
        batch_index = 0
        for phase, start, end in zip(self.all, self.starts, [*self.starts[1:], step], strict=False):
            batch_rows = phase.data.rows_at_once
            batches_per_epoch = phase.data.batches_per_epoch
            epoch, epoch_rows = rows_read.get(phase.source, (0, 0))
            update_rows = batch_rows * phase.accumulation_steps
            start_index = -(-epoch_rows // update_rows) * phase.accumulation_steps
            if phase.shuffled:  # smaller batches may have left fewer rows than one batch of this phase
                start_index = epoch * batches_per_epoch + min(start_index, batches_per_epoch)
            batch_index = start_index + (end - start) * phase.accumulation_steps
            epoch, batch = divmod(batch_index, batches_per_epoch) if phase.shuffled else (0, batch_index)
            rows_read[phase.source] = epoch, batch * batch_rows
        return batch_index

    def position(self, step: int) -> tuple[int, int]:
        """Return (epoch, index in it) of the next micro-batch of the current phase."""
        return divmod(self.micro_batches_before(step), self.current.data.batches_per_epoch)

    def epochs(self, step: int) -> float:
        """Return the number of passes through the current source."""
        return self.micro_batches_before(step) / self.current.data.batches_per_epoch

    def micro_batches(self, step: int) -> Generator[list[Batch]]:
        """Yield, without end, the micro-batches of each update after `step`, in the current phase."""
        phase = self.current
        epoch, start = self.position(step)
        micro_batches: list[Batch] = []
        while True:
            for batch in phase.data.batches(epoch, start):
                micro_batches.append(batch)
                if len(micro_batches) == phase.accumulation_steps:
                    yield micro_batches
                    micro_batches = []
            epoch += 1
            start = 0
