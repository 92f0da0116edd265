"""State of the training loop, which is what a checkpoint holds beside the Parameters."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from model_utils.errors import CheckpointError

OF_THIS_RUN = ("identity", "precision", "architecture", "config")  # a resumed run writes its own


@dataclass
class Best:
    """Best evaluation so far: its step (0 before the first), its metrics, and how many evaluations came since."""

    step: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    worse_since: int = 0


@dataclass
class LoopState:
    """State of the loop after `step` updates; the fields are the keys of a checkpoint, in their order.

    Attributes:
        identity, precision, architecture: RunIdentity.to_save().
        config: the run's configuration.
        step: updates started; one that is skipped for a non-finite gradient counts.
        epoch, batch: position of the next micro-batch. It follows from step and phase_starts, and is for readers.
        phase_starts: for each phase that has begun, the number of updates before it.
        seconds: training time over all starts of the run, synchronised between ranks.
        skipped_steps, skipped_in_a_row: updates that were skipped, in all and since the last one that was not.
        latest: learning rate of the last applied update, loss scale of the last attempted one.
        evaluating: an evaluation after this step is under way; a resumed run goes on with it.
        window: {metric: [sum, number of finite values]} since the last record of the log.
        written: steps of the run's checkpoints.
    """

    step: int = 0
    epoch: int = 0
    batch: int = 0
    phase_starts: list[int] = field(default_factory=lambda: [0])
    seconds: float = 0.0
    skipped_steps: int = 0
    skipped_in_a_row: int = 0
    latest: dict[str, float] = field(default_factory=lambda: {"learning_rate": 0.0, "loss_scale": 1.0})
    best: Best = field(default_factory=Best)
    evaluating: bool = False
    window: dict[str, list[float]] = field(default_factory=dict)
    written: list[int] = field(default_factory=list)
    identity: dict[str, Any] = field(default_factory=dict)
    precision: dict[str, str] = field(default_factory=dict)
    architecture: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Take everything from a checkpoint that check_whole has passed, but what is OF_THIS_RUN."""
        for key in fields(self):
            if key.name not in OF_THIS_RUN:
                setattr(self, key.name, saved[key.name])
        self.best = Best(**saved["best"])

    def count(self, values: Mapping[str, float], names: Iterable[str]) -> None:
        """Count one update by its metrics, and add those of these names to the window."""
        self.latest["loss_scale"] = values["loss_scale"]
        if values["finite"] and math.isfinite(values["loss"]):
            self.skipped_in_a_row = 0
            self.latest["learning_rate"] = values["learning_rate"]
        else:
            self.skipped_steps += 1
            self.skipped_in_a_row += 1
        for name in names:
            entry = self.window.setdefault(name, [0.0, 0])
            if math.isfinite(values[name]):  # the gradient norm of a skipped update is not
                entry[0] += values[name]
                entry[1] += 1

    def close_window(self) -> dict[str, float | None]:
        """Return the mean of each metric since the last record, None where no value was finite, and begin anew."""
        means = {name: total / count if count else None for name, (total, count) in self.window.items()}
        self.window = {}
        return means


def check_whole(saved: Mapping[str, Any], path: Path) -> None:
    """Raise CheckpointError if the checkpoint `path` holds no whole LoopState."""
    if missing := sorted({key.name for key in fields(LoopState)} - saved.keys()):
        raise CheckpointError(
            f"{path} is not a complete training state, it lacks {', '.join(missing)}: move it out of the folder"
        )
