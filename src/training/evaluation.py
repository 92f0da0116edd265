"""Evaluation of a network while it trains, and which of its evaluations chooses the best checkpoint."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from mindspore import nn

from src.training.checkpoint import copy_parameters
from src.training.loop_state import Best


@dataclass(frozen=True)
class Selection:
    """Which development metric chooses the best checkpoint, the larger the better; of equal ones the first.

    patience: evaluations in a row without a better one that end the run; 0: none do.
    """

    metric: str
    patience: int = 0

    def update(self, best: Best, step: int, metrics: dict[str, float]) -> bool:
        """Return whether an evaluation is better than the best one so far, which it then replaces."""
        if metrics[self.metric] > best.metrics.get(self.metric, -math.inf):
            best.step = step
            best.metrics = {name: value for name, value in metrics.items() if math.isfinite(value)}
            best.worse_since = 0
            return True
        best.worse_since += 1
        return False

    def is_out_of_patience(self, best: Best) -> bool:
        """Return whether the metric has not improved for as many evaluations as end the run."""
        return 0 < self.patience <= best.worse_since


@dataclass
class Evaluation:
    """Evaluates a network in training with a network without dropout, which gets its parameters.

    Args:
        training, network: cells whose parameters have the same names.
        evaluate: called with `network` and a function to be called before each batch, where a run that is asked to
            stop ends; equally often on every rank. Its result has `metrics`: {name: value}, the same on every rank.
        steps: updates between evaluations; the last update is always followed by one.
        selection: how the best checkpoint is chosen; None: it is not.

    Attributes:
        kept: {step: result} of the best evaluation since this process started; {} if there is none.
    """

    training: nn.Cell
    network: nn.Cell
    evaluate: Callable[[nn.Cell, Callable[[], object]], Any]
    steps: int
    selection: Selection | None = None
    kept: dict[int, Any] = field(default_factory=dict)

    def __call__(self, step: int, best: Best, before_batch: Callable[[], object]) -> dict[str, float]:
        """Return the metrics of the training network as it is after `step` updates; keep them if they are the best."""
        copy_parameters(self.training, self.network)
        result = self.evaluate(self.network, before_batch)
        if self.selection and self.selection.update(best, step, result.metrics):
            self.kept = {step: result}
        return result.metrics
