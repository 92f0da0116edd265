"""Evaluation of a network while it trains, and which of its evaluations chooses the best checkpoint."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mindspore import nn

from src.checkpoints.checkpoint_files import checkpoint_path
from src.training.checkpoint import copy_parameters, mark_best


@dataclass(frozen=True)
class Selection:
    """Which development metric chooses the best checkpoint, the larger the better.

    patience: evaluations in a row without a better one that end the run; 0: none do.
    """

    metric: str
    patience: int = 0


class BestTracker:
    """The step with the best development metric, of equal ones the first; without a selection there is none.

    state: of a checkpoint: "step" (0 before the first evaluation), its "metrics", "worse_since": evaluations since.
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
        """True if the metric has not improved for as many evaluations as end the run."""
        return bool(self.selection and 0 < self.selection.patience <= self.state["worse_since"])

    def update(self, step: int, metrics: dict[str, float]) -> bool:
        """Return whether an evaluation is better than the best one so far, and remember it if so."""
        if not self.selection:
            return False
        name = self.selection.metric
        if metrics[name] > self.state["metrics"].get(name, -math.inf):
            self.state = {"step": step, "metrics": metrics, "worse_since": 0}
            return True
        self.state = self.state | {"worse_since": self.state["worse_since"] + 1}
        return False

    def mark(self, folder: Path) -> None:
        """Mark the best step's checkpoint, if it lies in the folder."""
        if self.step > 0 and checkpoint_path(folder, self.step).exists():
            mark_best(folder, self.step, self.state["metrics"])


class Evaluation:
    """Evaluates a network in training with a network without dropout, which gets its parameters.

    Args:
        training, network: cells whose parameters have the same names.
        evaluate: called with `network` and a function to be called before each batch, where a run that is asked to
            stop ends; equally often on every rank. Its result has `metrics`: {name: value}, the same on every rank.
        steps: updates between evaluations; the last update is always followed by one.
        selection: how the best checkpoint is chosen; None: it is not.

    Attributes:
        kept: what `evaluate` gave at the best step so far, by this step.
    """

    def __init__(
        self,
        training: nn.Cell,
        network: nn.Cell,
        evaluate: Callable[[nn.Cell, Callable[[], object]], Any],
        steps: int,
        selection: Selection | None = None,
    ) -> None:
        self.training, self.network, self.evaluate = training, network, evaluate
        self.steps, self.selection = steps, selection
        self.latest: Any = None
        self.kept: dict[int, Any] = {}

    def __call__(self, before_batch: Callable[[], object]) -> dict[str, float]:
        """Return the metrics of the training network as it is now."""
        copy_parameters(self.training, self.network)
        self.latest = self.evaluate(self.network, before_batch)
        return self.latest.metrics

    def keep(self, step: int) -> None:
        """Remember the latest result, which is the best so far, as that of `step`."""
        self.kept = {step: self.latest}
