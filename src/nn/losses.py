"""Cross-entropy with its own gradient, and which rows are predicted correctly."""

import mindspore as ms
from mindspore import Tensor, nn, ops

from model_utils.backend import Backend
from src.nn import fused_layers, fused_products
from src.nn.layers import Logits, Spread
from src.nn.native_operations import is_fused


class _CrossEntropy(nn.Cell):
    """-log softmax(logits)[label] of each row: (N, V) float32, (N,) int32 -> (N,) float32, in nats."""

    def __init__(self, backend: Backend) -> None:
        super().__init__()
        self.log_softmax = ops.LogSoftmax(-1)
        self.softmax = ops.Softmax(-1)
        self.gather = ops.GatherD()
        self.scatter_add = ops.TensorScatterAdd()
        self.spread = Spread(backend)

    def construct(self, logits: Tensor, labels: Tensor) -> Tensor:
        return -self.gather(self.log_softmax(logits), 1, labels.expand_dims(1)).squeeze(1)

    def bprop(self, logits: Tensor, labels: Tensor, out: Tensor, dout: Tensor) -> tuple[Tensor, Tensor]:
        gradient = self.softmax(logits) * self.spread(dout.expand_dims(1), logits.shape)
        rows = ops.range(0, labels.shape[0], 1).astype(ms.int32)
        gradient = self.scatter_add(gradient, ops.stack((rows, labels), 1), -dout)
        return gradient, ops.zeros_like(labels)


class _LossesAndHits(nn.Cell):
    """Losses and hits: (N, V) float32, (N,) int32 -> (N,) float32 each."""

    def __init__(self, backend: Backend) -> None:
        super().__init__()
        self.losses = _CrossEntropy(backend)
        self.by_argmax = backend.is_for_cpu
        self.largest = ops.ReduceMax()
        self.gather = ops.GatherD()

    def construct(self, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        if self.by_argmax:
            hits = ops.equal(ops.cast(ops.argmax(logits, -1), ms.int32), labels)
        else:  # on an H100, argmax of (1,920, 30,000) takes 11 ms
            hits = ops.equal(self.gather(logits, 1, labels.expand_dims(1)).squeeze(1), self.largest(logits, 1))
        return self.losses(logits, labels), ops.cast(hits, ms.float32)


class _CrossEntropyOfProduct(nn.Cell):
    """The cross-entropy of the logits x W^T + bias."""

    def __init__(self, compute_type: ms.dtype, backend: Backend) -> None:
        super().__init__()
        self.logits = Logits(compute_type, backend)
        self.cross_entropy = cross_entropy(backend)

    def construct(self, x: Tensor, weight: Tensor, bias: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        return self.cross_entropy(self.logits(x, weight, bias), labels)


def divergence(logits: Tensor, teacher_logits: Tensor, temperature: float) -> Tensor:
    """Return the distance of logits (*, C) from a teacher's, (*); TrainingNetwork.teacher_loss defines it."""
    if logits.shape[-1] == 1:
        difference = (logits - teacher_logits).squeeze(-1)
        return difference * difference
    log_probabilities = ops.log_softmax(logits / temperature, -1)
    teacher_log_probabilities = ops.log_softmax(teacher_logits / temperature, -1)
    differences = teacher_log_probabilities - log_probabilities
    return temperature**2 * ops.reduce_sum(ops.exp(teacher_log_probabilities) * differences, -1)


def cross_entropy(backend: Backend = Backend.AUTO) -> nn.Cell:
    """Return a cell from logits (N, V) float32 and labels (N,) int32 to losses and hits, (N,) float32 each.

    A loss is -log softmax(logits)[label] in nats; a hit is 1.0 where the label has the largest logit, else 0.0.
    """
    return fused_layers.CrossEntropy() if is_fused(backend) else _LossesAndHits(backend)


def linear_cross_entropy(compute_type: ms.dtype, backend: Backend = Backend.AUTO) -> nn.Cell:
    """Return a cell from x (N, K), weight (V, K), bias (V,) and labels (N,) int32 to (N,) float32 losses and hits.

    They are those of cross_entropy for the logits x W^T + bias, which the C++ layers make a block at a time.

    Args:
        compute_type: of the product x W^T.

    Raises:
        DeviceError: the type is bfloat16, but there are no layers in C++, or oneDNN does not multiply it here.
    """
    if compute_type != ms.float16 and is_fused(backend):
        return fused_products.LinearCrossEntropy(compute_type)
    return _CrossEntropyOfProduct(compute_type, backend)
