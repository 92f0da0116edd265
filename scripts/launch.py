"""Launcher of distributed runs: one process (rank) per device of this machine, started and ended together.

The ranks form one of MindSpore's dynamic clusters, with a scheduler process and environment variables. Rank 0's output
is shown; the output of all is kept in LOGS. SIGTERM, Ctrl-C and the end of the terminal (SIGHUP, unless nohup ignores
it) are forwarded to the ranks, which save and exit. When a rank fails, the others notice (src/training/ranks.py) and
have GRACE seconds to end; the last line names the rank and its reason. A rank that is paused (SIGSTOP) for PAUSED
seconds while another runs counts as failed. When the scheduler fails, the ranks are asked to stop.

MindSpore's own msrun is not used: it kills the other ranks at once, even one that saves, and ends in a traceback.
"""

import argparse
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

GRACE = 12.0  # s that ranks have to end after one that failed; checkpoints not complete by then are lost
PAUSED = 15.0  # s that a rank may be paused; GRACE + PAUSED must stay below the 30 s timeout of a CPU's collective
POLL_INTERVAL = 0.1  # s between two looks at the ranks
SHOWN = 5.0  # s to wait for a slow reader of the output before the failure is reported
SIGNAL_WAIT = 0.5  # s after which a rank that received the signal itself has logged STOP_MESSAGE
STOP_MESSAGE = b"asked to stop"  # logged by src/training/stop_signals.py
START_TIMEOUT = 600  # s for the cluster to form, the default of msrun
SCHEDULER = [sys.executable, "-P", "-c", "from mindspore import communication; communication.init()"]
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
STOPPED = tuple(128 + number for number in SIGNALS)  # exit codes of a rank that saved because it was asked to stop


@dataclass(frozen=True)
class JobProcess:
    """A rank or the scheduler.

    Args:
        name: used in messages.
        log: file of its output.
        process: handle of the started process.
    """

    name: str
    log: Path
    process: subprocess.Popen

    def stops(self) -> bool:
        """Return True if it has logged that it was asked to stop."""
        return STOP_MESSAGE in self.log.read_bytes()

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
    """Processes of one launch.

    Args:
        size: number of ranks.
        logs: folder of their output.
        command: command line of every rank.
        folder: shared folder for barriers (src/training/ranks.py) and the marks of ended ranks.
    """

    def __init__(self, size: int, logs: Path, command: list[str], folder: Path) -> None:
        self.size, self.logs, self.command, self.folder = size, logs, command, folder
        self.processes: list[JobProcess] = []  # the ranks in their order, then the scheduler
        self.stop = 0  # the signal by which the ranks were asked to stop
        self.requests = 0  # number of signals received
        self.ended = threading.Event()  # set when all ranks have ended
        self.pauses: dict[JobProcess, float] = {}  # s that ranks have been paused while others run
        self.paused: list[JobProcess] = []  # ranks killed because they were paused too long

    def start(self) -> None:
        """Start the ranks and the scheduler."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        common = {
            "MS_WORKER_NUM": self.size,
            "MS_SCHED_HOST": "127.0.0.1",
            "MS_SCHED_PORT": port,
            "MS_TOPO_TIMEOUT": START_TIMEOUT,
            "RANK_SIZE": self.size,
            "ALBERT_RANKS_FOLDER": self.folder,
            "ALBERT_LAUNCHER": os.getpid(),
        }
        for rank in range(self.size):
            numbers = {"MS_NODE_ID": rank, "RANK_ID": rank, "DEVICE_ID": rank}
            environment = {**common, **numbers, "MS_ROLE": "MS_WORKER"}
            self._start(f"rank {rank}", f"worker_{rank}.log", environment, self.command)
        self._start("the scheduler", "scheduler.log", {**common, "MS_ROLE": "MS_SCHED"}, SCHEDULER)

    def _start(self, name: str, log: str, environment: dict[str, object], command: list[str]) -> None:
        """Start one process with its log and additional environment variables."""
        variables = os.environ | {key: str(value) for key, value in environment.items()}
        with (self.logs / log).open("wb") as output:
            # A new session, so that a terminal's Ctrl-C reaches it only through this process.
            process = subprocess.Popen(
                command, env=variables, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
            )
        self.processes.append(JobProcess(name, self.logs / log, process))

    def ask_to_stop(self, number: int, _: FrameType | None = None) -> None:
        """Forward a signal to every running rank; the first signal only to ranks that have not received it themselves.

        A rank that is asked twice does not save, and systemd or Slurm may signal all processes of a job.
        """
        is_first = not self.stop
        self.stop = number
        self.requests += 1
        # At the end of a terminal both the system and the shell send SIGHUP; the second one must not end the save.
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        if is_first:
            time.sleep(SIGNAL_WAIT)
            if self.requests > 1:  # a second signal came meanwhile and was forwarded to all ranks
                return
        for rank in self.processes[: self.size]:
            if rank.process.poll() is None and not (is_first and rank.stops()):
                rank.process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill all processes that still run."""
        for job_process in self.processes:
            if job_process.process.poll() is None:
                job_process.process.kill()
                job_process.process.wait()

    def wait(self) -> int:
        """Show rank 0's output until all ranks have ended; return the exit code of the job."""
        # In a thread, so that a reader that does not read (`| less`) does not block the watch over the ranks.
        output_thread = threading.Thread(target=self.show_first_rank, daemon=True)
        output_thread.start()
        try:
            failed = self.watch()
        finally:
            self.ended.set()
        output_thread.join(SHOWN)
        if failed is None:
            codes = [rank.process.returncode for rank in self.processes[: self.size]]
            code = 128 + self.stop if self.stop and any(codes) else max(codes)
        else:
            code = failed.process.returncode
            reason = f"did not answer for {PAUSED:g} s (paused)" if failed in self.paused else failed.reason()
            message = f"error: {failed.name} failed: {reason} (its output: {failed.log})\n"
            write(sys.stderr.fileno(), message.encode(errors="replace"))
        while output_thread.is_alive() and not self.stop:
            output_thread.join(0.1)
        return exit_code(code)

    def watch(self) -> JobProcess | None:
        """Wait until all ranks have ended; return the first process that failed, or None."""
        ranks = self.processes[: self.size]
        scheduler = self.processes[self.size]
        failed = None
        deadline = float("inf")
        running = True
        while running:
            self.end_paused()
            codes = [rank.process.poll() for rank in ranks]
            running = None in codes
            for number, code in enumerate(codes):
                if code is not None:
                    (self.folder / f"ended-{number}").touch()
            failures = [rank for rank, code in zip(ranks, codes, strict=True) if self.is_failure(code)]
            # Only while all ranks run: afterwards the scheduler may fail because ranks have ended.
            all_running = codes == [None] * self.size
            if all_running and failed is None and not self.stop and scheduler.process.poll():
                failures = [scheduler]
                self.ask_to_stop(signal.SIGTERM)
            if failures and failed is None:
                # Of several at once, one with an error sentence: the others may have ended because of it.
                failed = max(failures, key=lambda failure: (failure in self.paused, bool(failure.errors())))
                deadline = time.monotonic() + GRACE
            if time.monotonic() > deadline:
                self.kill()
            if running:
                time.sleep(POLL_INTERVAL)
        return failed

    def end_paused(self) -> None:
        """Kill the ranks that have been paused too long while another runs.

        The polls are counted instead of time, because a machine or batch system may pause this process with its ranks.
        """
        running = [rank for rank in self.processes[: self.size] if rank.process.poll() is None]
        paused = [rank for rank in running if rank.is_paused()]
        if len(paused) == len(running):
            paused = []
        self.pauses = {rank: self.pauses.get(rank, 0.0) + POLL_INTERVAL for rank in paused}
        for rank, seconds in self.pauses.items():
            if seconds > PAUSED:
                rank.process.kill()
                rank.process.wait()
                self.paused.append(rank)

    def show_first_rank(self) -> None:
        """Copy rank 0's log to this process's stdout until all ranks have ended."""
        ended = False
        with self.processes[0].log.open("rb") as log:
            while not ended:
                ended = self.ended.wait(0.1)
                write(sys.stdout.fileno(), log.read())

    def is_failure(self, code: int | None) -> bool:
        """Return True if this exit code is an error and no consequence of a stop request; None (running) is neither."""
        killed_on_request = self.stop and code == -signal.SIGTERM
        return code not in (None, 0, *STOPPED) and not killed_on_request


def write(stream: int, output: bytes) -> None:
    """Write to an open file; if its reader is gone (a closed terminal, `| tee` after Ctrl-C), drop the output."""
    try:
        while output:
            output = output[os.write(stream, output) :]
    except OSError:  # must not end ranks that train or save; the logs have the output
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)


def exit_code(code: int) -> int:
    """Return a process's return code as a shell reports it."""
    return code if code >= 0 else 128 - code


def main() -> int:
    """Run the job; return 0, the code of the first rank that failed, or 128 + the signal that stopped the ranks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("processes", type=int, help="number of ranks, one per device")
    parser.add_argument("logs", type=Path, help="folder for their output")
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="script [argument ...]")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="albert-ranks-") as folder:
        job = Job(arguments.processes, arguments.logs, [sys.executable, *arguments.command], Path(folder))
        for number in SIGNALS:
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, job.ask_to_stop)
        try:
            job.start()
            if job.stop:  # a signal during the start: ranks started later have not received it
                job.ask_to_stop(job.stop)
            return job.wait()
        finally:
            job.kill()


if __name__ == "__main__":
    sys.exit(main())
