"""Parquet, Arrow and Feather files, and folders of datasets.save_to_disk: the rows of each, and damage to them."""

import json
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from model_utils.errors import DataError
from src.create_finetune_data import TextColumns, find_splits, read_examples
from src.inference.record_files import check_inputs, read_records
from src.text.arrow_tables import is_saved_dataset
from src.text.corpus import read_documents
from src.text.corpus_files import corpus_bytes, expand_glob
from src.text.text_tables import read_table
from tests.conftest import ROOT
from tests.faults.cases import COUNTS, damaged, explore

pa = pytest.importorskip("pyarrow", reason="needs pyarrow (requirements-arrow.txt)")
feather = pytest.importorskip("pyarrow.feather")
parquet = pytest.importorskip("pyarrow.parquet")

COLUMNS = {"text": ["很好", "bad", "a\tb\n"], "label": [1, 0, 1]}
ROWS = [(1, ["很好", "1"]), (2, ["bad", "0"]), (3, ["a\tb\n", "1"])]
KINDS = ["a.parquet", "a.arrow", "a.feather", "stream.arrow", "saved"]


def class_labels(*names: str, of_list: bool = False) -> dict[str, Any]:
    feature: dict[str, Any] = {"names": list(names), "_type": "ClassLabel"}
    return {"feature": feature, "_type": "List"} if of_list else feature


def with_features(table: Any, **features: Any) -> Any:
    """The table with the metadata that `datasets` writes."""
    return table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})


def write_stream(path: Path, table: Any) -> Path:
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=2)
    return path


def save(folder: Path, *shards: Any) -> Path:
    """A folder as datasets.save_to_disk writes it."""
    folder.mkdir(parents=True)
    names = [f"data-{index:05}-of-{len(shards):05}.arrow" for index in range(len(shards))]
    for name, shard in zip(names, shards, strict=True):
        write_stream(folder / name, shard)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in names]}))
    (folder / "dataset_info.json").write_text("{}")
    return folder


def write(path: Path, table: Any) -> Path:
    if path.name == "saved":
        return save(path, table.slice(0, 1), table.slice(1))
    if path.name == "stream.arrow":
        return write_stream(path, table)
    if path.suffix == ".parquet":
        parquet.write_table(table, path, row_group_size=2)
    else:
        feather.write_feather(table, path)
    return path


def rows_of(path: Path, *columns: str) -> list[Any]:
    return list(read_table(path).select(columns or ("text", "label")))


@pytest.mark.parametrize("kind", KINDS)
def test_every_format_gives_the_same_rows(tmp_path: Path, kind: str) -> None:
    assert rows_of(write(tmp_path / kind, pa.table(COLUMNS))) == ROWS


def test_values_read_as_in_other_tables(tmp_path: Path) -> None:
    moments = [datetime(2024, 2, 29), datetime(2024, 2, 29, 12, 30), None]
    columns = {
        "score": pa.array([0.1, None, 3.0], pa.float32()),
        "double": [0.1, 1e22, 2.0],
        "bool": [True, False, None],
        "word": pa.array(["a", "b", "a"]).dictionary_encode(),
        "wide": pa.array(["a", None, ""], pa.large_string()),
        "day": pa.array(moments, pa.date32()),
        "moment": pa.array(moments, pa.timestamp("ns")),
        "none": pa.nulls(3),
    }
    table = read_table(write(tmp_path / "a.parquet", pa.table(columns)))
    values = dict(zip(table.names, zip(*(row for _, row in table.rows), strict=True), strict=True))
    assert values == {
        "score": ("0.1", "", "3"),
        "double": ("0.1", "10000000000000000000000", "2"),
        "bool": ("true", "false", ""),
        "word": ("a", "b", "a"),
        "wide": ("a", "", ""),
        "day": ("2024-02-29", "2024-02-29", ""),
        "moment": ("2024-02-29", "2024-02-29 12:30:00", ""),
        "none": ("", "", ""),
    }


@pytest.mark.parametrize("kind", KINDS)
def test_class_labels_have_their_names(tmp_path: Path, kind: str) -> None:
    table = with_features(pa.table(COLUMNS | {"label": [1, 0, -1]}), label=class_labels("neg", "pos"))
    assert [fields[1] for _, fields in rows_of(write(tmp_path / kind, table))] == ["pos", "neg", ""]


def test_a_class_without_a_name_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", with_features(pa.table(COLUMNS), label=class_labels("only")))
    with pytest.raises(DataError, match="line 1 has class 1"):
        rows_of(path)


def test_lists_of_class_labels_are_several_labels(tmp_path: Path) -> None:
    table = pa.table({"text": ["a", "b"], "label": [[0, 2], []]})
    path = write(tmp_path / "a.parquet", with_features(table, label=class_labels("x", "y", "z", of_list=True)))
    assert [example.label for example in read_examples(path, TextColumns("text", separator="|"))] == ["x|z", None]


@pytest.mark.parametrize("nested", [[["a"]], [{"a": 1}], [b"a"]], ids=["list", "struct", "binary"])
def test_nested_columns_are_refused_only_where_they_are_used(tmp_path: Path, nested: Any) -> None:
    path = write(tmp_path / "a.parquet", pa.table({"text": ["a"], "tags": nested, "label": [1]}))
    assert rows_of(path) == [(1, ["a", "1"])]
    with pytest.raises(DataError, match=r"a\.parquet has the column 'tags' of type"):
        rows_of(path, "tags")
    with pytest.raises(DataError, match=r"'tags'"):
        read_examples(path, TextColumns("text", label="2"))
    check_inputs([(str(path), "auto")])
    [record] = read_records(str(path), "auto", "text")
    assert record.record == {"text": "a", "label": "1"}


def test_splits_are_found_by_name(tmp_path: Path) -> None:
    table = pa.table(COLUMNS)
    for name in ("train-00000-of-00002.parquet", "train-00001-of-00002.parquet", "validation.arrow"):
        write(tmp_path / name, table)
    save(tmp_path / "test", table)
    splits = find_splits(str(tmp_path), {})
    assert {split: splits[split].name for split in splits} == {
        "train": "train-00000-of-00002.parquet",
        "dev": "validation.arrow",
        "test": "test",
    }
    assert rows_of(splits["train"]) == ROWS + [(line + 3, row) for line, row in ROWS]
    (tmp_path / "train-00001-of-00002.parquet").unlink()
    with pytest.raises(DataError, match=r"train-00001-of-00002\.parquet"):
        rows_of(splits["train"])


def test_a_folder_of_several_splits(tmp_path: Path) -> None:
    for name in ("train", "validation", "unsupervised"):
        save(tmp_path / "set" / name, pa.table(COLUMNS))
    (tmp_path / "set/dataset_dict.json").write_text('{"splits": ["train", "validation", "unsupervised"]}')
    splits = find_splits(str(tmp_path / "set"), {})
    assert {split: splits[split].name for split in splits} == {"train": "train", "dev": "validation"}
    assert rows_of(splits["dev"]) == ROWS
    with pytest.raises(DataError, match="holds several splits"):
        read_table(tmp_path / "set")
    (tmp_path / "set/validation/state.json").unlink()
    with pytest.raises(DataError, match=r"lacks validation.*dataset_dict\.json"):
        find_splits(str(tmp_path / "set"), {})


# --- what is wrong ---


@pytest.mark.parametrize("kind", KINDS)
def test_files_that_are_cut_short_are_refused_at_every_length(tmp_path: Path, kind: str) -> None:
    path = write(tmp_path / kind, pa.table(COLUMNS))
    file = path / "data-00001-of-00002.arrow" if path.is_dir() else path
    content = file.read_bytes()
    for length in {*range(0, len(content), 61), *range(len(content) - 20, len(content))}:
        file.write_bytes(content[:length])
        with pytest.raises(DataError, match=file.name):
            rows_of(path)


def test_folders_with_missing_or_odd_shards(tmp_path: Path) -> None:
    folder = save(tmp_path / "train", pa.table(COLUMNS), pa.table({"text": ["a"]}))
    with pytest.raises(DataError, match=r"data-00001-of-00002\.arrow has other columns"):
        rows_of(folder)
    (folder / "data-00001-of-00002.arrow").unlink()
    with pytest.raises(DataError, match=r"data-00001-of-00002\.arrow .*No such file"):
        rows_of(folder)
    for state in ('{"_data_files": []}', '{"_data_files": [{"filename": "../a.arrow"}]}', "{}", "["):
        (folder / "state.json").write_text(state)
        with pytest.raises(DataError, match=r"state\.json"):
            rows_of(folder)


@pytest.mark.parametrize("table", [{}, {"text": [], "label": []}], ids=["columns", "rows"])
@pytest.mark.parametrize("kind", ["a.parquet", "a.arrow"])
def test_empty_tables(tmp_path: Path, kind: str, table: Any) -> None:
    with pytest.raises(DataError, match=r"is empty|holds no examples"):
        read_examples(write(tmp_path / kind, pa.table(table)), TextColumns("text"))


@pytest.mark.parametrize("content", [b"", b"FEA1\0\0\0\0FEA1", b"text,label\n", b"\x1f\x8b\x08" + bytes(30)])
@pytest.mark.parametrize("name", ["a.parquet", "a.arrow", "a.parquet.gz"])
def test_other_files_under_these_names(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=name):
        read_table(tmp_path / name)


@pytest.mark.parametrize("name", ["a.parquet", "n" * 300 + ".arrow", "a\0.arrow", "train-00000-of-00000.parquet"])
def test_missing_files(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataError, match="cannot be read"):
        read_table(tmp_path / name)
    (tmp_path / "a.parquet").mkdir()
    with pytest.raises(DataError, match="it is a folder, a device or a pipe, and no file"):
        read_table(tmp_path / "a.parquet")
    assert not is_saved_dataset(tmp_path / name)


def test_without_pyarrow_the_command_to_install_it_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", pa.table(COLUMNS))
    code = "import sys; sys.modules['pyarrow'] = None; from src.text.text_tables import read_table; "
    code += f"read_table({str(path)!r})"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert "a.parquet" in done.stderr and "pip install -r requirements-arrow.txt" in done.stderr


@COUNTS
@pytest.mark.parametrize("kind", KINDS[:4])
def test_damage(tmp_path: Path, kind: str, count: int) -> None:
    table = with_features(pa.table(COLUMNS), label=class_labels("neg", "pos"))
    path = write(tmp_path / kind, table)
    strategy: st.SearchStrategy = damaged(path.read_bytes())

    def read(content: bytes) -> None:
        path.write_bytes(content)
        list(read_table(path).rows)

    explore(count, strategy, read)


# --- text for pre-training ---


def test_rows_are_documents_of_a_corpus(tmp_path: Path) -> None:
    """Each file is read for itself, although its name says that another one belongs to it."""
    titles = ["Paris", "No text", "Rome"]
    texts = ["Paris\n\nIt is old.\n It is large. ", None, "It is older."]
    table = pa.table({"id": [1, 2, 3], "title": titles, "text": texts})
    files = [tmp_path / f"train-0000{index}-of-00002.parquet" for index in range(2)]
    parquet.write_table(table.slice(0, 2), files[0])
    parquet.write_table(table.slice(2), files[1])
    assert list(read_documents(files)) == [["It is old.", "It is large."], ["It is older."]]
    assert list(read_documents(files, "title")) == [[title] for title in titles]


def test_the_size_of_a_corpus_is_that_of_its_texts(tmp_path: Path) -> None:
    nested = [{"id": row, "language": "en"} for row in range(1000)]
    text = [f"{row} " + "a" * 1000 for row in range(1000)]
    table = pa.table({"meta": nested, "text": text, "other": ["b" * 5000] * 1000})
    parquet.write_table(table, tmp_path / "a.PARQUET", compression="zstd", use_dictionary=False)
    (tmp_path / "b.txt").write_text("c" * 500_000)
    files = expand_glob(str(tmp_path))
    assert files[0].stat().st_size < 100_000
    assert corpus_bytes(files, "text") == pytest.approx(1_500_000, rel=0.02)


@pytest.mark.parametrize("text_key", ["content", "1", "id"])
def test_a_corpus_without_texts_names_its_columns(tmp_path: Path, text_key: str) -> None:
    file = write(tmp_path / "a.parquet", pa.table({"id": [{"x": 1}], "words": ["a"]}))
    with pytest.raises(DataError, match=r"a\.parquet .*'id', 'words'.*text_key"):
        list(read_documents([file], text_key))
