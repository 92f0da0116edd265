"""Atomic writing: what a reader may find under a name, whatever the name stands for."""

import errno
import os
import shutil
import stat
import threading
from pathlib import Path
from typing import TextIO

import pytest

from model_utils.files import (
    NAME_BYTES,
    open_atomically,
    scratch_folder,
    temporary_name,
    write_atomically,
    write_json,
)


def write_stream(path: Path, text: str) -> None:
    with open_atomically(path) as stream:
        stream.write(text)


def write_whole(path: Path, text: str) -> None:
    write_atomically(path, lambda temporary: temporary.write_text(text))


WRITERS = pytest.mark.parametrize("write", [write_stream, write_whole])


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.fixture
def null_device(tmp_path: Path) -> Path:
    """A device of the test's own that takes everything, as /dev/null does."""
    device = tmp_path / "null"
    try:
        os.mknod(device, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        device.write_text("x")
    except OSError:
        pytest.skip("devices cannot be made or used here")
    return device


@WRITERS
def test_a_file_is_replaced_and_nothing_else_is_left(tmp_path: Path, write) -> None:
    write(tmp_path / "a", "one")
    write(tmp_path / "a", "two")
    assert (tmp_path / "a").read_text() == "two" and names(tmp_path) == {"a"}


@WRITERS
def test_a_device_stays_a_device(null_device: Path, write) -> None:
    (link := null_device.with_name("link")).symlink_to(null_device)
    for path in (null_device, link):
        write(path, "text")
    assert stat.S_ISCHR(null_device.stat().st_mode) and link.is_symlink()
    assert names(null_device.parent) == {"null", "link"}


@WRITERS
def test_a_pipe_is_written_to(tmp_path: Path, write) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    found: list[str] = []
    reader = threading.Thread(target=lambda: found.append(pipe.read_text()), daemon=True)
    reader.start()
    write(pipe, "through\n")
    reader.join(10)
    assert found == ["through\n"] and stat.S_ISFIFO(pipe.stat().st_mode) and names(tmp_path) == {"pipe"}


@WRITERS
def test_a_link_keeps_pointing_to_its_file(tmp_path: Path, write) -> None:
    (tmp_path / "there").mkdir()
    target, link, dangling = tmp_path / "there/file", tmp_path / "link.x", tmp_path / "dangling"
    target.write_text("old")
    link.symlink_to(target)
    dangling.symlink_to("there/new")
    write(link, "one")
    write(dangling, "two")
    assert link.is_symlink() and dangling.is_symlink()
    assert target.read_text() == "one" and (tmp_path / "there/new").read_text() == "two"
    assert names(tmp_path / "there") == {"file", "new"}


@WRITERS
def test_an_open_stream_is_added_to(tmp_path: Path, write) -> None:
    """As /dev/stdout with `>> file`, which is a link to the file."""
    file, link = tmp_path / "file", tmp_path / "link"
    file.write_text("old\n")
    with file.open("a") as stream:
        link.symlink_to(f"/proc/self/fd/{stream.fileno()}")
        for name in (f"/dev/fd/{stream.fileno()}", link):
            write(Path(name), "new\n")
        stream.write("last\n")
    assert file.read_text() == "old\nnew\nnew\nlast\n" and names(tmp_path) == {"file", "link"}


@WRITERS
def test_who_may_read_a_file_may_read_the_new_one(tmp_path: Path, write) -> None:
    for mode, expected in ((0o600, 0o600), (0o664, 0o664), (0o444, 0o644)):
        (tmp_path / "a").touch()
        (tmp_path / "a").chmod(mode)
        write(tmp_path / "a", "new")
        assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == expected


@WRITERS
def test_a_folder_that_cannot_be_synced_has_the_file_all_the_same(
    tmp_path: Path, write, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that may not be read, and those of some network file systems."""
    fsync = os.fsync

    def of_files(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        fsync(descriptor)

    monkeypatch.setattr("os.fsync", of_files)
    write(tmp_path / "a", "text")
    assert (tmp_path / "a").read_text() == "text"
    monkeypatch.setattr("os.fsync", lambda _: of_files(os.open(tmp_path, os.O_RDONLY)))
    with pytest.raises(OSError, match="Invalid argument"):
        write(tmp_path / "a", "other")


@WRITERS
@pytest.mark.parametrize("name", ["n" * NAME_BYTES, "号" * 85, "n" * 250 + ".json"])
def test_the_longest_names_can_be_written(tmp_path: Path, write, name: str) -> None:
    write(tmp_path / name, "text")
    assert names(tmp_path) == {name}
    assert temporary_name(tmp_path / name).name.endswith(name[-10:])


@WRITERS
def test_what_cannot_be_written_is_an_oserror(tmp_path: Path, write) -> None:
    (tmp_path / "file").write_text("old")
    (tmp_path / "loop").symlink_to("loop")
    for path, number in (
        (tmp_path, errno.EISDIR),
        (tmp_path / "file/x", errno.ENOTDIR),
        (tmp_path / "absent/x", errno.ENOENT),
        (tmp_path / "loop", errno.ELOOP),
        (tmp_path / ("n" * 256), errno.ENAMETOOLONG),
    ):
        with pytest.raises(OSError) as caught:  # noqa: PT011 - the number is compared
            write(path, "text")
        assert caught.value.errno == number
    assert names(tmp_path) == {"file", "loop"} and (tmp_path / "file").read_text() == "old"


class Broken(Exception):
    """The error that a writer raises."""


def begin_and_break(path: Path) -> None:
    with open_atomically(path) as stream:
        stream.write("buffered, so that closing writes")
        raise Broken


def test_cleaning_up_keeps_the_error(tmp_path: Path) -> None:
    def make_a_folder(temporary: Path) -> None:
        temporary.mkdir()  # which unlink cannot remove
        raise Broken

    with pytest.raises(Broken):
        write_atomically(tmp_path / "a", make_a_folder)
    full = tmp_path / "full"
    try:
        os.mknod(full, 0o666 | stat.S_IFCHR, os.makedev(1, 7))  # takes nothing, as /dev/full
        full.open("wb").close()
    except OSError:
        pytest.skip("devices cannot be made or used here")
    with pytest.raises(Broken):
        begin_and_break(full)
    with pytest.raises(OSError, match="No space left"):
        write_json(full, {})


def test_an_error_keeps_the_old_file(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("old")
    with pytest.raises(Broken):
        begin_and_break(tmp_path / "a")
    assert (tmp_path / "a").read_text() == "old" and names(tmp_path) == {"a"}


def test_a_scratch_folder_takes_those_of_killed_processes_with_it(tmp_path: Path) -> None:
    killed, other = tmp_path / "unfinished-export-killed", tmp_path / "unfinished-else-killed"
    for folder in (killed, other):
        folder.mkdir()
        (folder / ".lock").touch()
    with scratch_folder(tmp_path, "export") as first:
        assert not killed.exists() and other.is_dir()
        (first / "file").touch()
        with scratch_folder(tmp_path, "export") as second:
            assert (first / "file").exists() and second != first
    assert list(tmp_path.iterdir()) == [other]


def test_a_scratch_folder_that_was_taken_for_a_leftover_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[Path] = []

    def flock(lock: TextIO, how: int) -> None:
        if not taken:  # another process was quicker, between open and flock
            taken.append(Path(lock.name).parent)
            shutil.rmtree(taken[0])

    monkeypatch.setattr("fcntl.flock", flock)
    with scratch_folder(tmp_path, "export") as folder:
        assert folder.is_dir() and folder != taken[0]
    assert list(tmp_path.iterdir()) == []
