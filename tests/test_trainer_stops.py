"""The loop: evaluation, early stopping, and signals that end it."""

import json
import math
import os
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from mindspore import Tensor

from model_utils.errors import UserError
from model_utils.json_files import read_object
from model_utils.rendezvous import Rendezvous
from src.checkpoints.checkpoint_files import list_checkpoints
from src.training import checkpoint
from src.training.evaluation import Selection
from src.training.ranks import Ranks
from src.training.run_folder import RunFolder
from src.training.run_plan import RunPlan
from src.training.trainer import MAX_UPDATES_PER_SYNC, Trainer
from tests.helpers.kills import kill_at
from tests.helpers.numpy_loop import (
    NoSignals,
    Step,
    evaluation,
    fit,
    log,
    make_config,
    make_identity,
    one_phase,
    without_speed,
)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)])
def test_a_signal_saves_and_ends(
    tmp_path: Path, undisturbed: Path, capsys: pytest.CaptureFixture, number: int, code: int
) -> None:
    class Signalled(Step):
        def train(self, micro_batches: list, *pace: float) -> dict[str, Tensor]:
            if int(self.tried.asnumpy()) == 6:
                os.kill(os.getpid(), number)
            return super().train(micro_batches, *pace)

    config, before = make_config(tmp_path), signal.getsignal(number)
    with pytest.raises(SystemExit) as stop:
        fit(config, Signalled())
    assert stop.value.code == code
    assert list_checkpoints(tmp_path)[0][0] == 7
    assert "after step 7, saved" in capsys.readouterr().out
    # System and shell may both tell the end of a terminal, the second one when the state is saved.
    assert signal.getsignal(number) is (signal.SIG_IGN if number == signal.SIGHUP else before)
    signal.signal(number, before)
    fit(config)
    assert without_speed(log(tmp_path)) == without_speed(log(undisturbed))


@pytest.mark.parametrize("moment", ["last update", "last checkpoint"])
def test_a_signal_at_the_end_is_obeyed_when_the_run_is_finished(
    tmp_path: Path, undisturbed: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    class Signalled(Step):
        def train(self, micro_batches: list, *pace: float) -> dict[str, Tensor]:
            if moment == "last update" and int(self.tried.asnumpy()) == 19:
                os.kill(os.getpid(), signal.SIGTERM)
            return super().train(micro_batches, *pace)

    def save(trainer: Trainer) -> None:
        if moment == "last checkpoint" and trainer.state.step == 20:
            os.kill(os.getpid(), signal.SIGTERM)
        save_as_ever(trainer)

    save_as_ever = Trainer.save
    monkeypatch.setattr(Trainer, "save", save)
    config = make_config(tmp_path)
    with pytest.raises(SystemExit, match="143"):
        fit(config, Signalled())
    assert without_speed(log(tmp_path)) == without_speed(log(undisturbed))
    assert list_checkpoints(tmp_path)[0][0] == 20
    with RunFolder(tmp_path, config) as folder:
        assert folder.finished


def test_evaluation_joins_the_record_of_its_step(tmp_path: Path) -> None:
    fit(make_config(tmp_path), evaluation=evaluation(lambda _: {"loss": 1.25, "f1": 0.5}, 6))
    evaluated = {record["step"]: record.get("eval_loss") for record in log(tmp_path)}
    assert evaluated == {1: None, 2: None, 4: None, 6: 1.25, 8: None, 12: 1.25, 16: None, 18: 1.25, 20: 1.25}


def test_an_evaluation_that_is_no_number_is_said_and_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fit(make_config(tmp_path), evaluation=evaluation(lambda _: {"loss": math.inf, "accuracy": 0.5}, 10))
    assert [(r["eval_loss"], r["eval_accuracy"]) for r in log(tmp_path) if "eval_loss" in r] == [(None, 0.5)] * 2
    assert "evaluation after step 10: loss is inf, which the log leaves out" in capsys.readouterr().out


def test_the_best_evaluation_is_marked_kept_and_ends_the_run_when_patience_is_over(tmp_path: Path) -> None:
    scores = iter([0.2, 0.6, 0.6, 0.5, 0.9])
    fit(
        make_config(tmp_path, save_checkpoint_num=1, save_checkpoint_steps=0),
        evaluation=evaluation(lambda _: {"f1": next(scores)}, 3, Selection("f1", patience=2)),
    )
    best = read_object(tmp_path / "best_checkpoint.json")
    assert best == {"checkpoint": "albert-6.ckpt", "step": 6, "f1": 0.6}
    assert [step for step, _ in list_checkpoints(tmp_path)] == [12, 6]
    assert log(tmp_path)[-1]["step"] == 12


def test_a_best_checkpoint_that_a_kill_left_without_its_mark_gets_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    scores = iter([0.9, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6])
    arguments = {"config": make_config(tmp_path, save_checkpoint_steps=0)}
    arguments["evaluation"] = evaluation(lambda _: {"f1": next(scores)}, 3, Selection("f1"))
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "mark_best", killed)
        with pytest.raises(KeyboardInterrupt):
            fit(**arguments)
    assert not (tmp_path / "best_checkpoint.json").exists()
    fit(**arguments)
    assert json.loads((tmp_path / "best_checkpoint.json").read_text())["step"] == 3


def test_the_best_whole_checkpoint_stays_where_a_better_one_was_damaged(tmp_path: Path) -> None:
    scores = iter([0.5, 0.4, 0.9, 0.1, 0.4, 0.3])
    arguments = {"evaluation": evaluation(lambda _: {"f1": next(scores)}, 5, Selection("f1"))}
    config = make_config(tmp_path, save_checkpoint_num=3)
    with pytest.raises(UserError, match="training diverged"):
        fit(config, Step(failing=[16], scaling="off"), **arguments)
    assert json.loads((tmp_path / "best_checkpoint.json").read_text())["step"] == 15
    (tmp_path / "albert-15.ckpt").write_bytes(b"damaged")
    scores = iter([0.4, 0.3])
    fit(config, **arguments)
    assert json.loads((tmp_path / "best_checkpoint.json").read_text())["step"] == 5
    assert [step for step, _ in list_checkpoints(tmp_path)] == [20, 15, 10, 5]


def test_a_kill_before_older_checkpoints_went_keeps_none_too_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    config = make_config(tmp_path, save_checkpoint_num=1)
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "prune_checkpoints", lambda _, written, __: killed() if len(written) > 1 else written)
        with pytest.raises(KeyboardInterrupt):
            fit(config)
    assert [step for step, _ in list_checkpoints(tmp_path)] == [10, 5]
    with pytest.raises(UserError, match="training diverged"):
        fit(config, Step(failing=[11], scaling="off"))
    assert [step for step, _ in list_checkpoints(tmp_path)] == [10]


@pytest.mark.parametrize("step", [6, 20])
def test_a_signal_in_an_evaluation_is_answered_before_its_next_batch(
    tmp_path: Path, capsys: pytest.CaptureFixture, step: int
) -> None:
    """The evaluation is done again after resuming, and the log and the best checkpoint are those of a quiet run."""
    batches: list[int] = []

    class Evaluate:
        def __init__(self, stop_at: int) -> None:
            self.stop_at, self.network = stop_at, Step()

        def __call__(self, before_batch: Callable[[], object]) -> dict[str, float]:
            for number in range(3):
                before_batch()
                batches.append(number)
                if number == 1 and int(self.network.tried.asnumpy()) == self.stop_at:
                    os.kill(os.getpid(), signal.SIGTERM)
            return {"f1": math.sin(int(self.network.tried.asnumpy()))}

    def run(folder: Path, stop_at: int = 0) -> None:
        evaluate = Evaluate(stop_at)
        config = make_config(folder, save_checkpoint_num=1)
        fit(config, evaluate.network, evaluation=evaluation(evaluate, 6, Selection("f1")))

    run(tmp_path / "quiet")
    batches.clear()
    with pytest.raises(SystemExit) as stop:
        run(tmp_path / "stopped", step)
    assert stop.value.code == 143 and f"stopped in the evaluation after step {step}, saved" in capsys.readouterr().out
    assert batches[-2:] == [0, 1] and list_checkpoints(tmp_path / "stopped")[0][0] == step
    (record,) = (line for line in log(tmp_path / "quiet") if line["step"] == step)
    with (tmp_path / "stopped" / "train_log.jsonl").open("a") as file:
        file.write(json.dumps(record) + "\n")  # a second attempt was killed after its evaluation
    run(tmp_path / "stopped")
    assert len(batches) == 4 * 3 + 2
    assert without_speed(log(tmp_path / "stopped")) == without_speed(log(tmp_path / "quiet"))
    best = [(tmp_path / name / "best_checkpoint.json").read_text() for name in ("stopped", "quiet")]
    assert best[0] == best[1] and json.loads(best[0])["step"] == 20


def test_a_signal_with_the_last_batch_of_an_evaluation_trains_no_update_more(tmp_path: Path) -> None:
    def evaluate(before_batch: Callable[[], object]) -> dict[str, float]:
        before_batch()
        os.kill(os.getpid(), signal.SIGTERM)
        return {"f1": 0.5}

    step = Step()
    with pytest.raises(SystemExit, match="143"):
        fit(make_config(tmp_path), step, evaluation=evaluation(evaluate, 6))
    assert int(step.tried.asnumpy()) == list_checkpoints(tmp_path)[0][0] == 6
    assert log(tmp_path)[-1]["eval_f1"] == 0.5


@pytest.mark.parametrize("step", [8, 20])
def test_an_evaluation_that_a_resumed_run_owes_no_more_leaves_its_line_of_the_log(
    tmp_path: Path, undisturbed: Path, step: int
) -> None:
    def evaluate(before_batch: Callable[[], object]) -> dict[str, float]:
        os.kill(os.getpid(), signal.SIGTERM)
        before_batch()
        raise AssertionError("the signal was to be obeyed")

    config = make_config(tmp_path)
    with pytest.raises(SystemExit, match="143"):
        fit(config, evaluation=evaluation(evaluate, step))
    fit(config)
    assert without_speed(log(tmp_path)) == without_speed(log(undisturbed))
    assert json.loads((tmp_path / "train_results.json").read_text())["step"] == 20


def test_all_ranks_leave_an_evaluation_together(tmp_path: Path) -> None:
    """Two ranks, threads here; the signal reaches one of them, and the other evaluates no further batch."""

    rendezvous = Rendezvous(2)

    def act(rank: int) -> tuple[str, int]:
        config, ranks = make_config(tmp_path / "run"), Ranks(rank, 2, rendezvous, wait_minutes=0.5)
        signals, batches = NoSignals(), 0

        def evaluate(before_batch: Callable[[], object]) -> dict[str, float]:
            nonlocal batches
            for _ in range(3):
                before_batch()
                batches += 1
                signals.received = signal.SIGTERM * (rank == 1 and batches == 2)
            return {"f1": 0.5}

        with RunFolder(config.save_checkpoint_path, config, ranks) as folder:
            measured = evaluation(evaluate, 3)
            trainer = Trainer(Step(), one_phase(), RunPlan(20), folder, make_identity(), evaluation=measured)
            trainer.signals = signals
            try:
                trainer.fit()
            except SystemExit as stop:
                return str(stop.code), batches
        return "finished", batches

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(act, range(2))) == [("143", 2), ("143", 2)]
    assert [step for step, _ in list_checkpoints(tmp_path / "run")] == [3]


def test_ranks_synchronise_after_several_fast_updates_and_stop_after_the_same(tmp_path: Path) -> None:
    rendezvous = Rendezvous(2)

    def act(rank: int) -> tuple[int, int]:
        config = make_config(tmp_path / "run", train_steps=300, save_checkpoint_steps=0)
        ranks, signals = Ranks(rank, 2, rendezvous, wait_minutes=0.5), NoSignals()

        class Signalled(Step):
            def train(self, micro_batches: list, *pace: float) -> dict[str, Tensor]:
                if rank == 1 and int(self.tried.asnumpy()) == 150:
                    signals.received = signal.SIGTERM
                return super().train(micro_batches, *pace)

        with RunFolder(config.save_checkpoint_path, config, ranks) as folder:
            trainer = Trainer(Signalled(), one_phase(), RunPlan(300), folder, make_identity())
            trainer.signals = signals
            with pytest.raises(SystemExit, match="143"):
                trainer.fit()
        return trainer.state.step, ranks.barriers

    with ThreadPoolExecutor(2) as pool:
        (step, barriers), others = pool.map(act, range(2))
    assert (step, barriers) == others
    assert 150 < step <= 150 + MAX_UPDATES_PER_SYNC and barriers < step


def test_patience_survives_a_kill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed at step 11, after the first evaluation that was not better, at step 9."""
    scores = iter([0.6, 0.5])
    kill_at(monkeypatch, 10)
    when = 4, Selection("f1", patience=2)
    config = make_config(tmp_path, save_checkpoint_steps=9)
    with pytest.raises(KeyboardInterrupt):
        fit(config, evaluation=evaluation(lambda _: {"f1": next(scores)}, *when))
    fit(config, evaluation=evaluation(lambda _: {"f1": 0.6}, *when))
    assert log(tmp_path)[-1]["step"] == 12
    assert json.loads((tmp_path / "best_checkpoint.json").read_text())["step"] == 4
