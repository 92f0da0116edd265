"""Pool of worker processes that survives a killed worker: results_of.

concurrent.futures.ProcessPoolExecutor may wait forever when a worker is killed while it sends a long result: the main
process itself holds the writing end of the result pipe, and so never sees its end. Here each worker alone holds the
other end of its pipe, and threads of the main process talk to it.
"""

import contextlib
import itertools
import queue
import signal
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

from model_utils.errors import UserError

SPAWN = get_context("spawn")  # a fork would copy locks of the libraries' threads
ResultsOf = Callable[[Callable, Iterable[tuple]], contextlib.AbstractContextManager[Iterator[Any]]]
CALLS = 2  # calls in flight for each process: while it works on one, the next is being sent


class WorkerProcess:
    """A process that calls `function`, which must be picklable; it ends with the main process, however that ends."""

    def __init__(self, function: Callable) -> None:
        self.connection, worker_connection = SPAWN.Pipe()
        self.process = SPAWN.Process(target=_serve, args=(worker_connection,), daemon=True)
        self.process.start()
        worker_connection.close()
        self.to_send = [function]  # sent with the first call, in its thread, because the process takes time to start
        self.sending = threading.Lock()
        self.receiving = threading.Lock()

    def call(self, arguments: tuple) -> Any:
        """Return the function's result or raise its error; UserError if the process is gone. Safe for CALLS threads."""
        try:
            with self.sending:
                while self.to_send:
                    self.connection.send(self.to_send.pop())
                self.connection.send(arguments)
                self.receiving.acquire()  # before another thread sends: results come in the order of arguments
            try:
                result, error = self.connection.recv()
            finally:
                self.receiving.release()
        except (EOFError, OSError) as lost:
            raise UserError("a worker process ended without a result; if memory is short, lower num_workers") from lost
        if error is not None:
            raise error
        return result

    def end(self) -> None:
        """Kill the process, whatever it is doing."""
        self.process.kill()
        self.process.join()


def _serve(connection: Connection) -> None:
    """Receive the function, then answer calls until the main process is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the main process
    with contextlib.suppress(EOFError, OSError):
        function = connection.recv()
        while True:
            arguments = connection.recv()
            try:
                result = function(*arguments)
            except Exception as error:
                error.add_note(f"in a worker process:\n{traceback.format_exc()}")
                connection.send((None, error))
            else:
                connection.send((result, None))


@contextlib.contextmanager
def results_of(function: Callable, arguments: Iterable[tuple], workers: int) -> Iterator[Iterator[Any]]:
    """Yield an iterator over the results of function(*ARGUMENTS) for each item of `arguments`, in their order.

    They are computed by `workers` processes, which start at once. The iterator raises the function's exceptions, and
    UserError if a process ends; it takes only a few arguments ahead of its results.
    """
    processes = [WorkerProcess(function) for _ in range(workers)]
    idle: queue.SimpleQueue[WorkerProcess] = queue.SimpleQueue()
    for process in CALLS * processes:
        idle.put(process)

    def call(call_arguments: tuple) -> Any:
        process = idle.get()
        try:
            return process.call(call_arguments)
        finally:
            idle.put(process)

    threads = ThreadPoolExecutor(CALLS * workers)
    futures = (threads.submit(call, call_arguments) for call_arguments in arguments)
    try:
        yield in_order(futures, lambda: CALLS * workers)
    finally:
        for process in processes:
            process.end()
        threads.shutdown(cancel_futures=True)
        for process in processes:
            process.connection.close()


def in_order(futures: Iterator[Future], in_flight: Callable[[], int]) -> Iterator[Any]:
    """Return an iterator over the results of calls in their order; the first in_flight() of them start at once."""
    return _results(deque(itertools.islice(futures, in_flight())), futures, in_flight)


def _results(pending: deque[Future], futures: Iterator[Future], in_flight: Callable[[], int]) -> Iterator[Any]:
    while pending:
        result = pending.popleft().result()
        pending.extend(itertools.islice(futures, max(0, in_flight() - len(pending))))
        yield result
