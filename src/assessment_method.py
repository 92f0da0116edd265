"""Metrics of classification and regression, by scikit-learn and scipy.

A method returns several metrics. The best checkpoint is the one with the largest first metric. Both libraries are
loaded at first use: that takes a second, which predictions and the majority-class accuracy do not need.
"""

from collections.abc import Callable

import numpy as np
import scipy  # loads its submodules at first use

Metric = Callable[[np.ndarray, np.ndarray, int], float]


def assess(method: str, predictions: np.ndarray, labels: np.ndarray, num_labels: int = 2) -> dict[str, float]:
    """Return the metrics of a method by name, as fractions of 1.

    accuracy: fraction of correct label ids.
    f1: F1 of label 1 for two labels, otherwise macro-averaged over the labels that occur; and accuracy.
    mcc: Matthews correlation coefficient, 0 if all predictions or all labels are equal; and accuracy.
    spearman_correlation: Spearman's rank correlation, tied values get their mean rank; and pearson_correlation. Both
        are 0 if all predictions or all labels are equal, or there are fewer than two rows.

    Args:
        predictions, labels: (rows,) label ids; for spearman_correlation, float values.
        num_labels: number of labels of the task, including those that do not occur.
    """
    return {name: _METRICS[name](predictions, labels, num_labels) for name in METHODS[method]}


def _accuracy(predictions: np.ndarray, labels: np.ndarray, _: int) -> float:
    return float(np.mean(predictions == labels))


def _f1(predictions: np.ndarray, labels: np.ndarray, num_labels: int) -> float:
    from sklearn.metrics import f1_score

    average = "binary" if num_labels == 2 else "macro"
    return float(f1_score(labels, predictions, average=average, zero_division=0))


def _mcc(predictions: np.ndarray, labels: np.ndarray, _: int) -> float:
    from sklearn.metrics import matthews_corrcoef

    return 0.0 if _is_constant(predictions, labels) else float(matthews_corrcoef(labels, predictions))


def _correlation(predictions: np.ndarray, labels: np.ndarray, name: str) -> float:
    if _is_constant(predictions, labels):
        return 0.0
    correlate = getattr(scipy.stats, name)
    return float(correlate(predictions.astype(np.float64), labels.astype(np.float64)).statistic)


def _is_constant(predictions: np.ndarray, labels: np.ndarray) -> bool:
    return np.ptp(predictions) == 0 or np.ptp(labels) == 0


METHODS = {
    "accuracy": ("accuracy",),
    "f1": ("f1", "accuracy"),
    "mcc": ("mcc", "accuracy"),
    "spearman_correlation": ("spearman_correlation", "pearson_correlation"),
}
_METRICS: dict[str, Metric] = {
    "accuracy": _accuracy,
    "f1": _f1,
    "mcc": _mcc,
    "spearman_correlation": lambda predictions, labels, _: _correlation(predictions, labels, "spearmanr"),
    "pearson_correlation": lambda predictions, labels, _: _correlation(predictions, labels, "pearsonr"),
}
