"""Disturb a pre-training run of two machines, start it again until it ends, and compare what it wrote.

    PYTHONPATH=. python docs/experiments/2026-11-30-network-faults.py DATA_FOLDER OUTPUT [FAULT ...]

As root: two network namespaces with a cable between them, a launcher with one rank in each. DATA_FOLDER holds
pre-training data. Each fault begins after a random share of an undisturbed run's time, and the network is mended when
the job has ended.
"""

import contextlib
import os
import random
import runpy
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

KILLS = runpy.run_path("docs/experiments/2026-11-29-kills.py")
ADDRESSES = ("10.77.0.1", "10.77.0.2")
PORT = 18118
FORBEARANCE = 90  # s after a fault, until a job that goes on counts as undisturbed


class Machines:
    """Two namespaces and a launcher in each."""

    def __init__(self, data: str) -> None:
        self.data = data
        self.launchers: list[subprocess.Popen] = []
        self.ended: dict[int, float] = {}  # monotonic time at which a machine's launcher has ended

    def connect(self) -> None:
        """Make the namespaces and the cable anew."""
        for machine in (0, 1):
            subprocess.run(["ip", "netns", "delete", f"machine{machine}"], capture_output=True, check=False)
            ip(f"netns add machine{machine}")
            ip(f"-n machine{machine} link set lo up")
        ip("link add cable0 netns machine0 type veth peer name cable1 netns machine1")
        for machine, address in enumerate(ADDRESSES):
            ip(f"-n machine{machine} address add {address}/24 dev cable{machine}")
            ip(f"-n machine{machine} link set cable{machine} up")

    def start(self, output: Path) -> None:
        """Start the job, whose logs are appended to OUTPUT-0.log and OUTPUT-1.log."""
        self.connect()
        script = f"run_pretrain.py {KILLS['PRETRAIN'].format(input=self.data, output=output)}".split()
        self.launchers = []
        self.ended = {}
        for machine in (0, 1):
            words = f"scripts/launch.py --worker_num 2 --node_rank {machine} --master_addr {ADDRESSES[0]}"
            words += f" --master_port {PORT} 1 {output}-logs{machine}"
            command = ["ip", "netns", "exec", f"machine{machine}", sys.executable, *words.split(), *script]
            with Path(f"{output}-{machine}.log").open("ab") as log:
                environment = os.environ | {"ALBERT_JOB_KEY": "any", "GLOG_v": "3"}
                self.launchers.append(
                    subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
                )

    def processes(self, machine: int) -> list[int]:
        """Return launcher and ranks (and on machine 0 the scheduler)."""
        return list(KILLS["descendants"](self.launchers[machine].pid))

    def has_ended(self) -> bool:
        """Return True if both launchers have ended; note when."""
        for machine, launcher in enumerate(self.launchers):
            if launcher.poll() is not None:
                self.ended.setdefault(machine, time.monotonic())
        return len(self.ended) == 2

    def wait(self, seconds: float) -> bool:
        """Wait for the end of the job; return True if it came in time."""
        deadline = time.monotonic() + seconds
        while not self.has_ended() and time.monotonic() < deadline:
            time.sleep(0.1)
        return self.has_ended()

    def end(self, pids: list[int]) -> None:
        """Kill what is left of these processes, as a frozen or lost machine is restarted."""
        for pid in pids:
            send(pid, signal.SIGKILL)
        for launcher in self.launchers:
            launcher.wait()


def ip(words: str) -> None:
    """Run ip."""
    subprocess.run(["ip", *words.split()], check=True)


def send(pid: int, number: int) -> None:
    """Send a signal to a process that may have ended."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def kill(machine: int, role: int | None) -> Callable[[Machines], None]:
    """Return a fault: one process of the machine (0: launcher, 1: rank, 2: scheduler) or all (None) are killed."""
    return lambda machines: [send(pid, signal.SIGKILL) for pid in machines.processes(machine)[slice_of(role)]]


def freeze(machine: int, role: int | None, seconds: float = 0) -> Callable[[Machines], None]:
    """Return a fault: the processes stop, for so many seconds or for good."""

    def fault(machines: Machines) -> None:
        pids = machines.processes(machine)[slice_of(role)]
        for pid in pids:
            send(pid, signal.SIGSTOP)
        if seconds:
            time.sleep(seconds)
            for pid in pids:
                send(pid, signal.SIGCONT)

    return fault


def slice_of(role: int | None) -> slice:
    """Return the slice of one process or of all."""
    return slice(None) if role is None else slice(role, role + 1)


def network(*commands: str, seconds: float = 0, undo: tuple[str, ...] = ()) -> Callable[[Machines], None]:
    """Return a fault: commands of ip or tc, after so many seconds undone."""

    def fault(_: Machines) -> None:
        for command in commands:
            subprocess.run(command.split(), check=True)
        if seconds:
            time.sleep(seconds)
            for command in undo:
                subprocess.run(command.split(), check=True)

    return fault


def outage(seconds: float) -> Callable[[Machines], None]:
    """Return a fault: the cable is out for so many seconds."""
    cable = "ip -n machine1 link set cable1"
    return network(f"{cable} down", seconds=seconds, undo=(f"{cable} up",))


def intruders(_: Machines) -> None:
    """Open connections to the rendezvous that say nothing, or nonsense."""
    code = (
        "import socket, time\n"
        f"sockets = [socket.create_connection(('{ADDRESSES[0]}', {PORT + 1})) for _ in range(200)]\n"
        "for each in sockets[::2]:\n"
        "    each.sendall(b'GET / HTTP/1.1' * 99)\n"
        "time.sleep(20)\n"
    )
    subprocess.run(["ip", "netns", "exec", "machine1", sys.executable, "-c", code], check=False)


FAULTS: dict[str, Callable[[Machines], None]] = {
    "cable of machine 1 pulled": network("ip -n machine1 link set cable1 down"),
    "cable of machine 0 pulled": network("ip -n machine0 link set cable0 down"),
    "address of machine 1 taken away": network("ip -n machine1 address flush dev cable1"),
    "address of machine 0 taken away": network("ip -n machine0 address flush dev cable0"),
    "machine 1 sends into a black hole": network(f"ip -n machine1 route add blackhole {ADDRESSES[0]}/32"),
    "machine 0 sends into a black hole": network(f"ip -n machine0 route add blackhole {ADDRESSES[1]}/32"),
    "cable out for 2 s": outage(2),
    "cable out for 5 s": outage(5),
    "cable out for 12 s": outage(12),
    "10 kB/s for 20 s": network(
        "ip netns exec machine1 tc qdisc add dev cable1 root tbf rate 80kbit burst 2k latency 400ms",
        seconds=20,
        undo=("ip netns exec machine1 tc qdisc del dev cable1 root",),
    ),
    "packets of 300 bytes": network("ip -n machine1 link set cable1 mtu 300"),
    "connections closed by force": network(f"ip netns exec machine0 ss -K sport = :{PORT + 1}"),
    "200 intruders at the rendezvous": intruders,
    "machine 1 killed": kill(1, None),
    "machine 0 killed": kill(0, None),
    "machine 1 frozen": freeze(1, None),
    "machine 0 frozen": freeze(0, None),
    "machine 1 frozen for 5 s": freeze(1, None, 5),
    "launcher 1 killed": kill(1, 0),
    "launcher 0 frozen": freeze(0, 0),
    "rank 1 frozen": freeze(1, 1),
    "scheduler killed": kill(0, 2),
}


def main(data: str, output: str, *names: str) -> None:
    """Print a row for each fault, and how many runs ended with the bytes of an undisturbed one."""
    folder = Path(output).resolve()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    machines = Machines(data)
    begin = time.monotonic()
    machines.start(folder / "undisturbed")
    machines.wait(3600)
    undisturbed = time.monotonic() - begin
    if any(launcher.returncode for launcher in machines.launchers):
        raise SystemExit(f"the undisturbed run failed: see {folder}")
    wanted = KILLS["contents"](folder / "undisturbed")
    rng = random.Random(0)
    faults = [name for name in FAULTS if not names or name in names]
    print(
        f"undisturbed: {undisturbed:.0f} s\n| fault | ended after s | exit codes, errors |\n|---|---|---|", flush=True
    )
    runs, equal = 0, 0
    while faults:
        target = folder / f"run{runs}"
        is_complete = False
        while not is_complete:
            machines.start(target)
            if not faults or machines.wait(rng.uniform(0.1, 0.9) * undisturbed):
                machines.wait(3600)
            else:
                disturb(machines, faults.pop(0), target, undisturbed)
            is_complete = not any(launcher.returncode for launcher in machines.launchers)
        runs += 1
        equal += KILLS["contents"](target) == wanted
    print(f"{runs} runs, {equal} the same as the undisturbed one")


def disturb(machines: Machines, name: str, target: Path, undisturbed: float) -> None:
    """Let a fault happen, wait for the end of the job, and print what became of it."""
    pids = [pid for machine in (0, 1) for pid in machines.processes(machine)]
    begin = time.monotonic()
    FAULTS[name](machines)
    machines.wait(FORBEARANCE)
    if not machines.ended:  # the job has overcome it
        machines.wait(10 * undisturbed)
        result = "goes on"
    else:
        result = ", ".join(f"{machines.ended[machine] - begin:.0f}" for machine in sorted(machines.ended))
    codes = [launcher.poll() for launcher in machines.launchers]
    machines.end(pids)
    sentences = []
    for machine, code in enumerate(codes):
        lines = Path(f"{target}-{machine}.log").read_text(errors="replace").splitlines()
        errors = [line for line in lines[-3:] if line.startswith("error: ")]
        sentences.append(f"{machine}: {code} {errors[-1] if code and errors else ''}")
    print(f"| {name} | {result} | {'; '.join(sentences)} |", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
