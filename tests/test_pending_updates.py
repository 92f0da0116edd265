"""The queue of updates under way, with numpy in place of a device."""

import numpy as np

from src.training.meters import Stopwatch
from src.training.pending_updates import PendingUpdates, Update


class Output:
    """A tensor that notes when it is waited for."""

    def __init__(self, value: float, waited: list[float]) -> None:
        self.value, self.waited = value, waited

    def asnumpy(self) -> np.ndarray:
        self.waited.append(self.value)
        return np.float32(self.value)


class Clock(Stopwatch):
    """Stands where it is put."""

    now = 0.0

    def seconds(self) -> float:
        return self.now


def update(step: int, waited: list[float], compiled: bool = False) -> Update:
    return Update(step, {"loss": Output(step / 2, waited)}, 4, 24, compiled=compiled)


def test_updates_are_read_in_order_and_share_the_time_between_readings() -> None:
    clock, waited = Clock(), []
    pending = PendingUpdates(clock)
    for step in (1, 2, 3, 4):
        pending.add(update(step, waited))
    assert not waited
    clock.now = 6.0
    read = pending.read()
    assert [update.step for update, _, _ in read] == [1, 2, 3, 4] and waited == [0.5, 1.0, 1.5, 2.0]
    assert [values for _, values, _ in read] == [{"loss": value} for value in waited]
    assert [seconds for _, _, seconds in read] == [1.5] * 4
    pending.add(update(5, waited))
    clock.now = 8.0
    assert [seconds for _, _, seconds in pending.read()] == [2.0]
    assert pending.read() == []


def test_what_was_prepared_before_the_first_update_is_no_part_of_its_time() -> None:
    clock = Clock()
    pending = PendingUpdates(clock)
    clock.now = 5.0
    pending.begin()
    pending.add(update(1, []))
    clock.now = 6.0
    assert [seconds for _, _, seconds in pending.read()] == [1.0]


def test_an_update_that_compiled_has_no_time_and_takes_none_from_the_others() -> None:
    clock = Clock()
    pending = PendingUpdates(clock)
    pending.add(update(1, [], compiled=True))
    assert pending.has_compiled
    clock.now = 1.0
    assert [seconds for _, _, seconds in pending.read()] == [None]
    for step in (2, 3, 4):
        pending.add(update(step, [], compiled=step == 3))
    clock.now = 5.0
    assert [seconds for _, _, seconds in pending.read()] == [2.0, None, 2.0]
    assert not pending.has_compiled
