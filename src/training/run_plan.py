"""The plan of a run: length, precision, and what a resumed run must match."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from model_utils.device import Device
from model_utils.errors import CheckpointError, ConfigError
from src.checkpoints.checkpoint_files import ARCHITECTURE, find_checkpoint
from src.data.feature_files import sha256_of
from src.training.training_config import TrainingConfig

TEACHER = "teacher_sha256"  # key of RunIdentity.data


@dataclass(frozen=True)
class RunPlan:
    """Length of a run: updates in all, and seconds in all (0: no limit)."""

    train_steps: int
    max_seconds: float = 0.0


@dataclass(frozen=True)
class LossScale:
    """Scaling of the loss against float16 underflow (Micikevicius et al. 2018, section 3.2).

    mode: "off"; "static": always `value`; "dynamic": divided by `factor` at a non-finite gradient, never below
    `minimum`, multiplied by `factor` after `window` finite updates in a row.
    """

    mode: str = "off"
    value: float = 65536.0
    factor: float = 2.0
    window: int = 1000
    minimum: float = 1.0

    @property
    def start(self) -> float:
        """The scale of the first update."""
        return 1.0 if self.mode == "off" else self.value


@dataclass(frozen=True)
class Precision:
    """Precision of a run: what the configuration says, and where it leaves that open the device.

    compute_type: of the matrix products, float32, float16 or bfloat16.
    """

    device_target: str
    compute_type: str
    scaling: LossScale

    def to_dict(self) -> dict[str, str]:
        """Return what a resumed run compares to notice a change of precision."""
        return {
            "device_target": self.device_target,
            "compute_type": self.compute_type,
            "loss_scale_mode": self.scaling.mode,
        }

    def changes_since(self, before: Mapping[str, str], path: Path, compute_type_is_set: bool) -> dict[str, str]:
        """Return what differs from `before`, the to_dict() of the checkpoint `path`, as {key: sentence}.

        Raises ConfigError if compute_type would change although the configuration does not set it.
        """
        now = self.to_dict()
        trained = before["compute_type"]
        chosen = now["compute_type"]
        if trained != chosen and not compute_type_is_set:
            found = f"{path} was trained in {trained}, but compute_type is empty, here {chosen}"
            raise ConfigError(f"{found}: give compute_type {trained} to keep it, or {chosen} to change it")
        return {key: f"{key} {now[key]} instead of {before[key]}" for key in now if now[key] != before[key]}


@dataclass(frozen=True)
class RunIdentity:
    """Data and architecture, which a resumed run must match, and precision.

    data: manifest of the data and weights of a teacher.
    precision: a resumed run changes it where the configuration says so (Precision.changes_since).
    architecture: AlbertConfig.saved_dict() of the network.
    """

    data: Mapping[str, Any]
    precision: Precision
    architecture: Mapping[str, Any]

    def to_save(self) -> dict[str, Any]:
        """Return the entries that a checkpoint keeps."""
        return {
            "identity": dict(self.data),
            "precision": self.precision.to_dict(),
            ARCHITECTURE: dict(self.architecture),
        }

    def check(self, saved: Mapping[str, Any], path: Path) -> None:
        """Raise CheckpointError where `saved`, of the checkpoint `path`, is of other data or another model."""
        for key, value in self.data.items():
            if (trained := saved["identity"].get(key)) != value:
                change = f"{key} was {trained!r} and is now {value!r}"
                cause = "by another teacher" if key == TEACHER else "on other data"
                raise CheckpointError(f"{path} was trained {cause}: {change}; choose another folder")
        for key, value in self.architecture.items():
            if (trained := saved[ARCHITECTURE].get(key, value)) != value:
                change = f"{key} was {trained!r} and is now {value!r}"
                raise CheckpointError(f"{path} was trained as another model: {change}; choose another folder")


def teacher_identity(teacher: str) -> dict[str, str]:
    """Return the entry of RunIdentity.data about the weights in a teacher's folder; an empty dict for ""."""
    return {TEACHER: sha256_of(find_checkpoint(Path(teacher)).path)} if teacher else {}


def plan_run(config: TrainingConfig, epochs: int, rows_at_once: int, batches_per_epoch: int) -> RunPlan:
    """Return the plan of config.train_steps updates or, where that is not above 0, of as many as the epochs hold.

    rows_at_once: rows of a micro-batch of all ranks together. Data that fills no update is a ConfigError.
    """
    if batches_per_epoch < 1:
        found = f"the data has fewer rows than one batch of {rows_at_once}"
        raise ConfigError(f"{found}: lower train_batch_size, or give more data")
    planned = config.train_steps
    if planned <= 0:
        planned = epochs * batches_per_epoch // config.accumulation_steps
    if planned < 1:
        found = f"{epochs} epochs of {batches_per_epoch} batches, {config.accumulation_steps} of which make an update"
        raise ConfigError(f"{found}, make none: lower accumulation_steps, or give more data")
    return RunPlan(planned, 3600 * config.max_train_hours)


def plan_precision(config: TrainingConfig, device: Device) -> Precision:
    """Return the device's compute type and the loss scale, which is off unless the type is float16."""
    scaling = LossScale("off")
    if config.enable_lossscale and device.compute_type == "float16":
        scaling = LossScale(
            mode=config.loss_scale_mode,
            value=config.loss_scale_value,
            factor=config.scale_factor,
            window=config.scale_window,
            minimum=config.min_loss_scale,
        )
    return Precision(device.target, device.compute_type, scaling)
