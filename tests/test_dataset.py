"""Batches: every row once, in an order of seed and epoch alone, for every rank, bucket and kind of file."""

import contextlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataset import create_pretrain_dataset
from model_utils.errors import DataError
from src.data.batches import ROWS_PLANNED, FeatureDataset, Loading, plan_batches
from src.data.feature_files import Column, Ragged, open_records
from src.data.packing import Packing
from src.data.read_ahead import read_ahead
from src.data.record_writer import RecordWriter, pack_rows
from src.data.row_reader import _decode, _split
from tests.helpers.batches import assert_same_batches

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


def test_token_ids_that_the_model_lacks_are_found(folder: Path) -> None:
    records = open_records(folder, "test")  # the largest id is 200
    assert len(list(FeatureDataset(records, Loading(8), vocab_size=201).batches(0))) == ROWS // 8
    with pytest.raises(DataError, match=r"token id 200, .* 200 tokens"):
        list(FeatureDataset(records, Loading(8, evaluation=True), vocab_size=200).batches(0))


@pytest.fixture
def copy(folder: Path, tmp_path: Path) -> Path:
    """A folder of rows that may be damaged."""
    return shutil.copytree(folder, tmp_path / "copy")


def cut(file: Path) -> None:
    os.truncate(file, 1000)


def overwrite(file: Path) -> None:
    """In place, as `cp` does."""
    file.write_bytes(np.random.default_rng(0).bytes(file.stat().st_size))


def clear(file: Path) -> None:
    file.write_bytes(bytes(file.stat().st_size))


def flip_each_byte_of_the_rows(file: Path) -> None:
    content = np.fromfile(file, np.uint8)
    content[2 << 20 :] ^= 1  # from the first page on
    content.tofile(file)


def replace(file: Path) -> None:
    other = file.with_name("other")
    other.write_bytes(file.read_bytes()[::-1])
    other.replace(file)


CHANGES = [cut, overwrite, clear, replace, flip_each_byte_of_the_rows]


@pytest.mark.parametrize("change", [*CHANGES, Path.unlink])
def test_files_that_change_between_epochs_are_named(copy: Path, change: Callable) -> None:
    batches = load(copy)
    assert_same_batches(list(batches.batches(0)), list(batches.batches(0)))
    change(copy / "rows.mindrecord1")
    with pytest.raises(DataError, match=r"rows\.mindrecord1"):
        list(batches.batches(1))


@pytest.mark.parametrize("change", [change for change in CHANGES if change != replace])
@pytest.mark.parametrize("workers", [0, 2])
def test_files_that_change_while_they_are_read_are_named(copy: Path, change: Callable, workers: int) -> None:
    with read_ahead(load(copy).batches(0), workers) as batches:
        next(batches)
        change(copy / "rows.mindrecord0")
        with pytest.raises(DataError, match=r"rows\.mindrecord0 has changed"):
            list(batches)


def test_a_file_that_is_replaced_while_it_is_read_is_read_to_the_end_of_the_epoch(folder: Path, copy: Path) -> None:
    batches = load(copy).batches(0)
    first = next(batches)
    replace(copy / "rows.mindrecord0")
    assert_same_batches([first, *batches], list(load(folder).batches(0)))


def become_pipe(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


@pytest.mark.parametrize("change", [*CHANGES[:-1], Path.unlink, become_pipe])
def test_an_index_that_has_changed_since_it_was_verified_is_named(copy: Path, change: Callable) -> None:
    batches = load(copy)
    change(copy / "rows.mindrecord0.db")
    with pytest.raises(DataError, match=r"rows\.mindrecord0"):
        list(batches.batches(0))


def test_arrays_beside_the_rows_are_checked_when_they_are_read(copy: Path) -> None:
    records = open_records(copy, "test")
    assert records.array("lengths").sum() == records.lengths.sum()
    overwrite(copy / "rows.lengths.npy")
    with pytest.raises(DataError, match=r"rows\.lengths\.npy has changed"):
        records.array("lengths")


def test_a_set_without_row_checksums_is_refused(copy: Path) -> None:
    manifest = json.loads((copy / "rows.facts.json").read_text())
    del manifest["files"]["rows.checksums.npy"], manifest["checksum"]
    (copy / "rows.checksums.npy").unlink()
    (copy / "rows.facts.json").write_text(json.dumps(manifest))
    with pytest.raises(DataError, match=r"rows\.checksums\.npy"):
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


def test_the_order_depends_on_seed_and_epoch_alone(folder):
    first = real_labels(load(folder, seed=1).batches(0))
    assert first == real_labels(load(folder, seed=1).batches(0))
    assert first != real_labels(load(folder, seed=1).batches(1))
    assert first != real_labels(load(folder, seed=2).batches(0))
    assert first != sorted(first)


IN_ORDER = [*range(0, ROWS, 2), *range(1, ROWS, 2)]  # rows are dealt out to two files


@pytest.fixture(params=[ROWS_PLANNED, ROWS // 3])
def planned_at_once(request, monkeypatch):
    monkeypatch.setattr("src.data.batches.ROWS_PLANNED", request.param)


def test_without_shuffling_the_order_is_that_of_the_files(planned_at_once, folder):
    for epoch in (0, 1):
        assert real_labels(load(folder, shuffle=False, evaluation=True).batches(epoch)) == IN_ORDER


def test_training_without_shuffling_leaves_no_row_out_for_ever(planned_at_once, folder):
    dataset = load(folder, shuffle=False)
    seen = [label for epoch in range(3) for label in real_labels(dataset.batches(epoch))]
    assert ROWS % 8
    assert seen == (IN_ORDER * 3)[: len(seen)]


@pytest.mark.parametrize("boundaries", [(), (8, 16, 32)])
def test_training_without_shuffling_keeps_the_order_in_buckets(folder, lengths, boundaries):
    batches = list(load(folder, shuffle=False, batch_size=4, bucket_boundaries=boundaries).batches(0))
    assert real_labels(batches) == IN_ORDER[: ROWS // 4 * 4]
    for batch in batches:
        longest = lengths[batch["label"]].max()
        assert batch["input_ids"].shape[1] == min(width for width in boundaries or [32] if width >= longest)


def test_training_without_shuffling_keeps_the_order_of_packed_rows(folder):
    (plan,) = load(folder, shuffle=False, batch_size=4, packing=Packing(1, 1)).plans(0)
    assert plan.rows.ravel().tolist() == list(range(ROWS // 4 * 4))


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("evaluation", [False, True])
def test_packed_batches_are_as_large_on_all_ranks(planned_at_once, folder, shuffle, evaluation):
    settings = {"shuffle": shuffle, "evaluation": evaluation, "batch_size": 2, "rank_size": 3, "packing": Packing(1, 1)}
    of_rank = [load(folder, rank=rank, **settings) for rank in range(3)]
    lengths = of_rank[0].records.lengths
    for plans in zip(*(dataset.plans(0) for dataset in of_rank), strict=True):
        tokens = [np.where(plan.rows < 0, 0, lengths[plan.rows]).sum(1) for plan in plans]
        for plan in plans:
            np.testing.assert_array_equal(plan.widths, Packing(1, 1).sizes_for(np.max(tokens, axis=0)))


@pytest.mark.parametrize("boundaries", [(), (8, 16, 32)])
@pytest.mark.parametrize("evaluation", [False, True])
def test_starting_inside_an_epoch_gives_the_rest_of_it(planned_at_once, folder, boundaries, evaluation):
    dataset = load(folder, bucket_boundaries=boundaries, evaluation=evaluation)
    whole = list(dataset.batches(5))
    for start in (1, 7, len(whole) - 1, len(whole)):
        assert_same_batches(list(dataset.batches(5, start)), whole[start:])


@pytest.mark.parametrize("boundaries", [(), (8, 16, 32)])
@pytest.mark.parametrize("batch_size", [8, 20, 200])
def test_evaluation_leaves_out_nothing(planned_at_once, folder, boundaries, batch_size):
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
def test_ranks_share_the_rows(planned_at_once, folder, boundaries, evaluation):
    settings = {"bucket_boundaries": boundaries, "evaluation": evaluation, "batch_size": 6, "rank_size": 3}
    of_rank = [list(load(folder, rank=rank, **settings).batches(2)) for rank in range(3)]
    assert {len(batches) for batches in of_rank} == {load(folder, **settings).batches_per_epoch}
    labels = [label for batches in of_rank for label in real_labels(batches)]
    assert len(labels) == len(set(labels)) == (ROWS if evaluation else ROWS // 18 * 18)
    for together in zip(*of_rank, strict=True):
        assert len({batch["input_ids"].shape for batch in together}) == 1, "ranks wait for the longest"


def test_a_rank_without_rows_gets_weights_of_zero(folder):
    (batch,) = load(folder, batch_size=60, evaluation=True, rank=3, rank_size=4).batches(0)
    assert batch["sequence_weights"].sum() == batch["weights"].sum() == 0
    assert batch["input_ids"].shape == (60, 32)


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
    st.integers(0, 100),
)
def test_plans(lengths, batch_size, boundaries, seed):
    lengths = np.array(lengths)
    random = np.random.default_rng(seed)
    order = random.permutation(len(lengths))
    plan = plan_batches(lengths, boundaries, batch_size, order, random)
    full = -(-len(lengths) // batch_size)
    assert plan.shape == (full, batch_size)
    used = plan[plan >= 0]
    assert len(set(used.tolist())) == len(used) == len(lengths)
    assert (plan[:-1] >= 0).all()
    buckets = np.searchsorted(boundaries, lengths[plan[: full - 1]])
    mixed = sum(len(set(bucket)) > 1 for bucket in buckets)
    assert mixed < len(boundaries), "what is left over in a bucket is part of one batch"


def test_data_of_another_task_is_refused(folder):
    with pytest.raises(DataError, match=r"'test', .*'pretrain'"):
        create_pretrain_dataset(folder, Loading(4))
