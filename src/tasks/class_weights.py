"""Weights of classes in the loss, for data in which some are rare."""

import math
from collections.abc import Sequence

import numpy as np

from model_utils.errors import ConfigError, first_few

BALANCED = "balanced"


def class_weights(configured: Sequence[str], labels: Sequence[str], gold: np.ndarray) -> np.ndarray:
    """Return the weight of each label, (C,) float32; the loss is the mean over rows weighted with them.

    Args:
        configured: the option class_weights.
        gold: (rows,) label ids of the training rows, from which balanced weights follow: rows / (C * rows of the
            class), as in scikit-learn; 0 for a class without rows.

    Raises:
        ConfigError: an entry is not LABEL=WEIGHT, names no label, or its weight is not a number above 0.
    """
    if tuple(configured) == (BALANCED,):
        counts = np.bincount(gold, minlength=len(labels))
        weights_of_present = len(gold) / (len(labels) * np.maximum(counts, 1))
        return np.where(counts, weights_of_present, 0).astype(np.float32)
    weights: dict[str, float] = {}
    for entry in configured:
        label, separator, text = entry.rpartition("=")
        if not separator:
            problem = f"{entry!r} is neither LABEL=WEIGHT nor {BALANCED} alone"
            raise ConfigError(key="class_weights", value=configured, problem=problem)
        if label not in labels or label in weights:
            problem = f"{label!r} is named twice" if label in weights else f"{label!r} is no label"
            hint = f"the labels are {first_few(list(labels), 10)}"
            raise ConfigError(key="class_weights", value=configured, problem=problem, hint=hint)
        try:
            weights[label] = float(text)
        except ValueError:
            weights[label] = math.nan
        if not 0 < weights[label] < math.inf:
            problem = f"the weight in {entry!r} must be a number above 0"
            raise ConfigError(key="class_weights", value=configured, problem=problem)
    return np.array([weights.get(label, 1.0) for label in labels], np.float32)
