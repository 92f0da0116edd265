"""Meters of the loop: seconds of training alone, and speed."""

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
