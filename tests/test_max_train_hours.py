"""Runs that are limited in time."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from mindspore import Tensor

from src.checkpoints.checkpoint_files import list_checkpoints
from src.training.dry_run import dry_run
from src.training.phases import Phase, Phases
from src.training.run_folder import RunFolder
from src.training.run_plan import RunPlan
from src.training.trainer import Trainer
from tests.helpers.numpy_loop import Rows, Step, log, make_config, make_identity, one_phase


class Clock:
    """A second passes whenever it is looked at."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        self.seconds += 1.0
        return self.seconds


def timed(folder: Path, max_seconds: float, step: Step, **changes: Any) -> Trainer:
    config = make_config(folder, log_steps=100, save_checkpoint_steps=0, **changes)
    with RunFolder(folder, config) as run:
        plan = RunPlan(20, max_seconds)
        trainer = Trainer(step, one_phase(), plan, run, make_identity())
        trainer.progress.clock = Clock()
        trainer.fit()
    return trainer


def stop_after(updates: int, folder: Path) -> None:
    """A run of ten seconds that gets SIGTERM in the update behind so many."""

    class Stopped(Step):
        def train(self, micro_batches: list, *pace: float) -> dict[str, Tensor]:
            if int(self.tried.asnumpy()) == updates:
                os.kill(os.getpid(), signal.SIGTERM)
            return super().train(micro_batches, *pace)

    with pytest.raises(SystemExit):
        timed(folder, 10.0, Stopped(), max_train_hours=1)


def test_a_run_ends_when_its_time_is_over(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    step = Step()
    trainer = timed(tmp_path, 10.0, step, max_train_hours=1)
    assert trainer.state.step == len(step.elapsed) == 10
    assert step.elapsed == pytest.approx([number / 10 for number in range(10)])
    assert log(tmp_path)[-1]["step"] == 10 and log(tmp_path)[-1]["eta_s"] == 0
    assert [number for number, _ in list_checkpoints(tmp_path)] == [10]
    assert "max_train_hours 1 are over after step 10" in capsys.readouterr().out
    with RunFolder(tmp_path, trainer.config) as folder:
        assert folder.finished


def test_the_time_of_earlier_sessions_counts(tmp_path: Path) -> None:
    stop_after(5, tmp_path)
    step = Step()
    trainer = timed(tmp_path, 10.0, step, max_train_hours=1)
    assert trainer.state.step < 10 and step.elapsed[0] > 0.6


def test_a_run_that_is_stopped_in_its_last_seconds_still_ends_with_its_record(tmp_path: Path) -> None:
    """The clock goes on between the decision that it is not over and the state that is saved."""
    stop_after(8, tmp_path)
    (last,) = (number for number, _ in list_checkpoints(tmp_path))
    assert last == 9
    timed(tmp_path, 10.0, Step(), max_train_hours=1)
    assert log(tmp_path)[-1]["step"] == list_checkpoints(tmp_path)[0][0] > 9


@pytest.mark.parametrize(("warm_up", "is_named"), [(12, True), (9, False)])
def test_a_rate_that_never_falls_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture, warm_up: int, is_named: bool
) -> None:
    timed(tmp_path, 10.0, Step(), **{"max_train_hours": 1, "optimizer_cfg.AdamWeightDecay.warmup_steps": warm_up})
    assert (f"warm-up of {warm_up} updates" in capsys.readouterr().out) == is_named


def test_a_dry_run_says_how_many_updates_fit(tmp_path: Path) -> None:
    config, plan = make_config(tmp_path / "run", max_train_hours=1), RunPlan(20, 3600.0)
    folder = RunFolder(tmp_path / "run", config)
    said = dry_run(Trainer(Step(), one_phase(), plan, folder, make_identity()))
    assert ", about 20 of them fit into max_train_hours 1. Host" in said


def test_a_dry_run_gives_each_phase_its_share_of_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("src.training.dry_run.timed_update", lambda _, micro_batches: float(len(micro_batches)))
    phases = Phases([Phase(Rows(), 1, 0.5), Phase(Rows(), 4, 0.5)])
    config, plan = make_config(tmp_path / "run", max_train_hours=1), RunPlan(100_000, 3600.0)
    folder = RunFolder(tmp_path / "run", config)
    said = dry_run(Trainer(Step(), phases, plan, folder, make_identity()))
    # 5 s for the first updates; the rest at 1 update a second and at a quarter of that.
    assert f", about {int(3595 * (0.5 + 0.5 / 4))} of them fit into max_train_hours 1. Host" in said


def test_without_a_limit_time_does_not_count(tmp_path: Path) -> None:
    step = Step()
    assert timed(tmp_path, 0.0, step).state.step == 20
    assert not any(step.elapsed)
