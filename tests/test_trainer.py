"""The loop alone, with a step that computes in numpy: positions, records, resume, stops, divergence."""

import json
import math
import os
import re
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn

from model_utils.device import Device
from model_utils.errors import CheckpointError, ConfigError, UserError
from model_utils.schema import load_config
from src.checkpoint_files import list_checkpoints
from src.training.dry_run import dry_run
from src.training.evaluation import Evaluation, Selection
from src.training.progress import Progress
from src.training.ranks import Ranks
from src.training.run_folder import RunFolder
from src.training.run_plan import LossScale, Precision, RunFacts, RunPlan, plan_precision, plan_run
from src.training.trainer import UNTIL_KNOWN, Trainer
from src.training.training_config import PretrainConfig

LENGTH, BATCH = 8, 4
FLOAT32 = Precision("CPU", "float32", LossScale("off"))


class Rows:
    """Micro-batches whose content is a pure function of epoch and number."""

    def __init__(self, per_epoch: int = 5, lengths: tuple[int, ...] = (LENGTH,)) -> None:
        self.per_epoch, self.lengths = per_epoch, lengths

    def width_shares(self) -> list[tuple[int, float]]:
        return [(number, 1 / len(self.lengths)) for number in range(len(self.lengths))]

    def batches(self, epoch: int, start: int = 0) -> Iterator[dict[str, np.ndarray]]:
        for number in range(start, self.per_epoch):
            mask = np.ones((BATCH, self.lengths[number % len(self.lengths)]), np.int32)
            mask[:, 6:] = 0
            yield {"input_mask": mask, "value": np.float32([epoch * 100 + number])}


class Step(nn.Cell):
    """Its weight remembers every value it saw, in order; `failing` steps are not finite."""

    network = SimpleNamespace(metric_names=("loss", "accuracy"))

    def __init__(self, failing: Any = (), scaling: str = "dynamic") -> None:
        super().__init__()
        self.scaling = LossScale(scaling)
        self.restarts = 0
        self.weight = Parameter(Tensor(0.5, ms.float32), name="albert.weight")
        self.tried = Parameter(Tensor(0, ms.int32), name="global_step")
        self.scale = Parameter(Tensor(8.0, ms.float32), name="loss_scale")
        self.failing = failing
        self.seen: list[float] = []
        self.elapsed: list[float] = []

    def restart_scaling(self) -> None:
        self.restarts += 1

    def train(self, micro_batches: list[dict[str, np.ndarray]], elapsed: float = 0.0) -> dict[str, Tensor]:
        self.elapsed.append(elapsed)
        tried = int(self.tried.asnumpy()) + 1
        values = [float(batch["value"][0]) for batch in micro_batches]
        self.seen += values
        weight = np.float32(math.sin(float(self.weight.asnumpy()) + sum(values)))
        self.weight.set_data(Tensor(weight))
        self.tried.set_data(Tensor(tried, ms.int32))
        scale, finite = float(self.scale.asnumpy()), tried not in self.failing
        if not finite:
            self.scale.set_data(Tensor(max(scale / 2, 1.0), ms.float32))
        return {
            "loss": Tensor(weight + 2 if finite else np.float32(np.nan)),
            "accuracy": Tensor(np.float32(0.5)),
            "grad_norm": Tensor(np.float32(1.0 if finite else np.inf)),
            "finite": Tensor(finite),
            "learning_rate": Tensor(np.float32(0.1 / tried if finite else 0.0)),
            "loss_scale": Tensor(np.float32(scale)),
        }


def make_config(folder: Path, **changes: Any) -> PretrainConfig:
    settings = {
        "train_steps": 20,
        "log_steps": 4,
        "accumulation_steps": 2,
        "batch_size": BATCH,
        "save_checkpoint_path": folder,
        "save_checkpoint_steps": 5,
        "save_checkpoint_num": 2,
        "max_skipped_steps": 5,
        **changes,
    }
    words = [word for key, value in settings.items() if value is not None for word in (f"--{key}", str(value))]
    return load_config(PretrainConfig, ["--config_path", os.devnull, *words])


FACTS = ("identity", "precision", "architecture", "earlier_identity")


def make_facts(
    identity: Any = None, precision: Precision = FLOAT32, architecture: Any = None, earlier_identity: Any = None
) -> RunFacts:
    return RunFacts(identity or {"rows": 20}, precision, architecture or {}, earlier_identity)


def evaluation(measure: Callable[[Callable[[], object]], dict[str, float]], *when: Any) -> Evaluation:
    def result(_: nn.Cell, before_batch: Callable[[], object]) -> SimpleNamespace:
        return SimpleNamespace(metrics=measure(before_batch))

    return Evaluation(nn.Cell(), nn.Cell(), result, *when)


def fit(config: PretrainConfig, step: Step | None = None, **arguments: Any) -> dict[str, Any]:
    data = arguments.pop("data", Rows())
    facts = make_facts(**{key: arguments.pop(key) for key in FACTS if key in arguments})
    with RunFolder(config.save_checkpoint_path, config) as folder:
        plan = RunPlan(config.train_steps, data.per_epoch)
        return Trainer(step or Step(), data, plan, config, folder, facts, **arguments).fit()


def log(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "train_log.jsonl").read_text().splitlines()]


SPEEDS = ("examples_per_s", "tokens_per_s", "mfu", "eta_s")


def without_speed(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in record.items() if key not in SPEEDS} for record in records]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("undisturbed")
    fit(make_config(folder))
    return folder


def test_the_log_has_every_key_of_every_due_step(undisturbed: Path) -> None:
    records = log(undisturbed)
    assert [record["step"] for record in records] == [1, 2, 4, 8, 12, 16, 20]
    wanted = {"step", "epoch", "loss", "accuracy", "learning_rate", "loss_scale", "skipped_steps", "grad_norm", *SPEEDS}
    assert all(set(record) == wanted for record in records)
    assert records[-1]["epoch"] == 20 * 2 / 5 and records[-1]["eta_s"] == 0
    assert records[2]["tokens_per_s"] / records[2]["examples_per_s"] == pytest.approx(6)  # real tokens, not padding
    assert list((undisturbed / "tensorboard").glob("events*"))
    assert (undisturbed / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_records_are_means_over_their_window(tmp_path: Path) -> None:
    every, fourth = make_config(tmp_path / "1", log_steps=1), make_config(tmp_path / "4")
    fit(every), fit(fourth)
    losses = [record["loss"] for record in log(tmp_path / "1")]
    windows = [(0, 1), (1, 2), (2, 4), (4, 8), (8, 12), (12, 16), (16, 20)]
    assert [r["loss"] for r in log(tmp_path / "4")] == [sum(losses[a:b]) / (b - a) for a, b in windows]


def test_the_first_lines_come_soon(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    fit(make_config(tmp_path, log_steps=50))
    assert [record["step"] for record in log(tmp_path)] == [1, 2, 5, 10, 20]
    said = [line.split()[:2] for line in capsys.readouterr().out.splitlines()]
    assert said[0] == ["compiling", "for"] and said[1] == ["step", "1/20"]
    assert said.count(["compiling", "for"]) == 1


def test_micro_batches_come_once_each_across_epochs(tmp_path: Path) -> None:
    step = Step()
    fit(make_config(tmp_path), step)
    assert step.seen == [epoch * 100 + number for epoch in range(8) for number in range(5)]


def test_only_the_newest_checkpoints_stay(undisturbed: Path) -> None:
    assert [step for step, _ in list_checkpoints(undisturbed)] == [20, 15]


@pytest.mark.parametrize("end", [1, 5, 7, 13, 19])
def test_an_interrupted_run_ends_like_an_undisturbed_one(tmp_path: Path, undisturbed: Path, end: int) -> None:
    class Killed(Step):
        def train(self, micro_batches: list, elapsed: float) -> dict[str, Tensor]:
            if int(self.tried.asnumpy()) == end:
                raise KeyboardInterrupt  # nothing is saved at this moment, as after kill -9
            return super().train(micro_batches, elapsed)

    config = make_config(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        fit(config, Killed())
    with (tmp_path / "train_log.jsonl").open("a") as file:
        file.write('{"step": 99, "lo')  # the kill came while a line was written
    step = Step()
    fit(config, step)
    assert without_speed(log(tmp_path)) == without_speed(log(undisturbed))
    assert len(step.seen) == (20 - end // 5 * 5) * 2
    assert [s for s, _ in list_checkpoints(tmp_path)] == [20, 15]


def test_a_damaged_newest_checkpoint_is_passed_over(
    tmp_path: Path, undisturbed: Path, capsys: pytest.CaptureFixture
) -> None:
    config = make_config(tmp_path)
    fit(config)
    newest = tmp_path / "albert-20.ckpt"
    content = bytearray(newest.read_bytes())
    content[30] ^= 1
    newest.write_bytes(content)
    fit(config)
    said = capsys.readouterr().out
    assert "albert-20.ckpt is damaged" in said and "resuming after step 15" in said
    assert without_speed(log(tmp_path)) == without_speed(log(undisturbed))


def test_data_sink_reads_rarely_and_changes_no_number(tmp_path: Path, undisturbed: Path) -> None:
    fit(make_config(tmp_path, enable_data_sink="true", data_sink_steps=7))
    assert without_speed(log(tmp_path)) == without_speed(log(undisturbed))


def test_data_sink_waits_for_the_device_only_every_data_sink_steps(tmp_path: Path) -> None:
    config = make_config(tmp_path, enable_data_sink="true", data_sink_steps=5, save_checkpoint_steps=0, log_steps=1)
    reads: list[int] = []

    class Counting(Trainer):
        def read(self) -> None:
            reads.append(len(self.pending.queue))
            super().read()

    with RunFolder(tmp_path, config) as folder:
        Counting(Step(), Rows(), RunPlan(20, 5), config, folder, make_facts()).fit()
    assert [count for count in reads if count] == [1, 4, 5, 5, 5]  # the first one compiles


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_saves_and_ends(
    tmp_path: Path, undisturbed: Path, capsys: pytest.CaptureFixture, number: int, code: int
) -> None:
    class Signalled(Step):
        def train(self, micro_batches: list, elapsed: float) -> dict[str, Tensor]:
            if int(self.tried.asnumpy()) == 6:
                os.kill(os.getpid(), number)
            return super().train(micro_batches, elapsed)

    config, before = make_config(tmp_path), signal.getsignal(number)
    with pytest.raises(SystemExit) as stop:
        fit(config, Signalled())
    assert stop.value.code == code
    assert list_checkpoints(tmp_path)[0][0] == 7
    assert "after step 7, saved" in capsys.readouterr().out
    assert signal.getsignal(number) is before
    fit(config)
    assert without_speed(log(tmp_path)) == without_speed(log(undisturbed))


@pytest.mark.parametrize("moment", ["last update", "last checkpoint"])
def test_a_signal_at_the_end_is_obeyed_when_the_run_is_finished(
    tmp_path: Path, undisturbed: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    class Signalled(Step):
        def train(self, micro_batches: list, elapsed: float) -> dict[str, Tensor]:
            if moment == "last update" and int(self.tried.asnumpy()) == 19:
                os.kill(os.getpid(), signal.SIGTERM)
            return super().train(micro_batches, elapsed)

    def save(trainer: Trainer) -> None:
        if moment == "last checkpoint" and trainer.progress.step == 20:
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


def test_the_best_evaluation_is_marked_kept_and_ends_the_run_when_patience_is_over(tmp_path: Path) -> None:
    scores = iter([0.2, 0.6, 0.6, 0.5, 0.9])
    fit(
        make_config(tmp_path, save_checkpoint_num=1, save_checkpoint_steps=0),
        evaluation=evaluation(lambda _: {"f1": next(scores)}, 3, Selection("f1", patience=2)),
    )
    best = json.loads((tmp_path / "best_checkpoint.json").read_text())
    assert best == {"checkpoint": "albert-6.ckpt", "step": 6, "f1": 0.6}
    assert [step for step, _ in list_checkpoints(tmp_path)] == [12, 6]
    assert log(tmp_path)[-1]["step"] == 12


@pytest.mark.parametrize("step", [6, 20])
def test_a_signal_in_an_evaluation_is_answered_before_its_next_batch(
    tmp_path: Path, capsys: pytest.CaptureFixture, step: int
) -> None:
    """The evaluation is done again after resuming, and the log and the best checkpoint are those of a quiet run."""
    batches: list[int] = []

    class Measure:
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
        measure = Measure(stop_at)
        config = make_config(folder, save_checkpoint_num=1)
        fit(config, measure.network, evaluation=evaluation(measure, 6, Selection("f1")))

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
    def measure(before_batch: Callable[[], object]) -> dict[str, float]:
        before_batch()
        os.kill(os.getpid(), signal.SIGTERM)
        return {"f1": 0.5}

    step = Step()
    with pytest.raises(SystemExit, match="143"):
        fit(make_config(tmp_path), step, evaluation=evaluation(measure, 6))
    assert int(step.tried.asnumpy()) == list_checkpoints(tmp_path)[0][0] == 6
    assert log(tmp_path)[-1]["eval_f1"] == 0.5


@pytest.mark.parametrize("step", [8, 20])
def test_an_evaluation_that_a_resumed_run_owes_no_more_leaves_its_line_of_the_log(
    tmp_path: Path, undisturbed: Path, step: int
) -> None:
    def measure(before_batch: Callable[[], object]) -> dict[str, float]:
        os.kill(os.getpid(), signal.SIGTERM)
        before_batch()
        raise AssertionError("the signal was to be obeyed")

    config = make_config(tmp_path)
    with pytest.raises(SystemExit, match="143"):
        fit(config, evaluation=evaluation(measure, step))
    fit(config)
    assert without_speed(log(tmp_path)) == without_speed(log(undisturbed))
    assert json.loads((tmp_path / "train_results.json").read_text())["step"] == 20


class NoSignals(nullcontext):
    """In place of StopSignals, which belong to a main thread."""

    received = 0


def test_all_ranks_leave_an_evaluation_together(tmp_path: Path) -> None:
    """Two ranks, threads here; the signal reaches one of them, and the other measures no batch more."""

    def act(rank: int) -> tuple[str, int]:
        config, ranks = make_config(tmp_path / "run"), Ranks(rank, 2, tmp_path, wait_minutes=0.5)
        signals, batches = NoSignals(), 0

        def measure(before_batch: Callable[[], object]) -> dict[str, float]:
            nonlocal batches
            for _ in range(3):
                before_batch()
                batches += 1
                signals.received = signal.SIGTERM * (rank == 1 and batches == 2)
            return {"f1": 0.5}

        with RunFolder(config.save_checkpoint_path, config, writer=ranks.writer) as folder:
            run = make_facts(), ranks, None, evaluation(measure, 3)
            trainer = Trainer(Step(), Rows(), RunPlan(20, 5), config, folder, *run)
            trainer.signals = signals
            try:
                trainer.fit()
            except SystemExit as stop:
                return str(stop.code), batches
        return "finished", batches

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(act, range(2))) == [("143", 2), ("143", 2)]
    assert [step for step, _ in list_checkpoints(tmp_path / "run")] == [3]


def test_patience_survives_a_kill(tmp_path: Path) -> None:
    """Killed at step 11, after the first evaluation that was not better, at step 9."""
    scores = iter([0.6, 0.5])

    class Killed(Step):
        def train(self, micro_batches: list, elapsed: float) -> dict:
            if int(self.tried.asnumpy()) == 10:
                raise KeyboardInterrupt
            return super().train(micro_batches, elapsed)

    when = 4, Selection("f1", patience=2)
    config = make_config(tmp_path, save_checkpoint_steps=9)
    with pytest.raises(KeyboardInterrupt):
        fit(config, Killed(), evaluation=evaluation(lambda _: {"f1": next(scores)}, *when))
    fit(config, evaluation=evaluation(lambda _: {"f1": 0.6}, *when))
    assert log(tmp_path)[-1]["step"] == 12
    assert json.loads((tmp_path / "best_checkpoint.json").read_text())["step"] == 4


def test_skipped_updates_are_counted_and_kept_out_of_means(tmp_path: Path) -> None:
    fit(make_config(tmp_path), Step(failing={5, 6, 7, 8}))
    records = {record["step"]: record for record in log(tmp_path)}
    assert records[4]["skipped_steps"] == 0 and records[20]["skipped_steps"] == 4
    assert records[8]["loss"] is None and records[12]["loss"] is not None
    assert records[8]["learning_rate"] == pytest.approx(0.1 / 4) and records[12]["loss_scale"] == 1.0


def test_divergence_ends_the_run_and_keeps_the_last_good_checkpoint(tmp_path: Path) -> None:
    config = make_config(tmp_path)
    with pytest.raises(UserError, match=r"diverged: at step 15 .* 5 updates in a row skipped, loss scale 1;"):
        fit(config, Step(failing=range(11, 100)))
    assert [step for step, _ in list_checkpoints(tmp_path)] == [10, 5]
    with pytest.raises(UserError, match=r"diverged: at step 15"):  # skips before the checkpoint count as well
        fit(make_config(tmp_path / "b", save_checkpoint_steps=3), Step(failing=range(11, 100)))
    with pytest.raises(UserError, match=r"diverged: at step 15"):
        fit(make_config(tmp_path / "b", save_checkpoint_steps=3), Step(failing=range(11, 100)))


def test_a_lone_nan_without_loss_scale_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"at step 9 the loss is nan .*no loss scaling"):
        fit(make_config(tmp_path), Step(failing={9}, scaling="off"))


def test_a_run_is_not_resumed_on_other_data(tmp_path: Path) -> None:
    config = make_config(tmp_path)
    fit(config)
    with pytest.raises(CheckpointError, match="other data: rows was 20 and is now 21"):
        fit(config, identity={"rows": 21})
    with pytest.raises(CheckpointError, match="other data: rows was 20 and is now 21"):
        fit(config, identity={"train rows": 20}, earlier_identity={"rows": 21})
    with pytest.raises(CheckpointError, match="other data: train rows was None and is now 20"):
        fit(config, identity={"train rows": 20}, earlier_identity={"rows": 20, "files": {}})
    fit(config, identity={"train rows": 20}, earlier_identity={"rows": 20})


def test_a_run_is_not_resumed_as_another_model(tmp_path: Path) -> None:
    config, model = make_config(tmp_path), {"hidden_size": 32, "num_attention_heads": 4}
    fit(config, architecture=model)
    with pytest.raises(CheckpointError, match="another model: num_attention_heads was 4 and is now 2; put that back"):
        fit(config, architecture=model | {"num_attention_heads": 2})
    fit(config, architecture=model)


def test_a_run_does_not_change_its_precision_in_silence(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """Begun on a CPU, found again where there is a GPU; compute_type is empty unless a test names it."""
    unset, folder = make_config(tmp_path / "run", save_checkpoint_steps=20), tmp_path / "run"
    on_cpu, on_gpu = plan_precision(unset, Device("CPU")), plan_precision(unset, Device("GPU"))
    assert on_cpu == FLOAT32 and on_gpu == Precision("GPU", "float16", LossScale("dynamic"))
    fit(unset, precision=on_cpu)
    with pytest.raises(ConfigError, match=r"trained in float32 on CPU; .* empty, which means float16 on GPU: give"):
        fit(unset, precision=on_gpu)
    step, chosen = Step(), make_config(folder, compute_type="float16")
    fit(chosen, step, precision=plan_precision(chosen, Device("GPU")))
    said = (
        "device_target GPU instead of CPU, compute_type float16 instead of float32, loss_scale_mode dynamic instead of"
    )
    assert said in capsys.readouterr().out and step.restarts == 1
    step, chosen = Step(), make_config(folder, compute_type="float32")
    fit(chosen, step, precision=plan_precision(chosen, Device("GPU")))
    assert "; from here device_target GPU instead of CPU\n" in capsys.readouterr().out and step.restarts == 0


def test_a_checkpoint_of_version_0_1_0_is_resumed(tmp_path: Path, undisturbed: Path, monkeypatch) -> None:
    """It says neither in what precision it was trained nor what architecture it belongs to."""
    state = Trainer.state
    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "state", lambda own: {k: v for k, v in state(own).items() if k not in UNTIL_KNOWN})
        fit(make_config(tmp_path))
    for step, file in list_checkpoints(tmp_path):
        if step > 15:
            file.unlink()
    (tmp_path / "train_results.json").unlink(missing_ok=True)
    fit(make_config(tmp_path))
    assert without_speed(log(tmp_path)) == without_speed(log(undisturbed))


@pytest.mark.parametrize(
    ("differing", "sentence"),
    [
        ({"identity": {"rows": 21}}, r"data\.rows is 20 on rank 0 and 21 on rank 1"),
        ({"seed": 2}, "seed is 1 on rank 0 and 2 on rank 1"),
        ({"weight": 0.25}, "checksum of the weights is [0-9]+ on rank 0 and [0-9]+ on rank 1"),
        ({}, ""),
    ],
)
def test_ranks_that_would_train_apart_are_refused(tmp_path: Path, differing: dict[str, Any], sentence: str) -> None:
    def check(rank: int) -> str:
        given = {"identity": {"rows": 20}, "seed": 1, "weight": 0.5} | (differing if rank else {})
        config, step = make_config(tmp_path / "run", seed=given["seed"]), Step()
        step.weight.set_data(Tensor(given["weight"], ms.float32))
        folder, ranks = RunFolder(tmp_path / "run", config), Ranks(rank, 2, tmp_path, wait_minutes=0.5)
        try:
            facts = make_facts(given["identity"])
            Trainer(step, Rows(), RunPlan(20, 5), config, folder, facts, ranks).check_ranks()
        except UserError as error:
            return str(error)
        return ""

    with ThreadPoolExecutor(2) as pool:
        for said in pool.map(check, range(2)):
            assert re.match(f"the ranks differ in what they train on: {sentence};", said) if sentence else not said


def test_no_checkpoint_where_none_is_wanted(tmp_path: Path) -> None:
    fit(make_config(tmp_path, enable_save_ckpt="false", save_checkpoint_steps=None, save_checkpoint_num=None))
    assert list_checkpoints(tmp_path) == [] and len(log(tmp_path)) == 7


def test_saving_by_the_clock(tmp_path: Path) -> None:
    config = make_config(tmp_path, save_checkpoint_steps=0, save_checkpoint_minutes=1e-9, save_checkpoint_num=50)
    fit(config)
    assert [step for step, _ in list_checkpoints(tmp_path)] == list(range(20, 0, -1))


def test_a_full_disk_is_refused_before_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("src.training.run_folder.shutil.disk_usage", lambda _: SimpleNamespace(free=10))
    step = Step()
    with pytest.raises(UserError, match=r"0 MB free, the checkpoints of this run need"):
        fit(make_config(tmp_path), step)
    assert not step.seen and not (tmp_path / "config.yaml").exists()


@pytest.mark.parametrize(("selection", "copies"), [(None, 3), (Selection("f1"), 4)])
def test_a_dry_run_keeps_nothing(tmp_path: Path, selection: Selection | None, copies: int) -> None:
    config = make_config(tmp_path / "run")
    step, data = Step(), Rows(lengths=(8, 12))
    folder = RunFolder(tmp_path / "run", config)
    measured = selection and evaluation(lambda _: {}, 3, selection)
    sentence = dry_run(Trainer(step, data, RunPlan(20, 5), config, folder, make_facts(), evaluation=measured))
    assert sentence.startswith("dry run: one update with 4 x 8 takes 0.") and ", with 4 x 12 takes 0." in sentence
    assert step.seen == [0, 0, 0, 0, 1, 1, 1, 1]  # two updates of two micro-batches for each width
    assert "20 updates take about 0:00:0" in sentence and f"at most {copies} at a time" in sentence
    assert list(tmp_path.iterdir()) == []


def test_length_of_a_run() -> None:
    config = SimpleNamespace(train_steps=7, accumulation_steps=4, max_train_hours=0)
    assert plan_run(config, 3, 2, 10) == RunPlan(7, 10)
    config.train_steps = 0
    assert plan_run(config, 3, 2, 10) == RunPlan(7, 10)  # 30 micro-batches make 7 whole updates
    with pytest.raises(ConfigError, match="gives 1 batches of 2 an epoch"):
        plan_run(config, 3, 2, 1)
    config.max_train_hours = 0.5
    assert plan_run(config, 3, 2, 10) == RunPlan(7, 10, 1800.0)


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
        plan = RunPlan(20, 5, max_seconds)
        trainer = Trainer(step, Rows(), plan, config, run, make_facts())
        trainer.progress = Progress(plan, Clock())
        trainer.fit()
    return trainer


def test_a_run_ends_when_its_time_is_over(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    step = Step()
    trainer = timed(tmp_path, 10.0, step, max_train_hours=1)
    assert trainer.progress.step == len(step.elapsed) == 10
    assert step.elapsed == pytest.approx([number / 10 for number in range(10)])
    assert log(tmp_path)[-1]["step"] == 10 and log(tmp_path)[-1]["eta_s"] == 0
    assert [number for number, _ in list_checkpoints(tmp_path)] == [10]
    assert "max_train_hours 1 are over after step 10" in capsys.readouterr().out
    with RunFolder(tmp_path, trainer.config) as folder:
        assert folder.finished


def test_the_time_of_earlier_sessions_counts(tmp_path: Path) -> None:
    class Stopped(Step):
        def train(self, micro_batches: list, elapsed: float) -> dict[str, Tensor]:
            if int(self.tried.asnumpy()) == 5:
                os.kill(os.getpid(), signal.SIGTERM)
            return super().train(micro_batches, elapsed)

    with pytest.raises(SystemExit):
        timed(tmp_path, 10.0, Stopped(), max_train_hours=1)
    step = Step()
    trainer = timed(tmp_path, 10.0, step, max_train_hours=1)
    assert trainer.progress.step < 10 and step.elapsed[0] > 0.6


def test_all_ranks_go_by_the_clock_of_rank_0(tmp_path: Path) -> None:
    def act(rank: int) -> list[float]:
        config = make_config(tmp_path / "run", max_train_hours=1)
        ranks, plan, step = Ranks(rank, 2, tmp_path, wait_minutes=0.5), RunPlan(20, 5, 10.0), Step()
        with RunFolder(config.save_checkpoint_path, config, writer=ranks.writer) as folder:
            trainer = Trainer(step, Rows(), plan, config, folder, make_facts(), ranks)
            trainer.signals, trainer.progress = NoSignals(), Progress(plan, [Clock(), lambda: 0.0][rank])
            trainer.fit()
        return step.elapsed

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(act, range(2))
    assert first == second and 5 < len(first) <= 10


def test_a_dry_run_says_how_many_updates_fit(tmp_path: Path) -> None:
    config, plan = make_config(tmp_path / "run", max_train_hours=1), RunPlan(20, 5, 3600.0)
    folder = RunFolder(tmp_path / "run", config)
    said = dry_run(Trainer(Step(), Rows(), plan, config, folder, make_facts()))
    assert ", about 20 of them fit into max_train_hours 1. Host" in said


def test_without_a_limit_time_does_not_count(tmp_path: Path) -> None:
    step = Step()
    assert timed(tmp_path, 0.0, step).progress.step == 20
    assert not any(step.elapsed)
