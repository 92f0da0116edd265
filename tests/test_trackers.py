"""Metrics of a run in mlflow, swanlab and wandb, for which stand-ins record the calls."""

import itertools
import os
import signal
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from model_utils.errors import ConfigError
from model_utils.json_files import read_object
from model_utils.schema import load_config
from src.tasks.classification_examples import ClassifierConfig
from src.training.pretrain_config import PretrainConfig
from src.training.ranks import Ranks
from src.training.run_folder import RunFolder
from src.training.run_plan import RunPlan
from src.training.trainer import Trainer
from tests.helpers.kills import kill_at
from tests.helpers.numpy_loop import Rows, Step, evaluation, fit, log, make_config, make_identity, one_phase

NAMES = ("mlflow", "swanlab", "wandb")


class Calls:
    """Stand-ins of the three libraries: runs by id, with what they were told; `failing` raises at that call."""

    def __init__(self) -> None:
        self.runs: dict[str, dict[str, Any]] = {}
        self.failing = ""

    def call(self, name: str) -> None:
        if self.failing == name:
            raise ConnectionError("no route\nto host")

    def start(self, library: str, run_id: str | None, **settings: Any) -> Any:
        self.call(f"{library}.start")
        run_id = run_id or f"{library}-{len(self.runs)}"
        run = self.runs.setdefault(run_id, {"points": [], "ends": [], "starts": 0} | settings)
        run["starts"] += 1

        def log(values: dict[str, float], step: int) -> None:
            self.call(f"{library}.log")
            run["points"] += [(name, step, value) for name, value in values.items()]

        def finish(*state: Any, **named: Any) -> None:
            self.call(f"{library}.finish")
            run["ends"].append(next(iter((*state, *named.values())), None))

        return SimpleNamespace(id=run_id, log=log, finish=finish, info=SimpleNamespace(run_id=run_id), told=run)

    def of(self, library: str) -> dict[str, Any]:
        (run,) = [run for run_id, run in self.runs.items() if run_id.startswith(library)]
        return run


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    calls = Calls()
    active: list[Any] = []

    def init(library: str, settings: dict[str, Any]) -> Any:
        assert settings["resume"] == "allow"
        if library == "swanlab":
            signal.signal(signal.SIGINT, signal.default_int_handler)
        folder = settings["dir" if library == "wandb" else "log_dir"]
        return calls.start(library, settings["id"], name=settings["name"], config=settings["config"], folder=folder)

    def start_run(run_id: str | None, run_name: str) -> Any:
        assert not active, "a run is active"
        active.append(calls.start("mlflow", run_id, name=run_name))
        return active[0]

    def log_params(config: dict[str, Any]) -> None:
        calls.call("mlflow.log_params")
        active[0].told.update(config=config)

    contents: dict[str, dict[str, Any]] = {
        "wandb": {"init": lambda **settings: init("wandb", settings)},
        "swanlab": {"init": lambda **settings: init("swanlab", settings)},
        "mlflow": {
            "start_run": start_run,
            "log_params": log_params,
            "log_metrics": lambda values, step: active[0].log(values, step),
            "end_run": lambda state: active.pop().finish(state),
        },
    }
    for name, functions in contents.items():
        module = ModuleType(name)
        vars(module).update(functions)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(os, "environ", dict(os.environ))
    return calls


def points(records: list[dict[str, Any]]) -> list[tuple[str, int, float]]:
    found = []
    for record in records:
        for key, value in record.items():
            if key != "step" and value is not None:
                name = f"eval/{key.removeprefix('eval_')}" if key.startswith("eval_") else f"train/{key}"
                found.append((name, record["step"], value))
    return found


def test_trackers_get_what_the_log_has(tmp_path: Path, calls: Calls) -> None:
    config = make_config(tmp_path / "my run", report_to=",".join(NAMES), eval_steps=8, eval_data_dir="d")
    handler = signal.getsignal(signal.SIGINT)
    fit(config, evaluation=evaluation(lambda _: {"f1": 0.5}, 8))
    assert signal.getsignal(signal.SIGINT) is handler
    expected = points(log(tmp_path / "my run"))
    assert ("eval/f1", 8, 0.5) in expected and ("train/accuracy", 20, 0.5) in expected
    for name, end in (("mlflow", "FINISHED"), ("swanlab", "success"), ("wandb", 0)):
        run = calls.of(name)
        assert run["points"] == expected
        assert (run["name"], run["starts"], run["ends"]) == ("my run", 1, [end])
        assert run["config"]["log_steps"] == 4 and run["config"]["optimizer_cfg.AdamWeightDecay.beta2"] == 0.98
        assert run.get("folder", str(tmp_path / "my run")).startswith(str(tmp_path / "my run"))
    assert not (tmp_path / "my run/tensorboard").exists()
    assert read_object(tmp_path / "my run/trackers.json").keys() == set(NAMES)


def test_a_signal_with_the_last_update_leaves_a_finished_run(tmp_path: Path, calls: Calls) -> None:
    class Signalled(Step):
        def train(self, micro_batches: list, *pace: float) -> dict[str, Any]:
            if int(self.tried.asnumpy()) == 19:
                os.kill(os.getpid(), signal.SIGTERM)
            return super().train(micro_batches, *pace)

    with pytest.raises(SystemExit, match="143"):
        fit(make_config(tmp_path, report_to=",".join(NAMES)), Signalled())
    assert [calls.of(name)["ends"] for name in NAMES] == [["FINISHED"], ["success"], [0]]


def test_a_resumed_run_continues_the_same_runs(tmp_path: Path, calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    config = make_config(tmp_path, report_to="[wandb, mlflow, swanlab, tensorboard]")
    kill_at(monkeypatch, 13)
    with pytest.raises(KeyboardInterrupt):
        fit(config)
    assert {name: calls.of(name)["ends"] for name in NAMES} == {
        "mlflow": ["FAILED"],
        "swanlab": ["aborted"],
        "wandb": [1],
    }
    fit(config.replace(log_steps=5))
    for name in NAMES:
        run = calls.of(name)
        steps = [step for metric, step, _ in run["points"] if metric == "train/loss"]
        assert (run["starts"], steps) == (2, [1, 2, 4, 8, 12, 15, 20])
        assert run["config"]["log_steps"] == 4  # mlflow refuses another value
    assert list((tmp_path / "tensorboard").iterdir())


FAULTS = [*itertools.product(NAMES, ("start", "log", "finish")), ("mlflow", "log_params")]


@pytest.mark.parametrize(("name", "moment"), FAULTS)
def test_a_tracker_that_fails_is_left_out_with_one_warning(
    tmp_path: Path, calls: Calls, caplog: pytest.LogCaptureFixture, name: str, moment: str
) -> None:
    calls.failing = f"{name}.{moment}"
    handler = signal.getsignal(signal.SIGINT)
    assert fit(make_config(tmp_path / "1", report_to=",".join(NAMES)))["step"] == 20
    assert signal.getsignal(signal.SIGINT) is handler
    warnings = [text for text in caplog.messages if "no more metrics" in text]
    assert warnings == [f"{name} gets no more metrics of this run: no route to host"]
    for other in {*NAMES} - {name}:
        assert calls.of(other)["points"] == points(log(tmp_path / "1"))
    calls.failing = ""
    fit(make_config(tmp_path / "2", report_to=name))
    (run,) = [run for run in calls.runs.values() if run["name"] == "2"]
    assert run["points"] == points(log(tmp_path / "2"))


def test_damaged_ids_do_not_end_training(tmp_path: Path, calls: Calls, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "trackers.json").write_text("{")
    fit(make_config(tmp_path, report_to="wandb"))
    assert "trackers.json is damaged" in caplog.text and not calls.runs


def test_no_reports(tmp_path: Path) -> None:
    fit(make_config(tmp_path, report_to=""))
    assert len(log(tmp_path)) == 7
    assert {"tensorboard", "trackers.json"}.isdisjoint(path.name for path in tmp_path.iterdir())


def test_only_the_rank_that_writes_reports(tmp_path: Path, calls: Calls) -> None:
    config = make_config(tmp_path, report_to="wandb")
    folder = RunFolder(tmp_path, config, Ranks(1, 2))
    trainer = Trainer(Step(), one_phase(Rows()), RunPlan(20), folder, make_identity())
    with trainer.recorder.open(trainer.state):
        trainer.recorder.record(trainer.state, 1)
    assert not calls.runs


@pytest.mark.parametrize("kind", [PretrainConfig, ClassifierConfig])
def test_a_missing_library_is_an_error_before_any_work(kind: type, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "swanlab", None)
    folder = "--save_checkpoint_path" if kind is PretrainConfig else "--save_finetune_checkpoint_path"
    words = ["--config_path", os.devnull, folder, "run", "--data_dir", "data", "--report_to", "tensorboard,swanlab"]
    config = load_config(kind, words)
    with pytest.raises(
        ConfigError, match=r"report_to: swanlab cannot be imported .*: pip install swanlab && pip install -r"
    ) as caught:
        config.check_required()
    assert caught.value.key == "report_to"


def test_other_names_are_refused() -> None:
    sentence = "report_to is 'wandb,comet', allowed is any of tensorboard, mlflow, swanlab, wandb, with commas"
    with pytest.raises(ConfigError, match=sentence):
        load_config(PretrainConfig, ["--config_path", os.devnull, "--report_to", "wandb,comet"])
