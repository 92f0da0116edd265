"""Prefetching of an iterator in a thread."""

import contextlib
import queue
import threading
from collections.abc import Generator, Iterator
from typing import TypeVar

Item = TypeVar("Item")


@contextlib.contextmanager
def read_ahead(items: Generator[Item], places: int) -> Iterator[Iterator[Item]]:
    """Yield an iterator over `items` in their order that prefetches up to `places` of them.

    An error of `items` is raised where its item would have come. The context always closes `items` at its end.

    Args:
        places: size of the buffer; 0 yields `items` itself, without a thread.
    """
    if not places:
        with contextlib.closing(items):
            yield items
        return
    buffer: queue.Queue[tuple[Item] | BaseException] = queue.Queue(places)  # an item alone may be an exception
    stopped = threading.Event()

    def put(entry: tuple[Item] | BaseException) -> None:
        while not stopped.is_set():
            with contextlib.suppress(queue.Full):
                buffer.put(entry, timeout=0.1)
                return

    def produce() -> None:
        with contextlib.closing(items):
            try:
                for item in items:
                    put((item,))
                    if stopped.is_set():
                        return
            except BaseException as error:  # raised again in the consumer, whatever it is
                put(error)
            else:
                put(StopIteration())

    def consume() -> Iterator[Item]:
        while True:
            entry = buffer.get()
            if isinstance(entry, StopIteration):
                return
            if isinstance(entry, BaseException):
                raise entry
            yield entry[0]

    thread = threading.Thread(target=produce, name="read_ahead", daemon=True)
    thread.start()
    try:
        yield consume()
    finally:
        stopped.set()
        thread.join()
