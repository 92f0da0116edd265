"""Results of a fine-tuned model: eval_results.json, and the mean over seeds."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import mean, stdev
from typing import Any

from src.tasks.spec import EvaluationResult

logger = logging.getLogger(__name__)
EVAL_FILE = "eval_results.json"


def summarise(results: list[dict[str, float]]) -> dict[str, dict[str, float]]:
    """Return and log mean and standard deviation of every metric over the seeds."""
    names = results[0]
    means = {name: mean(result[name] for result in results) for name in names}
    deviations = {name: stdev(result[name] for result in results) for name in names}
    for name in names:
        logger.info(f"{name}: {means[name]:.4f} ± {deviations[name]:.4f} over {len(results)} seeds")
    return {"mean": means, "standard_deviation": deviations}


@dataclass
class Report:
    """Results of all splits; names of metrics begin with the split, except those of the first development split."""

    checkpoint: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    baselines: dict[str, float] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    calibration: dict[str, Any] = field(default_factory=dict)

    def add(self, split: str, prefix: str, result: EvaluationResult, baseline: dict[str, float]) -> None:
        """Add the result of a split."""
        self.metrics |= {prefix + name: value for name, value in result.metrics.items()}
        self.baselines |= {prefix + name: value for name, value in baseline.items()}
        self.warnings += [f"{split}: {warning}" for warning in result.warnings]
        self.calibration |= result.calibration

    def keep(self, earlier: Mapping[str, Any]) -> None:
        """Add the content of an earlier eval_results.json about the same checkpoint; later values take precedence."""
        if any(earlier.get(key) != value for key, value in self.checkpoint.items()):
            return
        others = {*self.checkpoint, "baselines", "remarks"}
        self.metrics = {key: earlier[key] for key in earlier if key not in others} | self.metrics
        self.baselines = earlier.get("baselines", {}) | self.baselines
        self.warnings = list(dict.fromkeys([*earlier.get("remarks", []), *self.warnings]))

    def content(self) -> dict[str, Any]:
        """Return the content of eval_results.json, name and step of the checkpoint first."""
        return {**self.checkpoint, **self.metrics, "baselines": self.baselines, "remarks": self.warnings}

    def log(self) -> None:
        """Log metrics, with their baselines, and warnings."""
        for name, value in self.metrics.items():
            baseline = f" (baseline {self.baselines[name]:.4f})" if name in self.baselines else ""
            logger.info(f"{name}: {value:.4f}{baseline}")
        for warning in self.warnings:
            logger.info(warning)
