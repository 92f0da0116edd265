"""A distributed job on one machine: its ranks, started, watched and ended together by scripts/launch.py.

The ranks form one of MindSpore's dynamic clusters, with a scheduler process and environment variables. Rank 0's output
is shown; the output of all is kept in a folder. SIGTERM, Ctrl-C and the end of the terminal (SIGHUP, unless nohup
ignores it) are forwarded to the ranks, which save and exit. When a rank fails, the others notice
(src/training/ranks.py) and have GRACE seconds to end; the last line names the rank and its reason. A rank that is
paused (SIGSTOP) for MAX_PAUSE seconds while another runs counts as failed.

A job of several machines has a launcher on each (model_utils/job_machines.py). That of the first machine runs the
scheduler and the rendezvous, to which all report (model_utils/rendezvous.py); a failure on one machine ends all.
MindSpore's own msrun is not used: it kills the other ranks at once, even one that saves, and ends in a traceback.
"""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from model_utils.errors import UserError
from model_utils.job_machines import LOCAL_SIZE, Machine
from model_utils.rendezvous import ADDRESS, KEY, LAUNCHER, SILENCE, Rendezvous, RendezvousClient, RendezvousServer

GRACE = 12.0  # s that ranks have to end after one that failed; checkpoints not complete by then are lost
# s; GRACE + MAX_PAUSE must stay below the 30 s after which a CPU's collective fails: its error would hide the reason
MAX_PAUSE = 15.0
POLL_INTERVAL = 0.1  # s between two looks at the ranks and reports to the first machine
READER_WAIT = 5.0  # s to wait for a slow reader of the output before the failure is reported
SIGNAL_WAIT = 0.5  # s after which a rank that received the signal itself has logged STOP_MESSAGE
STOP_MESSAGE = b"asked to stop"  # logged by src/training/stop_signals.py
START_TIMEOUT = 600  # s for all machines to join, and then for MindSpore's cluster to form; the default of msrun
SCHEDULER = [sys.executable, "-P", "-c", "from mindspore import communication; communication.init()"]
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
SAVED_CODES = tuple(128 + number for number in SIGNALS)  # exit codes of a rank that saved after a stop request


@dataclass(frozen=True)
class JobProcess:
    """A rank or the scheduler, with its name for messages and the file of its output."""

    name: str
    log: Path
    process: subprocess.Popen

    def errors(self) -> list[str]:
        """Return the error sentences in its log."""
        lines = self.log.read_text(errors="replace").splitlines()
        return [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]

    def is_paused(self) -> bool:
        """Return True if a signal has stopped the process; a debugger's stop has another state letter."""
        try:
            state = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2]
        except OSError:
            return False
        return state.split()[:1] == ["T"]

    def reason(self) -> str:
        """Return why it ended: its last error sentence, else the signal that killed it, else its exception."""
        code = self.process.returncode
        if errors := self.errors():
            return errors[-1]
        if code < 0:
            killer = " (as the system does when memory is used up)" if code == -signal.SIGKILL else ""
            return f"killed by {signal.Signals(-code).name}{killer}"
        _, traceback, lines = self.log.read_text(errors="replace").rpartition("Traceback (most recent call last):")
        exceptions = [line for line in lines.splitlines() if line[:1].strip()]  # the first line that is not indented
        return exceptions[0] if traceback and exceptions else f"exit code {code}"


class Job:
    """Processes of a job on this machine: ranks that run `command`, and on the first machine the scheduler.

    Args:
        logs: folder of their output.
        key: secret of the job, the same on all machines.
    """

    def __init__(self, machine: Machine, logs: Path, command: list[str], key: str) -> None:
        self.machine = machine
        self.logs = logs
        self.command = command
        self.key = key
        self.address = ""  # of the first machine
        self.rendezvous_port = machine.port + 1 if machine.port else 0
        self.rendezvous: Rendezvous | RendezvousClient  # of the first machine: its own object, or a connection to it
        self.ranks: list[JobProcess] = []
        self.scheduler: JobProcess | None = None  # on the first machine
        self.stop_signal = 0  # the signal by which the ranks were asked to stop
        self.signal_count = 0  # number of signals received
        self.paused_seconds: dict[JobProcess, float] = {}  # of ranks that are paused while others run
        self.killed_in_pause: list[JobProcess] = []  # ranks that were paused too long
        self.all_ended = threading.Event()  # set when all ranks have ended
        self.failed: JobProcess | None = None  # the first process of this machine that failed
        self.failure_elsewhere = ""  # why the job has failed on another machine

    def join(self) -> None:
        """Meet the other machines at the rendezvous, which the first one starts; raise UserError if that fails."""
        machine = self.machine
        key = self.key.encode()
        if machine.index == 0:
            self.rendezvous = Rendezvous(machine.size, machine.local_size)
            host = "127.0.0.1" if machine.count == 1 else "0.0.0.0"
            self.rendezvous_port = RendezvousServer(self.rendezvous, (host, self.rendezvous_port), key).address[1]
        else:
            self.rendezvous = RendezvousClient((machine.address, self.rendezvous_port), key, START_TIMEOUT)
        try:
            self.address = socket.gethostbyname(machine.address)
        except OSError as error:
            raise UserError(f"the name of the first machine, {machine.address}, is not known: {error}") from error
        if machine.count > 1 and self.address.startswith("127.") and machine.address != self.address:
            found = f"master_addr is {machine.address}, here {self.address}, which other machines do not reach"
            raise UserError(f"{found}: give the first machine's address in their network")
        self.rendezvous.join(machine.index, machine.size, machine.local_size, START_TIMEOUT)

    def start(self) -> None:
        """Start the ranks and, on the first machine, the scheduler."""
        machine = self.machine
        with socket.create_server(("127.0.0.1", 0)) as free:
            free_port = free.getsockname()[1]
        common = {
            "MS_WORKER_NUM": machine.size,
            "MS_SCHED_HOST": self.address,
            "MS_SCHED_PORT": machine.port or free_port,
            "MS_TOPO_TIMEOUT": START_TIMEOUT,
            "RANK_SIZE": machine.size,
            LOCAL_SIZE: machine.local_size,
            LAUNCHER: os.getpid(),
            ADDRESS: f"{self.address}:{self.rendezvous_port}",
            KEY: self.key,
        }
        for device, rank in enumerate(machine.ranks):
            numbers = {"MS_NODE_ID": rank, "RANK_ID": rank, "DEVICE_ID": device, "MS_ROLE": "MS_WORKER"}
            self.ranks.append(self._start(f"rank {rank}", f"worker_{rank}.log", common | numbers, self.command))
        if machine.index == 0:
            environment = common | {"MS_ROLE": "MS_SCHED"}
            self.scheduler = self._start("the scheduler", "scheduler.log", environment, SCHEDULER)

    def _start(self, name: str, log: str, environment: dict[str, object], command: list[str]) -> JobProcess:
        """Start one process with its log and additional environment variables."""
        variables = os.environ | {key: str(value) for key, value in environment.items()}
        with (self.logs / log).open("wb") as output:
            # A new session, so that a terminal's Ctrl-C reaches it only through this process.
            process = subprocess.Popen(
                command, env=variables, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
            )
        return JobProcess(name, self.logs / log, process)

    def ask_to_stop(self, number: int, _: FrameType | None = None) -> None:
        """Forward a signal to every running rank; the first signal only to ranks that have not received it themselves.

        A rank that is asked twice does not save, and systemd or Slurm may signal all processes of a job.
        """
        is_first = not self.stop_signal
        self.stop_signal = number
        self.signal_count += 1
        # At the end of a terminal both the system and the shell send SIGHUP; the second one must not end the save.
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        if is_first:
            time.sleep(SIGNAL_WAIT)
            if self.signal_count > 1:  # a second signal came meanwhile and was forwarded to all ranks
                return
        for rank in self.ranks:
            if rank.process.poll() is None and not (is_first and STOP_MESSAGE in rank.log.read_bytes()):
                rank.process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill all processes that still run."""
        for job_process in (*self.ranks, self.scheduler):
            if job_process and job_process.process.poll() is None:
                job_process.process.kill()
                job_process.process.wait()

    def wait(self) -> int:
        """Show rank 0's output until all ranks have ended; return the exit code of the job."""
        # In a thread, so that a reader that does not read (`| less`) does not block the watch over the ranks.
        output_thread = threading.Thread(target=self.show_first_rank, daemon=True)
        output_thread.start()
        try:
            codes = self.watch()
        finally:
            self.all_ended.set()
        output_thread.join(READER_WAIT)
        message = self.failure_elsewhere
        if message:
            code = next(filter(None, codes), 1)
        elif self.failed:
            code = self.failed.process.returncode
            message = f"{self.failed.name} failed: {self.reason(self.failed)} (its output: {self.failed.log})"
        else:
            code = max(codes)
            if self.stop_signal and any(codes):
                code = 128 + self.stop_signal
        if message:
            write(sys.stderr.fileno(), f"error: {message}\n".encode(errors="replace"))
        while output_thread.is_alive() and not self.stop_signal:
            output_thread.join(0.1)
        return code if code >= 0 else 128 - code  # as a shell reports a signal

    def watch(self) -> list[int]:
        """Wait until all ranks have ended, some of them killed after a failure on any machine; return their codes."""
        deadline = float("inf")
        codes = self.poll()
        while None in codes:
            if (self.failed or self.failure_elsewhere) and deadline == float("inf"):
                deadline = time.monotonic() + GRACE
            if time.monotonic() > deadline:
                self.kill()
            else:
                time.sleep(POLL_INTERVAL)
            codes = self.poll()
        if isinstance(self.rendezvous, Rendezvous):  # other machines still need it
            has_ended_early = self.failed or self.failure_elsewhere or self.stop_signal
            end = time.monotonic() + (2 * SILENCE if has_ended_early else START_TIMEOUT)
            while self.rendezvous.has_running_ranks() and time.monotonic() < end:
                self.poll()
                time.sleep(POLL_INTERVAL)
        return [rank.process.returncode for rank in self.ranks]

    def poll(self) -> list[int | None]:
        """Return the exit codes of the ranks, None while they run; notice failures and report to the first machine."""
        self.end_paused()
        codes = [rank.process.poll() for rank in self.ranks]
        failures = [rank for rank, code in zip(self.ranks, codes, strict=True) if self.is_failure(code)]
        # Only while all ranks run: afterwards the scheduler may fail because ranks have ended.
        is_running = codes == [None] * len(codes) and not (self.failed or self.stop_signal)
        if is_running and self.scheduler and self.scheduler.process.poll():
            failures = [self.scheduler]
            self.ask_to_stop(signal.SIGTERM)
        if failures and not self.failed:
            # Of several at once, one with an error sentence: the others may have ended because of it.
            self.failed = max(failures, key=lambda failure: (failure in self.killed_in_pause, bool(failure.errors())))
        ended_ranks = {}
        for rank, process, code in zip(self.machine.ranks, self.ranks, codes, strict=True):
            if code is not None:
                ended_ranks[rank] = self.reason(process) if process in failures else ""
        if isinstance(self.rendezvous, Rendezvous):
            self.rendezvous.count_silence(POLL_INTERVAL)
        failure = self.rendezvous.report(self.machine.index, ended_ranks)
        self.failure_elsewhere = self.failure_elsewhere or failure
        return codes

    def reason(self, failed: JobProcess) -> str:
        """Return why a process failed."""
        if failed in self.killed_in_pause:
            return f"did not answer for {MAX_PAUSE:g} s (paused)"
        return failed.reason()

    def end_paused(self) -> None:
        """Kill the ranks that have been paused too long while another runs.

        The polls are counted instead of time, because a machine or batch system may pause this process with its ranks.
        """
        running = [rank for rank in self.ranks if rank.process.poll() is None]
        paused = [rank for rank in running if rank.is_paused()]
        if len(paused) == len(running) and self.machine.count == 1:
            paused = []
        self.paused_seconds = {rank: self.paused_seconds.get(rank, 0.0) + POLL_INTERVAL for rank in paused}
        for rank, seconds in self.paused_seconds.items():
            if seconds > MAX_PAUSE:
                rank.process.kill()
                rank.process.wait()
                self.killed_in_pause.append(rank)

    def show_first_rank(self) -> None:
        """Copy the log of this machine's first rank to this process's stdout until all its ranks have ended."""
        is_over = False
        with self.ranks[0].log.open("rb") as log:
            while not is_over:
                is_over = self.all_ended.wait(0.1)
                write(sys.stdout.fileno(), log.read())

    def is_failure(self, code: int | None) -> bool:
        """Return True if this exit code is an error that no stop request caused; None means that it still runs."""
        killed_on_request = self.stop_signal and code == -signal.SIGTERM
        return code not in (None, 0, *SAVED_CODES) and not killed_on_request


def write(stream: int, output: bytes) -> None:
    """Write to an open file; if its reader is gone (a closed terminal, `| tee` after Ctrl-C), drop the output."""
    try:
        while output:
            output = output[os.write(stream, output) :]
    except OSError:  # must not end ranks that train or save; the logs have the output
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
