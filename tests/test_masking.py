"""Which tokens are masked, and by what: shares, whole words, n-grams as google's procedure."""

import itertools

import numpy as np
import pytest
from scipy import stats

from src.pretraining_data.masking import _GOLDEN, InstanceSettings, MaskVocabulary, RowRandom, _mix, mask_tokens
from tests.helpers.pretraining_rows import (
    CLS,
    FIRST,
    MASK,
    SEP,
    V,
    examples_of,
    lopsided_documents,
    masked_runs,
    segments,
    vocabulary,
    with_settings,
    word_numbers,
)


@pytest.fixture(scope="module")
def many_rows():
    return examples_of(lopsided_documents(600), duplicates=8)[0]


def test_the_share_of_masked_tokens(many_rows):
    for row in many_rows:
        assert len(row["masked_lm_ids"]) <= min(20, max(1, round(len(row["input_ids"]) * 0.15)))
    masked = sum(len(row["masked_lm_ids"]) for row in many_rows)
    assert masked / sum(len(row["input_ids"]) for row in many_rows) == pytest.approx(0.149, abs=0.002)


def test_80_10_10(many_rows):
    shown = np.concatenate([row["input_ids"][row["masked_lm_positions"]] for row in many_rows])
    labels = np.concatenate([row["masked_lm_ids"] for row in many_rows])
    other = (shown != MASK) & (shown != labels)
    assert len(labels) > 100_000
    assert np.mean(shown == MASK) == pytest.approx(0.8, abs=0.01)
    assert np.mean(shown == labels) == pytest.approx(0.1, abs=0.01)
    assert np.mean(other) == pytest.approx(0.1, abs=0.01)
    assert (shown[other] >= FIRST).all(), "special tokens are no replacements"
    assert stats.kstest(shown[other], stats.randint(FIRST, V).cdf).pvalue > 0.001


def test_masked_positions_are_spread_evenly(many_rows):
    full = [row["masked_lm_positions"] for row in many_rows if len(row["input_ids"]) == 128]
    counts = np.bincount(np.concatenate(full), minlength=128)
    assert counts[0] == counts[127] == 0
    inner = counts[6:122].reshape(4, -1).sum(1)
    assert inner.max() / inner.min() < 1.1


def test_words_are_masked_whole(many_rows):
    starts = vocabulary().word_start
    assert sum(len(masked_runs(row, word_numbers(row, starts))) for row in many_rows) > 10_000


def test_tokens_are_masked_one_by_one_without_whole_words():
    settings = with_settings(do_whole_word_mask=False, ngram=1)
    starts = vocabulary().word_start
    rows = examples_of(lopsided_documents(50), settings)[0]
    inside = [starts[row["masked_lm_ids"]] for row in rows]
    assert np.mean(np.concatenate(inside)) == pytest.approx(0.7, abs=0.05)
    for row in rows:
        assert len(row["masked_lm_ids"]) == min(20, max(1, round(len(row["input_ids"]) * 0.15)))


def google_mask(words: np.ndarray, wanted: int, settings: InstanceSettings, random: np.random.Generator) -> set[int]:
    """Positions that google-research/albert's create_masked_lm_predictions masks, one example, one n-gram at a time."""
    inner = [np.flatnonzero(words == word).tolist() for word in range(words[-1] + 1)]
    probabilities = 1 / np.arange(1, settings.ngram + 1)
    if not settings.favor_shorter_ngram:
        probabilities = probabilities[::-1]
    covered: set[int] = set()
    for start in random.permutation(len(inner)):
        size = random.choice(np.arange(1, settings.ngram + 1), p=probabilities / probabilities.sum())
        tokens = list(itertools.chain(*inner[start : start + size]))
        while len(covered) + len(tokens) > wanted and size > 1:
            size -= 1
            tokens = list(itertools.chain(*inner[start : start + size]))
        if len(covered) + len(tokens) <= wanted and covered.isdisjoint(tokens):
            covered.update(tokens)
    return covered


def masked_of(ids: np.ndarray, starts: np.ndarray, in_b: np.ndarray, settings: InstanceSettings) -> np.ndarray:
    """Which tokens of rows that have no padding are masked, bool."""
    rows, length = ids.shape
    random = RowRandom([0], np.arange(rows))
    everywhere = np.ones(ids.shape, bool)
    return mask_tokens(ids, np.full(rows, length), starts, everywhere, in_b, vocabulary(), settings, random)[1]


def run_shares(masked: np.ndarray, words: np.ndarray) -> np.ndarray:
    """Return the shares of runs of 1 to 6 words among the runs of masked tokens."""
    runs = []
    for row, row_words in zip(masked, words, strict=True):
        places = np.flatnonzero(row)
        for run in np.split(places, np.flatnonzero(np.diff(places) > 1) + 1):
            runs.append(len(set(row_words[run])))
    return np.bincount(runs, minlength=8)[1:7] / len(runs)


@pytest.mark.parametrize(("ngram", "favor_shorter_ngram"), [(1, True), (3, True), (3, False)])
def test_n_grams_are_those_of_google_s_procedure(ngram, favor_shorter_ngram):
    settings = with_settings(ngram=ngram, favor_shorter_ngram=favor_shorter_ngram)
    random = np.random.default_rng(0)
    ids = random.integers(FIRST, V, (800, 100), np.int32)
    starts = vocabulary().word_start[ids]
    starts[:, 0] = True
    masked = masked_of(ids, starts, np.zeros(ids.shape, bool), settings)
    words = np.cumsum(starts, 1) - 1
    expected = np.zeros_like(masked)
    for row in range(len(ids)):
        expected[row, list(google_mask(words[row], 15, settings, random))] = True
    assert masked.sum() == pytest.approx(expected.sum(), rel=0.002)
    assert masked.sum(1).max() == expected.sum(1).max() == 15
    np.testing.assert_allclose(run_shares(masked, words), run_shares(expected, words), atol=0.02)


def test_no_n_gram_crosses_into_the_second_segment():
    settings = with_settings(ngram=3, favor_shorter_ngram=False, masked_lm_prob=0.03)
    ids = np.full((4000, 100), FIRST, np.int32)
    in_b = np.broadcast_to(np.arange(100) >= 50, ids.shape)
    masked = masked_of(ids, np.ones(ids.shape, bool), in_b, settings)
    assert (masked[:, 47:53].sum(1) == 3).any()
    lone = masked[masked.sum(1) == 3]  # one trigram, or chance neighbours
    across = lone[:, 49] & lone[:, 50]
    beside = lone[:, 20] & lone[:, 21]
    assert across.sum() < 0.2 * beside.sum()


def test_words_too_long_to_be_masked_leave_an_example_without_predictions():
    vocab = MaskVocabulary(np.zeros(V, bool), np.arange(FIRST, V, dtype=np.int32), 0, CLS, SEP, MASK)
    rows, _, _ = examples_of([[[FIRST] * 20 for _ in range(50)]], with_settings(max_predictions_per_seq=3), vocab=vocab)
    for row in rows:
        assert row["masked_lm_positions"].tolist() == [0] and row["masked_lm_weights"].tolist() == [0.0]
        assert MASK not in row["input_ids"]


def test_permutation_predicts_other_tokens_besides():
    settings = with_settings(do_permutation=True)
    rows, pairs, joined = examples_of(lopsided_documents(200), settings)
    moved = 0
    for row in rows:
        wanted = min(20, max(1, round(len(row["input_ids"]) * 0.15)))
        assert len(row["masked_lm_ids"]) <= 2 * wanted <= settings.predictions
        shown = row["input_ids"][row["masked_lm_positions"]]
        moved += np.sum((shown != row["masked_lm_ids"]) & (shown != MASK))
    total = sum(len(row["masked_lm_ids"]) for row in rows)
    assert 0.4 < moved / total < 0.56  # nearly all of the permuted half, and 5 % replaced
    for row, pair in zip(rows, pairs, strict=True):
        shown = (pair.second, pair.first) if pair.label else (pair.first, pair.second)
        assert segments(row)[0] == joined.ids[slice(*shown[0])].tolist()


def test_random_numbers_are_those_of_splitmix64() -> None:
    """Its first three for the seed 1234567, as published: a resumed run is to draw the masks that it drew before."""
    states = np.uint64(1234567) + np.arange(1, 4, dtype=np.uint64) * _GOLDEN
    assert _mix(states).tolist() == [6457827717110365317, 3203168211198807973, 9817491932198370423]
    drawn = RowRandom([3, 1], np.array([7])).uniform(3)[0]
    assert drawn.tolist() == [0.06418147405626407, 0.4771110533927878, 0.9154294935085078]
