"""Multi-head self-attention (Vaswani et al. 2017, section 3.2), in the form that suits the device.

On CPUs queries, keys and values come from three products, and fused_layers.Attention makes one operation of the rest.
Without a compiler, for exports, in float16 and on GPUs and Ascend it is composed of MindSpore's operations.
Shape letters: B batch, L length, A heads, D size of a head, H = A D, N = B L.
"""

import math

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

from src.albert_config import AlbertConfig
from src.nn import fused_layers, fused_products
from src.nn.dropout import Dropout
from src.nn.layers import AddBias, Softmax, SwapMiddleAxes, compute_dtype, dense_product
from src.nn.native_operations import Tensors, is_fused


def relative_position_table(max_distance: int, head_size: int) -> np.ndarray:
    """Return NEZHA's fixed relative embeddings (Wei et al. 2019, section 3.1), (2 * max_distance + 1, D) float32.

    Row r stands for the distance r - max_distance from query to key: sin(r / 10000^(2k/D)) in even columns, cos in odd
    ones. These are of r, as in NEZHA's own code, not of the distance, as in the paper.
    """
    rows = np.arange(2 * max_distance + 1, dtype=np.float64)[:, None]
    angles = rows / 10000.0 ** (2 * (np.arange(head_size) // 2) / head_size)
    table = np.where(np.arange(head_size) % 2 == 0, np.sin(angles), np.cos(angles))
    return table.astype(np.float32)


def attention_for(config: AlbertConfig, site: int, shared: bool = False) -> nn.Cell:
    """Return the attention cell that suits the device and the compute type; it computes the context (N, H).

    Args:
        site: of the dropout of probabilities.
        shared: several layers have these weights.

    Inputs: x (N, H); what `matrices` makes of the weights (H, H) of queries, keys and values; their biases (H);
    score_mask (B, 1, 1, L), added to scores; dropout_key () int32.
    """
    fused = compute_dtype(config) != ms.float16 and is_fused(config.backend)
    return FusedAttention(config, site, shared) if fused else ComposedAttention(config, site)


class _Attention(nn.Cell):
    """Common base of both forms of attention."""

    def __init__(self, config: AlbertConfig, site: int) -> None:
        super().__init__()
        self.compute_type = compute_dtype(config)
        self.heads = config.num_attention_heads
        self.head_size = config.hidden_size // self.heads
        self.relative = config.use_relative_positions
        self.max_distance = config.max_relative_position
        if self.relative:
            self.relative_table = Tensor(relative_position_table(self.max_distance, self.head_size))
        self.dropout = Dropout(config.attention_probs_dropout_prob, site, config.backend)

    def matrices(self, *weights: Tensor) -> Tensors:
        """Return the matrices that x is multiplied with, from the weights of query, key and value."""
        return weights


class FusedAttention(_Attention):
    """The form of fused_layers, which takes where texts begin in place of score_mask, too (fused_layers.Attention)."""

    def __init__(self, config: AlbertConfig, site: int, shared: bool) -> None:
        super().__init__(config, site)
        table = self.relative_table if self.relative else None
        self.products = fused_products.ThreeProducts(self.compute_type, shared)
        self.attention = fused_layers.Attention(self.heads, table, self.dropout.probability)

    def construct(
        self, x: Tensor, weights: Tensors, biases: Tensors, score_mask: Tensor, dropout_key: Tensor
    ) -> Tensor:
        query, key, value = self.products(x, *weights)
        longest = x.shape[0] if score_mask.ndim == 1 else score_mask.shape[-1]
        factors = self.dropout.factors(x.shape[0] * self.heads, longest, dropout_key)
        return self.attention(query, key, value, biases, score_mask, factors)


class ComposedAttention(_Attention):
    """The form of MindSpore's operations."""

    def __init__(self, config: AlbertConfig, site: int) -> None:
        super().__init__(config, site)
        self.scale = 1.0 / math.sqrt(self.head_size)
        self.on_cpu = config.backend.is_for_cpu
        self.softmax_type = ms.float32 if self.on_cpu else self.compute_type
        self.add_bias = AddBias()
        self.swap = SwapMiddleAxes(config.backend)
        self.softmax = Softmax(config.backend)
        self.product = dense_product(self.compute_type, backend=config.backend)
        self.scores = ops.BatchMatMul(transpose_b=True)
        self.context = ops.BatchMatMul()

    def matrices(self, *weights: Tensor) -> Tensors:
        # A few numbers to scale instead of every query; once for all layers that share them.
        return weights if self.on_cpu else (weights[0] * self.scale, *weights[1:])

    def by_heads(self, x: Tensor, weight: Tensor, bias: Tensor, batch: int) -> Tensor:
        """Return a dense layer of x (N, H) by heads, (B, A, L, D): float32 on CPU, else the compute type."""
        rows = self.product(x, ops.cast(weight, self.compute_type))
        rows = self.add_bias(ops.cast(rows, self.softmax_type), ops.cast(bias, self.softmax_type))
        return self.swap(rows.reshape((batch, -1, self.heads, self.head_size)))

    def project(self, x: Tensor, weights: Tensors, biases: Tensors, batch: int) -> Tensors:
        """Return scaled queries, keys and values of x (N, H), each (B, A, L, D) in the compute type."""
        x = ops.cast(x, self.compute_type)
        query_bias = biases[0] if self.on_cpu else biases[0] * self.scale
        query = self.by_heads(x, weights[0], query_bias, batch)
        if self.on_cpu:
            query = query * self.scale
        key, value = self.by_heads(x, weights[1], biases[1], batch), self.by_heads(x, weights[2], biases[2], batch)
        return ops.cast(query, self.compute_type), ops.cast(key, self.compute_type), ops.cast(value, self.compute_type)

    def relative_embeddings(self, length: int) -> Tensor:
        """Return embeddings of the clipped distances between all pairs of positions, (L, L, D)."""
        position = ops.cast(ops.range(0, length, 1), ms.float32)
        distance = position.reshape((1, -1)) - position.reshape((-1, 1))
        distance = ops.clamp(distance, -self.max_distance, self.max_distance)
        rows = ops.cast(distance + self.max_distance, ms.int32)
        return ops.cast(ops.gather(self.relative_table, rows, 0), self.compute_type)

    def per_query(self, product: ops.Primitive, x: Tensor, table: Tensor) -> Tensor:
        """Multiply each query position's rows of x (B, A, L, *) by its matrix of table (L, *, *): (B, A, L, *)."""
        batch, heads, length, size = x.shape
        rows = self.swap(x.reshape((1, batch * heads, length, size)))
        products = product(rows.reshape((length, batch * heads, size)), table)
        return self.swap(products.expand_dims(0)).reshape((batch, heads, length, -1))

    def construct(
        self, x: Tensor, weights: Tensors, biases: Tensors, score_mask: Tensor, dropout_key: Tensor
    ) -> Tensor:
        batch, _, _, length = score_mask.shape
        query, key, value = self.project(x, weights, biases, batch)
        scores = ops.cast(self.scores(query, key), self.softmax_type)  # B, A, L, L
        if self.relative:
            table = self.relative_embeddings(length)
            scores = scores + ops.cast(self.per_query(self.scores, query, table), self.softmax_type)
        mask = ops.broadcast_to(ops.cast(score_mask, self.softmax_type), scores.shape)  # the same one for all layers
        probabilities = self.softmax(scores + mask)
        flat = self.dropout(probabilities.reshape((-1, length)), dropout_key)
        probabilities = ops.cast(flat.reshape((batch, self.heads, length, length)), self.compute_type)
        context = self.context(probabilities, value)  # B, A, L, D
        if self.relative:
            context = context + self.per_query(self.context, probabilities, table)
        return self.swap(context).reshape((batch * length, self.heads * self.head_size))
