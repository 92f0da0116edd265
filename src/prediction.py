"""A network's outputs for all rows of a data set: every row once, whatever the batches and however many ranks."""

from collections.abc import Callable
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn

from dataset import ROW_NUMBERS, FeatureDataset
from src.ranks import ALONE, Ranks

FILL = -1e9  # of per-token outputs behind a row's own width


class OutputTable:
    """Outputs of a network by name, (rows, ...) float32, filled in batch by batch.

    Args:
        network: has output_names and per_token_outputs; those in the latter become (rows, width, ...), filled up with
            FILL behind what is put in.
        rows, width: rows in all, and columns of the widest batch.
    """

    def __init__(self, network: Any, rows: int, width: int) -> None:
        self.network, self.rows, self.width = network, rows, width
        self.values: dict[str, np.ndarray] = {}

    def put(self, rows: np.ndarray, outputs: Any) -> None:
        """Outputs of a batch, of which rows (B,) are the numbers; -1 marks one that only fills up."""
        real = rows >= 0
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        for name, output in zip(self.network.output_names, outputs, strict=True):
            value = output.asnumpy().astype(np.float32)
            per_token = name in self.network.per_token_outputs
            if name not in self.values:
                shape = (self.width, *value.shape[2:]) if per_token else value.shape[1:]
                self.values[name] = np.zeros((self.rows, *shape), np.float32)
            if per_token:
                self.values[name][rows[real], : value.shape[1]] = value[real]
                self.values[name][rows[real], value.shape[1] :] = FILL
            else:
                self.values[name][rows[real]] = value[real]


def predict_rows(
    network: nn.Cell,
    data: FeatureDataset,
    ranks: Ranks = ALONE,
    before_batch: Callable[[], object] = lambda: None,
) -> dict[str, np.ndarray]:
    """Outputs by name, (rows, ...) float32 in the order of the rows.

    Args:
        network: one of src/finetune_eval_model.py: input_columns, output_names, per_token_outputs. Set to evaluation by
            this function.
        data: with Loading(evaluation=True).
        ranks: those that share the rows; each of them gets all outputs.
        before_batch: called before each batch, equally often on every rank.
    """
    network.set_train(False)
    key = Tensor(0, ms.int32)  # dropout is off
    outputs = OutputTable(network, data.num_rows, max(data.boundaries))
    predicted: list[np.ndarray] = []
    for batch in data.batches(0):
        before_batch()
        rows = batch[ROW_NUMBERS]
        predicted.append(rows[rows >= 0])
        outputs.put(rows, network(*(Tensor(batch[name]) for name in network.input_columns), key))
    own = np.concatenate(predicted)
    share = own, {name: value[own] for name, value in outputs.values.items()}
    shares = ranks.gather(share, "the outputs of an evaluation")
    seen = np.bincount(np.concatenate([rows for rows, _ in shares]), minlength=data.num_rows)
    assert (seen == 1).all(), f"{int((seen != 1).sum())} rows were not predicted exactly once"
    for rows, values in shares:
        for name, value in values.items():
            outputs.values[name][rows] = value
    return outputs.values
