"""Token ids of documents -> pairs of segments for pre-training: pure functions."""

import math
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

import numpy as np

from src.pretraining_data.examples import SPECIAL_TOKENS
from src.pretraining_data.masking import InstanceSettings

MIN_DOCUMENT_TOKENS = 16  # a shorter text makes no pair worth learning from
NEARLY = 4  # tokens by which two lengths may differ and tell no order; with 8 the longer ones of some texts do
_ATTEMPTS = 20
_SHIFTS = (0, 1, -1, 2, -2, 3, -3, 4, -4)  # of a place that must not be a border between sentences


@dataclass(frozen=True)
class Documents:
    """Tokenized documents of a unit of work, one after the other, without those that were too short (left_out).

    ids: (tokens,) int32. borders: for each document, the ascending positions where a sentence begins, and its end.
    """

    ids: np.ndarray
    borders: list[list[int]]
    left_out: int


def join_documents(documents: list[list[list[int]]]) -> Documents:
    """From the token ids of every sentence, none empty, of every document; those below MIN_DOCUMENT_TOKENS go."""
    ids: list[int] = []
    borders: list[list[int]] = []
    for document in documents:
        if sum(map(len, document)) >= MIN_DOCUMENT_TOKENS:
            borders.append([len(ids)])
            for sentence in document:
                ids.extend(sentence)
                borders[-1].append(len(ids))
    return Documents(np.array(ids, np.int32), borders, len(documents) - len(borders))


class SegmentSpan(NamedTuple):
    """Tokens [start, end)."""

    start: int
    end: int


class Pair(NamedTuple):
    """Two segments and their label.

    SOP: `second` follows `first` in the text, and label 1 shows them exchanged. NSP: label 1 means that `second` is
    from another document.
    """

    first: SegmentSpan
    second: SegmentSpan
    label: int


def sample_pairs(documents: Documents, settings: InstanceSettings, random: Random) -> list[Pair]:
    """Pairs of segments from all documents; each token, wherever in its document it stands, is in about one pair.

    A document is divided into stretches, each of which becomes a pair (_sample_sizes). The label is drawn after the
    pair was cut, and how it was cut says nothing about the order (_cut_whole, _cut): lengths and the kinds of the
    segments' ends have the same distribution in both classes.
    """
    max_tokens = settings.max_seq_length - SPECIAL_TOKENS
    pairs = []
    for number, borders in enumerate(documents.borders):
        start = borders[0]
        sizes = _sample_sizes(borders[-1] - borders[0], max_tokens, settings.short_seq_prob, random)
        for size in sizes:
            segments = None
            if len(sizes) == 1 and not settings.random_next_sentence:  # segments to exchange must have an open end
                segments = _cut_whole(borders, random)
            segments = segments or _cut(borders, start, size, random)
            start += size
            if segments is None:
                continue
            label = int(random.random() < 0.5)
            if settings.random_next_sentence:
                segments = _with_another(documents, number, segments, label, random)
            if segments is not None:
                pairs.append(Pair(*segments, label))
    return pairs


def _sample_sizes(tokens: int, max_tokens: int, short_seq_prob: float, random: Random) -> list[int]:
    """Sizes of the stretches that a document of this many tokens is divided into, in random order.

    They have max_tokens, but for a share of short_seq_prob, of any size below. The rest of the document is one of these
    short ones; a document of up to max_tokens is a stretch by itself.
    """
    least = min(MIN_DOCUMENT_TOKENS, max_tokens // 2)
    count = math.ceil(tokens / (max_tokens * (1 - short_seq_prob / 2)))
    short_share = (short_seq_prob * count - 1) / (count - 1) if count > 1 else 0.0
    sizes = []
    while tokens > max_tokens:
        sizes.append(random.randint(least, max_tokens) if random.random() < short_share else max_tokens)
        tokens -= sizes[-1]
    if sizes and tokens < least:
        tokens += sizes.pop()
        if tokens > max_tokens:
            sizes.append(least)
            tokens -= least
    sizes.append(tokens)
    random.shuffle(sizes)
    return sizes


def _cut(borders: list[int], start: int, size: int, random: Random) -> tuple[SegmentSpan, SegmentSpan] | None:
    """Two segments in the order of the text from about the tokens [start, start + size) of a document.

    One segment begins where a sentence does, the other ends where one does, and their other ends are inside sentences.
    They meet at a border between sentences, or, with probability 0.5, are exchanged in length and kind and lie at
    the outer ends of the sentences that the stretch touches. Without a border in the middle of the stretch, or where
    these sentences have more than twice its tokens, all ends are inside sentences. So nothing but what the segments
    say tells their order.

    None where the sentences are too short for ends inside them.
    """
    window = _window(borders, start, size)
    if window is None:
        return None
    start, end = window
    margin = max(1, (end - start) // 8)
    sentences = SegmentSpan(borders[bisect_left(borders, start) - 1], borders[bisect_left(borders, end)])
    inner = borders[bisect_left(borders, start + margin) : bisect_right(borders, end - margin)]
    for _ in range(_ATTEMPTS if inner and sentences.end - sentences.start <= 2 * (end - start) else 0):
        split = random.choice(inner)
        first_end, second_start = sentences.start + end - split, sentences.end - (split - start)
        if not _is_border(borders, first_end) and not _is_border(borders, second_start):
            if random.random() < 0.5:
                return SegmentSpan(start, split), SegmentSpan(split, end)
            return SegmentSpan(sentences.start, first_end), SegmentSpan(second_start, sentences.end)
    for _ in range(_ATTEMPTS):
        split = random.randint(start + margin, end - margin)
        if not _is_border(borders, split) and not _is_border(borders, start + end - split):
            return SegmentSpan(start, split), SegmentSpan(split, end)
    return None


def _cut_whole(borders: list[int], random: Random) -> tuple[SegmentSpan, SegmentSpan] | None:
    """Two segments of whole sentences that make up a document; None where lengths would tell their order.

    A border, perhaps the same, must split it into nearly these lengths in the other order; both are equally likely.
    """
    begin, end = borders[0], borders[-1]
    margin = max(1, (end - begin) // 8)
    inner = borders[bisect_left(borders, begin + margin) : bisect_right(borders, end - margin)]
    chosen = []
    for split in inner:
        mirrored = begin + end - split
        chosen += [split] * (bisect_right(inner, mirrored + NEARLY) - bisect_left(inner, mirrored - NEARLY))
    if not chosen:
        return None
    split = random.choice(chosen)
    return SegmentSpan(begin, split), SegmentSpan(split, end)


def _window(borders: list[int], start: int, size: int) -> SegmentSpan | None:
    """About the tokens [start, start + size), moved and shortened so that both ends are inside sentences."""
    begin, end = borders[0] + 1, borders[-1] - 1
    for tokens in range(min(size, end - begin), max(size // 2, 1), -1):
        nearest = min(max(start, begin), end - tokens)
        for shift in _SHIFTS:
            place = nearest + shift
            inside = begin <= place <= end - tokens
            if inside and not _is_border(borders, place) and not _is_border(borders, place + tokens):
                return SegmentSpan(place, place + tokens)
    return None


def _with_another(
    documents: Documents, own: int, segments: tuple[SegmentSpan, SegmentSpan], label: int, random: Random
) -> tuple[SegmentSpan, SegmentSpan] | None:
    """Segments with one of them, either, from another document, if the label asks for it; None if none was found.

    Where no other document has such a segment there is no pair of either label.
    """
    replaced = random.randrange(2)
    other = _segment_of_another(documents, own, segments[replaced], random)
    if other is None or not label:
        return other and segments
    return (other, segments[1]) if replaced == 0 else (segments[0], other)


def _segment_of_another(documents: Documents, own: int, model: SegmentSpan, random: Random) -> SegmentSpan | None:
    """A segment as long as `model` and cut as it is, from another document of the unit; None if none was found.

    Any token is about as likely to be in it as any other. Drawn within a document alone it would seldom hold the
    document's beginning or end; drawn with as much room before and after as it is long, and moved inside, too often.
    """
    length = model.end - model.start
    borders = documents.borders[own]
    begins, ends = _is_border(borders, model.start), _is_border(borders, model.end)
    for _ in range(_ATTEMPTS):
        token = random.randrange(len(documents.ids))
        number = bisect_right(documents.borders, token, key=lambda borders: borders[0]) - 1
        borders = documents.borders[number]
        room = borders[-1] - length
        if number == own or room <= borders[0]:
            continue
        beyond = 3 * length // 4
        start = min(max(random.randint(borders[0] - beyond, room + beyond), borders[0]), room)
        if begins:
            start = borders[bisect_right(borders, start) - 1]
        elif ends:
            start = borders[bisect_left(borders, start + length)] - length
        if not borders[0] <= start <= room:
            continue
        if (_is_border(borders, start), _is_border(borders, start + length)) == (begins, ends):
            return SegmentSpan(start, start + length)
    return None


def _is_border(borders: list[int], position: int) -> bool:
    return borders[bisect_left(borders, position)] == position
