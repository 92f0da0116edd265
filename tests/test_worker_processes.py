"""Results of worker processes: in order, with few arguments taken ahead, and never waited for in vain."""

import itertools
import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import NoReturn

import pytest

from model_utils.errors import UserError
from src.data.worker_processes import results_of

LONG = 1_000_000  # bytes, more than a pipe holds
LOST = "a worker process ended without a result"


def double(number: int, seconds: float = 0) -> int:
    time.sleep(seconds)
    return 2 * number


def fail(number: int) -> NoReturn:
    raise ValueError(f"no result of {number}")


def long_result(number: int) -> bytes:
    return b"x" * (number * LONG)


def killed_in_the_middle_of_sending(number: int) -> bytes:
    def send_half(connection: Connection, data: bytes) -> None:
        os.write(connection.fileno(), bytes(data)[: len(data) // 2])
        os.kill(os.getpid(), signal.SIGKILL)

    Connection._send = send_half
    return b"x" * (number * LONG)


def wait(number: int) -> None:
    time.sleep(1000)


def test_results_come_in_the_order_of_the_arguments():
    arguments = [(number, 0.1 if number % 3 == 0 else 0) for number in range(12)]
    with results_of(double, arguments, workers=3) as results:
        assert list(results) == [2 * number for number in range(12)]
    assert multiprocessing.active_children() == []


def test_long_arguments_and_results():
    with results_of(bytes.swapcase, [(b"x" * LONG,)] * 6, workers=2) as results:
        assert list(results) == [b"X" * LONG] * 6


def test_few_arguments_are_taken_ahead():
    taken = 0

    def arguments():
        nonlocal taken
        for taken in itertools.count(1):
            yield (taken,)

    with results_of(double, arguments(), workers=1) as results:
        for number in range(1, 20):
            assert next(results) == 2 * number and taken <= number + 2


def test_an_error_of_the_function_says_where_it_was_raised():
    with results_of(fail, [(7,)], workers=1) as results, pytest.raises(ValueError, match="no result of 7") as error:
        next(results)
    assert "in a worker process" in error.value.__notes__[0] and "in fail" in error.value.__notes__[0]


def test_a_killed_process_is_a_sentence():
    def kill_after_the_first(results: Iterator[bytes]) -> None:
        for _ in results:
            for process in multiprocessing.active_children():
                process.kill()

    with results_of(long_result, itertools.repeat((1,)), workers=2) as results, pytest.raises(UserError, match=LOST):
        kill_after_the_first(results)


@pytest.mark.parametrize("size", [0, 1])
def test_a_process_that_is_killed_while_it_sends_is_a_sentence(size):
    calls = results_of(killed_in_the_middle_of_sending, [(size,)], workers=1)
    with calls as results, pytest.raises(UserError, match=LOST):
        next(results)


def test_leaving_ends_processes_that_work():
    start = time.monotonic()
    with results_of(wait, [(1,)], workers=2):
        pass
    assert multiprocessing.active_children() == [] and time.monotonic() - start < 100
