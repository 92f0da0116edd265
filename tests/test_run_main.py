"""How a command starts and ends: its exit code and its last sentence."""

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import termios
from pathlib import Path

import pytest

from model_utils import errors
from model_utils.config import check_output_folder
from model_utils.errors import ConfigError, UserError

ROOT = Path(__file__).resolve().parents[1]


def run_main(tmp_path: Path, body: str, *words: str) -> subprocess.CompletedProcess:
    program = tmp_path / "program.py"
    program.write_text(
        f"import errno, sys\nsys.path.insert(0, {str(ROOT)!r})\n"
        "from model_utils.config import run_main\nfrom model_utils.errors import *\n"
        "from src.training.pretrain_config import PretrainConfig\n"
        f"def main(config):\n    {body}\nrun_main(main, PretrainConfig)\n"
    )
    command = [sys.executable, str(program), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)


NEEDED = ("--data_dir=x", "--save_checkpoint_path=y")


@pytest.mark.parametrize(
    ("body", "words", "code", "message"),
    [
        ("print(config.seed)", (*NEEDED, "--seed=5"), 0, ""),
        ("return 3", NEEDED, 3, ""),
        ("pass", ("--save_checkpoint_path=y",), 2, "error: data_dir is missing; give the folder with the examples"),
        ("pass", (*NEEDED, "--sed=1"), 2, "error: command line: --sed is not a key; did you mean --seed?"),
        ("raise DataError('no text in x')", NEEDED, 2, "error: no text in x"),
        ("raise DeviceError('no GPU')", NEEDED, 2, "error: no GPU"),
        ("raise OSError(errno.ENOSPC, 'full', 'a/b')", NEEDED, 2, "error: the disk is full: a/b"),
        ("raise OSError(errno.EACCES, 'Permission denied', 'a/b')", NEEDED, 2, "error: a/b: Permission denied"),
        ("open('n' * 300)", NEEDED, 2, "error: nnn"),
        ("open('/proc/version/x')", NEEDED, 2, "error: /proc/version/x: Not a directory"),
        ("from model_utils import files; files.open_file('.')", NEEDED, 2, "error: .: it is a folder, a device"),
        ("open('.', 'w')", NEEDED, 2, "error: .: Is a directory"),
        ("raise MemoryError", NEEDED, 2, "error: out of memory"),
        ("raise KeyboardInterrupt", NEEDED, 130, "stopped by Ctrl-C"),
    ],
)
def test_errors_of_the_user_are_one_sentence_and_code_2(
    tmp_path: Path, body: str, words: tuple[str, ...], code: int, message: str
) -> None:
    done = run_main(tmp_path, body, *words)
    assert done.returncode == code
    assert done.stderr.startswith(message) and done.stderr.count("\n") == bool(message)


@pytest.mark.parametrize(
    "body",
    [
        "raise RuntimeError('std::bad_alloc')",
        "raise RuntimeError('Allocate memory failed, size 7')",
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (2**35, 2**35)); bytearray(2**36)",
    ],
)
def test_too_little_memory_names_the_key_to_lower(tmp_path: Path, body: str) -> None:
    done = run_main(tmp_path, body, *NEEDED, "--batch_size=77")
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "batch_size (77)" in done.stderr


def test_errors_of_the_program_keep_their_traceback(tmp_path: Path) -> None:
    done = run_main(tmp_path, "raise OSError(errno.EIO, 'broken')", *NEEDED)
    assert done.returncode == 1 and "Traceback" in done.stderr


def test_output_that_nobody_reads_is_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(
        f"import sys\nsys.path.insert(0, {str(ROOT)!r})\nfrom model_utils.config import run_main\n"
        "from src.training.pretrain_config import PretrainConfig\n"
        "def main(config):\n    print('x' * 1000000, flush=True)\nrun_main(main, PretrainConfig)\n"
    )
    command = f"{sys.executable} program.py {' '.join(NEEDED)} | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout == "2\n" and done.stderr.startswith("error: ") and done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("redirection", "messages", "seen"),
    [
        ("2>&1 | head -1", "stderr", "a line\n"),
        ("| head -1", "stdout", "a line\n"),  # while a training waits for signals
        ("2>&-", "stderr", ""),  # closed
        ("2< /dev/null", "stderr", ""),  # takes nothing, as a full disk
        (">&-", "stdout", ""),
    ],
)
def test_answers_are_written_although_nobody_reads_the_messages(
    redirection: str, messages: str, seen: str, tmp_path: Path
) -> None:
    (tmp_path / "program.py").write_text(
        f"import logging, sys\nsys.path.insert(0, {str(ROOT)!r})\nfrom model_utils.config import run_main\n"
        "from src.training.pretrain_config import PretrainConfig\n"
        "from src.training.stop_signals import StopSignals\n"
        "def main(config):\n"
        "    with StopSignals():\n"
        "        for _ in range(10000): logging.getLogger('src').info('a line')\n"
        "    open('answers', 'w').write('all')\n"
        f"run_main(main, PretrainConfig, messages={messages!r})\n"
    )
    command = f"{sys.executable} program.py {' '.join(NEEDED)} {redirection}; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout == f"{seen}0\n" and (tmp_path / "answers").read_text() == "all"


STOPPED = """
import logging, signal, sys
from model_utils.messages import show_messages
from src.training.stop_signals import StopSignals

show_messages()
with StopSignals() as signals:
    logging.getLogger("src").info("ready")
    while not signals.received:
        signal.sigtimedwait([], 0.1)
    for _ in range(3):
        logging.getLogger("src").info("saved")
sys.exit(128 + signals.received)
"""


def test_characters_that_an_encoding_lacks_are_shown_by_number() -> None:
    program = "import logging\nfrom model_utils.messages import show_messages\nshow_messages()\n"
    program += "logging.getLogger('src').info('caf\\xe9 \\u597d')"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, env=os.environ | {"PYTHONIOENCODING": "latin-1"}
    )
    assert done.stdout == b"caf\xe9 \\u597d\n" and not done.stderr


def test_a_run_is_saved_although_ctrl_c_ends_who_reads_its_output_too() -> None:
    """Ctrl-C also ends the reader of the output in `2>&1 | tee log`."""
    process = subprocess.Popen(
        [sys.executable, "-c", STOPPED], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout.readline() == "ready\n"
    process.stdout.close()
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 130


def test_a_run_is_saved_when_its_terminal_is_gone() -> None:
    """A lost connection ends the terminal."""
    ours, its = os.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", STOPPED],
        cwd=ROOT,
        stdin=its,
        stdout=its,
        stderr=its,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(its)
    said = b""
    while b"ready" not in said:
        said += os.read(ours, 100)
    os.close(ours)  # the system sends SIGHUP
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGHUP)  # as a shell does
    assert process.wait(timeout=60) == 129


def test_under_nohup_a_run_goes_on() -> None:
    process = subprocess.Popen(["nohup", sys.executable, "-c", STOPPED], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGHUP)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=0.5)
    process.terminate()
    assert process.wait(timeout=60) == 143


def test_a_tilde_that_no_shell_has_replaced_makes_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="only the shell expands ~") as error:
        check_output_folder(Path("~/runs"), "output")
    assert (error.value.key, error.value.value) == ("output", "~/runs")
    assert not list(tmp_path.iterdir())


def test_a_folder_for_results_is_tried_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "loop").symlink_to("loop")
    deep = Path(*["d" * 200] * 21)
    check_output_folder(tmp_path / "new/folder", "key")
    check_output_folder(Path("new"), "key")
    for folder, reason in (
        (tmp_path / "file", "Not a directory"),
        (tmp_path / "file/x/y", "Not a directory"),
        (tmp_path / "dangling/x", "No such file"),
        (tmp_path / "loop", "Too many levels"),
        (tmp_path / ("n" * 256), "File name too long"),
        (deep, "File name too long"),
    ):
        with pytest.raises(ConfigError, match=f"key is .*{reason}"):
            check_output_folder(folder, "key")
    assert {path.name for path in tmp_path.iterdir()} == {"file", "dangling", "loop"}


def test_a_folder_without_permission(request: pytest.FixtureRequest) -> None:
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    request.addfinalizer(lambda: shutil.rmtree(folder))
    folder.chmod(0o555)
    if os.geteuid() == 0:
        request.addfinalizer(lambda: os.seteuid(0))
        os.seteuid(65534)  # the superuser may write anywhere
    with pytest.raises(ConfigError, match="Permission denied"):
        check_output_folder(folder / "results", "key")


def test_every_user_error_is_one() -> None:
    for name in ("ConfigError", "DataError", "CheckpointError", "DeviceError"):
        assert issubclass(getattr(errors, name), UserError)
