"""Operations whose stock form on CPU is slow or inexact.

Each cell carries its own gradient, which saves the passes over memory that automatic differentiation of the composed
form would make. Reductions inside `bprop` use primitives because the functional forms do not compile there. GPUs and
Ascend have the stock forms, each a kernel of one pass. Which form a cell has follows from its `backend`.
Shape letters: B batch, L length, H hidden size, V vocabulary size, N = B * L rows.
"""

import math

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from model_utils.backend import Backend
from model_utils.errors import DeviceError
from src.albert_config import AlbertConfig
from src.nn import fused_layers, fused_products
from src.nn.native_operations import Tensors, is_fused

_mean_last = ops.ReduceMean(keep_dims=True)
_sum_last = ops.ReduceSum(keep_dims=True)
_sum_all = ops.ReduceSum()
_matmul = ops.MatMul()


def compute_dtype(config: AlbertConfig) -> ms.dtype:
    """Return the type that matrix products multiply in."""
    return {"float16": ms.float16, "bfloat16": ms.bfloat16}.get(config.compute_type, ms.float32)


def operand_dtype(compute_type: ms.dtype) -> ms.dtype:
    """Return the type to cast operands to; products in bfloat16 take float32 and round it."""
    return ms.float32 if compute_type == ms.bfloat16 else compute_type


def sigmoid_tanh(x: Tensor) -> Tensor:
    """Return tanh(x) as 2 sigmoid(2x) - 1, exact to 2e-6; the stock tanh on CPU is off by 1e-4 near |x| = 5."""
    return 2.0 * ops.sigmoid(2.0 * x) - 1.0


class GeluTanh(nn.Cell):
    """google's GELU, 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) = x sigmoid(2 sqrt(2/pi) (x + 0.044715 x^3)).

    Source: Hendrycks and Gimpel 2016, section 2. Any shape, float32.
    """

    def __init__(self) -> None:
        super().__init__()
        self.linear = 2.0 * math.sqrt(2.0 / math.pi)
        self.cubic = 0.044715 * self.linear

    def construct(self, x: Tensor) -> Tensor:
        return x * ops.sigmoid(x * (self.linear + self.cubic * (x * x)))

    def bprop(self, x: Tensor, out: Tensor, dout: Tensor) -> tuple[Tensor]:
        square = x * x
        gate = ops.sigmoid(x * (self.linear + self.cubic * square))
        slope = self.linear + (3.0 * self.cubic) * square
        return (dout * (gate + (out - out * gate) * slope),)


class GeluErf(nn.Cell):
    """The exact GELU, x Phi(x) with the normal distribution function Phi (Hendrycks and Gimpel 2016, section 2)."""

    def __init__(self) -> None:
        super().__init__()
        self.root_half = math.sqrt(0.5)
        self.density = 1.0 / math.sqrt(2.0 * math.pi)

    def construct(self, x: Tensor) -> Tensor:
        return x * (0.5 * (1.0 + ops.erf(x * self.root_half)))

    def bprop(self, x: Tensor, out: Tensor, dout: Tensor) -> tuple[Tensor]:
        distribution = 0.5 * (1.0 + ops.erf(x * self.root_half))
        return (dout * (distribution + x * (self.density * ops.exp(-0.5 * (x * x)))),)


ACTIVATIONS = {"gelu_new": GeluTanh, "gelu": GeluErf, "relu": nn.ReLU}
STOCK_ACTIVATIONS = ACTIVATIONS | {"gelu_new": ops.GeLU}


class Spread(nn.Cell):
    """x, some of whose axes have length 1, broadcast to `shape`.

    On CPU, operations of operands of unlike shapes keep lists of indices, 16 bytes for every entry of the result, as
    long as the graph lives. A copy costs less.
    """

    def __init__(self, backend: Backend = Backend.AUTO) -> None:
        super().__init__()
        self.in_full = backend.is_for_cpu

    def construct(self, x: Tensor, shape: tuple[int, ...]) -> Tensor:
        return ops.broadcast_to(x, shape) if self.in_full else x


class AddBias(nn.Cell):
    """x (N, C) + bias (C) of the same type. The bias's gradient is a product with ones.

    BiasAddGrad takes several times as long on a CPU, and on an H100 ten times as long as the product before the bias.
    """

    def __init__(self) -> None:
        super().__init__()
        self.bias_add = ops.BiasAdd()

    def construct(self, x: Tensor, bias: Tensor) -> Tensor:
        return self.bias_add(x, bias)

    def bprop(self, x: Tensor, bias: Tensor, out: Tensor, dout: Tensor) -> tuple[Tensor, Tensor]:
        return dout, sum_rows(dout)


def sum_rows(x: Tensor) -> Tensor:
    """Return the sum over rows: (N, C) float32 or float16 -> (C)."""
    return _matmul(ops.ones((1, x.shape[0]), x.dtype), x).reshape((-1,))


class _BiasActivation(nn.Cell):
    """The activation of x + bias: (N, C), (C) -> (N, C)."""

    def __init__(self, name: str, backend: Backend) -> None:
        super().__init__()
        self.add_bias = AddBias()
        self.activation = (ACTIVATIONS if backend.is_for_cpu else STOCK_ACTIVATIONS)[name]()

    def construct(self, x: Tensor, bias: Tensor) -> Tensor:
        return self.activation(self.add_bias(x, ops.cast(bias, x.dtype)))


def bias_activation(name: str, backend: Backend = Backend.AUTO) -> nn.Cell:
    """Return a cell that computes activation(x + bias): (N, C), (C) -> (N, C).

    Args:
        name: of ACTIVATIONS.
    """
    if name in fused_layers.GELUS and is_fused(backend):
        return fused_layers.BiasGelu(name)
    return _BiasActivation(name, backend)


class _Normalise(nn.Cell):
    """gamma (x - mean) / sqrt(var + eps) + beta, beside the normalised x and 1 / sqrt(var + eps) (N, 1)."""

    def __init__(self, epsilon: float) -> None:
        super().__init__()
        self.epsilon = epsilon
        self.spread = Spread(Backend.COMPOSED)
        self.bias_add = ops.BiasAdd()

    def construct(self, x: Tensor, gamma: Tensor, beta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        centred = x - self.spread(_mean_last(x, -1), x.shape)
        inverse = ops.pow(_mean_last(centred * centred, -1) + self.epsilon, -0.5)
        normal = centred * self.spread(inverse, x.shape)
        return self.bias_add(normal * self.spread(gamma, x.shape), beta), normal, inverse

    def bprop(self, x: Tensor, gamma: Tensor, beta: Tensor, out: Tensors, dout: Tensors) -> Tensors:
        _, normal, inverse = out
        shape = normal.shape
        by_normal = dout[0] * normal
        gradient = dout[0] * self.spread(gamma, shape)
        projection = self.spread(_mean_last(gradient * normal, -1), shape)
        gradient = gradient - self.spread(_mean_last(gradient, -1), shape) - normal * projection
        return gradient * self.spread(inverse, shape), sum_rows(by_normal), sum_rows(dout[0])


class _ApplyMask(nn.Cell):
    """Inverted dropout of x (N, C): kept are entries whose hash is at least the probability.

    The hash of (i, j) is by_row[i] . by_column[j] / 8 without its integer part. Probability and scale are broadcast to
    the full size first, because operands of unlike shapes are slow on CPUs (see Spread).
    """

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability = probability
        self.keep_scale = 1.0 / (1.0 - probability)
        self.matmul = ops.MatMul(transpose_b=True)

    def construct(self, x: Tensor, by_row: Tensor, by_column: Tensor) -> Tensor:
        hashes = self.matmul(by_row, by_column * 2.0**-3)
        least = ops.broadcast_to(Tensor(self.probability, ms.float32), x.shape)
        scale = ops.broadcast_to(Tensor(self.keep_scale, x.dtype), x.shape)
        kept = ops.select(hashes - ops.floor(hashes) >= least, scale, ops.zeros_like(scale))
        return x * ops.stop_gradient(kept)


def apply_mask(probability: float, backend: Backend = Backend.AUTO) -> nn.Cell:
    """Return a cell that applies the mask of Dropout.factors to x (N, C)."""
    return fused_layers.ApplyMask(probability) if is_fused(backend) else _ApplyMask(probability)


class _AddNormalise(nn.Cell):
    """LayerNorm of dropout(x + bias) + residual: (N, C), (C), (N, C) -> (N, C)."""

    def __init__(self, normalise: nn.Cell | ops.Primitive, probability: float) -> None:
        super().__init__()
        self.add_bias = AddBias()
        self.mask = _ApplyMask(probability)
        self.normalise = normalise

    def construct(
        self, x: Tensor, bias: Tensor, residual: Tensor, gamma: Tensor, beta: Tensor, factors: Tensors = ()
    ) -> Tensor:
        summand = ops.cast(self.add_bias(x, ops.cast(bias, x.dtype)), residual.dtype)
        if factors:
            summand = self.mask(summand, *factors)
        return self.normalise(residual + summand, gamma, beta)[0]


class LayerNorm(nn.Cell):
    """gamma (x - mean) / sqrt(var + eps) + beta over the last axis of (N, C), in float32 (Ba et al. 2016).

    Args:
        probability: of the dropout of summands.
    """

    def __init__(
        self, size: int, epsilon: float = 1e-12, probability: float = 0.0, backend: Backend = Backend.AUTO
    ) -> None:
        super().__init__()
        self.gamma = Parameter(Tensor(np.ones(size, np.float32)), name="gamma")
        self.beta = Parameter(Tensor(np.zeros(size, np.float32)), name="beta")
        if is_fused(backend):
            self.normalise = fused_layers.Normalise(epsilon)
            self.add_normalise = fused_layers.AddNormalise(epsilon, probability)
        else:
            self.normalise = _Normalise(epsilon) if backend.is_for_cpu else ops.LayerNorm(1, 1, epsilon)
            self.add_normalise = _AddNormalise(self.normalise, probability)

    def construct(self, x: Tensor) -> Tensor:
        return self.normalise(x, self.gamma, self.beta)[0]

    def of_sum(self, x: Tensor, bias: Tensor, residual: Tensor, factors: Tensors = ()) -> Tensor:
        """Return LayerNorm(dropout(x + bias) + residual): x, residual (N, C), bias (C); factors: Dropout.factors."""
        return self.add_normalise(x, bias, residual, self.gamma, self.beta, factors)


class Softmax(nn.Cell):
    """Softmax over the last axis, of length L, with the gradient out * (dout - sum(out * dout)).

    On GPUs and Ascend a product with ones (L, L) makes the sums and spreads them, which is faster than to subtract sums
    that are not spread.
    """

    def __init__(self, backend: Backend = Backend.AUTO) -> None:
        super().__init__()
        self.softmax = ops.Softmax(-1)
        self.by_product = not backend.is_for_cpu
        self.spread = Spread(backend)

    def construct(self, x: Tensor) -> Tensor:
        return self.softmax(x)

    def bprop(self, x: Tensor, out: Tensor, dout: Tensor) -> tuple[Tensor]:
        weighted = out * dout
        if self.by_product:
            length = out.shape[-1]
            total = _matmul(weighted.reshape((-1, length)), ops.ones((length, length), out.dtype)).reshape(out.shape)
        else:
            total = self.spread(_sum_last(weighted, -1), out.shape)
        return (out * (dout - total),)


class SwapMiddleAxes(nn.Cell):
    """(P, Q, R, D) -> (P, R, Q, D), any type.

    On CPU a gather of rows of D entries: MindSpore's Transpose kernel there takes three times as long and holds its
    input and output until the whole graph has run.
    """

    def __init__(self, backend: Backend = Backend.AUTO) -> None:
        super().__init__()
        self.by_rows = backend.is_for_cpu

    def swap(self, x: Tensor) -> Tensor:
        if not self.by_rows:
            return x.transpose((0, 2, 1, 3))
        first, second, third, size = x.shape
        rows = ops.range(0, first, 1).reshape((-1, 1, 1)) * (second * third)
        rows = rows + ops.range(0, third, 1).reshape((1, -1, 1))
        rows = rows + ops.range(0, second, 1).reshape((1, 1, -1)) * third
        rows = ops.gather(x.reshape((-1, size)), ops.cast(rows.reshape((-1,)), ms.int32), 0)
        return rows.reshape((first, third, second, size))

    def construct(self, x: Tensor) -> Tensor:
        return self.swap(x)

    def bprop(self, x: Tensor, out: Tensor, dout: Tensor) -> tuple[Tensor]:
        return (self.swap(dout),)


class _SquareSum(nn.Cell):
    """The sum of the squares of all entries of a tuple of tensors, ()."""

    def construct(self, tensors: Tensors) -> Tensor:
        total = 0.0
        for tensor in tensors:
            total = total + _sum_all(tensor * tensor)
        return total


class _ScaleAll(nn.Cell):
    """Each tensor times a factor (); 0 everywhere if that is 0, whatever the tensor."""

    def construct(self, tensors: Tensors, factor: Tensor) -> Tensors:
        scaled = ()
        for tensor in tensors:
            scaled += (ops.masked_fill(tensor * factor, factor == 0.0, 0.0),)
        return scaled


def square_sum(backend: Backend = Backend.AUTO) -> nn.Cell:
    """Return a cell from a tuple of tensors to the sum of the squares of all their entries, ()."""
    return fused_layers.SquareSum() if is_fused(backend) else _SquareSum()


def scale_all(count: int, backend: Backend = Backend.AUTO) -> nn.Cell:
    """Return a cell from a tuple of `count` tensors and a factor () to the tuple of their products.

    A factor of 0 gives 0 everywhere, also for entries that are not finite.
    """
    return fused_layers.ScaleAll(count) if is_fused(backend) else _ScaleAll()


class RowSquareSum(nn.Cell):
    """Identity that measures the squared norm of its gradient.

    The "gradient" of the scalar parameter is sum(dout ** 2). TensorFlow's global norm counts an embedding table by its
    looked-up rows, each occurrence apart; the train step takes this sum in place of the squared norm of the segment
    table's gradient. The parameter stays 0 and is neither trained nor saved.
    """

    parameter_name = "row_square_sum"

    def __init__(self) -> None:
        super().__init__()
        self.row_square_sum = Parameter(Tensor(0.0, ms.float32), name=self.parameter_name, requires_grad=False)
        self.identity = _CountedIdentity()

    def construct(self, x: Tensor) -> Tensor:
        return self.identity(x, self.row_square_sum)


class _CountedIdentity(nn.Cell):
    def construct(self, x: Tensor, counter: Tensor) -> Tensor:
        return x + counter

    def bprop(self, x: Tensor, counter: Tensor, out: Tensor, dout: Tensor) -> tuple[Tensor, Tensor]:
        return dout, _sum_all(dout * dout)


def dense_product(
    compute_type: ms.dtype, shared: bool = False, backend: Backend = Backend.AUTO
) -> nn.Cell | ops.Primitive:
    """Return a cell that computes x W^T: (N, K), (M, K) -> (N, M), both of the operand_dtype.

    Args:
        shared: the graph has several products with this W.

    Raises:
        DeviceError: the type is bfloat16, but there are no layers in C++, or oneDNN does not multiply it here.
    """
    if compute_type != ms.float16 and is_fused(backend):
        return fused_products.Product(compute_type, shared)
    if compute_type == ms.bfloat16:
        raise DeviceError(
            "compute_type is bfloat16, which only the layers in C++ multiply, and they cannot be made here: allowed is "
            "float32"
        )
    return ops.MatMul(transpose_b=True)


class Logits(nn.Cell):
    """x W^T + bias with a weight that belongs to another layer: (N, K), (M, K), (M,) -> (N, M) float32."""

    def __init__(self, compute_type: ms.dtype, backend: Backend = Backend.AUTO) -> None:
        super().__init__()
        self.operand_type = operand_dtype(compute_type)
        self.product = dense_product(compute_type, backend=backend)
        self.add_bias = AddBias()

    def construct(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        product = self.product(ops.cast(x, self.operand_type), ops.cast(weight, self.operand_type))
        return self.add_bias(ops.cast(product, ms.float32), bias)


class DenseWeights(nn.Cell):
    """Weight (out_size, in_size), the fastest form on CPU, and bias (out_size) of a dense layer."""

    def __init__(self, in_size: int, out_size: int, has_bias: bool = True) -> None:
        super().__init__()
        self.weight = Parameter(Tensor(np.zeros((out_size, in_size), np.float32)), name="weight")
        if has_bias:
            self.bias = Parameter(Tensor(np.zeros(out_size, np.float32)), name="bias")


class Dense(DenseWeights):
    """x W^T + b, (N, in_size) -> (N, out_size): the product in `compute_type`, the sum and the result in float32.

    Args:
        shared: several layers of a network are this one.
    """

    def __init__(
        self,
        in_size: int,
        out_size: int,
        compute_type: ms.dtype = ms.float32,
        has_bias: bool = True,
        shared: bool = False,
        backend: Backend = Backend.AUTO,
    ) -> None:
        super().__init__(in_size, out_size, has_bias)
        self.has_bias = has_bias
        self.matmul = dense_product(compute_type, shared, backend)
        self.add_bias = AddBias()
        self.operand_type = operand_dtype(compute_type)
        self.product_type = ms.float32 if backend.is_for_cpu else compute_type

    def product(self, x: Tensor, weight: Tensor) -> Tensor:
        """Return x W^T of a weight W like this one's, without the bias: on CPU in float32, else in the compute type."""
        product = self.matmul(ops.cast(x, self.operand_type), ops.cast(weight, self.operand_type))
        return ops.cast(product, self.product_type)

    def construct(self, x: Tensor) -> Tensor:
        product = ops.cast(self.product(x, self.weight), ms.float32)
        return self.add_bias(product, self.bias) if self.has_bias else product
