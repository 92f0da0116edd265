"""Prediction for files of records."""

import contextlib
import itertools
import logging
import signal
import sys
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any, NoReturn, Protocol

from tqdm import tqdm

from src.inference.record_files import NumberedRecord, write_records
from src.tasks.record_processor import Record
from src.tasks.task_info import TaskInfo

logger = logging.getLogger(__name__)
RECORDS_AT_ONCE = 1024
PREDICTION, TRUNCATED = "prediction", "truncated"
LENGTHS = ("max_seq_length", "max_qa_length", "max_query_length")  # keys of a task's limits for texts


class RecordPredictor(Protocol):
    """Interface of Predictor and TextSearch."""

    task_info: TaskInfo

    def predict(self, records: Sequence[Record]) -> list[Record]: ...

    def skip(self, records: Sequence[Record]) -> None: ...


def part_bounds(records: Iterator[NumberedRecord], index: int, count: int) -> tuple[int, int]:
    """Return the first record of a part, and the first behind it; each call of the predictor lies in one part."""
    calls = -(-sum(1 for _ in records) // RECORDS_AT_ONCE)
    begin, end = (RECORDS_AT_ONCE * (calls * part // count) for part in (index, index + 1))
    if begin == end:
        logger.warning(f"part {index}/{count} is empty: a part holds a multiple of {RECORDS_AT_ONCE:,} records")
    return begin, end


def predict_batch(
    predictor: RecordPredictor, batch: list[NumberedRecord]
) -> Iterator[tuple[NumberedRecord, dict[str, Any]]]:
    """Yield (record, answer); the answer is {"error": sentence} for a record that could not be answered."""
    answers = iter(predictor.predict([record.record for record in batch if not record.error]))
    for record in batch:
        yield record, {"error": record.error} if record.error else next(answers)


def merge_answer(record: NumberedRecord, answer: dict[str, Any]) -> dict[str, Any]:
    """Return the output object for a record: the record's keys and the answer's.

    If they share a key, the answer goes under "prediction" instead (or "prediction_2" and so on, if that is taken). A
    record that could not be answered is reduced to its id and line.
    """
    if "error" in answer:
        return {"id": record.record.get("id"), "line": record.line, **answer}
    reserved = {*answer, TRUNCATED, "error"}  # for all records, so that outputs share one layout
    if record.record.keys().isdisjoint(reserved):
        return record.record | answer
    names = itertools.chain([PREDICTION], (f"{PREDICTION}_{number}" for number in itertools.count(2)))
    return record.record | {next(name for name in names if name not in record.record): answer}


@contextlib.contextmanager
def _exit_on_signals() -> Iterator[None]:
    """Raise SystemExit on SIGTERM and SIGHUP, so that unfinished output files are closed or removed.

    MindSpore turns Ctrl-C into SIGTERM while a graph runs. An ignored signal (nohup) stays ignored.
    """

    def leave(number: int, _: FrameType | None) -> NoReturn:
        # A second SIGTERM ends the process at once. SIGHUP may come twice, from the system and from the shell.
        signal.signal(number, signal.SIG_IGN if number == signal.SIGHUP else signal.SIG_DFL)
        sys.exit(128 + number)

    previous_handlers = {}
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:
            previous_handlers[number] = signal.signal(number, leave)
    try:
        yield
    finally:
        for number, handler in previous_handlers.items():
            signal.signal(number, handler)


def answer_records(
    predictor: RecordPredictor,
    records: Iterator[NumberedRecord],
    output: str,
    bounds: tuple[int, int | None] = (0, None),
    fingerprint: str = "",
) -> int:
    """Write the answers of records to `output` ("-": standard output). Return exit code 1 if none was answered.

    Args:
        bounds: first record, and the first one behind the last (None: to the end), from part_bounds. Answers have the
            same bytes as in an output of all records.
        fingerprint: hash of all that the answers depend on; a run resumes after unfinished answers with the same one.
            "": it never resumes.
    """
    truncated = 0
    begin, end = bounds
    records = itertools.islice(records, end)
    with (
        _exit_on_signals(),
        write_records(output, fingerprint, RECORDS_AT_ONCE) as answers,
        tqdm(unit=" records", initial=answers.count, disable=not sys.stderr.isatty()) as progress,
    ):
        before = answers.count
        for _ in range((begin + before) // RECORDS_AT_ONCE):
            skipped = itertools.islice(records, RECORDS_AT_ONCE)
            predictor.skip([record.record for record in skipped if not record.error])
        while batch := list(itertools.islice(records, RECORDS_AT_ONCE)):
            for record, answer in predict_batch(predictor, batch):
                truncated += answer.get(TRUNCATED, False)
                answers.write(merge_answer(record, answer))
            answers.stream.flush()
            progress.update(len(batch))
    total = answers.count
    failed = answers.failed
    logger.info(f"answered {total - failed:,} of {total:,} records")
    if truncated:
        task_info = predictor.task_info
        limits = ", ".join(f"{key} {getattr(task_info, key)}" for key in LENGTHS if key in task_info.setting_keys())
        new = total - before
        logger.info(f"{truncated:,} of {new:,} records were truncated to the model's limits: {limits}")
    if failed:
        logger.info(f"{failed:,} of {total:,} records could not be answered: see their error key in the output")
    return 1 if total and failed == total else 0
