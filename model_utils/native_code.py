"""C++ of the project, compiled for this machine by its own compiler, once, and kept in the user's cache folder."""

import atexit
import contextlib
import ctypes
import errno
import functools
import hashlib
import logging
import os
import shutil
import signal
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from model_utils.cpu import cpu_info
from model_utils.errors import DeviceError, shorten
from model_utils.files import is_sealed, scratch_folder, sealed, sync_to_disk

logger = logging.getLogger(__name__)
COMPILERS = ("c++", "g++", "clang++")  # the first that is found; CXX in the environment names another one
# Infinities and not-a-numbers stay as they are written; a product may be contracted into the sum that it is part of.
FLAGS = "-std=c++17 -O3 -march=native -fopenmp-simd -pthread -fno-math-errno -fno-trapping-math".split()
FLAGS += "-fPIC -shared -fvisibility=hidden".split()
SECONDS = 300  # a compilation may take
USES = ("auto", "always", "never")
_use = ["auto"]


def choose(use: str) -> None:
    """Whether networks made from now on compute with native code: auto, where there is a compiler; always; never."""
    _use[0] = use


@contextlib.contextmanager
def left_out() -> Iterator[None]:
    """Networks made inside have no native code: they run anywhere, and can be exported."""
    before = _use[0]
    choose("never")
    try:
        yield
    finally:
        choose(before)


def library_for(source: Path) -> Path | None:
    """The library of a C++ file for networks that are made now; None where they shall have none.

    Raises:
        DeviceError: they shall always have it, but it cannot be made.
    """
    if _use[0] == "never":
        return None
    made = _made(source)
    if isinstance(made, Path):
        return made
    if _use[0] == "always":
        raise DeviceError(f"fused_layers is always, but {made}")
    return None


@functools.cache
def _made(source: Path) -> Path | str:
    """The library, or what is in its way: its own `obstacle` says so, too."""
    try:
        library, loaded = _load(source)
        find_obstacle = loaded.obstacle  # a compiled library need not be one that can be used
        find_obstacle.restype = ctypes.c_char_p
        if not (obstacle := _forbidden(library) or find_obstacle().decode()):
            return library
    except (DeviceError, OSError) as error:
        obstacle = str(error)
    logger.warning(f"layers are not fused, so that networks compute more slowly: {obstacle}")
    return obstacle


def _load(source: Path) -> tuple[Path, ctypes.CDLL]:
    """The library of a C++ file; from the temporary folder where that of the cache can be neither made nor loaded."""
    try:
        library = build_library(source)
        return library, _load_checked(library)
    except OSError as error:  # also of a cache that another system's library lies in
        library = build_library(source, folder=_temporary_folder(str(error)))
        return library, _load_checked(library)


def _load_checked(library: Path) -> ctypes.CDLL:
    """Load a library that _open_whole takes; OSError for any other.

    What was checked is loaded, whatever lies under the name by then. The descriptor stays open: the loader knows
    libraries by their names, and would give this one for another file of the same number. MindSpore, which loads the
    library by its path, gets this one as long as it is the same file.
    """
    descriptor = _open_whole(library)
    if descriptor is None:
        raise OSError(errno.EPERM, "others can write to it, or it is not as it was made", str(library))
    try:
        return ctypes.CDLL(f"/proc/self/fd/{descriptor}")
    except OSError as error:
        os.close(descriptor)
        raise OSError(errno.ELIBBAD, str(error), str(library)) from error


def _forbidden(library: Path) -> str:
    """What keeps MindSpore from calling a library, if anything: it takes a path's first colon for its end."""
    if ":" in str(library):
        return f"{library} has a colon in its path, which MindSpore does not read: TMPDIR can name another folder"
    allowed = os.environ.get("MS_CUSTOM_AOT_WHITE_LIST")
    if allowed is not None and not library.is_relative_to(Path(allowed).resolve()):
        return f"MS_CUSTOM_AOT_WHITE_LIST allows operations from {allowed} alone, not from {library.parent}"
    return ""


def find_compiler() -> list[str] | None:
    """The C++ compiler's path and the arguments that CXX gives it, as `ccache g++`; None: there is none."""
    named = os.environ.get("CXX", "").split()
    commands = [named] if named else [[name] for name in COMPILERS]
    return next(([path, *rest] for name, *rest in commands if (path := shutil.which(name))), None)


def cpu_description() -> str:
    """The CPU's model and what it can do, as the kernel lists it; "" where it does not."""
    info = cpu_info()
    return "\n".join(f"{key}: {info[key]}" for key in ("model name", "flags", "Features") if key in info)


def check_compiler() -> list[str]:
    """As find_compiler; DeviceError: there is none."""
    if command := find_compiler():
        return command
    named = os.environ.get("CXX")
    looked_for = f"{named}, which CXX names" if named else ", ".join(COMPILERS)
    raise DeviceError(f"no C++ compiler is installed (looked for {looked_for})")


def build_library(source: Path, folder: Path | None = None) -> Path:
    """The shared library of a C++ file and the headers beside it; compiled if these, compiler and CPU have none yet.

    Its path has no links, so that whoever loads it by another one of its names loads the same file.

    Args:
        folder: to keep it in; None: the user's cache.

    Raises:
        DeviceError: there is no compiler, or it refuses the file.
        OSError: the folder takes no files or locks.
    """
    command = check_compiler()
    compiler = " ".join(command)
    version = _version_of(command)
    sources = [file.read_text("utf-8") for file in (source, *sorted(source.parent.glob("*.h")))]
    made_of = "\0".join((*sources, compiler, version, *FLAGS, cpu_description()))
    folder = (folder or _cache_folder()).resolve()
    library = folder / f"{source.parent.name}-{hashlib.sha256(made_of.encode()).hexdigest()[:16]}.so"
    descriptor = _open_whole(library)
    if descriptor is not None:
        os.close(descriptor)
        return library
    logger.info(f"compiling {source.name} with {compiler}, once: {library}")
    try:
        with scratch_folder(library) as scratch:
            made = scratch / library.name
            _run_to_the_end([*command, *FLAGS, str(source), "-o", str(made)])
            made.write_bytes(sealed(made.read_bytes()))
            made.chmod(0o700)  # the umask may let the group write
            sync_to_disk(made)
            made.replace(library)
    except subprocess.CalledProcessError as error:
        raise DeviceError(f"{compiler} cannot compile {source}: {shorten(error.stderr.strip())}") from error
    except subprocess.TimeoutExpired as error:
        raise DeviceError(f"{compiler} has not compiled {source} in {SECONDS} s") from error
    return library


def _version_of(command: list[str]) -> str:
    """What a compiler says of itself; DeviceError where it waits for something instead."""
    asked = [*command, "--version"]
    try:
        return subprocess.run(
            asked, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SECONDS, check=False
        ).stdout
    except subprocess.TimeoutExpired as error:
        raise DeviceError(f"`{' '.join(asked)}` has not ended in {SECONDS} s") from error


def _open_whole(library: Path) -> int | None:
    """Return a descriptor of a library that is there as this user made it, else None.

    Loading one that was cut short can kill the process, and one that others wrote runs what they want.
    """
    try:
        descriptor = os.open(library, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    status = os.fstat(descriptor)
    if stat.S_ISREG(status.st_mode) and not _others_can_change(status):
        with open(descriptor, "rb", closefd=False) as file:
            content = file.read()
        if is_sealed(content):
            return descriptor
    os.close(descriptor)
    return None


def _others_can_change(status: os.stat_result) -> bool:
    is_foreign = status.st_uid not in (0, os.geteuid())
    return is_foreign or bool(status.st_mode & (stat.S_IWGRP | stat.S_IWOTH))


def _unsafe_folder(folder: Path) -> Path | None:
    """Return the first of a folder and those above it that others can change, in a way that matters below it."""
    if _others_can_change(folder.stat()):
        return folder
    for parent in folder.parents:
        status = parent.stat()
        is_sticky = status.st_uid in (0, os.geteuid()) and status.st_mode & stat.S_ISVTX  # as /tmp
        if _others_can_change(status) and not is_sticky:
            return parent
    return None


def _run_to_the_end(command: list[str]) -> None:
    """Run a compiler; what it has started, as g++ does, ends with it when it takes too long or is interrupted."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        _, errors = process.communicate(timeout=SECONDS)
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command, stderr=errors)


def _cache_folder() -> Path:
    """A folder that this user alone can write to; a new one in the temporary folder where there is no home."""
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "albert-mindspore"
        for missing in reversed([path for path in (folder, *folder.parents) if not path.exists()]):
            missing.mkdir(mode=0o700, exist_ok=True)
        if os.statvfs(folder).f_flag & os.ST_NOEXEC:
            lacks = "whose file system lets programs run"
        elif not os.access(folder, os.W_OK):
            lacks = "that this user can write to"
        elif unsafe := _unsafe_folder(folder.resolve()):
            lacks = f"that this user alone can write to (look at the owner and the mode of {unsafe})"
        elif ":" in str(folder.resolve()):
            lacks = "without a colon in its path"
        else:
            return folder
        reason = f"{folder} is not a folder {lacks}"
    except (OSError, RuntimeError) as error:
        reason = f"there is no folder to keep it in: {error}"
    return _temporary_folder(reason)


def _temporary_folder(reason: str) -> Path:
    """One that is gone when the process ends."""
    temporary = Path(tempfile.mkdtemp(prefix="albert-mindspore-"))
    atexit.register(shutil.rmtree, temporary, ignore_errors=True)
    logger.warning(f"C++ is compiled again by every process, into {temporary}: {reason}")
    return temporary
