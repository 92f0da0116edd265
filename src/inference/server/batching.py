"""Micro-batching: requests that arrive close together, or while the predictor is busy, share a call of it."""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from src.inference.predictor import Predictor
from src.inference.server.limits import Limits
from src.tasks.record_processor import Record

logger = logging.getLogger(__name__)


class QueueFullError(Exception):
    """The queue has no room for the records of a request."""


class PredictionError(Exception):
    """The predictor raised an exception, or returned another number of answers than records."""


@dataclass(eq=False)
class _Request:
    """Request in the queue, with its unanswered records, its future answers and the answers so far."""

    remaining: list[Record]
    result: asyncio.Future[list[Record]]
    answers: list[Record] = field(default_factory=list)


_Slice = tuple[_Request, list[Record]]  # a request and the first of its remaining records


class MicroBatcher:
    """Queue of requests that are answered in order, several with one call of the predictor.

    A request that is too large for a call takes several, and goes to the end of the queue after each.

    Args:
        predictor: or any object with its task_info and predict; called from one dedicated thread.
        limits: a record longer than batch_characters gets a call of its own; a request of more than `waiting` records
            is accepted if the queue is empty.
    """

    def __init__(self, predictor: Predictor, limits: Limits) -> None:
        self._predictor = predictor
        self._limits = limits
        self._queue: deque[_Request] = deque()
        self._worker: asyncio.Task | None = None
        self.on_batch: Callable[[int], object] = lambda _: None  # is told the records of each call, in its thread
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="predictor")

    @property
    def waiting(self) -> int:
        """Records in the queue, without those of requests in the predictor's current call."""
        return sum(len(request.remaining) for request in self._queue)

    async def answer(self, records: list[Record]) -> list[Record]:
        """Return one answer per record, in order; raise QueueFullError or PredictionError if there are none."""
        if not records:
            return []
        if self._queue and self.waiting + len(records) > self._limits.waiting:
            raise QueueFullError
        loop = asyncio.get_running_loop()
        request = _Request(list(records), loop.create_future())
        self._queue.append(request)
        if self._worker is None or self._worker.done():
            self._worker = loop.create_task(self._work())
        try:
            return await request.result
        except asyncio.CancelledError:  # the client has left: do not compute what is still in the queue
            with contextlib.suppress(ValueError):
                self._queue.remove(request)
            raise

    def close(self) -> None:
        """Stop the predictor's thread after its current call."""
        self._thread.shutdown(wait=False)

    async def _work(self) -> None:
        await asyncio.sleep(self._limits.window)
        while self._queue:
            await self._answer_together(self._next_batch())

    def _next_batch(self) -> list[_Slice]:
        """Remove the next requests from the queue: several whole ones, or one, perhaps with its first records only."""
        batch: list[_Slice] = []
        room = self._limits.batch
        characters_left = self._limits.batch_characters
        while self._queue and room:
            request = self._queue[0]
            records: list[Record] = []
            for record in request.remaining[:room]:
                characters_left -= _characters(record)
                if characters_left < 0 and (batch or records):
                    break
                records.append(record)
            is_whole = len(records) == len(request.remaining)
            if batch and not is_whole:
                break
            batch.append((self._queue.popleft(), records))
            room = room - len(records) if is_whole else 0
        return batch

    async def _answer_together(self, batch: list[_Slice]) -> None:
        """Answer a batch with one call of the predictor, or request by request if that fails."""
        all_records = [record for _, records in batch for record in records]
        try:
            answers = await asyncio.get_running_loop().run_in_executor(self._thread, self._predict, all_records)
        except PredictionError as error:
            if len(batch) > 1:  # so that a faulty request does not fail the others
                for request, records in batch:
                    if not request.result.done():  # cancelled: the client has left
                        await self._answer_together([(request, records)])
            else:
                logger.exception("the predictor failed on %d records", len(all_records))
                request = batch[0][0]
                if not request.result.done():
                    request.result.set_exception(error)
            return
        for request, records in batch:
            request.answers += answers[: len(records)]
            del answers[: len(records)]
            del request.remaining[: len(records)]
            if request.result.done():  # cancelled: the client has left
                continue
            if request.remaining:
                self._queue.append(request)
            else:
                request.result.set_result(request.answers)

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
