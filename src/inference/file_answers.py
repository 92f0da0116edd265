"""Answer a file of records, a line for each, or estimate time, memory and disk for it."""

import contextlib
import itertools
import logging
import random
import signal
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from types import FrameType
from typing import Any, NoReturn

from tqdm import tqdm

from model_utils.memory import peak_memory
from src.inference.predictor import Predictor
from src.inference.record_files import NumberedRecord, line_of, write_records

logger = logging.getLogger(__name__)
RECORDS_AT_ONCE = 1024
DRY_RUN_RECORDS = 64  # records that a dry run answers
PREDICTION, TRUNCATED = "prediction", "truncated"
LENGTHS = ("max_seq_length", "max_qa_length", "max_query_length")  # of a task, that texts are cut to


def answered(predictor: Predictor, batch: list[NumberedRecord]) -> Iterator[tuple[NumberedRecord, dict[str, Any]]]:
    """Every record with its answer, which is {"error": sentence} for one that could not be answered."""
    answers = iter(predictor.predict([each.record for each in batch if not each.error]))
    for each in batch:
        yield each, {"error": each.error} if each.error else next(answers)


def joined(record: NumberedRecord, answer: dict[str, Any]) -> dict[str, Any]:
    """The object that a record's line becomes.

    A record that has one of the answer's keys itself keeps it, and has the answer under "prediction" (or, where it has
    that as well, "prediction_2" and so on). Of one that could not be answered stay its id and its line.
    """
    if "error" in answer:
        return {"id": record.record.get("id"), "line": record.line, **answer}
    if record.record.keys().isdisjoint({*answer, TRUNCATED}):  # which an answer to a text that was not cut lacks
        return record.record | answer
    names = itertools.chain([PREDICTION], (f"{PREDICTION}_{number}" for number in itertools.count(2)))
    return record.record | {next(name for name in names if name not in record.record): answer}


@contextlib.contextmanager
def _asked_to_end_is_exit() -> Iterator[None]:
    """SIGTERM and the end of the terminal are exceptions, so that what is half written goes.

    MindSpore turns Ctrl-C into SIGTERM while a graph runs. Under nohup the end of the terminal is not told.
    """

    def leave(number: int, _: FrameType | None) -> NoReturn:
        # Asked again, the process ends as soon as it is asked; system and shell may both tell the end of a terminal.
        signal.signal(number, signal.SIG_IGN if number == signal.SIGHUP else signal.SIG_DFL)
        sys.exit(128 + number)

    before = {}
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:
            before[number] = signal.signal(number, leave)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def answer_records(predictor: Predictor, records: Iterator[NumberedRecord], output: str) -> int:
    """Write the answers of all records to `output` ("-": standard output); exit code 1 if none could be answered."""
    total = failed = truncated = 0
    with (
        _asked_to_end_is_exit(),
        write_records(output) as write,
        tqdm(unit=" records", disable=not sys.stderr.isatty()) as progress,
    ):
        while batch := list(itertools.islice(records, RECORDS_AT_ONCE)):
            for record, answer in answered(predictor, batch):
                failed += "error" in answer
                truncated += answer.get(TRUNCATED, False)
                write(joined(record, answer))
            total += len(batch)
            progress.update(len(batch))
    logger.info(f"answered {total - failed:,} of {total:,} records")
    if truncated:
        task_info = predictor.task_info
        limits = ", ".join(f"{key} {getattr(task_info, key)}" for key in LENGTHS if key in task_info.settings())
        logger.info(
            f"{truncated:,} of {total:,} records have texts longer than the model takes, which were cut: {limits}"
        )
    if failed:
        logger.info(f"{failed:,} of {total:,} records could not be answered: each has an error in its place")
    return int(0 < failed == total)


def dry_run(predictor: Predictor, records: Iterator[NumberedRecord]) -> list[str]:
    """Read all records and answer a random sample; sentences on what cannot be answered, and on time, memory and disk.

    Nothing is kept.
    """
    chance, chosen, unreadable, total = random.Random(0), [], 0, 0
    for record in records:
        total += 1
        unreadable += bool(record.error)
        if len(chosen) < DRY_RUN_RECORDS:
            chosen.append(record)
        elif (place := chance.randrange(total)) < DRY_RUN_RECORDS:
            chosen[place] = record
    seconds = []
    for _ in range(2):
        start = time.monotonic()
        pairs = list(answered(predictor, chosen))
        seconds.append(time.monotonic() - start)
    share = total / max(1, len(chosen))
    size = share * sum(len(line_of(joined(*pair)).encode()) for pair in pairs)
    errors = [f"line {record.line}: {answer['error']}" for record, answer in pairs if "error" in answer]
    sentences = []
    if errors:
        sentences.append(
            f"dry run: {len(errors)} of the {len(chosen)} records looked at cannot be answered; the first: {errors[0]}"
        )
    sentences.append(
        f"dry run: {total:,} records, {unreadable:,} of them unreadable. {len(chosen)} were answered in "
        f"{seconds[1]:.2f} s (the first time {seconds[0]:.1f} s, with compilation); all take about "
        f"{timedelta(seconds=round(seconds[1] * share))}. Host memory at its peak: {peak_memory() / 1e9:.2f} GB. The "
        f"answers take about {size / 1e6:.1f} MB. Nothing was kept."
    )
    return sentences
