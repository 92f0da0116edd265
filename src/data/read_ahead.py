"""Items that a thread takes from an iterator before they are asked for."""

import contextlib
import queue
import threading
from collections.abc import Generator, Iterator
from typing import TypeVar

Item = TypeVar("Item")


@contextlib.contextmanager
def read_ahead(items: Generator[Item], places: int) -> Iterator[Iterator[Item]]:
    """What `items` gives, in its order, up to `places` of it taken ahead; with 0 places it is `items` itself.

    What `items` raises is raised where its item would have come. Whatever happens inside, `items` is closed at the end.
    """
    if not places:
        with contextlib.closing(items):
            yield items
        return
    taken: queue.Queue[tuple[Item | None, BaseException | None]] = queue.Queue(places)
    over = threading.Event()

    def put(item: Item | None, error: BaseException | None) -> None:
        while not over.is_set():
            with contextlib.suppress(queue.Full):
                taken.put((item, error), timeout=0.1)
                return

    def take() -> None:
        with contextlib.closing(items):
            try:
                for item in items:
                    put(item, None)
                    if over.is_set():
                        return
            except BaseException as error:  # for the one who asks, whatever it is
                put(None, error)
            else:
                put(None, StopIteration())

    def given() -> Iterator[Item]:
        while True:
            item, error = taken.get()
            if isinstance(error, StopIteration):
                return
            if error is not None:
                raise error
            yield item

    thread = threading.Thread(target=take, name="read_ahead", daemon=True)
    thread.start()
    try:
        yield given()
    finally:
        over.set()
        thread.join()
