"""Documents -> pairs of segments of whole sentences, like google-research/albert's create_instances_from_document.

One deliberate difference: a chunk of one sentence also takes the next sentence, and a single sentence left at the end
of a document is dropped. google's code completes it with a random segment and labels the pair as exchanged.
"""

from random import Random

from src.pretraining_data.examples import SPECIAL_TOKENS
from src.pretraining_data.instances import Documents, Pair, SegmentSpan
from src.pretraining_data.masking import InstanceSettings


def pack_sentences(documents: Documents, settings: InstanceSettings, random: Random) -> list[Pair]:
    """Return pairs from all documents: chunks of sentences up to a target length, each split between two sentences.

    The target is the maximum length, or any length for a share of short_seq_prob of the documents. A longer chunk loses
    tokens of its longer segment, one by one, at the segment's beginning or end.
    """
    if settings.random_next_sentence and len(documents.borders) < 2:
        return []  # there is no other document to take a second segment from
    pairs = []
    for document_index in range(len(documents.borders)):
        pairs += _pack_document(documents, document_index, settings, random)
    return pairs


def _pack_document(documents: Documents, document_index: int, settings: InstanceSettings, random: Random) -> list[Pair]:
    max_tokens = settings.max_seq_length - SPECIAL_TOKENS
    target = random.randint(2, max_tokens) if random.random() < settings.short_seq_prob else max_tokens
    borders = documents.borders[document_index]
    sentences = len(borders) - 1
    pairs = []
    begin = 0
    while sentences - begin > 1:
        end = begin + 2
        while end < sentences and borders[end] - borders[begin] < target:
            end += 1
        split = random.randint(begin + 1, end - 1)
        first = SegmentSpan(borders[begin], borders[split])
        second = SegmentSpan(borders[split], borders[end])
        label = int(random.random() < 0.5)
        if settings.random_next_sentence and label:
            second = _segment_of_other_document(documents, document_index, target - first.size, random)
            end = split  # the next chunk begins with the unused sentences
        pairs.append(Pair(*_truncate(first, second, max_tokens, random), label))
        begin = end
    return pairs


def _segment_of_other_document(documents: Documents, document_index: int, tokens: int, random: Random) -> SegmentSpan:
    """Return sentences of another document from a random one on, of at least so many tokens if it has them."""
    other_index = random.randrange(len(documents.borders) - 1)
    if other_index >= document_index:
        other_index += 1
    borders = documents.borders[other_index]
    start = random.randrange(len(borders) - 1)
    end = start + 1
    while end < len(borders) - 1 and borders[end] - borders[start] < tokens:
        end += 1
    return SegmentSpan(borders[start], borders[end])


def _truncate(
    first: SegmentSpan, second: SegmentSpan, max_tokens: int, random: Random
) -> tuple[SegmentSpan, SegmentSpan]:
    """Truncate a pair like google's truncate_seq_pair."""
    while first.size + second.size > max_tokens:
        if first.size > second.size:
            first = _drop_token(first, random)
        else:
            second = _drop_token(second, random)
    return first, second


def _drop_token(span: SegmentSpan, random: Random) -> SegmentSpan:
    """Return a span without its first or its last token."""
    return SegmentSpan(span.start + 1, span.end) if random.random() < 0.5 else SegmentSpan(span.start, span.end - 1)
