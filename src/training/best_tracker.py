"""Which evaluation of a run is the best so far."""

import math
from pathlib import Path
from typing import Any

from src.training.checkpoint import mark_best
from src.training.evaluation import Selection


class BestTracker:
    """The step with the best development metric, of equal ones the first.

    Args:
        selection: None: no step is the best, and patience never ends.

    Attributes:
        state: of a checkpoint: "step" (0 before the first evaluation), its "metrics", and "worse_since": evaluations
            since.
    """

    def __init__(self, selection: Selection | None) -> None:
        self.selection = selection
        self.state: dict[str, Any] = {"step": 0, "metrics": {}, "worse_since": 0}

    @property
    def step(self) -> int:
        """The best step so far; 0: none."""
        return self.state["step"]

    @property
    def out_of_patience(self) -> bool:
        """Whether the metric has not improved for as many evaluations as end the run."""
        return bool(self.selection and 0 < self.selection.patience <= self.state["worse_since"])

    def update(self, step: int, metrics: dict[str, float]) -> bool:
        """Compare an evaluation with the best one: whether it is better."""
        if not self.selection:
            return False
        name = self.selection.metric
        if metrics[name] > self.state["metrics"].get(name, -math.inf):
            self.state = {"step": step, "metrics": metrics, "worse_since": 0}
            return True
        self.state = self.state | {"worse_since": self.state["worse_since"] + 1}
        return False

    def mark(self, folder: Path, step: int) -> None:
        """Mark the checkpoint of this step in the folder if it is the best."""
        if step == self.step > 0:
            mark_best(folder, step, self.state["metrics"])
