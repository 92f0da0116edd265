"""The shell scripts, run in copies of the project: set-up, forwarded arguments, logs, signals, test results."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.helpers.folder_state import folder_state

ROOT = Path(__file__).resolve().parents[1]
VENV = Path(sys.prefix)
TASKS = ("classifier", "ner", "pretrain", "race", "squad_v1", "squad_v2")
LAUNCHERS = ("run_single.sh", "run_distribute.sh")
SHIMS = [f"run_{task}_{launcher.removeprefix('run_')}" for launcher in LAUNCHERS for task in TASKS]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of the scripts in a folder whose name has a space; nothing is required, .venv does not exist."""
    folder = tmp_path / "a project"
    shutil.copytree(ROOT / "scripts", folder / "scripts")
    for name in ("requirements.txt", "requirements-test.txt"):
        (folder / name).write_text("")
    for task in TASKS:
        (folder / f"run_{task}.py").write_text('"""Run the task."""\n')
    require(folder)
    return folder


def require(project: Path, dependencies: tuple[str, ...] = (), test: tuple[str, ...] = ()) -> None:
    text = f"dependencies = {[*dependencies]}\noptional-dependencies.test = {[*test]}\n"
    (project / "pyproject.toml").write_text(f"[project]\nname = 'project'\nversion = '1'\n{text}")


@pytest.fixture
def ready_project(project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project that uses the environment of this test run."""
    monkeypatch.setenv("PATH", f"{VENV}/bin:{os.environ['PATH']}")
    return project


@pytest.fixture
def launch_project(ready_project: Path) -> Path:
    """A ready project with what scripts/launch.py imports."""
    shutil.copytree(ROOT / "model_utils", ready_project / "model_utils")
    set_constant(ready_project, "SCHEDULER", '["sleep", "120"]')  # most ranks here need none
    return ready_project


def bash(command: str, folder: Path, **environment: str) -> subprocess.CompletedProcess:
    variables = {key: value for key, value in os.environ.items() if key not in ("VIRTUAL_ENV", "DEVICE_NUM")}
    return subprocess.run(
        ["bash", "-c", command], cwd=folder, env=variables | environment, capture_output=True, text=True, check=False
    )


def only_log(project: Path) -> Path:
    (log,) = (project / "output/logs").iterdir()
    return log


def wait_until(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.parametrize("script", sorted(path.name for path in (ROOT / "scripts").glob("*.sh")))
def test_every_script_is_valid_shell(script: str) -> None:
    assert subprocess.run(["bash", "-n", ROOT / "scripts" / script], check=False).returncode == 0


@pytest.mark.parametrize(
    "words",
    [
        *(f"{script} --help" for script in ("lock.sh", "quickstart.sh", "env.sh", "gpu_env.sh", *LAUNCHERS)),
        *("test.sh -h", "run_single.sh -h", "run_ner_single.sh -h", "run_ner_distribute.sh --help"),
    ],
)
def test_help_explains_and_does_nothing(project: Path, words: str) -> None:
    require(project, ("no-such-package==1.0",))
    before = folder_state(project)
    done = bash(f"bash scripts/{words}", project)
    name = words.split()[0]
    script = f"run_{name.rpartition('_')[2]}" if name in SHIMS else name
    assert done.returncode == 0 and re.search(rf"usage: (bash|\.) scripts/{script}", done.stdout)
    assert script not in LAUNCHERS or all(re.search(rf"\b{task}\b", done.stdout) for task in TASKS)
    assert folder_state(project) == before  # neither .venv nor a folder of results


@pytest.mark.parametrize("words", ["", "--help"])
def test_the_installer_without_files_shows_its_usage(project: Path, words: str) -> None:
    done = bash(f"{sys.executable} scripts/bootstrap.py {words}", project)
    assert done.returncode == 1 and "usage: python scripts/bootstrap.py" in done.stderr
    assert not (project / ".venv-lock").exists()


@pytest.mark.parametrize("shim", SHIMS)
def test_the_script_of_a_task_calls_the_launcher_with_it(shim: str) -> None:
    task, _, launcher = shim.removeprefix("run_").rpartition("_")
    [shebang, command] = (ROOT / "scripts" / shim).read_text().splitlines()
    assert shebang == "#!/usr/bin/env bash"
    assert command == f'exec bash "$(dirname "${{BASH_SOURCE[0]}}")/run_{launcher}" {task} "$@"'


@pytest.mark.parametrize("script", LAUNCHERS)
def test_help_of_a_task_lists_the_options_where_there_is_an_environment(ready_project: Path, script: str) -> None:
    (ready_project / "run_ner.py").write_text("import sys\nprint('options', sys.argv[1:])\n")
    done = bash(f"bash scripts/{script} ner --help", ready_project)
    usage = rf"^usage: bash scripts/{script} (.|\n)*\noptions \['--help'\]\n\Z"
    assert done.returncode == 0 and re.search(usage, done.stdout, re.MULTILINE)
    assert not (ready_project / "output").exists()


@pytest.mark.parametrize("arguments", ["", "squad --seed 1", "--help_me", "../run_race", "'' --help"])
@pytest.mark.parametrize("script", LAUNCHERS)
def test_a_task_that_there_is_not_is_refused(project: Path, script: str, arguments: str) -> None:
    before = folder_state(project)
    done = bash(f"bash scripts/{script} {arguments}", project)
    task = arguments.partition(" ")[0].strip("'")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith(f" '{task}', allowed are {', '.join(TASKS)}\n")
    assert folder_state(project) == before


@pytest.mark.parametrize(("version", "is_used"), [(pytest.__version__, True), ("0.1", False)])
def test_an_active_environment_is_used_if_it_has_the_packages(project: Path, version: str, is_used: bool) -> None:
    (project / "requirements-test.txt").write_text(f"--no-index\npytest=={version}\nnone==1\n")
    require(project, test=("project[other]", f"pytest=={version}"))
    command = ". scripts/env.sh && prepare_environment requirements-test.txt && echo $VIRTUAL_ENV"
    done = bash(command, project, PATH=f"{VENV}/bin:{os.environ['PATH']}")
    assert (done.stdout == f"{VENV}\n") == is_used, done.stderr
    assert done.stderr.count(f"using the environment {VENV}") == is_used
    assert (project / ".venv").exists() != is_used


# --- set-up ---


def make_wheel(path: Path, version: str) -> None:
    info = f"demo-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("demo.py", f"version = {version!r}\n")
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: demo\nVersion: {version}\n")
        facts = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        wheel.writestr(f"{info}/WHEEL", facts)
        wheel.writestr(f"{info}/RECORD", "")


PREPARE = ". scripts/env.sh && prepare_environment requirements.txt && python -c 'import demo; print(demo.version)'"


def test_the_environment_is_made_once_and_follows_the_requirements(project: Path, tmp_path: Path) -> None:
    for version in ("1.0", "2.0"):
        make_wheel(tmp_path / f"demo-{version}-py3-none-any.whl", version)
    require(project, ("demo==1.0",))
    index = f"--find-links {tmp_path}\n--no-index\n"
    (project / "requirements.txt").write_text(index + "demo==1.0\n")
    with ThreadPoolExecutor(2) as threads:
        starts = list(threads.map(bash, [PREPARE] * 2, [project] * 2))
    assert [(start.returncode, start.stdout) for start in starts] == [(0, "1.0\n")] * 2, starts
    assert sum(start.stderr.count("installing requirements.txt into") for start in starts) == 1

    (project / "requirements.txt").write_text(index + "demo==2.0\n")
    changed = bash(PREPARE, project)
    assert (changed.returncode, changed.stdout) == (0, "2.0\n") and "installing" in changed.stderr

    python = project / ".venv/bin/python"
    python.unlink()
    python.symlink_to("/nowhere/python")  # as after an upgrade of the system's Python
    repaired = bash(PREPARE, project)
    assert (repaired.returncode, repaired.stdout) == (0, "2.0\n"), repaired.stderr

    (project / "requirements.txt").write_text(index + "demo==3.0\n")
    for _ in range(2):  # a failed installation is tried again
        failed = bash(PREPARE, project)
        assert failed.returncode == 2 and "error: pip could not install requirements.txt" in failed.stderr

    (project / ".venv/installed.json").unlink()
    python.unlink()
    python.write_text("#!/bin/bash\nexit 1\n")  # somebody's own environment of another Python
    python.chmod(0o755)
    refused = bash(PREPARE, project)
    assert refused.returncode == 2 and "which this script has not made" in refused.stderr and python.exists()


def test_a_machine_without_a_fitting_python_is_told_so(project: Path, tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("bash", "dirname"):
        (tools / name).symlink_to(shutil.which(name))
    (tools / "python3").write_text("#!/bin/bash\nexit 1\n")
    (tools / "python3").chmod(0o755)
    done = bash(". scripts/env.sh && prepare_environment requirements.txt; echo not reached", project, PATH=str(tools))
    assert done.returncode == 2 and done.stdout == ""
    assert "no Python 3.11 or 3.12 with its venv module was found" in done.stderr


# --- run_single.sh ---

ECHO = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: (print("saved", flush=True), sys.exit(4)))
print(os.getcwd(), sys.argv[1:])
print("warning", file=sys.stderr)
if "--wait" in sys.argv:
    time.sleep(60)
sys.exit(3)
"""


def test_single_forwards_arguments_logs_and_returns_the_exit_code(ready_project: Path, tmp_path: Path) -> None:
    (ready_project / "run_ner.py").write_text(ECHO)
    elsewhere = tmp_path / "else where"
    elsewhere.mkdir()
    done = bash("bash '../a project/scripts/run_ner_single.sh' --data_dir 'x  y' --seed=1 ''", elsewhere)
    assert done.returncode == 3, done.stderr
    first, *lines = done.stdout.splitlines()
    assert lines == [f"{elsewhere} ['--data_dir', 'x  y', '--seed=1', '']", "warning"]
    log = only_log(ready_project)
    assert first == f"log: {log}" and log.read_text().splitlines() == lines


def test_single_hands_signals_to_the_script_and_logs_its_last_words(ready_project: Path) -> None:
    (ready_project / "run_pretrain.py").write_text(ECHO)
    command = ["bash", ready_project / "scripts/run_pretrain_single.sh", "--wait"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    lines = [process.stdout.readline() for _ in range(3)]
    assert lines[-1] == "warning\n"
    os.killpg(process.pid, signal.SIGTERM)  # as a batch system does: to the log's writer, too
    assert process.stdout.read() == "saved\n"
    assert process.wait() == 4
    assert only_log(ready_project).read_text().endswith("saved\n")


def test_the_log_is_whole_although_nobody_reads_along(ready_project: Path) -> None:
    (ready_project / "run_pretrain.py").write_text("print('a line\\n' * 30_000, flush=True)\nprint('the end')\n")
    bash("bash scripts/run_single.sh pretrain | head -n 1", ready_project)
    log = only_log(ready_project)
    wait_until(lambda: log.read_text().endswith("the end\n"))


# --- run_distribute.sh ---

AVERAGE = f"""
import argparse, os, signal, sys, time
sys.path.insert(0, {str(ROOT)!r})
import mindspore as ms
from mindspore import nn, ops
from model_utils.device import setup_device

parser = argparse.ArgumentParser()
parser.add_argument("--distribute")
parser.add_argument("--device_num", type=int)
parser.add_argument("--name")
arguments = parser.parse_args()
stopped = []
signal.signal(signal.SIGTERM, lambda *_: stopped.append("stopped"))
device = setup_device("CPU", distribute=arguments.distribute == "true", device_num=arguments.device_num)

class Sum(nn.Cell):
    def __init__(self):
        super().__init__()
        self.all_reduce = ops.AllReduce()

    def construct(self, x):
        return self.all_reduce(x)

total = Sum()(ms.Tensor([device.rank + 1.0])).asnumpy().item()
print(f"rank {{device.rank}} of {{device.rank_size}}, sum {{total}}, name {{arguments.name}}", flush=True)
end = time.monotonic() + 120  # nobody stops it after a test that failed
while not stopped and arguments.name == "wait" and time.monotonic() < end:
    time.sleep(0.05)
print(*stopped, flush=True)
if stopped and device.rank == 0:
    time.sleep(3)  # still writes, as no other does
    print("written", flush=True)
sys.exit(143 if stopped else 0)
"""


def test_distribute_starts_ranks_that_reduce_and_stop_together(launch_project: Path) -> None:
    shutil.copy(ROOT / "model_utils/job.py", launch_project / "model_utils")  # with MindSpore's scheduler
    (launch_project / "run_pretrain.py").write_text(AVERAGE)
    command = ["bash", launch_project / "scripts/run_pretrain_distribute.sh", "--name", "wait", "--nproc", "2"]
    process = subprocess.Popen(command, cwd="/", stdout=subprocess.PIPE, text=True, start_new_session=True)
    logs = Path(process.stdout.readline().removeprefix("logs: ").strip())
    assert logs.parent == launch_project / "output/logs"
    try:
        for line in process.stdout:
            if line.startswith("rank 0 of 2, sum 3.0"):
                break
        wait_until(lambda: "rank 1 of 2, sum 3.0, name wait" in (logs / "worker_1.log").read_text())
        process.terminate()
        assert "stopped\nwritten\n" in process.stdout.read()
        assert process.wait() == 128 + signal.SIGTERM
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert all("stopped" in log.splitlines() for log in logs_of_ranks(logs))


RANK = """
import os, signal, sys, time
from model_utils.errors import UserError
from model_utils.rendezvous import ADDRESS, KEY, RendezvousClient
rank = int(os.environ["RANK_ID"])
print("rank", rank, flush=True)
if rank == 1:
    {act}
host, port = os.environ[ADDRESS].split(":")
try:  # the others learn that rank 1 has ended
    RendezvousClient((host, int(port)), os.environ[KEY].encode()).exchange(rank, 1, "its end", b"", 60)
except UserError:
    time.sleep(0.5)
    sys.exit({code})
"""


def run_ranks(project: Path, program: str, nproc: int) -> subprocess.CompletedProcess:
    (project / "run_ner.py").write_text(program)
    return bash(f"bash scripts/run_distribute.sh ner --nproc {nproc}", project)


@pytest.mark.parametrize(
    ("act", "others", "code", "reason"),
    [
        ("print('error: no room', file=sys.stderr); print('late'); sys.exit(2)", 2, 2, "no room"),
        ("raise ValueError('of no kind')", 1, 1, "ValueError: of no kind"),
        ("os.kill(os.getpid(), signal.SIGKILL)", 2, 137, r"killed by SIGKILL \(.*memory.*\)"),
        ("sys.exit(0)", 0, 0, ""),
    ],
)
def test_distribute_ends_with_the_rank_that_failed_and_its_reason(
    launch_project: Path, act: str, others: int, code: int, reason: str
) -> None:
    """Rank 0 is not killed but ends by itself, and its later failure is not the reason."""
    done = run_ranks(launch_project, RANK.format(act=act, code=f"'error: rank 1 has ended' if {others} else 0"), 3)
    assert done.returncode == code, done.stderr
    assert done.stdout.splitlines()[1] == "rank 0"
    if reason:
        last = done.stderr.splitlines()[-1]
        assert re.fullmatch(rf"error: rank 1 failed: {reason} \(its output: .*/worker_1\.log\)", last)


def set_constant(project: Path, name: str, value: object, module: str = "model_utils/job.py") -> None:
    """Set a constant of one of the project's modules."""
    path = project / module
    text, count = re.subn(f"^{name} = .*", f"{name} = {value}", path.read_text(), flags=re.MULTILINE)
    assert count == 1
    path.write_text(text)


def set_linters(project: Path, *linters: str) -> None:
    """Leave only these linters in the project's tests: mypy alone takes longer than most of the tests here."""
    set_constant(project, "LINTERS", linters, "scripts/run_tests.py")


def test_distribute_kills_ranks_that_do_not_end(launch_project: Path) -> None:
    set_constant(launch_project, "GRACE", 0.5)
    program = "import os, time\nif os.environ['RANK_ID'] == '0':\n    time.sleep(30)\n    print('by itself')\n1 / 0\n"
    done = run_ranks(launch_project, program, 2)
    assert done.returncode == 1 and "rank 1 failed: ZeroDivisionError: division by zero" in done.stderr
    assert "by itself" not in done.stdout


@pytest.mark.parametrize(("seconds", "code"), [(0.3, 0), (20, 137)])
def test_distribute_names_a_rank_that_is_paused_too_long(launch_project: Path, seconds: float, code: int) -> None:
    """A shorter pause does no harm, nor does a rank that computes."""
    set_constant(launch_project, "MAX_PAUSE", 3.0)
    wake = f"subprocess.Popen(['sh', '-c', f'sleep {seconds}; kill -CONT {{os.getpid()}}'])"
    act = f"import subprocess; {wake}; os.kill(os.getpid(), signal.SIGSTOP); sys.exit(0)"
    done = run_ranks(launch_project, RANK.format(act=act, code=0), 2)
    assert done.returncode == code, done.stderr
    if code:
        assert "rank 1 failed" in done.stderr.splitlines()[-1] and "3 s" in done.stderr.splitlines()[-1]


def test_distribute_tells_of_a_failed_rank_when_nobody_reads_its_output(launch_project: Path) -> None:
    """A pipe that nobody reads, such as `| less`, is full long before rank 1 fails."""
    (launch_project / "rank.py").write_text(
        "import os, sys, time\nprint('a line\\n' * 100_000, flush=True)\nif os.environ['RANK_ID'] == '1': 1 / 0\n"
        "import time; time.sleep(2)\n"
    )
    set_constant(launch_project, "READER_WAIT", 0.1)
    errors = launch_project / "errors.txt"
    command = [sys.executable, launch_project / "scripts/launch.py", "2", launch_project, launch_project / "rank.py"]
    with errors.open("w") as stderr:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True)
    try:
        wait_until(lambda: "error: rank 1 failed: ZeroDivisionError: division by zero" in errors.read_text())
        assert process.stdout.read().count("a line\n") == 100_000 and process.wait(timeout=60) == 1
    finally:
        process.kill()


def test_distribute_stops_its_ranks_when_the_scheduler_fails(tmp_path: Path, launch_project: Path) -> None:
    (tmp_path / "save.py").write_text(SAVE)
    scheduler = '[sys.executable, "-c", "import time; time.sleep(3); 1 / 0"]'
    set_constant(launch_project, "SCHEDULER", scheduler)
    command = [sys.executable, launch_project / "scripts/launch.py", "2", tmp_path, tmp_path / "save.py"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "error: the scheduler failed: ZeroDivisionError: division by zero (its output: " in done.stderr
    assert all(log.endswith("a line\nsaved\n") for log in logs_of_ranks(tmp_path))


SAVE = """
import os, signal, sys, time
stopped = []

def stop(*_):
    stopped.append(1)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)

signal.signal(signal.SIGTERM, stop)
print("child of its launcher" if os.environ["ALBERT_LAUNCHER"] == str(os.getppid()) else "of another", flush=True)
end = time.monotonic() + 120  # nobody stops it after a test that failed
while not stopped and time.monotonic() < end:
    print("a line", flush=True)
    time.sleep(0.05)
time.sleep(0.5)
print("saved", flush=True)
sys.exit(143)
"""


@contextmanager
def saving_job(project: Path, folder: Path, save: str, prefix: tuple[str, ...] = ()) -> Iterator[subprocess.Popen]:
    """Start two ranks that write lines until they are asked to stop; kill their launcher at the end."""
    (folder / "save.py").write_text(save)
    command = [*prefix, sys.executable, project / "scripts/launch.py", "2", folder, folder / "save.py"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        while not all("child of its launcher\na line" in log for log in logs_of_ranks(folder)):
            assert process.stdout.readline()
        process.stdout.close()
        yield process
    finally:
        process.kill()


def logs_of_ranks(folder: Path) -> list[str]:
    logs = [folder / f"worker_{rank}.log" for rank in (0, 1)]
    return [log.read_text() if log.exists() else "" for log in logs]


@pytest.mark.parametrize("ignored", [False, True])
def test_distribute_lets_its_ranks_save_when_the_terminal_is_gone(
    launch_project: Path, tmp_path: Path, ignored: bool
) -> None:
    """Nobody reads its output any more; under nohup only another signal stops it."""
    with saving_job(launch_project, tmp_path, SAVE, ("nohup",) if ignored else ()) as process:
        for _ in range(2):  # from the system and from a shell
            process.send_signal(signal.SIGHUP)
            time.sleep(0.2)
        if ignored:
            time.sleep(1)
            assert not any("saved" in log for log in logs_of_ranks(tmp_path))
            process.terminate()
        assert process.wait() == 128 + (signal.SIGTERM if ignored else signal.SIGHUP)
    assert all(log.endswith("a line\nsaved\n") for log in logs_of_ranks(tmp_path))


def was_asked(launcher: int) -> bool:
    """Return True once the process has had a signal: it ignores SIGHUP from then on."""
    ignored = re.search(r"SigIgn:\s*(\w+)", Path(f"/proc/{launcher}/status").read_text())[1]
    return bool(int(ignored, 16) & 1 << (signal.SIGHUP - 1))


@pytest.mark.parametrize(("again", "seconds", "ending"), [(False, 0.5, "saved\n"), (True, 30, "asked to stop\n")])
def test_ranks_that_are_asked_by_others_too_save(
    launch_project: Path, tmp_path: Path, again: bool, seconds: float, ending: str
) -> None:
    """systemd and Slurm signal all processes of a job; a second signal ends them."""
    telling = SAVE.replace("stopped.append(1)", "stopped.append(os.write(1, b'asked to stop\\n'))")
    with saving_job(launch_project, tmp_path, telling.replace("time.sleep(0.5)", f"time.sleep({seconds})")) as process:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        for one in (process.pid, *map(int, children[:2])):
            os.kill(one, signal.SIGTERM)
        if again:
            wait_until(lambda: was_asked(process.pid))
            wait_until(lambda: all("asked to stop" in log for log in logs_of_ranks(tmp_path)))
            process.terminate()
        assert process.wait(timeout=60) == 143
    assert all(log.endswith(ending) for log in logs_of_ranks(tmp_path))


WRONG_NUMBERS = [
    ("", "--nproc 0", "0"),
    ("", "--nproc", "nothing"),
    ("8", "-x --nproc=none", "none"),
    ("two", "", "two"),
]


def test_logs_that_cannot_be_written_are_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("a file")
    command = [sys.executable, ROOT / "scripts/launch.py", "1", tmp_path / "logs", "script.py"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and done.stderr.startswith("error: ") and str(tmp_path / "logs") in done.stderr


@pytest.mark.parametrize(("device_num", "words", "found"), WRONG_NUMBERS)
def test_distribute_refuses_a_wrong_number(launch_project: Path, device_num: str, words: str, found: str) -> None:
    done = bash(f"bash scripts/run_distribute.sh pretrain {words}", launch_project, DEVICE_NUM=device_num)
    assert done.returncode == 2
    assert f"error: the number of processes is '{found}', allowed is 1 and more: give --nproc N" in done.stderr


@pytest.mark.parametrize("words", ["--worker_num 3", "--worker_num=4 --node_rank 2", "--master_port 0"])
def test_distribute_hands_the_options_of_msrun_to_its_launcher(launch_project: Path, words: str) -> None:
    done = bash(f"bash scripts/run_distribute.sh ner --local_worker_num 2 {words}", launch_project)
    key, value = words.removeprefix("--worker_num=4 ").removeprefix("--").split()
    assert done.returncode == 2 and f"error: {key} is {value}, " in done.stderr


# --- test.sh ---


IMPORT_CONTRACT = """
[tool.importlinter]
root_package = "model_utils"
[[tool.importlinter.contracts]]
name = "Messages stand alone"
type = "forbidden"
source_modules = ["model_utils.messages"]
forbidden_modules = ["model_utils.errors"]
"""


@pytest.fixture
def tested_project(ready_project: Path) -> Path:
    for name in ("tests/conftest.py", "model_utils/__init__.py", "model_utils/messages.py", "model_utils/errors.py"):
        (ready_project / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, ready_project / name)
    (ready_project / "tests/heavy_files.txt").touch()
    settings, _, _ = (ROOT / "pyproject.toml").read_text().partition("[tool.importlinter]")
    settings = settings[settings.index("[tool.ruff]") :].replace(
        '"src", "model_utils", "benchmarks", "*.py"', '"model_utils"'
    )
    with (ready_project / "pyproject.toml").open("a") as file:
        file.write(settings + IMPORT_CONTRACT)
    write_tests(ready_project, "one", "def test_a():\n    pass\n\n\ndef test_b():\n    pass\n")
    slow = 'import pytest\n\n\n@pytest.mark.slow\ndef test_c():\n    """Slow."""\n    assert 1 + 1 == 3\n'
    write_tests(ready_project, "two", slow)
    return ready_project


def write_tests(project: Path, name: str, text: str) -> None:
    (project / f"tests/test_{name}.py").write_text(text)


@pytest.mark.parametrize(
    ("arguments", "code", "closing"),
    [
        ("", 0, "2 passed, 0 failed, 1 skipped"),
        ("--slow", 1, "2 passed, 1 failed, 0 skipped"),
        ("-k test_b", 0, "1 passed, 0 failed, 0 skipped"),
        ("-k test_z", 1, "0 passed, 0 failed, 0 skipped"),
        ("-k tests --deselect tests/test_one.py::test_b", 0, "1 passed, 0 failed, 1 skipped"),
        ("scripts/../tests/test_two.py::test_c --slow", 1, "0 passed, 1 failed, 0 skipped"),
    ],
)
def test_the_closing_line_and_exit_code_combine_all_groups(
    tested_project: Path, arguments: str, code: int, closing: str
) -> None:
    if arguments:  # once with all linters
        set_linters(tested_project)
    done = bash(f"bash scripts/test.sh {arguments}", tested_project)
    assert done.stdout.splitlines()[-1] == closing, done.stdout + done.stderr
    assert ("\n1 skipped: give --slow to run it\n" in done.stdout) == closing.endswith(", 1 skipped")
    assert done.returncode == code


def test_a_wrong_argument_of_pytest_ends_all(tested_project: Path) -> None:
    set_linters(tested_project)
    done = bash("bash scripts/test.sh --no_such_argument", tested_project)
    assert "unrecognized arguments: --no_such_argument" in done.stdout and done.returncode != 0


def test_a_process_that_dies_is_interrupted_or_finds_no_such_test_counts_as_a_failure(tested_project: Path) -> None:
    set_linters(tested_project)
    write_tests(tested_project, "three", "import os\n\n\ndef test_d():\n    os._exit(0)\n")
    write_tests(tested_project, "four", "def test_e():\n    raise KeyboardInterrupt\n")
    heavy = "test_one.py\ntest_two.py\ntest_three.py\ntest_four.py\n"
    (tested_project / "tests/heavy_files.txt").write_text(heavy)
    done = bash("bash scripts/test.sh tests/test_{one,three,four}.py tests/test_two.py::test_z", tested_project)
    assert done.stdout.splitlines()[-1] == "2 passed, 3 failed, 0 skipped"
    assert re.search(r"pytest ended without a report for tests/test_three\.py\n", done.stdout)
    assert done.returncode == 1


def test_what_linters_find_fails_too(tested_project: Path) -> None:
    found_by_line = {
        "import uuid  # noqa: E402": "F401",
        "x = {'a':1}": "unformatted: File would be reformatted",
        'NUMBER: int = "no number"': "[assignment]",
        "from model_utils import errors  # noqa: E402, F401": "messages -> model_utils.errors",
    }
    with (tested_project / "model_utils/messages.py").open("a") as file:
        file.write("\n" + "\n".join(found_by_line) + "\n")
    done = bash("bash scripts/test.sh", tested_project)
    assert all(finding in done.stdout for finding in found_by_line.values())
    assert done.stdout.splitlines()[-1] == "2 passed, 0 failed, 1 skipped"
    assert done.returncode == 1


GRAPH = """
import mindspore as ms


class Double(ms.nn.Cell):
    def construct(self, x):
        return 2 * x


def test_graph():
    assert Double()(ms.Tensor(1)) == 2
"""


def test_fast_leaves_out_heavy_files_and_a_graph_elsewhere_is_an_error(tested_project: Path) -> None:
    set_linters(tested_project)
    write_tests(tested_project, "graph", GRAPH)
    done = bash("bash scripts/test.sh --fast", tested_project)
    assert done.stdout.splitlines()[-1] == "2 passed, 1 failed, 1 skipped"
    assert "add test_graph.py to tests/heavy_files.txt" in done.stdout
    (tested_project / "tests/heavy_files.txt").write_text("test_graph.py test_one.py\n")
    for arguments, passed in (("--fast", 0), ("", 3)):
        done = bash(f"bash scripts/test.sh {arguments}", tested_project)
        assert done.stdout.splitlines()[-1] == f"{passed} passed, 0 failed, 1 skipped"
        assert ("\n--- tests/test_graph.py tests/test_one.py\n" in done.stdout) == (passed > 0)
