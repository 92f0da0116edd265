"""Token ids of documents -> pre-training examples: pure functions on numpy.

Shape letters: B (examples), L (longest of them).
"""

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

import numpy as np

from src.masking import Settings, Vocabulary, mask_tokens
from src.records import Column, Ragged

SPECIAL_TOKENS = 3  # [CLS] A [SEP] B [SEP]
MIN_DOCUMENT_TOKENS = 16  # shorter texts make no pair worth learning from


def columns(settings: Settings, pad_id: int) -> dict[str, Column]:
    """The columns of pre-training examples; google's names and meanings."""
    length, predictions = settings.max_seq_length, settings.predictions
    per_token = {name: Column("int32", length, 0, True) for name in ("input_mask", "segment_ids", "token_boundary")}
    return {
        "input_ids": Column("int32", length, pad_id, True),
        **per_token,
        "masked_lm_positions": Column("int32", predictions),
        "masked_lm_ids": Column("int32", predictions),
        "masked_lm_weights": Column("float32", predictions),
        "next_sentence_labels": Column("int32", 0),
    }


@dataclass(frozen=True)
class Documents:
    """Tokenised documents of one unit of work, one after the other.

    ids: (tokens,) int32.
    starts: first token of each document, and the end of the last.
    borders: for each document the positions in `ids` strictly inside it where a segment may end.
    """

    ids: np.ndarray
    starts: list[int]
    borders: list[list[int]]


class Span(NamedTuple):
    """Tokens [start, end)."""

    start: int
    end: int


def join_documents(documents: list[list[list[int]]], word_start: np.ndarray, max_tokens: int) -> Documents:
    """Lay documents out one after the other and find where their segments may end: at ends of sentences.

    A sentence longer than half an example, or half its document, counts as several, divided between words; so every
    document has a border on either side of its middle. Documents below MIN_DOCUMENT_TOKENS are left out.

    Args:
        documents: token ids of every sentence of every document.
        word_start: (V,) bool.
        max_tokens: tokens of the two segments together.
    """
    kept: list[int] = []
    starts, borders = [0], []
    for document in documents:
        size = sum(map(len, document))
        if size < MIN_DOCUMENT_TOKENS:
            continue
        limit = min(size, max_tokens) // 2
        inner: list[int] = []
        for sentence in document:
            begin = len(kept)
            kept.extend(sentence)
            if len(sentence) > limit:
                inner.extend(_divide(kept, begin, limit, word_start))
            inner.append(len(kept))
        borders.append([border for border in inner if starts[-1] < border < len(kept)])
        starts.append(len(kept))
    return Documents(np.array(kept, np.int32), starts, borders)


def _divide(ids: list[int], begin: int, limit: int, word_start: np.ndarray) -> list[int]:
    """Borders inside the sentence ids[begin:] that leave pieces of about `limit` tokens at most, between words."""
    size = len(ids) - begin
    pieces = -(-size // limit)
    borders = []
    previous = begin
    for number in range(1, pieces):
        target = begin + size * number // pieces
        border = target
        while border > previous and not word_start[ids[border]]:
            border -= 1
        previous = border if border > previous else target
        borders.append(previous)
    return borders


# --- segments ---


@dataclass(frozen=True)
class Pair:
    """Two segments of an example. In the text, `first` stands before `second`, unless `second` is of another document.

    label: 1 where the pair is shown as (second, first), or for NSP where second is of another document.
    """

    first: Span
    second: Span
    label: int


def sample_pairs(documents: Documents, settings: Settings, random: Random) -> list[Pair]:
    """Pairs of segments from all documents; each token stands in about one pair.

    A pair lies around a border between sentences. How many tokens it has before and after the border is drawn from a
    distribution that is symmetric whatever the text is, and whether a segment loses its surplus (to the nearest end
    of a sentence) at its beginning or at its end is the toss of a coin. The label is drawn after that. So lengths and
    cuts are the same in both classes: only what the segments say tells their order.
    """
    max_tokens = settings.max_seq_length - SPECIAL_TOKENS
    pairs = []
    for number, borders in enumerate(documents.borders):
        begin, end = documents.starts[number], documents.starts[number + 1]
        expected = (end - begin) / (max_tokens * (1 - settings.short_seq_prob / 2))
        count = max(1, int(expected + random.random()))
        for position in range(count):
            target = max_tokens
            if random.random() < settings.short_seq_prob:
                target = random.randint(min(MIN_DOCUMENT_TOKENS, max_tokens), max_tokens)
            border = _sample_border(borders, begin, end, target, (position + random.random()) / count, random)
            before, after = _sample_lengths(min(border - begin, end - border), target, random)
            first = _cut_before(border, before, [begin, *borders], random)
            second = _cut_after(border, after, [*borders, end], random)
            label = int(random.random() < 0.5)
            if settings.random_next_sentence and label:
                second = _random_segment(documents, number, after, random)
            if second is not None:
                pairs.append(Pair(first, second, label))
    return pairs


def _sample_border(borders: list[int], begin: int, end: int, target: int, share: float, random: Random) -> int:
    """The border nearest to a place in the document, among those with half of the target on either side.

    A short document may have none of these; then it is one of the two around its middle.
    """
    half = min(target, end - begin) // 2
    low, high = begin + half, end - half
    place = low + (high - low) * share
    left, right = bisect_left(borders, low), bisect_right(borders, high)
    middle = bisect_left(borders, place, left, right)
    if left == right:
        return borders[min(max(middle - random.randint(0, 1), 0), len(borders) - 1)]
    around = borders[max(middle - 1, left) : middle + 1] if middle < right else borders[right - 1 : right]
    return min(around, key=lambda border: abs(border - place))


def _sample_lengths(available: int, target: int, random: Random) -> tuple[int, int]:
    """Tokens before and after a border with `available` tokens on its shorter side; exchangeable by construction."""
    total = min(target, 2 * available)
    shorter = max(total - available, total // 8, 1)
    before = random.randint(shorter, total - shorter)
    return before, total - before


def _cut_before(border: int, length: int, starts: list[int], random: Random) -> Span:
    """`length` tokens of the whole sentences that end at the border: the last ones, or the first ones."""
    start = starts[bisect_right(starts, border - length) - 1]
    return Span(border - length, border) if random.random() < 0.5 else Span(start, start + length)


def _cut_after(border: int, length: int, ends: list[int], random: Random) -> Span:
    """The mirror image of _cut_before."""
    end = ends[bisect_left(ends, border + length)]
    return Span(border, border + length) if random.random() < 0.5 else Span(end - length, end)


def _random_segment(documents: Documents, own: int, length: int, random: Random) -> Span | None:
    """A segment of `length` tokens from another document of the unit; None where none is long enough."""
    sizes = [end - start for start, end in zip(documents.starts, documents.starts[1:], strict=False)]
    others = [number for number, size in enumerate(sizes) if size >= length and number != own]
    if not others:
        return None
    chosen = random.choice(others)
    begin, end = documents.starts[chosen], documents.starts[chosen + 1]
    starts = [start for start in [begin, *documents.borders[chosen]] if start + length <= end]
    return _cut_after(random.choice(starts), length, [*documents.borders[chosen], end], random)


# --- examples ---


def build_examples(
    documents: Documents, pairs: list[Pair], vocabulary: Vocabulary, settings: Settings, random: np.random.Generator
) -> dict[str, Ragged]:
    """The columns of a list of pairs: [CLS] A [SEP] B [SEP], masked.

    Returns:
        rows without padding, by column; see columns().
    """
    swap = not settings.random_next_sentence
    shown = [(pair.second, pair.first) if swap and pair.label else (pair.first, pair.second) for pair in pairs]
    a_start, a_end, b_start, b_end = np.array(shown, np.int64).reshape(-1, 4).T[:, :, None]  # each (B, 1)
    a_length, b_length = a_end - a_start, b_end - b_start
    length = (a_length + b_length + SPECIAL_TOKENS)[:, 0]
    place = np.arange(int(length.max()))[None]  # 1, L
    in_b = place > a_length + 1
    source = np.where(in_b, place - a_length - 2 + b_start, place - 1 + a_start)
    separators = (place == a_length + 1) | (place == length[:, None] - 1)
    special = separators | (place == 0)
    filled = place < length[:, None]  # B, L
    ids = documents.ids[np.clip(source, 0, len(documents.ids) - 1)]
    ids = np.where(separators, vocabulary.sep_id, ids)
    ids[:, 0] = vocabulary.cls_id
    boundary = vocabulary.word_start[ids] | special
    words = boundary | (place == 1) | (place == a_length + 2) if settings.do_whole_word_mask else filled
    inputs, predicted = mask_tokens(ids, words, filled & ~special, in_b, vocabulary, settings, random)
    predictions = predicted.sum(1)
    row, position = np.nonzero(predicted)

    def tokens(matrix: np.ndarray) -> Ragged:
        return Ragged(np.broadcast_to(matrix, filled.shape)[filled].astype(np.int32), length)

    return {
        "input_ids": tokens(inputs),
        "input_mask": tokens(filled),
        "segment_ids": tokens(in_b),
        "token_boundary": tokens(boundary),
        "masked_lm_positions": Ragged(position.astype(np.int32), predictions),
        "masked_lm_ids": Ragged(ids[row, position], predictions),
        "masked_lm_weights": Ragged(np.ones(len(row), np.float32), predictions),
        "next_sentence_labels": Ragged(np.array([pair.label for pair in pairs], np.int32), np.ones(len(pairs), int)),
    }


def concatenate(parts: list[dict[str, Ragged]]) -> dict[str, Ragged]:
    """The rows of several results of build_examples, one after the other."""
    return {
        name: Ragged(
            np.concatenate([part[name].values for part in parts]), np.concatenate([part[name].counts for part in parts])
        )
        for name in parts[0]
    }
