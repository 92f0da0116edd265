"""Configurations that all trainings share; model_utils/schema.py explains the fields."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self

from model_utils.backend import Backend
from model_utils.config import DEVICES, LOSS_SCALE, MICRO_BATCHES, MINUTES, ROWS, SEED, UPDATES, LayersConfig
from model_utils.errors import ConfigError
from model_utils.option_values import show
from model_utils.schema import ANY, SAME_PLACE, Config, option, section
from src.albert_config import COMPUTE_TYPES, PRESETS, AlbertConfig, AlbertOverrides, resolve_albert_config
from src.training.trackers import TENSORBOARD, TRACKERS, load_library

# Values of `needs`.
SCALED = ("enable_lossscale", True)
DYNAMIC = ("loss_scale_mode", "dynamic")
SINK = ("enable_data_sink", True)
SAVED = ("enable_save_ckpt", True)
GLOBAL_BATCH: Any = {"minimum": 0, "maximum": ROWS * MICRO_BATCHES * DEVICES}
OPTIMIZERS = ("AdamWeightDecay", "Lamb", "Adam", "Muon")
SCHEDULES = ("polynomial", "cosine", "trapezoid", "constant")


class AdamConfig(Config):
    """Learning rate, schedule and moments: the settings that all optimizers share."""

    learning_rate: float = option(
        1e-3, "peak learning rate; after the warm-up; 0 in fine-tuning: by the model's width", minimum=0, maximum=100
    )
    schedule: str = option(
        "polynomial",
        "after the warm-up: polynomial, cosine, trapezoid (constant, then linear decay) or constant",
        choices=SCHEDULES,
    )
    end_learning_rate: float = option(0.0, "learning rate at the end", minimum=0, maximum=100)
    power: float = option(1.0, "power of the polynomial decay", above=0, maximum=100, needs=("schedule", "polynomial"))
    decay_share: float = option(
        0.2,
        "last share of the run, in which the trapezoid decays",
        above=0,
        maximum=1,
        needs=("schedule", "trapezoid"),
    )
    warmup_steps: int = option(
        500,
        "updates of the linear warm-up from 0; a tenth of train_steps if the command line sets train_steps below twice "
        "this value and not warmup_steps",
        minimum=0,
        maximum=UPDATES,
    )
    beta1: float = option(0.9, "decay of the first moment", minimum=0, below=1)
    beta2: float = option(0.999, "decay of the second moment", minimum=0, below=1)
    eps: float = option(1e-6, "added to the second moment's root", above=0, maximum=1)

    def check_together(self) -> None:
        if self.end_learning_rate > self.learning_rate:
            rate = self.learning_rate
            expected = f"at most learning_rate ({rate:g})" if rate else "0 while learning_rate is 0"
            raise self.error_of("end_learning_rate", expected=expected)
        if self.schedule == "constant" and self.end_learning_rate:
            raise self.error_of("end_learning_rate", expected=f"0 with schedule {self.schedule}")


class DecayedAdamConfig(AdamConfig):
    """AdamWeightDecay, LAMB or Muon."""

    weight_decay: float = option(0.01, "decoupled weight decay; times the learning rate", minimum=0, maximum=100)
    decay_filter: tuple[str, ...] = option(("gamma", "beta", "bias"), "words in names of parameters without decay")
    bias_correction: bool = option(False, "divide moments by 1 - beta^updates; google's code does not")


class OptimizerConfig(Config):
    """Choice of the optimizer and settings of each; only those of the chosen one are used."""

    optimizer: str = option("AdamWeightDecay", "name of the optimizer", choices=OPTIMIZERS)
    AdamWeightDecay: DecayedAdamConfig = section(
        DecayedAdamConfig(learning_rate=1e-3, warmup_steps=200, beta2=0.98),
        "Adam with decoupled weight decay, as in google's code",
        used_if=("optimizer", "AdamWeightDecay"),
    )
    Lamb: DecayedAdamConfig = section(
        DecayedAdamConfig(learning_rate=0.00176, warmup_steps=3125), "for large batches", used_if=("optimizer", "Lamb")
    )
    Adam: AdamConfig = section(AdamConfig(), "Adam without weight decay", used_if=("optimizer", "Adam"))
    Muon: DecayedAdamConfig = section(
        DecayedAdamConfig(learning_rate=4e-3, warmup_steps=200, beta1=0.95, beta2=0.98),
        "orthogonalised momentum for the encoder's matrices, AdamWeightDecay for the rest",
        used_if=("optimizer", "Muon"),
    )

    def check_together(self) -> None:
        if not self.Lamb.learning_rate:
            raise ConfigError(key="Lamb.learning_rate", value=0, expected="a number above 0")


class ArchitectureConfig(LayersConfig):
    """Keys of architecture, device and precision."""

    albert_network: str = option(
        "albert_base", "preset; unless the weights have an albert_config.json; _v1: dropout 0.1", choices=tuple(PRESETS)
    )
    albert_cfg: AlbertOverrides = section(AlbertOverrides(), "architecture keys that differ from the preset")
    compute_type: str = option(
        "", "type of matrix products; empty: float32 on CPU, else float16", choices=("", *COMPUTE_TYPES), on_resume=ANY
    )

    def albert_config(
        self, vocab_size: int, compute_type: str, weights: str, backend: Backend = Backend.AUTO
    ) -> AlbertConfig:
        """Return the architecture for a vocabulary of this size; see resolve_albert_config."""
        config = resolve_albert_config(self.albert_network, self.albert_cfg, vocab_size, compute_type, weights)
        return config.replace(backend=backend)

    def check_architecture(self, weights: str) -> None:
        """Raise ConfigError if albert_cfg contradicts the preset; with weights, their own json is checked later."""
        if not weights:
            default = AlbertConfig()
            size = self.albert_cfg.vocab_size or default.vocab_size
            self.albert_config(size, self.compute_type or default.compute_type, "")


class TrainingConfig(ArchitectureConfig):
    """Keys of all trainings, from which pre-training and the tasks derive."""

    learning_rate_of_base: ClassVar[float] = 5e-5  # learning rate of fine-tuning for weights as wide as base's
    epochs_key: ClassVar[str]  # name of the key with the number of epochs, used if train_steps is not set
    if TYPE_CHECKING:  # every kind of training has these, with defaults and help of its own
        train_steps: int

        @property
        def load_checkpoint_path(self) -> str: ...

    # Training.
    accumulation_steps: int = option(1, "micro-batches per update", minimum=1, maximum=MICRO_BATCHES)
    global_batch_size: int = option(0, "examples per update on all devices; 0: not fixed", **GLOBAL_BATCH)
    optimizer_cfg: OptimizerConfig = section(OptimizerConfig(), "optimizer and its settings")
    warmup_ratio: float = option(0.0, "warm-up as a share of updates or hours; 0: warmup_steps", minimum=0, below=1)
    max_train_hours: float = option(
        0.0, "time limit of the run, which the schedule follows; 0: none", minimum=0, maximum=MINUTES / 60
    )
    teacher: str = option(
        "", "folder of a trained model to learn from; with the same vocabulary and task", on_resume=SAME_PLACE
    )
    teacher_loss_weight: float = option(1.0, "weight of the teacher's loss", above=0, maximum=1000)
    clip_norm: float = option(1.0, "largest global norm of gradients; 0: no clipping", minimum=0, maximum=1e6)
    seed: int = option(12345, "seed of weights, order and dropout", minimum=0, maximum=SEED)

    # Device and precision.
    device_id: int = option(
        0, "index of the device, from 0", minimum=0, needs=("distribute", False), on_resume=ANY, maximum=DEVICES - 1
    )
    distribute: bool = option(False, "train on several devices; one process each; set by scripts/run_distribute.sh")
    device_num: int = option(1, "number of devices", minimum=1, needs=("distribute", True), maximum=DEVICES)
    enable_lossscale: bool = option(True, "scale the loss against float16 underflow; no effect in other types")
    loss_scale_mode: str = option("dynamic", "mode of loss scaling", choices=("dynamic", "static"), needs=SCALED)
    loss_scale_value: float = option(65536.0, "initial or static scale", minimum=1, needs=SCALED, maximum=LOSS_SCALE)
    scale_factor: float = option(2.0, "factor by which the scale changes", above=1, needs=DYNAMIC, maximum=2**16)
    scale_window: int = option(1000, "good updates before the scale grows", minimum=1, needs=DYNAMIC, maximum=UPDATES)
    min_loss_scale: float = option(1.0, "minimum of the scale", above=0, needs=DYNAMIC, maximum=LOSS_SCALE)
    max_skipped_steps: int = option(
        20,
        "skipped updates in a row that end the run (dynamic: at min_loss_scale)",
        minimum=1,
        needs=SCALED,
        on_resume=ANY,
        maximum=UPDATES,
    )
    enable_data_sink: bool = option(False, "fetch losses only every data_sink_steps updates", on_resume=ANY)
    data_sink_steps: int = option(
        1, "updates between fetches of losses", minimum=1, needs=SINK, on_resume=ANY, maximum=1000
    )

    # Output.
    enable_save_ckpt: bool = option(True, "write checkpoints", on_resume=ANY)
    save_checkpoint_steps: int = option(
        1000, "updates between checkpoints; 0: by time only", minimum=0, needs=SAVED, on_resume=ANY, maximum=UPDATES
    )
    save_checkpoint_minutes: float = option(
        10.0, "minutes between checkpoints; 0: by steps only", minimum=0, needs=SAVED, on_resume=ANY, maximum=MINUTES
    )
    save_checkpoint_num: int = option(
        2, "newest checkpoints to keep", minimum=1, needs=SAVED, on_resume=ANY, maximum=1000
    )
    log_steps: int = option(50, "updates between log lines; fewer at first", minimum=1, on_resume=ANY, maximum=UPDATES)
    report_to: tuple[str, ...] = option((TENSORBOARD,), "trackers of the metrics", choices=TRACKERS, on_resume=ANY)
    dry_run: bool = option(
        False, "estimate time, memory and disk; tries two updates of each phase, keeps nothing", on_resume=ANY
    )

    def divide_global_batch(self, batch_key: str) -> None:
        """Derive this key and accumulation_steps from global_batch_size; for check_together()."""
        sizes = divide_batch(self.global_batch_size, getattr(self, batch_key), self.device_num, self.accumulation_steps)
        self.__dict__[batch_key], self.__dict__["accumulation_steps"] = sizes

    def refuse(self, keys: Sequence[str], reason: str) -> None:
        """Raise ConfigError if one of the keys is not at its default, because for this reason it has no effect."""
        for key in keys:
            default = type(self).model_fields[key].default
            if getattr(self, key) != default:
                raise self.error_of(key, f"it has no effect: {reason}", hint=f"leave {key} at {show(default)}")

    def optimizer_settings(self) -> dict[str, Any]:
        """Return the chosen optimizer's `name` and settings, with warmup_ratio; Adam's weight_decay is 0."""
        name = self.optimizer_cfg.optimizer
        defaults = {"name": name, "weight_decay": 0.0, "decay_filter": (), "warmup_ratio": self.warmup_ratio}
        return defaults | dict(getattr(self.optimizer_cfg, name))

    @classmethod
    def complete_flags(cls, flags: Mapping[str, Any]) -> Mapping[str, Any]:
        if cls.epochs_key in flags:
            return {"train_steps": "0", **flags}
        sets_updates = flags.get("train_steps", "0") not in ("0", "-1")  # which replace the epochs of a file
        return {cls.epochs_key: cls.model_fields[cls.epochs_key].default, **flags} if sets_updates else flags

    def fit_to_flags(self, flags: Mapping[str, Any]) -> Self:
        name = self.optimizer_cfg.optimizer
        warmup_steps = self.optimizer_settings()["warmup_steps"]
        has_warmup_flag = "warmup_steps" in flags.get("optimizer_cfg", {}).get(name, {})
        is_short_run = "train_steps" in flags and 0 < self.train_steps < 2 * warmup_steps
        if has_warmup_flag or not is_short_run:
            return self
        optimizer = getattr(self.optimizer_cfg, name).replace(warmup_steps=self.train_steps // 10)
        return self.replace(optimizer_cfg=self.optimizer_cfg.replace(**{name: optimizer}))

    def check_required(self) -> None:
        super().check_required()
        for name in set(self.report_to) - {TENSORBOARD}:
            load_library(name)

    def check_together(self) -> None:
        self.check_architecture(self.load_checkpoint_path)
        epochs = getattr(self, self.epochs_key)
        are_chosen = self.epochs_key in self.model_fields_set and "train_steps" not in self.model_fields_set
        if self.train_steps > 0 and (are_chosen or epochs != type(self).model_fields[self.epochs_key].default):
            problem = f"it has no effect while train_steps is {self.train_steps}"
            raise self.error_of(self.epochs_key, problem, hint="also set train_steps to 0")
        if not self.teacher:
            self.refuse(["teacher_loss_weight"], "no teacher is named")
        settings = self.optimizer_settings()
        if self.warmup_ratio and settings["warmup_steps"]:
            steps = f"optimizer_cfg.{settings['name']}.warmup_steps is {settings['warmup_steps']}"
            raise self.error_of("warmup_ratio", steps, hint="set one of them to 0")
        if self.enable_lossscale and self.loss_scale_value < self.min_loss_scale:
            raise self.error_of("loss_scale_value", expected=f"at least min_loss_scale ({self.min_loss_scale:g})")


def divide_batch(global_batch_size: int, batch_size: int, devices: int, accumulation_steps: int) -> tuple[int, int]:
    """Return (batch_size, accumulation_steps) of a device that make global_batch_size; both as they are if it is 0.

    batch_size is the most that a device takes at once.
    Raises ConfigError if the examples cannot be divided so, or accumulation_steps is neither 1 nor what follows.
    """
    if not global_batch_size:
        return batch_size, accumulation_steps
    at_once = min(batch_size, max(1, global_batch_size // devices))
    steps, rest = divmod(global_batch_size, at_once * devices)
    if rest or batch_size > global_batch_size:
        multiple = f"a multiple of {at_once * devices}, which {devices} device(s) take at once"
        expected = f"{multiple}, and at least the batch size of a device, {batch_size}"
        raise ConfigError(key="global_batch_size", value=global_batch_size, expected=expected)
    if steps > MICRO_BATCHES or accumulation_steps not in (1, steps):
        found = f"batch size {at_once} x {devices} device(s) and global_batch_size {global_batch_size}"
        expected = f"at most {MICRO_BATCHES}, and {steps} with {found}"
        raise ConfigError(key="accumulation_steps", value=accumulation_steps, expected=expected)
    return at_once, steps
