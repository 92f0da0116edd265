"""Pre-training examples: segments, order, masks, and their statistics beside google's own."""

import itertools
import json
import multiprocessing
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from model_utils.errors import DataError, UserError
from src import create_pretraining_data
from src.create_pretraining_data import UnitMaker, UnitMakers, describe_vocabulary, group_documents
from src.masking import Settings, Vocabulary, mask_tokens
from src.pretraining_instances import Pair, build_examples, join_documents, sample_pairs
from src.records import open_records
from src.tokenization import FullTokenizer
from tests.small_text import make_records, train_model, write_text

SETTINGS = Settings(
    max_seq_length=128,
    max_predictions_per_seq=20,
    masked_lm_prob=0.15,
    short_seq_prob=0.1,
    ngram=3,
    favor_shorter_ngram=True,
    do_whole_word_mask=True,
    do_permutation=False,
    random_next_sentence=False,
)
CLS, SEP, MASK, FIRST = 2, 3, 4, 10  # token ids; those below FIRST are special
V = 5000


def with_settings(**changes) -> Settings:
    return Settings(**{**SETTINGS.__dict__, **changes})


def vocabulary(word_start_share: float = 0.7) -> Vocabulary:
    starts = np.random.default_rng(0).random(V) < word_start_share
    return Vocabulary(starts, np.arange(FIRST, V, dtype=np.int32), CLS, SEP, MASK)


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
    columns = build_examples(joined, pairs, vocab or vocabulary(), settings, np.random.default_rng(seed))
    parts = {name: np.split(column.values, np.cumsum(column.counts)[:-1]) for name, column in columns.items()}
    return [{name: rows[index] for name, rows in parts.items()} for index in range(len(pairs))], pairs, joined


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


# --- segments and their order ---


@given(
    st.lists(st.lists(st.integers(1, 200), min_size=1, max_size=8), min_size=1, max_size=4),
    st.sampled_from([8, 24, 128]),
    st.booleans(),
    st.integers(0, 2**30),
)
def test_segments_lie_in_their_documents_in_order_and_fit(sizes, max_seq_length, nsp, seed):
    documents = [[[0] * size for size in document] for document in sizes]
    joined = join_documents(documents)
    settings = with_settings(max_seq_length=max_seq_length, random_next_sentence=nsp)
    for first, second, label in sample_pairs(joined, settings, Random(seed)):
        own = next(borders for borders in joined.borders if borders[0] <= first.start < borders[-1])
        other = next(borders for borders in joined.borders if borders[0] <= second.start < borders[-1])
        assert first.start < first.end <= own[-1] and second.start < second.end <= other[-1]
        assert first.end - first.start + second.end - second.start <= max_seq_length - 3
        assert label in (0, 1)
        if nsp and label:
            assert own is not other
        else:
            assert own is other and first.end <= second.start


@given(st.lists(st.lists(st.integers(1, 150), min_size=1, max_size=8), min_size=1, max_size=3), st.integers(0, 2**30))
def test_each_segment_has_one_end_at_a_border_or_both_none(sizes, seed):
    joined = join_documents([[[0] * size for size in document] for document in sizes])
    at = set(itertools.chain(*joined.borders))
    for first, second, _ in sample_pairs(joined, SETTINGS, Random(seed)):
        ends = [(span.start in at) + (span.end in at) for span in (first, second)]
        assert ends in ([1, 1], [0, 0])


def test_a_document_of_one_sentence_is_split_and_a_tiny_one_left_out():
    joined = join_documents([[list(range(100, 140))], [[1] * 15]])
    pairs = sample_pairs(joined, SETTINGS, Random(0))
    assert len(pairs) == 1 and pairs[0].first.end == pairs[0].second.start
    assert sample_pairs(join_documents([[[1] * 10]]), SETTINGS, Random(0)) == []


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
    for features in (
        lengths // 8,
        np.sign(lengths[:, :1] - lengths[:, 1:]),
        at_border,
        np.hstack([lengths // 25, at_border]),
    ):
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


def test_sop_never_leaves_the_document_and_nsp_does():
    documents = [[[FIRST + number] * 30 for _ in range(12)] for number in range(40)]  # each with its own token
    for settings in (SETTINGS, with_settings(random_next_sentence=True)):
        rows, _, _ = examples_of(documents, settings, duplicates=4)
        labels = np.array([row["next_sentence_labels"][0] for row in rows])
        assert abs(labels.mean() - 0.5) < 0.1
        for row, label in zip(rows, labels, strict=True):
            a, b = segments(row)
            assert len(set(a)) == len(set(b)) == 1
            assert (a[0] == b[0]) == (label == 0 or not settings.random_next_sentence)


def test_sop_label_0_is_the_order_of_the_text():
    documents = [[list(range(FIRST + 20 * line, FIRST + 20 * line + 20)) for line in range(100)]]
    rows, _, _ = examples_of(documents, duplicates=10)
    for row in rows:
        a, b = segments(row)
        assert (a[-1] < b[0]) == (row["next_sentence_labels"][0] == 0)


def test_nsp_has_no_examples_without_a_second_document():
    joined = join_documents([[[FIRST] * 20 for _ in range(20)]])
    assert sample_pairs(joined, with_settings(random_next_sentence=True), Random(0)) == []


# --- columns and masks ---


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


def word_numbers(row, word_start: np.ndarray) -> np.ndarray:
    """The number of each token's word; specials are words of their own, segments begin words."""
    ids = original_ids(row)
    starts = word_start[ids] | (ids < FIRST)
    starts[1] = starts[np.flatnonzero(ids == SEP)[0] + 1] = True
    return np.cumsum(starts) - 1


def masked_runs(row, words: np.ndarray) -> list[int]:
    """Lengths in words of the runs of masked words; asserts that words are masked whole."""
    masked = np.zeros(len(words), bool)
    masked[row["masked_lm_positions"]] = True
    sizes, hits = np.bincount(words), np.bincount(words, masked).astype(int)
    assert set(hits[hits > 0] - sizes[hits > 0]) <= {0}
    return [len(list(group)) for whole, group in itertools.groupby(hits == sizes) if whole]


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


def google_mask(words: np.ndarray, wanted: int, settings: Settings, random: np.random.Generator) -> set[int]:
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


@pytest.mark.parametrize("favor_shorter_ngram", [True, False])
@pytest.mark.parametrize("ngram", [1, 3])
def test_n_grams_are_those_of_google_s_procedure(ngram, favor_shorter_ngram):
    settings = with_settings(ngram=ngram, favor_shorter_ngram=favor_shorter_ngram)
    vocab, random = vocabulary(), np.random.default_rng(0)
    rows, length = 800, 100
    ids = random.integers(FIRST, V, (rows, length), np.int32)
    starts = vocab.word_start[ids]
    starts[:, 0] = True
    everywhere = np.ones((rows, length), bool)
    lengths = np.full(rows, length)
    _, masked = mask_tokens(ids, lengths, starts, everywhere, ~everywhere, vocab, settings, random)
    words = np.cumsum(starts, 1) - 1
    expected = np.zeros_like(masked)
    for row in range(rows):
        expected[row, list(google_mask(words[row], 15, settings, random))] = True
    assert masked.sum() == pytest.approx(expected.sum(), rel=0.002)
    for matrix in (masked, expected):
        assert matrix.sum(1).max() == 15

    def run_shares(matrix: np.ndarray) -> np.ndarray:
        runs = [
            len(set(words[row][positions]))
            for row in range(rows)
            for positions in np.split(
                np.flatnonzero(matrix[row]), np.flatnonzero(np.diff(np.flatnonzero(matrix[row])) > 1) + 1
            )
        ]
        return np.bincount(runs, minlength=8)[1:7] / len(runs)

    np.testing.assert_allclose(run_shares(masked), run_shares(expected), atol=0.02)


def test_no_n_gram_crosses_into_the_second_segment():
    vocab = vocabulary(word_start_share=1.0)
    settings = with_settings(ngram=3, favor_shorter_ngram=False, masked_lm_prob=0.03)
    ids = np.full((4000, 100), FIRST, np.int32)
    everywhere = np.ones(ids.shape, bool)
    in_b = np.arange(100)[None] >= np.full((4000, 1), 50)
    lengths = np.full(4000, 100)
    _, masked = mask_tokens(ids, lengths, everywhere, everywhere, in_b, vocab, settings, np.random.default_rng(0))
    runs = masked[:, 47:53]
    assert (runs.sum(1) == 3).any()
    lone = masked.sum(1) == 3  # one trigram, or chance neighbours
    across = masked[lone][:, 49] & masked[lone][:, 50]
    beside = masked[lone][:, 20] & masked[lone][:, 21]
    assert across.sum() < 0.2 * beside.sum()


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


# --- the command ---


@pytest.fixture(scope="module")
def text_and_model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("text")
    text = write_text(folder)
    return text, train_model(folder, text)


@pytest.fixture(scope="module")
def made(text_and_model, tmp_path_factory):
    return make_records(tmp_path_factory.mktemp("data") / "pre.mindrecord", *text_and_model, dupe_factor=2)


def test_what_was_made_says_how(made, text_and_model):
    text, model = text_and_model
    facts = open_records(made, "pretrain").facts
    assert facts["vocab_file"] == "small.model" and facts["vocab_size"] == 900
    assert facts["vocab_sha256"] == FullTokenizer(spm_model_file=model).sha256
    assert (made.parent / "small.model").read_bytes() == model.read_bytes()
    assert (facts["max_seq_length"], facts["max_predictions_per_seq"], facts["seed"]) == (128, 20, 12345)
    assert facts["settings"]["dupe_factor"] == 2
    assert facts["source"]["text.txt"]["bytes"] == text.stat().st_size
    assert str(text.parent) not in json.dumps(facts)


def read_rows(path: Path) -> list[dict]:
    import mindspore.dataset as ds

    files = [str(file) for file in open_records(path, "pretrain").files]
    return list(ds.MindDataset(files, shuffle=False).create_dict_iterator(output_numpy=True, num_epochs=1))


def test_unigram_counts_are_those_of_the_predicted_tokens(made):
    counts = open_records(made, "pretrain").array("unigram")
    labels = np.concatenate([row["masked_lm_ids"] for row in read_rows(made)])
    np.testing.assert_array_equal(counts, np.bincount(labels, minlength=900))


def test_the_output_does_not_depend_on_the_number_of_processes(text_and_model, tmp_path, monkeypatch):
    monkeypatch.setattr(create_pretraining_data, "UNIT_CHARACTERS", 20_000)
    paths = [
        make_records(tmp_path / str(workers) / "pre.mindrecord", *text_and_model, num_workers=workers, dupe_factor=1)
        for workers in (1, 3)
    ]
    contents = [{file.name: file.read_bytes() for file in path.parent.iterdir()} for path in paths]
    assert len(contents[0]) == 6 and contents[0] == contents[1]


def test_seeds_and_duplicates_differ(text_and_model, tmp_path):
    maker = make_maker(FullTokenizer(spm_model_file=text_and_model[1]), seed=1, dupe_factor=2)
    documents = next(group_documents(create_pretraining_data.read_documents([text_and_model[0]])))[:40]
    rows = maker.make(0, documents).packed.rows
    assert len(set(rows)) == len(rows)
    assert rows == maker.make(0, documents).packed.rows
    assert rows != maker.make(1, documents).packed.rows
    assert rows != make_maker(maker.tokenizer, seed=2, dupe_factor=2).make(0, documents).packed.rows


def make_maker(
    tokenizer: FullTokenizer, seed: int = 0, dupe_factor: int = 1, settings: Settings = SETTINGS
) -> UnitMaker:
    return UnitMaker(tokenizer, settings, seed, dupe_factor)


def test_memory_does_not_grow_with_the_text(text_and_model):
    taken = 0

    def units():
        nonlocal taken
        for _ in range(1000):
            taken += 1
            yield [["A document of one short sentence that has enough tokens. And then there is another one here."]]

    maker = make_maker(FullTokenizer(spm_model_file=text_and_model[1]))
    with UnitMakers(maker, units(), workers=1) as results:
        iterator = iter(results)
        for number in range(1, 20):
            next(iterator)
            assert taken <= number + 2


def test_a_lost_worker_is_a_sentence(text_and_model):
    maker = make_maker(FullTokenizer(spm_model_file=text_and_model[1]))
    units = itertools.repeat([["Some text."] * 2000])

    def kill_after_the_first(results: UnitMakers) -> None:
        for _ in results:
            for process in multiprocessing.active_children():
                process.kill()

    with UnitMakers(maker, units, workers=1) as results, pytest.raises(UserError, match="a worker process ended"):
        kill_after_the_first(results)


def test_a_second_run_has_nothing_to_do_and_another_one_is_refused(made, text_and_model, capsys):
    before = {file: file.stat().st_mtime_ns for file in made.parent.iterdir()}
    make_records(made, *text_and_model, dupe_factor=2)
    assert "nothing to do" in capsys.readouterr().out
    with pytest.raises(DataError, match=r"settings\.dupe_factor 2, asked for is 3; give another output_file"):
        make_records(made, *text_and_model, dupe_factor=3)
    assert before == {file: file.stat().st_mtime_ns for file in made.parent.iterdir()}


def test_other_text_of_the_same_name_and_size_is_refused(made, text_and_model, tmp_path):
    text, model = text_and_model
    other = tmp_path / "text.txt"
    other.write_bytes(text.read_bytes().replace(b"statement", b"stetement"))
    with pytest.raises(DataError, match=r"source\.text\.txt\.sha256"):
        make_records(made, other, model, dupe_factor=2)


def test_dry_run_estimates_and_keeps_nothing(text_and_model, tmp_path, capsys):
    make_records(tmp_path / "new" / "pre.mindrecord", *text_and_model, dry_run=True)
    assert "Nothing was kept" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


def test_several_files_and_short_sequences(text_and_model, tmp_path):
    settings = {"output_file_num": 2, "max_seq_length": 32, "max_predictions_per_seq": 5, "dupe_factor": 1}
    made = make_records(tmp_path / "pre.mindrecord", *text_and_model, **settings)
    rows = read_rows(made)
    assert sorted(file.name for file in tmp_path.glob("*.mindrecord*")) == [
        *("pre.mindrecord0", "pre.mindrecord0.db", "pre.mindrecord1", "pre.mindrecord1.db")
    ]
    assert max(len(row["input_ids"]) for row in rows) == 32
    assert max(len(row["masked_lm_ids"]) for row in rows) == 5


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "no file matches"),
        (b"", "empty"),
        (b"\n\n  \n", "no text"),
        (b"Good text first. Then a byte:\xff\n", r"offset 29 is not UTF-8"),
        (b"Too short.\n\nThis too.\n", "gives no example: no document has 16 tokens"),
    ],
)
def test_bad_input_is_a_sentence_and_leaves_nothing(text_and_model, tmp_path, content, sentence):
    text = tmp_path / "bad.txt"
    if content is not None:
        text.write_bytes(content)
    with pytest.raises(DataError, match=sentence):
        make_records(tmp_path / "out" / "pre.mindrecord", text, text_and_model[1])
    assert not list((tmp_path / "out").glob("*"))


def test_chinese_words_are_characters(tmp_path):
    text = "天地玄黄，宇宙洪荒。日月盈昃，辰宿列张。寒来暑往，秋收冬藏。闰余成岁，律吕调阳。"
    file = tmp_path / "vocab.txt"
    file.write_text(
        "\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "py", "##thon", *sorted(set(text))]) + "\n"
    )
    tokenizer = FullTokenizer(vocab_file=file)
    vocab = describe_vocabulary(tokenizer)
    assert vocab.word_start.tolist() == [token != "##thon" for token in tokenizer.vocab]
    assert 4 not in vocab.replacements and len(vocab.replacements) == tokenizer.vocab_size - 5
    result = make_maker(tokenizer, dupe_factor=20).make(0, [[text, "python 天地" + text]])
    assert len(result.packed.rows) == 20 and result.token_counts[1] == 0
    assert result.token_counts[tokenizer.vocab["py"]] == result.token_counts[tokenizer.vocab["##thon"]] > 0


# --- beside google's own output ---


@pytest.fixture(scope="module")
def google_and_ours(golden, shared):
    """Rows of google's file without their padding, rows made here from the same text, and the word starts."""
    import mindspore.dataset as ds

    file = str(golden / "wikitext2_valid.tfrecord")
    columns = ["input_ids", "input_mask", "segment_ids", "token_boundary", "next_sentence_labels"]
    columns += ["masked_lm_positions", "masked_lm_ids", "masked_lm_weights"]
    google = []
    for row in ds.TFRecordDataset([file], columns_list=columns, shuffle=False).create_dict_iterator(1, True):
        ends = {128: int(row["input_mask"].sum()), 20: int(row["masked_lm_weights"].sum()), 1: 1}
        google.append({name: values[: ends[len(values)]] for name, values in row.items()})
    tokenizer = FullTokenizer(spm_model_file=shared / "data/vocab/30k-clean.model")
    maker = make_maker(tokenizer)
    ours = []
    documents = create_pretraining_data.read_documents([shared / "data/corpus/wikitext2_valid.txt"])
    for unit in group_documents(documents):
        joined = join_documents(maker._encode(unit))
        pairs = sample_pairs(joined, SETTINGS, Random(0))
        parts = build_examples(joined, pairs, maker.vocabulary, SETTINGS, np.random.default_rng(0))
        split = {name: np.split(column.values, np.cumsum(column.counts)[:-1]) for name, column in parts.items()}
        ours += [{name: rows[index] for name, rows in split.items()} for index in range(len(pairs))]
    return google, ours, maker.vocabulary.word_start


def test_token_boundaries_are_google_s(google_and_ours):
    google, _, word_start = google_and_ours
    for row in google:
        ids = original_ids(row)
        expected = word_start[ids] | np.isin(ids, (CLS, SEP))
        np.testing.assert_array_equal(row["token_boundary"], expected)


def test_statistics_are_google_s(google_and_ours):
    google, ours, word_start = google_and_ours
    assert len(google) == 10_182 and len(ours) > 2000

    def statistics(rows) -> dict[str, float]:
        # google makes its shortest examples of headings, which are no documents here.
        rows = [row for row in rows if len(row["input_ids"]) > 32]
        lengths = np.array([len(row["input_ids"]) for row in rows])
        shown = np.concatenate([row["input_ids"][row["masked_lm_positions"]] for row in rows])
        labels = np.concatenate([row["masked_lm_ids"] for row in rows])
        runs = np.concatenate([masked_runs(row, word_numbers_of(row, word_start)) for row in rows])
        return {
            "masked share": len(labels) / lengths.sum(),
            "[MASK]": np.mean(shown == MASK),
            "kept": np.mean(shown == labels),
            "full length": np.mean(lengths == 128),
            "mean length / 128": lengths.mean() / 128,
            **{f"runs of {size}": np.mean(runs == size) for size in (1, 2, 3, 4)},
        }

    expected, found = statistics(google), statistics(ours)
    assert found == pytest.approx(expected, abs=0.025)
    labels = [row["next_sentence_labels"][0] for row in ours]
    assert abs(np.mean(labels) - 0.5) < 0.03  # google's are 0.93 here: its one-sentence documents all count as swapped


def word_numbers_of(row, word_start: np.ndarray) -> np.ndarray:
    """As word_numbers, for a vocabulary where other low ids are words."""
    ids = original_ids(row)
    starts = word_start[ids] | np.isin(ids, (CLS, SEP))
    starts[1] = starts[np.flatnonzero(ids == SEP)[0] + 1] = True
    return np.cumsum(starts) - 1


def test_chinese_wikipedia(shared):
    tokenizer = FullTokenizer(vocab_file=shared / "data/vocab/vocab_zh.txt")
    file = min((shared / "data/corpus/wiki_zh").iterdir())
    unit = next(group_documents(create_pretraining_data.read_documents([file])))
    result = make_maker(tokenizer).make(0, unit)
    assert len(result.packed.rows) > 500
    assert np.mean(result.packed.lengths == 128) > 0.6
    unknown = result.token_counts[tokenizer.unk_id] / result.token_counts.sum()
    assert unknown < 0.02
