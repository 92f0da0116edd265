"""Start a script in one process a device of this machine and end them together.

usage: python scripts/launch.py PROCESSES LOGS SCRIPT [ARGUMENTS...]

They find each other as MindSpore's dynamic clusters do: a scheduler process, and environment variables. Rank 0's
output is shown, everybody's is kept in LOGS. SIGTERM, Ctrl-C and the end of the terminal (SIGHUP, unless nohup has it
ignored) are handed to the ranks, which save and exit. When a rank fails, the others learn it (src/training/ranks.py)
and are given GRACE seconds to end; the last line names the rank and its reason. MindSpore's msrun kills the others at
once, even the one that saves, and ends in a traceback.
"""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import FrameType
from typing import TextIO

GRACE = 60.0  # s that ranks have to end after one that failed; longer than a CPU's collective waits for it
START = 600  # s that they have to find each other, as msrun gives them
SCHEDULER = [sys.executable, "-P", "-c", "from mindspore import communication; communication.init()"]
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
STOPPED = (128 + signal.SIGTERM, 128 + signal.SIGINT)  # exit codes of a rank that saved because it was asked to stop


class Job:
    """The processes of one start.

    Args:
        size: how many ranks. logs: folder of their output. command: what each of them runs.
        folder: where they meet, and learn which of them have ended.
    """

    def __init__(self, size: int, logs: Path, command: list[str], folder: Path) -> None:
        self.size, self.logs, self.command, self.folder = size, logs, command, folder
        self.processes: list[subprocess.Popen] = []  # the ranks in their order, then the scheduler
        self.stop = 0  # the signal that the ranks were sent

    @property
    def workers(self) -> list[subprocess.Popen]:
        """The ranks."""
        return self.processes[: self.size]

    def log_of(self, rank: int | str) -> Path:
        """Where a rank's output is kept."""
        return self.logs / f"worker_{rank}.log"

    def start(self) -> None:
        """Start all of them."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        common = {
            "MS_WORKER_NUM": self.size,
            "MS_SCHED_HOST": "127.0.0.1",
            "MS_SCHED_PORT": port,
            "MS_TOPO_TIMEOUT": START,
            "RANK_SIZE": self.size,
            "ALBERT_RANKS_FOLDER": self.folder,
            "ALBERT_LAUNCHER": os.getpid(),
        }
        for rank in range(self.size):
            numbers = {"MS_NODE_ID": rank, "RANK_ID": rank, "DEVICE_ID": rank}
            self._start(self.log_of(rank), {**common, **numbers, "MS_ROLE": "MS_WORKER"}, self.command)
        self._start(self.logs / "scheduler.log", {**common, "MS_ROLE": "MS_SCHED"}, SCHEDULER)

    def _start(self, path: Path, environment: dict[str, object], command: list[str]) -> None:
        variables = os.environ | {key: str(value) for key, value in environment.items()}
        with path.open("wb") as log:
            # In sessions of their own: a terminal's Ctrl-C reaches them through this process alone.
            self.processes.append(
                subprocess.Popen(command, env=variables, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
            )

    def ask_to_stop(self, number: int, _: FrameType | None = None) -> None:
        """Hand a signal on to every rank that runs."""
        self.stop = number
        # Both the system and a shell send it at a terminal's end, and a rank that is asked twice does not save.
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        for worker in self.workers:
            if worker.poll() is None:
                worker.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End what still runs."""
        for process in self.processes:
            if process.poll() is None:
                process.kill()
                process.wait()

    def wait(self) -> int:
        """Show what rank 0 says until all have ended: the exit code of the whole."""
        failed, reason, deadline, running = -1, "", float("inf"), True
        with self.log_of(0).open("rb") as shown:
            while running:
                codes = [worker.poll() for worker in self.workers]
                running = None in codes
                show(sys.stdout, shown.read())
                for rank, code in enumerate(codes):
                    if code is not None:
                        (self.folder / f"ended-{rank}").touch()
                bad = [rank for rank, code in enumerate(codes) if self.is_failure(code)]
                if bad and failed < 0:
                    # Of several at once, one that has a sentence: the others may have ended because of it.
                    failed = max(bad, key=lambda rank: bool(self.sentences_of(rank)))
                    reason, deadline = self.reason_of(failed), time.monotonic() + GRACE
                if time.monotonic() > deadline:
                    self.kill()
                time.sleep(0.1 * running)
        if failed >= 0:
            last = f"error: rank {failed} failed: {reason} (its output: {self.log_of(failed)})\n"
            show(sys.stderr, last.encode(errors="replace"))
            return exit_code(self.workers[failed].returncode)
        return 128 + self.stop if self.stop and any(codes) else max(codes)

    def is_failure(self, code: int | None) -> bool:
        """Whether a rank with this code ended neither well nor because it was asked to; None: it runs."""
        killed_as_asked = self.stop and code == -signal.SIGTERM
        return code not in (None, 0, *STOPPED) and not killed_as_asked

    def sentences_of(self, rank: int) -> list[str]:
        """The errors that a rank printed as sentences."""
        lines = self.log_of(rank).read_text(errors="replace").splitlines()
        return [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]

    def reason_of(self, rank: int) -> str:
        """Why a rank ended: its sentence, else the signal that killed it, else its exception."""
        code = self.workers[rank].returncode
        if sentences := self.sentences_of(rank):
            return sentences[-1]
        if code < 0:
            killer = " (as the system does when memory is used up)" if code == -signal.SIGKILL else ""
            return f"killed by {signal.Signals(-code).name}{killer}"
        _, traceback, lines = (
            self.log_of(rank).read_text(errors="replace").rpartition("Traceback (most recent call last):")
        )
        exceptions = [line for line in lines.splitlines() if line[:1].strip()]  # the first line that is not indented
        return exceptions[0] if traceback and exceptions else f"exit code {code}"


def show(stream: TextIO, output: bytes) -> None:
    """Add to this process's output. Once nobody reads it (a closed terminal, `| tee` after Ctrl-C), logs have it."""
    try:
        stream.buffer.write(output)
        stream.flush()
    except OSError:  # not a reason to end ranks that train or save
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def exit_code(code: int) -> int:
    """A process's return code as a shell gives it on."""
    return code if code >= 0 else 128 - code


def main() -> int:
    """Run it; the exit code is 0, that of the first rank that failed, or 128 + the signal that all were stopped by."""
    size, logs, command = int(sys.argv[1]), Path(sys.argv[2]), [sys.executable, *sys.argv[3:]]
    with tempfile.TemporaryDirectory(prefix="albert-ranks-") as folder:
        job = Job(size, logs, command, Path(folder))
        for number in SIGNALS:
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, job.ask_to_stop)
        try:
            job.start()
            if job.stop:  # asked while they were started: some were not there yet
                job.ask_to_stop(job.stop)
            return job.wait()
        finally:
            job.kill()


if __name__ == "__main__":
    sys.exit(main())
