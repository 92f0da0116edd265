"""A pre-training run that has learnt nothing but how frequent each token is says so, and what it is likely to be."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from src.albert_config import AlbertConfig, fitted_initializer_range
from src.pretraining_data.checked_data import PretrainingData
from src.pretraining_data.masking import KEEP_SHARE, MASK_SHARE
from src.training.run_log import EVAL_PREFIX, UNIGRAM, Baselines
from src.training.training_config import PretrainConfig

logger = logging.getLogger(__name__)
BEGUN = 0.2  # share of a run after which it should have learnt something from context
NOISE = 0.02  # nats; a run that has learnt from context is further below unigram
HIDDEN = f"{EVAL_PREFIX}hidden_mlm_loss"
METRICS = (HIDDEN, f"{EVAL_PREFIX}mlm_loss", "mlm_loss")  # the first that a run has decides
RANDOM_SHARE = 1 - MASK_SHARE - KEEP_SHARE
RATE_TIMES_WIDTH = 0.3  # of AdamWeightDecay and Adam: 1e-3 for 312 states, 4e-4 for 768
LAMB_RATE = 0.007  # LTG-BERT's (Samuel et al. 2023), whatever the width
FAR = 4.0  # times less than usual, or, with LAMB, more
TOO_HIGH = 1.5  # times more, with the others: 2e-3 learns nothing at a width of 256 (docs/pretraining.md)
LARGE_START = 0.9  # of the fitted initializer_range, which learns nothing at 256 and 312; 0.02 does (the same ladder)
FEW_UPDATES = 3000
SLOW_BETA2 = 0.999


@dataclass
class LearningCheck:
    """Compares a run's loss with the unigram baseline, after BEGUN of the run and at its end.

    metric: of the log's records. unigram: its baseline. height: the loss of a model that has learnt nothing from
    context, which is that baseline at hidden tokens alone. begun: whether the first comparison was made.
    """

    config: PretrainConfig
    architecture: AlbertConfig
    metric: str
    unigram: float
    height: float
    begun: bool = False

    def watch(self, record: Mapping[str, Any], share: float) -> None:
        """Warn once if the first record after BEGUN of the run, of which `share` is over, shows nothing learnt."""
        if BEGUN <= share < 1 and not self.begun and record.get(self.metric) is not None:
            self.begun = True
            if remark := self.remark(record, share):
                logger.warning(remark)

    def closing_remarks(self, record: Mapping[str, Any]) -> list[str]:
        """The same of the run's last record, which is logged."""
        remarks = [remark] if (remark := self.remark(record, 1.0)) else []
        for remark in remarks:
            logger.warning(remark)
        return remarks

    def remark(self, record: Mapping[str, Any], share: float) -> str:
        """A sentence if the record is not below what needs no context, else ""."""
        loss = record.get(self.metric)
        if loss is None or loss < self.height - NOISE:
            return ""
        causes = likely_causes(self.config, self.architecture, round(record["step"] / share))
        copied = "" if self.metric == HIDDEN else f", with copying of the tokens left in place {self.height:.3f}"
        return (
            f"nothing is learnt from context: after {record['step']} updates, {share:.0%} of the run, {self.metric} is "
            f"{loss:.3f}, no better than what the frequencies of tokens give (unigram {self.unigram:.3f}{copied}). "
            f"Likely causes, the likeliest first: " + "; ".join(causes)
        )


def learning_check(
    config: PretrainConfig, architecture: AlbertConfig, baselines: Baselines, data: PretrainingData
) -> LearningCheck | None:
    """The check of a run on this data with these reference lines; None, which is logged, where the examples do not say
    how often each token is an answer.
    """
    if data.token_counts is None:
        logger.info("whether the run learns is not watched: its examples do not say how frequent each token is")
        return None
    for metric in METRICS if config.eval_steps else METRICS[-1:]:
        lines = baselines.get(metric.removeprefix(EVAL_PREFIX), {})
        if UNIGRAM in lines:
            unigram = lines[UNIGRAM]
            permuted = data.facts.get("settings", {}).get("do_permutation")  # what is shown is rarely the answer then
            alone = metric == HIDDEN or permuted
            height = unigram if alone else loss_without_context(unigram, data.token_counts)
            return LearningCheck(config, architecture, metric, unigram, height)
    raise ValueError(f"of {', '.join(METRICS)} none has the line {UNIGRAM}")


def loss_without_context(unigram: float, token_counts: np.ndarray) -> float:
    """The masked-token loss, in nats, of a model that goes by frequencies and by what is shown in the token's place.

    A token shown there is the answer, left in place, or was drawn at random instead: the likelier the former, the more
    frequent it is.

    Args:
        unigram: the loss where nothing is shown.
        token_counts: (V,) how often each token is an answer.
    """
    share = (token_counts + 1.0) / (token_counts + 1.0).sum()
    left, drawn = KEEP_SHARE * share, RANDOM_SHARE / len(share)
    trust = left / (left + drawn)
    copied = -(share * np.log(trust + (1 - trust) * share)).sum()
    replaced = unigram - np.log1p(-trust).mean()
    return min(unigram, float(MASK_SHARE * unigram + KEEP_SHARE * copied + RANDOM_SHARE * replaced))


def likely_causes(config: PretrainConfig, architecture: AlbertConfig, updates: int) -> list[str]:
    """What in the settings of a run of so many updates may keep it at the unigram baseline, the likeliest first."""
    settings, hidden = config.optimizer_settings(), architecture.hidden_size
    optimizer, rate = settings["name"], max(phase.learning_rate for phase in config.all_phases())
    usual, highest = (LAMB_RATE, FAR) if optimizer == "Lamb" else (RATE_TIMES_WIDTH / hidden, TOO_HIGH)
    far = f"for {optimizer} with hidden_size {hidden} (usual: about {usual:.2g})"
    warmup = settings["warmup_ratio"] or settings["warmup_steps"] / updates
    slow = optimizer == "AdamWeightDecay" and settings["beta2"] >= SLOW_BETA2 and not settings["bias_correction"]
    given, fitted = architecture.initializer_range, fitted_initializer_range(hidden)
    suspects = (
        (rate < usual / FAR, f"learning_rate {rate:g} is low {far}"),
        (rate > usual * highest, f"learning_rate {rate:g} is high {far}"),
        (warmup > BEGUN, f"the warm-up takes {warmup:.0%} of the run (usual: a tenth or less)"),
        (
            not architecture.use_relative_positions,
            "absolute positions take long to be learnt (albert_cfg.use_relative_positions true)",
        ),
        (updates < FEW_UPDATES, f"{updates} updates in all are few (a smaller batch or shorter examples make more)"),
        (slow, f"beta2 {settings['beta2']:g} makes the first updates too large (0.98, or bias_correction true)"),
        (
            given > fitted * LARGE_START,
            f"initializer_range {given:.2g} is large for hidden_size {hidden} ({fitted / 2:.2g} may do better)",
        ),
        (True, "the vocabulary does not fit the text, or the text is no running text (look at some examples)"),
    )
    return [sentence for applies, sentence in suspects if applies]
