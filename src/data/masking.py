"""Choosing and hiding the tokens that a masked language model predicts: n-grams of whole words, 80/10/10.

All examples of a unit of work at once, as google-research/albert's create_masked_lm_predictions does one by one.
Shape letters: B (examples), L (longest of them), W (most words of an example).
"""

from dataclasses import dataclass
from typing import Self

import numpy as np

MASK_SHARE, KEEP_SHARE = 0.8, 0.1  # what remains becomes a random token


@dataclass(frozen=True)
class MaskVocabulary:
    """word_start: (V,) bool, whether a token begins a word. replacements: (R,) int32, for random replacement."""

    word_start: np.ndarray
    replacements: np.ndarray
    cls_id: int
    sep_id: int
    mask_id: int


@dataclass(frozen=True)
class InstanceSettings:
    """How examples are made; the keys of create_data_config.yaml of the same names."""

    max_seq_length: int
    max_predictions_per_seq: int
    masked_lm_prob: float
    short_seq_prob: float
    ngram: int
    favor_shorter_ngram: bool
    do_whole_word_mask: bool
    do_permutation: bool
    random_next_sentence: bool

    @property
    def predictions(self) -> int:
        """Most predicted positions of an example; permuted tokens are predicted besides the masked ones."""
        return self.max_predictions_per_seq * (2 if self.do_permutation else 1)


def mask_tokens(
    ids: np.ndarray,
    lengths: np.ndarray,
    word_start: np.ndarray,
    maskable: np.ndarray,
    in_b: np.ndarray,
    vocabulary: MaskVocabulary,
    settings: InstanceSettings,
    random: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray]:
    """Hide tokens of every example: about masked_lm_prob of its length, at most max_predictions_per_seq.

    Args:
        ids: (B, L) int32. lengths: (B,) tokens of each example.
        word_start: (B, L) bool, tokens that begin what is masked together.
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
    """Where the words of each example are.

    of_token: (B, L) number of the word that a token belongs to.
    counts: (B,) words of each example.
    first: (B, W + 1) tokens that precede each word; differences are sizes of n-grams.
    ends: (B, W) number of the word behind the last one in the same segment.
    """

    of_token: np.ndarray
    counts: np.ndarray
    first: np.ndarray
    ends: np.ndarray

    @classmethod
    def of(cls, starts: np.ndarray, maskable: np.ndarray, in_b: np.ndarray) -> Self:
        """From (B, L) bools: first tokens of words, tokens that may be masked, tokens of the second segment."""
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
        """(B, L) bool, the tokens of (B, W) chosen words; special tokens and padding have arbitrary values."""
        return np.take_along_axis(words, self.of_token, 1)


def _choose_ngrams(
    words: _Words, wanted: np.ndarray, taken: np.ndarray, settings: InstanceSettings, random: np.random.Generator
) -> np.ndarray:
    """Choose n-grams of words until `wanted` tokens of each example are chosen or no n-gram fits.

    Words are visited in random order, and n is drawn with p(n) proportional to 1/n (turned around without
    favor_shorter_ngram) up to the words left in the segment. An n-gram of too many tokens is shortened; one that meets
    a chosen word is passed over.

    Args:
        wanted: (B,) tokens to choose. taken: (B, W) bool, words that may not be chosen, like the result.
    """
    rows, width = words.ends.shape
    keys = random.random((rows, width), np.float32)
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
        drawn = 1 + (random.random(len(active))[:, None] >= below[longest - 1]).sum(1)
        behind = np.minimum(word[:, None] + np.arange(1, settings.ngram + 1), width)
        tokens = words.first[active[:, None], behind] - words.first[active, word][:, None]
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
    """(ngram, ngram) float64: row m - 1 has P(n <= 1), P(n <= 2), ... when n is at most m."""
    weights = 1 / np.arange(1, ngram + 1)
    if not favor_shorter:
        weights = weights[::-1]
    table = np.tril(np.broadcast_to(weights, (ngram, ngram)))
    table = np.cumsum(table, 1) / table.sum(1, keepdims=True)
    return np.where(np.arange(ngram) >= np.arange(ngram)[:, None], 1.0, table)


def _replace(
    ids: np.ndarray, masked: np.ndarray, vocabulary: MaskVocabulary, random: np.random.Generator
) -> np.ndarray:
    """[MASK] for 80 % of the masked tokens, themselves for 10 %, a random token for 10 %."""
    row, position = np.nonzero(masked)
    draw = random.random(len(row))
    substitutes = vocabulary.replacements[random.integers(len(vocabulary.replacements), size=len(row))]
    values = np.where(draw < MASK_SHARE + KEEP_SHARE, ids[row, position], substitutes)
    replaced = ids.copy()
    replaced[row, position] = np.where(draw < MASK_SHARE, vocabulary.mask_id, values)
    return replaced


def _permute(ids: np.ndarray, permuted: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Shuffle the tokens of each example at the (B, L) positions among themselves."""
    row, position = np.nonzero(permuted)
    order = np.lexsort((random.random(len(row)), row))  # a random order inside each row
    shuffled = ids.copy()
    shuffled[row, position] = ids[row, position[order]]
    return shuffled
