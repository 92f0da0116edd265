"""Updates that the device may still be computing."""

from collections.abc import Mapping
from dataclasses import dataclass

from mindspore import Tensor

from src.training.meters import Stopwatch


@dataclass(frozen=True)
class Update:
    """One update under way; what it counts is of this rank.

    compiled: whether a graph was compiled for it, so that its time says nothing.
    """

    step: int
    outputs: Mapping[str, Tensor]
    examples: int
    tokens: int
    flops: float = 0.0
    compiled: bool = False


class PendingUpdates:
    """The queue of updates under way; those that are read together share the time since the last reading evenly."""

    def __init__(self, clock: Stopwatch) -> None:
        self.clock = clock
        self.queue: list[Update] = []
        self.begin()

    def begin(self) -> None:
        """Count time from now on."""
        self.read_at = self.clock.seconds()

    def add(self, update: Update) -> None:
        """Queue an update that was started."""
        self.queue.append(update)

    @property
    def has_compiled(self) -> bool:
        """True if a graph was compiled for one of them, which is therefore computed."""
        return any(update.compiled for update in self.queue)

    def read(self) -> list[tuple[Update, dict[str, float], float | None]]:
        """Wait for all updates and empty the queue; return each with its metrics, and its seconds if measured."""
        updates = self.queue
        self.queue = []
        values = [read_values(update.outputs) for update in updates]
        now = self.clock.seconds()
        measured = sum(not update.compiled for update in updates)
        seconds = (now - self.read_at) / max(1, measured)
        self.read_at = now
        return [
            (update, metrics, None if update.compiled else seconds)
            for update, metrics in zip(updates, values, strict=True)
        ]


def read_values(outputs: Mapping[str, Tensor]) -> dict[str, float]:
    """Return the metrics of one update as numbers; waits for the device."""
    return {name: float(tensor.asnumpy()) for name, tensor in outputs.items()}
