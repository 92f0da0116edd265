"""Compilation of the project's C++ for this machine, once, into the user's cache folder."""

import atexit
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
from pathlib import Path

from model_utils.cpu import cpu_info
from model_utils.errors import DeviceError, shorten
from model_utils.files import is_sealed, scratch_folder, sealed, sync_to_disk

logger = logging.getLogger(__name__)
COMPILERS = ("c++", "g++", "clang++")  # the first that is installed; the environment variable CXX overrides them
# Without -ffast-math: infinities and NaNs behave as written; only contraction to fused multiply-add is allowed.
FLAGS = "-std=c++17 -O3 -march=native -fopenmp-simd -pthread -fno-math-errno -fno-trapping-math".split()
FLAGS += "-fPIC -shared -fvisibility=hidden".split()
SECONDS = 300  # timeout of a compilation


def library_for(source: Path, is_needed: bool = False) -> Path | None:
    """Return the compiled library of a C++ file, or None if it cannot be used.

    Raises:
        DeviceError: it is needed, but cannot be used.
    """
    library, obstacle = _usable_library(source)
    if library is None and is_needed:
        raise DeviceError(f"fused_layers is always, but {obstacle}")
    return library


@functools.cache
def _usable_library(source: Path) -> tuple[Path | None, str]:
    """Return (path of the library, ""), or (None, a sentence why it cannot be used), which is also logged."""
    try:
        library, loaded = _load(source)
        find_obstacle = loaded.obstacle  # the library's own check, for instance of the CPU
        find_obstacle.restype = ctypes.c_char_p
        if not (obstacle := _loading_obstacle(library) or find_obstacle().decode()):
            return library, ""
    except (DeviceError, OSError) as error:
        obstacle = str(error)
    logger.warning(f"layers are not fused, so that networks compute more slowly: {obstacle}")
    return None, obstacle


def _load(source: Path) -> tuple[Path, ctypes.CDLL]:
    """Build and load the library of a C++ file; in a temporary folder if the cached one cannot be built or loaded."""
    try:
        library = build_library(source)
        return library, _load_checked(library)
    except OSError as error:  # the cache takes no files, lets none run, or has a library of another system
        library = build_library(source, folder=_temporary_folder(str(error)))
        return library, _load_checked(library)


def _load_checked(library: Path) -> ctypes.CDLL:
    """Load a library that passes _open_intact; raise OSError for any other.

    It is loaded through the checked descriptor, even if its path has been replaced since. The descriptor stays open,
    because the loader caches libraries by name and would return this one for a later file with the same descriptor
    number. MindSpore, which loads by path, gets the same library as long as the file is the same.
    """
    descriptor = _open_intact(library)
    if descriptor is None:
        raise OSError(errno.EPERM, "other users can write to it, or it is damaged", str(library))
    try:
        return ctypes.CDLL(f"/proc/self/fd/{descriptor}")
    except OSError as error:
        os.close(descriptor)
        raise OSError(errno.ELIBBAD, str(error), str(library)) from error


def _loading_obstacle(library: Path) -> str:
    """Return why MindSpore cannot load a library from its path, or "": it ends a path at the first colon."""
    if ":" in str(library):
        return f"{library} has a colon in its path, which MindSpore cannot read: set XDG_CACHE_HOME to another folder"
    allowed = os.environ.get("MS_CUSTOM_AOT_WHITE_LIST")
    if allowed is not None and not library.is_relative_to(Path(allowed).resolve()):
        return f"MS_CUSTOM_AOT_WHITE_LIST allows operations from {allowed} alone, not from {library.parent}"
    return ""


def find_compiler() -> list[str] | None:
    """Return the C++ compiler's path and the arguments that CXX adds, as in `ccache g++`; None if there is none."""
    cxx_command = os.environ.get("CXX", "").split()
    commands = [cxx_command] if cxx_command else [[name] for name in COMPILERS]
    for name, *arguments in commands:
        if path := shutil.which(name):
            return [path, *arguments]
    return None


def cpu_description() -> str:
    """Return the CPU's model and instruction-set flags from /proc/cpuinfo; "" if it has neither."""
    info = cpu_info()
    return "\n".join(f"{key}: {info[key]}" for key in ("model name", "flags", "Features") if key in info)


def check_compiler() -> list[str]:
    """Return the command of find_compiler; raise DeviceError if there is no compiler."""
    if command := find_compiler():
        return command
    cxx = os.environ.get("CXX")
    candidates = f"{cxx}, which CXX names" if cxx else ", ".join(COMPILERS)
    raise DeviceError(f"no C++ compiler is installed (looked for {candidates})")


def build_library(source: Path, folder: Path | None = None) -> Path:
    """Return the shared library of a C++ file, compiled if source, headers, compiler, flags or CPU have changed.

    The path is resolved, so that programs that reach it through links load the same file.

    Args:
        source: C++ file; the headers beside it are part of the library.
        folder: folder of the library; None: the user's cache.

    Raises:
        DeviceError: there is no compiler, or it rejects the source.
        OSError: the folder does not support writing or locks.
    """
    command = check_compiler()
    compiler = " ".join(command)
    version = _compiler_version(command)
    sources = [file.read_text("utf-8") for file in (source, *sorted(source.parent.glob("*.h")))]
    inputs = "\0".join((*sources, compiler, version, *FLAGS, cpu_description()))
    folder = (folder or _cache_folder()).resolve()
    library = folder / f"{source.parent.name}-{hashlib.sha256(inputs.encode()).hexdigest()[:16]}.so"
    descriptor = _open_intact(library)
    if descriptor is not None:
        os.close(descriptor)
        return library
    logger.info(f"compiling {source.name} with {compiler}, once: {library}")
    try:
        with scratch_folder(library) as scratch:
            new_library = scratch / library.name
            _run_compiler([*command, *FLAGS, str(source), "-o", str(new_library)])
            new_library.write_bytes(sealed(new_library.read_bytes()))
            new_library.chmod(0o700)  # the umask may let the group write
            sync_to_disk(new_library)
            new_library.replace(library)
    except subprocess.CalledProcessError as error:
        raise DeviceError(f"{compiler} cannot compile {source}: {shorten(error.stderr.strip())}") from error
    except subprocess.TimeoutExpired as error:
        raise DeviceError(f"{compiler} has not compiled {source} in {SECONDS} s") from error
    return library


def _compiler_version(command: list[str]) -> str:
    """Return the output of `COMPILER --version`; raise DeviceError if it does not end."""
    version_command = [*command, "--version"]
    try:
        return subprocess.run(
            version_command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SECONDS, check=False
        ).stdout
    except subprocess.TimeoutExpired as error:
        raise DeviceError(f"`{' '.join(version_command)}` has not ended in {SECONDS} s") from error


def _open_intact(library: Path) -> int | None:
    """Return a descriptor of a library that is complete and that only this user can write to, else None.

    Loading a truncated library can kill the process, and one that others wrote can run any code.
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
    """Return True if a user other than this one and root owns the file or can write to it."""
    is_foreign = status.st_uid not in (0, os.geteuid())
    return is_foreign or bool(status.st_mode & (stat.S_IWGRP | stat.S_IWOTH))


def _unsafe_folder(folder: Path) -> Path | None:
    """Return the first of a folder and its parents in which other users can replace files, or None."""
    if _others_can_change(folder.stat()):
        return folder
    for parent in folder.parents:
        status = parent.stat()
        is_sticky = status.st_uid in (0, os.geteuid()) and status.st_mode & stat.S_ISVTX  # like /tmp
        if _others_can_change(status) and not is_sticky:
            return parent
    return None


def _run_compiler(command: list[str]) -> None:
    """Run a compiler; after a timeout or interrupt its whole process group is killed, since g++ starts subprocesses."""
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
    """Return the user's cache folder if only this user can write to it, else a new temporary folder."""
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "albert-mindspore"
        for missing in reversed([path for path in (folder, *folder.parents) if not path.exists()]):
            missing.mkdir(mode=0o700, exist_ok=True)
        unsafe = _unsafe_folder(folder.resolve())
        if unsafe is None:
            return folder
        reason = (
            f"{folder} is not a folder that this user alone can write to (check the owner and the mode of {unsafe})"
        )
    except (OSError, RuntimeError) as error:
        reason = f"there is no cache folder: {error}"
    return _temporary_folder(reason)


def _temporary_folder(reason: str) -> Path:
    """Return a new folder that is removed when the process ends, and warn with the reason."""
    temporary = Path(tempfile.mkdtemp(prefix="albert-mindspore-"))
    atexit.register(shutil.rmtree, temporary, ignore_errors=True)
    logger.warning(f"every process compiles the C++ layers again, into {temporary}: {reason}")
    return temporary
