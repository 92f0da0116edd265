"""Start a script in one process a device of this machine and end them together.

They find each other as MindSpore's dynamic clusters do: a scheduler process, and environment variables. Rank 0's
output is shown, everybody's is kept in LOGS. SIGTERM, Ctrl-C and the end of the terminal (SIGHUP, unless nohup has it
ignored) are handed to the ranks, which save and exit. When a rank fails, the others learn it (src/training/ranks.py)
and are given GRACE seconds to end; the last line names the rank and its reason. A rank that is paused (SIGSTOP) for
PAUSED seconds while another runs has failed. When the scheduler fails, the ranks
are asked to stop. MindSpore's msrun kills the others at once, even the one that saves, and ends in a traceback.
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

GRACE = 12.0  # s that ranks have to end after one that failed; a checkpoint that is not whole by then is not kept
PAUSED = 15.0  # s that a rank may be paused; with GRACE less than the 30 after which a CPU's collective ends the others
LOOK = 0.1  # s between two looks at the ranks
SHOWN = 5.0  # s that the output's reader may take before it is said what failed
HEARD = 0.5  # s in which a rank that was sent a signal by others, too, says that it stops
STOPPING = b"asked to stop"  # what it says then (src/training/stop_signals.py)
START = 600  # s that they have to find each other, as msrun gives them
SCHEDULER = [sys.executable, "-P", "-c", "from mindspore import communication; communication.init()"]
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
STOPPED = tuple(128 + number for number in SIGNALS)  # exit codes of a rank that saved because it was asked to stop


@dataclass(frozen=True)
class Part:
    """A process of the job.

    Args:
        name: as messages call it. log: where its output is kept. process: as it was started.
    """

    name: str
    log: Path
    process: subprocess.Popen

    def stops(self) -> bool:
        """Whether it said that it was asked to stop."""
        return STOPPING in self.log.read_bytes()

    def sentences(self) -> list[str]:
        """The errors that it printed as sentences."""
        lines = self.log.read_text(errors="replace").splitlines()
        return [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]

    def is_paused(self) -> bool:
        """Return whether a signal has stopped the process (not a debugger, which stops it under another letter)."""
        try:
            state = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2]
        except OSError:
            return False
        return state.split()[:1] == ["T"]

    def reason(self) -> str:
        """Why it ended: its sentence, else the signal that killed it, else its exception."""
        code = self.process.returncode
        if sentences := self.sentences():
            return sentences[-1]
        if code < 0:
            killer = " (as the system does when memory is used up)" if code == -signal.SIGKILL else ""
            return f"killed by {signal.Signals(-code).name}{killer}"
        _, traceback, lines = self.log.read_text(errors="replace").rpartition("Traceback (most recent call last):")
        exceptions = [line for line in lines.splitlines() if line[:1].strip()]  # the first line that is not indented
        return exceptions[0] if traceback and exceptions else f"exit code {code}"


class Job:
    """The processes of one start.

    Args:
        size: how many ranks. logs: folder of their output. command: what each of them runs.
        folder: where they meet, and learn which of them have ended.
    """

    def __init__(self, size: int, logs: Path, command: list[str], folder: Path) -> None:
        self.size, self.logs, self.command, self.folder = size, logs, command, folder
        self.parts: list[Part] = []  # the ranks in their order, then the scheduler
        self.stop = 0  # the signal that the ranks were sent
        self.requests = 0  # signals that asked for it
        self.ended = threading.Event()  # all ranks have
        self.pauses: dict[Part, float] = {}  # s that ranks have been paused while others run
        self.paused: list[Part] = []  # those that were ended for it

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
            environment = {**common, **numbers, "MS_ROLE": "MS_WORKER"}
            self._start(f"rank {rank}", f"worker_{rank}.log", environment, self.command)
        self._start("the scheduler", "scheduler.log", {**common, "MS_ROLE": "MS_SCHED"}, SCHEDULER)

    def _start(self, name: str, log: str, environment: dict[str, object], command: list[str]) -> None:
        variables = os.environ | {key: str(value) for key, value in environment.items()}
        with (self.logs / log).open("wb") as output:
            # In sessions of their own: a terminal's Ctrl-C reaches them through this process alone.
            process = subprocess.Popen(
                command, env=variables, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
            )
        self.parts.append(Part(name, self.logs / log, process))

    def ask_to_stop(self, number: int, _: FrameType | None = None) -> None:
        """Hand a signal on to every rank that runs, and the first one only where a rank has not heard of it.

        A rank that is asked twice does not save, and systemd or Slurm may ask all processes of a job, this one too.
        """
        is_first, self.stop = not self.stop, number
        self.requests += 1
        # Both the system and a shell send it at a terminal's end.
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        if is_first:
            time.sleep(HEARD)
            if self.requests > 1:  # the next signal came meanwhile, and was handed on to all of them
                return
        for rank in self.parts[: self.size]:
            if rank.process.poll() is None and not (is_first and rank.stops()):
                rank.process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End what still runs."""
        for part in self.parts:
            if part.process.poll() is None:
                part.process.kill()
                part.process.wait()

    def wait(self) -> int:
        """Show what rank 0 says until all ranks have ended: the exit code of the whole."""
        # A thread of its own: where nobody reads (`| less`), the ranks are watched none the less.
        shown = threading.Thread(target=self.show_first_rank, daemon=True)
        shown.start()
        try:
            failed = self.watch()
        finally:
            self.ended.set()
        shown.join(SHOWN)
        if failed is None:
            codes = [rank.process.returncode for rank in self.parts[: self.size]]
            code = 128 + self.stop if self.stop and any(codes) else max(codes)
        else:
            code = failed.process.returncode
            reason = f"did not answer for {PAUSED:g} s (paused)" if failed in self.paused else failed.reason()
            last = f"error: {failed.name} failed: {reason} (its output: {failed.log})\n"
            write(sys.stderr.fileno(), last.encode(errors="replace"))
        while shown.is_alive() and not self.stop:
            shown.join(0.1)
        return exit_code(code)

    def watch(self) -> Part | None:
        """Wait for the ranks: the first part that failed, or None."""
        ranks, scheduler = self.parts[: self.size], self.parts[self.size]
        failed, deadline, running = None, float("inf"), True
        while running:
            self.end_paused()
            codes = [rank.process.poll() for rank in ranks]
            running = None in codes
            for number, code in enumerate(codes):
                if code is not None:
                    (self.folder / f"ended-{number}").touch()
            bad = [rank for rank, code in zip(ranks, codes, strict=True) if self.is_failure(code)]
            # It may fail because ranks end; before that, they cannot know of it.
            if codes == [None] * self.size and failed is None and not self.stop and scheduler.process.poll():
                bad = [scheduler]
                self.ask_to_stop(signal.SIGTERM)
            if bad and failed is None:
                # Of several at once, one that has a sentence: the others may have ended because of it.
                failed = max(bad, key=lambda part: (part in self.paused, bool(part.sentences())))
                deadline = time.monotonic() + GRACE
            if time.monotonic() > deadline:
                self.kill()
            if running:
                time.sleep(LOOK)
        return failed

    def end_paused(self) -> None:
        """Kill the ranks that have been paused too long while another runs.

        Looks are counted in place of time: a machine or batch system may pause this process with its ranks.
        """
        running = [rank for rank in self.parts[: self.size] if rank.process.poll() is None]
        paused = [rank for rank in running if rank.is_paused()]
        if len(paused) == len(running):
            paused = []
        self.pauses = {rank: self.pauses.get(rank, 0.0) + LOOK for rank in paused}
        for rank, seconds in self.pauses.items():
            if seconds > PAUSED:
                rank.process.kill()
                rank.process.wait()
                self.paused.append(rank)

    def show_first_rank(self) -> None:
        """Copy what rank 0 says to this process's output until all have ended."""
        last = False
        with self.parts[0].log.open("rb") as log:
            while not last:
                last = self.ended.wait(0.1)
                write(sys.stdout.fileno(), log.read())

    def is_failure(self, code: int | None) -> bool:
        """Whether a rank with this code ended neither well nor because it was asked to; None: it runs."""
        killed_as_asked = self.stop and code == -signal.SIGTERM
        return code not in (None, 0, *STOPPED) and not killed_as_asked


def write(stream: int, output: bytes) -> None:
    """Add to an open file. Once nobody reads it (a closed terminal, `| tee` after Ctrl-C), logs have it."""
    try:
        while output:
            output = output[os.write(stream, output) :]
    except OSError:  # not a reason to end ranks that train or save
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)


def exit_code(code: int) -> int:
    """A process's return code as a shell gives it on."""
    return code if code >= 0 else 128 - code


def main() -> int:
    """Run it; the exit code is 0, that of the first rank that failed, or 128 + the signal that all were stopped by."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("processes", type=int, help="how many, one a device")
    parser.add_argument("logs", type=Path, help="folder for their output")
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="script [argument ...]")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="albert-ranks-") as folder:
        job = Job(given.processes, given.logs, [sys.executable, *given.command], Path(folder))
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
