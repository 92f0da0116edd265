"""Meters of the loop: seconds of training alone, speed, and means over a window of updates."""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


class Stopwatch:
    """Seconds of training alone; what happens inside `paused()` is left out."""

    def __init__(self) -> None:
        self._left_out = 0.0

    def seconds(self) -> float:
        """Return the reading of a clock that stands still in pauses."""
        return time.monotonic() - self._left_out

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stop the clock inside: for compilation, evaluation and saving. Pauses may nest."""
        start = self.seconds()
        try:
            yield
        finally:
            self._left_out += self.seconds() - start


@dataclass
class Speed:
    """Counts of updates, examples, tokens and operations, and the seconds they took."""

    updates: int = 0
    examples: int = 0
    tokens: int = 0
    flops: float = 0.0
    seconds: float = 0.0

    def add(self, examples: int, tokens: int, flops: float, seconds: float) -> None:
        """Count one update."""
        self.updates += 1
        self.examples += examples
        self.tokens += tokens
        self.flops += flops
        self.seconds += seconds

    def per_second(self, count: float) -> float | None:
        """Return a count per second; None before anything was measured."""
        return count / self.seconds if self.seconds > 0 else None


class Window:
    """Sums of the metrics since the last record: {name: [sum, number of finite values]}.

    It is saved with every checkpoint, so that records do not depend on interruptions. Values that are not finite (a
    skipped update's) stay out of the means.
    """

    def __init__(self, sums: dict[str, list[float]] | None = None) -> None:
        self.sums = sums or {}

    def add(self, values: dict[str, float]) -> None:
        """Add one update's values."""
        for name, value in values.items():
            entry = self.sums.setdefault(name, [0.0, 0])
            if math.isfinite(value):
                entry[0] += value
                entry[1] += 1

    def means(self) -> dict[str, float | None]:
        """Return the mean of each metric; None where no value was finite."""
        return {name: total / count if count else None for name, (total, count) in self.sums.items()}
