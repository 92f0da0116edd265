"""What the configurations of the fine-tuning scripts share; each task's own lies in the task's module."""

from collections.abc import Sequence
from typing import ClassVar

from model_utils.config import EPOCHS, ROWS, SEED, UPDATES
from model_utils.errors import ConfigError
from model_utils.option_values import show
from model_utils.schema import ANY, SAME_PLACE, option
from src.albert_config import LENGTH
from src.data.feature_files import SUFFIX
from src.training.training_config import AdamConfig, DecayedAdamConfig, OptimizerConfig, TrainingConfig

SAMPLES = 2**31 - 1
OF_EVALUATION = (  # of any task
    "dev_file",
    "eval_data_file_path",
    "eval_json_path",
    "max_eval_samples",
    "eval_steps",
    "early_stopping",
)


def is_tfrecord(path: str) -> bool:
    """Whether ready features, "" for none, are a TFRecord: google's have any name, feature files NAME.mindrecord."""
    return bool(path) and not path.endswith(SUFFIX)


def finetuning_optimizers(learning_rate: float) -> OptimizerConfig:
    """Those of fine-tuning, where warmup_ratio says the warm-up."""
    return OptimizerConfig(
        AdamWeightDecay=DecayedAdamConfig(learning_rate=learning_rate, warmup_steps=0),
        Lamb=DecayedAdamConfig(warmup_steps=0),
        Adam=AdamConfig(warmup_steps=0),
    )


class FinetuneConfig(TrainingConfig):
    """The keys that all tasks share."""

    epochs_key = "epoch_num"
    reads_tfrecords: ClassVar[bool] = False  # ready features may be TFRecords, whatever their names

    optimizer_cfg: OptimizerConfig = finetuning_optimizers(5e-5)
    warmup_ratio: float = 0.1

    # Steps and weights.
    do_train: bool = option(True, "fine-tune")
    do_eval: bool = option(True, "evaluate on the development set with the best checkpoint, and write its predictions")
    do_predict: bool = option(
        False, "write predictions of the test set, and evaluate it where it has labels", on_resume=ANY
    )
    load_pretrain_checkpoint_path: str = option(
        "",
        "pre-trained weights to start from, a checkpoint or a run's folder; empty: a cold start",
        on_resume=SAME_PLACE,
    )
    load_finetune_checkpoint_path: str = option(
        "", "fine-tuned weights for do_eval and do_predict", needs=("do_train", False)
    )

    # Data.
    data_dir: str = option("", "folder with the task's files", on_resume=SAME_PLACE)
    vocab_file_path: str = option("", "WordPiece vocabulary, if none lies beside the weights", on_resume=SAME_PLACE)
    spm_model_file: str = option("", "SentencePiece model, if none lies beside the weights", on_resume=SAME_PLACE)
    do_lower_case: bool = option(True, "lower-case the text, where no vocabulary lies beside the weights to say so")
    max_seq_length: int = option(128, "tokens of a row, special ones included", minimum=8, maximum=LENGTH)
    max_train_samples: int = option(0, "examples trained on, chosen by the seed; 0: all", minimum=0, maximum=SAMPLES)
    max_eval_samples: int = option(
        0, "development examples evaluated, chosen by the seed; 0: all", minimum=0, maximum=SAMPLES
    )
    max_predict_samples: int = option(
        0,
        "test examples predicted, likewise; GLUE's submission files need all",
        minimum=0,
        maximum=SAMPLES,
        needs=("do_predict", True),
        on_resume=ANY,
    )
    train_data_shuffle: bool = option(True, "a new order of the examples in every epoch")
    eval_data_shuffle: bool = option(False, "shuffle evaluation examples; the results are the same", on_resume=ANY)
    train_data_file_path: str = option(
        "",
        "training features that are ready, in place of examples: DIR/NAME.mindrecord; classifier: TFRecords of any "
        "other name, too",
        on_resume=SAME_PLACE,
    )
    eval_data_file_path: str = option("", "development features, likewise", on_resume=SAME_PLACE)
    schema_file_path: str = option("", "schema.json of TFRecord features", on_resume=SAME_PLACE)
    feature_dir: str = option(
        "output/features", "where feature files are kept, named by a hash of what made them", on_resume=ANY
    )

    dry_run: bool = option(
        False,
        "everything up to one update, with estimates of time, memory and disk; keep nothing but features",
        on_resume=ANY,
    )

    # Length and batch size.
    epoch_num: int = option(
        3, "epochs, where train_steps does not say the length", minimum=1, maximum=EPOCHS, alias="epoch_size"
    )
    train_steps: int = option(0, "updates; 0 or -1: as many as epoch_num epochs have", minimum=-1, maximum=UPDATES)
    train_batch_size: int = option(
        32, "examples of a device and micro-batch", minimum=1, maximum=ROWS, alias="batch_size"
    )
    eval_batch_size: int = option(
        32,
        "examples of a batch of an evaluation; fewer where they would take more than 1 GB beside the weights",
        minimum=1,
        on_resume=ANY,
        maximum=ROWS,
    )
    length_buckets: int = option(
        0,
        "widths that rows are padded to, each compiled once; 0: rows are not padded, on a CPU with layers in C++, "
        "and have as many widths as pay elsewhere",
        minimum=0,
        maximum=64,
    )
    num_seeds: int = option(1, "runs with seed, seed + 1, ...; their mean is reported", minimum=1, maximum=1000)

    # Output and evaluation.
    save_finetune_checkpoint_path: str = option("", "the run's folder: checkpoints, log, curves", on_resume=ANY)
    output_path: str = option(
        "", "folder for results and predictions; empty: the run's or the checkpoint's folder", on_resume=ANY
    )
    eval_steps: int = option(
        0, "updates between evaluations while training; 0: one each epoch", minimum=0, maximum=UPDATES
    )
    early_stopping: int = option(
        0, "evaluations in a row without a better one that end the run; 0: none", minimum=0, maximum=UPDATES
    )

    @property
    def load_checkpoint_path(self) -> str:
        """The weights that the run starts with."""
        return self.load_pretrain_checkpoint_path if self.do_train else self.load_finetune_checkpoint_path

    @property
    def reads_examples(self) -> bool:
        """Whether the features of some split that is used have to be made of its examples."""
        uses = (self.do_train, self.train_data_file_path), (self.do_eval, self.eval_data_file_path)
        return self.do_predict or any(used and not ready for used, ready in uses)

    def refuse(self, keys: Sequence[str], reason: str) -> None:
        """Raise ConfigError where one of the keys is not at its default, since for this reason it means nothing."""
        for key in keys:
            value, default = getattr(self, key), type(self).model_fields[key].default
            if value != default:
                raise ConfigError(
                    f"{key} is {show(value)}, which means nothing here: {reason}; leave {key} at {show(default)}"
                )

    def most_samples(self, split: str) -> int:
        """Examples of a split that are used, 0 for all."""
        if split.startswith("test"):
            return self.max_predict_samples
        return self.max_train_samples if split == "train" else self.max_eval_samples

    def validate(self) -> None:
        super().validate()
        ready = {key: getattr(self, key) for key in ("train_data_file_path", "eval_data_file_path")}
        tfrecords = {key: path for key, path in ready.items() if is_tfrecord(path)}
        if not self.reads_tfrecords:
            for key, path in tfrecords.items():
                raise ConfigError(f"{key} is {path}, allowed are feature files of this task, DIR/NAME{SUFFIX}")
            if self.schema_file_path:
                raise ConfigError("schema_file_path means nothing here: this task reads no TFRecords")
        elif self.schema_file_path and not tfrecords:
            raise ConfigError(
                f"schema_file_path is {self.schema_file_path}, but neither {' nor '.join(ready)} names a TFRecord, any "
                f"file but *{SUFFIX}"
            )
        if not (self.do_train or self.do_eval or self.do_predict):
            raise ConfigError("do_train, do_eval and do_predict are all false: nothing is left to do")
        if self.num_seeds > 1 and not self.do_train:
            raise ConfigError("num_seeds means nothing while do_train is false: evaluate the seeds' folders one by one")
        if self.seed + self.num_seeds - 1 > SEED:
            raise ConfigError(
                f"seed is {self.seed} and num_seeds {self.num_seeds}: the last one is above {SEED}, the most allowed"
            )
        if self.do_train:
            evaluating = "do_eval" if self.do_eval else "do_predict" if self.do_predict else ""
            if evaluating and not self.enable_save_ckpt:
                raise ConfigError(
                    f"enable_save_ckpt is false, which leaves nothing for {evaluating} to measure: set "
                    "enable_save_ckpt to true, or do_eval and do_predict to false"
                )
            if not self.do_eval:
                self.refuse([key for key in OF_EVALUATION if key in type(self).model_fields], "do_eval is false")

    def check_required(self) -> None:
        super().check_required()
        if self.do_train and not self.save_finetune_checkpoint_path:
            raise ConfigError("--save_finetune_checkpoint_path is needed: the run's folder")
        if not self.do_train and not self.load_finetune_checkpoint_path:
            raise ConfigError("--load_finetune_checkpoint_path is needed while do_train is false")
