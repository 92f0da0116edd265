"""How far a run is: over its updates, and over its time where that is limited."""

import math
import time
from collections.abc import Callable

from src.training.run_plan import RunPlan


class Progress:
    """The share of a run that is over: of its updates, or of its time (max_train_hours) where that is more.

    Time is that of training in all starts of the run, with compilation, evaluation and saving, without the time between
    them.

    Attributes:
        step: updates started.
        seconds: of training, the same on every rank, unlike `measured`.
    """

    def __init__(self, plan: RunPlan, clock: Callable[[], float] = time.monotonic) -> None:
        self.plan, self.clock = plan, clock
        self.start()

    def start(self, step: int = 0, seconds: float = 0.0) -> None:
        """Start a run, or go on with one that earlier starts trained for this long."""
        self.step, self.seconds = step, seconds
        self.began = self.clock() - seconds

    def measured(self) -> float:
        """Seconds of training by this rank's clock."""
        return self.clock() - self.began

    def to_save(self) -> float:
        """`measured`; of a run that is not over yet, less than its limit: its last record is still to come."""
        limit, measured = self.plan.max_seconds, self.measured()
        return min(measured, math.nextafter(limit, 0)) if self.seconds < limit else measured

    @property
    def elapsed(self) -> float:
        """Share of the run's time that is over; 0 where it is not limited."""
        return min(1.0, self.seconds / self.plan.max_seconds) if self.plan.max_seconds else 0.0

    @property
    def share(self) -> float:
        """Share of the run that is over, 0 to 1."""
        return max(self.step / self.plan.train_steps, self.elapsed)

    def seconds_left(self, step: int, rate: float) -> float:
        """What the run still takes after `step` with this many updates a second."""
        by_updates = (self.plan.train_steps - step) / rate
        if not self.plan.max_seconds:
            return by_updates
        return min(by_updates, max(0.0, self.plan.max_seconds - self.seconds))
