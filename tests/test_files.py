"""Atomic writing: what a reader may find under a name, whatever the name stands for."""

import errno
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from model_utils.files import NAME_BYTES, new_folder, open_atomically, write_atomically, write_json
from tests.helpers.small_disk import no_file_beyond

ROOT = Path(__file__).parents[1]


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
        with pytest.raises(FileExistsError, match="a device or a pipe"):
            write(path, "text")
    assert stat.S_ISCHR(null_device.stat().st_mode) and link.is_symlink()
    assert names(null_device.parent) == {"null", "link"}


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
def test_who_may_read_a_file_may_read_the_new_one(tmp_path: Path, write) -> None:
    for mode, expected in ((0o600, 0o600), (0o664, 0o664), (0o444, 0o644)):
        (tmp_path / "a").touch()
        (tmp_path / "a").chmod(mode)
        write(tmp_path / "a", "new")
        assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == expected


@WRITERS
@pytest.mark.skipif(os.geteuid() != 0, reason="root alone may give files away")
def test_a_new_file_belongs_to_whom_the_older_one_did(tmp_path: Path, write) -> None:
    (tmp_path / "a").touch()
    os.chown(tmp_path / "a", 1234, 5678)
    (tmp_path / "a").chmod(0o640)
    write(tmp_path / "a", "new")
    status = (tmp_path / "a").stat()
    assert (status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)) == (1234, 5678, 0o640)


@WRITERS
def test_a_folder_that_cannot_be_synced_has_the_file_all_the_same(
    tmp_path: Path, write, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Folders without permission to read, and some network file systems, refuse fsync."""
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


@WRITERS
def test_what_cannot_be_written_is_an_oserror(tmp_path: Path, write) -> None:
    (tmp_path / "file").write_text("old")
    (tmp_path / "loop").symlink_to("loop")
    for path, number in (
        (tmp_path, errno.EEXIST),
        (tmp_path / "file/x", errno.ENOTDIR),
        (tmp_path / "absent/x", errno.ENOENT),
        (tmp_path / "loop", errno.ELOOP),
        (tmp_path / ("n" * 256), errno.ENAMETOOLONG),
    ):
        with pytest.raises(OSError) as caught:  # noqa: PT011 - the number is compared
            write(path, "text")
        assert caught.value.errno == number
    assert names(tmp_path) == {"file", "loop"} and (tmp_path / "file").read_text() == "old"


class BrokenError(Exception):
    """The error that a writer raises."""


def begin_and_break(path: Path) -> None:
    with open_atomically(path) as stream:
        stream.write("buffered, so that closing writes")
        raise BrokenError


def test_an_error_keeps_the_old_file(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("old")
    with pytest.raises(BrokenError):
        begin_and_break(tmp_path / "a")
    assert (tmp_path / "a").read_text() == "old" and names(tmp_path) == {"a"}


def killed_writer(folder: Path) -> Path:
    """Kill a process while it writes FOLDER/a; its leftover."""
    program = (
        "import os, sys\nfrom pathlib import Path\nfrom model_utils.files import write_atomically\n"
        "def write(temporary):\n    temporary.write_text('half')\n    os.kill(os.getpid(), 9)\n"
        "write_atomically(Path(sys.argv[1]), write)"
    )
    done = subprocess.run([sys.executable, "-c", program, str(folder / "a")], cwd=ROOT, check=False)
    assert done.returncode == -signal.SIGKILL
    (leftover,) = folder.iterdir()
    return leftover


@WRITERS
def test_the_next_writer_removes_what_a_killed_one_left(tmp_path: Path, write) -> None:
    killed_writer(tmp_path)
    write(tmp_path / "a", "whole")
    assert names(tmp_path) == {"a"}


def test_a_folder_of_the_user_is_no_leftover(tmp_path: Path) -> None:
    (tmp_path / "unfinished-albert-thesis").mkdir()
    (tmp_path / "unfinished-albert-thesis/a.ckpt").touch()
    write_whole(tmp_path / "a", "text")
    assert (tmp_path / "unfinished-albert-thesis/a.ckpt").exists()


def test_the_next_writer_leaves_what_a_live_one_writes(tmp_path: Path) -> None:
    def overtaken(temporary: Path) -> None:
        temporary.write_text("first")
        write_whole(tmp_path / "a", "second")
        assert (tmp_path / "a").read_text() == "second" and temporary.read_text() == "first"

    write_atomically(tmp_path / "a", overtaken)
    assert (tmp_path / "a").read_text() == "first" and names(tmp_path) == {"a"}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_writer_removes_nothing_of_other_users(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("kept")
    (theirs := tmp_path / "unfinished-albert-theirs").mkdir()
    (link := tmp_path / "unfinished-albert-link").symlink_to(tmp_path)
    for folder in (theirs, tmp_path):
        (folder / ".scratch-of-albert").touch()
    os.chown(theirs, 65534, 65534)
    write_whole(tmp_path / "a", "text")
    assert theirs.is_dir() and link.is_symlink() and (tmp_path / "kept").exists()


def test_temporary_files_lie_in_new_private_folders_of_random_names(tmp_path: Path) -> None:
    folders: list[Path] = []

    def write(temporary: Path) -> None:
        folders.append(temporary.parent)
        status = temporary.parent.stat()
        assert stat.S_IMODE(status.st_mode) == 0o700 and status.st_uid == os.geteuid()
        assert not temporary.exists()
        temporary.touch()

    for name in ("a", "a", "b"):
        write_atomically(tmp_path / name, write)
    random_parts = [folder.name.removeprefix("unfinished-albert-") for folder in folders]
    assert len(set(random_parts)) == 3 and all(len(part) >= 8 for part in random_parts)
    assert {folder.parent for folder in folders} == {tmp_path}


@WRITERS
@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002])
def test_a_new_file_has_the_mode_that_the_umask_gives(tmp_path: Path, write, mask: int) -> None:
    before = os.umask(mask)
    try:
        write(tmp_path / "a", "text")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o666 & ~mask


@WRITERS
def test_a_hard_link_keeps_the_old_file_and_a_linked_folder_gets_the_new_one(tmp_path: Path, write) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "linked").symlink_to("there")
    (tmp_path / "there/a").write_text("old")
    os.link(tmp_path / "there/a", tmp_path / "other")
    write(tmp_path / "linked/a", "new")
    assert (tmp_path / "there/a").read_text() == "new" and (tmp_path / "other").read_text() == "old"
    assert names(tmp_path / "there") == {"a"} and names(tmp_path) == {"there", "linked", "other"}


def write_bytes(path: Path) -> None:
    write_atomically(path, lambda temporary: temporary.write_bytes(bytes(200_000)))


def write_into_new_folder(path: Path) -> None:
    with new_folder(path) as folder:
        (folder / "inside").write_bytes(bytes(200_000))


@pytest.mark.parametrize(
    "write",
    [
        lambda path: write_stream(path, "x" * 200_000),
        lambda path: write_json(path, "x" * 200_000),
        write_bytes,
        write_into_new_folder,
    ],
)
def test_a_file_that_finds_no_room_is_named(tmp_path: Path, write) -> None:
    with no_file_beyond(100_000), pytest.raises(OSError, match="too large") as caught:
        write(tmp_path / "a")
    assert str(caught.value).endswith(f": '{tmp_path / 'a'}'")
    assert caught.value.filename == str(tmp_path / "a") and names(tmp_path) == set()


def test_a_folder_that_cannot_be_written_names_the_file(tmp_path: Path) -> None:
    for path in (tmp_path / "absent/a", tmp_path / "absent/b/a"):
        with pytest.raises(FileNotFoundError) as caught:
            write_whole(path, "text")
        assert caught.value.filename == str(path)
