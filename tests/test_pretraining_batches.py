"""Batches of pre-training data, of this project's files and of google's TFRecords."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from dataset import create_pretrain_dataset
from model_utils.errors import DataError
from src.data.batches import Loading
from src.data.tfrecords import _checksum, check_tfrecord
from tests.helpers.batches import assert_same_batches
from tests.helpers.small_text import make_records, write_text
from tests.helpers.tfrecord_files import crc32c, masked, tf_example, write_tfrecord


@pytest.fixture(scope="module")
def pretraining_folder(tmp_path_factory, text_and_model) -> Path:
    folder = tmp_path_factory.mktemp("pretraining")
    text = write_text(folder, topics=20)
    settings = {"max_seq_length": 64, "max_predictions_per_seq": 10, "dupe_factor": 1}
    return make_records(folder / "data" / "pre.mindrecord", text, text_and_model[1], **settings).parent


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
    assert dataset.manifest["max_seq_length"] == 64 and dataset.dataset.num_rows == dataset.manifest["rows"]
    for batch in dataset.batches(0):
        assert_pretraining_batch(batch, 4, 64, 10, 900)


def test_a_schema_is_for_tfrecords(pretraining_folder):
    with pytest.raises(DataError, match="tfrecord"):
        create_pretrain_dataset(pretraining_folder, Loading(4), schema_dir=pretraining_folder)


def google_row(number: int) -> dict[str, np.ndarray]:
    """A row of length 12 with 3 predictions; the second token is 10 and the row's number."""
    size = 6 + number % 7
    mask = np.arange(12) < size
    ids = np.where(mask, 5, 0)
    ids[[0, 1, size - 1]] = 2, 10 + number, 3
    return {
        "input_ids": ids,
        "input_mask": mask.astype(int),
        "segment_ids": (np.arange(12) > 3) & mask,
        "token_boundary": mask.astype(int),
        "masked_lm_positions": np.array([1, 2, 0]),
        "masked_lm_ids": np.array([10 + number, 5, 0]),
        "masked_lm_weights": np.array([1, 1, 0], np.float32),
        "next_sentence_labels": np.array([number % 2]),
    }


def write_google(path: Path, numbers: range) -> None:
    write_tfrecord(path, [tf_example(google_row(number)) for number in numbers])


@pytest.fixture(scope="module")
def tfrecords(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("tfrecords")
    write_google(folder / "a.tfrecord", range(30))
    write_google(folder / "b.tfrecord", range(30, 41))
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
    assert (dataset.manifest["max_seq_length"], dataset.manifest["max_predictions_per_seq"]) == (12, 3)
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
        write_google(tmp_path / f"{file}.tfrecord", range(5 * file, 5 * file + 5))
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
    of_rank = []
    for rank in range(3):
        loading = Loading(4, shuffle=False, evaluation=True, rank=rank, rank_size=3)
        of_rank.append(list(create_pretrain_dataset(tfrecords, loading).batches(0)))
    assert [len(batches) for batches in of_rank] == [4, 4, 4]
    assert sorted(number for batches in of_rank for number in numbers(batches)) == list(range(41))
    assert [batches[-1]["sequence_weights"].sum() for batches in of_rank] == [4, 1, 0]
    assert of_rank[2][-1]["masked_lm_weights"].sum() == 0


def test_a_schema_names_the_columns(tfrecords, tmp_path):
    columns = {
        name: {"type": "float32" if values.dtype == np.float32 else "int64", "rank": 1, "shape": [len(values)]}
        for name, values in google_row(0).items()
    }
    schema = {"datasetType": "TF", "numRows": 41, "columns": columns}
    (tmp_path / "schema.json").write_text(json.dumps(schema))
    plain = list(create_pretrain_dataset(tfrecords, Loading(4)).batches(0))
    for place in (tmp_path, tmp_path / "schema.json"):
        assert_same_batches(list(create_pretrain_dataset(tfrecords, Loading(4), place).batches(0)), plain)
    with pytest.raises(DataError, match="schema_dir"):
        create_pretrain_dataset(tfrecords, Loading(4), tmp_path / "nowhere.json")


def test_a_missing_column_is_named(tmp_path):
    row = google_row(0)
    del row["segment_ids"]
    write_tfrecord(tmp_path / "bad.tfrecord", [tf_example(row)] * 3)
    with pytest.raises(DataError, match=r"bad\.tfrecord .*segment_ids"):
        create_pretrain_dataset(tmp_path, Loading(2))


def test_buckets_are_for_rows_without_padding(tfrecords):
    with pytest.raises(DataError, match="padded"):
        create_pretrain_dataset(tfrecords, Loading(2, bucket_boundaries=(6, 12)))


def test_two_kinds_of_files_in_one_folder_are_ambiguous(pretraining_folder, tfrecords, tmp_path):
    both = shutil.copytree(pretraining_folder, tmp_path / "both")
    shutil.copy(tfrecords / "a.tfrecord", both)
    with pytest.raises(DataError, match=r"a\.tfrecord and MindRecords"):
        create_pretrain_dataset(both, Loading(2))
    assert create_pretrain_dataset(both / "a.tfrecord", Loading(2)).dataset.num_rows == 30


@pytest.mark.parametrize(("position", "record"), [(3, 0), (9, 0), (40, 0), (-2, 29)])
def test_every_flipped_bit_of_a_tfrecord_is_noticed(tfrecords, tmp_path, position, record):
    content = bytearray((tfrecords / "a.tfrecord").read_bytes())
    content[position] ^= 4
    (tmp_path / "a.tfrecord").write_bytes(content)
    with pytest.raises(DataError, match=rf"a\.tfrecord .*record {record} "):
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
