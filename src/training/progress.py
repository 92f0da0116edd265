"""Progress of a run, measured in updates and, if it has a time limit, in time."""

import math
import time
from collections.abc import Callable

from src.training.loop_state import LoopState
from src.training.run_plan import RunPlan


class Progress:
    """Share of a run that is over: of its updates, or of its time limit (max_train_hours) if that is more.

    Training time is summed over all starts of the run, with compilation, evaluation and saving, but without the pauses
    between starts. It is `state.seconds`, synchronised between ranks, unlike measured_seconds().
    """

    def __init__(self, plan: RunPlan, state: LoopState) -> None:
        self.plan = plan
        self.state = state
        self.clock: Callable[[], float] = time.monotonic
        self.start()

    def start(self) -> None:
        """Start the clock of a run, or resume it after `state.seconds` of training."""
        self.began = self.clock() - self.state.seconds

    def measured_seconds(self) -> float:
        """Return the seconds of training by this rank's clock."""
        return self.clock() - self.began

    def seconds_to_save(self) -> float:
        """Return measured_seconds(), capped below the time limit until the synchronised clock has reached it.

        A resumed run then still makes its last update and record.
        """
        limit = self.plan.max_seconds
        measured = self.measured_seconds()
        return min(measured, math.nextafter(limit, 0)) if self.state.seconds < limit else measured

    @property
    def elapsed(self) -> float:
        """Share of the run's time limit that is over; 0 without a limit."""
        return min(1.0, self.state.seconds / self.plan.max_seconds) if self.plan.max_seconds else 0.0

    @property
    def share(self) -> float:
        """Share of the run that is over, 0 to 1."""
        return max(self.state.step / self.plan.train_steps, self.elapsed)

    def seconds_left(self, step: int, rate: float) -> float:
        """Return the seconds that remain after `step` at `rate` updates a second."""
        by_updates = (self.plan.train_steps - step) / rate
        if not self.plan.max_seconds:
            return by_updates
        return min(by_updates, max(0.0, self.plan.max_seconds - self.state.seconds))
