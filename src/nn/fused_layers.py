"""Layers for CPUs in C++ (src/nn/native).

Each cell computes the values and gradients of its counterpart in src/nn/layers.py or src/nn/attention.py in one pass
over memory, where MindSpore's kernels need one for each step of a formula. Inputs are float32 with static shapes;
exported networks use the composed layers instead.
Shape letters: B texts, L tokens, N rows (in an encoder B L), H hidden size, A attention heads, D = H / A, V vocabulary;
C columns of anything.
"""

import functools

import numpy as np
from mindspore import Tensor, nn, ops

from src.nn.native_operations import Tensors, operation


@functools.cache
def _placeholder() -> Tensor:
    """Return a dummy tensor for an absent optional operand."""
    return Tensor(np.zeros(1, np.float32))


def _scalar(value: float) -> Tensor:
    return Tensor(np.array([value], np.float32))


GELUS = {"gelu_new": "bias_gelu", "gelu": "bias_gelu_erf"}  # operations by the activation's name


class BiasGelu(nn.Cell):
    """GELU of x + bias: (N, C), (C) -> (N, C).

    Args:
        name: gelu_new, google's form with tanh, or gelu, the exact one.
    """

    def __init__(self, name: str) -> None:
        super().__init__()
        self.value = operation(GELUS[name], lambda x, _: x)
        self.gradient = operation(f"{GELUS[name]}_gradient", lambda _, x, bias: (x, bias), 2)

    def construct(self, x: Tensor, bias: Tensor) -> Tensor:
        return self.value(x, bias)

    def bprop(self, x: Tensor, bias: Tensor, out: Tensor, dout: Tensor) -> tuple[Tensor, Tensor]:
        return self.gradient(dout, x, bias)


class Normalise(nn.Cell):
    """gamma (x - mean) / sqrt(var + eps) + beta (N, C), beside the normalised x and 1 / sqrt(var + eps) (N, 1)."""

    def __init__(self, epsilon: float) -> None:
        super().__init__()
        self.epsilon = _scalar(epsilon)
        self.value = operation("layer_norm", lambda x, *_: (x, x, [x[0], 1]), 3)
        self.gradient = operation("norm_gradient", lambda dy, gamma, *_: (dy, gamma, gamma, gamma), 4)

    def construct(self, x: Tensor, gamma: Tensor, beta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.value(x, gamma, beta, self.epsilon)

    def bprop(self, x: Tensor, gamma: Tensor, beta: Tensor, out: Tensors, dout: Tensors) -> Tensors:
        gradient, by_gamma, by_beta, _ = self.gradient(dout[0], gamma, out[1], out[2])
        return gradient, by_gamma, by_beta


class AddNormalise(nn.Cell):
    """LayerNorm of dropout(x + bias) + residual: (N, C), (C), (N, C) and gamma, beta (C) -> (N, C).

    Args:
        probability: of the dropout, if there are `factors` of its hashes (Dropout.factors).
    """

    def __init__(self, epsilon: float, probability: float) -> None:
        super().__init__()
        self.plain, self.dropping = _AddNormalise(epsilon), _DropAddNormalise(epsilon, probability)

    def construct(
        self, x: Tensor, bias: Tensor, residual: Tensor, gamma: Tensor, beta: Tensor, factors: Tensors = ()
    ) -> Tensor:
        if factors:
            return self.dropping(x, bias, residual, gamma, beta, *factors)[0]
        return self.plain(x, bias, residual, gamma, beta)[0]


class _AddNormalise(nn.Cell):
    """Normalise of x + bias + residual."""

    def __init__(self, epsilon: float) -> None:
        super().__init__()
        self.epsilon = _scalar(epsilon)
        self.value = operation("add_norm", lambda x, *_: (x, x, [x[0], 1]), 3)
        self.gradient = operation("norm_gradient", lambda dy, gamma, *_: (dy, gamma, gamma, gamma), 4)

    def construct(self, x: Tensor, bias: Tensor, residual: Tensor, gamma: Tensor, beta: Tensor) -> Tensors:
        return self.value(x, bias, residual, gamma, beta, self.epsilon)

    def bprop(
        self, x: Tensor, bias: Tensor, residual: Tensor, gamma: Tensor, beta: Tensor, out: Tensors, dout: Tensors
    ) -> Tensors:
        gradient, by_gamma, by_beta, by_bias = self.gradient(dout[0], gamma, out[1], out[2])
        return gradient, by_bias, gradient, by_gamma, by_beta


class _DropAddNormalise(nn.Cell):
    """Normalise of dropout(x + bias) + residual."""

    def __init__(self, epsilon: float, probability: float) -> None:
        super().__init__()
        self.epsilon, self.probability = _scalar(epsilon), _scalar(probability)
        self.value = operation("drop_add_norm", lambda x, *_: (x, x, [x[0], 1]), 3)
        self.gradient = operation(
            "drop_add_norm_gradient", lambda dy, gamma, *_: (dy, dy, gamma, gamma, gamma), outputs=5
        )

    def construct(
        self, x: Tensor, bias: Tensor, residual: Tensor, gamma: Tensor, beta: Tensor, by_row: Tensor, by_column: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        return self.value(x, bias, residual, gamma, beta, self.epsilon, by_row, by_column, self.probability)

    def bprop(
        self,
        x: Tensor,
        bias: Tensor,
        residual: Tensor,
        gamma: Tensor,
        beta: Tensor,
        by_row: Tensor,
        by_column: Tensor,
        out: Tensors,
        dout: Tensors,
    ) -> Tensors:
        operands = dout[0], gamma, out[1], out[2], by_row, by_column, self.probability
        by_residual, by_x, by_gamma, by_beta, by_bias = self.gradient(*operands)
        constants = ops.zeros_like(by_row), ops.zeros_like(by_column)
        return by_x, by_bias, by_residual, by_gamma, by_beta, *constants


class Attention(nn.Cell):
    """Scaled dot-product attention by heads (Vaswani et al. 2017, section 3.2) that keeps no matrix of scores.

    Args:
        heads: A.
        table: fixed embeddings of relative positions (2 M + 1, D), added to keys and values; None: none.
        probability: of dropout, which needs `factors`.

    Inputs:
        query, key, value: (N, H), without their biases.
        biases: of the three, (H,) each.
        score_mask: of padded texts (B, 1, 1, L) float32, added to the scores; of packed texts (B + 1,) int32, the row
            at which each text begins and the one behind the last text. It has no gradient.
        factors: Dropout.factors for N A rows and L columns, or ().

    Output: (N, H); rows behind the last packed text are 0.
    """

    def __init__(self, heads: int, table: Tensor | None, probability: float) -> None:
        super().__init__()
        self.both = _Attention(heads, probability)
        self.placeholder = _placeholder()
        self.table = self.placeholder if table is None else table

    def construct(
        self, query: Tensor, key: Tensor, value: Tensor, biases: Tensors, score_mask: Tensor, factors: Tensors = ()
    ) -> Tensor:
        if not factors:
            factors = (self.placeholder, self.placeholder)
        return self.both(query, key, value, *biases, score_mask, self.table, *factors)[0]


class _Attention(nn.Cell):
    """Attention beside each query's largest score and inverse sum of exponentials, (N A, 2), for the gradient."""

    def __init__(self, heads: int, probability: float) -> None:
        super().__init__()
        self.settings = Tensor(np.array([heads, probability], np.float32))
        self.value = operation("attention", lambda query, *_: (query, [query[0] * heads, 2]), 2)
        self.gradient = operation("attention_gradient", lambda _, *others: (*others[:6],), 6)

    def construct(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        query_bias: Tensor,
        key_bias: Tensor,
        value_bias: Tensor,
        score_mask: Tensor,
        table: Tensor,
        by_row: Tensor,
        by_column: Tensor,
    ) -> tuple[Tensor, Tensor]:
        operands = query, key, value, query_bias, key_bias, value_bias, score_mask, table, by_row, by_column
        return self.value(*operands, self.settings)

    def bprop(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        query_bias: Tensor,
        key_bias: Tensor,
        value_bias: Tensor,
        score_mask: Tensor,
        table: Tensor,
        by_row: Tensor,
        by_column: Tensor,
        out: tuple[Tensor, Tensor],
        dout: tuple[Tensor, Tensor],
    ) -> Tensors:
        constants = score_mask, table, by_row, by_column
        operands = query, key, value, query_bias, key_bias, value_bias, *constants, self.settings
        return (*self.gradient(dout[0], *operands, out[1]), *[ops.zeros_like(constant) for constant in constants])


class SquareSum(nn.Cell):
    """The sum of the squares of all entries of a tuple of tensors, ()."""

    def __init__(self) -> None:
        super().__init__()
        self.value = operation("square_sum", lambda *_: [1])

    def construct(self, tensors: Tensors) -> Tensor:
        return self.value(*tensors).reshape(())


class ScaleAll(nn.Cell):
    """`count` tensors times a factor (); 0 everywhere if the factor is 0."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.value = operation("scale_all", lambda _, *shapes: shapes, count)

    def construct(self, tensors: Tensors, factor: Tensor) -> Tensors:
        return self.value(factor, *tensors)


class RowFactors(nn.Cell):
    """Row factors of Dropout from integers (N, F) and a key () int32: (N, F)."""

    def __init__(self) -> None:
        super().__init__()
        self.value = operation("row_factors", lambda numbers, _: numbers)

    def construct(self, numbers: Tensor, key: Tensor) -> Tensor:
        return self.value(numbers, key)

    def bprop(self, numbers: Tensor, key: Tensor, out: Tensor, dout: Tensor) -> tuple[Tensor, Tensor]:
        return ops.zeros_like(numbers), ops.zeros_like(key)


class ApplyMask(nn.Cell):
    """Dropout of x (N, C) by the factors of its hashes (Dropout.factors), which have no gradient."""

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability = _scalar(probability)
        self.value = operation("dropout", lambda x, *_: x)

    def construct(self, x: Tensor, by_row: Tensor, by_column: Tensor) -> Tensor:
        return self.value(x, by_row, by_column, self.probability)

    def bprop(self, x: Tensor, by_row: Tensor, by_column: Tensor, out: Tensor, dout: Tensor) -> Tensors:
        gradient = self.value(dout, by_row, by_column, self.probability)
        return gradient, ops.zeros_like(by_row), ops.zeros_like(by_column)


class CrossEntropy(nn.Cell):
    """Cross-entropy in nats and hits: (N, V), (N,) int32 -> (N,) float32 each."""

    def __init__(self) -> None:
        super().__init__()
        self.all = _CrossEntropy()

    def construct(self, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        losses, hits, _ = self.all(logits, labels)
        return losses, hits


class _CrossEntropy(nn.Cell):
    """CrossEntropy beside the logarithms of the sums of exponentials, (N,), which the gradient takes."""

    def __init__(self) -> None:
        super().__init__()
        self.value = operation("cross_entropy", lambda _, labels: (labels, labels, labels), 3)
        self.gradient = operation("cross_entropy_gradient", lambda *operands: operands[1])

    def construct(self, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.value(logits, labels)

    def bprop(self, logits: Tensor, labels: Tensor, out: Tensors, dout: Tensors) -> Tensors:
        return self.gradient(dout[0], logits, labels, out[2]), ops.zeros_like(labels)
