"""Micro-batching: requests that arrive close together, or while the predictor is busy, share a call of it."""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from src.inference.predictor import Predictor
from src.tasks.answerer import Record

logger = logging.getLogger(__name__)


class QueueFullError(Exception):
    """The queue has no room for the records of a request."""


class PredictionError(Exception):
    """The predictor raised an exception, or returned another number of answers than records."""


@dataclass(eq=False)
class _Share:
    """Records of a request that go into one call of the predictor, and their future answers."""

    records: list[Record]
    answers: asyncio.Future[list[Record]]


class MicroBatcher:
    """Queue of requests that are answered in order, several with one call of the predictor.

    A request that is too large for a call takes several, and goes to the end of the queue after each.

    Args:
        predictor: or any object with its task_info and predict; called from one dedicated thread.
        max_batch: records per call.
        max_characters: of the texts of a call; a longer record gets a call of its own.
        max_waiting: most records in the queue; a larger request is accepted if the queue is empty.
        window: seconds that a request to an idle server waits for others.
    """

    def __init__(
        self, predictor: Predictor, max_batch: int, max_characters: int, max_waiting: int, window: float
    ) -> None:
        self._predictor = predictor
        self._max_batch = max_batch
        self._max_characters = max_characters
        self._max_waiting = max_waiting
        self._window = window
        self._queue: deque[_Share] = deque()
        self._worker: asyncio.Task | None = None
        self.on_batch: Callable[[int], object] = lambda _: None  # is told the records of each call, in its thread
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="predictor")

    @property
    def waiting(self) -> int:
        """Records in the queue, without those of the predictor's current call."""
        return sum(len(share.records) for share in self._queue)

    async def answer(self, records: list[Record]) -> list[Record]:
        """Return one answer per record, in order; raise QueueFullError or PredictionError if there are none."""
        if self._queue and self.waiting + len(records) > self._max_waiting:
            raise QueueFullError
        answers: list[Record] = []
        while len(answers) < len(records):
            answers += await self._answer_share(self._first_that_fit(records[len(answers) :]))
        return answers

    def close(self) -> None:
        """Stop the predictor's thread after its current call."""
        self._thread.shutdown(wait=False)

    def _first_that_fit(self, records: list[Record]) -> list[Record]:
        """Return the first records, as many as fit into one call, at least one."""
        count = 0
        characters = 0
        for record in records[: self._max_batch]:
            characters += _characters(record)
            if count and characters > self._max_characters:
                break
            count += 1
        return records[:count]

    async def _answer_share(self, records: list[Record]) -> list[Record]:
        loop = asyncio.get_running_loop()
        share = _Share(records, loop.create_future())
        self._queue.append(share)
        if self._worker is None or self._worker.done():
            self._worker = loop.create_task(self._work())
        try:
            return await share.answers
        except asyncio.CancelledError:  # the client has left: do not compute what is still in the queue
            with contextlib.suppress(ValueError):
                self._queue.remove(share)
            raise

    async def _work(self) -> None:
        await asyncio.sleep(self._window)
        while self._queue:
            await self._answer_together(self._next_batch())
            await asyncio.sleep(0)  # a large request puts its next share into the queue

    def _next_batch(self) -> list[_Share]:
        """Remove the next shares from the queue, as many as fit into one call, at least one."""
        batch = [self._queue.popleft()]
        while self._queue:
            records = [record for share in (*batch, self._queue[0]) for record in share.records]
            if len(self._first_that_fit(records)) < len(records):
                break
            batch.append(self._queue.popleft())
        return batch

    async def _answer_together(self, batch: list[_Share]) -> None:
        """Answer a batch with one call of the predictor, or share by share if that fails."""
        records = [record for share in batch for record in share.records]
        try:
            answers = await asyncio.get_running_loop().run_in_executor(self._thread, self._predict, records)
        except PredictionError as error:
            if len(batch) == 1:
                logger.exception("the predictor failed on %d records", len(records))
                if not batch[0].answers.done():
                    batch[0].answers.set_exception(error)
                return
            for share in batch:  # so that a faulty request does not fail the others
                if not share.answers.done():  # cancelled: the client has left
                    await self._answer_together([share])
            return
        for share in batch:
            if not share.answers.done():
                share.answers.set_result(answers[: len(share.records)])
            del answers[: len(share.records)]

    def _predict(self, records: list[Record]) -> list[Record]:
        self.on_batch(len(records))
        try:
            answers = list(self._predictor.predict(records))
        except Exception as error:
            raise PredictionError(f"{type(error).__name__}: {error}") from error
        if len(answers) != len(records):
            raise PredictionError(f"{len(answers)} answers to {len(records)} records")
        return answers


def _characters(record: Record) -> int:
    """Return the number of characters of all texts of a record."""
    return sum(len(value) if isinstance(value, str) else sum(map(len, value)) for value in record.values())
