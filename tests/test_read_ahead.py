"""Items are taken ahead in their order, and nothing is left running."""

import threading
import time
from collections.abc import Generator

import pytest

from src.data.read_ahead import read_ahead


class Source:
    """Numbers below `end`, and what became of them; `fails` raises an error in place of that number."""

    def __init__(self, end: int, fails: int = -1) -> None:
        self.end, self.fails, self.given, self.closed = end, fails, 0, False
        self.threads: set[str] = set()

    def items(self) -> Generator[int]:
        try:
            for number in range(self.end):
                self.threads.add(threading.current_thread().name)
                if number == self.fails:
                    raise OSError(f"number {number} is gone")
                self.given = number + 1
                yield number
        finally:
            self.closed = True


@pytest.mark.parametrize("places", [0, 1, 4])
def test_items_come_in_their_order(places: int) -> None:
    source = Source(50)
    with read_ahead(source.items(), places) as items:
        assert list(items) == list(range(50))
    assert source.closed and source.threads == {"read_ahead_0" if places else "MainThread"}


@pytest.mark.parametrize("places", [0, 3])
def test_an_error_comes_where_its_item_would_have_come(places: int) -> None:
    source = Source(10, fails=2)
    with read_ahead(source.items(), places) as items:
        assert [next(items), next(items)] == [0, 1]
        with pytest.raises(OSError, match="number 2 is gone"):
            next(items)
    assert source.closed


@pytest.mark.parametrize("places", [0, 3])
def test_the_source_is_closed_when_no_more_is_wanted(places: int) -> None:
    source = Source(1_000)
    with pytest.raises(ValueError, match="enough"), read_ahead(source.items(), places) as items:  # noqa: PT012
        assert next(items) == 0
        raise ValueError("enough")
    assert source.closed and "read_ahead_0" not in {thread.name for thread in threading.enumerate()}


def test_as_many_are_taken_ahead_as_there_are_places() -> None:
    source = Source(1_000)
    with read_ahead(source.items(), 3) as items:
        assert next(items) == 0
        deadline = time.monotonic() + 10
        while source.given < 5 and time.monotonic() < deadline:  # 0, three in their places, and one that waits for one
            time.sleep(0.01)
        time.sleep(0.3)
        assert source.given == 5
