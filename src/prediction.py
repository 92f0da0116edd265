"""A network's outputs for all rows of a data set: every row once, whatever the batches and however many ranks."""

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn

from dataset import ROW_NUMBERS, FeatureDataset
from src.ranks import sum_over_ranks

FILL = -1e9  # of per-token outputs behind a row's own width


def predict_rows(network: nn.Cell, data: FeatureDataset) -> dict[str, np.ndarray]:
    """Outputs by name, (rows, ...) float32 in the order of the rows.

    Args:
        network: one of src/finetune_eval_model.py: input_columns, output_names, per_token_outputs. Set to evaluation by
            this function.
        data: with Loading(evaluation=True); with several ranks each of them gets all outputs.

    Returns:
        Outputs of the network; those in per_token_outputs are (rows, widest batch, ...), filled up with FILL.
    """
    network.set_train(False)
    key = Tensor(0, ms.int32)  # dropout is off
    outputs: dict[str, np.ndarray] = {}
    seen = np.zeros(data.num_rows, np.float32)
    width = max(data.boundaries)
    for batch in data.batches(0):
        values = network(*(Tensor(batch[name]) for name in network.input_columns), key)
        rows = batch[ROW_NUMBERS]
        real = rows >= 0
        seen[rows[real]] += 1
        for name, value in zip(network.output_names, values if isinstance(values, tuple) else (values,), strict=True):
            value = value.asnumpy().astype(np.float32)
            per_token = name in network.per_token_outputs
            if name not in outputs:
                shape = (width, *value.shape[2:]) if per_token else value.shape[1:]
                outputs[name] = np.zeros((data.num_rows, *shape), np.float32)
            if per_token:
                outputs[name][rows[real], : value.shape[1]] = value[real]
                outputs[name][rows[real], value.shape[1] :] = FILL
            else:
                outputs[name][rows[real]] = value[real]
    size = data.loading.rank_size
    seen = sum_over_ranks(seen, size)
    assert (seen == 1).all(), f"{int((seen != 1).sum())} rows were not predicted exactly once"
    return {name: sum_over_ranks(value, size) for name, value in outputs.items()}
