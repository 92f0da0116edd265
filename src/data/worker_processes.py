"""A function over many arguments in processes of their own: results_of.

concurrent.futures.ProcessPoolExecutor may wait for ever when a process is killed in the middle of a long result: the
main process itself holds the end of the pipe that results are written to, and so sees no end. Here each process has a
pipe whose other end it alone holds, and threads of the main process that speak with it.
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
CALLS = 2  # at a time: while a process works on one, the next is on its way


class WorkerProcess:
    """A process that calls `function`, which can be pickled; it ends with the main process, however that ends."""

    def __init__(self, function: Callable) -> None:
        self.connection, theirs = SPAWN.Pipe()
        self.process = SPAWN.Process(target=_serve, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()
        self.to_send = [function]  # with the first call, which has a thread of its own: the process needs time to begin
        self.sending, self.receiving = threading.Lock(), threading.Lock()

    def call(self, arguments: tuple) -> Any:
        """The function's result or its exception; UserError if the process is gone. For CALLS threads at once."""
        try:
            with self.sending:
                while self.to_send:
                    self.connection.send(self.to_send.pop())
                self.connection.send(arguments)
                self.receiving.acquire()  # before another thread sends: results come in the order of the arguments
            try:
                result, error = self.connection.recv()
            finally:
                self.receiving.release()
        except (EOFError, OSError) as lost:
            raise UserError(
                "a worker process ended without a result, perhaps for lack of memory; give a smaller num_workers"
            ) from lost
        if error is not None:
            raise error
        return result

    def end(self) -> None:
        """Whatever it is doing; nothing of a worker is to be kept."""
        self.process.kill()
        self.process.join()


def _serve(connection: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the main process
    with contextlib.suppress(EOFError, OSError):  # the main process is gone
        function = connection.recv()
        while True:
            arguments = connection.recv()
            try:
                answer = function(*arguments), None
            except Exception as error:
                error.add_note(f"in a worker process:\n{traceback.format_exc()}")
                answer = None, error
            connection.send(answer)


@contextlib.contextmanager
def results_of(function: Callable, arguments: Iterable[tuple], workers: int) -> Iterator[Iterator[Any]]:
    """function(*a) for each a of `arguments`, in their order, by `workers` processes that begin at once.

    The iterator raises what the function raises, and UserError when a process ends. Of the arguments only a few are
    taken ahead of the result that is asked for.
    """
    processes = [WorkerProcess(function) for _ in range(workers)]
    free: queue.SimpleQueue[WorkerProcess] = queue.SimpleQueue()
    for process in CALLS * processes:
        free.put(process)

    def call(each: tuple) -> Any:
        process = free.get()
        try:
            return process.call(each)
        finally:
            free.put(process)

    threads = ThreadPoolExecutor(CALLS * workers)
    submitted = (threads.submit(call, each) for each in arguments)
    try:
        yield _in_order(deque(itertools.islice(submitted, CALLS * workers)), submitted)
    finally:
        for process in processes:
            process.end()
        threads.shutdown(cancel_futures=True)
        for process in processes:
            process.connection.close()


def _in_order(pending: deque[Future], submitted: Iterator[Future]) -> Iterator[Any]:
    while pending:
        result = pending.popleft().result()
        pending.extend(itertools.islice(submitted, 1))
        yield result
