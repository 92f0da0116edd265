"""Configurations of pre-training and its evaluation; model_utils/schema.py explains the fields."""

from collections.abc import Mapping
from typing import Any

from model_utils.command_line import COMMAND_LINE
from model_utils.config import EPOCHS, MICRO_BATCHES, ROWS, UPDATES
from model_utils.errors import ConfigError
from model_utils.schema import ANY, SAME_PLACE, Config, option, sections
from src.pretraining_data.masking import NGRAM
from src.training.training_config import GLOBAL_BATCH, ArchitectureConfig, TrainingConfig, divide_batch

SHARES_ROUNDED = 1e-4  # tolerance of the sum of the phases' shares, as three times 0.3333
BATCH_KEYS = ("batch_size", "accumulation_steps")  # how a device makes its share of an update


class PhaseConfig(Config):
    """Phase of a pre-training run; keys left out are those of the whole run."""

    share: float = option(1.0, "share of the run", above=0, maximum=1)
    data_dir: str | None = option(None, "folder of examples; for instance of another length", on_resume=SAME_PLACE)
    schema_dir: str | None = option(None, "schema.json of google's *.tfrecord files; in data_dir", on_resume=SAME_PLACE)
    batch_size: int | None = option(
        None, "examples per device at once", minimum=1, maximum=ROWS, alias="train_batch_size"
    )
    accumulation_steps: int | None = option(None, "micro-batches per update", minimum=1, maximum=MICRO_BATCHES)
    global_batch_size: int | None = option(None, "examples per update, on all devices together", **GLOBAL_BATCH)
    learning_rate: float | None = option(None, "peak of the optimizer's schedule", above=0, maximum=100)
    sop_loss_weight: float | None = option(None, "weight of the sentence-order loss", minimum=0, maximum=100)
    masked_lm_prob: float | None = option(None, "share of masked tokens, with dynamic masking", above=0, below=1)
    ngram: int | None = option(None, "longest n-gram masked together, with dynamic masking", minimum=1, maximum=NGRAM)


class PretrainConfig(TrainingConfig):
    """Pre-train ALBERT: python run_pretrain.py."""

    config_file = "pretrain_config.yaml"
    epochs_key = "epoch_size"

    albert_network: str = "albert_mini"
    teacher_loss_weight: float = 10.0
    load_checkpoint_path: str = option(
        "", "weights to start from; a checkpoint or the folder of a run", on_resume=SAME_PLACE
    )

    # Data.
    data_dir: str = option("", "folder of MindRecord files; or google's *.tfrecord", on_resume=SAME_PLACE)
    schema_dir: str = option("", "schema.json of google's *.tfrecord files; or its folder", on_resume=SAME_PLACE)
    vocab_file: str = option("", "WordPiece vocabulary; if not where the data's manifest says", on_resume=SAME_PLACE)
    spm_model_file: str = option("", "SentencePiece model; if not where the data's manifest says", on_resume=SAME_PLACE)
    do_shuffle: bool = option(True, "shuffle the examples; in every epoch")

    # Length and batch size.
    train_steps: int = option(10000, "updates; 0 or -1: those of epoch_size epochs", minimum=-1, maximum=UPDATES)
    epoch_size: int = option(1, "epochs; if train_steps is 0 or -1", minimum=1, maximum=EPOCHS, alias="epoch_num")
    batch_size: int = option(32, "examples per device at once", minimum=1, maximum=ROWS, alias="train_batch_size")

    phases: tuple[PhaseConfig, ...] = sections(
        PhaseConfig,
        "consecutive parts of the run; with their own data, batch size or learning rate; none: a single one",
    )

    # Loss.
    sop_loss_weight: float = option(1.0, "weight of the sentence-order loss; 0: not trained", minimum=0, maximum=100)

    # Output and evaluation.
    save_checkpoint_path: str = option("", "folder of the run; checkpoints, log, curves", required=True, on_resume=ANY)
    eval_steps: int = option(0, "updates between evaluations; 0: none", minimum=0, on_resume=ANY, maximum=UPDATES)
    eval_data_dir: str = option("", "folder of held-out examples; as data_dir", on_resume=ANY)
    eval_batches: int = option(0, "batches per evaluation; 0: all", minimum=0, on_resume=ANY, maximum=UPDATES)

    def resume_fingerprint(self, prefix: str = "") -> dict[str, Any]:
        """Return the keys that must match, without those that global_batch_size replaces."""
        fingerprint = super().resume_fingerprint(prefix)
        sizes = [phase.global_batch_size for phase in self.phases or (PhaseConfig(),)]
        is_divided = [bool(self.global_batch_size if size is None else size) for size in sizes]
        replaced = {f"phases[{i}].{key}" for i in range(len(sizes)) if is_divided[i] for key in BATCH_KEYS}
        if all(is_divided):
            replaced |= {*BATCH_KEYS, "distribute", "device_num"}
        return {key: value for key, value in fingerprint.items() if key not in replaced}

    def check_flags(self, flags: Mapping[str, Any]) -> None:
        name = self.optimizer_settings()["name"]
        settings = flags.get("optimizer_cfg", {}).get(name, {})
        for values, prefix in ((flags, ""), (settings, f"optimizer_cfg.{name}.")):
            for key in values.keys() & PhaseConfig.model_fields.keys():
                if self.every_phase_has(key):
                    problem = "each of the phases has its own"
                    raise ConfigError(key=prefix + key, value=values[key], problem=problem).at(COMMAND_LINE)

    def check_required(self) -> None:
        super().check_required()
        if not (self.data_dir or self.every_phase_has("data_dir")):
            raise self.error_of("data_dir", hint="give the folder with the examples")

    def every_phase_has(self, key: str) -> bool:
        """Return True if there are phases and all of them set this key."""
        return bool(self.phases) and all(getattr(phase, key) is not None for phase in self.phases)

    def all_phases(self) -> tuple[PhaseConfig, ...]:
        """Return the phases, or a single one; keys left out are the run's, and global batches are divided."""
        run_values = {key: getattr(self, key) for key in PhaseConfig.model_fields if key in type(self).model_fields}
        run_values["learning_rate"] = self.optimizer_settings()["learning_rate"]
        phases = []
        for phase in self.phases or (PhaseConfig(),):
            values = run_values | phase.to_dict()
            sizes = values["global_batch_size"], values["batch_size"], self.device_num, values["accumulation_steps"]
            values["batch_size"], values["accumulation_steps"] = divide_batch(*sizes)
            phases.append(PhaseConfig(**values))
        return tuple(phases)

    def check_together(self) -> None:
        super().check_together()
        if not self.phases:  # batch_size stays what a device takes at once, also in evaluations
            sizes = self.global_batch_size, self.batch_size, self.device_num, self.accumulation_steps
            _, self.__dict__["accumulation_steps"] = divide_batch(*sizes)
        if not self.optimizer_settings()["learning_rate"]:
            key = f"optimizer_cfg.{self.optimizer_cfg.optimizer}.learning_rate"
            raise ConfigError(key=key, value=0, expected="a number above 0")
        self.all_phases()  # each divides its own batch
        total = sum(phase.share for phase in self.phases)
        if self.phases and abs(total - 1) > SHARES_ROUNDED:
            shares = " + ".join(f"{phase.share:g}" for phase in self.phases)
            raise ConfigError(f"phases have the shares {shares} = {total:g} of the run, allowed is a sum of 1")
        if self.phases and self.train_steps <= 0:
            raise self.error_of("train_steps", "phases are shares of it", hint="set it above 0")
        if self.eval_steps and not self.eval_data_dir:
            raise self.error_of("eval_steps", "eval_data_dir names no examples to evaluate on")
        if not self.eval_steps:
            self.refuse(["eval_data_dir", "eval_batches"], "eval_steps is 0")


class PretrainEvalConfig(ArchitectureConfig):
    """Evaluate a pre-trained ALBERT on held-out examples: python pretrain_eval.py."""

    config_file = "pretrain_config.yaml"
    file_sharers = (PretrainConfig,)
    not_shared = frozenset({"load_checkpoint_path", "data_dir", "schema_dir"})

    albert_network: str = "albert_mini"
    load_checkpoint_path: str = option("", "weights to evaluate; a checkpoint or the folder of a run", required=True)
    data_dir: str = option("", "folder of MindRecord files; held-out ones, or google's *.tfrecord", required=True)
    schema_dir: str = option("", "schema.json of google's *.tfrecord files; or its folder")
    batch_size: int = option(32, "examples per batch", minimum=1, maximum=ROWS, alias="train_batch_size")
    eval_batches: int = option(0, "batches per evaluation; 0: all", minimum=0, maximum=UPDATES)
    output_path: str = option("", "folder for results; empty: the checkpoint's folder")

    def check_together(self) -> None:
        self.check_architecture(self.load_checkpoint_path)
