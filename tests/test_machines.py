"""Jobs of two machines: network namespaces with addresses of their own, a launcher in each, and what goes wrong."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import run_pretrain
from model_utils.rendezvous import KEY
from tests.conftest import ROOT
from tests.helpers.pretraining_run import (
    SHORT_RUN,
    assert_logs_of_ranks_and_one_agree,
    config_of,
    flags_of,
    write_pretraining_data,
)

ADDRESSES = ("10.77.0.1", "10.77.0.2")


@pytest.fixture
def namespaces() -> Iterator[tuple[str, str]]:
    """Names of two network namespaces with a cable between them."""
    if os.geteuid() or not shutil.which("ip"):
        pytest.skip("network namespaces need root and iproute2's ip")
    names = (f"albert-{os.getpid()}-0", f"albert-{os.getpid()}-1")
    if subprocess.run(["ip", "netns", "add", names[0]], capture_output=True, check=False).returncode:
        pytest.skip("this system does not allow network namespaces")
    try:
        ip("netns", "add", names[1])
        ip("link", "add", "cable0", "netns", names[0], "type", "veth", "peer", "name", "cable1", "netns", names[1])
        for index, (name, address) in enumerate(zip(names, ADDRESSES, strict=True)):
            ip("-n", name, "address", "add", f"{address}/24", "dev", f"cable{index}")
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", name, "link", "set", f"cable{index}", "up")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


def start_machines(
    launch: Path, folder: Path, address: str, script: list, prefixes: list[list[str]]
) -> list[subprocess.Popen]:
    """Start a launcher with two ranks on each of two machines; the logs are in folder/0 and folder/1."""
    port = str(18118 + 2 * (os.getpid() % 5000))
    launchers = []
    for index, prefix in enumerate(prefixes):
        logs = folder / str(index)
        options = ["--worker_num", "4", "--node_rank", str(index)]
        options += ["--master_addr", address, "--master_port", port]
        command = [*prefix, sys.executable, launch, *options, "2", logs, *script]
        environment = os.environ | {KEY: "a secret", "GLOG_v": "3"}
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True
        )
        launchers.append(process)
    return launchers


def test_two_machines_pretrain_as_one_process(tmp_path: Path, namespaces: tuple[str, str]) -> None:
    data = write_pretraining_data(tmp_path)
    run, alone = tmp_path / "run", tmp_path / "alone"
    length = SHORT_RUN | {"batch_size": 4, "global_batch_size": 32}
    script = [ROOT / "run_pretrain.py", *flags_of(data, run, **length, threads=1)]
    prefixes = [["ip", "netns", "exec", name] for name in namespaces]
    launchers = start_machines(ROOT / "scripts/launch.py", tmp_path / "logs", ADDRESSES[0], script, prefixes)
    try:
        for launcher in launchers:
            output, errors = launcher.communicate(timeout=300)
            assert launcher.returncode == 0, output + errors
    finally:
        for launcher in launchers:
            launcher.kill()
    run_pretrain.main(config_of(data, alone, **length))
    assert_logs_of_ranks_and_one_agree(run, alone, 8)


# --- faults ---

MEETING = """
import os, sys, time
from model_utils.config import run_main
from model_utils.rendezvous import ADDRESS, KEY, RendezvousClient
host, port = os.environ[ADDRESS].split(":")
rank = int(os.environ["RANK_ID"])
client = RendezvousClient((host, int(port)), os.environ[KEY].encode(), launcher=os.getppid())
for barrier in range(1, 1000):
    try:
        client.exchange(rank, barrier, "a meeting", b"", 60)
    except Exception as error:
        sys.exit(f"error: {error}")
    print("met", barrier, flush=True)
    time.sleep(0.05)
"""


@pytest.fixture
def impatient_launch(tmp_path: Path) -> Path:
    """A launcher that counts a machine as lost after 3 s; its ranks need no scheduler."""
    project = tmp_path / "project"
    for name in ("scripts", "model_utils"):
        shutil.copytree(ROOT / name, project / name)
    rendezvous = project / "model_utils/rendezvous.py"
    job = project / "model_utils/job.py"
    rendezvous.write_text(re.sub(r"SILENCE = \d+", "SILENCE = 3", rendezvous.read_text()))
    text = re.sub(r"GRACE = [\d.]+", "GRACE = 1.0", job.read_text())
    job.write_text(re.sub("SCHEDULER = .*", 'SCHEDULER = ["sleep", "120"]', text))
    (project / "meeting.py").write_text(MEETING)
    return project / "scripts/launch.py"


def wait_for_meetings(folder: Path) -> None:
    logs = [folder / f"{rank // 2}/worker_{rank}.log" for rank in range(4)]
    end = time.monotonic() + 60
    while not all(log.exists() and "met 5" in log.read_text() for log in logs):
        assert time.monotonic() < end
        time.sleep(0.1)


def pids_of(launcher: subprocess.Popen) -> list[int]:
    """Return the process ids of a launcher's ranks."""
    children = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split()
    return [int(pid) for pid in children][:2]


def kill_launcher(launcher: subprocess.Popen) -> None:
    launcher.kill()


def kill_rank(launcher: subprocess.Popen) -> None:
    os.kill(pids_of(launcher)[0], signal.SIGKILL)


def freeze(launcher: subprocess.Popen) -> None:
    for pid in (launcher.pid, *pids_of(launcher)):
        os.kill(pid, signal.SIGSTOP)


@pytest.mark.parametrize(
    ("fault", "machine", "sentence"),
    [
        (kill_rank, 0, "rank 0 failed: killed by SIGKILL"),
        (kill_rank, 1, "rank 2 failed: killed by SIGKILL"),
        (kill_launcher, 0, "the first machine"),
        (freeze, 0, "the first machine"),
        (freeze, 1, "machine 1 has not answered"),
    ],
)
def test_a_machine_that_fails_ends_the_job_on_the_other(
    tmp_path: Path, impatient_launch: Path, fault: Callable, machine: int, sentence: str
) -> None:
    script = [impatient_launch.parents[1] / "meeting.py"]
    launchers = start_machines(impatient_launch, tmp_path / "logs", "127.0.0.1", script, [[], []])
    failed, other = launchers[machine], launchers[1 - machine]
    try:
        wait_for_meetings(tmp_path / "logs")
        failed_ranks, other_ranks = pids_of(failed), pids_of(other)
        fault(failed)
        _, errors = other.communicate(timeout=30)
        assert other.returncode not in (0, None)
        assert re.search(f"^error: .*{sentence}", errors, re.MULTILINE), errors
        assert not any(Path(f"/proc/{pid}").exists() for pid in other_ranks)
        if fault is freeze:
            for pid in (failed.pid, *failed_ranks):
                os.kill(pid, signal.SIGCONT)
        failed.communicate(timeout=30)
        assert failed.returncode not in (0, None)
    finally:
        for launcher in launchers:
            launcher.kill()


def test_a_pulled_cable_ends_the_job_on_both_machines(
    tmp_path: Path, impatient_launch: Path, namespaces: tuple[str, str]
) -> None:
    script = [impatient_launch.parents[1] / "meeting.py"]
    prefixes = [["ip", "netns", "exec", name] for name in namespaces]
    launchers = start_machines(impatient_launch, tmp_path / "logs", ADDRESSES[0], script, prefixes)
    try:
        wait_for_meetings(tmp_path / "logs")
        ip("-n", namespaces[1], "link", "set", "cable1", "down")
        for launcher, sentence in zip(launchers, ("machine 1 has not", "the first machine"), strict=True):
            _, errors = launcher.communicate(timeout=40)
            assert launcher.returncode not in (0, None) and sentence in errors.splitlines()[-1], errors
    finally:
        for launcher in launchers:
            launcher.kill()


def launch_first_of_two(address: str, environment: dict[str, str]) -> subprocess.CompletedProcess:
    command = [sys.executable, ROOT / "scripts/launch.py", "--worker_num", "2", "--node_rank", "0"]
    command += ["--master_addr", address, "--master_port", "28118", "1", "logs", "script.py"]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def test_several_machines_need_a_secret() -> None:
    environment = {name: value for name, value in os.environ.items() if name != KEY}
    done = launch_first_of_two(socket.gethostname(), environment)
    assert done.returncode == 2 and KEY in done.stderr


def test_a_name_of_this_machine_alone_is_no_address_for_others() -> None:
    done = launch_first_of_two("localhost", os.environ | {KEY: "any"})
    assert done.returncode == 2 and "master_addr is localhost, here 127.0.0.1" in done.stderr
