"""Task heads on the backbone, without losses, which src/albert_for_finetune.py adds for training.

For inputs and outputs see ScoresNetwork. Heads compute in float32.
Shape letters: B batch, L length, H hidden size, C labels or choices, S starts, E ends of a start, T texts.
"""

from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from src.albert_config import AlbertConfig
from src.albert_for_pre_training import PreTrainingScores
from src.albert_networks import ScoresNetwork, Tensors
from src.data.packing import PACKED_COLUMNS, TEXT_COLUMNS
from src.nn.dropout import Dropout
from src.nn.layers import AddBias, Dense, LayerNorm, Softmax, Spread, dense_product, sigmoid_tanh

MASKED_LOGIT = 1e30  # subtracted from the logits of tokens that cannot be an answer (google's p_mask)
MASKED_STATE = 1e6  # subtracted from states behind a text's end; its square is finite
MIN_SQUARED_NORM = 1e-24  # of a vector that is divided by its norm
DROPOUT_SITE = 1001  # above all sites of the encoder


def gather_positions(sequence: Tensor, positions: Tensor) -> Tensor:
    """Return the states of sequence (B, L, H) at positions (B, P) of each example, as rows (B * P, H)."""
    batch, length, hidden = sequence.shape
    starts = ops.range(0, batch, 1).astype(ms.int32).reshape((-1, 1)) * length
    return ops.gather(sequence.reshape((-1, hidden)), (positions + starts).reshape((-1,)), 0)


class SequenceClassificationScores(ScoresNetwork):
    """Pooled output -> logits (B, C); with C = 1 the output of a regression.

    Args:
        hidden_size: size of a dense layer with tanh before the classifier; 0: none.
    """

    reads_tokens = False

    def __init__(self, config: AlbertConfig, num_labels: int, hidden_size: int = 0) -> None:
        super().__init__(config)
        self.dropout = Dropout(config.classifier_dropout_prob, DROPOUT_SITE, config.backend)
        self.has_hidden = hidden_size > 0
        if self.has_hidden:
            self.classifier_hidden = Dense(config.hidden_size, hidden_size, backend=config.backend)
            self.hidden_dropout = Dropout(config.classifier_dropout_prob, DROPOUT_SITE + 1, config.backend)
        self.classifier = Dense(hidden_size or config.hidden_size, num_labels, backend=config.backend)

    def head(self, sequence: Tensor, pooled: Tensor, dropout_key: Tensor) -> Tensor:
        pooled = self.dropout(pooled, dropout_key)
        if self.has_hidden:
            pooled = self.hidden_dropout(sigmoid_tanh(self.classifier_hidden(pooled)), dropout_key)
        return self.classifier(pooled)


class FillMaskScores(PreTrainingScores):
    """Logits over the vocabulary at the requested positions: mlm_logits (B, P, V)."""

    output_names = ("mlm_logits",)

    def head(self, sequence: Tensor, pooled: Tensor, positions: Tensor, dropout_key: Tensor) -> Tensor:
        return super().head(sequence, pooled, positions, dropout_key)[0]


class EncoderOutputs(ScoresNetwork):
    """The backbone alone: sequence_output (B, L, H) and pooled_output (B, H)."""

    output_names = ("sequence_output", "pooled_output")
    per_token_outputs = ("sequence_output",)

    def head(self, sequence: Tensor, pooled: Tensor, dropout_key: Tensor) -> tuple[Tensor, Tensor]:
        return sequence, pooled


class MultipleChoiceScores(SequenceClassificationScores):
    """Pooled output of every choice, the texts of a row -> logits (B, C)."""

    def __init__(self, config: AlbertConfig, num_choices: int) -> None:
        super().__init__(config, num_labels=1)
        self.texts_per_row = num_choices

    def head(self, sequence: Tensor, pooled: Tensor, dropout_key: Tensor) -> Tensor:
        return super().head(sequence, pooled, dropout_key).reshape((-1, self.texts_per_row))


class PairVectors(ScoresNetwork):
    """L2-normalised embeddings of the two texts of a row, concatenated: vectors (B, 2 * H).

    Args:
        pooling: as in src.tasks.embeddings.EmbeddingsProcessor.
    """

    output_names = ("vectors",)
    texts_per_row = 2

    def __init__(self, config: AlbertConfig, pooling: str) -> None:
        super().__init__(config)
        self.pooling = pooling
        self.reads_tokens = pooling in ("mean", "max")

    def pool(self, outputs: Tensors, texts: Tensors) -> Tensor:
        """Return the pooled states (T, H) of T texts, as the backbone reads them, from its outputs for them."""
        sequence, pooled = outputs
        if self.pooling == "pooler":
            return pooled
        if self.pooling == "cls":
            return sequence[:, 0]
        is_token = ops.not_equal(texts[-1], texts[0].shape[1] - 1) if len(texts) == len(PACKED_COLUMNS) else texts[1]
        mask = ops.cast(is_token, ms.float32).expand_dims(2)  # (T, L, 1)
        if self.pooling == "max":
            return ops.ReduceMax()(sequence - MASKED_STATE * (1.0 - mask), 1)
        return ops.reduce_sum(sequence * mask, 1) / ops.maximum(ops.reduce_sum(mask, 1), 1.0)

    def normalised_embeddings(self, outputs: Tensors, texts: Tensors) -> Tensor:
        """Return L2-normalised embeddings (B, 2, H); arguments as in `pool`."""
        pooled = self.pool(outputs, texts)
        squares = ops.reduce_sum(pooled * pooled, 1).expand_dims(1)
        return (pooled / ops.sqrt(ops.maximum(squares, MIN_SQUARED_NORM))).reshape((-1, 2, pooled.shape[1]))

    def answer(self, texts: Tensors, further: Tensors) -> Tensor:
        vectors = self.normalised_embeddings(self.encode(texts, further), self.backbone_texts(texts))
        return vectors.reshape((vectors.shape[0], -1))


class TokenClassificationScores(ScoresNetwork):
    """Sequence output -> logits (B, L, C)."""

    per_token_outputs = ("logits",)

    def __init__(self, config: AlbertConfig, num_labels: int) -> None:
        super().__init__(config)
        self.hidden_size = config.hidden_size
        self.num_labels = num_labels
        self.dropout = Dropout(config.classifier_dropout_prob, DROPOUT_SITE, config.backend)
        self.classifier = Dense(config.hidden_size, num_labels, backend=config.backend)

    def head(self, sequence: Tensor, pooled: Tensor, dropout_key: Tensor) -> Tensor:
        rows = sequence.reshape((-1, self.hidden_size))
        logits = self.classifier(self.dropout(rows, dropout_key))
        return logits.reshape((pooled.shape[0], -1, self.num_labels))


class CrfScores(TokenClassificationScores):
    """Sequence output -> logits (B, L, C), and the transitions of a conditional random field (B, C + 2, C).

    Row a < C of the transitions is added for each label behind label a, row C for a sentence's first label, the last
    row for its last one. They are an output, the same for every row, so that all exported forms have them.
    """

    output_names = ("logits", "transitions")

    def __init__(self, config: AlbertConfig, num_labels: int) -> None:
        super().__init__(config, num_labels)
        # Named as biases, which begin at 0 and do not decay.
        zeros = np.zeros((num_labels, num_labels), np.float32)
        self.transitions = Parameter(Tensor(zeros), name="crf.transitions.bias")
        self.first = Parameter(Tensor(zeros[0]), name="crf.first.bias")
        self.last = Parameter(Tensor(zeros[0]), name="crf.last.bias")

    def head(self, sequence: Tensor, pooled: Tensor, dropout_key: Tensor) -> tuple[Tensor, Tensor]:
        logits = super().head(sequence, pooled, dropout_key)
        table = ops.concat((self.transitions, self.first.expand_dims(0), self.last.expand_dims(0)))
        return logits, table.expand_dims(0) + ops.zeros_like(logits[:, :1, :1])


class QuestionAnsweringScores(ScoresNetwork):
    """Sequence output -> start_logits, end_logits (B, L): SQuAD v1.1 (Devlin et al. 2019, section 4.2)."""

    output_names = ("start_logits", "end_logits")
    per_token_outputs = output_names

    def __init__(self, config: AlbertConfig) -> None:
        super().__init__(config)
        self.hidden_size = config.hidden_size
        self.qa_outputs = Dense(config.hidden_size, 2, backend=config.backend)

    def head(self, sequence: Tensor, pooled: Tensor, dropout_key: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.qa_outputs(sequence.reshape((-1, self.hidden_size))).reshape((pooled.shape[0], -1, 2))
        return logits[:, :, 0], logits[:, :, 1]


class SpanSearchScores(ScoresNetwork):
    """SQuAD v2.0 by XLNet's head (Yang et al. 2019, as google's ALBERT code uses it): ends depend on starts.

    Further input: p_mask (B, L) int32, 1 at tokens that cannot be an answer.
    Outputs: start_top_log_probs, start_top_index (B, S); end_top_log_probs, end_top_index (B, S * E), end e of start s
    at s * E + e; cls_logits (B,), the larger the likelier there is no answer. Indices are int32.

    Args:
        start_n_top, end_n_top: S and E; rows must have at least as many tokens.
    """

    input_columns = (*TEXT_COLUMNS, "p_mask")
    output_names = ("start_top_log_probs", "start_top_index", "end_top_log_probs", "end_top_index", "cls_logits")

    def __init__(self, config: AlbertConfig, start_n_top: int, end_n_top: int) -> None:
        super().__init__(config)
        hidden = config.hidden_size
        self.hidden_size = hidden
        self.start_n_top = start_n_top
        self.end_n_top = end_n_top
        self.start_logits = Dense(hidden, 1, backend=config.backend)
        self.end_hidden = Dense(2 * hidden, hidden, backend=config.backend)
        self.end_layer_norm = LayerNorm(hidden, backend=config.backend)
        self.end_logits = Dense(hidden, 1, backend=config.backend)
        self.answer_hidden = Dense(2 * hidden, hidden, backend=config.backend)
        self.answer_dropout = Dropout(config.classifier_dropout_prob, DROPOUT_SITE, config.backend)
        self.answer_logits = Dense(hidden, 1, has_bias=False, backend=config.backend)
        self.softmax = Softmax(config.backend)
        self.add_bias = AddBias()
        self.spread = Spread(config.backend)
        self.dense_product = dense_product(ms.float32, backend=config.backend)
        self.batch_product = ops.BatchMatMul()
        self.top = ops.TopK(sorted=True)

    def mask(self, logits: Tensor, p_mask: Tensor) -> Tensor:
        """Return logits with -MASKED_LOGIT at tokens that cannot be an answer; both arguments have the same shape."""
        return logits * (1.0 - p_mask) - MASKED_LOGIT * p_mask

    def starts(self, sequence: Tensor, p_mask: Tensor) -> Tensor:
        """Return masked start logits (B, L) for sequence (B, L, H)."""
        rows = sequence.reshape((-1, self.hidden_size))
        return self.mask(self.start_logits(rows).reshape(p_mask.shape), p_mask)

    def ends(self, sequence: Tensor, start_states: Tensor, p_mask: Tensor) -> Tensor:
        """Return masked end logits (B, K, L) for K starts of each example, whose states are the rows (B * K, H).

        The dense layer on [token, start] is the sum of its parts, so that no (B, K, L, 2H) tensor is made.
        """
        batch, length = p_mask.shape
        starts = start_states.shape[0] // batch
        pair_shape = (batch, starts, length, self.hidden_size)
        weight = self.end_hidden.weight
        rows = sequence.reshape((-1, self.hidden_size))
        token_part = self.add_bias(self.dense_product(rows, weight[:, : self.hidden_size]), self.end_hidden.bias)
        token_part = self.spread(token_part.reshape((batch, 1, length, self.hidden_size)), pair_shape)
        start_part = self.dense_product(start_states, weight[:, self.hidden_size :])
        start_part = self.spread(start_part.reshape((batch, starts, 1, self.hidden_size)), pair_shape)
        rows = self.end_layer_norm(sigmoid_tanh((token_part + start_part).reshape((-1, self.hidden_size))))
        logits = self.end_logits(rows).reshape((batch, starts, length))
        return self.mask(logits, self.spread(p_mask.expand_dims(1), logits.shape))

    def answerable(self, sequence: Tensor, start_logits: Tensor, dropout_key: Tensor) -> Tensor:
        """Return cls_logits (B,) from the first token and the mean token under the start distribution."""
        expected = self.batch_product(self.softmax(start_logits).expand_dims(1), sequence).squeeze(1)
        rows = sigmoid_tanh(self.answer_hidden(ops.concat((expected, sequence[:, 0]), 1)))
        return self.answer_logits(self.answer_dropout(rows, dropout_key)).squeeze(1)

    def head(self, sequence: Tensor, pooled: Tensor, p_mask: Tensor, dropout_key: Tensor) -> tuple[Tensor, ...]:
        p_mask = ops.cast(p_mask, ms.float32)
        start_logits = self.starts(sequence, p_mask)
        start_top_log_probs, start_top_index = self.top(ops.log_softmax(start_logits, -1), self.start_n_top)
        start_states = gather_positions(sequence, start_top_index)
        end_log_probs = ops.log_softmax(self.ends(sequence, start_states, p_mask), -1)
        end_top_log_probs, end_top_index = self.top(end_log_probs, self.end_n_top)
        ends_shape = (-1, self.start_n_top * self.end_n_top)
        cls_logits = self.answerable(sequence, start_logits, dropout_key)
        end_top_log_probs = end_top_log_probs.reshape(ends_shape)
        end_top_index = end_top_index.reshape(ends_shape)
        return start_top_log_probs, start_top_index, end_top_log_probs, end_top_index, cls_logits


class AnsweringNetwork(nn.Cell):
    """Inference network: a ScoresNetwork without dropout and its key, for any batch and length.

    Inputs are the columns of `input_columns`, (B, *) int32; outputs the tensors of `output_names`.

    Args:
        portable: compile once for all shapes, so that a network without native code can be exported; else compile once
            for each shape, which computes faster.
    """

    text_columns: tuple[str, ...] = TEXT_COLUMNS

    def __init__(self, scores: ScoresNetwork, portable: bool = False) -> None:
        super().__init__(auto_prefix=False)
        self.scores = scores
        self.portable = portable
        self.further_columns = scores.input_columns[len(TEXT_COLUMNS) :]
        self.input_columns = (*self.text_columns, *self.further_columns)
        self.reads_tokens = scores.reads_tokens
        self.output_names = scores.output_names
        self.per_token_outputs = scores.per_token_outputs
        self.no_dropout = Tensor(0, ms.int32)
        self.set_train(False)
        if portable:
            self.set_inputs(*self.any_inputs())

    def any_inputs(self) -> list[Tensor]:
        """Return placeholders for batches of any size."""
        return [Tensor(shape=[None, None], dtype=ms.int32) for _ in self.input_columns]

    def construct(self, input_ids: Tensor, input_mask: Tensor, segment_ids: Tensor, further: Tensor = None) -> Any:
        if further is None:
            return self.scores(input_ids, input_mask, segment_ids, self.no_dropout)
        return self.scores(input_ids, input_mask, segment_ids, further, self.no_dropout)


class PackedNetwork(AnsweringNetwork):
    """AnsweringNetwork for packed texts, compiled once for each shape.

    Inputs, int32: the PACKED_COLUMNS and those of `further_columns`, (B, *). The heads see the L tokens of each text in
    `token_indices`, or the rows that they read. T is a multiple of B if a row has several texts, as in multiple choice.
    The scores are a network whose `albert.packs` is true.
    """

    text_columns = PACKED_COLUMNS
    text_inputs = len(PACKED_COLUMNS)

    def construct(self, *inputs: Tensor) -> Any:
        further = (*inputs[self.text_inputs :], self.no_dropout)
        return self.scores.answer(inputs[: self.text_inputs], further)


def packed_where_possible(network: AnsweringNetwork) -> AnsweringNetwork:
    """Return a PackedNetwork of the same scores if the attention supports packed texts, else the network itself.

    The weights must not change afterwards.
    """
    if not network.scores.albert.packs:
        return network
    network.scores.albert.prepack_weights()
    return PackedNetwork(network.scores)
