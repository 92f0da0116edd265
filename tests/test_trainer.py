"""The loop: positions, records, resume, divergence."""

import contextlib
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mindspore as ms
import pytest
from mindspore import Tensor

from model_utils.device import Device
from model_utils.errors import CheckpointError, ConfigError, UserError
from model_utils.rendezvous import Rendezvous
from src.checkpoints.checkpoint_files import list_checkpoints
from src.training import checkpoint
from src.training.checkpoint import RunCheckpoints
from src.training.dry_run import dry_run
from src.training.evaluation import Selection
from src.training.event_file import EventFile
from src.training.ranks import Ranks
from src.training.run_folder import RunFolder
from src.training.run_plan import LossScale, Precision, RunPlan, plan_precision, plan_run
from src.training.trainer import Trainer
from tests.helpers.kills import kill_at
from tests.helpers.numpy_loop import (
    FLOAT32,
    SPEEDS,
    Rows,
    Step,
    evaluation,
    fit,
    log,
    make_config,
    make_identity,
    one_phase,
    without_speed,
)


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


def test_a_full_disk_says_what_remains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, fail = EventFile.add_scalar, []

    def add_scalar(events: EventFile, name: str, value: float, step: int) -> None:
        if fail and step >= fail[0]:
            raise OSError(28, "No space left on device")
        write(events, name, value, step)

    monkeypatch.setattr(EventFile, "add_scalar", add_scalar)
    for first, remains in ((4, "holds no checkpoint yet, so that"), (8, "the checkpoint after step 5 in .* is whole")):
        fail[:] = [first]
        with pytest.raises(UserError, match=rf"training stopped after {first} updates: .*No space.*; .*{remains}"):
            fit(make_config(tmp_path / str(first)))
    (tmp_path / "8/albert-10.ckpt").write_bytes(b"damaged")
    fail[:] = [8]
    with pytest.raises(UserError, match=r"the checkpoint after step 5 in .* is whole"):  # not 10
        fit(make_config(tmp_path / "8"))
    fail.clear()
    fit(make_config(tmp_path / "8"))
    assert log(tmp_path / "8")[-1]["step"] == 20


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
def test_an_interrupted_run_ends_like_an_undisturbed_one(
    tmp_path: Path, undisturbed: Path, monkeypatch: pytest.MonkeyPatch, end: int
) -> None:
    config = make_config(tmp_path)
    kill_at(monkeypatch, end)
    with pytest.raises(KeyboardInterrupt):
        fit(config)
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


def test_a_run_whose_checkpoints_are_all_damaged_does_not_begin_anew(tmp_path: Path) -> None:
    config = make_config(tmp_path)
    fit(config)
    for _, path in list_checkpoints(tmp_path):
        path.write_bytes(path.read_bytes()[:-50])
    before = log(tmp_path)
    with pytest.raises(CheckpointError, match="holds no checkpoint that can be read"):
        fit(config)
    assert log(tmp_path) == before and len(list_checkpoints(tmp_path)) == 2


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
        Counting(Step(), one_phase(), RunPlan(20), folder, make_identity()).fit()
    assert [count for count in reads if count] == [1, 4, 5, 5, 5]  # the first one compiles


def test_batches_made_ahead_change_no_number(tmp_path: Path, undisturbed: Path) -> None:
    fit(make_config(tmp_path), precision=Precision("GPU", "float32", LossScale("off")))
    assert without_speed(log(tmp_path)) == without_speed(log(undisturbed))
    assert "read_ahead" not in {thread.name for thread in threading.enumerate()}


def test_skipped_updates_are_counted_and_kept_out_of_means(tmp_path: Path) -> None:
    fit(make_config(tmp_path), Step(failing={5, 6, 7, 8}))
    records = {record["step"]: record for record in log(tmp_path)}
    assert records[4]["skipped_steps"] == 0 and records[20]["skipped_steps"] == 4
    assert records[8]["loss"] is None and records[12]["loss"] is not None
    assert records[8]["learning_rate"] == pytest.approx(0.1 / 4) and records[12]["loss_scale"] == 1.0


def test_divergence_ends_the_run_and_keeps_the_last_good_checkpoint(tmp_path: Path) -> None:
    config = make_config(tmp_path)
    with pytest.raises(UserError, match=r"diverged: at step 15 .* 5 updates in a row skipped, loss scale 1 \(dyn"):
        fit(config, Step(failing=range(11, 100)))
    assert [step for step, _ in list_checkpoints(tmp_path)] == [10, 5]
    with pytest.raises(UserError, match=r"diverged: at step 15"):  # skips before the checkpoint count as well
        fit(make_config(tmp_path / "b", save_checkpoint_steps=3), Step(failing=range(11, 100)))
    with pytest.raises(UserError, match=r"diverged: at step 15"):
        fit(make_config(tmp_path / "b", save_checkpoint_steps=3), Step(failing=range(11, 100)))


def test_updates_that_are_skipped_now_and_then_are_no_divergence(tmp_path: Path) -> None:
    fit(make_config(tmp_path), Step(failing={3, 4, 5, 6, 10, 11, 12}))
    assert log(tmp_path)[-1]["step"] == 20 and log(tmp_path)[-1]["skipped_steps"] == 7


def test_skipped_updates_count_on_after_a_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kill_at(monkeypatch, 13)
    with pytest.raises(KeyboardInterrupt):
        fit(make_config(tmp_path), Step(failing={3, 4}))
    fit(make_config(tmp_path))
    assert log(tmp_path)[-1]["step"] == 20 and log(tmp_path)[-1]["skipped_steps"] == 2


def test_a_lone_nan_without_loss_scale_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"at step 9 the loss is nan .*\(off\)"):
        fit(make_config(tmp_path), Step(failing={9}, scaling="off"))


def test_a_run_is_not_resumed_on_other_data(tmp_path: Path) -> None:
    config = make_config(tmp_path)
    fit(config)
    with pytest.raises(CheckpointError, match="other data: rows was 20 and is now 21"):
        fit(config, identity={"rows": 21})
    with pytest.raises(CheckpointError, match="other data: train rows was None and is now 20"):
        fit(config, identity={"train rows": 20})


def test_a_run_is_not_resumed_as_another_model(tmp_path: Path) -> None:
    config, model = make_config(tmp_path), {"hidden_size": 32, "num_attention_heads": 4}
    fit(config, architecture=model)
    with pytest.raises(CheckpointError, match="another model: num_attention_heads was 4 and is now 2; choose"):
        fit(config, architecture=model | {"num_attention_heads": 2})
    fit(config, architecture=model)


def test_a_run_does_not_change_its_precision_in_silence(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """Begun on a CPU, found again where there is a GPU; compute_type is empty unless a test names it."""
    unset, folder = make_config(tmp_path / "run", save_checkpoint_steps=20), tmp_path / "run"
    on_cpu, on_gpu = (plan_precision(unset, Device(*on)) for on in (("CPU", "float32"), ("GPU", "float16")))
    assert on_cpu == FLOAT32 and on_gpu == Precision("GPU", "float16", LossScale("dynamic"))
    fit(unset, precision=on_cpu)
    with pytest.raises(ConfigError, match="trained in float32, but compute_type is empty, here float16"):
        fit(unset, precision=on_gpu)
    step, chosen = Step(), make_config(folder, compute_type="float16")
    fit(chosen, step, precision=plan_precision(chosen, Device("GPU", "float16")))
    said = (
        "device_target GPU instead of CPU, compute_type float16 instead of float32, loss_scale_mode dynamic instead of"
    )
    assert said in capsys.readouterr().out and step.restarts == 1
    step, chosen = Step(), make_config(folder, compute_type="float32")
    fit(chosen, step, precision=plan_precision(chosen, Device("GPU", "float32")))
    assert "; from here device_target GPU instead of CPU\n" in capsys.readouterr().out and step.restarts == 0


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
    rendezvous = Rendezvous(2)

    def check(rank: int) -> str:
        given = {"identity": {"rows": 20}, "seed": 1, "weight": 0.5} | (differing if rank else {})
        config, step = make_config(tmp_path / "run", seed=given["seed"]), Step()
        step.weight.set_data(Tensor(given["weight"], ms.float32))
        folder = RunFolder(tmp_path / "run", config, Ranks(rank, 2, rendezvous, wait_minutes=0.5))
        try:
            identity = make_identity(given["identity"])
            Trainer(step, one_phase(), RunPlan(20), folder, identity).check_ranks()
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


def test_minutes_between_checkpoints_have_sixty_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = make_config(tmp_path, save_checkpoint_steps=0, save_checkpoint_minutes=10)
    waiting = RunCheckpoints(Step(), RunFolder(tmp_path, config), keeps_best=False)
    waiting.saved_time = 1_000.0  # whole seconds: those of the clock and 600 more may differ by a little less
    for seconds, due in ((599, False), (600, True)):
        monkeypatch.setattr(checkpoint, "time", SimpleNamespace(monotonic=lambda seconds=seconds: 1_000.0 + seconds))
        assert waiting.due(4) == due


def test_the_disk_must_hold_the_checkpoints_that_are_kept_and_one_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = 3 * 4  # of a step's weight, count and scale
    for free, enough in ((3 * size - 1, False), (3 * size, True)):  # two are kept
        monkeypatch.setattr(
            "src.training.run_folder.shutil.disk_usage", lambda _, free=free: SimpleNamespace(free=free)
        )
        with contextlib.nullcontext() if enough else pytest.raises(UserError, match="the checkpoints of this run need"):
            fit(make_config(tmp_path))


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
    sentence = dry_run(Trainer(step, one_phase(data), RunPlan(20), folder, make_identity(), evaluation=measured))
    assert sentence.startswith("dry run: one update with 4 x 8 takes 0.") and ", with 4 x 12 takes 0." in sentence
    assert step.seen == [0, 0, 0, 0, 1, 1, 1, 1]  # two updates of two micro-batches for each width
    assert "20 updates take about 0:00:0" in sentence and f"at most {copies} at a time" in sentence
    assert list(tmp_path.iterdir()) == []


def test_length_of_a_run() -> None:
    config = SimpleNamespace(train_steps=7, accumulation_steps=4, max_train_hours=0)
    assert plan_run(config, 3, 2, 10) == RunPlan(7)
    config.train_steps = 0
    assert plan_run(config, 3, 2, 10) == RunPlan(7)  # 30 micro-batches make 7 whole updates
    with pytest.raises(ConfigError, match="3 epochs of 1 batches, 4 of which make an update, make none"):
        plan_run(config, 3, 2, 1)
    with pytest.raises(ConfigError, match="fewer rows than one batch of 2"):
        plan_run(config, 3, 2, 0)
    config.max_train_hours = 0.5
    assert plan_run(config, 3, 2, 10) == RunPlan(7, 1800.0)
