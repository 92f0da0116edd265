"""Feature files: what is written is read back, complete or not at all, and damage is noticed before MindSpore reads."""

import errno
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import mindspore.dataset as ds
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mindspore.mindrecord import FileWriter

from model_utils.errors import DataError
from src.data import mindrecord_file, record_writer
from src.data.feature_files import Column, Ragged, is_complete, open_records
from src.data.mindrecord_file import files_needed
from src.data.record_writer import PackedRows, RecordWriter, pack_rows
from tests.helpers.feature_rows import COLUMNS, FACTS, ragged_columns, row_dicts, write, write_packed

ROOT = Path(__file__).resolve().parents[1]


def read(files: list[Path]) -> list[dict[str, np.ndarray]]:
    dataset = ds.MindDataset([str(file) for file in files], shuffle=False)
    return list(dataset.create_dict_iterator(output_numpy=True, num_epochs=1))


def assert_same_rows(found: list[dict], expected: list[dict]) -> None:
    assert len(found) == len(expected)
    for row, wanted in zip(found, expected, strict=True):
        for name, values in wanted.items():
            assert row[name].dtype == values.dtype
            np.testing.assert_array_equal(row[name], values)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=5))
def test_rows_are_packed_as_mindspores_own_writer_packs_them(lengths):
    writer = FileWriter("unused.mindrecord")
    writer.add_schema({name: {"type": column.dtype, "shape": [-1]} for name, column in COLUMNS.items()})
    writer._writer._header = writer._header
    own = [
        writer._writer._merge_blob({field: row[field] for field in writer._header.blob_fields})
        for row in row_dicts(lengths)
    ]
    packed = pack_rows(COLUMNS, ragged_columns(lengths))
    assert packed.rows == own
    assert packed.lengths.tolist() == lengths


def test_one_file_is_read_back_in_order(tmp_path):
    lengths = [3, 1, 9, 4, 4, 2, 8]
    write(tmp_path / "new" / "folder", lengths)
    found = open_records(tmp_path / "new" / "folder", "test", vocab_size=30)
    assert [file.name for file in found.files] == ["set.mindrecord"]
    assert found.num_rows == 7 and found.columns == COLUMNS
    assert found.lengths.tolist() == lengths and found.lengths.dtype == np.int32
    assert found.array("counts").tolist() == [0, 1, 2]
    assert_same_rows(read(found.files), row_dicts(lengths))


def test_several_files_hold_each_row_once_with_lengths_in_the_order_of_reading(tmp_path):
    lengths = [3, 1, 9, 4, 5, 2, 8, 7, 6, 1, 2]
    write(tmp_path, lengths, file_num=3, at_once=2)
    found = open_records(tmp_path, "test")
    assert [file.name for file in found.files] == ["set.mindrecord0", "set.mindrecord1", "set.mindrecord2"]
    rows = read(found.files)
    assert [len(row["tokens"]) for row in rows] == found.lengths.tolist()
    assert_same_rows(sorted(rows, key=lambda row: row["tokens"][0]), row_dicts(lengths))
    sizes = [len(read([file])) for file in found.files]
    assert max(sizes) - min(sizes) <= 1


def test_a_small_set_takes_little_space(tmp_path):
    write(tmp_path, [5] * 4)
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) < 6e6


def test_an_error_while_writing_leaves_nothing(tmp_path, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(RecordWriter, "add_array", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path, [3, 4])
    assert list(tmp_path.iterdir()) == []


KILLED = """
import os, sys
from pathlib import Path
from src.data import record_writer
from src.data.record_writer import RecordWriter
from tests.helpers.feature_rows import write
if sys.argv[2] == "late":
    record_writer.write_checked = lambda *_: os.kill(os.getpid(), 9)
else:
    RecordWriter.add_array = lambda *_: os.kill(os.getpid(), 9)
write(Path(sys.argv[1]), [3, 4, 5])
"""


@pytest.mark.parametrize("moment", ["early", "late"])
def test_a_killed_writer_leaves_nothing_that_looks_finished(tmp_path, moment):
    done = subprocess.run([sys.executable, "-c", KILLED, tmp_path, moment], cwd=ROOT, capture_output=True)
    assert done.returncode == -9
    assert not is_complete(tmp_path / "set.mindrecord", FACTS)
    with pytest.raises(DataError, match="no finished feature files"):
        open_records(tmp_path, "test")
    write(tmp_path, [3, 4, 5])
    assert open_records(tmp_path, "test").lengths.tolist() == [3, 4, 5]
    assert not list(tmp_path.glob("unfinished*"))


def test_two_writers_of_one_set_do_not_mix(tmp_path):
    with RecordWriter(tmp_path / "set.mindrecord", COLUMNS, FACTS) as first:
        first.write(pack_rows(COLUMNS, ragged_columns([3, 4])))
        with (
            pytest.raises(DataError, match="another process is writing"),
            RecordWriter(tmp_path / "set.mindrecord", COLUMNS, FACTS),
        ):
            pass
    assert open_records(tmp_path, "test").num_rows == 2


def flip_a_bit(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-len(content) // 3] ^= 1
    file.write_bytes(content)


DAMAGE = {
    "a flipped bit": lambda folder: flip_a_bit(folder / "set.mindrecord"),
    "a cut off file": lambda folder: os.truncate(folder / "set.mindrecord", 3_000_000),
    "an emptied index": lambda folder: os.truncate(folder / "set.mindrecord.db", 0),
    "a missing index": lambda folder: (folder / "set.mindrecord.db").unlink(),
    "a missing file": lambda folder: (folder / "set.mindrecord").unlink(),
    "other lengths": lambda folder: np.save(folder / "set.lengths.npy", np.ones(4, np.int32)),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_named_before_mindspore_reads(tmp_path, damage):
    write(tmp_path, [5] * 4)
    DAMAGE[damage](tmp_path)
    with pytest.raises(DataError, match=r"set\.[a-z.]+ (is damaged or was replaced|cannot be read: No such file)"):
        open_records(tmp_path, "test")


@pytest.mark.parametrize("damage", sorted(set(DAMAGE) - {"other lengths"}))
def test_one_of_several_ranks_notices_damage_when_it_opens_the_files(tmp_path, damage):
    write(tmp_path, [5] * 4)
    DAMAGE[damage](tmp_path)
    errors = 0
    for rank in range(3):
        try:
            open_records(tmp_path, "test", rank=rank, rank_size=3)
        except DataError:
            errors += 1
    assert errors == 1


def test_files_made_for_something_else_are_refused_with_both_values(tmp_path):
    write(tmp_path, [5] * 4)
    with pytest.raises(
        DataError, match=r"set\.facts\.json: the files were made with task 'test', needed is 'pretrain'"
    ):
        open_records(tmp_path, "pretrain")
    with pytest.raises(DataError, match="vocab_size 30, needed is 21128"):
        open_records(tmp_path, "test", vocab_size=21128, max_seq_length=None)
    manifest = json.loads((tmp_path / "set.facts.json").read_text())
    del manifest["checksum"]
    (tmp_path / "set.facts.json").write_text(json.dumps({**manifest, "format_version": 99}))
    with pytest.raises(DataError, match="format_version 99, needed is 1"):
        open_records(tmp_path, "test")


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"task": "test"}'])
def test_a_broken_manifest_is_an_error(tmp_path, content):
    write(tmp_path, [5] * 4)
    (tmp_path / "set.facts.json").write_text(content)
    with pytest.raises(DataError, match=r"set\.facts\.json"):
        open_records(tmp_path, "test")


def test_which_set_is_meant(tmp_path):
    with pytest.raises(DataError, match="nowhere"):
        open_records(tmp_path / "nowhere", "test")
    with pytest.raises(DataError, match=r"NAME\.facts\.json"):
        open_records(tmp_path, "test")
    write(tmp_path, [5] * 4, name="one")
    write(tmp_path, [5] * 6, name="two")
    with pytest.raises(DataError, match=r"several sets .*one\.facts\.json, two\.facts\.json"):
        open_records(tmp_path, "test")
    assert open_records(tmp_path / "two.mindrecord", "test").num_rows == 6
    (tmp_path / "one.facts.json").unlink()
    (tmp_path / "two.facts.json").unlink()
    with pytest.raises(DataError, match=r"NAME\.facts\.json"):
        open_records(tmp_path, "test")
    with pytest.raises(DataError, match=r"two\.mindrecord"):
        open_records(tmp_path / "two.mindrecord", "test")


def test_a_complete_set_of_another_manifest_is_not_overwritten(tmp_path):
    path = tmp_path / "set.mindrecord"
    assert not is_complete(path, FACTS)
    write(tmp_path, [5] * 4)
    assert is_complete(path, FACTS)
    with pytest.raises(DataError, match=r"made with settings\.dupe_factor 5, asked for is 1"):
        is_complete(path, {**FACTS, "settings": {"dupe_factor": 1}})
    with pytest.raises(DataError, match=r"made with settings\.dupe_factor 5, asked for is '\(absent\)'"):
        is_complete(path, {**FACTS, "settings": {}})


def test_names_other_than_mindrecord_are_refused(tmp_path):
    for name in ("set", "set.txt", "set.mindrecord0"):
        with pytest.raises(DataError, match=r"allowed is DIR/NAME\.mindrecord"):
            RecordWriter(tmp_path / name, COLUMNS, FACTS)


def test_fewer_rows_than_files_are_an_error(tmp_path):
    with pytest.raises(DataError, match="2 examples cannot fill 3 files"):
        write(tmp_path, [5, 5], file_num=3)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def small_files(monkeypatch) -> None:
    """Files that take 1 MiB of rows."""
    monkeypatch.setattr(mindrecord_file, "PAGE_BYTES", 1 << 15)
    monkeypatch.setattr(mindrecord_file, "HEADER_BYTES", 1 << 14)
    assert mindrecord_file.capacity() == 1 << 20


def random_rows(count: int, size: int) -> tuple[dict[str, Column], PackedRows]:
    columns = {"tokens": Column("int32", size, per_token=True), "label": Column("int32", 0)}
    tokens = np.random.default_rng(0).integers(2**30, size=count * size, dtype=np.int32)
    label = Ragged(np.arange(count, dtype=np.int32), np.ones(count, int))
    return columns, pack_rows(columns, {"tokens": Ragged(tokens, np.full(count, size)), "label": label})


@pytest.mark.parametrize(("at_once", "size"), [(3000, 1000), (100, 1000), (20_000, 2), (500, 5000)])
def test_a_full_file_is_followed_by_another(tmp_path, small_files, at_once, size):
    count = 3_000_000 // size
    columns, packed = random_rows(min(count, 45_000), size)
    write_packed(tmp_path / "set.mindrecord", columns, packed, 0, at_once)
    found = open_records(tmp_path, "test")
    number = len(found.files)
    assert 1 < number < 16 and [file.name for file in found.files] == [f"set.mindrecord{i}" for i in range(number)]
    assert max(file.stat().st_size for file in found.files) < 3 << 20
    assert found.lengths.tolist() == packed.lengths.tolist()
    assert [int(row["label"][0]) for row in read(found.files)] == list(range(len(packed.rows)))


@pytest.mark.parametrize("file_num", [1, 2])
def test_more_rows_than_the_files_asked_for_take_are_an_error_at_once(tmp_path, small_files, file_num):
    columns, packed = random_rows(3000, 1000)
    writer = RecordWriter(tmp_path / "set.mindrecord", columns, FACTS, file_num)
    sentence = rf"do not fit into {file_num} file\(s\) of 1 MB; give output_file_num 0, or at least {file_num + 1}"

    def write_all() -> None:
        with writer:
            for start in range(0, 3000, 100):
                writer.write(packed.take(np.arange(start, start + 100)))

    with pytest.raises(DataError, match=sentence):
        write_all()
    assert writer.rows == {1: 200, 2: 500}[file_num]  # of 4,020 bytes each
    assert list(tmp_path.iterdir()) == []


def test_how_many_files_are_needed(small_files, tmp_path):
    assert [files_needed(tmp_path, size, 0) for size in (1, 1 << 20, (1 << 20) + 1)] == [1, 1, 2]
    assert files_needed(tmp_path, 1, 5) == 5
    assert files_needed(tmp_path, 5.5 * (1 << 20), 2) == 2  # an estimate, which may be too high
    with pytest.raises(DataError, match=r"do not fit into 2 file.* or at least 7"):
        files_needed(tmp_path, 6.5 * (1 << 20), 2)


def test_what_cannot_be_a_file_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe.mindrecord")
    with pytest.raises(DataError, match=r"pipe\.mindrecord"):
        RecordWriter(tmp_path / "pipe.mindrecord", COLUMNS, FACTS)
    longest = (512 - len(str(tmp_path)) - len("/unfinished-/.mindrecord999.db-journal")) // 2
    with pytest.raises(DataError, match=r"51\d bytes.* 512"):
        RecordWriter(tmp_path / f"{'n' * (longest + 1)}.mindrecord", COLUMNS, FACTS)
    assert open_records(write(tmp_path, [3, 4, 5], name="n" * longest, file_num=2), "test").num_rows == 3


@pytest.mark.parametrize("character", mindrecord_file.FORBIDDEN.replace("/", ""))
def test_characters_that_mindspore_refuses_are_named_at_once(tmp_path, character):
    with pytest.raises(DataError, match=f" has {re.escape(character)}, which MindRecord refuses"):
        RecordWriter(tmp_path / f"a{character}b.mindrecord", COLUMNS, FACTS)


def test_other_characters_are_a_name(tmp_path):
    path = write(tmp_path / "a *&;'", [3, 4], name="[a] $#{中}")
    assert_same_rows(read(open_records(path, "test").files), row_dicts([3, 4]))


def test_a_full_disk_is_a_sentence_and_leaves_nothing(tmp_path, monkeypatch):
    usage = type("Usage", (), {"free": record_writer.SPARE_BYTES - 1})
    monkeypatch.setattr(record_writer.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(DataError, match="cannot be written: the disk is full; nothing was kept"):
        write(tmp_path, [5] * 4)
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_fills_up_at_the_end_leaves_nothing(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(record_writer.np, "save", fail)
    with pytest.raises(DataError, match="the disk is full"):
        write(tmp_path, [5] * 4)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"file/folder/.* cannot be written: .*Not a directory"):
        write(tmp_path / "file" / "folder", [5] * 4)


def test_a_file_beside_the_rows_is_not_exchanged(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    vocabulary = tmp_path / "elsewhere" / "vocab.txt"
    vocabulary.write_text("a\nb\n")
    path = tmp_path / "data" / "set.mindrecord"
    with RecordWriter(path, COLUMNS, FACTS) as writer:
        writer.add_file(vocabulary)
        writer.write(pack_rows(COLUMNS, ragged_columns([3, 4])))
    assert (tmp_path / "data" / "vocab.txt").read_text() == "a\nb\n"
    assert "vocab.txt" in open_records(path, "test").manifest["files"]
    vocabulary.write_text("other\n")
    with (
        pytest.raises(DataError, match="differs from"),
        RecordWriter(tmp_path / "data" / "second.mindrecord", COLUMNS, FACTS) as writer,
    ):
        writer.add_file(vocabulary)


def test_no_rows_are_packed_into_nothing():
    packed = PackedRows([], np.zeros(0, np.int32), np.zeros(0, np.uint32))
    assert packed.take(np.arange(0)).rows == []


@pytest.mark.parametrize("plant", ["link", "folder of another user"])
def test_what_somebody_planted_where_a_set_is_written_is_left_alone(tmp_path, plant):
    (victim := tmp_path / "victim").mkdir()
    (victim / "kept").write_text("kept")
    place = tmp_path / "sets" / "unfinished-set"
    place.parent.mkdir()
    if plant == "link":
        place.symlink_to(victim)
    elif os.geteuid() == 0:
        shutil.copytree(victim, place)
        os.chown(place, 65534, 65534)
    else:
        pytest.skip("only root can give a folder away")
    with pytest.raises(DataError, match="sets/unfinished-set"):
        write(tmp_path / "sets", [3, 4])
    assert (victim / "kept").exists() and (place / "kept").exists()
