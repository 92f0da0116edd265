"""Micro-batching: requests that arrive close together, or while the predictor is busy, share its next call."""

import asyncio
import contextlib
import logging
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from src.inference.predictor import Predictor
from src.tasks.answerer import Record

logger = logging.getLogger(__name__)


class QueueFullError(Exception):
    """As many records wait as may wait."""


class PredictionError(Exception):
    """The predictor raised an exception, or did not give an answer for each record."""


@dataclass(eq=False)
class _Request:
    """left: records that have no answer yet, behind those that have."""

    left: list[Record]
    answers: asyncio.Future[list[Record]]
    answered: list[Record] = field(default_factory=list)


_Part = tuple[_Request, list[Record]]  # the next of a request's records


class MicroBatcher:
    """Collects requests in a queue and answers them in order, several with one call of the predictor.

    A request that is too much for a call takes several, between which it stands behind those that wait.

    Args:
        predictor: or anything with its task_info and predict; called from one thread of its own, one call at a time.
        max_batch: records of one call.
        max_characters: of their texts; a record that has more makes a call by itself.
        max_waiting: records in the queue at most; a request that has more is taken when the queue is empty.
        window: seconds that the first of an idle time waits for further requests.
    """

    def __init__(
        self, predictor: Predictor, max_batch: int, max_characters: int, max_waiting: int, window: float
    ) -> None:
        self._predictor, self._window = predictor, window
        self._max_batch, self._max_characters, self._max_waiting = max_batch, max_characters, max_waiting
        self._queue: deque[_Request] = deque()
        self._worker: asyncio.Task | None = None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="predictor")

    @property
    def waiting(self) -> int:
        """Records in the queue, those of requests that the predictor is working on not counted."""
        return sum(len(request.left) for request in self._queue)

    async def answer(self, records: list[Record]) -> list[Record]:
        """One answer a record, in order; QueueFullError or PredictionError where there will be none."""
        if not records:
            return []
        if self._queue and self.waiting + len(records) > self._max_waiting:
            raise QueueFullError
        loop = asyncio.get_running_loop()
        request = _Request(list(records), loop.create_future())
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

    def _next_batch(self) -> list[_Part]:
        """What comes next: whole requests, or the first records of one that is too much. They leave the queue."""
        batch: list[_Part] = []
        room, characters = self._max_batch, self._max_characters
        while self._queue and room:
            request, part = self._queue[0], []
            for record in request.left[:room]:
                characters -= _characters(record)
                if characters < 0 and (batch or part):
                    break
                part.append(record)
            whole = len(part) == len(request.left)
            if batch and not whole:
                break
            batch.append((self._queue.popleft(), part))
            room -= len(part) if whole else room
        return batch

    async def _answer_together(self, batch: list[_Part]) -> None:
        records = [record for _, part in batch for record in part]
        try:
            answers = await asyncio.get_running_loop().run_in_executor(self._thread, self._predict, records)
        except PredictionError as error:
            if len(batch) > 1:  # one request's fault is not to be the others'
                for request, part in batch:
                    if not request.answers.done():  # its client has waited as long as it would
                        await self._answer_together([(request, part)])
            else:
                logger.exception("the predictor failed on %d records", len(records))
                if not batch[0][0].answers.done():
                    batch[0][0].answers.set_exception(error)
            return
        for request, part in batch:
            request.answered += answers[: len(part)]
            del answers[: len(part)], request.left[: len(part)]
            if request.answers.done():  # cancelled: nobody waits for it any more
                continue
            if request.left:
                self._queue.append(request)
            else:
                request.answers.set_result(request.answered)

    def _predict(self, records: list[Record]) -> list[Record]:
        try:
            answers = list(self._predictor.predict(records))
        except Exception as error:
            raise PredictionError(f"{type(error).__name__}: {error}") from error
        if len(answers) != len(records):
            raise PredictionError(f"{len(answers)} answers to {len(records)} records")
        return answers


def _characters(record: Record) -> int:
    """Of all texts of a record."""
    return sum(len(value) if isinstance(value, str) else sum(map(len, value)) for value in record.values())
