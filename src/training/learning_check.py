"""Warning for pre-training runs that learn only token frequencies, with the likely causes."""

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
METRICS = (HIDDEN, f"{EVAL_PREFIX}mlm_loss", "mlm_loss")  # the first that a run has is compared
RANDOM_SHARE = 1 - MASK_SHARE - KEEP_SHARE
RATE_TIMES_WIDTH = 0.3  # usual learning_rate * hidden_size of AdamWeightDecay and Adam: 1e-3 at 312, 4e-4 at 768
LAMB_RATE = 0.007  # usual with LAMB at any width: LTG-BERT's (Samuel et al. 2023)
FAR = 4.0  # factor below the usual rate that counts as low; with LAMB, also the factor above it that counts as high
TOO_HIGH = 1.5  # factor that counts as high with the others: 2e-3 learns nothing at width 256 (docs/pretraining.md)
LARGE_START = 0.9  # factor of the fitted initializer_range: that learns nothing at widths 256 and 312, but 0.02 does
FEW_UPDATES = 3000
SLOW_BETA2 = 0.999


@dataclass
class LearningCheck:
    """Comparison of a run's loss with the unigram baseline, after BEGUN of the run and at its end.

    metric: key of the log's records that is compared.
    unigram: unigram baseline of the metric.
    height: loss of a model that has learnt nothing from context; the baseline, if only hidden tokens are counted.
    begun: True once the first comparison was made.
    """

    config: PretrainConfig
    architecture: AlbertConfig
    metric: str
    unigram: float
    height: float
    begun: bool = False

    def watch(self, record: Mapping[str, Any], share: float) -> None:
        """Log a warning if the first record after BEGUN of the run, of which `share` is over, is at the baseline."""
        if BEGUN <= share < 1 and not self.begun and record.get(self.metric) is not None:
            self.begun = True
            if warning := self.warning(record, share):
                logger.warning(warning)

    def final_warnings(self, record: Mapping[str, Any]) -> list[str]:
        """Log and return the warnings for the run's last record."""
        warning = self.warning(record, 1.0)
        if not warning:
            return []
        logger.warning(warning)
        return [warning]

    def warning(self, record: Mapping[str, Any], share: float) -> str:
        """Return a warning if the record is no better than a model without context, else ""."""
        loss = record.get(self.metric)
        if loss is None or loss < self.height - NOISE:
            return ""
        causes = likely_causes(self.config, self.architecture, round(record["step"] / share))
        copied = "" if self.metric == HIDDEN else f", with copying of unmasked tokens {self.height:.3f}"
        return (
            f"nothing is learnt from context: after {record['step']} updates, {share:.0%} of the run, {self.metric} is "
            f"{loss:.3f}, no better than token frequencies alone (unigram {self.unigram:.3f}{copied}). "
            f"Likely causes, most likely first: " + "; ".join(causes)
        )


def learning_check(
    config: PretrainConfig, architecture: AlbertConfig, baselines: Baselines, data: PretrainingData
) -> LearningCheck | None:
    """Return the check of a run on this data with these baselines.

    Returns None, and logs it, if the examples have no token counts.
    """
    if data.token_counts is None:
        logger.info("whether the run learns is not checked: its examples have no token counts")
        return None
    for metric in METRICS if config.eval_steps else METRICS[-1:]:
        metric_baselines = baselines.get(metric.removeprefix(EVAL_PREFIX), {})
        if UNIGRAM in metric_baselines:
            unigram = metric_baselines[UNIGRAM]
            permuted = data.facts.get("settings", {}).get("do_permutation")  # visible tokens are then rarely labels
            cannot_copy = metric == HIDDEN or permuted
            height = unigram if cannot_copy else loss_without_context(unigram, data.token_counts)
            return LearningCheck(config, architecture, metric, unigram, height)
    raise ValueError(f"none of {', '.join(METRICS)} has the baseline {UNIGRAM}")


def loss_without_context(unigram: float, token_counts: np.ndarray) -> float:
    """Return the masked-token loss, in nats, of a model that uses token frequencies and the visible token alone.

    A visible token at a masked position is either the label, left in place, or a random replacement; the more frequent
    the token, the likelier it is the label.

    Args:
        unigram: loss at positions where [MASK] is shown.
        token_counts: (V,) how often each token is a label.
    """
    frequency = (token_counts + 1.0) / (token_counts + 1.0).sum()
    kept = KEEP_SHARE * frequency
    replaced = RANDOM_SHARE / len(frequency)
    is_label = kept / (kept + replaced)  # (V,) probability that a visible token is the label
    kept_loss = -(frequency * np.log(is_label + (1 - is_label) * frequency)).sum()
    replaced_loss = unigram - np.log1p(-is_label).mean()
    return min(unigram, float(MASK_SHARE * unigram + KEEP_SHARE * kept_loss + RANDOM_SHARE * replaced_loss))


def likely_causes(config: PretrainConfig, architecture: AlbertConfig, updates: int) -> list[str]:
    """Return what may keep a run of `updates` updates at the unigram baseline, as phrases, most likely first."""
    settings = config.optimizer_settings()
    hidden = architecture.hidden_size
    optimizer = settings["name"]
    rate = max(phase.learning_rate for phase in config.all_phases())
    usual_rate, high_factor = (LAMB_RATE, FAR) if optimizer == "Lamb" else (RATE_TIMES_WIDTH / hidden, TOO_HIGH)
    usual = f"for {optimizer} with hidden_size {hidden} (usual: about {usual_rate:.2g})"
    warmup = settings["warmup_ratio"] or settings["warmup_steps"] / updates
    is_beta2_slow = (
        optimizer == "AdamWeightDecay" and settings["beta2"] >= SLOW_BETA2 and not settings["bias_correction"]
    )
    initializer_range = architecture.initializer_range
    fitted_range = fitted_initializer_range(hidden)
    causes = (
        (rate < usual_rate / FAR, f"learning_rate {rate:g} is low {usual}"),
        (rate > usual_rate * high_factor, f"learning_rate {rate:g} is high {usual}"),
        (warmup > BEGUN, f"the warm-up takes {warmup:.0%} of the run (usual: a tenth or less)"),
        (
            not architecture.use_relative_positions,
            "absolute positions take long to be learnt (try albert_cfg.use_relative_positions true)",
        ),
        (updates < FEW_UPDATES, f"{updates} updates are few (use a smaller batch or shorter examples)"),
        (
            is_beta2_slow,
            f"beta2 {settings['beta2']:g} makes the first updates too large (try 0.98 or bias_correction true)",
        ),
        (
            initializer_range > fitted_range * LARGE_START,
            f"initializer_range {initializer_range:.2g} is large for hidden_size {hidden} (try {fitted_range / 2:.2g})",
        ),
        (True, "the vocabulary does not fit the text, or the text is not prose (look at some examples)"),
    )
    return [sentence for applies, sentence in causes if applies]
