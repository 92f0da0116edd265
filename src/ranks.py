"""What the processes of a distributed run tell each other beside gradients."""

import mindspore as ms
import numpy as np
from mindspore import Tensor, ops


def sum_over_ranks(array: np.ndarray, rank_size: int) -> np.ndarray:
    """float32 sum of an array over all ranks; every rank must call it, with the same shape."""
    if rank_size == 1:
        return array
    return ops.AllReduce()(Tensor(array.astype(np.float32), ms.float32)).asnumpy()


def wait_for_all(rank_size: int) -> None:
    """Return when every rank has come here."""
    sum_over_ranks(np.zeros(1, np.float32), rank_size)
