"""Batches of several data sets, each update's from one that is drawn at random."""

from collections.abc import Iterator, Sequence
from itertools import count

import numpy as np

from src.data.batches import Batch, FeatureDataset

TASK = "task"  # key of a batch: the index of its data set
_STREAM = 1  # tells the generator of draws from those of the data sets' orders


class MixedDataset:
    """Batches of several data sets; those of an update are of one, drawn with probability rows ** alpha.

    An epoch has as many batches as the data sets together, less those that fill no update. The draws follow from seed
    and epoch; a data set is read in its own order, epoch after epoch, as often as it was drawn before.

    Args:
        datasets: with the same number of rows in a batch.
        accumulation_steps: batches of an update.

    Attributes:
        shares: (data sets,) probabilities.
    """

    def __init__(
        self, datasets: Sequence[FeatureDataset], alpha: float, seed: int = 0, accumulation_steps: int = 1
    ) -> None:
        self.datasets = datasets
        self.seed = seed
        self.accumulation_steps = accumulation_steps
        weights = np.array([float(dataset.num_rows) for dataset in datasets]) ** alpha
        self.shares = weights / weights.sum()
        self.rows_at_once = datasets[0].rows_at_once
        batches = sum(dataset.batches_per_epoch for dataset in datasets)
        self.batches_per_epoch = max(1, batches // accumulation_steps) * accumulation_steps
        self._batches_before = [np.zeros(len(datasets), np.int64)]  # (data sets,) before each epoch

    @property
    def most_tokens(self) -> int:
        """Tokens, padding included, in the largest usual batch of this rank."""
        return max(dataset.most_tokens for dataset in self.datasets)

    def tasks(self, epoch: int) -> np.ndarray:
        """Return the data set of each batch of an epoch, (batches,) int64."""
        random = np.random.default_rng([self.seed, epoch, _STREAM])
        updates = self.batches_per_epoch // self.accumulation_steps
        return random.choice(len(self.datasets), updates, p=self.shares).repeat(self.accumulation_steps)

    def batches_before(self, epoch: int) -> np.ndarray:
        """Return the batches of each data set in the epochs before, (data sets,) int64."""
        for earlier in range(len(self._batches_before) - 1, epoch):
            drawn = np.bincount(self.tasks(earlier), minlength=len(self.datasets))
            self._batches_before.append(self._batches_before[-1] + drawn)
        return self._batches_before[epoch]

    def batches(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """Yield the batches of an epoch from index `start` on, with the index of their data set as TASK."""
        tasks = self.tasks(epoch)
        positions = self.batches_before(epoch) + np.bincount(tasks[:start], minlength=len(self.datasets))
        streams = [_batches_from(*pair) for pair in zip(self.datasets, positions.tolist(), strict=True)]
        for task in tasks[start:]:
            yield next(streams[task]) | {TASK: task}

    def width_shares(self) -> list[tuple[int, float]]:
        """Return, for each data set and width in epoch 0, the index of its first batch and its share of the batches."""
        tasks = self.tasks(0)
        widths = np.zeros_like(tasks)
        for index, dataset in enumerate(self.datasets):
            drawn = np.flatnonzero(tasks == index)
            epochs = range(-(-len(drawn) // dataset.batches_per_epoch))
            planned = [np.zeros(0, np.int64), *map(dataset.widths, epochs)]
            widths[drawn] = np.concatenate(planned)[: len(drawn)]
        _, first, counts = np.unique(np.stack((tasks, widths)), axis=1, return_index=True, return_counts=True)
        return [(int(start), float(count / counts.sum())) for start, count in zip(first, counts, strict=True)]


def _batches_from(dataset: FeatureDataset, position: int) -> Iterator[Batch]:
    """Yield, without end, the batches of a data set after `position` of them."""
    epoch, start = divmod(position, dataset.batches_per_epoch)
    yield from dataset.batches(epoch, start)
    for later in count(epoch + 1):
        yield from dataset.batches(later)
