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
_ATTEMPTS = 20


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
    borders: for each document, the ascending positions in `ids` where a sentence begins, and its end.
    """

    ids: np.ndarray
    borders: list[list[int]]


def join_documents(documents: list[list[list[int]]]) -> Documents:
    """Lay documents out one after the other; those below MIN_DOCUMENT_TOKENS are left out.

    Args:
        documents: token ids of every sentence of every document; no sentence is empty.
    """
    ids: list[int] = []
    borders: list[list[int]] = []
    for document in documents:
        if sum(map(len, document)) >= MIN_DOCUMENT_TOKENS:
            borders.append([len(ids)])
            for sentence in document:
                ids.extend(sentence)
                borders[-1].append(len(ids))
    return Documents(np.array(ids, np.int32), borders)


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

    Nothing but what the segments say tells their order. A pair lies around a split, which is a border between
    sentences, or in the middle of a long sentence a place inside it. How many tokens it has before and after is drawn
    from a distribution that is symmetric whatever the text is. At a border, each segment begins or ends where a
    sentence does, by the toss of a coin, and its other end is inside a sentence; at a split inside a sentence, all
    ends are. The label is drawn after that. So lengths and cuts have the same distribution in both classes.
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
            split = _sample_split(borders, target, (position + random.random()) / count)
            lengths = _sample_lengths(borders, split, target, random)
            if lengths is None:
                continue
            first = random.choice(_cuts_before(borders, split, lengths[0]))
            second: Span | None = random.choice(_cuts_after(borders, split, lengths[1]))
            label = int(random.random() < 0.5)
            if settings.random_next_sentence:
                # Where no other document has such a segment there is no pair of either label.
                at_border = _is_border(borders, split)
                other = _segment_of_another(documents, number, at_border, lengths[1], random)
                second = other if label or other is None else second
            if second is not None:
                pairs.append(Pair(first, second, label))
    return pairs


def _sample_split(borders: list[int], target: int, share: float) -> int:
    """The border nearest to a place in the document, preferably one with half of the target on either side.

    Where the nearest one is farther off than a quarter of the target, it is that place itself.

    Args:
        share: the place, from 0 (half of the target after the document's beginning) to 1 (half before its end).
    """
    begin, end = borders[0], borders[-1]
    half = min(target, end - begin) // 2
    place = begin + half + int((end - begin - 2 * half) * share)
    low, high = place - half // 2, place + half // 2
    left, right = bisect_left(borders, low), bisect_right(borders, high)
    near = [border for border in borders[left:right] if begin < border < end]
    inside = [border for border in near if begin + half <= border <= end - half]
    return min(inside or near or [place], key=lambda border: abs(border - place))


def _sample_lengths(borders: list[int], split: int, target: int, random: Random) -> tuple[int, int] | None:
    """Tokens before and after a split, each order as likely as the other; None where no lengths are possible.

    Both sides must be able to have both lengths, each with exactly one end, or none, where a sentence ends.
    """
    available = min(split - borders[0], borders[-1] - split) - 1
    for total in range(min(target, 2 * available), 1, -1):
        shorter = max(total - available, total // 8, 1)
        for _ in range(min(_ATTEMPTS, total - 2 * shorter + 1)):
            before = random.randint(shorter, total - shorter)
            lengths = before, total - before
            if all(_cuts_before(borders, split, size) and _cuts_after(borders, split, size) for size in lengths):
                return lengths
    return None


def _cuts_before(borders: list[int], split: int, length: int) -> list[Span]:
    """The segments of a length that may stand before a split; empty if one of them would not be cut as it must be.

    At a border these are the last tokens before it, and the first ones of the sentences that these belong to.
    """
    start = borders[bisect_right(borders, split - length) - 1]
    if start == split - length:
        return []
    last = Span(split - length, split)
    if not _is_border(borders, split):
        return [last]
    return [] if _is_border(borders, start + length) else [last, Span(start, start + length)]


def _cuts_after(borders: list[int], split: int, length: int) -> list[Span]:
    """The mirror image of _cuts_before."""
    end = borders[bisect_left(borders, split + length)]
    if end == split + length:
        return []
    first = Span(split, split + length)
    if not _is_border(borders, split):
        return [first]
    return [] if _is_border(borders, end - length) else [first, Span(end - length, end)]


def _is_border(borders: list[int], position: int) -> bool:
    return borders[bisect_left(borders, position)] == position


def _segment_of_another(documents: Documents, own: int, at_border: bool, length: int, random: Random) -> Span | None:
    """A segment cut as those after a split are, from another document of the unit; None if none was found."""
    if len(documents.borders) < 2:
        return None
    for _ in range(_ATTEMPTS):
        number = random.randrange(len(documents.borders) - 1)
        borders = documents.borders[number + (number >= own)]
        if borders[-1] - borders[0] <= length:
            continue
        start = random.choice(borders[:-1]) if at_border else random.randrange(borders[0], borders[-1])
        if start + length < borders[-1] and _is_border(borders, start) == at_border:
            cuts = _cuts_after(borders, start, length)
            if cuts:
                return random.choice(cuts)
    return None


# --- examples ---


def build_examples(
    documents: Documents, pairs: list[Pair], vocabulary: Vocabulary, settings: Settings, random: np.random.Generator
) -> dict[str, Ragged]:
    """The rows of at least one pair, masked, without padding; see columns().

    An example in which no word is short enough to be masked predicts its [CLS] with weight 0.
    """
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
    predicted[~predicted.any(1), 0] = True
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
        "masked_lm_weights": Ragged((position > 0).astype(np.float32), predictions),
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
