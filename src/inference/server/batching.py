"""Micro-batching: requests that arrive close together, or while the predictor is busy, share its next call."""

import asyncio
import contextlib
import logging
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from src.inference.predictor import Predictor
from src.tasks.answerer import Record

logger = logging.getLogger(__name__)


class QueueFullError(Exception):
    """As many records wait as may wait."""


class PredictionError(Exception):
    """The predictor raised an exception, or did not give an answer for each record."""


@dataclass(frozen=True, eq=False)
class _Request:
    records: list[Record]
    answers: asyncio.Future[list[Record]]


class MicroBatcher:
    """Collects requests in a queue and answers them in order, several with one call of the predictor.

    Args:
        predictor: or anything with its task_info and predict; called from one thread of its own, one call at a time.
        max_batch: records of one call; only a request that has more makes a larger call, alone.
        max_waiting: records in the queue at most; a request that has more is taken when the queue is empty.
        window: seconds that the first of an idle time waits for further requests.
    """

    def __init__(self, predictor: Predictor, max_batch: int, max_waiting: int, window: float) -> None:
        self._predictor, self._window = predictor, window
        self._max_batch, self._max_waiting = max_batch, max_waiting
        self._queue: deque[_Request] = deque()
        self._worker: asyncio.Task | None = None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="predictor")

    @property
    def waiting(self) -> int:
        """Records in the queue, those that the predictor is working on not counted."""
        return sum(len(request.records) for request in self._queue)

    async def answer(self, records: list[Record]) -> list[Record]:
        """One answer a record, in order; QueueFullError or PredictionError where there will be none."""
        if self._queue and self.waiting + len(records) > self._max_waiting:
            raise QueueFullError
        loop = asyncio.get_running_loop()
        request = _Request(records, loop.create_future())
        self._queue.append(request)
        if self._worker is None or self._worker.done():
            self._worker = loop.create_task(self._work())
        try:
            return await request.answers
        except asyncio.CancelledError:  # nobody waits for it any more: if it is in the queue, it costs nothing
            with contextlib.suppress(ValueError):
                self._queue.remove(request)
            raise

    def close(self) -> None:
        """Let the predictor's thread end."""
        self._thread.shutdown(wait=False)

    async def _work(self) -> None:
        await asyncio.sleep(self._window)
        while self._queue:
            await self._answer_together(self._next_batch())

    def _next_batch(self) -> list[_Request]:
        batch = [self._queue.popleft()]
        size = len(batch[0].records)
        while self._queue and size + len(self._queue[0].records) <= self._max_batch:
            batch.append(self._queue.popleft())
            size += len(batch[-1].records)
        return batch

    async def _answer_together(self, batch: list[_Request]) -> None:
        records = [record for request in batch for record in request.records]
        try:
            answers = await asyncio.get_running_loop().run_in_executor(self._thread, self._predict, records)
        except PredictionError as error:
            if len(batch) > 1:  # one request's fault is not to be the others'
                for request in batch:
                    if not request.answers.done():  # its client has waited as long as it would
                        await self._answer_together([request])
            else:
                logger.exception("the predictor failed on %d records", len(records))
                _settle(batch[0], error)
            return
        for request in batch:
            _settle(request, answers[: len(request.records)])
            del answers[: len(request.records)]

    def _predict(self, records: list[Record]) -> list[Record]:
        try:
            answers = list(self._predictor.predict(records))
        except Exception as error:
            raise PredictionError(f"{type(error).__name__}: {error}") from error
        if len(answers) != len(records):
            raise PredictionError(f"{len(answers)} answers to {len(records)} records")
        return answers


def _settle(request: _Request, result: list[Record] | PredictionError) -> None:
    if request.answers.done():  # cancelled: nobody waits for it any more
        return
    if isinstance(result, PredictionError):
        request.answers.set_exception(result)
    else:
        request.answers.set_result(result)
