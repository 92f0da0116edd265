"""Compilation of the project's C++ for this machine, once, into the user's cache folder."""

import atexit
import ctypes
import functools
import hashlib
import logging
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from model_utils.cpu import cpu_info
from model_utils.errors import DeviceError, shorten
from model_utils.files import write_atomically

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
        return library, ctypes.CDLL(str(library))
    except DeviceError:  # is a RuntimeError
        raise
    except (OSError, RuntimeError) as error:  # no home, no writing, no running of files, or a library of another system
        library = build_library(source, folder=_temporary_folder(str(error)))
        return library, ctypes.CDLL(str(library))


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
        folder: folder of the library, which is made if it is missing; None: the user's cache.

    Raises:
        DeviceError: there is no compiler, or it rejects the source.
        OSError: the folder cannot be made or written.
        RuntimeError: the user has no home.
    """
    command = check_compiler()
    compiler = " ".join(command)
    version = _compiler_version(command)
    sources = [file.read_text("utf-8") for file in (source, *sorted(source.parent.glob("*.h")))]
    inputs = "\0".join((*sources, compiler, version, *FLAGS, cpu_description()))
    folder = (folder or _cache_folder()).resolve()
    library = folder / f"{source.parent.name}-{hashlib.sha256(inputs.encode()).hexdigest()[:16]}.so"
    if library.exists():
        return library
    logger.info(f"compiling {source.name} with {compiler}, once: {library}")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        write_atomically(library, lambda file: _run([*command, *FLAGS, str(source), "-o", str(file)], check=True))
    except subprocess.CalledProcessError as error:
        raise DeviceError(f"{compiler} cannot compile {source}: {shorten(error.stderr.strip())}") from error
    except subprocess.TimeoutExpired as error:
        raise DeviceError(f"{compiler} has not compiled {source} in {SECONDS} s") from error
    return library


def _compiler_version(command: list[str]) -> str:
    """Return the output of `COMPILER --version`; raise DeviceError if it does not end."""
    version_command = [*command, "--version"]
    try:
        return _run(version_command).stdout
    except subprocess.TimeoutExpired as error:
        raise DeviceError(f"`{' '.join(version_command)}` has not ended in {SECONDS} s") from error


def _run(command: list[str], check: bool = False) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SECONDS, check=check
    )


def _cache_folder() -> Path:
    """Return the user's cache folder; raise RuntimeError if the user has no home."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "albert-mindspore"


def _temporary_folder(reason: str) -> Path:
    """Return a new folder that is removed when the process ends, and warn with the reason."""
    temporary = Path(tempfile.mkdtemp(prefix="albert-mindspore-"))
    atexit.register(shutil.rmtree, temporary, ignore_errors=True)
    logger.warning(f"every process compiles the C++ layers again, into {temporary}: {reason}")
    return temporary
