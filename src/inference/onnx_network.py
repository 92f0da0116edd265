"""Networks of src/finetune_eval_model.py as ONNX graphs, for any batch and length.

Weights have their names in checkpoints; matrices are transposed, and what layers share is stored once.
Shape letters: B batch, L length, H hidden size, A attention heads, D = H / A head size, S starts, E ends of a start.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np

from model_utils.errors import DataError
from src.albert_model import MASKED_SCORE, sharing_plan
from src.albert_networks import ScoresNetwork
from src.finetune_eval_model import (
    MASKED_LOGIT,
    CrfScores,
    EncoderOutputs,
    FillMaskScores,
    MultipleChoiceScores,
    QuestionAnsweringScores,
    SequenceClassificationScores,
    SpanSearchScores,
    TokenClassificationScores,
)
from src.inference.onnx_graph import BOOL, FLOAT, INT32, INT64, OnnxGraph
from src.nn.attention import relative_position_table

BATCH, LENGTH, MASKS = "batch", "length", "masks"
ACTIVATIONS: dict[str, tuple[str, dict[str, str]]] = {
    "gelu_new": ("Gelu", {"approximate": "tanh"}),
    "gelu": ("Gelu", {}),
    "relu": ("Relu", {}),
}
HEAD_EPSILON = 1e-12  # default of src.nn.layers.LayerNorm
# Prefixes of weights that some networks have without using them.
OPTIONAL_WEIGHTS = ("albert.pooler.", "albert.embeddings.segment_rows.", "sop.")


def quantise_rows(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return a matrix (M, K) as int8 from -127 to 127, and the float32 scales (M,) to multiply its rows with."""
    largest = np.abs(values).max(1)
    scales = np.where(largest > 0, largest / 127, 1).astype(np.float32)
    return np.rint(values / scales[:, None]).astype(np.int8), scales


class NetworkGraph(OnnxGraph):
    """ONNX graph with the layers of a network of scores; int8: dense layers and word embeddings have int8 weights."""

    def __init__(self, scores: ScoresNetwork, int8: bool = False) -> None:
        super().__init__(type(scores).__name__)
        self.config = scores.config
        self.int8 = int8
        self.weights = {parameter.name: parameter.asnumpy() for parameter in scores.get_parameters()}
        self.unused = {name for name in self.weights if not name.startswith(OPTIONAL_WEIGHTS)}

    def weight(self, name: str) -> str:
        """Return the name of a weight; of a dense layer's (M, K), stored as (K, M)."""
        self.unused.discard(name)
        values = self.weights[name]
        return self.initializer(name, values.T if name.endswith(".weight") else values)

    def dense(self, name: str, x: str) -> str:
        """Return x W^T + b: (*, K) -> (*, M)."""
        weight = f"{name}.weight"
        product = self.int8_product(weight, x) if self.int8 else self.node("MatMul", x, self.weight(weight))
        return self.node("Add", product, self.weight(f"{name}.bias"))

    def int8_weight(self, name: str, transposed: bool) -> tuple[str, str]:
        """Return the names of a matrix (M, K) as int8, stored as (K, M) if transposed, and of its scales (M,)."""
        self.unused.discard(name)
        values, scales = quantise_rows(self.weights[name])
        matrix = self.initializer(f"{name}.int8", values.T if transposed else values)
        return matrix, self.initializer(f"{name}.scale", scales)

    def int8_product(self, name: str, x: str) -> str:
        """Return x W^T with W as int8 and x as uint8: (*, K) -> (*, M); the range of x is that of the whole batch."""
        matrix, scales = self.int8_weight(name, transposed=True)
        values, scale, zero_point = self.nodes("DynamicQuantizeLinear", 3, x)
        product = self.node("Cast", self.node("MatMulInteger", values, matrix, zero_point), to=FLOAT)
        return self.node("Mul", product, self.node("Mul", scale, scales))

    def word_embeddings(self, ids: str) -> str:
        """Return the embeddings of tokens (B, L) int32, (B, L, E)."""
        name = "albert.embeddings.word_embeddings"
        if not self.int8:
            return self.node("Gather", self.weight(name), ids)
        matrix, scales = self.int8_weight(name, transposed=False)
        values = self.node("Cast", self.node("Gather", matrix, ids), to=FLOAT)
        return self.node("Mul", values, self.node("Unsqueeze", self.node("Gather", scales, ids), self.constant([2])))

    def activation(self, x: str) -> str:
        operator, attributes = ACTIVATIONS[self.config.hidden_act]
        return self.node(operator, x, **attributes)

    def layer_norm(self, name: str, x: str, epsilon: float) -> str:
        scale, offset = self.weight(f"{name}.gamma"), self.weight(f"{name}.beta")
        return self.node("LayerNormalization", x, scale, offset, axis=-1, epsilon=epsilon)

    def at_positions(self, sequence: str, positions: str) -> str:
        """Return the states (B, P, H) of a sequence (B, L, H) at positions (B, P) int64."""
        indices = self.node("Unsqueeze", positions, self.constant([2]))
        return self.node("GatherND", sequence, indices, batch_dims=1)

    def embeddings(self, ids: str, segments: str) -> str:
        """Return the input of the first layer, (B, L, H)."""
        name = "albert.embeddings"
        words = self.word_embeddings(ids)
        total = self.node("Add", words, self.node("Gather", self.weight(f"{name}.token_type_embeddings"), segments))
        if not self.config.use_relative_positions:
            table = self.weight(f"{name}.position_embeddings")
            positions = self.node("Slice", table, self.constant([0]), self.node("Shape", ids, start=1, end=2))
            total = self.node("Add", total, positions)
        states = self.layer_norm(f"{name}.layer_norm", total, self.config.layer_norm_eps)
        if self.config.embedding_projection:
            states = self.dense("albert.encoder.embedding_hidden_mapping", states)
        return states

    def relative_embeddings(self, ids: str) -> str:
        """Return embeddings of the clipped distances between all pairs of positions, (L, L, D)."""
        farthest = self.config.max_relative_position
        table = relative_position_table(farthest, self.config.hidden_size // self.config.num_attention_heads)
        length = self.node("Squeeze", self.node("Shape", ids, start=1, end=2))
        positions = self.node("Range", self.constant(0), length, self.constant(1))
        column = self.node("Unsqueeze", positions, self.constant([1]))
        distances = self.node("Clip", self.node("Sub", positions, column), *map(self.constant, (-farthest, farthest)))
        rows = self.node("Add", distances, self.constant(farthest))
        return self.node("Gather", self.initializer("relative_positions", table), rows)

    def score_mask(self, mask: str) -> str:
        """Return what is added to attention scores, (B, 1, 1, L)."""
        is_token = self.node("Cast", self.node("Unsqueeze", mask, self.constant([1, 2])), to=BOOL)
        return self.node("Where", is_token, *(self.constant(score, np.float32) for score in (0, MASKED_SCORE)))

    def by_heads(self, name: str, x: str, order: list[int]) -> str:
        """Return a dense layer of x (B, L, H) by heads, (B, L, A, D) with its axes in this order."""
        heads = self.config.num_attention_heads
        shape = self.constant([0, 0, heads, self.config.hidden_size // heads])
        return self.node("Transpose", self.node("Reshape", self.dense(name, x), shape), perm=order)

    def attention(self, name: str, x: str, score_mask: str, relative: str) -> str:
        """Return the context (B, L, H) of x (B, L, H)."""
        query = self.by_heads(f"{name}.query", x, [0, 2, 1, 3])
        key = self.by_heads(f"{name}.key", x, [0, 2, 3, 1])
        value = self.by_heads(f"{name}.value", x, [0, 2, 1, 3])
        scores = self.node("MatMul", query, key)
        if relative:
            scores = self.node("Add", scores, self.node("Einsum", query, relative, equation="bald,lmd->balm"))
        root = math.sqrt(self.config.hidden_size // self.config.num_attention_heads)
        scaled = self.node("Div", scores, self.constant(root, np.float32))
        probabilities = self.node("Softmax", self.node("Add", scaled, score_mask), axis=-1)
        context = self.node("MatMul", probabilities, value)
        if relative:
            summand = self.node("Einsum", probabilities, relative, equation="balm,lmd->bald")
            context = self.node("Add", context, summand)
        context = self.node("Transpose", context, perm=[0, 2, 1, 3])
        return self.node("Reshape", context, self.constant([0, 0, self.config.hidden_size]))

    def residual_norm(self, name: str, x: str, residual: str) -> str:
        """Return LayerNorm(residual + dense(x)), as the blocks of the encoder end."""
        total = self.node("Add", self.dense(f"{name}.output", x), residual)
        return self.layer_norm(f"{name}.layer_norm", total, self.config.layer_norm_eps)

    def encode(self, texts: Sequence[str], select_rows: Callable[[str], str] | None = None) -> str:
        """Return the last layer's states, (B, L, H).

        Args:
            texts: input_ids, input_mask and segment_ids, (B, L).
            select_rows: returns the states (B, R, H) that the head reads, of a sequence (B, L, H). The last layer's
                output and feed-forward network are computed for these only.
        """
        ids, mask, segments = texts
        states = self.embeddings(ids, segments)
        score_mask = self.score_mask(mask)
        relative = self.relative_embeddings(ids) if self.config.use_relative_positions else ""
        blocks = [
            (attention * self.config.inner_group_num + inner, feed_forward * self.config.inner_group_num + inner)
            for attention, feed_forward in sharing_plan(self.config)
            for inner in range(self.config.inner_group_num)
        ]
        for index, (attention, feed_forward) in enumerate(blocks):
            name = f"albert.encoder.attentions.{attention}"
            context = self.attention(name, states, score_mask, relative)
            if select_rows and index == len(blocks) - 1:
                context, states = select_rows(context), select_rows(states)
            states = self.residual_norm(name, context, states)
            name = f"albert.encoder.feed_forwards.{feed_forward}"
            inner_states = self.activation(self.dense(f"{name}.intermediate", states))
            states = self.residual_norm(name, inner_states, states)
        return states

    def pooled(self, sequence: str) -> str:
        """Return the pooled output (B, H) of states (B, *, H), the first token's first."""
        return self.node("Tanh", self.dense("albert.pooler", self.node("Gather", sequence, self.constant(0), axis=1)))


Outputs = Sequence[tuple[str, tuple[str | int, ...]]]  # values, and their axes after the batch


def _pooled(graph: NetworkGraph, texts: Sequence[str]) -> str:
    """Return the pooled output (B, H) where nothing else is read; the last layer then computes first tokens alone."""
    begin, end, axis = (graph.constant([number]) for number in (0, 1, 1))
    return graph.pooled(graph.encode(texts, lambda states: graph.node("Slice", states, begin, end, axis)))


def _classification(graph: NetworkGraph, scores: SequenceClassificationScores, *texts: str) -> Outputs:
    """Return the logits of rows; in exported networks each choice of a question is one."""
    pooled = _pooled(graph, texts)
    if "classifier_hidden.weight" in graph.weights:
        pooled = graph.node("Tanh", graph.dense("classifier_hidden", pooled))
    return [(graph.dense("classifier", pooled), scores.classifier.bias.shape)]


def _token_classification(graph: NetworkGraph, scores: TokenClassificationScores, *texts: str) -> Outputs:
    return [(graph.dense("classifier", graph.encode(texts)), (LENGTH, scores.num_labels))]


def _crf(graph: NetworkGraph, scores: CrfScores, *texts: str) -> Outputs:
    ends = [graph.node("Unsqueeze", graph.weight(f"crf.{end}.bias"), graph.constant([0])) for end in ("first", "last")]
    table = graph.node("Concat", graph.weight("crf.transitions.bias"), *ends, axis=0)
    shape = (scores.num_labels + 2, scores.num_labels)
    batch_shape = graph.node("Concat", graph.node("Shape", texts[0], start=0, end=1), graph.constant(shape), axis=0)
    return [*_token_classification(graph, scores, *texts), (graph.node("Expand", table, batch_shape), shape)]


def _question_answering(graph: NetworkGraph, scores: QuestionAnsweringScores, *texts: str) -> Outputs:
    logits = graph.dense("qa_outputs", graph.encode(texts))
    return [(graph.node("Gather", logits, graph.constant(index), axis=2), (LENGTH,)) for index in range(2)]


def _encoder_outputs(graph: NetworkGraph, scores: EncoderOutputs, *texts: str) -> Outputs:
    sequence = graph.encode(texts)
    hidden = scores.config.hidden_size
    return [(sequence, (LENGTH, hidden)), (graph.pooled(sequence), (hidden,))]


def _fill_mask(graph: NetworkGraph, scores: FillMaskScores, *inputs: str) -> Outputs:
    *texts, positions = inputs
    indices = graph.node("Cast", positions, to=INT64)
    states = graph.encode(texts, lambda states: graph.at_positions(states, indices))
    states = graph.activation(graph.dense("mlm.dense", states))
    states = graph.layer_norm("mlm.layer_norm", states, scores.config.layer_norm_eps)
    tokens = graph.node("Transpose", graph.weight("albert.embeddings.word_embeddings"), perm=[1, 0])
    logits = graph.node("Add", graph.node("MatMul", states, tokens), graph.weight("mlm.bias"))
    return [(logits, (MASKS, scores.config.vocab_size))]


def _span_search(graph: NetworkGraph, scores: SpanSearchScores, *inputs: str) -> Outputs:
    *texts, p_mask = inputs
    sequence = graph.encode(texts)
    forbidden = graph.node("Cast", p_mask, to=BOOL)
    lowest = graph.constant(-MASKED_LOGIT, np.float32)

    def top(logits: str, count: int) -> list[str]:
        return graph.nodes("TopK", 2, graph.node("LogSoftmax", logits, axis=-1), graph.constant([count]))

    start_logits = graph.node("Squeeze", graph.dense("start_logits", sequence), graph.constant([2]))
    start_logits = graph.node("Where", forbidden, lowest, start_logits)  # B, L
    start_log_probs, starts = top(start_logits, scores.start_n_top)
    axis = graph.constant([1])
    end_logits = _end_logits(graph, sequence, graph.at_positions(sequence, starts))
    end_logits = graph.node("Where", graph.node("Unsqueeze", forbidden, axis), lowest, end_logits)  # B, S, L
    ends_shape = graph.constant([0, scores.start_n_top * scores.end_n_top])
    end_log_probs, ends = (graph.node("Reshape", x, ends_shape) for x in top(end_logits, scores.end_n_top))

    distribution = graph.node("Unsqueeze", graph.node("Softmax", start_logits, axis=-1), axis)
    expected = graph.node("Squeeze", graph.node("MatMul", distribution, sequence), axis)
    first = graph.node("Gather", sequence, graph.constant(0), axis=1)
    pair = graph.node("Concat", expected, first, axis=1)
    hidden = graph.node("Tanh", graph.dense("answer_hidden", pair))
    cls_logits = graph.node("MatMul", hidden, graph.weight("answer_logits.weight"))
    start_indices, end_indices = (graph.node("Cast", indices, to=INT32) for indices in (starts, ends))
    values = start_log_probs, start_indices, end_log_probs, end_indices, graph.node("Squeeze", cls_logits, axis)
    start_axes, end_axes = (scores.start_n_top,), (scores.start_n_top * scores.end_n_top,)
    return list(zip(values, (start_axes, start_axes, end_axes, end_axes, ()), strict=True))


def _end_logits(graph: NetworkGraph, sequence: str, start_states: str) -> str:
    """Return end logits (B, S, L) of tokens (B, L, H) for the states of starts (B, S, H)."""
    # The dense layer on [token, start] is the sum of its parts, so that no (B, S, L, 2H) tensor is made.
    halves = graph.nodes("Split", 2, graph.weight("end_hidden.weight"), axis=0, num_outputs=2)
    tokens = graph.node("Add", graph.node("MatMul", sequence, halves[0]), graph.weight("end_hidden.bias"))
    starts = graph.node("MatMul", start_states, halves[1])
    tokens = graph.node("Unsqueeze", tokens, graph.constant([1]))
    starts = graph.node("Unsqueeze", starts, graph.constant([2]))
    hidden = graph.node("Tanh", graph.node("Add", tokens, starts))  # B, S, L, H
    hidden = graph.layer_norm("end_layer_norm", hidden, HEAD_EPSILON)
    return graph.node("Squeeze", graph.dense("end_logits", hidden), graph.constant([3]))


ONNX_HEADS: dict[type, Callable[..., Outputs]] = {
    CrfScores: _crf,
    EncoderOutputs: _encoder_outputs,
    FillMaskScores: _fill_mask,
    MultipleChoiceScores: _classification,
    QuestionAnsweringScores: _question_answering,
    SequenceClassificationScores: _classification,
    SpanSearchScores: _span_search,
    TokenClassificationScores: _token_classification,
}


def write_network(scores: ScoresNetwork, int8: bool = False) -> bytes:
    """Return the ONNX file of a network of scores: inputs and outputs are its columns and output names.

    Raises:
        DataError: the network has a head, an activation or weights that cannot be written, or onnx is not installed.
    """
    if type(scores) not in ONNX_HEADS or scores.config.hidden_act not in ACTIVATIONS:
        network = f"{type(scores).__name__} with hidden_act {scores.config.hidden_act}"
        raise DataError(f"a network of {network} cannot be written as ONNX: use file_format MINDIR")
    graph = NetworkGraph(scores, int8)
    inputs = [
        graph.input(name, (BATCH, MASKS if name == "masked_lm_positions" else LENGTH)) for name in scores.input_columns
    ]
    outputs = ONNX_HEADS[type(scores)](graph, scores, *inputs)
    if graph.unused:
        raise DataError(f"the weight {min(graph.unused)} cannot be written as ONNX: use file_format MINDIR")
    for name, (value, axes) in zip(scores.output_names, outputs, strict=True):
        graph.output(name, value, (BATCH, *axes), INT32 if name.endswith("_index") else FLOAT)
    return graph.serialize()
