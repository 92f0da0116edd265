"""Widths for batches of rows of different lengths: few, because each is compiled, and with little padding."""

import numpy as np

WIDTH_STEP = 8  # widths are multiples of this, which matrix products on a GPU like
MOST = 8  # buckets
# Batches of the longest rows that could be computed while a graph is compiled, by and large: with a GPU 8 to 12 s, and
# the host takes some 20 ms for a small batch.
COMPILATION, COMPILATION_ON_GPU = 10, 500


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


def paying_boundaries(
    lengths: np.ndarray, batches: float, step: int = WIDTH_STEP, compilation: float = COMPILATION
) -> tuple[int, ...]:
    """choose_boundaries with as many buckets, MOST at most, as save more padding than they cost to compile.

    Args:
        batches: that the rows will make in all, in all passes through them.
        compilation: of one width, in batches of the longest rows.
    """
    choices = [choose_boundaries(lengths, count, step) for count in range(1, MOST + 1)]

    def cost(boundaries: tuple[int, ...]) -> float:
        """In tokens, a row a batch."""
        padded = np.array(boundaries)[np.searchsorted(boundaries, lengths)].mean()
        return batches * padded + compilation * len(boundaries) * choices[0][0]

    return min(choices, key=cost)


def power_of_two(number: int) -> int:
    """The least that is not less."""
    return 1 << (number - 1).bit_length()


def graded_widths(lengths: np.ndarray, shortest: int, longest: int) -> np.ndarray:
    """Widths for rows (rows,) that fit each of them with less than a quarter of padding above 32 tokens.

    Between `shortest` and `longest` there are four of them from a power of two to the next, whatever the rows are: 8,
    16, 24, 32, 40, 48, 56, 64, 80, ...
    """
    lengths = np.maximum(lengths, shortest)
    steps = np.maximum(WIDTH_STEP, 2 ** np.ceil(np.log2(lengths)).astype(int) // 8)
    return np.minimum(-(-lengths // steps) * steps, longest)
