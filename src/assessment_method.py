"""Metrics of classification and regression, by scikit-learn and scipy.

Both libraries are loaded at first use: that takes a second, which predictions and the majority-class accuracy do not
need.
"""

import numpy as np
import scipy  # loads its submodules at first use

METHODS = {  # metrics of each method, the one that selects the best checkpoint first
    "accuracy": ("accuracy",),
    "f1": ("f1", "accuracy"),
    "mcc": ("mcc", "accuracy"),
    "spearman_correlation": ("spearman_correlation", "pearson_correlation"),
}


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
    return {name: _metric(name, predictions, labels, num_labels) for name in METHODS[method]}


def _metric(name: str, predictions: np.ndarray, labels: np.ndarray, num_labels: int) -> float:
    if name == "accuracy":
        return float(np.mean(predictions == labels))
    if name == "f1":
        from sklearn.metrics import f1_score

        average = "binary" if num_labels == 2 else "macro"
        return float(f1_score(labels, predictions, average=average, zero_division=0))
    if np.ptp(predictions) == 0 or np.ptp(labels) == 0:
        return 0.0
    if name == "mcc":
        from sklearn.metrics import matthews_corrcoef

        return float(matthews_corrcoef(labels, predictions))
    correlate = scipy.stats.spearmanr if name == "spearman_correlation" else scipy.stats.pearsonr
    return float(correlate(predictions.astype(np.float64), labels.astype(np.float64)).statistic)
