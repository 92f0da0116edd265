"""Examples made of small synthetic documents, and what can be read off their rows."""

import itertools
from random import Random

import numpy as np

from src.pretraining_data.examples import build_examples, exchange, without_padding
from src.pretraining_data.instances import Documents, Pair, SegmentSpan, join_documents, sample_pairs
from src.pretraining_data.masking import InstanceSettings, MaskVocabulary, RowRandom

SETTINGS = InstanceSettings(
    max_seq_length=128,
    max_predictions_per_seq=20,
    masked_lm_prob=0.15,
    short_seq_prob=0.1,
    ngram=3,
    favor_shorter_ngram=True,
    do_whole_word_mask=True,
    do_permutation=False,
    random_next_sentence=False,
    masking="static",
)
CLS, SEP, MASK, FIRST = 2, 3, 4, 10  # token ids; those below FIRST are special
V = 5000


def with_settings(**changes) -> InstanceSettings:
    return InstanceSettings(**{**SETTINGS.__dict__, **changes})


def vocabulary(word_start_share: float = 0.7) -> MaskVocabulary:
    starts = np.random.default_rng(0).random(V) < word_start_share
    return MaskVocabulary(starts, np.arange(FIRST, V, dtype=np.int32), 0, CLS, SEP, MASK)


def lopsided_documents(count: int, seed: int = 0) -> list[list[list[int]]]:
    """Documents that begin with short sentences and end with long ones; many are shorter than an example."""
    random = Random(seed)
    documents = []
    for _ in range(count):
        sentences = random.randint(1, 12)
        sizes = [random.randint(2, 6) + 5 * position + random.randint(0, 5) ** 3 for position in range(sentences)]
        documents.append([[random.randrange(FIRST, V) for _ in range(size)] for size in sizes])
    return documents


def examples_of(documents, settings=SETTINGS, seed=0, duplicates=1, vocab=None):
    """Lists of rows, a dict of arrays each, with the pair behind each."""
    joined = join_documents(documents)
    pairs = [pair for copy in range(duplicates) for pair in sample_pairs(joined, settings, Random(seed + copy))]
    return rows_of(joined, pairs, settings, vocab or vocabulary(), seed), pairs, joined


def rows_of(joined, pairs, settings, vocab, seed):
    """The masked rows of pairs, a dict of arrays each."""
    segments, labels = np.array([pair[:2] for pair in pairs]).reshape(-1, 4), np.array([pair[2] for pair in pairs])
    if not settings.random_next_sentence:
        segments = exchange(segments, labels == 1)
    random = RowRandom([seed], np.arange(len(pairs)))
    columns = without_padding(build_examples(joined.ids, segments, labels, vocab, settings, random))
    parts = {name: np.split(column.values, np.cumsum(column.counts)[:-1]) for name, column in columns.items()}
    return [{name: rows[index] for name, rows in parts.items()} for index in range(len(pairs))]


def original_ids(row) -> np.ndarray:
    ids = row["input_ids"].copy()
    ids[row["masked_lm_positions"]] = row["masked_lm_ids"]
    return ids


def segments(row) -> tuple[list[int], list[int]]:
    """The unmasked tokens of A and B."""
    ids = original_ids(row)
    separators = np.flatnonzero(ids == SEP)
    assert ids[0] == CLS and len(separators) == 2 and separators[1] == len(ids) - 1
    return ids[1 : separators[0]].tolist(), ids[separators[0] + 1 : -1].tolist()


def word_numbers(row, word_start: np.ndarray) -> np.ndarray:
    """The number of each token's word; specials are words of their own, segments begin words."""
    ids = original_ids(row)
    starts = word_start[ids] | np.isin(ids, (CLS, SEP))
    starts[1] = starts[np.flatnonzero(ids == SEP)[0] + 1] = True
    return np.cumsum(starts) - 1


def masked_runs(row, words: np.ndarray) -> list[int]:
    """Lengths in words of the runs of masked words; asserts that words are masked whole."""
    masked = np.zeros(len(words), bool)
    masked[row["masked_lm_positions"]] = True
    sizes, hits = np.bincount(words), np.bincount(words, masked).astype(int)
    assert set(hits[hits > 0] - sizes[hits > 0]) <= {0}
    return [len(list(group)) for whole, group in itertools.groupby(hits == sizes) if whole]


def document_of(span: SegmentSpan, joined: Documents) -> list[int]:
    """The borders of the document that a segment begins in."""
    return next(borders for borders in joined.borders if borders[0] <= span.start < borders[-1])


def assert_fits(pair: Pair, joined: Documents, settings: InstanceSettings) -> None:
    """Segments lie in documents, one after the other in the same one unless B is random, and fit into an example."""
    first, second, label = pair
    of_first, of_second = document_of(first, joined), document_of(second, joined)
    assert first.start < first.end <= of_first[-1] and second.start < second.end <= of_second[-1]
    assert first.end - first.start + second.end - second.start <= settings.max_seq_length - 3
    assert label in (0, 1)
    if settings.random_next_sentence and label:
        assert of_first is not of_second
    else:
        assert of_first is of_second and first.end <= second.start
