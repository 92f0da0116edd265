"""Token ids of documents -> pre-training examples [CLS] A [SEP] B [SEP]: pure functions on numpy.

Shape letters: B (examples), L (tokens of the longest of them).
"""

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

import numpy as np

from src.masking import Settings, Vocabulary, mask_tokens
from src.records import Column, Ragged

SPECIAL_TOKENS = 3
MIN_DOCUMENT_TOKENS = 16  # a shorter text makes no pair worth learning from


def columns(settings: Settings, pad_id: int) -> dict[str, Column]:
    """The columns of pre-training examples, with google's names and meanings."""
    length, predictions = settings.max_seq_length, settings.predictions
    return {
        "input_ids": Column("int32", length, pad_id, per_token=True),
        "input_mask": Column("int32", length, per_token=True),
        "segment_ids": Column("int32", length, per_token=True),
        "token_boundary": Column("int32", length, per_token=True),
        "masked_lm_positions": Column("int32", predictions),
        "masked_lm_ids": Column("int32", predictions),
        "masked_lm_weights": Column("float32", predictions),
        "next_sentence_labels": Column("int32", 0),
    }


# --- documents ---


@dataclass(frozen=True)
class Documents:
    """Tokenized documents of a unit of work, one after the other.

    ids: (tokens,) int32.
    borders: for each document, the ascending positions in `ids` where a segment may begin or end: its beginning, its
        end, and at least one between them.
    """

    ids: np.ndarray
    borders: list[list[int]]


def join_documents(documents: list[list[list[int]]], word_start: np.ndarray, max_tokens: int) -> Documents:
    """Lay documents out one after the other, with borders between their sentences.

    A sentence longer than half a pair, or than half its document, is divided between words, so that every document
    can be split in two. Documents below MIN_DOCUMENT_TOKENS are left out.

    Args:
        documents: token ids of every sentence of every document.
        word_start: (V,) bool, tokens that begin a word.
        max_tokens: tokens of a pair of segments.
    """
    ids: list[int] = []
    borders: list[list[int]] = []
    for document in documents:
        size = sum(map(len, document))
        if size < MIN_DOCUMENT_TOKENS:
            continue
        limit = min(size, max_tokens) // 2
        own = [len(ids)]
        for sentence in document:
            begin = len(ids)
            ids.extend(sentence)
            if len(sentence) > limit:
                own.extend(_divide(ids, begin, limit, word_start))
            own.append(len(ids))
        borders.append(own)
    return Documents(np.array(ids, np.int32), borders)


def _divide(ids: list[int], begin: int, limit: int, word_start: np.ndarray) -> list[int]:
    """Borders between words that divide ids[begin:] into pieces of about `limit` tokens at most."""
    size = len(ids) - begin
    pieces = -(-size // limit)
    borders: list[int] = []
    previous = begin
    for number in range(1, pieces):
        target = begin + size * number // pieces
        border = target
        while border > previous and not word_start[ids[border]]:
            border -= 1
        previous = border if border > previous else target
        borders.append(previous)
    return borders


# --- pairs of segments ---


class Span(NamedTuple):
    """Tokens [start, end)."""

    start: int
    end: int


class Pair(NamedTuple):
    """Two segments and their label.

    SOP: `second` follows `first` in the text, and label 1 shows them exchanged. NSP: label 1 means that `second` is
    from another document.
    """

    first: Span
    second: Span
    label: int


def sample_pairs(documents: Documents, settings: Settings, random: Random) -> list[Pair]:
    """Pairs of segments from all documents; each token is in about one pair.

    A pair lies around a border between sentences. How many tokens it has before and after the border is drawn from a
    distribution that is symmetric whatever the text is, and each segment is cut out of whole sentences at its
    beginning or its end by the toss of a coin. The label is independent of all that, so lengths and cuts are the same
    in both classes: only what the segments say tells their order.
    """
    max_tokens = settings.max_seq_length - SPECIAL_TOKENS
    pairs = []
    for number, borders in enumerate(documents.borders):
        wanted = (borders[-1] - borders[0]) / (max_tokens * (1 - settings.short_seq_prob / 2))
        count = max(1, int(wanted + random.random()))
        for position in range(count):
            target = max_tokens
            if random.random() < settings.short_seq_prob:
                target = random.randint(min(MIN_DOCUMENT_TOKENS, max_tokens), max_tokens)
            border = _sample_border(borders, target, (position + random.random()) / count, random)
            before, after = _sample_lengths(min(border - borders[0], borders[-1] - border), target, random)
            first = _cut_before(borders, border, before, random)
            second: Span | None = _cut_after(borders, border, after, random)
            label = int(random.random() < 0.5)
            if settings.random_next_sentence:
                # Where no other document is long enough there is no pair of either label.
                other = _segment_of_another(documents, number, after, random)
                second = other if label or other is None else second
            if second is not None:
                pairs.append(Pair(first, second, label))
    return pairs


def _sample_border(borders: list[int], target: int, share: float, random: Random) -> int:
    """The border nearest to a place in the document, among those with half of the target on either side.

    A short document may have none of these; then it is one of the two around its middle.

    Args:
        share: the place, from 0 to 1.
    """
    begin, end = borders[0], borders[-1]
    half = min(target, end - begin) // 2
    place = begin + half + (end - begin - 2 * half) * share
    left, right = bisect_left(borders, begin + half), bisect_right(borders, end - half)
    if left == right:
        return borders[min(max(left - random.randint(0, 1), 1), len(borders) - 2)]
    nearest = bisect_left(borders, place, left, right)
    around = borders[max(nearest - 1, left) : min(nearest + 1, right)]
    return min(around, key=lambda border: abs(border - place))


def _sample_lengths(available: int, target: int, random: Random) -> tuple[int, int]:
    """Tokens before and after a border with `available` tokens on its shorter side; both orders are as likely."""
    total = min(target, 2 * available)
    shorter = max(total - available, total // 8, 1)
    before = random.randint(shorter, total - shorter)
    return before, total - before


def _cut_before(borders: list[int], border: int, length: int, random: Random) -> Span:
    """From the whole sentences before the border that have `length` tokens: their last tokens, or their first."""
    start = borders[bisect_right(borders, border - length) - 1]
    return Span(border - length, border) if random.random() < 0.5 else Span(start, start + length)


def _cut_after(borders: list[int], border: int, length: int, random: Random) -> Span:
    """The mirror image of _cut_before."""
    end = borders[bisect_left(borders, border + length)]
    return Span(border, border + length) if random.random() < 0.5 else Span(end - length, end)


def _segment_of_another(documents: Documents, own: int, length: int, random: Random) -> Span | None:
    """A segment of `length` tokens from another document of the unit; None where none is long enough."""
    others = [
        borders
        for number, borders in enumerate(documents.borders)
        if number != own and borders[-1] - borders[0] >= length
    ]
    if not others:
        return None
    borders = random.choice(others)
    start = random.choice(borders[: bisect_right(borders, borders[-1] - length)])
    return _cut_after(borders, start, length, random)


# --- examples ---


def build_examples(
    documents: Documents, pairs: list[Pair], vocabulary: Vocabulary, settings: Settings, random: np.random.Generator
) -> dict[str, Ragged]:
    """The rows of at least one pair, masked, without padding; see columns()."""
    swap = not settings.random_next_sentence
    shown = [(second, first) if swap and label else (first, second) for first, second, label in pairs]
    a_start, a_end, b_start, b_end = np.array(shown).reshape(-1, 4, 1).transpose(1, 0, 2)  # each (B, 1)
    a_size, b_size = a_end - a_start, b_end - b_start
    lengths = (a_size + b_size + SPECIAL_TOKENS)[:, 0]
    place = np.arange(lengths.max())[None]  # (1, L)
    in_b = place > a_size + 1  # (B, L), as all below
    filled = place < lengths[:, None]
    separator = (place == a_size + 1) | (place == lengths[:, None] - 1)
    special = separator | (place == 0)
    source = np.where(in_b, place - a_size - 2 + b_start, place - 1 + a_start)
    ids = documents.ids[np.where(filled & ~special, source, 0)]
    ids[separator] = vocabulary.sep_id
    ids[:, 0] = vocabulary.cls_id
    boundary = vocabulary.word_start[ids] | special
    words = boundary | (place == 1) | (place == a_size + 2) if settings.do_whole_word_mask else filled
    inputs, predicted = mask_tokens(ids, lengths, words, filled & ~special, in_b, vocabulary, settings, random)
    row, position = np.nonzero(predicted)
    predictions = predicted.sum(1)

    def per_token(matrix: np.ndarray) -> Ragged:
        return Ragged(matrix[filled].astype(np.int32), lengths)

    return {
        "input_ids": per_token(inputs),
        "input_mask": per_token(filled),
        "segment_ids": per_token(in_b),
        "token_boundary": per_token(boundary),
        "masked_lm_positions": Ragged(position.astype(np.int32), predictions),
        "masked_lm_ids": Ragged(ids[row, position], predictions),
        "masked_lm_weights": Ragged(np.ones(len(row), np.float32), predictions),
        "next_sentence_labels": Ragged(np.array([pair.label for pair in pairs], np.int32), np.ones_like(lengths)),
    }


def concatenate(parts: list[dict[str, Ragged]]) -> dict[str, Ragged]:
    """The rows of several results of build_examples, one after the other."""
    return {
        name: Ragged(
            np.concatenate([part[name].values for part in parts]), np.concatenate([part[name].counts for part in parts])
        )
        for name in parts[0]
    }
