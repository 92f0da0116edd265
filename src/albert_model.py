"""ALBERT's backbone: factorised embeddings, the shared encoder and the pooler (Lan et al. 2020).

Shape letters: B batch, L length, E embedding size, H hidden size, A attention heads, D = H / A head size,
N = B * L rows. Inside, activations travel as (N, H) matrices: one matrix product a layer on every device.
Under compute_type float16 the matrix products run in float16 and, on GPUs and Ascend, what lies between two of them:
biases, softmax and GELU. The residual stream, LayerNorm and all parameters stay float32. Under bfloat16 everything here
is float32, and what dense layers multiply is rounded.
"""

from collections.abc import Mapping
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from model_utils.backend import Backend
from src.albert_config import AlbertConfig
from src.data.packing import PACKED_COLUMNS
from src.nn.attention import FusedAttention, attention_for
from src.nn.dropout import Dropout
from src.nn.layers import (
    Dense,
    DenseWeights,
    LayerNorm,
    RowSquareSum,
    Spread,
    bias_activation,
    compute_dtype,
    sigmoid_tanh,
)
from src.nn.native_operations import Tensors

POOLER = "albert.pooler."
MASKED_SCORE = -10000.0  # google's additive mask: exp(-10000) is 0 in float32 and the sum stays finite in float16
LAYER_KEY_STEP = 1000003  # distance between the dropout keys of two layers
MAX_PENDING_GRADIENT_BYTES = 100e6  # of shared layers, about, before a boundary sums them


def initialise_weights(network: nn.Cell, initializer_range: float, seed: int) -> None:
    """Draw every matrix of the network from the normal distribution cut off at two standard deviations.

    LayerNorm scales become 1, biases and LayerNorm offsets 0 (google's create_initializer, BERT appendix A.2).
    initializer_range is the standard deviation before the cut. The draw of a parameter depends on the seed and the
    order of parameters alone, not on MindSpore's generator.
    """
    generator = np.random.default_rng(seed)
    for parameter in network.trainable_params():
        kind = parameter.name.rsplit(".", 1)[-1]
        if kind == "gamma":
            value = np.ones(parameter.shape, np.float32)
        elif kind in ("beta", "bias"):
            value = np.zeros(parameter.shape, np.float32)
        else:
            value = generator.standard_normal(parameter.shape, np.float32)
            while (outside := np.abs(value) > 2.0).any():
                value[outside] = generator.standard_normal(int(outside.sum()), np.float32)
            value *= initializer_range
        ops.assign(parameter, Tensor(value))


def initial_pooler(architecture: AlbertConfig) -> dict[str, np.ndarray]:
    """Return the pooler of a new model, always the same one, for sources of weights that have none."""
    pooler = Dense(architecture.hidden_size, architecture.hidden_size, backend=Backend.COMPOSED)
    initialise_weights(pooler, architecture.initializer_range, seed=0)
    return {POOLER + weight.name: weight.asnumpy() for weight in pooler.trainable_params()}


def has_initial_pooler(architecture: AlbertConfig, weights: Mapping[str, np.ndarray]) -> bool:
    """Return True if the weights have the pooler of initial_pooler, also in half precision: it has learnt nothing."""
    initial = initial_pooler(architecture)
    return all(
        name in weights and np.array_equal(weights[name].astype(np.float16), value.astype(np.float16))
        for name, value in initial.items()
    )


def _table(rows: int, columns: int, name: str) -> Parameter:
    return Parameter(Tensor(np.zeros((rows, columns), np.float32)), name=name)


class Embeddings(nn.Cell):
    """Token, segment and (absolute) position embeddings of size E, LayerNorm, dropout (paper section 3.1).

    positions (N,) int32: those of the tokens; by default each row has 0 to L - 1.
    """

    def __init__(self, config: AlbertConfig) -> None:
        super().__init__()
        size = config.embedding_size
        self.word_embeddings = _table(config.vocab_size, size, "word_embeddings")
        self.token_type_embeddings = _table(config.type_vocab_size, size, "token_type_embeddings")
        self.absolute_positions = not config.use_relative_positions
        if self.absolute_positions:
            self.position_embeddings = _table(config.max_position_embeddings, size, "position_embeddings")
        self.segment_rows = RowSquareSum()
        self.spread = Spread(config.backend)
        self.matmul = ops.MatMul()
        self.layer_norm = LayerNorm(size, config.layer_norm_eps, backend=config.backend)
        self.dropout = Dropout(config.hidden_dropout_prob, site=1, backend=config.backend)
        self.type_vocab_size = config.type_vocab_size
        self.embedding_size = size

    def construct(
        self, input_ids: Tensor, segment_ids: Tensor, dropout_key: Tensor, positions: Tensor = None
    ) -> Tensor:
        batch, length = input_ids.shape
        words = ops.gather(self.word_embeddings, input_ids.reshape((-1,)), 0)  # N, E
        one_hot = ops.cast(ops.one_hot(segment_ids.reshape((-1,)), self.type_vocab_size), ms.float32)
        total = words + self.segment_rows(self.matmul(one_hot, self.token_type_embeddings))
        if self.absolute_positions and positions is not None:
            total = total + ops.gather(self.position_embeddings, positions, 0)
        elif self.absolute_positions:
            shape = (batch, length, self.embedding_size)
            total = total.reshape(shape) + self.spread(self.position_embeddings[:length], shape)
            total = total.reshape((-1, self.embedding_size))
        return self.dropout(self.layer_norm(total), dropout_key)


class Block(nn.Cell):
    """A block of the encoder; subclasses have `output`, `dropout` and `layer_norm`.

    Its weight matrices, `matrices`, come with each call, through _Boundary cells where all layers have the same ones.
    """

    def residual_norm(self, x: Tensor, matrix: Tensor, residual: Tensor, dropout_key: Tensor) -> Tensor:
        """Return LayerNorm(residual + dropout(output(x))): x (N, *), residual (N, H) -> (N, H)."""
        factors = self.dropout.factors(*residual.shape, dropout_key)
        return self.layer_norm.of_sum(self.output.product(x, matrix), self.output.bias, residual, factors)


class SelfAttention(Block):
    """Multi-head self-attention with residual connection and LayerNorm, (N, H) -> (N, H); takes two dropout sites."""

    def __init__(self, config: AlbertConfig, site: int, shared: bool) -> None:
        super().__init__()
        hidden = config.hidden_size
        self.query = DenseWeights(hidden, hidden)
        self.key = DenseWeights(hidden, hidden)
        self.value = DenseWeights(hidden, hidden)
        self.output = Dense(hidden, hidden, compute_dtype(config), shared=shared, backend=config.backend)
        self.layer_norm = LayerNorm(hidden, config.layer_norm_eps, config.hidden_dropout_prob, config.backend)
        self.attention = attention_for(config, site, shared)
        self.dropout = Dropout(config.hidden_dropout_prob, site + 1, config.backend)

    def prepack_weights(self) -> None:
        """Prepack the weights of this block; see AlbertModel.prepack_weights."""
        self.attention.products.prepack_weights(self.query.weight, self.key.weight, self.value.weight)
        self.output.matmul.prepack_weights(self.output.weight)

    def matrices(self) -> Tensors:
        projections = self.attention.matrices(self.query.weight, self.key.weight, self.value.weight)
        return (*projections, self.output.weight)

    def construct(
        self, x: Tensor, matrices: Tensors, score_mask: Tensor, dropout_key: Tensor, rows_read: Tensor = None
    ) -> Tensor:
        """Return (N, H), or of the rows_read (R,) int32 alone (R, H)."""
        biases = self.query.bias, self.key.bias, self.value.bias
        context = self.attention(x, matrices[:-1], biases, score_mask, dropout_key)
        if rows_read is not None:
            context, x = ops.gather(context, rows_read, 0), ops.gather(x, rows_read, 0)
        return self.residual_norm(context, matrices[-1], x, dropout_key)


class FeedForward(Block):
    """Two dense layers around the activation, residual connection and LayerNorm: (N, H) -> (N, H)."""

    def __init__(self, config: AlbertConfig, site: int, shared: bool) -> None:
        super().__init__()
        hidden = config.hidden_size
        compute_type = compute_dtype(config)
        backend = config.backend
        self.intermediate = Dense(hidden, config.intermediate_size, compute_type, shared=shared, backend=backend)
        self.activation = bias_activation(config.hidden_act, backend)
        self.output = Dense(config.intermediate_size, hidden, compute_type, shared=shared, backend=backend)
        self.layer_norm = LayerNorm(hidden, config.layer_norm_eps, config.hidden_dropout_prob, backend)
        self.dropout = Dropout(config.hidden_dropout_prob, site, backend)

    def prepack_weights(self) -> None:
        """Prepack the weights of this block; see AlbertModel.prepack_weights."""
        self.intermediate.matmul.prepack_weights(self.intermediate.weight)
        self.output.matmul.prepack_weights(self.output.weight)

    def matrices(self) -> Tensors:
        return self.intermediate.weight, self.output.weight

    def construct(self, x: Tensor, matrices: Tensors, dropout_key: Tensor) -> Tensor:
        inner = self.activation(self.intermediate.product(x, matrices[0]), self.intermediate.bias)
        return self.residual_norm(inner, matrices[1], x, dropout_key)


class _Boundary(nn.Cell):
    """Identity on x (N, H) and matrices ((M, K), ...) of each block, which all layers share, between two of them.

    In the backward pass, the gradients that later layers give each matrix are summed before earlier layers compute
    theirs. Otherwise the gradients of all layers would be kept until the end: 200 MB a layer of albert_xlarge.
    Boundaries take time to compile, so small layers have few of them (MAX_PENDING_GRADIENT_BYTES).
    """

    def __init__(self) -> None:
        super().__init__()
        self.depend = ops.Depend()

    def construct(self, x: Tensor, matrices: tuple[Tensors, ...]) -> tuple[Any, ...]:
        return x, matrices

    def bprop(
        self, x: Tensor, matrices: tuple[Tensors, ...], out: tuple[Any, ...], dout: tuple[Any, ...]
    ) -> tuple[Any, ...]:
        return self.depend(dout[0], dout[1]), dout[1]


def sharing_plan(config: AlbertConfig) -> list[tuple[int, int]]:
    """Return which parameters each layer uses: (attention set, feed-forward set).

    Layer i belongs to group i * groups // layers; google's code rounds otherwise if groups have unequal sizes.
    share_parameters says what a group shares: all, the attention alone, the feed-forward network alone, or nothing
    (paper section 4.4, table 4).
    """
    plan = []
    for layer in range(config.num_hidden_layers):
        group = layer * config.num_hidden_groups // config.num_hidden_layers
        attention = group if config.share_parameters in ("all", "attention") else layer
        feed_forward = group if config.share_parameters in ("all", "ffn") else layer
        plan.append((attention, feed_forward))
    return plan


class Encoder(nn.Cell):
    """num_hidden_layers layers over few sets of parameters: (N, H) -> (N, H), or of the `rows_read` alone (R, H).

    The layers stand one after the other in the graph: a `while` would compile faster, but its gradient never gives back
    some memory of each call, and a MINDIR with it serves one shape only.
    """

    def __init__(self, config: AlbertConfig) -> None:
        super().__init__()
        self.layers = sharing_plan(config)
        self.inner = config.inner_group_num
        self.projects = config.embedding_projection
        if self.projects:
            self.embedding_hidden_mapping = Dense(
                config.embedding_size, config.hidden_size, compute_dtype(config), backend=config.backend
            )
        attention_sets = 1 + max(attention for attention, _ in self.layers)
        feed_forward_sets = 1 + max(feed_forward for _, feed_forward in self.layers)
        # Sites 2 to 4 belong to the first inner layer, 5 to 7 to the second, and so on.
        self.attentions = nn.CellList(
            [
                SelfAttention(config, 2 + 3 * (i % self.inner), attention_sets < len(self.layers))
                for i in range(attention_sets * self.inner)
            ]
        )
        self.feed_forwards = nn.CellList(
            [
                FeedForward(config, 4 + 3 * (i % self.inner), feed_forward_sets < len(self.layers))
                for i in range(feed_forward_sets * self.inner)
            ]
        )
        # Two sets that both go through boundaries get each other's weights in MindSpore 2.10's gradient.
        self.has_single_attention = attention_sets == 1 and self.inner == 1
        self.has_single_feed_forward = feed_forward_sets == 1 and self.inner == 1
        layer_bytes = 4 * sum(parameter.size for parameter in self.layer_parameters(*self.layers[0]))
        layers_per_boundary = max(1, round(MAX_PENDING_GRADIENT_BYTES / layer_bytes))
        self.has_boundary = [i > 0 and i % layers_per_boundary == 0 for i in range(len(self.layers))]
        self.boundary = _Boundary()

    def matrices(self, attention: int, feed_forward: int) -> tuple[tuple[Tensors, ...], ...]:
        """Return the matrices of the attentions and of the feed-forward networks of a layer with these parameters."""
        of_attentions: tuple[Tensors, ...] = ()
        of_feed_forwards: tuple[Tensors, ...] = ()
        for inner in range(self.inner):
            of_attentions += (self.attentions[attention * self.inner + inner].matrices(),)
            of_feed_forwards += (self.feed_forwards[feed_forward * self.inner + inner].matrices(),)
        return of_attentions, of_feed_forwards

    def layer(
        self,
        attention: int,
        feed_forward: int,
        matrices: tuple[tuple[Tensors, ...], ...],
        x: Tensor,
        score_mask: Tensor,
        key: Tensor,
        rows_read: Tensor = None,
    ) -> Tensor:
        of_attentions, of_feed_forwards = matrices
        for inner in range(self.inner):
            rows = rows_read if inner == self.inner - 1 else None
            x = self.attentions[attention * self.inner + inner](x, of_attentions[inner], score_mask, key, rows)
            x = self.feed_forwards[feed_forward * self.inner + inner](x, of_feed_forwards[inner], key)
        return x

    def layer_parameters(self, attention: int, feed_forward: int) -> list[Parameter]:
        cells = [self.attentions[attention * self.inner + inner] for inner in range(self.inner)]
        cells += [self.feed_forwards[feed_forward * self.inner + inner] for inner in range(self.inner)]
        return [parameter for cell in cells for parameter in cell.trainable_params()]

    def layer_states(self, x: Tensor, score_mask: Tensor, dropout_key: Tensor, rows_read: Tensor = None) -> Tensors:
        """Return the input of the first layer and the output of each."""
        states: Tensors = (x,)
        key = dropout_key
        of_attentions, of_feed_forwards = self.matrices(*self.layers[0])
        for i in range(len(self.layers)):
            layer_matrices = self.matrices(*self.layers[i])
            if not self.has_single_attention:
                of_attentions = layer_matrices[0]
            elif self.has_boundary[i]:
                x, of_attentions = self.boundary(x, of_attentions)
            if not self.has_single_feed_forward:
                of_feed_forwards = layer_matrices[1]
            elif self.has_boundary[i]:
                x, of_feed_forwards = self.boundary(x, of_feed_forwards)
            rows = rows_read if i == len(self.layers) - 1 else None
            x = self.layer(*self.layers[i], (of_attentions, of_feed_forwards), x, score_mask, key, rows)
            states += (x,)
            key = key + LAYER_KEY_STEP
        return states

    def construct(self, x: Tensor, score_mask: Tensor, dropout_key: Tensor, rows_read: Tensor = None) -> Tensor:
        return self.layer_states(x, score_mask, dropout_key, rows_read)[-1]


class AlbertModel(nn.Cell):
    """The backbone.

    Inputs: input_ids, input_mask (1 for tokens, 0 for padding), segment_ids in [0, type_vocab_size), all (B, L) int32;
    dropout_key () int32, used in training only. Outputs, float32: sequence_output (B, L, H); pooled_output (B, H), the
    first token's state through a dense layer and tanh.

    Its parts take `texts`: these three, or the PACKED_COLUMNS, where attention takes them (`packs`).
    """

    def __init__(self, config: AlbertConfig) -> None:
        super().__init__()
        self.hidden_size = config.hidden_size
        self.embeddings = Embeddings(config)
        self.encoder = Encoder(config)
        self.pooler = Dense(config.hidden_size, config.hidden_size, compute_dtype(config), backend=config.backend)

    @property
    def packs(self) -> bool:
        """True if texts can be packed."""
        return isinstance(self.encoder.attentions[0].attention, FusedAttention)

    def prepack_weights(self) -> None:
        """Prepack shared weights once instead of in every pass, if `packs`; they must not change any more."""
        for block in (*self.encoder.attentions, *self.encoder.feed_forwards):
            block.prepack_weights()

    def score_mask(self, texts: Tensors) -> Tensor:
        """Return the additive mask of attention scores, (B, 1, 1, L) float32; for packed texts their `begins`."""
        if len(texts) == len(PACKED_COLUMNS):
            _, _, begins, _, _ = texts
            return begins
        _, input_mask, _ = texts
        batch, length = input_mask.shape
        return ((1.0 - ops.cast(input_mask, ms.float32)) * MASKED_SCORE).reshape((batch, 1, 1, length))

    def first_states(self, texts: Tensors, dropout_key: Tensor) -> Tensor:
        """Return the input of the first layer, (N, H)."""
        if len(texts) == len(PACKED_COLUMNS):
            packed_ids, packed_segments, _, positions, _ = texts
            states = self.embeddings(packed_ids, packed_segments, dropout_key, positions)
        else:
            input_ids, _, segment_ids = texts
            states = self.embeddings(input_ids, segment_ids, dropout_key)
        return self.encoder.embedding_hidden_mapping(states) if self.encoder.projects else states

    def rows_of(self, texts: Tensors, positions: Tensor | None = None) -> Tensor:
        """Return the rows of each text's first token and of its positions (B, P) int32: (B (1 + P),) int32."""
        packed = len(texts) == len(PACKED_COLUMNS)
        if packed:
            first = texts[-1][:, :1]
        else:
            batch, length = texts[0].shape
            first = (ops.range(0, batch, 1).astype(ms.int32) * length).reshape((-1, 1))
        if positions is None:
            return first.reshape((-1,))
        others = ops.gather_elements(texts[-1], 1, positions) if packed else first + positions
        return ops.concat((first, others), 1).reshape((-1,))

    def layer_states(self, texts: Tensors, dropout_key: Tensor) -> Tensors:
        """Return the input of the first layer and the output of each, (N, H)."""
        return self.encoder.layer_states(self.first_states(texts, dropout_key), self.score_mask(texts), dropout_key)

    def outputs(self, states: Tensor, texts: Tensors, all_rows: bool) -> tuple[Tensor, Tensor]:
        """Return sequence and pooled output from the last layer's states of all rows, or of the rows read."""
        text_count = texts[-1].shape[0]  # in either form
        if all_rows and len(texts) == len(PACKED_COLUMNS):
            _, _, _, _, token_indices = texts
            states = ops.gather(states, token_indices.reshape((-1,)), 0)
        sequence = states.reshape((text_count, -1, self.hidden_size))
        return sequence, sigmoid_tanh(self.pooler(sequence[:, 0]))

    def encode(self, texts: Tensors, dropout_key: Tensor, rows_read: Tensor | None = None) -> Tensors:
        """Return the sequence output and the pooled output.

        The last layer computes other rows than rows_read only as far as attention needs them.

        Args:
            rows_read: (R,) int32, equally many of each text, its first token first; the sequence output is then
                (B, R / B, H).
        """
        states = self.encoder(self.first_states(texts, dropout_key), self.score_mask(texts), dropout_key, rows_read)
        return self.outputs(states, texts, rows_read is None)

    def construct(self, input_ids: Tensor, input_mask: Tensor, segment_ids: Tensor, dropout_key: Tensor) -> Tensors:
        return self.encode((input_ids, input_mask, segment_ids), dropout_key)
