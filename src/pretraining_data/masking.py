"""Masks of a masked language model: n-grams of whole words, replaced 80/10/10.

All functions mask many examples at once, as google-research/albert's create_masked_lm_predictions does one by one; the
random numbers of an example do not depend on the others. Shape letters: B (examples), L (tokens of the longest one),
W (largest number of words of an example).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal, Self

import numpy as np
from pydantic import Field

from model_utils.config import TOKENS
from src.tokenization import FullTokenizer

MASK_SHARE, KEEP_SHARE = 0.8, 0.1  # the remaining tokens become random ones
NGRAM = 100  # words


@dataclass(frozen=True)
class MaskVocabulary:
    """Ids for masking; word_start: (V,) bool, begins a word; replacements: (R,) int32, for random replacement."""

    word_start: np.ndarray
    replacements: np.ndarray
    pad_id: int
    cls_id: int
    sep_id: int
    mask_id: int

    @classmethod
    def of(cls, tokenizer: FullTokenizer) -> Self:
        """Return the vocabulary of a tokenizer.

        Unlike google's, random replacement draws no special or control symbols: a [SEP] or <pad> in the middle of a
        sentence would reveal the replacement.
        """
        tokens = [tokenizer.inv_vocab[index] for index in range(tokenizer.vocab_size)]
        special = [tokenizer.pad_id, tokenizer.unk_id, tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id]
        special += [tokenizer.vocab[token] for token in ("<s>", "</s>") if token in tokenizer.vocab]
        special += [token.id for token in tokenizer.added_tokens if token.special]
        return cls(
            word_start=np.array([tokenizer.is_word_start(token) for token in tokens]),
            replacements=np.setdiff1d(np.arange(len(tokens), dtype=np.int32), special),
            pad_id=tokenizer.pad_id,
            cls_id=tokenizer.cls_id,
            sep_id=tokenizer.sep_id,
            mask_id=tokenizer.mask_id,
        )


@dataclass(frozen=True)
class InstanceSettings:
    """Settings of examples; the keys of create_data_config.yaml of the same names."""

    max_seq_length: Annotated[int, Field(ge=8, le=TOKENS)]
    max_predictions_per_seq: Annotated[int, Field(ge=1, le=TOKENS)]
    masked_lm_prob: Annotated[float, Field(gt=0, lt=1)]
    short_seq_prob: Annotated[float, Field(ge=0, le=1)]
    ngram: Annotated[int, Field(ge=1, le=NGRAM)]
    favor_shorter_ngram: bool
    do_whole_word_mask: bool
    do_permutation: bool
    random_next_sentence: bool
    masking: Literal["static", "dynamic"] = "static"
    segment_packing: Literal["cut", "google"] = "cut"
    word_segmenter: Literal["none", "jieba"] = "none"

    @property
    def predictions(self) -> int:
        """Maximum number of predicted positions of an example; permuted tokens are predicted as well as masked ones."""
        return self.max_predictions_per_seq * (2 if self.do_permutation else 1)


def predictions_needed(masked_lm_prob: float, max_seq_length: int) -> int:
    """Return the smallest max_predictions_per_seq that does not limit the share of masked tokens."""
    return min(math.ceil(masked_lm_prob * max_seq_length), max_seq_length - 1)


@dataclass(frozen=True)
class MaskingOverrides:
    """Settings of dynamic masks that replace those of the data; 0: unchanged."""

    masked_lm_prob: float = 0.0
    ngram: int = 0

    def apply(self, settings: InstanceSettings) -> InstanceSettings:
        """Return the settings with these overrides; masked_lm_prob also sets max_predictions_per_seq."""
        if self.masked_lm_prob:
            predictions = predictions_needed(self.masked_lm_prob, settings.max_seq_length)
            settings = replace(settings, masked_lm_prob=self.masked_lm_prob, max_predictions_per_seq=predictions)
        return replace(settings, ngram=self.ngram or settings.ngram)


class RowRandom:
    """Counter-based random generator of rows: SplitMix64 (Steele, Lea and Flood 2014).

    A random number depends on the seed, its row, its column and the number of earlier calls alone, so a row gets the
    same numbers whichever other rows are drawn at the same time.

    Args:
        seed: non-negative integers.
        rows: (B,) integers that identify the rows.
    """

    def __init__(self, seed: Sequence[int], rows: np.ndarray) -> None:
        start = np.random.SeedSequence(seed).generate_state(1, np.uint64)
        self._keys = _mix(start + rows.astype(np.uint64) * _GOLDEN)[:, None]
        self._calls = 0

    def uniform(self, columns: int) -> np.ndarray:
        """Return uniform random numbers in [0, 1): (B, columns) float64."""
        counters = np.arange(columns, dtype=np.uint64) + np.uint64(self._calls << 32)
        self._calls += 1
        return (_mix(self._keys + counters * _GOLDEN) >> np.uint64(11)) * 2.0**-53


_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX = (np.uint64(30), np.uint64(0xBF58476D1CE4E5B9), np.uint64(27), np.uint64(0x94D049BB133111EB), np.uint64(31))


def _mix(values: np.ndarray) -> np.ndarray:
    """Apply SplitMix64's mixing function to uint64 values."""
    first, first_factor, second, second_factor, third = _MIX
    values = (values ^ values >> first) * first_factor
    values = (values ^ values >> second) * second_factor
    return values ^ values >> third


def mask_tokens(
    ids: np.ndarray,
    lengths: np.ndarray,
    word_start: np.ndarray,
    maskable: np.ndarray,
    in_b: np.ndarray,
    vocabulary: MaskVocabulary,
    settings: InstanceSettings,
    random: RowRandom,
) -> tuple[np.ndarray, np.ndarray]:
    """Hide tokens of every example: about masked_lm_prob of its length, at most max_predictions_per_seq.

    Args:
        ids: (B, L) int32.
        lengths: (B,) tokens of each example.
        word_start: (B, L) bool, first tokens of units that are masked together.
        maskable: (B, L) bool, neither padding nor special.
        in_b: (B, L) bool, second segment; no n-gram crosses into it.

    Returns:
        (B, L) int32 with the chosen tokens replaced, and (B, L) bool, the tokens to predict.
    """
    wanted = np.clip(np.rint(lengths * settings.masked_lm_prob).astype(int), 1, settings.max_predictions_per_seq)
    words = _Words.of(word_start & maskable, maskable, in_b)
    masked_words = _choose_ngrams(words, wanted, np.zeros(words.ends.shape, bool), settings, random)
    masked = words.tokens(masked_words) & maskable
    replaced = _replace(ids, masked, vocabulary, random)
    if not settings.do_permutation:
        return replaced, masked
    permuted = words.tokens(_choose_ngrams(words, wanted, masked_words, settings, random)) & maskable
    return _permute(replaced, permuted, random), masked | permuted


@dataclass(frozen=True)
class _Words:
    """Positions of the words of each example.

    Attributes:
        of_token: (B, L) index of the word that a token belongs to.
        counts: (B,) words of each example.
        tokens_before: (B, W + 1) tokens before each word; differences are sizes of n-grams.
        ends: (B, W) index of the word behind the last one in the same segment.
    """

    of_token: np.ndarray
    counts: np.ndarray
    tokens_before: np.ndarray
    ends: np.ndarray

    @classmethod
    def of(cls, starts: np.ndarray, maskable: np.ndarray, in_b: np.ndarray) -> Self:
        """Return the words of examples; `starts` (B, L) bool are their first tokens, for the others see mask_tokens."""
        rows = len(starts)
        of_token = np.maximum(np.cumsum(starts, 1) - 1, 0)
        counts = starts.sum(1)
        width = int(counts.max())
        flat = (of_token + np.arange(rows)[:, None] * width)[maskable]
        sizes = np.bincount(flat, minlength=rows * width).reshape(rows, width)
        first = np.concatenate([np.zeros((rows, 1), int), np.cumsum(sizes, 1)], 1)
        in_first = (starts & ~in_b).sum(1)[:, None]
        ends = np.where(np.arange(width) < in_first, in_first, counts[:, None])
        return cls(of_token, counts, first, ends)

    def tokens(self, words: np.ndarray) -> np.ndarray:
        """Return the tokens (B, L) bool of chosen words (B, W); special tokens and padding have arbitrary values."""
        return np.take_along_axis(words, self.of_token, 1)


def _choose_ngrams(
    words: _Words, wanted: np.ndarray, taken: np.ndarray, settings: InstanceSettings, random: RowRandom
) -> np.ndarray:
    """Return (B, W) bool, n-grams of words that together have `wanted` tokens, or fewer if no further n-gram fits.

    Words are visited in random order, and n is drawn with p(n) proportional to 1/n (reversed without
    favor_shorter_ngram) up to the end of the segment. An n-gram of too many tokens is shortened; one that contains a
    chosen word is skipped.

    Args:
        wanted: (B,) tokens to choose.
        taken: (B, W) bool, words that may not be chosen.
    """
    rows, width = words.ends.shape
    keys = random.uniform(width)
    draws = random.uniform(width)
    keys[np.arange(width) >= words.counts[:, None]] = 2  # behind all words
    order = np.argsort(keys, 1)
    below = _cumulative_ngram_probabilities(settings.ngram, settings.favor_shorter_ngram)
    chosen = np.zeros((rows, width), bool)
    count = np.zeros(rows, int)
    active = np.arange(rows)
    for visit in range(width):
        active = active[(count[active] < wanted[active]) & (visit < words.counts[active])]
        if not len(active):
            break
        word = order[active, visit]
        longest = np.minimum(settings.ngram, words.ends[active, word] - word)
        drawn = 1 + (draws[active, visit][:, None] >= below[longest - 1]).sum(1)
        behind = np.minimum(word[:, None] + np.arange(1, settings.ngram + 1), width)
        tokens = words.tokens_before[active[:, None], behind] - words.tokens_before[active, word][:, None]
        fits = tokens <= (wanted - count)[active][:, None]
        size = np.minimum(fits.sum(1), drawn)  # tokens grow with n, so those that fit are the first ones
        inside = np.arange(settings.ngram) < size[:, None]
        members = behind - 1
        free = ~((chosen | taken)[active[:, None], members] & inside).any(1) & (size > 0)
        inside &= free[:, None]
        chosen[np.broadcast_to(active[:, None], inside.shape)[inside], members[inside]] = True
        count[active[free]] += tokens[free, size[free] - 1]
    return chosen


def _cumulative_ngram_probabilities(ngram: int, favor_shorter: bool) -> np.ndarray:
    """Return (ngram, ngram) float64: row m - 1 has P(n <= 1), P(n <= 2), ... for n-grams of at most m words."""
    weights = 1 / np.arange(1, ngram + 1)
    if not favor_shorter:
        weights = weights[::-1]
    table = np.tril(np.broadcast_to(weights, (ngram, ngram)))
    table = np.cumsum(table, 1) / table.sum(1, keepdims=True)
    return np.where(np.arange(ngram) >= np.arange(ngram)[:, None], 1.0, table)


def _replace(ids: np.ndarray, masked: np.ndarray, vocabulary: MaskVocabulary, random: RowRandom) -> np.ndarray:
    """Replace 80 % of the masked tokens by [MASK] and 10 % by a random token; keep 10 %."""
    row, position = np.nonzero(masked)
    draw = random.uniform(ids.shape[1])[row, position]
    substitute = random.uniform(ids.shape[1])[row, position]
    substitutes = vocabulary.replacements[(substitute * len(vocabulary.replacements)).astype(int)]
    values = np.where(draw < MASK_SHARE + KEEP_SHARE, ids[row, position], substitutes)
    replaced = ids.copy()
    replaced[row, position] = np.where(draw < MASK_SHARE, vocabulary.mask_id, values)
    return replaced


def _permute(ids: np.ndarray, permuted: np.ndarray, random: RowRandom) -> np.ndarray:
    """Shuffle the tokens of each example at the (B, L) positions among themselves."""
    row, position = np.nonzero(permuted)
    order = np.lexsort((random.uniform(ids.shape[1])[row, position], row))  # a random order inside each row
    shuffled = ids.copy()
    shuffled[row, position] = ids[row, position[order]]
    return shuffled
