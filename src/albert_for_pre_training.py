"""The pre-training heads: masked tokens and sentence order (Lan et al. 2020, section 3.1).

Every loss here is a plain weighted sum. The loop normalises the weights once per update over all micro-batches
(src/training/train_step.py), so that micro-batches add up to one large batch exactly.
Shape letters: B batch, L length, P predictions per sequence, H hidden size, E embedding size, V vocabulary size.
"""

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from src.albert_config import AlbertConfig
from src.albert_networks import ScoresNetwork, TrainingNetwork
from src.data.packing import TEXT_COLUMNS
from src.nn.layers import Dense, LayerNorm, Logits, bias_activation, compute_dtype
from src.nn.losses import cross_entropy, linear_cross_entropy


class MaskedTokenHead(nn.Cell):
    """Scores over the vocabulary for the rows given: (M, H) -> (M, V) float32; the output matrix is the embeddings'."""

    def __init__(self, config: AlbertConfig) -> None:
        super().__init__()
        compute_type = compute_dtype(config)
        self.dense = Dense(config.hidden_size, config.embedding_size, compute_type, backend=config.backend)
        self.activation = bias_activation(config.hidden_act, config.backend)
        self.layer_norm = LayerNorm(config.embedding_size, config.layer_norm_eps, backend=config.backend)
        self.bias = Parameter(Tensor(np.zeros(config.vocab_size, np.float32)), name="bias")
        self.logits = Logits(compute_type, config.backend)
        self.linear_cross_entropy = linear_cross_entropy(compute_type, config.backend)

    def transform(self, rows: Tensor) -> Tensor:
        """Return what is multiplied by the embeddings, (M, E) float32."""
        rows = self.activation(self.dense.product(rows, self.dense.weight), self.dense.bias)
        return self.layer_norm(ops.cast(rows, ms.float32))

    def construct(self, rows: Tensor, word_embeddings: Tensor) -> Tensor:
        return self.logits(self.transform(rows), word_embeddings, self.bias)

    def losses_and_hits(self, rows: Tensor, word_embeddings: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return cross-entropy in nats and correctness, 1.0 or 0.0, (M,) float32 each, for labels (M,) int32."""
        return self.linear_cross_entropy(self.transform(rows), word_embeddings, self.bias, labels)


class PreTrainingScores(ScoresNetwork):
    """Backbone and both heads without losses: mlm_logits (B, P, V) and sop_logits (B, 2), float32.

    Further input: masked_lm_positions (B, P) int32. Class 0 of the sentence-order head is "in order".
    """

    input_columns = (*TEXT_COLUMNS, "masked_lm_positions")
    output_names: tuple[str, ...] = ("mlm_logits", "sop_logits")

    def __init__(self, config: AlbertConfig) -> None:
        super().__init__(config)
        self.mlm = MaskedTokenHead(config)
        self.sop = Dense(config.hidden_size, 2, backend=config.backend)

    def rows_read(self, texts: tuple[Tensor, ...], further: tuple[Tensor, ...]) -> Tensor:
        return self.albert.rows_of(texts, further[0])

    def head(self, sequence: Tensor, pooled: Tensor, positions: Tensor, dropout_key: Tensor) -> tuple[Tensor, Tensor]:
        """Return mlm_logits (B, P, V) and sop_logits (B, 2).

        Args:
            sequence: (B, 1 + P, H), the first token and those at the positions.
        """
        mlm_logits = self.mlm(self.masked_states(sequence), self.albert.embeddings.word_embeddings)
        return mlm_logits.reshape((*positions.shape, -1)), self.sop(pooled)

    def masked_states(self, sequence: Tensor) -> Tensor:
        """Return the states at the positions, (B * P, H)."""
        return sequence[:, 1:].reshape((-1, sequence.shape[-1]))

    def masked_losses_and_hits(self, sequence: Tensor, masked_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return cross-entropy in nats and correctness, 1.0 or 0.0, of masked_ids (B, P): (B, P) float32 each."""
        states, labels = self.masked_states(sequence), masked_ids.reshape((-1,))
        losses, hits = self.mlm.losses_and_hits(states, self.albert.embeddings.word_embeddings, labels)
        return losses.reshape(masked_ids.shape), hits.reshape(masked_ids.shape)


class AlbertForPreTraining(TrainingNetwork):
    """Weighted sums of the masked-token and sentence-order losses; positions and labels int32, weights float32.

    sop_loss_weights (B,) say how much each row's order loss counts in `loss`, beside 1 for its masked tokens; sop_loss
    itself is without them.
    """

    label_columns = (
        "masked_lm_ids",
        "masked_lm_weights",
        "next_sentence_labels",
        "sequence_weights",
        "sop_loss_weights",
    )
    weight_columns = ("masked_lm_weights", "sequence_weights")
    metric_names: tuple[str, ...] = ("loss", "mlm_loss", "sop_loss", "mlm_accuracy", "sop_accuracy")

    def __init__(self, config: AlbertConfig, seed: int = 0) -> None:
        super().__init__(PreTrainingScores(config), seed)

    def losses(
        self,
        sequence: Tensor,
        pooled: Tensor,
        positions: Tensor,
        masked_ids: Tensor,
        masked_weights: Tensor,
        order_labels: Tensor,
        sequence_weights: Tensor,
        sop_loss_weights: Tensor,
        dropout_key: Tensor,
    ) -> tuple[Tensor, ...]:
        mlm_losses, mlm_hits = self.scores.masked_losses_and_hits(sequence, masked_ids)
        mlm_loss = ops.reduce_sum(masked_weights * mlm_losses)
        order_losses, order_hits = self.cross_entropy(self.scores.sop(pooled), order_labels)
        order_losses = sequence_weights * order_losses
        sop_loss = ops.reduce_sum(order_losses)
        loss = mlm_loss + ops.reduce_sum(sop_loss_weights * order_losses)
        mlm_accuracy = ops.reduce_sum(masked_weights * mlm_hits)
        sop_accuracy = ops.reduce_sum(sequence_weights * order_hits)
        return loss, mlm_loss, sop_loss, mlm_accuracy, sop_accuracy


class PreTrainingEvaluation(nn.Cell):
    """Loss in nats and correctness, 1.0 or 0.0, of every prediction; the parameters are those of PreTrainingScores.

    Inputs: the columns of `input_columns`, then dropout_key () int32. Outputs, float32: losses and hits of the
    masked-token head (B, P) and of the sentence-order head (B,).
    """

    input_columns = (*PreTrainingScores.input_columns, "masked_lm_ids", "next_sentence_labels")

    def __init__(self, config: AlbertConfig) -> None:
        super().__init__(auto_prefix=False)
        self.scores = PreTrainingScores(config)
        self.cross_entropy = cross_entropy(config.backend)

    def construct(
        self,
        input_ids: Tensor,
        input_mask: Tensor,
        segment_ids: Tensor,
        positions: Tensor,
        masked_ids: Tensor,
        order_labels: Tensor,
        dropout_key: Tensor,
    ) -> tuple[Tensor, ...]:
        texts = input_ids, input_mask, segment_ids
        sequence, pooled = self.scores.encode(texts, (positions, dropout_key))
        masked = self.scores.masked_losses_and_hits(sequence, masked_ids)
        return *masked, *self.cross_entropy(self.scores.sop(pooled), order_labels)


def initialise_output_bias(network: nn.Cell, counts: np.ndarray) -> None:
    """Start the masked-token head at the unigram distribution: bias = log((count + 1) / (total + V)).

    Training then begins at the unigram baseline instead of ln V and spends no updates on word frequencies.

    Args:
        counts: (V,) how often each token stands at a masked position of the training data.
    """
    bias = next(p for p in network.get_parameters() if p.name == "mlm.bias")
    if counts.shape != bias.shape:
        raise ValueError(f"counts has shape {counts.shape}, the vocabulary of the model is {bias.shape[0]} tokens")
    smoothed = counts.astype(np.float64) + 1.0
    bias.set_data(Tensor(np.log(smoothed / smoothed.sum()).astype(np.float32)))
