"""Held-out metrics of a pre-trained ALBERT, with chance and unigram baselines.

Of the predicted tokens a tenth is left in place, where copying it needs no context, and a tenth shows a random token.
What a model has learnt from context is seen at the hidden ones, which show [MASK].
"""

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from itertools import islice
from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore import Tensor

from model_utils.errors import DataError
from model_utils.memory import peak_memory
from src.albert_for_pre_training import PreTrainingEvaluation
from src.tokenization import FullTokenizer
from src.training.ranks import ALONE, Ranks
from src.training.run_log import OWN_UNIGRAM, UNIGRAM, Baselines

PER_CHARACTER = "hidden_nats_per_character"


@dataclass(frozen=True)
class AnswerCounts:
    """How often each token is the answer, (V,) float64: at all predicted positions, and at hidden ones.

    hidden: zeros where it is not known which token [MASK] is.
    """

    predicted: np.ndarray
    hidden: np.ndarray


@dataclass(frozen=True)
class HeldOut:
    """Metrics over a whole data set.

    metrics: mlm_loss, sop_loss in nats a token or pair and their plain sum, loss; mlm_accuracy, sop_accuracy as shares;
        hidden_mlm_loss and hidden_mlm_accuracy where [MASK] is known; and hidden_nats_per_character: nats of all hidden
        tokens over the characters that they stand for (FullTokenizer.characters), which can be compared between
        vocabularies.
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
    """Weighted means over all batches, summed in float64 on the host, so that they do not depend on the batch size.

    Args:
        network: set to evaluation by this function.
        batches: of this rank; rows that only fill up the last batch have weight 0.
        tokenizer: of the batches; without it there is nothing about hidden tokens.
        ranks, before_batch: as in predict_rows.

    Raises:
        DataError: there are no examples with masked tokens.
    """
    network.set_train(False)
    key = Tensor(0, ms.int32)  # dropout is off
    sums, counts = np.zeros((3, 3)), np.zeros((2, vocab_size))
    for batch in batches:
        before_batch()
        outputs = network(*(Tensor(batch[name]) for name in network.input_columns), key)
        mlm_losses, mlm_hits, sop_losses, sop_hits = (output.asnumpy().astype(np.float64) for output in outputs)
        predicted, hidden = batch["masked_lm_weights"], hidden_weights(batch, tokenizer)
        of_order = (batch["sequence_weights"], sop_losses, sop_hits)
        for group, (weights, losses, hits) in enumerate(
            ((predicted, mlm_losses, mlm_hits), (hidden, mlm_losses, mlm_hits), of_order)
        ):
            sums[group] += weights.sum(), (weights * losses).sum(), (weights * hits).sum()
        counts += count_batch(batch, tokenizer, vocab_size)
    everything = ranks.sum(np.concatenate([sums.ravel(), counts.ravel()]), "the sums of an evaluation")
    sums, counts = everything[: sums.size].reshape(sums.shape), everything[sums.size :].reshape(counts.shape)
    if not (sums[0, 0] and sums[2, 0]):
        raise DataError("the data has no example with a masked token to evaluate on")
    answers = AnswerCounts(*counts)
    (mlm_loss, mlm_accuracy), (sop_loss, sop_accuracy) = sums[0, 1:] / sums[0, 0], sums[2, 1:] / sums[2, 0]
    metrics = {"loss": mlm_loss + sop_loss, "mlm_loss": mlm_loss, "sop_loss": sop_loss}
    metrics |= {"mlm_accuracy": mlm_accuracy, "sop_accuracy": sop_accuracy}
    if sums[1, 0]:
        loss, accuracy = sums[1, 1:] / sums[1, 0]
        metrics |= {"hidden_mlm_loss": loss, "hidden_mlm_accuracy": accuracy}
        metrics |= {PER_CHARACTER: loss / characters_per_token(answers.hidden, tokenizer)}
    return HeldOut({name: float(value) for name, value in metrics.items()}, round(sums[2, 0]), answers)


def hidden_weights(batch: dict[str, np.ndarray], tokenizer: FullTokenizer | None) -> np.ndarray:
    """(B, P) masked_lm_weights with 0 where another token than [MASK] is shown; zeros without a tokenizer."""
    weights = batch["masked_lm_weights"]
    if tokenizer is None:
        return np.zeros_like(weights)
    shown = np.take_along_axis(batch["input_ids"], batch["masked_lm_positions"], 1)
    return weights * (shown == tokenizer.mask_id)


def count_batch(batch: dict[str, np.ndarray], tokenizer: FullTokenizer | None, vocab_size: int) -> np.ndarray:
    """(2, V) float64: how often each token is the answer, predicted and hidden."""
    answers = batch["masked_lm_ids"].ravel()
    weights = batch["masked_lm_weights"], hidden_weights(batch, tokenizer)
    return np.stack([np.bincount(answers, each.ravel(), minlength=vocab_size) for each in weights])


def count_answers(
    batches: Iterable[dict[str, np.ndarray]], vocab_size: int, tokenizer: FullTokenizer | None, ranks: Ranks = ALONE
) -> AnswerCounts:
    """Answers in the batches of all ranks, without a network."""
    counts = sum((count_batch(batch, tokenizer, vocab_size) for batch in batches), np.zeros((2, vocab_size)))
    return AnswerCounts(*ranks.sum(counts, "the answers of the held-out data"))


def characters_per_token(counts: np.ndarray, tokenizer: FullTokenizer) -> float:
    """Mean characters of the tokens that are counted, (V,)."""
    return float((counts * tokenizer.characters()).sum() / counts.sum())


def dry_run(
    network: PreTrainingEvaluation, batches: Iterable[dict[str, np.ndarray]], number: int, vocab_size: int
) -> str:
    """Evaluate the first batch twice, to compile and to time it; estimate time and memory for `number` batches."""
    first = list(islice(batches, 1))
    seconds = []
    for _ in range(2):
        start = time.monotonic()
        evaluate(network, first, vocab_size)
        seconds.append(time.monotonic() - start)
    return (
        f"dry run: a batch takes {seconds[1]:.2f} s (the first {seconds[0]:.1f} s, with compilation); {number:,} "
        f"batches take about {timedelta(seconds=round(seconds[1] * number))}. Host memory at its peak: "
        f"{peak_memory() / 1e9:.2f} GB; on disk a file of some kilobytes. Nothing was kept."
    )


def baselines(
    counts: AnswerCounts | None,
    training_counts: np.ndarray | None,
    vocab_size: int,
    tokenizer: FullTokenizer | None = None,
) -> Baselines:
    """Reference lines of all metrics but the plain sum: chance, what guessing gives, and those of `unigram_lines`.

    Args:
        counts: the answers of the evaluated data, if known.
        training_counts: (V,) those of the training data, if known.
    """
    lines = {"mlm_loss": {"chance": math.log(vocab_size)}, "mlm_accuracy": {"chance": 1.0 / vocab_size}}
    lines |= {"sop_loss": {"chance": math.log(2.0)}, "sop_accuracy": {"chance": 0.5}}
    if counts is None:
        return lines
    losses, accuracies = unigram_lines(counts.predicted, training_counts)
    lines["mlm_loss"] |= losses
    lines["mlm_accuracy"] |= accuracies
    if counts.hidden.any():
        losses, accuracies = unigram_lines(counts.hidden, training_counts)
        lines["hidden_mlm_loss"] = {"chance": math.log(vocab_size)} | losses
        lines["hidden_mlm_accuracy"] = {"chance": 1.0 / vocab_size} | accuracies
        characters = characters_per_token(counts.hidden, tokenizer)
        lines[PER_CHARACTER] = {name: loss / characters for name, loss in lines["hidden_mlm_loss"].items()}
    return lines


def unigram_lines(counts: np.ndarray, training_counts: np.ndarray | None) -> tuple[dict[str, float], dict[str, float]]:
    """Losses and accuracies of models that know nothing but how frequent each token is.

    "unigram" knows the training data's frequencies, one added to every count: it is what a model can have learnt
    without reading context. "own unigram" knows the frequencies of the evaluated text itself, which no model can: its
    loss, their entropy, is the lowest that any context-free prediction reaches.

    Args:
        counts: (V,) answers of the evaluated data; at least one.
        training_counts: (V,) answers of the training data, if known.
    """
    share = counts / counts.sum()
    present = share > 0
    losses, accuracies = {}, {}
    if training_counts is not None:
        smoothed = training_counts.astype(np.float64) + 1.0
        losses[UNIGRAM] = float(-(share[present] * np.log(smoothed[present] / smoothed.sum())).sum())
        accuracies[UNIGRAM] = float(share[smoothed.argmax()])
    losses[OWN_UNIGRAM] = float(-(share[present] * np.log(share[present])).sum())
    accuracies[OWN_UNIGRAM] = float(share.max())
    return losses, accuracies


def check_finite(metrics: dict[str, float], weights: Path) -> None:
    """Raise a DataError that names the first metric that is no number."""
    for name, value in metrics.items():
        if not math.isfinite(value):
            raise DataError(
                f"{weights}: {name} is {value} on this data: the weights have diverged, or their values are too large "
                "for this compute_type"
            )


def table(metrics: dict[str, float], baselines: Baselines) -> str:
    """The metrics and their baselines as a small table of text."""
    names = ["model", *dict.fromkeys(name for lines in baselines.values() for name in lines)]
    rows = [["", *names]]
    for metric, value in metrics.items():
        if metric in baselines:
            lines = {"model": value, **baselines[metric]}
            rows.append([metric, *(f"{lines[name]:.4f}" if name in lines else "" for name in names)])
    widths = [max(len(row[column]) for row in rows) for column in range(len(names) + 1)]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
