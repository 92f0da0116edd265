"""Evaluation of a network while it trains, and which of its evaluations chooses the best checkpoint."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mindspore import nn

from src.training.checkpoint import copy_parameters


@dataclass(frozen=True)
class Selection:
    """Which development metric chooses the best checkpoint, the larger the better.

    patience: evaluations in a row without a better one that end the run; 0: none do.
    """

    metric: str
    patience: int = 0


class Evaluation:
    """Measures a network in training with a network without dropout, which gets its parameters.

    Args:
        training, network: cells whose parameters have the same names.
        measure: called with `network` and a function to be called before each batch, where a run that is asked to
            stop ends; equally often on every rank. Its result has `metrics`: {name: value}, the same on every rank.
        steps: updates between evaluations; the last update is always followed by one.
        selection: how the best checkpoint is chosen; None: it is not.

    Attributes:
        kept: what `measure` gave at the best step so far, by this step.
    """

    def __init__(
        self,
        training: nn.Cell,
        network: nn.Cell,
        measure: Callable[[nn.Cell, Callable[[], object]], Any],
        steps: int,
        selection: Selection | None = None,
    ) -> None:
        self.training, self.network, self.measure = training, network, measure
        self.steps, self.selection = steps, selection
        self.latest: Any = None
        self.kept: dict[int, Any] = {}

    def __call__(self, before_batch: Callable[[], object]) -> dict[str, float]:
        """Metrics by name of the training network as it is."""
        copy_parameters(self.training, self.network)
        self.latest = self.measure(self.network, before_batch)
        return self.latest.metrics

    def keep(self, step: int) -> None:
        """Remember the latest result, which is the best so far, as that of `step`."""
        self.kept = {step: self.latest}
