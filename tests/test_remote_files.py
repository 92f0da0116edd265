"""Text that URLs name: the same files, order, examples and errors as of a folder."""

import gzip
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zstandard

from model_utils import remote_files
from model_utils.errors import DataError, UserError
from src.text.corpus import read_documents
from src.text.corpus_files import expand_glob
from src.utils import estimate_text_bytes
from tests.helpers.small_text import make_records, write_text

fsspec = pytest.importorskip("fsspec", reason="needs fsspec (requirements-scale.txt)")
NAMES = ("b/two.txt", "b-c.txt", "b/one.txt", "a.txt", ".hidden/x.txt", "b/.hidden.txt")


@pytest.fixture
def memory() -> Iterator[Any]:
    """A file system in memory, filled by pipe()."""
    file_system = fsspec.filesystem("memory")
    yield file_system
    file_system.rm("/", recursive=True)


def names_of(pattern: str, root: str) -> list[str]:
    return [str(file).removeprefix(root) for file in expand_glob(pattern)]


@pytest.mark.parametrize("pattern", ["", "*", "b*", "**/*.txt", "?.txt", "b/one.txt"])
def test_the_files_and_their_order_are_those_of_a_folder(memory: Any, tmp_path: Path, pattern: str) -> None:
    for name in NAMES:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("Text.\n")
        memory.pipe(f"/text/{name}", b"Text.\n")
    expected = names_of(f"{tmp_path}/{pattern}", f"{tmp_path}/")
    assert expected and names_of(f"memory://text/{pattern}", "memory:///text/") == expected
    assert names_of(f"file://{tmp_path}/{pattern}", f"file://{tmp_path}/") == expected


def test_urls_and_paths_may_stand_in_one_list(memory: Any, tmp_path: Path) -> None:
    memory.pipe("/text/a.txt", b"Remote.\n")
    (tmp_path / "b.txt").write_text("Local.\n")
    files = expand_glob(f"memory://text/*, {tmp_path}/*,memory://text/a.txt")
    assert list(map(str, files)) == [f"{tmp_path}/b.txt", "memory:///text/a.txt"]
    assert list(read_documents(files)) == [["Local."], ["Remote."]]
    memory.pipe("/text/c.parquet", b"PAR1")
    with pytest.raises(DataError, match=r"memory:///text/c\.parquet"):
        list(read_documents(expand_glob("memory://text/*")))


@pytest.mark.parametrize("pack", [bytes, gzip.compress, zstandard.compress])
def test_examples_and_manifest_are_those_of_a_folder(
    memory: Any, tmp_path: Path, text_and_model: tuple[Path, Path], pack: Any
) -> None:
    text = write_text(tmp_path, topics=40)
    model = text_and_model[1]
    content = pack(text.read_bytes())
    (tmp_path / "source").mkdir()
    for name in ("one", "two"):
        (tmp_path / "source" / name).write_bytes(content)
        memory.pipe(f"/text/{name}", content)
    contents = []
    for name, pattern in (("local", tmp_path / "source/*"), ("remote", "memory://text/*")):
        output = make_records(tmp_path / name / "pre.mindrecord", pattern, model, dupe_factor=1)
        contents.append({file.name: file.read_bytes() for file in output.parent.iterdir()})
    assert contents[0] == contents[1]
    assert estimate_text_bytes(expand_glob("memory://text/*")) == estimate_text_bytes(
        expand_glob(f"{tmp_path}/source/*")
    )


def test_remote_text_that_changed_is_other_text(
    memory: Any, tmp_path: Path, text_and_model: tuple[Path, Path], capsys: Any
) -> None:
    text = write_text(tmp_path, topics=40)
    model = text_and_model[1]
    memory.pipe("/text/a.txt", text.read_bytes())
    arguments = (tmp_path / "pre.mindrecord", "memory://text/a.txt", model)
    make_records(*arguments, dupe_factor=1)
    make_records(*arguments, dupe_factor=1)
    assert "nothing to do" in capsys.readouterr().out
    memory.pipe("/text/a.txt", text.read_bytes().replace(b"statement", b"stetement"))
    with pytest.raises(DataError, match=r"source\.a\.txt\.sha256"):
        make_records(*arguments, dupe_factor=1)


def refuse(*_: Any, **__: Any) -> Any:
    raise LookupError("Access denied\nand more")


@pytest.mark.parametrize(
    ("method", "sentence"),
    [
        ("info", "memory://text/a.txt cannot be read: LookupError: Access denied$"),
        ("open", "memory:///text/a.txt cannot be read: LookupError: Access denied$"),
        ("read", "memory:///text/a.txt cannot be read: LookupError: Access denied$"),
    ],
)
def test_errors_of_a_library_name_the_url(
    memory: Any, method: str, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory.pipe("/text/a.txt", b"Text.\n")
    owner = type(memory.open("/text/a.txt")) if method == "read" else type(memory)
    monkeypatch.setattr(owner, method, refuse)
    with pytest.raises(DataError, match=sentence):
        list(read_documents(expand_glob("memory://text/a.txt")))


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", r"'memory://text/a.txt' matches 1 file\(s\), and all are empty"),
        (b"\n\n", "there is no text in memory:///text/a.txt"),
        (gzip.compress(b"Text.\n" * 99)[:-9], "memory:///text/a.txt is damaged or cut short"),
        (b"Text \xff.\n", "memory:///text/a.txt: byte 0xff at offset 5 is not UTF-8"),
        (b"<html>\n", "memory:///text/a.txt is XML or HTML"),
        (b'{"a": 1}\n', r"memory:///text/a.txt: line 1 has no 'text'"),
    ],
)
def test_bad_text_names_the_url(memory: Any, content: bytes, sentence: str) -> None:
    memory.pipe("/text/a.txt", content)
    with pytest.raises(DataError, match=sentence):
        list(read_documents(expand_glob("memory://text/a.txt")))


@pytest.mark.parametrize(
    ("pattern", "sentence"),
    [
        ("memory://nowhere/*", "no file matches 'memory://nowhere/"),
        ("memory://nowhere/a.txt", "no file matches 'memory://nowhere/a.txt'"),
        ("albert://a.txt", "albert://a.txt cannot be read: ValueError: Protocol not known: albert"),
    ],
)
def test_urls_without_files_are_refused(memory: Any, pattern: str, sentence: str) -> None:
    with pytest.raises(DataError, match=sentence):
        expand_glob(pattern)


def test_a_file_of_unknown_size_is_refused(memory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(memory), "info", lambda *_, **__: {"name": "/a", "type": "file", "size": None})
    with pytest.raises(DataError, match="memory://a cannot be read: its server does not tell the size"):
        expand_glob("memory://a")


def test_without_a_library_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = {"class": "no_albert.Files", "err": "Install x"}
    monkeypatch.setitem(importlib.import_module("fsspec.registry").known_implementations, "albert", entry)
    with pytest.raises(DataError, match="albert://a cannot be read: ImportError: Install x"):
        expand_glob("albert://a")
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(UserError, match=r"fsspec.*pip install -r requirements-scale\.txt"):
        remote_files.find_remote_files("memory://a")
