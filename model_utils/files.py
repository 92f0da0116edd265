"""Atomic file writing: a reader, or the same run after a kill, never sees a partial file."""

import contextlib
import errno
import fcntl
import io
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO

_SCRATCH = "unfinished-albert-"  # prefix of scratch folders' names
_MARKER = ".scratch-of-albert"  # file in scratch folders; a user's folder of such a name does not have it
NAME_BYTES = 255  # limit of a file's name, on every file system in use
_NO_FILE = "it is a folder, a device or a pipe, and no file"


def open_file(path: Path) -> io.BufferedReader:
    """Open a regular file for reading bytes; raise OSError for a folder, a device or a pipe, too (it would block)."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except ValueError as error:  # a NUL in the name
        raise OSError(errno.EINVAL, str(error), str(path)) from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, _NO_FILE, str(path))
    return os.fdopen(descriptor, "rb")


def check_writable(folder: Path) -> None:
    """Raise OSError if the folder, or files in it, cannot be created; called before work starts."""
    existing = folder.absolute()
    with contextlib.suppress(FileNotFoundError):
        existing.lstat()  # fails for names that are too long
    while not os.path.lexists(existing):
        existing = existing.parent
    if not stat.S_ISDIR(existing.stat().st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(existing))
    if not os.access(existing, os.W_OK | os.X_OK, effective_ids=True):
        code = errno.EROFS if os.statvfs(existing).f_flag & os.ST_RDONLY else errno.EACCES
        raise OSError(code, os.strerror(code), str(existing))


def sync_to_disk(path: Path) -> None:
    """Flush a file, or a folder's list of names, to the disk (fsync).

    Folders that cannot be opened, or whose file system has no fsync, are skipped: renames in them are atomic anyway.
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
    """Call `write` on a temporary file with the name of `path`, then rename that to `path`.

    An existing file stays complete until the new one is on the disk; its permissions are kept. A link is followed: its
    target is replaced. OSErrors, also for a folder, a device or a pipe, name `path`.
    """
    with _replacing(path) as temporary:
        write(temporary)


@contextlib.contextmanager
def open_atomically(path: Path) -> Iterator[TextIO]:
    """Yield a UTF-8 text stream that becomes `path` when the context ends without an error; see write_atomically."""
    with _replacing(path) as file, file.open("x", encoding="utf-8") as stream:
        yield stream


@contextlib.contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder that replaces `path` (absent or empty) once it is on the disk; an error removes it."""
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
    """Yield a private temporary folder beside `target`, which is removed at the end.

    Its random name and its mode prevent other users from planting links in it. It is locked while this process lives,
    so that remove_leftovers, also called here, can tell leftovers of killed processes. OSErrors inside name `target`.
    """
    with naming_in_errors(target), contextlib.ExitStack() as at_end:
        remove_leftovers(target.parent)
        folder = Path(tempfile.mkdtemp(prefix=_SCRATCH, dir=target.parent))
        at_end.callback(shutil.rmtree, folder, ignore_errors=True)
        with contextlib.suppress(OSError):  # without locks on this file system, leftovers stay
            try_lock(at_end.enter_context(open_folder(folder)))
        (folder / _MARKER).touch()  # after the lock, since others remove marked folders that are not locked
        yield folder


def remove_leftovers(parent: Path) -> None:
    """Remove the scratch folders that killed processes of this user left in `parent`."""
    for folder in parent.glob(f"{_SCRATCH}*"):
        with contextlib.suppress(OSError):
            if folder.lstat().st_uid == os.geteuid() and (folder / _MARKER).exists():
                with open_folder(folder) as descriptor:
                    if try_lock(descriptor):
                        shutil.rmtree(folder)


@contextlib.contextmanager
def open_folder(folder: Path) -> Iterator[int]:
    """Yield a descriptor of a folder, which is closed at the end; raise OSError for a link."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def try_lock(descriptor: int, inherited: bool = True) -> bool:
    """Lock an open file or folder until it is closed or the process dies; return False if another process has done so.

    Raises OSError if the file system has no locks.

    Args:
        inherited: forked processes hold the lock, too. False: it is of this process alone (a record lock), for files
            only, and ends when the process closes any descriptor of the file.
    """
    lock = fcntl.flock if inherited else fcntl.lockf
    try:
        lock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    return True


@contextlib.contextmanager
def naming_in_errors(target: Path) -> Iterator[None]:
    """Set the file name of OSErrors to `target` if they name none (write() on a full disk) or a scratch file."""
    try:
        yield
    except OSError as error:
        if error.errno and (error.filename is None or _SCRATCH in str(error.filename)):
            error.filename = str(target)
            del error.filename2  # the second path in errors of a rename
        raise


def write_text(path: Path, text: str) -> None:
    """Write a UTF-8 file atomically."""
    write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def write_json(path: Path, value: Any) -> None:
    """Write an indented JSON file atomically; raise ValueError for NaN and infinities, which JSON does not have."""
    write_text(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


def make_readable(path: Path) -> None:
    """Give a file the umask's permissions for new files; some writers make files that only the owner can read."""
    mask = os.umask(0o077)
    os.umask(mask)
    path.chmod(0o666 & ~mask)


@contextlib.contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path for the context to write, then rename it to `path` or, for a link, its target."""
    target = Path(os.path.realpath(path))
    status = target.stat() if os.path.lexists(target) else None
    if status and not stat.S_ISREG(status.st_mode):
        raise FileExistsError(errno.EEXIST, _NO_FILE, str(target))
    with scratch_folder(target) as folder:
        temporary = folder / path.name
        yield temporary
        if status is None:
            make_readable(temporary)
        else:
            with contextlib.suppress(OSError):  # a group that this user is not in
                os.chown(temporary, -1, status.st_gid)
            with contextlib.suppress(OSError):  # another user
                os.chown(temporary, status.st_uid, -1)
            temporary.chmod(stat.S_IMODE(status.st_mode) | stat.S_IWUSR)
        sync_to_disk(temporary)
        temporary.replace(target)
        sync_to_disk(target.parent)
