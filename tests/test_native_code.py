"""The C++ library is compiled once, into a folder that others cannot change, and only used where it works."""

import contextlib
import ctypes
import errno
import fcntl
import logging
import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from model_utils import device, native_code
from model_utils.device import setup_device
from model_utils.errors import DeviceError
from model_utils.files import sealed
from model_utils.native_code import build_library, find_compiler, library_for
from src.nn import native_operations
from tests.conftest import ROOT

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler is installed")
EXPORTED = 'extern "C" __attribute__((visibility("default")))'
LIBRARY = f'{EXPORTED} int seven() {{ return 7; }}\n{EXPORTED} const char *obstacle() {{ return ""; }}\n'


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The folder of compiled libraries, which is still to be made; temporary folders lie in tmp_path / "tmp"."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    return tmp_path / "home/albert-mindspore"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    file = tmp_path / "seven.cc"
    file.write_text(LIBRARY)
    return file


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A program in place of the compiler, still without a line."""
    file = tmp_path / "compiler"
    file.touch(0o700)
    monkeypatch.setenv("CXX", str(file))
    return file


@pytest.fixture
def fresh_choice() -> Iterator[None]:
    """Nothing is known of the project's library, before and after."""
    native_code._usable_library.cache_clear()
    yield
    native_code.choose("auto")
    native_code._usable_library.cache_clear()


@pytest.mark.usefixtures("fresh_choice")
def test_without_a_compiler_layers_are_composed_and_that_is_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert not native_operations.used()
    assert not native_operations.used()
    (message,) = caplog.messages
    assert "no-such-compiler" in message
    native_code.choose("always")
    for ask in (native_operations.used, lambda: setup_device("CPU", fused_layers="always")):
        with pytest.raises(DeviceError, match="always"):
            ask()


def test_the_configuration_says_whether_the_library_is_used() -> None:
    for choice in native_code.USES:
        setup_device("CPU", fused_layers=choice)
        assert native_operations.used() == (choice != "never")
    setup_device("CPU")
    with pytest.raises(DeviceError, match=r"fused_layers .*GPU"):
        device._fused_layers("always", "GPU")
    with pytest.raises(DeviceError, match=r"threads .*GPU"):
        device._threads(4, "GPU", 1)


@pytest.mark.usefixtures("cache")
def test_a_compilation_that_takes_too_long_ends_with_what_it_has_started(
    compiler: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """g++ starts others for each of its steps."""
    child = compiler.with_name("child")
    compiler.write_text(f'#!/bin/sh\n[ "$1" = --version ] && exit\nsleep 600 &\necho $! > {child}\nwait\n')
    monkeypatch.setattr(native_code, "SECONDS", 2)
    with pytest.raises(DeviceError, match=r"seven\.cc in 2 s"):
        build_library(source)
    state = Path(f"/proc/{child.read_text().strip()}/stat")
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        assert state.read_text().split()[2] == "Z"  # its new parent need not ask for its exit code


def test_a_compiler_that_does_not_say_its_version_is_not_waited_for(
    compiler: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler.write_text("#!/bin/sh\nexec sleep 600\n")
    monkeypatch.setattr(native_code, "SECONDS", 0.5)
    with pytest.raises(DeviceError, match=r"--version.* 0\.5 s"):
        build_library(source)


def test_a_library_is_compiled_once_and_is_there_whole_or_not_at_all(cache: Path, source: Path) -> None:
    library = build_library(source)
    assert library.parent == cache
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700
    made = library.stat().st_mtime_ns
    assert build_library(source) == library
    assert library.stat().st_mtime_ns == made
    source.write_text(LIBRARY.replace("7", "8"))
    second = build_library(source)
    (source.parent / "used.h").write_text("// what it includes")
    assert len({library, second, build_library(source)}) == 3
    source.write_text("no C++")
    with pytest.raises(DeviceError, match=r"seven\.cc"):
        build_library(source)
    assert [path.suffix for path in cache.iterdir()] == [".so"] * 3


@pytest.mark.usefixtures("cache")
def test_a_compiler_may_be_named_with_arguments(monkeypatch: pytest.MonkeyPatch, source: Path) -> None:
    monkeypatch.setenv("CXX", f"{find_compiler()[0]} -Dseven=eight")
    assert ctypes.CDLL(str(build_library(source))).eight() == 7


@pytest.mark.usefixtures("cache")
def test_a_damaged_library_is_compiled_again(source: Path) -> None:
    library = build_library(source)
    made = library.read_bytes()
    for damaged in (b"", made[: len(made) // 2], made[:-1], b"\0" * len(made)):  # half of one kills who loads it
        library.write_bytes(damaged)
        assert build_library(source) == library
        assert library.read_bytes() == made
    assert library_for(source) == library


@pytest.mark.usefixtures("cache")
def test_a_library_of_another_system_is_left_where_it_is(source: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Where machines share a home: whole, but it cannot be loaded here."""
    foreign = build_library(source)
    foreign.write_bytes(sealed(b"no library"))
    library = library_for(source)
    assert library.parent.name.startswith("albert-mindspore-")
    assert foreign.read_bytes() == sealed(b"no library")
    assert str(library.parent) in caplog.text


@pytest.mark.usefixtures("cache")
def test_a_library_outside_mindspore_s_white_list_is_not_used(
    monkeypatch: pytest.MonkeyPatch, source: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MS_CUSTOM_AOT_WHITE_LIST", "/others")
    assert library_for(source) is None
    assert "MS_CUSTOM_AOT_WHITE_LIST" in caplog.text


def test_a_library_never_has_a_colon_in_its_path(
    cache: Path, monkeypatch: pytest.MonkeyPatch, source: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """MindSpore ends a path there."""
    colon = cache.parent.with_name("a:b")
    colon.mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(colon))
    caplog.set_level(logging.WARNING)
    assert ":" not in str(library_for(source))
    assert str(colon) in caplog.messages[-1]
    monkeypatch.setattr(tempfile, "tempdir", str(colon))
    other = source.rename(source.with_name("other.cc"))
    assert library_for(other) is None
    assert "TMPDIR" in caplog.messages[-1]


def test_a_library_s_path_has_no_links(cache: Path, source: Path) -> None:
    """MindSpore loads what a path leads to: another name of it would be another library, with threads of its own."""
    elsewhere = cache.parent.with_name("elsewhere")
    elsewhere.mkdir()
    cache.parent.symlink_to(elsewhere)
    assert build_library(source).parent == elsewhere / cache.name


def test_a_cache_that_takes_no_locks_keeps_the_library(
    cache: Path, source: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As on some network drives, where homes lie."""

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with caplog.at_level(logging.WARNING):
        library = library_for(source)
    assert list(cache.iterdir()) == [library]
    assert not caplog.messages


@pytest.mark.usefixtures("cache")
def test_a_library_says_what_keeps_it_from_being_used(
    monkeypatch: pytest.MonkeyPatch, source: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source.write_text(LIBRARY.replace('""', '"no luck"'))
    with caplog.at_level(logging.WARNING):
        assert library_for(source) is None
    (message,) = caplog.messages
    assert message.endswith(": no luck")
    monkeypatch.setattr(native_code, "_use", ["always"])
    with pytest.raises(DeviceError, match="no luck"):
        library_for(source)


def give_away(path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give files away")
    os.chown(path, 65534, 65534)


@pytest.mark.parametrize(
    ("changed", "change"),
    [
        ("", lambda folder: folder.chmod(0o777)),
        ("", lambda folder: folder.chmod(0o770)),
        ("", give_away),
        ("home", give_away),
        ("home/albert-mindspore", lambda folder: folder.chmod(0o1777)),
        ("home/albert-mindspore", give_away),
    ],
)
def test_a_cache_that_others_can_exchange_is_left_alone(
    cache: Path, source: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, changed: str, change: Callable
) -> None:
    planted = build_library(source)
    change(tmp_path / changed)
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        library = library_for(source)
    assert planted.parent == cache
    assert library.parent.parent == tmp_path / "tmp"
    assert stat.S_IMODE(library.parent.stat().st_mode) == 0o700
    (message,) = caplog.messages
    assert str(tmp_path / changed) in message


def test_a_temporary_folder_goes_with_its_process(
    cache: Path, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.mkdir(parents=True)
    cache.chmod(0o777)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    script = "import sys, pathlib, model_utils.native_code as n; print(n.build_library(pathlib.Path(sys.argv[1])))"
    command = [sys.executable, "-c", script, str(source)]
    library = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    assert Path(library).parent.parent == tmp_path / "tmp"
    assert not list((tmp_path / "tmp").iterdir())


def test_a_cache_below_a_sticky_folder_is_used(cache: Path, source: Path, tmp_path: Path) -> None:
    """Whatever the umask lets others do with new files."""
    tmp_path.chmod(0o1777)
    before = os.umask(0o002)
    try:
        library = build_library(source)
    finally:
        os.umask(before)
    made = library.stat().st_mtime_ns
    assert library.parent == cache
    assert stat.S_IMODE(library.stat().st_mode) == 0o700
    assert library_for(source) == library
    assert library.stat().st_mtime_ns == made


@pytest.mark.parametrize("planted", ["link", "mode", "owner", "pipe"])
@pytest.mark.usefixtures("cache")
def test_a_library_that_others_can_change_is_made_anew(source: Path, planted: str) -> None:
    library = build_library(source)
    elsewhere = source.with_name("elsewhere")
    elsewhere.write_bytes(library.read_bytes())
    if planted == "mode":
        library.chmod(0o722)
    elif planted == "owner":
        give_away(library)
    else:
        library.unlink()
        library.symlink_to(elsewhere) if planted == "link" else os.mkfifo(library)
    assert build_library(source) == library
    status = library.lstat()
    assert stat.S_ISREG(status.st_mode)
    assert (status.st_uid, stat.S_IMODE(status.st_mode)) == (os.geteuid(), 0o700)


@pytest.mark.usefixtures("cache")
def test_what_was_checked_is_loaded_although_its_name_leads_elsewhere_by_then(
    monkeypatch: pytest.MonkeyPatch, source: Path
) -> None:
    library = build_library(source)
    check = native_code._open_intact

    def check_and_replace(library: Path) -> int | None:
        descriptor = check(library)
        library.unlink()
        library.write_bytes(b"no library")
        return descriptor

    monkeypatch.setattr(native_code, "_open_intact", check_and_replace)
    assert native_code._load_checked(library).seven() == 7


TEAM = """#include "team.h"
#include <cstdio>
#include <new>

int main() {
  albert::Team::threads = 3;
  for (int64_t failing = 0; failing < 12; ++failing) {
    std::atomic<int64_t> done{0};
    try {
      albert::Team::get().run(12, [&](int64_t part) {
        if (part == failing) throw std::bad_alloc();
        ++done;
      });
      return std::puts("nothing thrown"), 1;
    } catch (const std::bad_alloc &) {
    }
    if (done != 11) return std::puts("parts still to do"), 1;
    albert::Team::get().run(12, [&](int64_t) { ++done; });
    if (done != 23) return std::puts("the next operation is not whole"), 1;
  }
}
"""


def test_a_part_that_fails_ends_its_operation_and_no_other(tmp_path: Path) -> None:
    source, program = tmp_path / "team.cc", tmp_path / "team"
    source.write_text(TEAM)
    flags = ["-std=c++17", "-O1", "-pthread", f"-I{native_operations.SOURCE.parent}"]
    subprocess.run([*find_compiler(), *flags, str(source), "-o", str(program)], check=True)
    done = subprocess.run([str(program)], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "")
