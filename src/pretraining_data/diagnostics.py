"""Warnings that save hours: the vocabulary does not fit the text, and pre-training learns nothing from context."""

import logging
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from typing import Any, Self

import numpy as np

from src.pretraining_data.masking import KEEP_SHARE, MASK_SHARE
from src.text.corpus import IS_CJK
from src.text.sentence_piece import WORD_START
from src.tokenization import FullTokenizer

logger = logging.getLogger(__name__)
# Shares of the tokens above which a vocabulary does not fit. google's has 2.2 % unknown in WikiText, <unk> included.
MAX_UNKNOWN = 0.05
MAX_BROKEN = 0.3
# Baselines of a model that knows how frequent each token is, and nothing else: by the training data, and by the text
# itself that is evaluated.
UNIGRAM = "unigram"
OWN_UNIGRAM = "own unigram"
LEARNT_BY = 0.2  # share of a run after which it should have learnt something from context
NOISE = 0.02  # nats; a run that has learnt from context is further below unigram
RANDOM_SHARE = 1 - MASK_SHARE - KEEP_SHARE


class LetterTable:
    """Table of the tokens of a vocabulary that are single letters of words.

    Attributes:
        starts: (V,) bool, tokens that begin a word.
        letters: (V,) bool, tokens that are one letter (with or without the mark of a word's begin), or the mark alone;
            Chinese and Japanese characters, which are single tokens in every vocabulary, do not count.
    """

    def __init__(self, tokenizer: FullTokenizer) -> None:
        tokens = [tokenizer.inv_vocab[index] for index in range(tokenizer.vocab_size)]
        mark = WORD_START if tokenizer.is_sentencepiece else "##"  # of a word's begin, or of a piece inside a word
        self.starts = np.array([token.startswith(mark) == tokenizer.is_sentencepiece for token in tokens])
        plain = [token.removeprefix(mark) for token in tokens]
        self.letters = np.array([not text or _is_letter(text) for text in plain])
        self.unk_id = tokenizer.unk_id


def _is_letter(text: str) -> bool:
    return len(text) == 1 and text.isalpha() and not IS_CJK.match(text)


@dataclass(frozen=True)
class VocabularyFit:
    """Counts of tokens, unknown tokens and single letters beside single letters; they add up over parts of a text."""

    tokens: int = 0
    unknown: int = 0
    broken: int = 0

    @classmethod
    def of(cls, ids: np.ndarray, table: LetterTable) -> Self:
        """Count (tokens,) ids; a letter is of a broken word if a neighbouring piece of the word is a letter, too."""
        letters = table.letters[ids]
        joined = letters[1:] & letters[:-1] & ~table.starts[ids[1:]]
        broken = np.zeros(len(ids), bool)
        broken[1:] |= joined
        broken[:-1] |= joined
        return cls(len(ids), int((ids == table.unk_id).sum()), int(broken.sum()))

    def __add__(self, other: "VocabularyFit") -> "VocabularyFit":
        return VocabularyFit(*(one + another for one, another in zip(astuple(self), astuple(other), strict=True)))

    def to_manifest(self) -> dict[str, float]:
        """Return the number of tokens, and the shares of unknown tokens and of letters of broken words."""
        return {
            "tokens": self.tokens,
            "unknown_share": self.unknown / max(1, self.tokens),
            "broken_share": self.broken / max(1, self.tokens),
        }

    @classmethod
    def from_manifest(cls, entries: Mapping[str, float]) -> Self:
        """Return the counts of which a manifest has these entries."""
        tokens = int(entries["tokens"])
        return cls(tokens, round(entries["unknown_share"] * tokens), round(entries["broken_share"] * tokens))

    def __str__(self) -> str:
        shares = self.to_manifest()
        return (
            f"of {self.tokens:,} tokens {shares['unknown_share']:.2%} are unknown and {shares['broken_share']:.2%} "
            "single letters of words that the vocabulary does not have"
        )

    def warn(self, vocabulary: str) -> bool:
        """Log a warning if the vocabulary clearly does not fit the text; return whether it was logged."""
        shares = self.to_manifest()
        if shares["unknown_share"] <= MAX_UNKNOWN and shares["broken_share"] <= MAX_BROKEN:
            return False
        logger.warning(
            f"the vocabulary {vocabulary} does not fit this text: more than {MAX_UNKNOWN:.0%} of the tokens are "
            f"unknown, or more than {MAX_BROKEN:.0%} single letters; use another one, or train one on this text with "
            f"python -m src.train_vocabulary ({self})"
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
