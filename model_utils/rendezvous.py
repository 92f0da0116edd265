"""Barriers of a job's ranks: one process serves them over TCP, with Python's standard library alone.

The launcher of the first machine (model_utils/job.py) serves. Ranks exchange values at barriers
(src/training/ranks.py), and every launcher reports every 0.1 s which of its ranks have ended. A machine whose reports
cease counts as lost.
"""

import os
import socket
import struct
import threading
import time
from collections.abc import Mapping
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener, answer_challenge, deliver_challenge
from typing import Any

from model_utils.errors import UserError

# Environment variables of a rank: host:port of the rendezvous, the job's secret, the launcher's process id.
ADDRESS = "ALBERT_RENDEZVOUS"
KEY = "ALBERT_JOB_KEY"
LAUNCHER = "ALBERT_LAUNCHER"
SILENCE = 20  # s without an answer after which a machine counts as lost
RETRY_INTERVAL = 0.5  # s between two attempts to reach a server that has not started


class Rendezvous:
    """Barriers of `size` ranks, for many threads; machine m has the ranks from m * local_size on."""

    def __init__(self, size: int, local_size: int = 0) -> None:
        self.size = size
        self.local_size = local_size or size
        self._barriers: dict[int, dict[int, tuple[str, bytes]]] = {}  # number -> rank -> name of the barrier, value
        self._ended: dict[int, str] = {}  # rank -> why it failed; "": it ended as it should
        self._silences: dict[int, float] = {}  # machine -> s since its last report
        self._changed = threading.Condition()

    def exchange(self, rank: int, barrier: int, name: str, value: bytes, seconds: float) -> list[tuple[str, bytes]]:
        """Leave a rank's value at a barrier, wait for all others and return the values of all, in order of ranks.

        Args:
            barrier: number of the barrier, from 1.
            name: name of the barrier, for errors; returned with each value.
            seconds: longest time to wait.

        Raises:
            UserError: a rank has ended, its machine is lost, or it did not arrive in time.
        """
        remaining = seconds  # of this process's own time, as in count_silence
        with self._changed:
            values = self._barriers.setdefault(barrier, {})
            values[rank] = (name, value)
            self._barriers.pop(barrier - 1, None)  # it is complete, and those that still read it have its values
            if len(values) == self.size:
                self._changed.notify_all()
            while absent := sorted({*range(self.size)} - {*values}):
                for other in absent:
                    if other in self._ended:
                        raise UserError(f"rank {other} has ended while this one waited for it at {name}")
                    if silence := self._too_long_silence(other // self.local_size):
                        raise UserError(f"rank {other} has not reached {name}: {silence}")
                if remaining <= 0:
                    raise UserError(f"rank {absent[0]} did not reach {name} within {seconds / 60:g} minutes")
                start = time.monotonic()
                self._changed.wait(min(1.0, remaining))
                remaining -= min(1.0, time.monotonic() - start)
            return [values[other] for other in range(self.size)]

    def report(self, machine: int, ended: Mapping[int, str]) -> str:
        """Record that a machine's launcher is alive and which of its ranks have ended (rank -> why it failed, or "").

        Returns:
            Why the job has failed, as a sentence; "" if it has not, or if a rank of this machine failed first.
        """
        with self._changed:
            self._silences[machine] = 0.0
            if not ended.items() <= self._ended.items():
                self._ended.update(ended)
                self._changed.notify_all()
            for rank, reason in self._ended.items():
                if reason:
                    return "" if rank // self.local_size == machine else f"rank {rank} failed: {reason}"
            return next(filter(None, map(self._too_long_silence, self._silences)), "")

    def join(self, machine: int, size: int, local_size: int, seconds: float) -> None:
        """Record that a machine takes part, and wait so many seconds for all others.

        Raises:
            UserError: it expects another job, another machine has its index, or one has not joined in time.
        """
        with self._changed:
            if (size, local_size) != (self.size, self.local_size):
                sizes = f"{local_size} of {size} ranks, but the first machine {self.local_size} of {self.size}"
                raise UserError(f"machine {machine} has {sizes}: give all the same --nproc and --worker_num")
            if machine in self._silences:
                remedy = "give each its own --node_rank, or if one has started again, wait until the others have ended"
                raise UserError(f"two machines of this job have the index {machine}: {remedy}")
            self._silences[machine] = 0.0
            self._changed.notify_all()
            machines = range(self.size // self.local_size)
            if not self._changed.wait_for(lambda: len(self._silences) == len(machines), seconds):
                absent = min({*machines} - {*self._silences})
                raise UserError(f"machine {absent} has not joined the job within {seconds:g} s")

    def has_running_ranks(self) -> bool:
        """Return True if a rank has not ended whose machine has joined and is not lost."""
        with self._changed:
            present = {machine for machine in self._silences if not self._too_long_silence(machine)}
            return any(rank not in self._ended and rank // self.local_size in present for rank in range(self.size))

    def count_silence(self, seconds: float) -> None:
        """Add to the silence of every machine; the serving launcher calls it as time passes.

        Its own time counts, not the clock's: a batch system may suspend all machines together.
        """
        with self._changed:
            for machine in self._silences:
                self._silences[machine] += seconds

    def _too_long_silence(self, machine: int) -> str:
        """Return a sentence if a machine counts as lost; "" if it does not, as one whose ranks have all ended."""
        ranks = range(machine * self.local_size, (machine + 1) * self.local_size)
        if self._silences.get(machine, 0.0) <= SILENCE or self._ended.keys() >= {*ranks}:
            return ""
        return f"machine {machine} has not answered for {SILENCE} s"


class RendezvousServer:
    """Listener that answers calls of a rendezvous' methods, each client in a thread of its own.

    Args:
        address: host and port; port 0 takes a free one. One that cannot be used is a UserError.
        key: secret that clients must know; nothing is unpickled from others.
    """

    def __init__(self, rendezvous: Rendezvous, address: tuple[str, int], key: bytes) -> None:
        self.rendezvous = rendezvous
        self._key = key
        try:
            self._listener = Listener(address, backlog=1024)
        except OSError as error:
            raise UserError(f"port {address[1]} cannot be used: {error.strerror}; change --master_port") from error
        self.address: tuple[str, int] = self._listener.address  # type: ignore[assignment]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection = self._listener.accept()
            except OSError:  # such as too many open files
                time.sleep(RETRY_INTERVAL)
                continue
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: Connection) -> None:
        """Answer one client's calls until it closes the connection; close it if the client does not know the key."""
        try:
            deliver_challenge(connection, self._key)
            answer_challenge(connection, self._key)
            while True:
                method, arguments = connection.recv()
                try:
                    answer = getattr(self.rendezvous, method)(*arguments)
                except UserError as error:
                    answer = error
                connection.send(answer)
        except (AuthenticationError, EOFError, OSError):
            connection.close()


def _connect(address: tuple[str, int], key: bytes) -> Connection:
    """Return a connection whose other end knows the key.

    Raises:
        OSError, EOFError: nobody answers, or another service does, even a silent one.
        AuthenticationError: the other end has another key.
    """
    connection = Client(address)
    try:
        _limit_reads(connection, SILENCE)
        answer_challenge(connection, key)
        deliver_challenge(connection, key)
        _limit_reads(connection, 0)
    except BlockingIOError:
        connection.close()
        raise TimeoutError(f"connected, but nothing was received for {SILENCE} s") from None
    except BaseException:
        connection.close()
        raise
    return connection


def _limit_reads(connection: Connection, seconds: float) -> None:
    """Let each read of the connection raise BlockingIOError after so many seconds; 0: never."""
    limit = struct.pack("ll", int(seconds), int(seconds % 1 * 1e6))  # a timeval
    with socket.socket(fileno=os.dup(connection.fileno())) as duplicate:
        duplicate.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)


class RendezvousClient:
    """Rendezvous of another process.

    A server that cannot be reached, has another key or is another service is a UserError.

    Args:
        start_seconds: longest time to wait for the server to start.
        launcher: process id of the parent, without which nobody watches over this process; 0: it needs none.
    """

    def __init__(self, address: tuple[str, int], key: bytes, start_seconds: float = 0, launcher: int = 0) -> None:
        self._name = f"{address[0]}:{address[1]}"
        self.launcher = launcher
        deadline = time.monotonic() + start_seconds
        while True:
            try:
                self._connection = _connect(address, key)
                break
            except Exception as error:
                if time.monotonic() > deadline or not isinstance(error, OSError):
                    raise UserError(f"{self._name} does not answer as this job's first machine: {error}") from error
                time.sleep(RETRY_INTERVAL)

    def exchange(self, rank: int, barrier: int, name: str, value: bytes, seconds: float) -> list[tuple[str, bytes]]:
        """Call Rendezvous.exchange; also raise UserError if the launcher has ended."""
        return self._call(name, None, "exchange", rank, barrier, name, value, seconds)

    def report(self, machine: int, ended: Mapping[int, str]) -> str:
        """Call Rendezvous.report; also return that the server is lost, after SILENCE seconds without its answer."""
        try:
            return self._call("a report", SILENCE, "report", machine, dict(ended))
        except UserError as error:
            return str(error)

    def join(self, machine: int, size: int, local_size: int, seconds: float) -> None:
        """Call Rendezvous.join; raise its errors."""
        self._call("its start", int(seconds) + SILENCE, "join", machine, size, local_size, seconds)

    def _call(self, moment: str, max_polls: int | None, method: str, *arguments: Any) -> Any:
        """Return the server's answer to one call.

        Args:
            moment: the barrier, or what else this process is at, for errors.
            max_polls: polls of a second before the server counts as lost; None: without end.
        """
        try:
            self._connection.send((method, arguments))
            polls = 0
            while not self._connection.poll(1.0):
                polls += 1
                if max_polls is not None and polls >= max_polls:
                    self._connection.close()  # later calls fail at once
                    raise UserError(f"the first machine ({self._name}) has not answered for {max_polls} s")
                self._check_launcher(moment)
            answer = self._connection.recv()
        except (EOFError, OSError) as error:
            self._check_launcher(moment)
            raise UserError(f"the first machine ({self._name}) has ended, noticed at {moment}") from error
        if isinstance(answer, UserError):
            raise answer
        return answer

    def _check_launcher(self, moment: str) -> None:
        if self.launcher and self.launcher != os.getppid():
            raise UserError(f"scripts/launch.py (process {self.launcher}) has ended, this rank ends at {moment}")
