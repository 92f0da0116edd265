"""Batches: every row once, in an order of seed and epoch alone, for every rank, bucket and kind of file."""

import contextlib
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataset import create_pretrain_dataset
from model_utils.errors import DataError
from src.data.batches import FeatureDataset, Loading, plan_batches
from src.data.feature_files import Column, Ragged, open_records
from src.data.packing import Packing
from src.data.read_ahead import read_ahead
from src.data.record_writer import RecordWriter, pack_rows
from src.data.row_reader import _decode, _split
from src.data.tfrecords import _checksum, check_tfrecord
from tests.helpers.small_text import make_records, train_model, write_text
from tests.helpers.tfrecord_files import crc32c, masked, tf_example, write_tfrecord

COLUMNS = {
    "input_ids": Column("int32", 32, padding=7, per_token=True),
    "input_mask": Column("int32", 32, per_token=True),
    "weights": Column("float32", 4),
    "label": Column("int32", 0),
}
ROWS = 101


@pytest.fixture(scope="module")
def lengths() -> np.ndarray:
    return np.random.default_rng(0).integers(1, 33, ROWS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory, lengths) -> Path:
    """Rows whose label is their number and whose tokens are 100 and their number."""
    folder = tmp_path_factory.mktemp("rows")
    weights = 1 + lengths % 4
    rows = {
        "input_ids": Ragged(np.repeat(np.arange(ROWS, dtype=np.int32) + 100, lengths), lengths),
        "input_mask": Ragged(np.ones(lengths.sum(), np.int32), lengths),
        "weights": Ragged(np.ones(weights.sum(), np.float32), weights),
        "label": Ragged(np.arange(ROWS, dtype=np.int32), np.ones(ROWS, int)),
    }
    with RecordWriter(folder / "rows.mindrecord", COLUMNS, {"task": "test"}, file_num=2) as writer:
        writer.write(pack_rows(COLUMNS, rows))
    return folder


def load(folder: Path, **loading) -> FeatureDataset:
    return FeatureDataset(open_records(folder, "test"), Loading(**{"batch_size": 8, **loading}), ("weights",))


def real_labels(batches) -> list[int]:
    return [int(label) for batch in batches for label in batch["label"][batch["sequence_weights"] > 0]]


def assert_same_batches(left, right) -> None:
    assert len(left) == len(right)
    for one, other in zip(left, right, strict=True):
        assert one.keys() == other.keys()
        for name in one:
            np.testing.assert_array_equal(one[name], other[name])


def test_token_ids_that_the_model_lacks_are_found(folder: Path) -> None:
    records = open_records(folder, "test")  # the largest id is 200
    assert len(list(FeatureDataset(records, Loading(8), vocab_size=201).batches(0))) == ROWS // 8
    with pytest.raises(DataError, match="has the token id 200, but the model's vocabulary 200 tokens"):
        list(FeatureDataset(records, Loading(8, evaluation=True), vocab_size=200).batches(0))


def test_files_that_are_gone_at_the_next_epoch_are_named(folder, tmp_path):
    copy = shutil.copytree(folder, tmp_path / "copy")
    batches = load(copy)
    assert len(list(batches.batches(0))) == batches.batches_per_epoch
    shutil.rmtree(copy)
    with pytest.raises(DataError, match=r"rows\.mindrecord0"):
        list(batches.batches(1))


def cut(file: Path) -> None:
    os.truncate(file, 1000)


def overwrite(file: Path) -> None:
    """In place, as `cp` does."""
    size = file.stat().st_size
    with file.open("r+b") as stream:
        stream.write(np.random.default_rng(0).bytes(size))


def clear(file: Path) -> None:
    with file.open("r+b") as stream:
        stream.write(bytes(file.stat().st_size))


def replace(file: Path) -> None:
    other = file.with_name("other")
    other.write_bytes(file.read_bytes()[::-1])
    other.replace(file)


def flip_each_byte_of_the_rows(file: Path) -> None:
    start = 2 << 20  # of the first page
    with file.open("r+b") as stream:
        stream.seek(start)
        content = np.frombuffer(stream.read(), np.uint8)
        stream.seek(start)
        stream.write((content ^ 1).tobytes())


CHANGES = [cut, overwrite, clear, replace, flip_each_byte_of_the_rows]


@pytest.mark.parametrize("change", CHANGES)
def test_files_that_change_between_epochs_are_named(folder: Path, tmp_path: Path, change) -> None:
    copy = shutil.copytree(folder, tmp_path / "copy")
    batches = load(copy)
    first = list(batches.batches(0))
    assert_same_batches(first, list(batches.batches(0)))
    change(copy / "rows.mindrecord1")
    with pytest.raises(DataError, match=r"rows\.mindrecord1 has changed"):
        list(batches.batches(1))


@pytest.mark.parametrize("change", [change for change in CHANGES if change != replace])
@pytest.mark.parametrize("workers", [0, 2])
def test_files_that_change_while_they_are_read_are_named(folder: Path, tmp_path: Path, change, workers: int) -> None:
    copy = shutil.copytree(folder, tmp_path / "copy")
    with read_ahead(load(copy).batches(0), workers) as batches:
        next(batches)
        change(copy / "rows.mindrecord0")
        with pytest.raises(DataError, match=r"rows\.mindrecord0 has changed"):
            list(batches)


def test_a_file_that_is_replaced_while_it_is_read_is_read_to_the_end_of_the_epoch(folder: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(folder, tmp_path / "copy")
    batches = load(copy).batches(0)
    first = next(batches)
    replace(copy / "rows.mindrecord0")
    assert_same_batches([first, *batches], list(load(folder).batches(0)))


def become_pipe(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


@pytest.mark.parametrize("change", [*CHANGES[:-1], Path.unlink, become_pipe])
def test_an_index_that_has_changed_since_it_was_verified_is_named(folder: Path, tmp_path: Path, change) -> None:
    copy = shutil.copytree(folder, tmp_path / "copy")
    batches = load(copy)
    change(copy / "rows.mindrecord0.db")
    with pytest.raises(DataError, match=r"rows\.mindrecord0"):
        list(batches.batches(0))


def test_arrays_beside_the_rows_are_checked_when_they_are_read(folder: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(folder, tmp_path / "copy")
    records = open_records(copy, "test")
    assert records.array("lengths").sum() == records.lengths.sum()
    overwrite(copy / "rows.lengths.npy")
    with pytest.raises(DataError, match=r"rows\.lengths\.npy has changed"):
        records.array("lengths")


def test_a_set_without_row_checksums_is_refused(folder: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(folder, tmp_path / "copy")
    facts = json.loads((copy / "rows.facts.json").read_text())
    del facts["files"]["rows.checksums.npy"], facts["checksum"]
    (copy / "rows.checksums.npy").unlink()
    (copy / "rows.facts.json").write_text(json.dumps(facts))
    with pytest.raises(DataError, match=r"rows\.checksums\.npy.*make them again"):
        open_records(copy, "test")


@given(st.lists(st.binary(max_size=60), min_size=1, max_size=5), st.sampled_from(["int32", "float32"]))
def test_any_bytes_are_values_or_an_error(blobs: list[bytes], dtype: str) -> None:
    try:
        values, counts = _decode(blobs, dtype)
    except ValueError:
        return
    assert len(values) == counts.sum() and len(counts) == len(blobs)


@given(st.binary(max_size=80), st.integers(1, 4))
def test_any_bytes_are_columns_or_an_error(raw: bytes, columns: int) -> None:
    with contextlib.suppress(ValueError):
        assert sum(8 + len(blob) for blob in _split(raw, columns)) == len(raw)


@pytest.mark.parametrize("size", [1, 3, 4, 5, 33])
def test_integers_of_all_sizes_come_back(tmp_path: Path, size: int) -> None:
    random = np.random.default_rng(size)
    lengths = random.integers(1, size + 1, 200)
    columns = {"input_ids": Column("int32", size, padding=9, per_token=True), "weights": Column("float32", size)}
    values = (random.integers(-(2**31), 2**31, lengths.sum()) >> random.integers(0, 32, lengths.sum())).astype(np.int32)
    values[: min(len(values), 6)] = np.array([127, 128, -128, -129, 32767, -32769])[: len(values)]
    floats = random.normal(size=200 * size).astype(np.float32)
    rows = {"input_ids": Ragged(values, lengths), "weights": Ragged(floats, np.full(200, size))}
    with RecordWriter(tmp_path / "rows.mindrecord", columns, {"task": "test"}) as writer:
        writer.write(pack_rows(columns, rows))
    loaded = FeatureDataset(open_records(tmp_path, "test"), Loading(8, shuffle=False, evaluation=True))
    ends = np.cumsum(lengths)
    for batch in loaded.batches(0):
        for row, ids, weights in zip(batch["row_numbers"], batch["input_ids"], batch["weights"], strict=True):
            expected = values[ends[row] - lengths[row] : ends[row]]
            np.testing.assert_array_equal(ids, np.pad(expected, (0, size - lengths[row]), constant_values=9))
            np.testing.assert_array_equal(weights, floats[row * size : (row + 1) * size])


def test_columns_have_their_widths_types_and_padding(folder, lengths):
    batches = list(load(folder).batches(0))
    assert len(batches) == load(folder).batches_per_epoch == ROWS // 8
    for batch in batches:
        shapes = {name: (values.shape, str(values.dtype)) for name, values in batch.items()}
        assert shapes == {
            "input_ids": ((8, 32), "int32"),
            "input_mask": ((8, 32), "int32"),
            "weights": ((8, 4), "float32"),
            "label": ((8,), "int32"),
            "sequence_weights": ((8,), "float32"),
            "row_numbers": ((8,), "int64"),
        }
        for row, label in enumerate(batch["label"]):
            size = lengths[label]
            assert batch["input_ids"][row].tolist() == [100 + label] * size + [7] * (32 - size)
            assert batch["input_mask"][row].sum() == size
            assert batch["weights"][row].sum() == 1 + size % 4
        assert (batch["sequence_weights"] == 1).all()


def test_an_epoch_has_no_row_twice_and_leaves_out_less_than_a_batch(folder):
    labels = real_labels(load(folder).batches(3))
    assert len(labels) == len(set(labels)) == ROWS // 8 * 8


def test_the_order_depends_on_seed_and_epoch_alone(folder):
    first = real_labels(load(folder, seed=1).batches(0))
    assert first == real_labels(load(folder, seed=1).batches(0))
    assert first != real_labels(load(folder, seed=1).batches(1))
    assert first != real_labels(load(folder, seed=2).batches(0))
    assert first != sorted(first)


def test_without_shuffling_the_order_is_that_of_the_files(folder):
    even_then_odd = [*range(0, ROWS, 2), *range(1, ROWS, 2)]  # rows are dealt out to two files
    for epoch in (0, 1):
        assert real_labels(load(folder, shuffle=False, evaluation=True).batches(epoch)) == even_then_odd


def test_training_without_shuffling_leaves_no_row_out_for_ever(folder):
    even_then_odd = [*range(0, ROWS, 2), *range(1, ROWS, 2)]
    dataset = load(folder, shuffle=False)
    seen = [label for epoch in range(3) for label in real_labels(dataset.batches(epoch))]
    assert ROWS % 8 and seen == (even_then_odd * 3)[: len(seen)]


@pytest.mark.parametrize("boundaries", [(), (8, 16, 32)])
def test_training_without_shuffling_keeps_the_order_in_buckets(folder, lengths, boundaries):
    batches = list(load(folder, shuffle=False, batch_size=4, bucket_boundaries=boundaries).batches(0))
    assert real_labels(batches) == [*range(0, ROWS, 2), *range(1, ROWS, 2)][: ROWS // 4 * 4]
    for batch in batches:
        longest = lengths[batch["label"]].max()
        assert batch["input_ids"].shape[1] == min(width for width in boundaries or [32] if width >= longest)


def test_training_without_shuffling_keeps_the_order_of_packed_rows(folder):
    plan = load(folder, shuffle=False, batch_size=4, packing=Packing(1, 1)).plan(0)
    assert plan.rows.ravel().tolist() == list(range(ROWS // 4 * 4))


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("evaluation", [False, True])
def test_packed_batches_are_as_large_on_all_ranks(folder, shuffle, evaluation):
    settings = {"shuffle": shuffle, "evaluation": evaluation, "batch_size": 2, "rank_size": 3, "packing": Packing(1, 1)}
    of_rank = [load(folder, rank=rank, **settings) for rank in range(3)]
    plans, lengths = [dataset.plan(0) for dataset in of_rank], of_rank[0].records.lengths
    tokens = [np.where(plan.rows < 0, 0, lengths[plan.rows]).sum(1) for plan in plans]
    for plan in plans:
        np.testing.assert_array_equal(plan.widths, Packing(1, 1).sizes_for(np.max(tokens, axis=0)))


@pytest.mark.parametrize("boundaries", [(), (8, 16, 32)])
@pytest.mark.parametrize("evaluation", [False, True])
def test_starting_inside_an_epoch_gives_the_rest_of_it(folder, boundaries, evaluation):
    dataset = load(folder, bucket_boundaries=boundaries, evaluation=evaluation)
    whole = list(dataset.batches(5))
    for start in (1, 7, len(whole) - 1, len(whole)):
        assert_same_batches(list(dataset.batches(5, start)), whole[start:])


@pytest.mark.parametrize("boundaries", [(), (8, 16, 32)])
@pytest.mark.parametrize("batch_size", [8, 20, 200])
def test_evaluation_leaves_out_nothing(folder, boundaries, batch_size):
    dataset = load(folder, batch_size=batch_size, evaluation=True, bucket_boundaries=boundaries)
    batches = list(dataset.batches(0))
    assert len(batches) == dataset.batches_per_epoch == -(-ROWS // batch_size)
    assert sorted(real_labels(batches)) == list(range(ROWS))
    for batch in batches:
        assert len(batch["label"]) == batch_size
        filling = batch["sequence_weights"] == 0
        np.testing.assert_array_equal(filling, batch["row_numbers"] < 0)
        assert (batch["weights"][filling] == 0).all()
        assert (batch["input_mask"][filling].sum(1) > 0).all(), "rows of padding alone have no attention"
    numbers = np.concatenate([batch["row_numbers"] for batch in batches])
    assert sorted(numbers[numbers >= 0]) == list(range(ROWS))


@pytest.mark.parametrize("boundaries", [(), (8, 16, 32)])
@pytest.mark.parametrize("evaluation", [False, True])
def test_ranks_share_the_rows(folder, boundaries, evaluation):
    settings = {"bucket_boundaries": boundaries, "evaluation": evaluation, "batch_size": 6, "rank_size": 3}
    of_rank = [list(load(folder, rank=rank, **settings).batches(2)) for rank in range(3)]
    assert {len(batches) for batches in of_rank} == {load(folder, **settings).batches_per_epoch}
    labels = [label for batches in of_rank for label in real_labels(batches)]
    assert len(labels) == len(set(labels)) == (ROWS if evaluation else ROWS // 18 * 18)
    for together in zip(*of_rank, strict=True):
        assert len({batch["input_ids"].shape for batch in together}) == 1, "ranks wait for the longest"


def test_a_rank_without_rows_gets_weights_of_zero(folder):
    batches = list(load(folder, batch_size=60, evaluation=True, rank=3, rank_size=4).batches(0))
    assert len(batches) == 1
    assert batches[0]["sequence_weights"].sum() == batches[0]["weights"].sum() == 0
    assert batches[0]["input_ids"].shape == (60, 32)


def test_buckets_pad_to_their_width(folder, lengths):
    batches = list(load(folder, batch_size=4, bucket_boundaries=(8, 16, 32)).batches(0))
    widths = [batch["input_ids"].shape[1] for batch in batches]
    assert set(widths) == {8, 16, 32}
    assert widths != sorted(widths)
    padded = sum(batch["input_ids"].size for batch in batches)
    assert padded < 0.85 * 32 * 4 * len(batches)
    for batch, width in zip(batches, widths, strict=True):
        assert lengths[batch["label"]].max() <= width
        assert batch["input_mask"].shape == batch["input_ids"].shape == (4, width)
    labels = real_labels(batches)
    assert len(set(labels)) == len(labels) == ROWS // 4 * 4


@pytest.mark.parametrize("boundaries", [(8, 16), (16, 8, 32), (8, 8, 32), (31,)])
def test_boundaries_that_do_not_fit_are_an_error(folder, boundaries):
    with pytest.raises(DataError, match="bucket_boundaries are"):
        load(folder, bucket_boundaries=boundaries)


@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=60),
    st.integers(1, 9),
    st.sampled_from([(40,), (10, 20, 40), (1, 2, 40)]),
    st.booleans(),
    st.integers(0, 100),
)
def test_plans(lengths, batch_size, boundaries, drop, seed):
    lengths = np.array(lengths)
    random = np.random.default_rng(seed)
    order = random.permutation(len(lengths))
    plan = plan_batches(lengths, boundaries, batch_size, order, drop, random)
    full = len(lengths) // batch_size if drop else -(-len(lengths) // batch_size)
    assert plan.shape == (full, batch_size)
    used = plan[plan >= 0]
    assert len(set(used.tolist())) == len(used) == (full * batch_size if drop else len(lengths))
    assert (plan[:-1] >= 0).all()
    buckets = np.searchsorted(boundaries, lengths[plan[: full - 1]])
    mixed = sum(len(set(bucket)) > 1 for bucket in buckets)
    assert mixed < len(boundaries), "what is left over in a bucket is part of one batch"
    if drop:  # what is left out depends on the order alone, not on the lengths
        assert sorted(used) == sorted(order[: full * batch_size])


# --- pre-training data ---


@pytest.fixture(scope="module")
def pretraining_folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("pretraining")
    text = write_text(folder, topics=20)
    model = train_model(folder, write_text(tmp_path_factory.mktemp("text")))
    settings = {"max_seq_length": 64, "max_predictions_per_seq": 10, "dupe_factor": 1}
    return make_records(folder / "data" / "pre.mindrecord", text, model, **settings).parent


def assert_pretraining_batch(batch, size: int, length: int, predictions: int, vocab_size: int) -> None:
    """The columns of a batch, and what holds between them."""
    tokens = ("input_ids", "input_mask", "segment_ids", "token_boundary")
    assert {name: batch[name].shape for name in tokens} == dict.fromkeys(tokens, (size, length))
    masks = ("masked_lm_positions", "masked_lm_ids", "masked_lm_weights")
    assert {name: batch[name].shape for name in masks} == dict.fromkeys(masks, (size, predictions))
    of_rows = ("next_sentence_labels", "sequence_weights", "sop_loss_weights")
    assert {name: batch[name].shape for name in of_rows} == dict.fromkeys(of_rows, (size,))
    floats = {"masked_lm_weights", "sequence_weights", "sop_loss_weights"}
    assert {name for name, values in batch.items() if values.dtype == np.float32} == floats
    others = batch.keys() - floats - {"row_numbers"}
    assert {str(batch[name].dtype) for name in others} == {"int32"}
    assert batch["input_ids"].max() < vocab_size and set(batch["next_sentence_labels"].tolist()) <= {0, 1}
    for row in range(size):
        real = batch["input_mask"][row].sum()
        assert (batch["input_ids"][row, real:] == 0).all() and (batch["input_ids"][row, :real] > 0).all()
        assert batch["input_ids"][row, real - 1] == 3
        weights = batch["masked_lm_weights"][row]
        assert (np.diff(weights) <= 0).all() and batch["masked_lm_positions"][row].max() < real
        assert (batch["masked_lm_ids"][row][weights == 0] == 0).all()


def test_pretraining_batches(pretraining_folder):
    dataset = create_pretrain_dataset(pretraining_folder, Loading(4))
    assert dataset.facts["max_seq_length"] == 64 and dataset.dataset.num_rows == dataset.facts["rows"]
    for batch in dataset.batches(0):
        assert_pretraining_batch(batch, 4, 64, 10, 900)


def test_data_of_another_task_is_refused(folder):
    with pytest.raises(DataError, match="made with task 'test', needed is 'pretrain'"):
        create_pretrain_dataset(folder, Loading(4))


def test_a_schema_is_for_tfrecords(pretraining_folder):
    with pytest.raises(DataError, match=r"holds no \*\.tfrecord files"):
        create_pretrain_dataset(pretraining_folder, Loading(4), schema_dir=pretraining_folder)


# --- google's TFRecords ---


def google_rows(count: int, first: int = 0) -> list[dict[str, np.ndarray]]:
    """Rows of length 12 with 3 predictions; the second token is 10 and the row's number."""
    rows = []
    for number in range(first, first + count):
        size = 6 + number % 7
        mask = np.arange(12) < size
        ids = np.where(mask, 5, 0)
        ids[[0, 1, size - 1]] = 2, 10 + number, 3
        rows.append(
            {
                "input_ids": ids,
                "input_mask": mask.astype(int),
                "segment_ids": (np.arange(12) > 3) & mask,
                "token_boundary": mask.astype(int),
                "masked_lm_positions": np.array([1, 2, 0]),
                "masked_lm_ids": np.array([10 + number, 5, 0]),
                "masked_lm_weights": np.array([1, 1, 0], np.float32),
                "next_sentence_labels": np.array([number % 2]),
            }
        )
    return rows


@pytest.fixture(scope="module")
def tfrecords(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("tfrecords")
    write_tfrecord(folder / "a.tfrecord", [tf_example(row) for row in google_rows(30)])
    write_tfrecord(folder / "b.tfrecord", [tf_example(row) for row in google_rows(11, first=30)])
    return folder


def numbers(batches) -> list[int]:
    return [int(ids[1]) - 10 for batch in batches for ids in batch["input_ids"][batch["sequence_weights"] > 0]]


def test_checksums_are_crc32c():
    assert crc32c(b"123456789") == 0xE3069283  # the check value of CRC-32C
    parts = [b"123456789", b"", b"\x00", bytes(range(256)) * 3, b"abc"]
    assert [_checksum(part) for part in parts] == [masked(crc32c(part)) for part in parts]


def test_tfrecords_give_the_same_kind_of_batches(tfrecords):
    dataset = create_pretrain_dataset(tfrecords, Loading(4, seed=1))
    assert (dataset.dataset.num_rows, dataset.batches_per_epoch) == (41, 10)
    assert (dataset.facts["max_seq_length"], dataset.facts["max_predictions_per_seq"]) == (12, 3)
    batches = list(dataset.batches(0))
    for batch in batches:
        assert_pretraining_batch(batch, 4, 12, 3, 60)
        assert (batch["next_sentence_labels"] == batch["input_ids"][:, 1] % 2).all()
    found = numbers(batches)
    assert len(found) == len(set(found)) == 40
    assert found == numbers(dataset.batches(0)) == numbers(create_pretrain_dataset(tfrecords, Loading(4, 1)).batches(0))
    assert found != numbers(dataset.batches(1)) and found != sorted(found)
    assert_same_batches(list(dataset.batches(0, 7)), batches[7:])
    assert list(dataset.batches(0, 10)) == []


def test_an_epoch_of_tfrecords_has_an_order_of_files_of_its_own(tmp_path, monkeypatch):
    """Rows are shuffled in a window, which a file may be larger than."""
    monkeypatch.setattr("src.pretraining_data.tfrecord_batches.SHUFFLE_BUFFER", 2)
    for file in range(6):
        rows = google_rows(5, first=5 * file)
        write_tfrecord(tmp_path / f"{file}.tfrecord", [tf_example(row) for row in rows])
    dataset = create_pretrain_dataset(tmp_path, Loading(5, seed=1))
    begins = [numbers(dataset.batches(epoch))[0] // 5 for epoch in range(8)]
    assert len(set(begins)) > 2
    assert_same_batches(list(dataset.batches(3, 4)), list(dataset.batches(3))[4:])


def test_training_on_tfrecords_without_shuffling_leaves_no_row_out_for_ever(tfrecords):
    dataset = create_pretrain_dataset(tfrecords, Loading(4, shuffle=False))
    seen = [number for epoch in range(5) for number in numbers(dataset.batches(epoch))]
    assert seen == (list(range(41)) * 5)[:200]
    assert numbers(dataset.batches(3, 7)) == numbers(dataset.batches(3))[28:]


def test_evaluation_of_tfrecords_leaves_out_nothing(tfrecords):
    of_rank = [
        list(create_pretrain_dataset(tfrecords, Loading(4, 0, False, True, rank, 3)).batches(0)) for rank in range(3)
    ]
    assert [len(batches) for batches in of_rank] == [4, 4, 4]
    assert sorted(number for batches in of_rank for number in numbers(batches)) == list(range(41))
    assert [batches[-1]["sequence_weights"].sum() for batches in of_rank] == [4, 1, 0]
    assert of_rank[2][-1]["masked_lm_weights"].sum() == 0


def test_one_tfrecord_by_name(tfrecords):
    assert create_pretrain_dataset(tfrecords / "b.tfrecord", Loading(4)).dataset.num_rows == 11


def test_a_schema_names_the_columns(tfrecords, tmp_path):
    columns = {
        name: {"type": "float32" if values.dtype == np.float32 else "int64", "rank": 1, "shape": [len(values)]}
        for name, values in google_rows(1)[0].items()
    }
    schema = {"datasetType": "TF", "numRows": 41, "columns": columns}
    (tmp_path / "schema.json").write_text(json.dumps(schema))
    plain = list(create_pretrain_dataset(tfrecords, Loading(4)).batches(0))
    for place in (tmp_path, tmp_path / "schema.json"):
        assert_same_batches(list(create_pretrain_dataset(tfrecords, Loading(4), place).batches(0)), plain)
    with pytest.raises(DataError, match="schema_dir: "):
        create_pretrain_dataset(tfrecords, Loading(4), tmp_path / "nowhere.json")


def test_a_missing_column_is_named(tmp_path):
    rows = [{name: values for name, values in row.items() if name != "segment_ids"} for row in google_rows(3)]
    write_tfrecord(tmp_path / "bad.tfrecord", [tf_example(row) for row in rows])
    with pytest.raises(DataError, match=r"bad\.tfrecord cannot be read: .*segment_ids"):
        create_pretrain_dataset(tmp_path, Loading(2))


def test_buckets_are_for_rows_without_padding(tfrecords):
    with pytest.raises(DataError, match="padded already"):
        create_pretrain_dataset(tfrecords, Loading(2, bucket_boundaries=(6, 12)))


def test_two_kinds_of_files_in_one_folder_are_ambiguous(pretraining_folder, tfrecords, tmp_path):
    for file in [*pretraining_folder.iterdir(), tfrecords / "a.tfrecord"]:
        (tmp_path / file.name).write_bytes(file.read_bytes())
    with pytest.raises(DataError, match=r"holds both a\.tfrecord and MindRecords"):
        create_pretrain_dataset(tmp_path, Loading(2))
    assert create_pretrain_dataset(tmp_path / "a.tfrecord", Loading(2)).dataset.num_rows == 30


@pytest.mark.parametrize("position", [3, 9, 40, -2])
def test_every_flipped_bit_of_a_tfrecord_is_noticed(tfrecords, tmp_path, position):
    content = bytearray((tfrecords / "a.tfrecord").read_bytes())
    content[position] ^= 4
    (tmp_path / "a.tfrecord").write_bytes(content)
    record = 29 if position < 0 else 0
    with pytest.raises(DataError, match=rf"a\.tfrecord is not a TFRecord file, or is damaged .*record {record} "):
        create_pretrain_dataset(tmp_path, Loading(2))


@pytest.mark.parametrize("size", [0, 5, 100, -1])
def test_a_cut_off_tfrecord_is_noticed(tfrecords, tmp_path, size):
    content = (tfrecords / "a.tfrecord").read_bytes()[:size]
    (tmp_path / "a.tfrecord").write_bytes(content)
    with pytest.raises(DataError, match=r"a\.tfrecord (holds no records|is not a TFRecord file)"):
        create_pretrain_dataset(tmp_path, Loading(2))


def test_google_s_own_file(golden):
    path = golden / "wikitext2_valid.tfrecord"
    assert check_tfrecord(path) == 10_182
    dataset = create_pretrain_dataset(path, Loading(64, evaluation=True, shuffle=False))
    rows = 0
    for batch in dataset.batches(0):
        if rows < 640:
            assert_pretraining_batch(batch, 64, 128, 20, 30_000)
        rows += int(batch["sequence_weights"].sum())
    assert rows == dataset.dataset.num_rows == 10_182
