"""Results of a fine-tuned model: eval_results.json, and the mean over seeds."""

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
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

    def with_earlier(self, earlier: Mapping[str, Any], splits: Sequence[str], evaluated: Collection[str]) -> "Report":
        """Return the report with other splits' results of an earlier eval_results.json about the same checkpoint.

        Args:
            splits: of the task, the first development split first.
            evaluated: splits of this report, whose earlier results are left out.
        """
        if any(earlier.get(key) != value for key, value in self.checkpoint.items()):
            return self

        def is_kept(key: str) -> bool:
            split = next((split for split in splits[1:] if key.startswith(f"{split}_")), splits[0])
            return key not in {*self.checkpoint, "baselines", "remarks"} and split not in evaluated

        baselines = earlier.get("baselines", {})
        remarks = [remark for remark in earlier.get("remarks", []) if remark.partition(": ")[0] not in evaluated]
        return replace(
            self,
            metrics={key: earlier[key] for key in filter(is_kept, earlier)} | self.metrics,
            baselines={key: baselines[key] for key in filter(is_kept, baselines)} | self.baselines,
            warnings=[*remarks, *self.warnings],
        )

    def content(self) -> dict[str, Any]:
        """Return the content of eval_results.json, the checkpoint first."""
        return {**self.checkpoint, **self.metrics, "baselines": self.baselines, "remarks": self.warnings}

    def log(self) -> None:
        """Log metrics, with their baselines, and warnings."""
        for name, value in self.metrics.items():
            baseline = f" (baseline {self.baselines[name]:.4f})" if name in self.baselines else ""
            logger.info(f"{name}: {value:.4f}{baseline}")
        for warning in self.warnings:
            logger.info(warning)
