"""The metrics of classification and regression, by scikit-learn and scipy.

A method gives several figures; the first one is what the best checkpoint is chosen by, the larger the better. Both
libraries are loaded where one of their figures is first asked for: that takes a second, which neither predictions nor
accuracy, known before the first update as the majority class's, need wait for.
"""

from collections.abc import Callable

import numpy as np
import scipy  # which loads its parts at their first use

Metric = Callable[[np.ndarray, np.ndarray, int], float]


def assess(method: str, predictions: np.ndarray, labels: np.ndarray, num_labels: int = 2) -> dict[str, float]:
    """Figures of a method by name, all as shares of 1.

    accuracy: share of equal ids.
    f1: of label 1 where there are two labels; else the plain mean over all labels that occur (macro). And accuracy.
    mcc: Matthews correlation, also of more than two labels; 0 where all predictions or all labels are the same. And
        accuracy.
    spearman_correlation: of ranks, equal values sharing their mean rank; and pearson_correlation. Both are 0 where they
        are not defined: all predictions or all labels are the same, or there are fewer than two rows.

    Args:
        predictions, labels: (rows,) label ids; for spearman_correlation, scores.
        num_labels: how many there are, whether they occur or not.
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
