"""Prefetching of an iterator in a thread."""

import contextlib
from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

Item = TypeVar("Item")
_END: Any = object()


@contextlib.contextmanager
def read_ahead(items: Generator[Item], ahead: int) -> Iterator[Iterator[Item]]:
    """Yield an iterator over `items` in their order that prefetches up to `ahead` of them.

    An error of `items` is raised where its item would have come. The context always closes `items` at its end.

    Args:
        ahead: items that wait while another one is made; 0 yields `items` itself, without a thread.
    """
    with contextlib.closing(items):
        if not ahead:
            yield items
            return
        with ThreadPoolExecutor(1, "read_ahead") as thread:
            pending = deque(thread.submit(next, items, _END) for _ in range(ahead + 1))

            def consume() -> Iterator[Item]:
                while (item := pending.popleft().result()) is not _END:
                    pending.append(thread.submit(next, items, _END))
                    yield item

            try:
                yield consume()
            finally:
                thread.shutdown(cancel_futures=True)
