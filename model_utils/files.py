"""Writing files so that a reader, or the same run after a kill, never sees half of one."""

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, TextIO

_SCRATCH = "unfinished-albert-"  # how names of scratch folders begin
NAME_BYTES = 255  # of a file's name, on every file system in use
PATH_BYTES = 4096  # of a path with its end mark, on Linux
_MOST_LINKS = 40  # that Linux follows in a path


def open_file(path: Path) -> BinaryIO:
    """A file opened for reading bytes; OSError also for a folder, a device, or a pipe, which would be waited for."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except ValueError as error:  # a NUL in the name
        raise OSError(errno.EINVAL, str(error), str(path)) from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is a folder, a device or a pipe, and no file", str(path))
    return os.fdopen(descriptor, "rb")


def check_writable(folder: Path) -> None:
    """Before work starts: raise the OSError that making files in a folder, or the folder, would end with."""
    whole = folder.absolute()
    long = [part for part in whole.parts if len(os.fsencode(part)) > NAME_BYTES]
    if long or len(os.fsencode(whole)) + NAME_BYTES >= PATH_BYTES:
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), str(folder))
    there = whole
    while not os.path.lexists(there):
        there = there.parent
    if not stat.S_ISDIR(there.stat().st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(there))
    if not os.access(there, os.W_OK | os.X_OK, effective_ids=True):
        number = errno.EROFS if os.statvfs(there).f_flag & os.ST_RDONLY else errno.EACCES
        raise OSError(number, os.strerror(number), str(there))


def sync_to_disk(path: Path) -> None:
    """Wait until a file or a folder's list of names is on the disk itself.

    Folders that may be written to but not read, or whose file system cannot do it, are left to the system: what they
    list is whole in any case.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        if not (error.errno in (errno.EACCES, errno.EINVAL) and path.is_dir()):
            raise


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a temporary file in the same folder, then give it its name.

    An older file of that name stays whole until the new one is on the disk. The temporary file has the name of `path`,
    for writers that choose the format by it, and lies in a scratch_folder. The new file may be read and written by whom
    the older one could. A link keeps pointing where it did: its target is replaced. What is no file but a device, a
    pipe or an open stream of this process (/dev/stdout), gets the bytes and stays what it is.

    Raises:
        OSError: the file cannot be written; it names the file.
    """
    if not _takes_bytes(path):
        with _replacing(path) as temporary:
            write(temporary)
        return
    with naming(path), tempfile.TemporaryDirectory() as folder:
        filled = Path(folder, path.name)
        write(filled)
        with filled.open("rb") as source, os.fdopen(_open_to_write(path), "wb") as target:
            shutil.copyfileobj(source, target)


@contextlib.contextmanager
def open_atomically(path: Path) -> Iterator[TextIO]:
    """Yield a stream of UTF-8 text that becomes `path` when the context ends without an error, as write_atomically."""
    if _takes_bytes(path):
        stream = os.fdopen(_open_to_write(path), "w", encoding="utf-8")
        with naming(path), _closed_quietly_after_errors(stream):
            yield stream
    else:
        with _replacing(path) as file, _closed_quietly_after_errors(file.open("x", encoding="utf-8")) as stream:
            yield stream


@contextlib.contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder that becomes `path`, new or empty, once all is on the disk; an error removes it."""
    path = path.resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    with scratch_folder(path) as scratch:
        temporary = scratch / path.name
        temporary.mkdir()
        yield temporary
        for file in temporary.iterdir():
            sync_to_disk(file)
        temporary.replace(path)
        sync_to_disk(path.parent)


@contextlib.contextmanager
def scratch_folder(target: Path) -> Iterator[Path]:
    """Yield a folder beside `target` to write it in; it is gone at the end, and what killed processes left there, too.

    Its name cannot be foreseen, and nobody else can enter it, so that no link can be planted where files are written.
    It is locked while this process lives. OSErrors of writing into it name `target`.
    """
    with naming(target), contextlib.ExitStack() as at_end:
        remove_leftovers(target.parent)
        is_locked = False
        while not is_locked:
            folder = Path(tempfile.mkdtemp(prefix=_SCRATCH, dir=target.parent))
            at_end.callback(shutil.rmtree, folder, ignore_errors=True)
            with contextlib.suppress(OSError):  # a file system without locks, where leftovers stay
                at_end.enter_context(_locked(folder, fcntl.LOCK_EX))
            is_locked = folder.exists()  # before the lock another process may have taken it for a leftover
        yield folder


def remove_leftovers(parent: Path) -> None:
    """Remove the scratch folders that killed processes of this user left in `parent`."""
    for folder in parent.glob(f"{_SCRATCH}*"):
        with contextlib.suppress(OSError):  # it cannot be locked: its process lives
            if folder.lstat().st_uid == os.geteuid():
                with _locked(folder, fcntl.LOCK_EX | fcntl.LOCK_NB):
                    shutil.rmtree(folder)


@contextlib.contextmanager
def _locked(folder: Path, operation: int) -> Iterator[None]:
    """Hold a lock on a folder, which ends with the process, however that ends; OSError for a link."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, operation)
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def naming(target: Path) -> Iterator[None]:
    """Let OSErrors name `target` that name no file, as those of write() on a full disk, or one in a scratch folder."""
    try:
        yield
    except OSError as error:
        if error.errno and (error.filename is None or _SCRATCH in str(error.filename)):
            error.filename = str(target)
            del error.filename2  # of a rename
        raise


def sealed(content: bytes) -> bytes:
    """Return the content of a file with its sha256 at the end, where readers of arrays and libraries do not look."""
    return content + hashlib.sha256(content).digest()


def is_sealed(content: bytes) -> bool:
    """Return whether what was read is as `sealed` gave it."""
    return content == sealed(content[: -hashlib.sha256().digest_size])


def write_text(path: Path, text: str) -> None:
    """Write a UTF-8 file atomically."""
    write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def write_json(path: Path, value: Any) -> None:
    """Write an indented JSON file atomically; not-a-number is refused, because JSON has no word for it."""
    write_text(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


def _takes_bytes(path: Path) -> bool:
    """Whether `path` is there and is, behind any links, neither a file nor a folder, or an open stream."""
    if _open_stream(path) is not None:
        return True
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return False
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    return not stat.S_ISREG(mode)


def _open_stream(path: Path) -> int | None:
    """The descriptor that `path` stands for in this process, as /dev/stdout and /dev/fd/1 do.

    The shell may have appended its file (>>), or others write to it, too: it is not replaced.
    """
    for _ in range(_MOST_LINKS):
        folder = Path(os.path.realpath(path.parent))
        if folder == Path(f"/proc/{os.getpid()}/fd"):
            return int(path.name) if path.name.isdecimal() else None
        if not path.is_symlink():
            return None
        path = folder / path.readlink()
    return None


def _open_to_write(path: Path) -> int:
    stream = _open_stream(path)
    return os.open(path, os.O_WRONLY) if stream is None else os.dup(stream)


def make_readable(path: Path) -> None:
    """Give a file the permissions that the umask gives new files: other programs may have kept it for its owner."""
    mask = os.umask(0o077)
    os.umask(mask)
    path.chmod(0o666 & ~mask)


@contextlib.contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary name for the context to fill, which replaces the file that `path` leads to at its end."""
    target = Path(os.path.realpath(path))
    with scratch_folder(target) as folder:
        temporary = folder / path.name
        yield temporary
        try:
            temporary.chmod(stat.S_IMODE(target.stat().st_mode) | stat.S_IWUSR)
        except FileNotFoundError:
            make_readable(temporary)
        sync_to_disk(temporary)
        temporary.replace(target)
        sync_to_disk(target.parent)


@contextlib.contextmanager
def _closed_quietly_after_errors(stream: TextIO) -> Iterator[TextIO]:
    """Closing writes what is buffered, and may fail itself: after an error of the context that one is raised."""
    try:
        yield stream
    except BaseException:
        with contextlib.suppress(OSError):
            stream.close()
        raise
    stream.close()
