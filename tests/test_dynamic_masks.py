"""Masks drawn as rows are read: a function of seed, epoch and row alone, with the statistics of static ones."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dataset import create_pretrain_dataset
from model_utils.errors import ConfigError, DataError
from src.create_pretraining_data import CreateDataConfig
from src.data.batches import Loading
from src.data.feature_files import open_records
from src.pretraining_data import dynamic_masks
from src.pretraining_data.masking import MaskingOverrides, RowRandom
from src.tokenization import FullTokenizer
from tests.helpers.batches import assert_same_batches
from tests.helpers.pretraining_rows import SETTINGS
from tests.helpers.small_text import make_records

MASK, SEP = 4, 3  # ids of a vocabulary made by train_vocabulary
LENGTH = {"max_seq_length": 64, "max_predictions_per_seq": 10}


@pytest.fixture(scope="module")
def dynamic(text_and_model, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("dynamic") / "pre.mindrecord"
    return make_records(path, *text_and_model, masking="dynamic", **LENGTH).parent


@pytest.fixture(scope="module")
def static(text_and_model, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("static") / "pre.mindrecord"
    return make_records(path, *text_and_model, dupe_factor=1, **LENGTH).parent


def load(folder: Path, overrides: MaskingOverrides = MaskingOverrides(), **loading):  # noqa: B008
    return create_pretrain_dataset(folder, Loading(**{"batch_size": 8, **loading}), masking=overrides)


def by_row(batches) -> dict[int, dict[str, np.ndarray]]:
    """The rows of batches by their numbers."""
    rows = {}
    for batch in batches:
        for place, number in enumerate(batch["row_numbers"]):
            rows[int(number)] = {name: values[place] for name, values in batch.items()}
    rows.pop(-1, None)  # rows that fill a batch up
    return rows


def rows_of(folder: Path, epoch: int = 0, overrides: MaskingOverrides = MaskingOverrides(), **loading):  # noqa: B008
    """All rows of an epoch by their numbers."""
    return by_row(load(folder, overrides, **{"batch_size": 1, **loading}).batches(epoch))


def assert_same_rows(left, right) -> None:
    """Compare the rows that `left` has."""
    assert left
    for number, row in left.items():
        for name, values in row.items():
            np.testing.assert_array_equal(values, right[number][name], err_msg=f"{name} of row {number}")


def unmasked(row) -> list[int]:
    ids = row["input_ids"].copy()
    predicted = row["masked_lm_weights"] > 0
    ids[row["masked_lm_positions"][predicted]] = row["masked_lm_ids"][predicted]
    return ids[: row["input_mask"].sum()].tolist()


def in_text_order(row) -> list[int]:
    """The tokens of both segments, exchanged back."""
    ids = unmasked(row)
    split = ids.index(SEP)
    first, second = ids[1:split], ids[split + 1 : -1]
    return second + first if row["next_sentence_labels"] else first + second


@pytest.fixture(scope="module")
def epochs(dynamic):
    """All rows of two epochs."""
    return [rows_of(dynamic, epoch) for epoch in (0, 1)]


def test_batches_are_like_those_of_static_data(dynamic, static):
    ours, theirs = (next(load(folder).batches(0)) for folder in (dynamic, static))
    forms = [{name: (values.shape, values.dtype) for name, values in batch.items()} for batch in (ours, theirs)]
    assert forms[0] == forms[1]
    for batch in load(dynamic).batches(0):
        used = batch["input_mask"] > 0
        assert (batch["input_ids"][~used] == 0).all() and (batch["input_ids"][used] > 0).all()
        assert not batch["segment_ids"][~used].any() and not batch["token_boundary"][~used].any()


def test_the_text_is_written_once_and_all_of_it(dynamic, static, epochs):
    records = open_records(dynamic, "pretrain")
    assert records.manifest["settings"]["dupe_factor"] == 1 and records.manifest["settings"]["masking"] == "dynamic"
    assert records.num_rows == open_records(static, "pretrain").num_rows == len(epochs[0])
    counts = np.bincount(np.concatenate([in_text_order(row) for row in epochs[0].values()]), minlength=900)
    np.testing.assert_array_equal(records.array("unigram"), counts)


def test_epochs_show_the_same_text_with_other_masks_and_orders(epochs):
    changed_masks = changed_orders = 0
    for number, row in epochs[0].items():
        other = epochs[1][number]
        assert in_text_order(row) == in_text_order(other)
        changed_orders += row["next_sentence_labels"] != other["next_sentence_labels"]
        changed_masks += row["masked_lm_positions"].tolist() != other["masked_lm_positions"].tolist()
    assert changed_masks / len(epochs[0]) > 0.99
    assert changed_orders / len(epochs[0]) == pytest.approx(0.5, abs=0.08)


def test_rows_are_a_function_of_seed_epoch_and_number(dynamic, epochs):
    for size in (5, 300):
        assert_same_rows(rows_of(dynamic, 1, batch_size=size), epochs[1])
    ranks = [rows_of(dynamic, 1, batch_size=3, rank=rank, rank_size=2) for rank in (0, 1)]
    assert not ranks[0].keys() & ranks[1].keys()
    assert_same_rows(ranks[0] | ranks[1], epochs[1])
    labels, other_labels = (
        {number: row["masked_lm_ids"].tolist() for number, row in rows.items()}
        for rows in (epochs[1], rows_of(dynamic, 1, seed=1))
    )
    assert np.mean([labels[number] != other_labels[number] for number in labels]) > 0.95


@pytest.mark.parametrize("rows_at_once", [1, 40])
def test_starting_inside_an_epoch_gives_the_rest_of_it(dynamic, monkeypatch, rows_at_once):
    dataset = load(dynamic)
    whole = list(dataset.batches(2))
    monkeypatch.setattr(dynamic_masks, "ROWS_AT_ONCE", rows_at_once)
    for start in (1, 4, len(whole) - 1, len(whole)):
        assert_same_batches(list(dataset.batches(2, start)), whole[start:])


def statistics(rows) -> dict[str, float]:
    """Return statistics of the masks of many rows."""
    predicted = [row["masked_lm_weights"] > 0 for row in rows]
    labels = np.concatenate([row["masked_lm_ids"][chosen] for row, chosen in zip(rows, predicted, strict=True)])
    places = [row["masked_lm_positions"][chosen] for row, chosen in zip(rows, predicted, strict=True)]
    shown = np.concatenate([row["input_ids"][place] for row, place in zip(rows, places, strict=True)])
    gaps = np.concatenate([np.diff(place) for place in places])
    return {
        "masked share": len(labels) / sum(row["input_mask"].sum() for row in rows),
        "[MASK]": np.mean(shown == MASK),
        "kept": np.mean(shown == labels),
        "replaced": np.mean((shown != MASK) & (shown != labels)),
        "next to another": np.mean(gaps == 1),
        "exchanged": np.mean([row["next_sentence_labels"] for row in rows]),
        "tokens": np.mean([row["input_mask"].sum() for row in rows]) / 64,
    }


def test_statistics_are_those_of_static_data_and_80_10_10(dynamic, static):
    rows = [row for epoch in range(12) for row in rows_of(dynamic, epoch, batch_size=64).values()]
    found = statistics(rows)
    assert len(rows) > 5000
    shares = {"[MASK]": 0.8, "kept": 0.1, "replaced": 0.1}
    assert {name: found[name] for name in shares} == pytest.approx(shares, abs=0.01)
    expected = statistics(list(rows_of(static).values()))
    assert expected.pop("exchanged") == pytest.approx(0.5, abs=0.08)
    assert found.pop("exchanged") == pytest.approx(0.5, abs=0.01)
    assert found["masked share"] == pytest.approx(expected["masked share"], abs=0.01)
    assert found == pytest.approx(expected, abs=0.03)


def test_evaluation_draws_with_the_data_s_own_seed_every_time(dynamic):
    evaluation = {"evaluation": True, "shuffle": False}
    first = rows_of(dynamic, batch_size=8, seed=1, **evaluation)
    assert_same_rows(first, rows_of(dynamic, 3, batch_size=5, seed=2, **evaluation))
    assert_same_rows(first, rows_of(dynamic, seed=open_records(dynamic, "pretrain").manifest["seed"]))
    *_, last = load(dynamic, batch_size=100, **evaluation).batches(0)
    filling = last["row_numbers"] < 0
    assert filling.any()
    assert not last["masked_lm_weights"][filling].any() and not last["sequence_weights"][filling].any()


def test_a_rank_without_rows_gets_weights_of_zero(dynamic):
    (batch,) = load(dynamic, batch_size=4000, evaluation=True, rank=1, rank_size=2).batches(0)
    assert batch["input_ids"].shape == (4000, 64)
    assert not batch["masked_lm_weights"].any() and not batch["sequence_weights"].any()


def test_overrides_change_the_share_and_the_n_grams_and_nothing_else(dynamic, epochs):
    rows = rows_of(dynamic, 0, MaskingOverrides(masked_lm_prob=0.3, ngram=1))
    assert {len(row["masked_lm_ids"]) for row in rows.values()} == {20}  # 0.3 of 64, rounded up
    assert statistics(list(rows.values()))["masked share"] == pytest.approx(0.3, abs=0.01)
    assert all(unmasked(row) == unmasked(epochs[0][number]) for number, row in rows.items())
    plain = load(dynamic)
    assert load(dynamic, MaskingOverrides(0.3, 1)).identity == plain.identity
    assert plain.manifest["max_predictions_per_seq"] == 10
    longer, shorter = (
        statistics(list(rows_of(dynamic, 0, MaskingOverrides(ngram=ngram)).values())) for ngram in (6, 1)
    )
    assert longer["masked share"] == pytest.approx(shorter["masked share"], abs=0.01)
    assert longer["next to another"] > shorter["next to another"] + 0.1


@pytest.mark.parametrize(
    ("overrides", "key"),
    [(MaskingOverrides(masked_lm_prob=0.3), "masked_lm_prob is 0.3"), (MaskingOverrides(ngram=1), "ngram is 1")],
)
def test_written_masks_cannot_be_others(static, overrides, key):
    with pytest.raises(DataError, match=key):
        load(static, overrides)


def test_permutation_and_nsp(text_and_model, tmp_path):
    settings = {"masking": "dynamic", "do_permutation": True, "random_next_sentence": True, **LENGTH}
    folder = make_records(tmp_path / "pre.mindrecord", *text_and_model, **settings).parent
    first, second = (rows_of(folder, epoch) for epoch in (0, 1))
    moved = kept = 0
    for number, row in first.items():
        assert len(row["masked_lm_ids"]) == 20
        assert row["next_sentence_labels"] == second[number]["next_sentence_labels"]
        assert unmasked(row) == unmasked(second[number]), "the label of NSP is written, and no order is drawn"
        shown = row["input_ids"][row["masked_lm_positions"]]
        hidden = (row["masked_lm_weights"] > 0) & (shown != MASK)
        moved += np.sum(hidden & (shown != row["masked_lm_ids"]))
        kept += np.sum(hidden & (shown == row["masked_lm_ids"]))
    assert moved > 2 * kept
    labels = [row["next_sentence_labels"] for row in first.values()]
    assert np.mean(labels) == pytest.approx(0.5, abs=0.08)


def test_the_text_is_not_written_twice():
    assert CreateDataConfig(masking="dynamic", dupe_factor=1).passes == CreateDataConfig(masking="dynamic").passes == 1
    assert CreateDataConfig().passes == 5 and CreateDataConfig(dupe_factor=3).passes == 3
    with pytest.raises(ConfigError, match="dupe_factor is 2"):
        CreateDataConfig(masking="dynamic", dupe_factor=2)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        (None, r"settings is \[\]"),
        ({"ngram": 0}, r"settings\.ngram is 0"),
        ({"masked_lm_prob": "x"}, r"settings\.masked_lm_prob is 'x'"),
    ],
)
def test_manifests_that_do_not_say_how_to_mask_are_refused(dynamic, tmp_path, changes, named):
    copy = shutil.copytree(dynamic, tmp_path / "copy")
    path = copy / "pre.facts.json"
    manifest = json.loads(path.read_text())
    del manifest["checksum"]
    settings = manifest["settings"] | changes if changes else []
    path.write_text(json.dumps(manifest | {"settings": settings}))
    with pytest.raises(DataError, match=named):
        load(copy)


def test_other_masking_is_another_set(dynamic, static, text_and_model):
    for folder, asked in ((dynamic, "static"), (static, "dynamic")):
        with pytest.raises(DataError, match=rf"settings\.masking .*'{asked}'"):
            make_records(folder / "pre.mindrecord", *text_and_model, masking=asked, dupe_factor=1, **LENGTH)


def test_random_numbers_are_uniform_and_those_of_a_row_do_not_depend_on_the_others():
    random = RowRandom([3, 1], np.arange(2000))
    first, second = random.uniform(60), random.uniform(40)
    assert first.min() >= 0 and first.max() < 1 and not np.isin(second, first).any()
    for values in (first, second):
        assert np.histogram(values, 10, (0, 1))[0] / values.size == pytest.approx(np.full(10, 0.1), abs=0.004)
        centred = values - 0.5
        for neighbours in (centred[1:] * centred[:-1], centred[:, 1:] * centred[:, :-1]):
            assert abs(neighbours.mean()) < 0.002
    some = RowRandom([3, 1], np.array([7, 1999]))
    np.testing.assert_array_equal(some.uniform(60), first[[7, 1999]])
    np.testing.assert_array_equal(some.uniform(50)[:, :40], second[[7, 1999]])
    assert not np.isin(RowRandom([3, 2], np.arange(100)).uniform(60), first).any()


def test_a_vocabulary_of_words_is_read_from_beside_the_data(tmp_path):
    text = tmp_path / "text.txt"
    words = [f"word{number}" for number in range(40)]
    generator = np.random.default_rng(0)
    text.write_text("\n".join(" ".join(generator.choice(words, 12)) + " ." for _ in range(200)))
    vocabulary = tmp_path / "vocab.txt"
    vocabulary.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", *words]) + "\n")
    settings = {"vocab_file": str(vocabulary), "masking": "dynamic", **LENGTH}
    folder = make_records(tmp_path / "out/pre.mindrecord", text, "", **settings, spm_model_file="").parent
    vocabulary.unlink()
    tokenizer = FullTokenizer(vocab_file=folder / "vocab.txt")
    for batch in load(folder).batches(0):
        assert batch["input_ids"].max() < tokenizer.vocab_size and (batch["input_ids"] == tokenizer.mask_id).any()


def test_a_sentencepiece_model_of_any_name_is_read(text_and_model, tmp_path):
    text, model = text_and_model
    named = shutil.copy(model, tmp_path / "pieces.spm")
    data = load(make_records(tmp_path / "out/pre.mindrecord", text, named, masking="dynamic", **LENGTH).parent)
    assert data.tokenizer().is_sentencepiece and next(data.batches(0))["masked_lm_weights"].any()


def test_settings_of_an_override():
    changed = replace(SETTINGS, masked_lm_prob=0.3, max_predictions_per_seq=39, ngram=1)
    assert MaskingOverrides().apply(SETTINGS) == SETTINGS
    assert MaskingOverrides(0.3, 1).apply(SETTINGS) == changed
