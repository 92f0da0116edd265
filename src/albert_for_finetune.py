"""The tasks' networks with their losses, for training; the scores come from src/finetune_eval_model.py.

Losses and metrics are weighted sums (src/training/train_step.py).
Shape letters: B batch, L length, C labels or choices.
"""

import mindspore as ms
import numpy as np
from mindspore import Tensor, ops

from src.albert_networks import ScoresNetwork, Tensors, TrainingNetwork
from src.finetune_eval_model import MASKED_LOGIT, gather_positions
from src.nn.crf import LogPartition

COSINE_SCALE = 20.0


def binary_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the losses of logits for labels 0 or 1, any shape, float32, in the form that cannot overflow."""
    return ops.relu(logits) - logits * labels + ops.log1p(ops.exp(-ops.abs(logits)))


class AlbertForSequenceClassification(TrainingNetwork):
    """Classes of texts, by cross-entropy (google's classifier_utils): label_ids (B,) int32."""

    label_columns: tuple[str, ...] = ("label_ids", "sequence_weights")
    metric_names: tuple[str, ...] = ("loss", "accuracy")
    is_smoothed = False

    def smooth_labels(self, share: float, class_weights: np.ndarray) -> None:
        """Spread a share of each target over all classes, of weights (C,), as torch's CrossEntropyLoss does."""
        # A row's weight is that of its label; torch weights the spread share of a class with that of the class.
        weights_of_labels = np.where(class_weights, class_weights, 1)[:, None]  # no row has a label of weight 0
        spread = share / len(class_weights) * class_weights / weights_of_labels
        self.targets = Tensor((1 - share) * np.eye(len(class_weights)) + spread, ms.float32)
        self.is_smoothed = True

    def logits_of(self, outputs: Tensors, texts: Tensors, further: Tensors) -> tuple[tuple[Tensor, Tensor], ...]:
        _, weights, dropout_key = further
        return ((self.scores.head(*outputs, dropout_key), weights),)

    def label_losses(self, outputs: Tensors, texts: Tensors, further: Tensors) -> tuple[Tensor, Tensor]:
        logits, weights = self.logits_of(outputs, texts, further)[0]
        labels = further[0].reshape((-1,))
        if self.is_smoothed:
            losses = -ops.reduce_sum(ops.gather(self.targets, labels, 0) * ops.log_softmax(logits, -1), -1)
            hits = ops.cast(ops.equal(ops.cast(ops.argmax(logits, -1), ms.int32), labels), ms.float32)
        else:
            losses, hits = self.cross_entropy(logits.reshape((-1, logits.shape[-1])), labels)
        weights = weights.reshape((-1,))
        return ops.reduce_sum(weights * losses), ops.reduce_sum(weights * hits)


class AlbertForMultipleChoice(AlbertForSequenceClassification):
    """Cross-entropy of C choices (google's race_utils): label_ids (B,) int32.

    Choices without tokens, which pad questions with fewer options, get no probability.
    """

    def logits_of(self, outputs: Tensors, texts: Tensors, further: Tensors) -> tuple[tuple[Tensor, Tensor], ...]:
        if self.packed:
            begins = texts[2]
            has_tokens = begins[1:] > begins[:-1]
        else:
            has_tokens = texts[1][:, 0] > 0
        absent = 1.0 - ops.cast(has_tokens, ms.float32).reshape((-1, self.scores.texts_per_row))
        _, weights, dropout_key = further
        return ((self.scores.head(*outputs, dropout_key) - MASKED_LOGIT * absent, weights),)


class AlbertForTokenClassification(AlbertForSequenceClassification):
    """Labels of words, at their first tokens: label_ids (B, L) int32, label_weights (B, L) float32."""

    label_columns = ("label_ids", "label_weights")
    weight_columns = ("label_weights",)


class AlbertForCrf(TrainingNetwork):
    """Labels of words by a conditional random field: label_ids (B, L) int32, label_weights (B, L) float32.

    The loss is the negative log-likelihood of a row's labels (Lafferty et al. 2001) a word: without transitions that of
    AlbertForTokenClassification. A window of a long sentence counts as one. Accuracy is that of the largest logits.
    """

    label_columns = ("label_ids", "label_weights")
    weight_columns = ("label_weights",)
    metric_names = ("loss", "accuracy")

    def __init__(self, scores: ScoresNetwork, seed: int = 0, packed: bool = False) -> None:
        super().__init__(scores, seed, packed)
        self.log_partition = LogPartition()
        self.gather = ops.GatherD()

    def label_losses(self, outputs: Tensors, texts: Tensors, further: Tensors) -> tuple[Tensor, Tensor]:
        labels, weights, dropout_key = further
        logits = self.scores.head(*outputs, dropout_key)[0]
        _, hits = self.cross_entropy(logits.reshape((-1, logits.shape[2])), labels.reshape((-1,)))
        losses = self.sentence_losses(logits, labels, ops.cast(weights > 0, ms.float32))
        loss = ops.reduce_sum(ops.reduce_max(weights, 1) * losses)  # all words of a batch have the same weight
        return loss, ops.reduce_sum(weights.reshape((-1,)) * hits)

    def sentence_losses(self, logits: Tensor, labels: Tensor, is_word: Tensor) -> Tensor:
        """Return the negative log-likelihoods (B,) of labels (B, L) at words; is_word: (B, L), 0 or 1."""
        _, length, count = logits.shape
        indices = ops.range(0, length, 1).astype(ms.int32).expand_dims(0)
        latest_words = ops.cummax(indices * ops.cast(is_word, ms.int32), 1)[0]  # 0: none, since a row begins with [CLS]
        previous = ops.concat((ops.zeros_like(labels[:, :1]), latest_words[:, :-1]), 1)
        is_first = is_word * ops.cast(ops.equal(previous, 0), ms.float32)
        is_last = is_word * ops.cast(ops.equal(indices, latest_words[:, -1:]), ms.float32)
        boundary_scores = is_first.expand_dims(2) * self.scores.first + is_last.expand_dims(2) * self.scores.last
        emissions = ops.log_softmax(logits, -1) + boundary_scores
        pairs = self.gather(labels, 1, previous) * count + labels
        gold = is_word * self.gather(emissions, 2, labels.expand_dims(2)).squeeze(2)
        gold = gold + (is_word - is_first) * ops.gather(self.scores.transitions.reshape((-1,)), pairs, 0)
        return self.log_partition(emissions, is_word, self.scores.transitions)[0] - ops.reduce_sum(gold, 1)


class AlbertForRegression(AlbertForSequenceClassification):
    """Scores of texts by squared error (STS-B): label_ids (B,) float32."""

    metric_names = ("loss",)

    def label_losses(self, outputs: Tensors, texts: Tensors, further: Tensors) -> Tensors:
        scores, weights = self.logits_of(outputs, texts, further)[0]
        error = scores.squeeze(1) - further[0]
        return (ops.reduce_sum(weights * error * error),)


class AlbertForPairScores(AlbertForRegression):
    """Scores of pairs by the squared error of the cosine (sentence-transformers' CosineSimilarityLoss)."""

    def logits_of(self, outputs: Tensors, texts: Tensors, further: Tensors) -> tuple[tuple[Tensor, Tensor], ...]:
        vectors = self.scores.normalised_embeddings(outputs, texts)
        return ((ops.reduce_sum(vectors[:, 0] * vectors[:, 1], 1).expand_dims(1), further[-2]),)


class AlbertForPairs(AlbertForSequenceClassification):
    """Pairs that belong together, by the cross-entropy of each first text's cosines with all second texts of the batch.

    Cosines are multiplied by COSINE_SCALE (Henderson et al. 2017; sentence-transformers' MultipleNegativesRankingLoss).
    For texts that are paired with themselves, under other dropout masks, it is SimCSE's loss (Gao et al. 2021).
    """

    label_columns = ("sequence_weights",)

    def logits_of(self, outputs: Tensors, texts: Tensors, further: Tensors) -> tuple[tuple[Tensor, Tensor], ...]:
        vectors = self.scores.normalised_embeddings(outputs, texts)
        similarities = COSINE_SCALE * ops.MatMul(transpose_b=True)(vectors[:, 0], vectors[:, 1])
        return ((similarities, further[-2]),)

    def label_losses(self, outputs: Tensors, texts: Tensors, further: Tensors) -> tuple[Tensor, Tensor]:
        own = ops.range(0, further[0].shape[0], 1).astype(ms.int32)
        return super().label_losses(outputs, texts, (own, *further))


class AlbertForMultiLabel(TrainingNetwork):
    """Labels of texts by binary cross-entropy, the mean over labels: label_ids (B, C) float32, 0 or 1."""

    label_columns = ("label_ids", "sequence_weights")
    metric_names = ("loss", "accuracy")

    def logits_of(self, outputs: Tensors, texts: Tensors, further: Tensors) -> tuple[tuple[Tensor, Tensor], ...]:
        """Return the logits of not having and of having each label, (B, C, 2), with weights (B, 1)."""
        _, weights, dropout_key = further
        logits = self.scores.head(*outputs, dropout_key)
        return ((ops.stack((ops.zeros_like(logits), logits), 2), weights.expand_dims(1) / logits.shape[1]),)

    def label_losses(self, outputs: Tensors, texts: Tensors, further: Tensors) -> tuple[Tensor, Tensor]:
        labels, weights, dropout_key = further
        logits = self.scores.head(*outputs, dropout_key)
        losses = binary_cross_entropy(logits, labels)
        hits = ops.cast(ops.equal(logits > 0, labels > 0), ms.float32)
        return ops.reduce_sum(weights * ops.reduce_mean(losses, 1)), ops.reduce_sum(weights * ops.reduce_mean(hits, 1))


class AlbertForQuestionAnswering(TrainingNetwork):
    """Answer spans (SQuAD v1.1): start_positions, end_positions (B,) int32.

    The loss is the mean of those of start and end; accuracy counts rows in which both are right. Tokens of padding can
    be chosen, as in google's code; positions behind the end of a packed text cannot.
    """

    label_columns = ("start_positions", "end_positions", "sequence_weights")
    metric_names = ("loss", "accuracy")
    target_count = 2

    def logits_of(self, outputs: Tensors, texts: Tensors, further: Tensors) -> tuple[tuple[Tensor, Tensor], ...]:
        _, _, weights, dropout_key = further
        start_logits, end_logits = self.scores.head(*outputs, dropout_key)
        if self.packed:
            absent = ops.cast(ops.equal(texts[-1], texts[0].shape[1] - 1), ms.float32)  # (B, L)
            start_logits, end_logits = start_logits - MASKED_LOGIT * absent, end_logits - MASKED_LOGIT * absent
        return (start_logits, 0.5 * weights), (end_logits, 0.5 * weights)

    def label_losses(self, outputs: Tensors, texts: Tensors, further: Tensors) -> tuple[Tensor, Tensor]:
        starts, ends, weights, _ = further
        pairs = self.logits_of(outputs, texts, further)
        start_losses, start_hits = self.cross_entropy(pairs[0][0], starts)
        end_losses, end_hits = self.cross_entropy(pairs[1][0], ends)
        loss = ops.reduce_sum(weights * 0.5 * (start_losses + end_losses))
        return loss, ops.reduce_sum(weights * start_hits * end_hits)


class AlbertForSpanSearch(TrainingNetwork):
    """Answer spans or none (SQuAD v2.0), ends trained with the right starts.

    Inputs beside the text: p_mask (B, L) int32; start_positions, end_positions, is_impossible (B,) int32. The loss is
    half the sum of the losses of start, end and answerability. Accuracy is that of answerability.
    """

    label_columns = ("start_positions", "end_positions", "is_impossible", "sequence_weights")
    metric_names = ("loss", "accuracy")
    target_count = 3

    def logits_of(self, outputs: Tensors, texts: Tensors, further: Tensors) -> tuple[tuple[Tensor, Tensor], ...]:
        """Return logits of starts, of ends for the right starts, and of answerability (B, 2), the second: none."""
        start_logits, end_logits, no_answer = self.span_logits(outputs, further)
        weights = 0.5 * further[-2]
        answerability = ops.stack((ops.zeros_like(no_answer), no_answer), 1)
        return (start_logits, weights), (end_logits, weights), (answerability, weights)

    def span_logits(self, outputs: Tensors, further: Tensors) -> tuple[Tensor, Tensor, Tensor]:
        """Return logits of starts (B, L), of ends for the right starts (B, L), and of no answer (B,)."""
        sequence, _ = outputs
        p_mask, starts, _, _, _, dropout_key = further
        p_mask = ops.cast(p_mask, ms.float32)
        start_logits = self.scores.starts(sequence, p_mask)
        start_states = gather_positions(sequence, starts.expand_dims(1))
        end_logits = self.scores.ends(sequence, start_states, p_mask).squeeze(1)
        return start_logits, end_logits, self.scores.answerable(sequence, start_logits, dropout_key)

    def label_losses(self, outputs: Tensors, texts: Tensors, further: Tensors) -> tuple[Tensor, Tensor]:
        _, starts, ends, is_impossible, weights, _ = further
        start_logits, end_logits, no_answer = self.span_logits(outputs, further)
        impossible = ops.cast(is_impossible, ms.float32)
        answerability = binary_cross_entropy(no_answer, impossible)
        spans = self.cross_entropy(start_logits, starts)[0] + self.cross_entropy(end_logits, ends)[0]
        hits = ops.cast(ops.equal(no_answer > 0, is_impossible > 0), ms.float32)
        return ops.reduce_sum(weights * 0.5 * (spans + answerability)), ops.reduce_sum(weights * hits)
