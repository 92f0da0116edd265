"""Feature files: made once, found again, one set for each cause."""

import contextlib
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from model_utils.errors import ConfigError
from src.data import feature_cache as features
from src.data.batches import FeatureDataset, Loading
from src.data.feature_cache import Features, cached_features
from src.data.feature_files import Column, Ragged
from src.data.record_writer import RecordWriter, pack_rows
from src.finetuning.task_data import TaskData
from src.tasks.task_info import TaskInfo
from src.tokenization import FullTokenizer


def make() -> Features:
    counts = np.array([2, 1, 3, 2, 1])
    tokens = Ragged(np.arange(9, dtype=np.int32), counts)
    labels = Ragged(np.arange(5, dtype=np.int32), np.ones(5, np.int64))
    columns = {"input_ids": Column("int32", 3, 0, True), "label_ids": Column("int32", 0)}
    return Features(columns, {"input_ids": tokens, "label_ids": labels}, {"levels": np.arange(5) * 7})


def test_the_same_manifest_finds_the_rows_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features, "ROWS_AT_ONCE", 2)
    first = cached_features(tmp_path, "toy", {"length": 3}, make)
    again = cached_features(tmp_path, "toy", {"length": 3}, lambda: pytest.fail("made twice"))
    assert first.files == again.files
    (batch,) = FeatureDataset(again, Loading(5, shuffle=False, evaluation=True)).batches(0)
    assert batch["input_ids"].tolist() == [[0, 1, 0], [2, 0, 0], [3, 4, 5], [6, 7, 0], [8, 0, 0]]
    assert batch["label_ids"].tolist() == list(range(5))
    assert again.array("levels").tolist() == [0, 7, 14, 21, 28]


def changed(folder: Path) -> dict[str, int]:
    return {file.name: file.stat().st_mtime_ns for file in folder.iterdir()}


def test_what_another_process_has_made_meanwhile_stays(tmp_path: Path) -> None:
    written = []

    def make_second() -> Features:
        written.extend(cached_features(tmp_path, "toy", {"length": 3}, make).files)
        written.append(changed(tmp_path))
        return make()

    second = cached_features(tmp_path, "toy", {"length": 3}, make_second)
    assert [*second.files, changed(tmp_path)] == written


@pytest.mark.parametrize("finished", [True, False])
def test_what_another_process_is_writing_is_waited_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, finished: bool
) -> None:
    """And made here where that one fails."""
    caplog.set_level("INFO")
    path = Path(cached_features(tmp_path / "known", "toy", {"length": 3}, make).files[0])
    first = RecordWriter(tmp_path / path.name, make().columns, {"task": "toy", "length": 3})
    with ThreadPoolExecutor(1) as pool, contextlib.suppress(ZeroDivisionError), first as writer:
        second = pool.submit(cached_features, tmp_path, "toy", {"length": 3}, make)
        while not caplog.messages and not second.done():
            time.sleep(0.01)
        if not finished:
            raise ZeroDivisionError
        tokens, label = Ragged(np.int32([0, 1]), np.array([2])), Ragged(np.int32([0]), np.array([1]))
        writer.write(pack_rows(writer.columns, {"input_ids": tokens, "label_ids": label}))
    assert second.result(60).num_rows == (1 if finished else 5)
    (message,) = caplog.messages
    assert str(first.path) in message


@pytest.mark.parametrize(("task", "manifest"), [("toy", {"length": 4}), ("other", {"length": 3}), ("toy", {})])
def test_another_manifest_is_another_set(tmp_path: Path, task: str, manifest: dict) -> None:
    first = cached_features(tmp_path, "toy", {"length": 3}, make)
    made = []
    other = cached_features(tmp_path, task, manifest, lambda: made.append(1) or make())
    assert made and set(first.files).isdisjoint(other.files)


def test_a_folder_that_takes_no_files_is_named_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"feature_dir is .*file', but nothing can be written there: "):
        cached_features(tmp_path / "file", "toy", {}, lambda: pytest.fail("features were made"))


def test_what_fails_leaves_nothing_that_is_found(tmp_path: Path) -> None:
    def fail() -> Features:
        raise RuntimeError("no text")

    with pytest.raises(RuntimeError):
        cached_features(tmp_path, "toy", {}, fail)
    assert cached_features(tmp_path, "toy", {}, make).num_rows == 5


@pytest.mark.parametrize(("name", "text"), [("train", "the cat"), ("train", "der Hund"), ("dev", "der Hund")])
def test_a_vocabulary_that_does_not_fit_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, text: str
) -> None:
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\ncat\n")
    tokenizer = FullTokenizer(tmp_path / "vocab.txt")
    ids = np.array(tokenizer.encode(text))
    columns = {"input_ids": ids, "input_mask": np.ones_like(ids)}
    features = SimpleNamespace(values={key: Ragged(each, np.array([len(ids)])) for key, each in columns.items()})
    split = SimpleNamespace(name=name, features=lambda: features)
    task = SimpleNamespace(tokenizer=tokenizer, task_info=TaskInfo(task="test"))
    assert TaskData.make(SimpleNamespace(task=task), split) is features
    told = "the vocabulary vocab.txt does not fit this text" in caplog.text
    assert told == (name == "train" and text == "der Hund")
