"""Widths for batches of rows of different lengths: few, because each is compiled, and with little padding."""

import numpy as np

WIDTH_STEP = 8  # widths are multiples of this, which matrix products on a GPU like


def choose_boundaries(lengths: np.ndarray, count: int, step: int = WIDTH_STEP) -> tuple[int, ...]:
    """Ascending widths of at most `count` buckets that pad the rows with the fewest tokens in all.

    Args:
        lengths: (rows,) tokens of each row, at least one row.
        count: buckets.
        step: widths are multiples of it, and at most `step` - 1 above the longest row.
    """
    widths, rows = np.unique(-(-lengths // step) * step, return_counts=True)
    before = np.concatenate([[0], np.cumsum(rows)])  # rows that are shorter than widths[i]
    size = np.arange(len(widths))
    # cost[k][i]: tokens of the rows up to widths[i], padded, in k + 1 buckets of which the last is widths[i] wide.
    cost = [before[1:] * widths]
    previous: list[np.ndarray] = []
    for _ in range(min(count, len(widths)) - 1):
        # Entry (i, j): the bucket below the last one is widths[j] wide.
        split = cost[-1][None, :] + (before[1:, None] - before[None, 1:]) * widths[:, None]
        split = np.where(size[None, :] < size[:, None], split, np.iinfo(np.int64).max)
        previous.append(split.argmin(1))
        cost.append(np.minimum(split.min(1), cost[-1]))
    chosen = [len(widths) - 1]
    for k in range(len(previous) - 1, -1, -1):
        if cost[k + 1][chosen[-1]] < cost[k][chosen[-1]]:
            chosen.append(int(previous[k][chosen[-1]]))
    return tuple(int(widths[i]) for i in reversed(chosen))
