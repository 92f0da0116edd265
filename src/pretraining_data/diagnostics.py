"""Warnings that save hours: the vocabulary does not fit the text, and pre-training learns nothing from context."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from src.pretraining_data.masking import KEEP_SHARE, MASK_SHARE

logger = logging.getLogger(__name__)
# Share of unknown tokens above which a vocabulary does not fit. google's has 2.2 % in WikiText, <unk> included.
MAX_UNKNOWN = 0.05
# Baselines of a model that knows how frequent each token is, and nothing else: by the training data, and by the text
# itself that is evaluated.
UNIGRAM = "unigram"
OWN_UNIGRAM = "own unigram"
LEARNT_BY = 0.2  # share of a run after which it should have learnt something from context
NOISE = 0.02  # nats; a run that has learnt from context is further below unigram
RANDOM_SHARE = 1 - MASK_SHARE - KEEP_SHARE


@dataclass(frozen=True)
class VocabularyFit:
    """Counts of tokens and of unknown ones; they add up over parts of a text."""

    tokens: int = 0
    unknown: int = 0

    @classmethod
    def of(cls, ids: np.ndarray, unk_id: int) -> Self:
        """Count (tokens,) ids."""
        return cls(len(ids), int((ids == unk_id).sum()))

    def __add__(self, other: "VocabularyFit") -> "VocabularyFit":
        return VocabularyFit(self.tokens + other.tokens, self.unknown + other.unknown)

    @property
    def unknown_share(self) -> float:
        return self.unknown / max(1, self.tokens)

    def to_manifest(self) -> dict[str, float]:
        """Return the number of tokens, and the share of unknown ones."""
        return {"tokens": self.tokens, "unknown_share": self.unknown_share}

    @classmethod
    def from_manifest(cls, entries: Mapping[str, float]) -> Self:
        """Return the counts of which a manifest has these entries; that of older data has more."""
        tokens = int(entries["tokens"])
        return cls(tokens, round(entries["unknown_share"] * tokens))

    def __str__(self) -> str:
        return f"of {self.tokens:,} tokens {self.unknown_share:.2%} are unknown"

    def warn(self, vocabulary: str) -> bool:
        """Log a warning if the vocabulary clearly does not fit the text; return whether it was logged."""
        if self.unknown_share <= MAX_UNKNOWN:
            return False
        logger.warning(
            f"the vocabulary {vocabulary} does not fit this text: more than {MAX_UNKNOWN:.0%} of the tokens are "
            f"unknown; use another one, or train one on this text with python -m src.train_vocabulary ({self})"
        )
        return True


@dataclass(frozen=True)
class LearningCheck:
    """Comparison of a pre-training run's loss with that of a model without context.

    Attributes:
        metric: key of the log's records that is compared.
        unigram: unigram baseline of the metric.
        context_free: loss of a model that has learnt nothing from context: below the baseline if tokens can be copied.
    """

    metric: str
    unigram: float
    context_free: float

    def warning(self, record: Mapping[str, Any], share: float) -> str:
        """Return a warning if a record of the log, after this share of the run, shows nothing learnt; else ""."""
        loss = record.get(self.metric)
        if loss is None or loss < self.context_free - NOISE:
            return ""
        copied = ""
        if self.context_free < self.unigram:
            copied = f", with copying of unmasked tokens {self.context_free:.3f}"
        return (
            f"nothing is learnt from context: after {record['step']} updates, {share:.0%} of the run, {self.metric} is "
            f"{loss:.3f}, no better than token frequencies alone (unigram {self.unigram:.3f}{copied}). "
            'See "Choose settings" in docs/pretraining.md'
        )


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
