"""Held-out metrics of a pre-trained ALBERT, with chance and unigram baselines.

A tenth of the predicted tokens is left in place, where copying suffices, and a tenth is replaced by a random token.
The hidden tokens, which show [MASK], measure what a model has learnt from context.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore import Tensor

from model_utils.errors import DataError
from src.albert_for_pre_training import PreTrainingEvaluation
from src.pretraining_data.diagnostics import OWN_UNIGRAM, UNIGRAM
from src.tokenization import FullTokenizer
from src.training.ranks import ALONE, Ranks
from src.training.run_log import Baselines

PER_CHARACTER = "hidden_nats_per_character"


@dataclass(frozen=True)
class AnswerCounts:
    """Counts of each token as the gold label, (V,) float64: at all predicted positions, and at hidden ones.

    hidden: zeros if the id of [MASK] is unknown.
    """

    predicted: np.ndarray
    hidden: np.ndarray


@dataclass(frozen=True)
class HeldOut:
    """Metrics over a whole data set.

    metrics: mlm_loss, sop_loss in nats per token or pair and their plain sum, loss; mlm_accuracy, sop_accuracy in 0..1;
        with a tokenizer also hidden_mlm_loss, hidden_mlm_accuracy and hidden_nats_per_character: nats of all hidden
        tokens per character that they stand for (FullTokenizer.characters), comparable between vocabularies.
    """

    metrics: dict[str, float]
    examples: int
    counts: AnswerCounts


def evaluate(
    network: PreTrainingEvaluation,
    batches: Iterable[dict[str, np.ndarray]],
    vocab_size: int,
    tokenizer: FullTokenizer | None = None,
    ranks: Ranks = ALONE,
    before_batch: Callable[[], object] = lambda: None,
) -> HeldOut:
    """Return weighted means over all batches, summed in float64 on the host to be independent of the batch size.

    Args:
        network: set to evaluation mode.
        batches: of this rank; filler rows of the last batch have weight 0.
        tokenizer: of the batches; without it there are no metrics of hidden tokens.
        ranks, before_batch: as in predict_rows.

    Raises:
        DataError: there are no examples with masked tokens.
    """
    network.set_train(False)
    key = Tensor(0, ms.int32)  # of dropout, which is off
    sums = np.zeros((3, 3))  # (predicted, hidden, sentence order) x (weight, loss, hits)
    counts = np.zeros((2, vocab_size))
    for batch in batches:
        before_batch()
        outputs = network(*(Tensor(batch[name]) for name in network.input_columns), key)
        mlm_losses, mlm_hits, sop_losses, sop_hits = (output.asnumpy().astype(np.float64) for output in outputs)
        weighted_outputs = (
            (batch["masked_lm_weights"], mlm_losses, mlm_hits),
            (hidden_weights(batch, tokenizer), mlm_losses, mlm_hits),
            (batch["sequence_weights"], sop_losses, sop_hits),
        )
        for index, (weights, losses, hits) in enumerate(weighted_outputs):
            sums[index] += weights.sum(), (weights * losses).sum(), (weights * hits).sum()
        counts += count_batch(batch, tokenizer, vocab_size)
    sums = ranks.sum(sums, "the sums of an evaluation")
    answers = AnswerCounts(*ranks.sum(counts, "the answers of an evaluation"))
    if not (sums[0, 0] and sums[2, 0]):
        raise DataError("the data has no example with a masked token to evaluate on")
    mlm_loss, mlm_accuracy = sums[0, 1:] / sums[0, 0]
    sop_loss, sop_accuracy = sums[2, 1:] / sums[2, 0]
    metrics = {"loss": mlm_loss + sop_loss, "mlm_loss": mlm_loss, "sop_loss": sop_loss}
    metrics |= {"mlm_accuracy": mlm_accuracy, "sop_accuracy": sop_accuracy}
    if tokenizer and sums[1, 0]:
        loss, accuracy = sums[1, 1:] / sums[1, 0]
        metrics |= {"hidden_mlm_loss": loss, "hidden_mlm_accuracy": accuracy}
        metrics |= {PER_CHARACTER: loss / characters_per_token(answers.hidden, tokenizer)}
    return HeldOut({name: float(value) for name, value in metrics.items()}, round(sums[2, 0]), answers)


def hidden_weights(batch: dict[str, np.ndarray], tokenizer: FullTokenizer | None) -> np.ndarray:
    """Return masked_lm_weights (B, P), set to 0 where the input is not [MASK]; zeros without a tokenizer."""
    weights = batch["masked_lm_weights"]
    if tokenizer is None:
        return np.zeros_like(weights)
    input_tokens = np.take_along_axis(batch["input_ids"], batch["masked_lm_positions"], 1)
    return weights * (input_tokens == tokenizer.mask_id)


def count_batch(batch: dict[str, np.ndarray], tokenizer: FullTokenizer | None, vocab_size: int) -> np.ndarray:
    """Return counts of each token as the gold label (2, V) float64: predicted and hidden."""
    gold_labels = batch["masked_lm_ids"].ravel()
    all_weights = batch["masked_lm_weights"], hidden_weights(batch, tokenizer)
    return np.stack([np.bincount(gold_labels, weights.ravel(), minlength=vocab_size) for weights in all_weights])


def count_answers(
    batches: Iterable[dict[str, np.ndarray]], vocab_size: int, tokenizer: FullTokenizer | None, ranks: Ranks = ALONE
) -> AnswerCounts:
    """Return the counts of gold labels in the batches of all ranks, without a network."""
    counts = sum((count_batch(batch, tokenizer, vocab_size) for batch in batches), np.zeros((2, vocab_size)))
    return AnswerCounts(*ranks.sum(counts, "the answers of the held-out data"))


def characters_per_token(counts: np.ndarray, tokenizer: FullTokenizer) -> float:
    """Return the mean number of characters of the counted tokens, (V,)."""
    return float((counts * tokenizer.characters()).sum() / counts.sum())


def baselines(
    counts: AnswerCounts | None,
    training_counts: np.ndarray | None,
    vocab_size: int,
    tokenizer: FullTokenizer | None = None,
) -> Baselines:
    """Return baselines of all metrics but the plain sum: chance (random guessing) and those of `unigram_lines`.

    Args:
        counts: gold labels of the evaluated data, if known.
        training_counts: (V,) gold labels of the training data, if known.
    """
    lines = {"mlm_loss": {"chance": math.log(vocab_size)}, "mlm_accuracy": {"chance": 1.0 / vocab_size}}
    lines |= {"sop_loss": {"chance": math.log(2.0)}, "sop_accuracy": {"chance": 0.5}}
    if counts is None:
        return lines
    losses, accuracies = unigram_lines(counts.predicted, training_counts)
    lines["mlm_loss"] |= losses
    lines["mlm_accuracy"] |= accuracies
    if tokenizer and counts.hidden.any():
        losses, accuracies = unigram_lines(counts.hidden, training_counts)
        lines["hidden_mlm_loss"] = {"chance": math.log(vocab_size)} | losses
        lines["hidden_mlm_accuracy"] = {"chance": 1.0 / vocab_size} | accuracies
        characters = characters_per_token(counts.hidden, tokenizer)
        lines[PER_CHARACTER] = {name: loss / characters for name, loss in lines["hidden_mlm_loss"].items()}
    return lines


def unigram_lines(counts: np.ndarray, training_counts: np.ndarray | None) -> tuple[dict[str, float], dict[str, float]]:
    """Return losses and accuracies of models that know only token frequencies.

    "unigram" uses the training data's frequencies, one added to every count: the best a model can learn without
    context. "own unigram" uses those of the evaluated text itself: its loss, their entropy, is the lower bound of all
    context-free prediction.

    Args:
        counts: (V,) gold labels of the evaluated data; at least one.
        training_counts: (V,) gold labels of the training data, if known.
    """
    share = counts / counts.sum()
    present = share > 0
    losses = {}
    accuracies = {}
    if training_counts is not None:
        smoothed = training_counts.astype(np.float64) + 1.0
        losses[UNIGRAM] = float(-(share[present] * np.log(smoothed[present] / smoothed.sum())).sum())
        accuracies[UNIGRAM] = float(share[smoothed.argmax()])
    losses[OWN_UNIGRAM] = float(-(share[present] * np.log(share[present])).sum())
    accuracies[OWN_UNIGRAM] = float(share.max())
    return losses, accuracies


def check_finite(metrics: dict[str, float], weights: Path) -> None:
    """Raise DataError with the first metric that is not finite."""
    for name, value in metrics.items():
        if not math.isfinite(value):
            raise DataError(f"{weights}: {name} is {value}: its weights are not finite, or need another compute_type")


def table(metrics: dict[str, float], baselines: Baselines) -> str:
    """Return the metrics and their baselines as a text table."""
    names = ["model", *dict.fromkeys(name for lines in baselines.values() for name in lines)]
    rows = [["", *names]]
    for metric, value in metrics.items():
        if metric in baselines:
            lines = {"model": value, **baselines[metric]}
            rows.append([metric, *(f"{lines[name]:.4f}" if name in lines else "" for name in names)])
    widths = [max(len(row[column]) for row in rows) for column in range(len(names) + 1)]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
