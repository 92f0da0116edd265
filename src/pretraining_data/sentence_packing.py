"""Documents -> pairs of segments of whole sentences, as google-research/albert's create_instances_from_document.

Where it differs on purpose: a chunk of one sentence takes the next one along, and one that is left alone at the end of
a document becomes no pair. There a random segment makes it one, labelled as exchanged.
"""

from random import Random

from src.pretraining_data.examples import SPECIAL_TOKENS
from src.pretraining_data.instances import Documents, Pair, SegmentSpan
from src.pretraining_data.masking import InstanceSettings


def pack_sentences(documents: Documents, settings: InstanceSettings, random: Random) -> list[Pair]:
    """Pairs from all documents: chunks of sentences up to a target length, each split between two of its sentences.

    The target is the longest example, or for a share of short_seq_prob of the documents any length. What a chunk has
    above the longest example is taken away token by token from the longer segment, at its beginning or its end.
    """
    if settings.random_next_sentence and len(documents.borders) < 2:
        return []  # there is no other document to take a second segment from
    pairs = []
    for number in range(len(documents.borders)):
        pairs += _pack_document(documents, number, settings, random)
    return pairs


def _pack_document(documents: Documents, number: int, settings: InstanceSettings, random: Random) -> list[Pair]:
    max_tokens = settings.max_seq_length - SPECIAL_TOKENS
    target = random.randint(2, max_tokens) if random.random() < settings.short_seq_prob else max_tokens
    borders, pairs = documents.borders[number], []
    sentences, begin = len(borders) - 1, 0
    while sentences - begin > 1:
        end = begin + 2
        while end < sentences and borders[end] - borders[begin] < target:
            end += 1
        split = random.randint(begin + 1, end - 1)
        first, second = SegmentSpan(borders[begin], borders[split]), SegmentSpan(borders[split], borders[end])
        label = int(random.random() < 0.5)
        if settings.random_next_sentence and label:
            second = _segment_of_another(documents, number, target - (first.end - first.start), random)
            end = split  # the sentences that were not used begin the next chunk
        pairs.append(Pair(*_truncate(first, second, max_tokens, random), label))
        begin = end
    return pairs


def _segment_of_another(documents: Documents, own: int, tokens: int, random: Random) -> SegmentSpan:
    """Whole sentences of another document, from any of them on, of at least so many tokens if it has them."""
    number = random.randrange(len(documents.borders) - 1)
    borders = documents.borders[number + (number >= own)]
    start = random.randrange(len(borders) - 1)
    end = start + 1
    while end < len(borders) - 1 and borders[end] - borders[start] < tokens:
        end += 1
    return SegmentSpan(borders[start], borders[end])


def _truncate(
    first: SegmentSpan, second: SegmentSpan, max_tokens: int, random: Random
) -> tuple[SegmentSpan, SegmentSpan]:
    """google's truncate_seq_pair."""
    spans = [first, second]
    while sum(span.end - span.start for span in spans) > max_tokens:
        longer = int(spans[0].end - spans[0].start <= spans[1].end - spans[1].start)
        start, end = spans[longer]
        spans[longer] = SegmentSpan(start + 1, end) if random.random() < 0.5 else SegmentSpan(start, end - 1)
    return spans[0], spans[1]
