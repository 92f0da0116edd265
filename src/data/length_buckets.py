"""Widths of batches of rows with different lengths: few, because each is compiled, and with little padding."""

import numpy as np

WIDTH_STEP = 8  # matrix products on a GPU are faster with multiples of 8
MAX_BUCKETS = 8
# Cost of compiling a graph in batches of the longest rows. With a GPU, compiling takes 8 to 12 s, a small batch 20 ms.
COMPILATION = 10
COMPILATION_ON_GPU = 500


def choose_boundaries(lengths: np.ndarray, count: int, step: int = WIDTH_STEP) -> tuple[int, ...]:
    """Return ascending widths of at most `count` buckets that need the fewest padding tokens in all.

    Args:
        lengths: (rows,) tokens of each row, at least one row.
        count: largest number of buckets.
        step: widths are multiples of it, and exceed the longest row by at most `step` - 1.
    """
    widths, row_counts = np.unique(-(-lengths // step) * step, return_counts=True)
    shorter_rows = np.concatenate([[0], np.cumsum(row_counts)])  # entry i: rows that are shorter than widths[i]
    index = np.arange(len(widths))
    # cost[k][i]: padded tokens of the rows up to widths[i] in k + 1 buckets, the last one widths[i] wide.
    cost = [shorter_rows[1:] * widths]
    previous: list[np.ndarray] = []
    for _ in range(min(count, len(widths)) - 1):
        # Entry (i, j): the bucket below the last one is widths[j] wide.
        split = cost[-1][None, :] + (shorter_rows[1:, None] - shorter_rows[None, 1:]) * widths[:, None]
        split = np.where(index[None, :] < index[:, None], split, np.iinfo(np.int64).max)
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
    """Return the boundaries of at most MAX_BUCKETS buckets that cost the least padding and compilation together.

    Args:
        batches: number of batches in all epochs.
        compilation: cost of compiling one width, in batches of the longest rows.
    """
    choices = [choose_boundaries(lengths, count, step) for count in range(1, MAX_BUCKETS + 1)]

    def cost(boundaries: tuple[int, ...]) -> float:
        """Return the cost in tokens, for batches of one row."""
        padded = np.array(boundaries)[np.searchsorted(boundaries, lengths)].mean()
        return batches * padded + compilation * len(boundaries) * choices[0][0]

    return min(choices, key=cost)


def power_of_two(number: int) -> int:
    """Return the smallest power of two that is not below `number`."""
    return 1 << (number - 1).bit_length()


def graded_widths(lengths: np.ndarray, shortest: int, longest: int) -> np.ndarray:
    """Return a width for each row, (rows,), from a fixed series: less than a quarter of it is padding above 32 tokens.

    The series has four widths from each power of two to the next, between `shortest` and `longest`: 8, 16, 24, 32, 40,
    48, 56, 64, 80, ...
    """
    lengths = np.maximum(lengths, shortest)
    steps = np.maximum(WIDTH_STEP, (2 ** np.ceil(np.log2(lengths)).astype(int)) // 8)
    return np.minimum(-(-lengths // steps) * steps, longest)
