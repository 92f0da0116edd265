"""Signals that the launcher of ranks hands on."""

import signal
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from scripts.launch import Job


@pytest.mark.parametrize("signals", [1, 2])
def test_every_rank_is_asked_to_stop_once(signals: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked twice, a rank does not save; a second signal may come before the ranks have heard of the first."""
    asked: list[int] = []

    def running_rank(rank: int) -> SimpleNamespace:
        process = SimpleNamespace(poll=lambda: None, send_signal=lambda number: asked.append(rank))
        return SimpleNamespace(process=process, stops=lambda: False)

    job = Job(2, tmp_path, [], tmp_path)
    assert not any(job.is_failure(128 + number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP))
    assert job.is_failure(1) and job.is_failure(128 + signal.SIGSEGV)
    job.processes = [running_rank(0), running_rank(1)]
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(time, "sleep", lambda _: job.ask_to_stop(signal.SIGINT) if signals == 2 else None)
    job.ask_to_stop(signal.SIGINT)
    assert asked == [0, 1] and job.stop == signal.SIGINT
