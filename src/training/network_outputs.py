"""A network's outputs for all rows of a data set: every row once, whatever the batches and however many ranks."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from mindspore import Tensor

from src.albert_config import AlbertConfig
from src.data.batches import ROW_NUMBERS, FeatureDataset
from src.data.feature_files import Ragged
from src.finetune_eval_model import AnsweringNetwork
from src.training.ranks import ALONE, Ranks

WORKING_MEMORY = 1_000_000_000  # bytes that a forward pass may take beside the weights


def rows_in_memory(architecture: AlbertConfig, width: int, starts: int = 0) -> int:
    """Return how many rows of `width` tokens a network computes at once within WORKING_MEMORY; at least one.

    What is alive at the same time was measured on CPU with composed layers: in the attention five tensors of scores and
    six states, in the feed-forward network four intermediate ones and four states.
    starts: of a SQuAD v2.0 head, which looks at all tokens for each of them.
    """
    hidden = width * architecture.hidden_size
    attention = 5 * architecture.num_attention_heads * width**2 + 6 * hidden
    feed_forward = 4 * width * architecture.intermediate_size + 4 * hidden
    row = 4 * max(attention, feed_forward, 5 * starts * hidden)
    return max(1, WORKING_MEMORY // row)


@dataclass
class OutputTable:
    """Outputs of a network by name, float32, filled in batch by batch.

    values: (rows, ...) arrays; of per-token outputs the tokens of all rows, without padding, as Ragged.
    network: has output_names and per_token_outputs. lengths: (rows,) tokens. ignored: outputs that are not kept.
    """

    network: Any
    lengths: np.ndarray
    ignored: Collection[str] = ()
    values: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._starts = np.cumsum(self.lengths) - self.lengths  # of the rows among all tokens

    def put(self, rows: np.ndarray, outputs: Any) -> None:
        """Store the outputs of a batch of rows (B,); -1 marks a row that only fills the batch."""
        real = rows >= 0
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        for name, output in zip(self.network.output_names, outputs, strict=True):
            if name in self.ignored:
                continue
            value = output.asnumpy()[real].astype(np.float32, copy=False)
            if name in self.network.per_token_outputs:
                lengths = self.lengths[rows[real]]
                value = value[np.arange(value.shape[1]) < lengths[:, None]]
            self.set_rows(name, rows[real], value)

    def set_rows(self, name: str, rows: np.ndarray, value: np.ndarray) -> None:
        """Put (rows, ...) or, of a per-token output, (tokens of these rows, ...) where they belong."""
        per_token = name in self.network.per_token_outputs
        if name not in self.values:
            size = int(self.lengths.sum()) if per_token else len(self.lengths)
            empty = np.zeros((size, *value.shape[1:]), np.float32)
            self.values[name] = Ragged(empty, self.lengths) if per_token else empty
        if per_token:
            self.values[name].values[self.token_indices(rows)] = value
        else:
            self.values[name][rows] = value

    def get_rows(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """Return the values of these rows by name, as `set_rows` takes them."""
        return {
            name: table.values[self.token_indices(rows)] if isinstance(table, Ragged) else table[rows]
            for name, table in self.values.items()
        }

    def token_indices(self, rows: np.ndarray) -> np.ndarray:
        """Return the indices of all tokens of these rows in a per-token output."""
        counts = self.lengths[rows]
        starts_in_result = np.cumsum(counts) - counts
        return np.repeat(self._starts[rows] - starts_in_result, counts) + np.arange(counts.sum())


def predict_rows(
    network: AnsweringNetwork,
    data: FeatureDataset,
    ranks: Ranks = ALONE,
    before_batch: Callable[[], object] = lambda: None,
) -> dict[str, Any]:
    """Return outputs by name in the order of the rows, as OutputTable has them.

    Args:
        data: with Loading(evaluation=True), and packing for a PackedNetwork.
        ranks: those that share the rows; each of them gets all outputs.
        before_batch: called before each batch, equally often on every rank.
    """
    outputs = OutputTable(network, data.records.lengths)
    predicted: list[np.ndarray] = []
    for batch in data.batches(0):
        before_batch()
        rows = batch[ROW_NUMBERS]
        predicted.append(rows[rows >= 0])
        outputs.put(rows, network(*(Tensor(batch[name]) for name in network.input_columns)))
    local_rows = np.concatenate(predicted)
    shares = ranks.gather((local_rows, outputs.get_rows(local_rows)), "the outputs of an evaluation")
    seen = np.bincount(np.concatenate([rows for rows, _ in shares]), minlength=data.num_rows)
    assert (seen == 1).all(), f"{int((seen != 1).sum())} rows were not predicted exactly once"
    for rows, values in shares:
        for name, value in values.items():
            outputs.set_rows(name, rows, value)
    return outputs.values


def rows_where(values: Ragged | np.ndarray, flags: np.ndarray) -> np.ndarray:
    """Return the numbers of the rows of `values` with a true flag; flags has the shape of the array, or of values."""
    first_entries = np.unique(np.nonzero(flags)[0])
    if isinstance(values, Ragged):
        return np.unique(np.searchsorted(np.cumsum(values.counts), first_entries, side="right"))
    return first_entries


def rows_not_finite(outputs: Mapping[str, Any]) -> np.ndarray:
    """Return the sorted numbers of the rows with an infinity or NaN in any output of an OutputTable."""
    numbers = [np.zeros(0, np.int64)]
    for output in outputs.values():
        values = output.values if isinstance(output, Ragged) else output
        numbers.append(rows_where(output, ~np.isfinite(values)))
    return np.unique(np.concatenate(numbers))


def are_finite(outputs: Mapping[str, Any]) -> bool:
    """Return True if no output of an OutputTable holds an infinity or NaN."""
    return not len(rows_not_finite(outputs))
