"""The training loop alone, with a step that computes in numpy."""

import json
import math
import os
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn

from model_utils.schema import load_config
from src.training.evaluation import Evaluation
from src.training.phases import Phase, Phases
from src.training.pretrain_config import PretrainConfig
from src.training.run_folder import RunFolder
from src.training.run_plan import LossScale, Precision, RunIdentity, RunPlan
from src.training.trainer import Trainer

LENGTH, BATCH = 8, 4
FLOAT32 = Precision("CPU", "float32", LossScale("off"))


class Rows:
    """Micro-batches whose content is a pure function of epoch and number."""

    rows_at_once = BATCH

    def __init__(self, batches_per_epoch: int = 5, lengths: tuple[int, ...] = (LENGTH,)) -> None:
        self.batches_per_epoch, self.lengths = batches_per_epoch, lengths

    def width_shares(self) -> list[tuple[int, float]]:
        return [(number, 1 / len(self.lengths)) for number in range(len(self.lengths))]

    def batches(self, epoch: int, start: int = 0) -> Iterator[dict[str, np.ndarray]]:
        for number in range(start, self.batches_per_epoch):
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
        self.rate_factors: list[float] = []
        self.shapes: set[tuple] = set()

    def compiles(self, micro_batches: list[dict[str, np.ndarray]]) -> bool:
        return any((i, batch["input_mask"].shape) not in self.shapes for i, batch in enumerate(micro_batches))

    def restart_scaling(self) -> None:
        self.restarts += 1

    def train(
        self, micro_batches: list[dict[str, np.ndarray]], elapsed: float = 0.0, rate_factor: float = 1.0
    ) -> dict[str, Tensor]:
        self.elapsed.append(elapsed)
        self.rate_factors.append(rate_factor)
        tried = int(self.tried.asnumpy()) + 1
        values = [float(batch["value"][0]) for batch in micro_batches]
        self.seen += values
        self.shapes |= {(i, batch["input_mask"].shape) for i, batch in enumerate(micro_batches)}
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


def one_phase(data: Rows | None = None) -> Phases:
    """Return one phase with make_config's accumulation."""
    return Phases([Phase(data or Rows(), accumulation_steps=2)])


IDENTITY_KEYS = ("identity", "precision", "architecture")


def make_identity(identity: Any = None, precision: Precision = FLOAT32, architecture: Any = None) -> RunIdentity:
    return RunIdentity(identity or {"rows": 20}, precision, architecture or {})


def evaluation(evaluate: Callable[[Callable[[], object]], dict[str, float]], *when: Any) -> Evaluation:
    def result(_: nn.Cell, before_batch: Callable[[], object]) -> SimpleNamespace:
        return SimpleNamespace(metrics=evaluate(before_batch))

    return Evaluation(nn.Cell(), nn.Cell(), result, *when)


def fit(config: PretrainConfig, step: Step | None = None, **arguments: Any) -> dict[str, Any]:
    phases = arguments.pop("phases", None) or one_phase(arguments.pop("data", Rows()))
    run_identity = make_identity(**{key: arguments.pop(key) for key in IDENTITY_KEYS if key in arguments})
    with RunFolder(config.save_checkpoint_path, config) as folder:
        plan = RunPlan(config.train_steps)
        return Trainer(step or Step(), phases, plan, folder, run_identity, **arguments).fit()


def log(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "train_log.jsonl").read_text().splitlines()]


SPEEDS = ("examples_per_s", "tokens_per_s", "mfu", "eta_s")


def without_speed(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in record.items() if key not in SPEEDS} for record in records]


class NoSignals(nullcontext):
    """In place of StopSignals, which belong to a main thread."""

    received = 0
