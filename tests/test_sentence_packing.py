"""Pairs of whole sentences: google's procedure, every sentence at most once."""

import itertools
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from src.data.feature_files import open_records
from src.pretraining_data.instances import join_documents
from src.pretraining_data.sentence_packing import pack_sentences
from tests.helpers.pretraining_rows import SETTINGS, assert_fits, with_settings
from tests.helpers.small_text import make_records, write_text


def documents_of(sizes: list[list[int]]):
    return join_documents([[[0] * size for size in document] for document in sizes])


SIZES = st.lists(st.lists(st.integers(1, 200), min_size=1, max_size=8), min_size=1, max_size=4)


@given(SIZES, st.sampled_from([8, 24, 128]), st.booleans(), st.integers(0, 2**30))
def test_pairs_fit_into_examples_and_their_documents(sizes, max_seq_length, nsp, seed):
    """And use each sentence at most once, but for random ones."""
    documents = documents_of(sizes)
    settings = with_settings(max_seq_length=max_seq_length, random_next_sentence=nsp, segment_packing="google")
    used = np.zeros(len(documents.ids), int)
    for pair in pack_sentences(documents, settings, Random(seed)):
        assert_fits(pair, documents, settings)
        for span in pair[: 1 if nsp and pair.label else 2]:
            used[span.start : span.end] += 1
    assert used.max(initial=0) <= 1


def test_what_needs_no_truncation_is_whole_sentences_that_follow_each_other():
    documents = documents_of([[20] * 50, [7] * 90])
    pairs = pack_sentences(documents, with_settings(short_seq_prob=0.0), Random(0))
    at = set(itertools.chain(*documents.borders))
    whole = [pair for pair in pairs if pair.second.start >= 1000]  # 18 sentences of 7 tokens are 126, one more than fit
    assert len(whole) == 5 and all(pair.first.end in at or pair.second.start in at for pair in whole)
    assert all(125 <= pair.second.end - pair.first.start <= 140 for pair in pairs[:-1] if pair.second.start < 1000)
    short = documents_of([[30, 10, 20]])
    ((first, second, _),) = pack_sentences(short, with_settings(short_seq_prob=0.0), Random(0))
    assert (first.start, second.end) == (0, 60) and first.end == second.start in (30, 40)


def test_a_sentence_alone_is_no_pair_but_takes_the_next_one_along():
    assert pack_sentences(documents_of([[300]]), SETTINGS, Random(0)) == []
    settings = with_settings(short_seq_prob=0.0)
    ((first, second, _),) = pack_sentences(documents_of([[300, 20]]), settings, Random(0))
    assert (second.start, second.end) == (300, 320)
    assert 0 < first.start < first.end < 300 and first.end - first.start == 105  # cut at both ends


def google_chunks(sizes: list[int], random: np.random.Generator):
    """Lengths of the segments that google's create_instances_from_document makes of a document, for SOP."""
    most, chunk = 125, []
    for number, size in enumerate(sizes):
        chunk.append(size)
        if number == len(sizes) - 1 or sum(chunk) >= most:
            if len(chunk) > 1:  # else the second segment is a random one
                end = random.integers(1, len(chunk))
                lengths = [sum(chunk[:end]), sum(chunk[end:])]
                while sum(lengths) > most:
                    lengths[int(lengths[0] <= lengths[1])] -= 1
                yield lengths
            chunk = []


def lengths_of(pairs) -> np.ndarray:
    return np.array([[span.end - span.start for span in pair[:2]] for pair in pairs])


def test_lengths_are_those_of_google_s_procedure():
    generator = np.random.default_rng(0)
    sizes = [generator.integers(5, 30, generator.integers(8, 40)).tolist() for _ in range(800)]
    pairs = pack_sentences(documents_of(sizes), with_settings(short_seq_prob=0.0), Random(0))
    ours = lengths_of(pairs)
    theirs = np.array([lengths for document in sizes for lengths in google_chunks(document, generator)])
    assert len(ours) == len(theirs) and sorted(ours.sum(1)) == sorted(theirs.sum(1))
    for segment in (0, 1):
        assert stats.ks_2samp(ours[:, segment], theirs[:, segment]).pvalue > 0.001
    assert np.mean([pair.label for pair in pairs]) == pytest.approx(0.5, abs=0.03)


def test_a_share_of_the_documents_has_a_shorter_target():
    documents = documents_of([[5] * 24] * 2000)  # 120 tokens, one pair to the longest example
    for share in (0.0, 0.3):
        pairs = pack_sentences(documents, with_settings(short_seq_prob=share), Random(0))
        whole = np.sum(lengths_of(pairs).sum(1) == 120)
        assert whole / 2000 == pytest.approx(1 - share * 115 / 124, abs=0.03)


def test_nsp_uses_the_sentences_that_a_random_segment_replaced():
    settings = with_settings(random_next_sentence=True, short_seq_prob=0.0)
    documents = documents_of([[10] * 100 for _ in range(20)])
    pairs = pack_sentences(documents, settings, Random(0))
    assert 0.4 < np.mean([pair.label for pair in pairs]) < 0.6
    own = np.zeros(len(documents.ids), int)
    for first, second, label in pairs:
        own[first.start : first.end] += 1
        if not label:
            own[second.start : second.end] += 1
    assert own.max() == 1 and own.mean() > 0.9
    assert pack_sentences(documents_of([[10] * 100]), settings, Random(0)) == []


@pytest.mark.parametrize("masking", ["static", "dynamic"])
def test_the_command_packs_sentences(tmp_path, text_and_model, masking):
    text = write_text(tmp_path, topics=20)
    model = text_and_model[1]
    made = {}
    for packing in ("cut", "google"):
        path = make_records(tmp_path / packing / "x.mindrecord", text, model, masking=masking, segment_packing=packing)
        made[packing] = open_records(path, "pretrain")
        assert made[packing].manifest["settings"]["segment_packing"] == packing
    assert sorted(made["cut"].lengths) != sorted(made["google"].lengths) and made["google"].num_rows > 10
