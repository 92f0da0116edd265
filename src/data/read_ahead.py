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
    buffer: queue.Queue[tuple[Item | None, BaseException | None]] = queue.Queue(places)
    stopped = threading.Event()

    def put(item: Item | None, error: BaseException | None) -> None:
        while not stopped.is_set():
            with contextlib.suppress(queue.Full):
                buffer.put((item, error), timeout=0.1)
                return

    def produce() -> None:
        with contextlib.closing(items):
            try:
                for item in items:
                    put(item, None)
                    if stopped.is_set():
                        return
            except BaseException as error:  # raised again in the consumer, whatever it is
                put(None, error)
            else:
                put(None, StopIteration())

    def consume() -> Iterator[Item]:
        while True:
            item, error = buffer.get()
            if isinstance(error, StopIteration):
                return
            if error is not None:
                raise error
            yield item

    thread = threading.Thread(target=produce, name="read_ahead", daemon=True)
    thread.start()
    try:
        yield consume()
    finally:
        stopped.set()
        thread.join()
