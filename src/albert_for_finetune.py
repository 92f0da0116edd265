"""The tasks' networks with their losses, for training; the scores come from src/finetune_eval_model.py.

Losses and metrics are weighted sums (src/training/train_step.py).
Shape letters: B batch, L length, C labels or choices.
"""

import mindspore as ms
from mindspore import Tensor, ops

from src.albert_networks import TrainingNetwork
from src.finetune_eval_model import FORBIDDEN, gather_positions


class AlbertForSequenceClassification(TrainingNetwork):
    """Classes of texts, by cross-entropy (google's classifier_utils): label_ids (B,) int32."""

    label_columns = ("label_ids", "sequence_weights")
    metric_names = ("loss", "accuracy")

    def losses(
        self, sequence: Tensor, pooled: Tensor, labels: Tensor, weights: Tensor, dropout_key: Tensor
    ) -> tuple[Tensor, Tensor]:
        return self.weighted_sums(self.scores.head(sequence, pooled, dropout_key), labels, weights)

    def weighted_sums(self, logits: Tensor, labels: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Return the sums of losses and hits for logits (*, C), labels (*) and weights (*)."""
        losses, hits = self.cross_entropy(logits.reshape((-1, logits.shape[-1])), labels.reshape((-1,)))
        weights = weights.reshape((-1,))
        return ops.reduce_sum(weights * losses), ops.reduce_sum(weights * hits)


class AlbertForMultipleChoice(AlbertForSequenceClassification):
    """Cross-entropy of C choices (google's race_utils): label_ids (B,) int32.

    Choices without tokens, which pad questions with fewer options, get no probability.
    """

    def losses_of(
        self, outputs: tuple[Tensor, Tensor], texts: tuple[Tensor, ...], further: tuple[Tensor, ...]
    ) -> tuple[Tensor, ...]:
        if self.packed:
            begins = texts[2]
            has_tokens = begins[1:] > begins[:-1]
        else:
            has_tokens = texts[1][:, 0] > 0
        absent = 1.0 - ops.cast(has_tokens, ms.float32).reshape((-1, self.scores.num_choices))
        labels, weights, dropout_key = further
        logits = self.scores.head(*outputs, dropout_key)
        return self.weighted_sums(logits - FORBIDDEN * absent, labels, weights)


class AlbertForTokenClassification(AlbertForSequenceClassification):
    """Labels of words, at their first tokens: label_ids (B, L) int32, label_weights (B, L) float32."""

    label_columns = ("label_ids", "label_weights")
    weight_columns = ("label_weights",)


class AlbertForRegression(TrainingNetwork):
    """Scores of texts by squared error (STS-B): label_ids (B,) float32."""

    label_columns = ("label_ids", "sequence_weights")
    metric_names = ("loss",)

    def losses(
        self, sequence: Tensor, pooled: Tensor, labels: Tensor, weights: Tensor, dropout_key: Tensor
    ) -> tuple[Tensor, ...]:
        error = self.scores.head(sequence, pooled, dropout_key).squeeze(1) - labels
        return (ops.reduce_sum(weights * error * error),)


class AlbertForQuestionAnswering(TrainingNetwork):
    """Answer spans (SQuAD v1.1): start_positions, end_positions (B,) int32.

    The loss is the mean of those of start and end; accuracy counts rows in which both are right. Tokens of padding can
    be chosen, as in google's code; tokens that are `absent` (B, L), 1 behind packed texts, cannot.
    """

    label_columns = ("start_positions", "end_positions", "sequence_weights")
    metric_names = ("loss", "accuracy")
    compares_tokens = True

    def losses(
        self,
        sequence: Tensor,
        pooled: Tensor,
        starts: Tensor,
        ends: Tensor,
        weights: Tensor,
        dropout_key: Tensor,
        absent: Tensor = None,
    ) -> tuple[Tensor, Tensor]:
        start_logits, end_logits = self.scores.head(sequence, pooled, dropout_key)
        if absent is not None:
            start_logits, end_logits = start_logits - FORBIDDEN * absent, end_logits - FORBIDDEN * absent
        of_starts, start_hits = self.cross_entropy(start_logits, starts)
        of_ends, end_hits = self.cross_entropy(end_logits, ends)
        loss = ops.reduce_sum(weights * 0.5 * (of_starts + of_ends))
        return loss, ops.reduce_sum(weights * start_hits * end_hits)


class AlbertForSpanSearch(TrainingNetwork):
    """Answer spans or none (SQuAD v2.0), ends trained with the right starts.

    Inputs beside the text: p_mask (B, L) int32; start_positions, end_positions, is_impossible (B,) int32. The loss is
    half the sum of the losses of start, end and answerability. Accuracy is that of answerability.
    """

    label_columns = ("start_positions", "end_positions", "is_impossible", "sequence_weights")
    metric_names = ("loss", "accuracy")

    def losses(
        self,
        sequence: Tensor,
        pooled: Tensor,
        p_mask: Tensor,
        starts: Tensor,
        ends: Tensor,
        is_impossible: Tensor,
        weights: Tensor,
        dropout_key: Tensor,
    ) -> tuple[Tensor, Tensor]:
        p_mask = ops.cast(p_mask, ms.float32)
        start_logits = self.scores.starts(sequence, p_mask)
        start_states = gather_positions(sequence, starts.expand_dims(1))
        end_logits = self.scores.ends(sequence, start_states, p_mask).squeeze(1)
        no_answer = self.scores.answerable(sequence, start_logits, dropout_key)
        impossible = ops.cast(is_impossible, ms.float32)
        # The binary cross-entropy of a logit, in the form that cannot overflow.
        answerability = ops.relu(no_answer) - no_answer * impossible + ops.log1p(ops.exp(-ops.abs(no_answer)))
        spans = self.cross_entropy(start_logits, starts)[0] + self.cross_entropy(end_logits, ends)[0]
        right = ops.cast(ops.equal(no_answer > 0, is_impossible > 0), ms.float32)
        return ops.reduce_sum(weights * 0.5 * (spans + answerability)), ops.reduce_sum(weights * right)
