"""Tokens near the ends of documents are used about as often as all others."""

from random import Random

import numpy as np
import pytest

from src.pretraining_data.coverage import NEAR, Coverage
from src.pretraining_data.instances import Pair, SegmentSpan, join_documents, sample_pairs
from tests.helpers.pretraining_rows import lopsided_documents, with_settings

PASSES = 16


def equal_sentences(random: Random, documents: int, most: int, size: int) -> list[list[list[int]]]:
    return [[[0] * size] * random.randint(1, most) for _ in range(documents)]


TEXTS = {
    "lopsided": lopsided_documents(400),
    "short": equal_sentences(Random(0), 400, 8, 19),
    "long": equal_sentences(Random(0), 40, 200, 24),
    "of long sentences": equal_sentences(Random(0), 100, 20, 150),
}
LIMITS = {"of long sentences": 0.13}  # where all ends are inside sentences, the very first and last token are left out


@pytest.mark.parametrize("max_seq_length", [64, 128, 512])
@pytest.mark.parametrize("text", TEXTS)
def test_beginnings_and_ends_are_used_as_often_as_the_middle(text, max_seq_length):
    documents = join_documents(TEXTS[text])
    settings = with_settings(max_seq_length=max_seq_length)
    pairs = [pair for seed in range(PASSES) for pair in sample_pairs(documents, settings, Random(seed))]
    coverage = Coverage.of(documents, pairs, PASSES)
    np.testing.assert_allclose(coverage.relative, 1, atol=LIMITS.get(text, 0.1))
    assert coverage.uses[0] / coverage.tokens[0] == pytest.approx(1, abs=0.05)


def test_borrowed_segments_hold_beginnings_and_ends_too():
    documents = join_documents(TEXTS["long"])
    settings = with_settings(random_next_sentence=True)
    pairs = [pair for seed in range(PASSES) for pair in sample_pairs(documents, settings, Random(seed))]
    np.testing.assert_allclose(Coverage.of(documents, pairs, PASSES).relative, 1, atol=0.2)


def test_counts_add_up():
    documents = join_documents([[[1] * 10, [1] * 70], [[1] * 15], [[1] * 20]])
    pairs = [Pair(SegmentSpan(2, 10), SegmentSpan(10, 75), 0), Pair(SegmentSpan(80, 90), SegmentSpan(91, 100), 1)]
    coverage = Coverage.of(documents, pairs, passes=2)
    assert NEAR == (8, 32, 64)
    # documents of 80 and 20 tokens, all of whose tokens but 0, 1, 75 to 79 and 90 are used once
    assert coverage.uses.tolist() == [92, 14, 49, 81, 11, 46, 78]
    assert coverage.tokens.tolist() == [200, 32, 104, 168, 32, 104, 168]
    assert (coverage.documents, coverage.left_out) == (3, 1)
    both = coverage + coverage
    assert both.uses.tolist() == (2 * coverage.uses).tolist() and both.documents == 6
    assert (Coverage.none() + coverage).relative.tolist() == both.relative.tolist()
    assert "uses each token 0.46 times; the first 8, 32, 64 of a document 0.95, 1.02, 1.05 times as often" in str(both)
    assert "2 of 6 documents have fewer than 16 tokens and are left out" in str(both)
