"""Segments and their order: nothing but what they say tells the label."""

import itertools
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from src.pretraining_data.instances import Pair, join_documents, sample_pairs
from tests.helpers.pretraining_rows import (
    FIRST,
    SETTINGS,
    assert_fits,
    examples_of,
    lopsided_documents,
    original_ids,
    segments,
    vocabulary,
    with_settings,
)

SIZES = st.lists(st.lists(st.integers(1, 200), min_size=1, max_size=8), min_size=1, max_size=4)


@given(SIZES, st.sampled_from([8, 24, 128]), st.booleans(), st.integers(0, 2**30))
def test_segments_lie_in_their_documents_in_order_and_fit(sizes, max_seq_length, nsp, seed):
    joined = join_documents([[[0] * size for size in document] for document in sizes])
    settings = with_settings(max_seq_length=max_seq_length, random_next_sentence=nsp)
    for pair in sample_pairs(joined, settings, Random(seed)):
        assert_fits(pair, joined, settings)


@given(st.lists(st.lists(st.integers(1, 150), min_size=1, max_size=8), min_size=1, max_size=3), st.integers(0, 2**30))
def test_both_segments_have_as_many_ends_at_borders(sizes, seed):
    joined = join_documents([[[0] * size for size in document] for document in sizes])
    at = set(itertools.chain(*joined.borders))
    for first, second, _ in sample_pairs(joined, SETTINGS, Random(seed)):
        ends = [(span.start in at) + (span.end in at) for span in (first, second)]
        assert ends in ([1, 1], [0, 0], [2, 2])


def test_a_document_of_one_sentence_is_split_and_a_tiny_one_left_out():
    joined = join_documents([[list(range(100, 140))], [[1] * 15]])
    (pair,) = sample_pairs(joined, SETTINGS, Random(0))
    assert pair.first.end == pair.second.start
    assert sample_pairs(join_documents([[[1] * 10]]), SETTINGS, Random(0)) == []


def test_a_document_of_one_example_is_cut_into_whole_sentences_where_lengths_do_not_tell_their_order():
    joined = join_documents([[[1] * size for size in sizes] for sizes in ([10, 20, 30, 12], [10, 40, 20], [30, 32])])
    lengths = {0: set(), 1: set(), 2: set()}
    for seed in range(100):
        for number, pair in enumerate(sample_pairs(joined, SETTINGS, Random(seed))):
            whole = pair.first.end == pair.second.start and pair.second.end == joined.borders[number][-1]
            lengths[number].add((pair.first.end - pair.first.start, pair.second.end - pair.second.start, whole))
    assert lengths[0] == {(10, 62, True), (60, 12, True)}
    assert not any(whole for _, _, whole in lengths[1])
    assert lengths[2] == {(30, 32, True)}


def test_documents_are_used_about_once_and_examples_are_full():
    documents = [[[0] * 23 for _ in range(100)] for _ in range(20)]
    pairs = sample_pairs(join_documents(documents), SETTINGS, Random(0))
    lengths = np.array([sum(span.end - span.start for span in pair[:2]) + 3 for pair in pairs])
    assert 0.95 < (lengths - 3).sum() / (20 * 2300) < 1.05
    assert 0.87 < (lengths == 128).mean() < 0.93
    assert lengths.max() == 128


def guess_labels(features: np.ndarray, labels: np.ndarray) -> float:
    """Accuracy, on the second half, of predicting each label by the majority among equal features in the first."""
    keys = [tuple(row) for row in features]
    half = len(keys) // 2
    votes: dict[tuple, int] = {}
    for key, label in zip(keys[:half], labels[:half], strict=True):
        votes[key] = votes.get(key, 0) + (1 if label else -1)
    guesses = [votes.get(key, 0) > 0 for key in keys[half:]]
    return float(np.mean(np.array(guesses) == labels[half:]))


def describe_pairs(joined, pairs: list[Pair]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(pairs, 2) lengths of A and B as shown, (pairs, 4) whether their ends are ends of sentences, labels."""
    at = np.zeros(len(joined.ids) + 1, bool)
    at[list(itertools.chain(*joined.borders))] = True
    shown = np.array([(*pair.second, *pair.first) if pair.label else (*pair.first, *pair.second) for pair in pairs])
    lengths = np.stack([shown[:, 1] - shown[:, 0], shown[:, 3] - shown[:, 2]], 1)
    return lengths, at[shown], np.array([pair.label for pair in pairs])


@pytest.fixture(scope="module")
def many_pairs():
    joined = join_documents(lopsided_documents(1500))
    pairs = [pair for seed in range(16) for pair in sample_pairs(joined, SETTINGS, Random(seed))]
    return describe_pairs(joined, pairs)


def test_lengths_and_cuts_have_the_same_distribution_in_both_classes(many_pairs):
    lengths, at_border, labels = many_pairs
    assert len(labels) > 30_000
    assert abs(labels.mean() - 0.5) < 3 * 0.5 / len(labels) ** 0.5
    for quantity in (lengths[:, 0], lengths[:, 1], lengths.sum(1), lengths[:, 0] - lengths[:, 1]):
        assert stats.ks_2samp(quantity[labels == 0], quantity[labels == 1]).pvalue > 0.01
    for cut in at_border.T:
        table = [[np.sum(cut[labels == label] == value) for value in (0, 1)] for label in (0, 1)]
        assert stats.chi2_contingency(table).pvalue > 0.01


def test_nothing_is_learnt_from_lengths_and_cuts(many_pairs):
    lengths, at_border, labels = many_pairs
    order = np.random.default_rng(0).permutation(len(labels))
    chance = 3 * 0.5 / (len(labels) / 2) ** 0.5  # three standard deviations
    difference = np.sign(lengths[:, :1] - lengths[:, 1:])
    for features in (lengths // 8, difference, at_border, np.hstack([lengths // 25, at_border])):
        assert abs(guess_labels(features[order], labels[order]) - 0.5) < chance


def test_the_same_classifier_finds_the_lengths_of_google_s_procedure():
    """Segments split at a random sentence and cut at the longer one after they were exchanged."""
    random = Random(0)
    lengths, labels = [], []
    for document in lopsided_documents(8000, seed=1):
        if len(document) > 1:
            split = random.randint(1, len(document) - 1)
            a, b = sum(map(len, document[:split])), sum(map(len, document[split:]))
            label = random.random() < 0.5
            a, b = (b, a) if label else (a, b)
            while a + b > 125:
                a, b = (a - 1, b) if a > b else (a, b - 1)
            lengths.append((a, b))
            labels.append(label)
    assert guess_labels(np.array(lengths) // 8, np.array(labels)) > 0.55


@pytest.mark.parametrize("nsp", [False, True])
def test_sop_never_leaves_the_document_and_nsp_does(nsp):
    documents = [[[FIRST + number] * 30 for _ in range(12)] for number in range(40)]  # each with its own token
    rows, _, _ = examples_of(documents, with_settings(random_next_sentence=nsp), duplicates=4)
    labels = np.array([row["next_sentence_labels"][0] for row in rows])
    assert abs(labels.mean() - 0.5) < 0.1
    for row, label in zip(rows, labels, strict=True):
        a, b = segments(row)
        assert len(set(a)) == len(set(b)) == 1
        assert (a[0] == b[0]) == (label == 0 or not nsp)


def test_sop_label_0_is_the_order_of_the_text():
    documents = [[list(range(FIRST + 20 * line, FIRST + 20 * line + 20)) for line in range(100)]]
    rows, _, _ = examples_of(documents, duplicates=10)
    for row in rows:
        a, b = segments(row)
        assert (a[-1] < b[0]) == (row["next_sentence_labels"][0] == 0)


def test_nsp_has_no_examples_without_a_second_document():
    joined = join_documents([[[FIRST] * 20 for _ in range(20)]])
    assert sample_pairs(joined, with_settings(random_next_sentence=True), Random(0)) == []


def test_columns_describe_the_segments():
    rows, pairs, joined = examples_of(lopsided_documents(50))
    vocab = vocabulary()
    for row, pair in zip(rows, pairs, strict=True):
        a, b = segments(row)
        shown = (pair.second, pair.first) if pair.label else (pair.first, pair.second)
        assert a == joined.ids[slice(*shown[0])].tolist() and b == joined.ids[slice(*shown[1])].tolist()
        assert row["segment_ids"].tolist() == [0] * (len(a) + 2) + [1] * (len(b) + 1)
        assert row["input_mask"].tolist() == [1] * len(row["input_ids"])
        ids = original_ids(row)
        assert row["token_boundary"].tolist() == (vocab.word_start[ids] | (ids < FIRST)).astype(int).tolist()
        assert row["next_sentence_labels"].tolist() == [pair.label]
        assert row["masked_lm_positions"].tolist() == sorted(set(row["masked_lm_positions"].tolist()))
        assert row["masked_lm_weights"].tolist() == [1.0] * len(row["masked_lm_positions"])
        assert (row["masked_lm_ids"] >= FIRST).all()
