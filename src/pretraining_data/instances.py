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
# Tokens by which lengths that count as equal may differ; with 8 they reveal the order in some texts.
MAX_LENGTH_DIFFERENCE = 4
_ATTEMPTS = 20
_SHIFTS = (0, 1, -1, 2, -2, 3, -3, 4, -4)  # attempts to move a position off a border between sentences


@dataclass(frozen=True)
class Documents:
    """Concatenated tokenized documents of a unit of work.

    Attributes:
        ids: (tokens,) int32.
        borders: for each document, the ascending positions where a sentence begins, and the document's end.
    """

    ids: np.ndarray
    borders: list[list[int]]


def join_documents(documents: list[list[list[int]]]) -> Documents:
    """Join documents, given as token ids of non-empty sentences; leave out those below MIN_DOCUMENT_TOKENS."""
    ids: list[int] = []
    borders: list[list[int]] = []
    for document in documents:
        if sum(map(len, document)) >= MIN_DOCUMENT_TOKENS:
            borders.append([len(ids)])
            for sentence in document:
                ids.extend(sentence)
                borders[-1].append(len(ids))
    return Documents(np.array(ids, np.int32), borders)


class SegmentSpan(NamedTuple):
    """Token range [start, end)."""

    start: int
    end: int

    @property
    def size(self) -> int:
        """Number of tokens."""
        return self.end - self.start


class Pair(NamedTuple):
    """Two segments and their label.

    SOP: `second` follows `first` in the text; with label 1 the example shows them in reverse order. NSP: label 1 means
    that `second` is from another document.
    """

    first: SegmentSpan
    second: SegmentSpan
    label: int


def sample_pairs(documents: Documents, settings: InstanceSettings, random: Random) -> list[Pair]:
    """Return pairs of segments from all documents; each token, wherever in its document, is in about one pair.

    A document is divided into stretches (_sample_sizes), and each becomes a pair. The label is drawn after the pair is
    cut, and the cut does not reveal the order (_cut_whole, _cut): lengths and types of segment ends have the same
    distribution in both classes.
    """
    max_tokens = settings.max_seq_length - SPECIAL_TOKENS
    pairs = []
    for document_index, borders in enumerate(documents.borders):
        start = borders[0]
        sizes = _sample_sizes(borders[-1] - borders[0], max_tokens, settings.short_seq_prob, random)
        for size in sizes:
            segments = None
            # NSP replaces a segment, which must have an end inside a sentence.
            if len(sizes) == 1 and not settings.random_next_sentence:
                segments = _cut_whole(borders, random)
            segments = segments or _cut(borders, start, size, random)
            start += size
            if segments is None:
                continue
            label = int(random.random() < 0.5)
            if settings.random_next_sentence:
                segments = _replace_segment(documents, document_index, segments, label, random)
            if segments is not None:
                pairs.append(Pair(*segments, label))
    return pairs


def _sample_sizes(tokens: int, max_tokens: int, short_seq_prob: float, random: Random) -> list[int]:
    """Return the sizes of the stretches that a document of this many tokens is divided into, in random order.

    Stretches have max_tokens, except for a share of short_seq_prob, which have any smaller size. The remainder of the
    document is one of these short ones; a document of up to max_tokens is a single stretch.
    """
    min_tokens = min(MIN_DOCUMENT_TOKENS, max_tokens // 2)
    count = math.ceil(tokens / (max_tokens * (1 - short_seq_prob / 2)))
    short_share = (short_seq_prob * count - 1) / (count - 1) if count > 1 else 0.0
    sizes = []
    while tokens > max_tokens:
        sizes.append(random.randint(min_tokens, max_tokens) if random.random() < short_share else max_tokens)
        tokens -= sizes[-1]
    if sizes and tokens < min_tokens:
        tokens += sizes.pop()
        if tokens > max_tokens:
            sizes.append(min_tokens)
            tokens -= min_tokens
    sizes.append(tokens)
    random.shuffle(sizes)
    return sizes


def _cut(borders: list[int], start: int, size: int, random: Random) -> tuple[SegmentSpan, SegmentSpan] | None:
    """Return two segments in text order from about the tokens [start, start + size) of a document.

    Half of the pairs meet at a border between sentences, and their outer ends are inside sentences. The others lie at
    the outer ends of the sentences that the stretch touches: the first segment has the second one's length and begins
    at a border, the second has the first one's and ends at one. All ends are inside sentences if no border lies in the
    middle of the stretch, or if the sentences that it touches have more than twice its tokens. So only the content of
    the segments reveals their order.

    Returns None if the sentences are too short to end inside them.
    """
    window = _window(borders, start, size)
    if window is None:
        return None
    start, end = window
    margin = max(1, window.size // 8)
    sentences = SegmentSpan(borders[bisect_left(borders, start) - 1], borders[bisect_left(borders, end)])
    inner = borders[bisect_left(borders, start + margin) : bisect_right(borders, end - margin)]
    can_use_border = inner and sentences.size <= 2 * window.size
    for _ in range(_ATTEMPTS if can_use_border else 0):
        split = random.choice(inner)
        first_end = sentences.start + end - split
        second_start = sentences.end - (split - start)
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
    """Split a document into two segments of whole sentences; return None if lengths would reveal their order.

    A split is allowed if a border, perhaps the same, splits the document into nearly the same lengths in reverse order;
    both splits are equally likely.
    """
    begin = borders[0]
    end = borders[-1]
    margin = max(1, (end - begin) // 8)
    inner = borders[bisect_left(borders, begin + margin) : bisect_right(borders, end - margin)]
    candidates = []
    for split in inner:
        mirrored = begin + end - split
        mirrored_borders = bisect_right(inner, mirrored + MAX_LENGTH_DIFFERENCE) - bisect_left(
            inner, mirrored - MAX_LENGTH_DIFFERENCE
        )
        candidates += [split] * mirrored_borders
    if not candidates:
        return None
    split = random.choice(candidates)
    return SegmentSpan(begin, split), SegmentSpan(split, end)


def _window(borders: list[int], start: int, size: int) -> SegmentSpan | None:
    """Return about the tokens [start, start + size), moved and shortened so that both ends are inside sentences."""
    begin = borders[0] + 1
    end = borders[-1] - 1
    for tokens in range(min(size, end - begin), max(size // 2, 1), -1):
        nearest = min(max(start, begin), end - tokens)
        for shift in _SHIFTS:
            position = nearest + shift
            inside = begin <= position <= end - tokens
            if inside and not _is_border(borders, position) and not _is_border(borders, position + tokens):
                return SegmentSpan(position, position + tokens)
    return None


def _replace_segment(
    documents: Documents, document_index: int, segments: tuple[SegmentSpan, SegmentSpan], label: int, random: Random
) -> tuple[SegmentSpan, SegmentSpan] | None:
    """Replace one of the segments by one of another document if the label is 1.

    Returns None, for either label, if no other document has a similar segment.
    """
    replaced = random.randrange(2)
    other = _similar_segment(documents, document_index, segments[replaced], random)
    if other is None:
        return None
    if label == 0:
        return segments
    return (other, segments[1]) if replaced == 0 else (segments[0], other)


def _similar_segment(
    documents: Documents, document_index: int, segment: SegmentSpan, random: Random
) -> SegmentSpan | None:
    """Return a segment of another document with the same length and types of ends; None if none was found.

    All tokens are about equally likely to be in it. Drawn strictly within a document, it would seldom hold the
    document's beginning or end; drawn with its length as margin on both sides and moved inside, too often.
    """
    length = segment.size
    borders = documents.borders[document_index]
    starts_at_border = _is_border(borders, segment.start)
    ends_at_border = _is_border(borders, segment.end)
    for _ in range(_ATTEMPTS):
        token = random.randrange(len(documents.ids))
        other_index = bisect_right(documents.borders, token, key=lambda borders: borders[0]) - 1
        borders = documents.borders[other_index]
        last_start = borders[-1] - length
        if other_index == document_index or last_start <= borders[0]:
            continue
        margin = 3 * length // 4
        start = min(max(random.randint(borders[0] - margin, last_start + margin), borders[0]), last_start)
        if starts_at_border:
            start = borders[bisect_right(borders, start) - 1]
        elif ends_at_border:
            start = borders[bisect_left(borders, start + length)] - length
        if not borders[0] <= start <= last_start:
            continue
        if (_is_border(borders, start), _is_border(borders, start + length)) == (starts_at_border, ends_at_border):
            return SegmentSpan(start, start + length)
    return None


def _is_border(borders: list[int], position: int) -> bool:
    return borders[bisect_left(borders, position)] == position
