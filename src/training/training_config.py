"""The configurations of every training, and of pre-training; model_utils/schema.py says how a configuration is made."""

from collections.abc import Mapping
from typing import Any, ClassVar, Self

from model_utils.config import DEVICES, EPOCHS, LOSS_SCALE, MICRO_BATCHES, MINUTES, ROWS, SEED, UPDATES, LayersConfig
from model_utils.errors import ConfigError
from model_utils.schema import ANY, SAME_PLACE, Config, option, section, sections
from src.albert_config import COMPUTE_TYPES, PRESETS, AlbertConfig, AlbertOverrides, resolve_albert_config
from src.pretraining_data.masking import NGRAM

SCALED = ("enable_lossscale", True)  # for needs, as the two below
DYNAMIC = ("loss_scale_mode", "dynamic")
SAVED = ("enable_save_ckpt", True)
SHARES_ROUNDED = 1e-4  # by which the shares of phases may miss 1: three times 0.3333
SCHEDULES = ("polynomial", "cosine", "trapezoid", "constant")


class AdamConfig(Config):
    """Adam; its settings are those of every optimizer here."""

    learning_rate: float = option(1e-3, "rate at the end of the warm-up", above=0, maximum=100)
    schedule: str = option(
        "polynomial",
        "the rate after the warm-up: polynomial and cosine fall to the end of the run, trapezoid stays and then falls",
        choices=SCHEDULES,
    )
    end_learning_rate: float = option(0.0, "rate at the end of the run", minimum=0, maximum=100)
    power: float = option(
        1.0,
        "power of the polynomial decay; 1 is a straight line",
        above=0,
        maximum=100,
        needs=("schedule", "polynomial"),
    )
    decay_share: float = option(
        0.2,
        "share of the run, its last part, over which the trapezoid falls",
        above=0,
        maximum=1,
        needs=("schedule", "trapezoid"),
    )
    warmup_steps: int = option(
        500,
        "updates over which the rate grows from 0, less than the run has; a tenth of train_steps where the command "
        "line gives that alone and less than twice these",
        minimum=0,
        maximum=UPDATES,
    )
    beta1: float = option(0.9, "decay of the first moment", minimum=0, below=1)
    beta2: float = option(0.999, "decay of the second moment", minimum=0, below=1)
    eps: float = option(1e-6, "added to the root of the second moment", above=0, maximum=1)

    def validate(self) -> None:
        if self.end_learning_rate > self.learning_rate:
            raise ConfigError(
                f"end_learning_rate is {self.end_learning_rate:g}, allowed is at most learning_rate "
                f"({self.learning_rate:g})"
            )
        if self.schedule == "constant" and self.end_learning_rate:
            raise ConfigError(
                f"end_learning_rate is {self.end_learning_rate:g}, which means nothing while schedule is constant"
            )


class DecayedAdamConfig(AdamConfig):
    """AdamWeightDecay or LAMB."""

    weight_decay: float = option(
        0.01, "share of a weight subtracted at an update, times the rate", minimum=0, maximum=100
    )
    decay_filter: tuple[str, ...] = option(
        ("gamma", "beta", "bias"), "parameters without decay: words that their names contain"
    )
    bias_correction: bool = option(
        False, "divide the moments by 1 - beta^updates, as they start at 0: larger first steps; google's code does not"
    )


class OptimizerConfig(Config):
    """Which optimizer, and the settings of each; only the chosen one's are used."""

    optimizer: str = option("AdamWeightDecay", "the optimizer", choices=("AdamWeightDecay", "Lamb", "Adam"))
    AdamWeightDecay: DecayedAdamConfig = section(
        DecayedAdamConfig(learning_rate=1e-3, warmup_steps=200, beta2=0.98),
        "Adam with decoupled weight decay, as google's",
        used_if=("optimizer", "AdamWeightDecay"),
    )
    Lamb: DecayedAdamConfig = section(
        DecayedAdamConfig(learning_rate=0.00176, warmup_steps=3125),
        "LAMB, for large batches",
        used_if=("optimizer", "Lamb"),
    )
    Adam: AdamConfig = section(AdamConfig(), "Adam without weight decay", used_if=("optimizer", "Adam"))

    def settings(self) -> dict[str, Any]:
        """The chosen optimizer's `name` and settings; Adam's weight_decay is 0."""
        chosen = getattr(self, self.optimizer)
        return {"name": self.optimizer, "weight_decay": 0.0, "decay_filter": ()} | dict(chosen)


class ArchitectureConfig(LayersConfig):
    """Model, device and precision."""

    albert_network: str = option(
        "albert_base",
        "preset of sizes, where no albert_config.json lies beside the weights; _v1 has dropout 0.1",
        choices=tuple(PRESETS),
    )
    albert_cfg: AlbertOverrides = section(AlbertOverrides(), "keys of the architecture that differ from the preset")
    compute_type: str = option(
        "",
        "type of the matrix products; empty: float32 on CPU, else float16; bfloat16: faster, on CPUs that multiply it",
        choices=("", *COMPUTE_TYPES),
        on_resume=ANY,
    )

    def albert_config(self, vocab_size: int, compute_type: str, weights: str) -> AlbertConfig:
        """The architecture for a vocabulary of this size; see resolve_albert_config."""
        return resolve_albert_config(self.albert_network, self.albert_cfg, vocab_size, compute_type, weights)

    def check_architecture(self, weights: str) -> None:
        """Raise ConfigError if albert_cfg contradicts the preset; beside weights their own json decides later."""
        if not weights:
            default = AlbertConfig()
            size = self.albert_cfg.vocab_size or default.vocab_size
            self.albert_config(size, self.compute_type or default.compute_type, "")


class TrainingConfig(ArchitectureConfig):
    """The keys of every training: pre-training and the tasks derive from it."""

    epochs_key: ClassVar[str]  # the key that has the epochs where train_steps does not say the length

    # Training.
    accumulation_steps: int = option(1, "micro-batches added up to one update", minimum=1, maximum=MICRO_BATCHES)
    optimizer_cfg: OptimizerConfig = section(OptimizerConfig(), "the optimizer")
    warmup_ratio: float = option(
        0.0,
        "share of the run over which the rate grows, of its updates or of max_train_hours; 0: the optimizer's "
        "warmup_steps",
        minimum=0,
        below=1,
    )
    max_train_hours: float = option(
        0.0,
        "hours of training, with compilation, evaluation and saving, after which the run ends, the rate decaying over "
        "them; 0: no limit",
        minimum=0,
        maximum=MINUTES / 60,
    )
    clip_norm: float = option(1.0, "global norm that gradients are cut to; 0 leaves them alone", minimum=0, maximum=1e6)
    seed: int = option(12345, "seed of weights, order and dropout", minimum=0, maximum=SEED)

    # Device and precision.
    device_id: int = option(
        0,
        "number of the device, counted from 0",
        minimum=0,
        needs=("distribute", False),
        on_resume=ANY,
        maximum=DEVICES - 1,
    )
    distribute: bool = option(False, "several devices, one process each: scripts/run_*_distribute.sh")
    device_num: int = option(1, "number of devices in use", minimum=1, needs=("distribute", True), maximum=DEVICES)
    enable_lossscale: bool = option(True, "scale the loss against float16 underflow; changes nothing in float32")
    loss_scale_mode: str = option("dynamic", "dynamic adapts the scale", choices=("dynamic", "static"), needs=SCALED)
    loss_scale_value: float = option(65536.0, "first or static scale", minimum=1, needs=SCALED, maximum=LOSS_SCALE)
    scale_factor: float = option(2.0, "what the scale is changed by", above=1, needs=DYNAMIC, maximum=2**16)
    scale_window: int = option(1000, "good updates before the scale grows", minimum=1, needs=DYNAMIC, maximum=UPDATES)
    min_loss_scale: float = option(1.0, "floor of the scale", above=0, needs=DYNAMIC, maximum=LOSS_SCALE)
    max_skipped_steps: int = option(
        20,
        "skipped updates in a row that end the run, once the scale is at its floor",
        minimum=1,
        needs=SCALED,
        on_resume=ANY,
        maximum=UPDATES,
    )
    enable_data_sink: bool = option(
        False, "read losses from the device only every data_sink_steps updates", on_resume=ANY
    )
    data_sink_steps: int = option(
        1, "updates queued on the device", minimum=1, needs=("enable_data_sink", True), on_resume=ANY, maximum=1000
    )

    # Output.
    enable_save_ckpt: bool = option(True, "write checkpoints", on_resume=ANY)
    save_checkpoint_steps: int = option(
        1000,
        "updates between checkpoints; 0: only by time and at the end",
        minimum=0,
        needs=SAVED,
        on_resume=ANY,
        maximum=UPDATES,
    )
    save_checkpoint_minutes: float = option(
        10.0, "minutes between checkpoints; 0: only by steps", minimum=0, needs=SAVED, on_resume=ANY, maximum=MINUTES
    )
    save_checkpoint_num: int = option(
        2, "newest checkpoints that are kept", minimum=1, needs=SAVED, on_resume=ANY, maximum=1000
    )
    log_steps: int = option(
        50, "updates between lines of the log; the first ones come sooner", minimum=1, on_resume=ANY, maximum=UPDATES
    )
    dry_run: bool = option(
        False, "everything up to one update, with estimates of time, memory and disk; keep nothing", on_resume=ANY
    )

    def device_settings(self) -> dict[str, Any]:
        """The arguments of model_utils.device.setup_device."""
        return {
            "device_target": self.device_target,
            "device_id": self.device_id,
            "distribute": self.distribute,
            "device_num": self.device_num,
            "seed": self.seed,
            "compute_type": self.compute_type,
            "fused_layers": self.fused_layers,
            "threads": self.threads,
        }

    def optimizer_settings(self) -> dict[str, Any]:
        """The chosen optimizer's name and settings."""
        return self.optimizer_cfg.settings() | {"warmup_ratio": self.warmup_ratio}

    @classmethod
    def complete_flags(cls, flags: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"train_steps": "0", **flags} if cls.epochs_key in flags else flags

    def fit_to_flags(self, flags: Mapping[str, Any]) -> Self:
        name, warmup_steps = self.optimizer_cfg.optimizer, self.optimizer_settings()["warmup_steps"]
        is_given = "warmup_steps" in flags.get("optimizer_cfg", {}).get(name, {})
        if is_given or "train_steps" not in flags or not 0 < self.train_steps < 2 * warmup_steps:
            return self
        optimizer = getattr(self.optimizer_cfg, name).replace(warmup_steps=self.train_steps // 10)
        return self.replace(optimizer_cfg=self.optimizer_cfg.replace(**{name: optimizer}))

    def check_flags(self, flags: Mapping[str, Any]) -> None:
        self._check_epochs(self.epochs_key in flags)

    def _check_epochs(self, given: bool) -> None:
        """ConfigError where epochs are given beside a number of updates, which wins."""
        epochs = getattr(self, self.epochs_key)
        if self.train_steps > 0 and (given or epochs != type(self).model_fields[self.epochs_key].default):
            raise ConfigError(
                f"{self.epochs_key} is {epochs}, which means nothing while train_steps is {self.train_steps}: give "
                "train_steps 0 as well"
            )

    def validate(self) -> None:
        self.check_architecture(self.load_checkpoint_path)
        self._check_epochs(self.epochs_key in self.model_fields_set and "train_steps" not in self.model_fields_set)
        chosen = self.optimizer_settings()
        if self.warmup_ratio and chosen["warmup_steps"]:
            raise ConfigError(
                f"warmup_ratio is {self.warmup_ratio:g} and optimizer_cfg.{chosen['name']}.warmup_steps is "
                f"{chosen['warmup_steps']}: one of them must be 0"
            )
        if self.enable_lossscale and self.loss_scale_value < self.min_loss_scale:
            raise ConfigError(
                f"loss_scale_value is {self.loss_scale_value:g}, allowed is at least min_loss_scale "
                f"({self.min_loss_scale:g})"
            )


class PhaseConfig(Config):
    """A phase of a pre-training run; what it leaves out is as in the rest of the configuration."""

    share: float = option(1.0, "share of the run", above=0, maximum=1)
    data_dir: str | None = option(None, "examples, for instance of another length", on_resume=SAME_PLACE)
    schema_dir: str | None = option(None, "of these, where they are google's *.tfrecord", on_resume=SAME_PLACE)
    batch_size: int | None = option(
        None, "examples of a device and micro-batch", minimum=1, maximum=ROWS, alias="train_batch_size"
    )
    accumulation_steps: int | None = option(
        None, "micro-batches added up to one update", minimum=1, maximum=MICRO_BATCHES
    )
    learning_rate: float | None = option(
        None, "in place of the optimizer's: the rate of its schedule times the ratio of both", above=0, maximum=100
    )
    sop_loss_weight: float | None = option(None, "of the sentence-order loss", minimum=0, maximum=100)
    masked_lm_prob: float | None = option(
        None, "share of tokens that is masked, where the data was made with masking dynamic", above=0, below=1
    )
    ngram: int | None = option(
        None, "longest n-gram of words that is masked as one, likewise", minimum=1, maximum=NGRAM
    )


class PretrainConfig(TrainingConfig):
    """Pre-train ALBERT: python run_pretrain.py."""

    config_file = "pretrain_config.yaml"
    epochs_key = "epoch_size"

    albert_network: str = "albert_mini"
    load_checkpoint_path: str = option(
        "", "warm start: a checkpoint or a run's folder whose weights are loaded", on_resume=SAME_PLACE
    )

    # Data.
    data_dir: str = option(
        "",
        "folder with one set of MindRecord files, or google's *.tfrecord; not where each of the phases has its own",
        on_resume=SAME_PLACE,
    )
    schema_dir: str = option("", "schema.json of google's *.tfrecord files, or its folder", on_resume=SAME_PLACE)
    vocab_file: str = option("", "WordPiece vocabulary, if it is not where the data's facts say", on_resume=SAME_PLACE)
    spm_model_file: str = option(
        "", "SentencePiece model, if it is not where the data's facts say", on_resume=SAME_PLACE
    )
    do_shuffle: bool = option(True, "a new order of the examples in every epoch")

    # Length and batch size.
    train_steps: int = option(10000, "updates; 0 or -1: as many as epoch_size epochs have", minimum=-1, maximum=UPDATES)
    epoch_size: int = option(
        1, "epochs, where train_steps does not say the length", minimum=1, maximum=EPOCHS, alias="epoch_num"
    )
    batch_size: int = option(
        32,
        "examples of a device and micro-batch, and of an evaluation's batch",
        minimum=1,
        maximum=ROWS,
        alias="train_batch_size",
    )

    phases: tuple[PhaseConfig, ...] = sections(
        PhaseConfig, "parts of the run, one after the other, that differ; none: it is one from beginning to end"
    )

    # Loss.
    sop_loss_weight: float = option(
        1.0,
        "what the sentence-order loss counts beside the masked tokens' 1; 0: it is not trained",
        minimum=0,
        maximum=100,
    )

    # Output and evaluation.
    save_checkpoint_path: str = option("", "the run's folder: checkpoints, log, curves", required=True, on_resume=ANY)
    eval_steps: int = option(0, "updates between evaluations; 0: none", minimum=0, on_resume=ANY, maximum=UPDATES)
    eval_data_dir: str = option("", "held-out examples, as data_dir", on_resume=ANY)
    eval_batches: int = option(0, "batches of an evaluation; 0: all", minimum=0, on_resume=ANY, maximum=UPDATES)

    def check_flags(self, flags: Mapping[str, Any]) -> None:
        super().check_flags(flags)
        settings = flags.get("optimizer_cfg", {}).get(self.optimizer_settings()["name"], {})
        for key in (flags.keys() | settings.keys()) & PhaseConfig.model_fields.keys():
            if self.every_phase_has(key):
                raise ConfigError(
                    f"command line: {key} means nothing here, since each of the phases has its own: change phases"
                )

    def check_required(self) -> None:
        super().check_required()
        if not (self.data_dir or self.every_phase_has("data_dir")):
            raise ConfigError("--data_dir is needed: the folder with the examples")

    def every_phase_has(self, key: str) -> bool:
        """Whether there are phases, and each of them gives the key a value of its own."""
        return bool(self.phases) and all(getattr(phase, key) is not None for phase in self.phases)

    def all_phases(self) -> tuple[PhaseConfig, ...]:
        """The phases, one where none is named, with all keys given."""
        whole = {key: getattr(self, key) for key in PhaseConfig.model_fields if key in type(self).model_fields}
        whole["learning_rate"] = self.optimizer_settings()["learning_rate"]
        return tuple(PhaseConfig(**whole | phase.to_dict()) for phase in self.phases or (PhaseConfig(),))

    def validate(self) -> None:
        super().validate()
        total = sum(phase.share for phase in self.phases)
        if self.phases and abs(total - 1) > SHARES_ROUNDED:
            shares = " + ".join(f"{phase.share:g}" for phase in self.phases)
            raise ConfigError(f"phases have the shares {shares} = {total:g} of the run, allowed is a sum of 1")
        if self.phases and self.train_steps <= 0:
            raise ConfigError(
                f"train_steps is {self.train_steps}, but the run has phases, which are shares of its updates: give "
                "their number"
            )
        if self.eval_steps and not self.eval_data_dir:
            raise ConfigError(f"eval_steps is {self.eval_steps}, but eval_data_dir names no examples to evaluate on")
        if not self.eval_steps and (self.eval_data_dir or self.eval_batches):
            key = "eval_data_dir" if self.eval_data_dir else "eval_batches"
            raise ConfigError(f"{key} is {getattr(self, key)}, which means nothing while eval_steps is 0")


class PretrainEvalConfig(ArchitectureConfig):
    """Evaluate a pre-trained ALBERT on held-out examples: python pretrain_eval.py."""

    config_file = "pretrain_config.yaml"
    file_sharers = (PretrainConfig,)
    not_shared = frozenset({"load_checkpoint_path", "data_dir", "schema_dir"})

    albert_network: str = "albert_mini"
    load_checkpoint_path: str = option("", "a checkpoint, or a run's folder", required=True)
    data_dir: str = option("", "folder with held-out MindRecord files, or google's *.tfrecord", required=True)
    schema_dir: str = option("", "schema.json of google's *.tfrecord files, or its folder")
    batch_size: int = option(32, "examples of a batch", minimum=1, maximum=ROWS, alias="train_batch_size")
    eval_batches: int = option(0, "batches to evaluate; 0: all", minimum=0, maximum=UPDATES)
    output_path: str = option("", "folder for eval_results.json; empty: beside the checkpoint")
    dry_run: bool = option(False, "evaluate one batch, estimate time and memory; keep nothing")

    def validate(self) -> None:
        self.check_architecture(self.load_checkpoint_path)
