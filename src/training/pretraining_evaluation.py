"""Held-out metrics of a pre-trained ALBERT, with chance and unigram baselines."""

import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from itertools import islice

import mindspore as ms
import numpy as np
from mindspore import Tensor

from model_utils.device import peak_memory
from model_utils.errors import DataError
from src.albert_for_pre_training import AlbertForPreTraining
from src.training.ranks import ALONE, Ranks
from src.training.run_log import Baselines

_WEIGHTS_OF = {"mlm": "masked_lm_weights", "sop": "sequence_weights"}


@dataclass(frozen=True)
class HeldOut:
    """Metrics over a whole data set.

    metrics: loss, mlm_loss, sop_loss in nats, mlm_accuracy, sop_accuracy as shares.
    token_counts: (V,) float64, how often each token is the answer at a masked position.
    """

    metrics: dict[str, float]
    examples: int
    masked_tokens: int
    token_counts: np.ndarray


def evaluate(
    network: AlbertForPreTraining,
    batches: Iterable[dict[str, np.ndarray]],
    vocab_size: int,
    ranks: Ranks = ALONE,
    before_batch: Callable[[], object] = lambda: None,
) -> HeldOut:
    """Weighted means over all batches, summed in float64 on the host, so that they do not depend on the batch size.

    Args:
        network: set to evaluation by this function.
        batches: of this rank; rows that only fill up the last batch have sequence weight 0.
        ranks, before_batch: as in predict_rows.

    Raises:
        DataError: there are no examples with masked tokens.
    """
    network.set_train(False)
    key = Tensor(0, ms.int32)  # dropout is off
    sums = np.zeros(len(network.metric_names))
    weights = np.zeros(len(_WEIGHTS_OF))
    counts = np.zeros(vocab_size)
    for batch in batches:
        before_batch()
        outputs = network(*(Tensor(batch[name]) for name in network.input_columns), key)
        sums += [float(value.asnumpy()) for value in outputs]
        weights += [batch[column].sum(dtype=np.float64) for column in _WEIGHTS_OF.values()]
        counts += np.bincount(batch["masked_lm_ids"].ravel(), batch["masked_lm_weights"].ravel(), minlength=vocab_size)
    everything = ranks.sum(np.concatenate([sums, weights, counts]), "the sums of an evaluation")
    sums, weights, counts = np.split(everything, [len(sums), len(sums) + len(weights)])
    if not weights.all():
        raise DataError("the data has no example with a masked token to evaluate on")
    weight_of = dict(zip(_WEIGHTS_OF, weights, strict=True))
    means = {
        name: float(total / weight_of[name[:3]])
        for name, total in zip(network.metric_names, sums, strict=True)
        if name != "loss"
    }
    metrics = {"loss": means["mlm_loss"] + means["sop_loss"], **means}
    return HeldOut(metrics, round(weight_of["sop"]), round(weight_of["mlm"]), counts)


def dry_run(
    network: AlbertForPreTraining, batches: Iterable[dict[str, np.ndarray]], number: int, vocab_size: int
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


def only_masked(batches: Iterable[dict[str, np.ndarray]], mask_id: int) -> Iterator[dict[str, np.ndarray]]:
    """The batches with weight 0 at predicted positions that do not show [MASK].

    Of the predicted tokens a tenth is left in place, where copying it needs no context.
    """
    for batch in batches:
        shown = np.take_along_axis(batch["input_ids"], batch["masked_lm_positions"], 1)
        yield batch | {"masked_lm_weights": batch["masked_lm_weights"] * (shown == mask_id)}


def add_chance(baselines: Baselines, vocab_size: int) -> Baselines:
    """Reference lines of all metrics: what guessing gives, and those of `baselines`."""
    chance = {
        "mlm_loss": math.log(vocab_size),
        "mlm_accuracy": 1.0 / vocab_size,
        "sop_loss": math.log(2.0),
        "sop_accuracy": 0.5,
    }
    return {metric: {"chance": value, **baselines.get(metric, {})} for metric, value in chance.items()}


def unigram_baselines(counts: np.ndarray, training_counts: np.ndarray | None) -> Baselines:
    """Loss and accuracy of a model that knows nothing but how frequent each token is.

    "unigram" knows the training data's frequencies, one added to every count: it is what a model can have learnt
    without reading context. "own unigram" knows the frequencies of the evaluated text itself, which no model can: its
    loss, their entropy, is the lowest that any context-free prediction reaches.

    Args:
        counts: (V,) answers of the evaluated data; at least one.
        training_counts: (V,) answers of the training data, if known.
    """
    share = counts / counts.sum()
    present = share > 0
    lines = {"mlm_loss": {}, "mlm_accuracy": {}}
    if training_counts is not None:
        smoothed = training_counts.astype(np.float64) + 1.0
        lines["mlm_loss"]["unigram"] = float(-(share[present] * np.log(smoothed[present] / smoothed.sum())).sum())
        lines["mlm_accuracy"]["unigram"] = float(share[smoothed.argmax()])
    lines["mlm_loss"]["own unigram"] = float(-(share[present] * np.log(share[present])).sum())
    lines["mlm_accuracy"]["own unigram"] = float(share.max())
    return lines


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
