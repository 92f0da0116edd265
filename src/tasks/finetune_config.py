"""Base configuration of the fine-tuning scripts; the module of each task extends it."""

from typing import Any, ClassVar

from model_utils.backend import Backend
from model_utils.config import EPOCHS, ROWS, SEED, UPDATES
from model_utils.errors import ConfigError
from model_utils.schema import ANY, SAME_PLACE, option
from src.albert_config import LENGTH, AlbertConfig
from src.data.feature_files import SUFFIX
from src.training.training_config import AdamConfig, DecayedAdamConfig, OptimizerConfig, TrainingConfig

MAX_SAMPLES = 2**31 - 1
MAX_TRIALS = 100
TRAINED = ("do_train", True)  # `needs` of options for training
READY_KEYS = ("train_data_file_path", "eval_data_file_path")
EVALUATION_KEYS = (
    "dev_file",
    "eval_data_file_path",
    "eval_json_path",
    "max_eval_samples",
    "eval_steps",
    "early_stopping",
)
FROZEN: dict[str, tuple[str, ...]] = {  # name prefixes of the weights that are not trained
    "": (),
    "embeddings": ("albert.embeddings.",),
    "encoder": ("albert.embeddings.", "albert.encoder."),
}


def is_tfrecord(path: str) -> bool:
    """Return True if ready features are a TFRecord, which may have any name but NAME.mindrecord; "" is for none."""
    return bool(path) and not path.endswith(SUFFIX)


class FinetuneConfig(TrainingConfig):
    """Options that all tasks share."""

    epochs_key = "epoch_num"
    reads_tfrecords: ClassVar[bool] = False  # whether ready features may be TFRecords
    # Keys that the trials of a search may differ in, or their beginnings.
    searchable: ClassVar[tuple[str, ...]] = tuple(
        """optimizer_cfg. albert_cfg.hidden_dropout_prob albert_cfg.attention_probs_dropout_prob
        albert_cfg.classifier_dropout_prob warmup_ratio clip_norm freeze teacher_loss_weight temperature epoch_num
        train_steps train_batch_size accumulation_steps global_batch_size""".split()
    )

    optimizer_cfg: OptimizerConfig = OptimizerConfig(
        AdamWeightDecay=DecayedAdamConfig(learning_rate=0.0, warmup_steps=0, beta2=0.98),
        Lamb=DecayedAdamConfig(warmup_steps=0),
        Adam=AdamConfig(learning_rate=0.0, warmup_steps=0),
        Muon=DecayedAdamConfig(learning_rate=0.0, warmup_steps=0, beta1=0.95, beta2=0.98),
    )
    warmup_ratio: float = 0.1

    # Steps and weights.
    do_train: bool = option(True, "fine-tune")
    do_eval: bool = option(True, "evaluate on the development set; the best checkpoint, whose predictions are written")
    do_predict: bool = option(False, "predict the test set; and evaluate it if it has labels", on_resume=ANY)
    load_pretrain_checkpoint_path: str = option(
        "",
        "pre-trained weights to start from; a checkpoint or the folder of a run; empty: random initialisation",
        on_resume=SAME_PLACE,
    )
    load_finetune_checkpoint_path: str = option(
        "", "fine-tuned weights to evaluate; a checkpoint or the folder of a run", needs=("do_train", False)
    )

    freeze: str = option(
        "",
        "weights that are not trained; embeddings, or encoder, which includes them; head and pooler are trained",
        choices=tuple(FROZEN),
        needs=TRAINED,
    )
    temperature: float = option(2.0, "divisor of both models' logits; before they are compared", above=0, maximum=100)

    # Data.
    vocab_file_path: str = option("", "WordPiece vocabulary; if the weights come without one", on_resume=SAME_PLACE)
    spm_model_file: str = option("", "SentencePiece model; if the weights come without one", on_resume=SAME_PLACE)
    do_lower_case: bool = option(True, "lower-case the text; if the weights come without a vocabulary")
    max_seq_length: int = option(128, "tokens per row; special tokens included", minimum=8, maximum=LENGTH)
    mark_shared: bool = option(
        False,
        "mark tokens that occur in both texts of a pair; by segment ids 2 and 3 instead of 0 and 1; weights to "
        "evaluate keep theirs",
    )
    max_train_samples: int = option(0, "training examples; chosen by the seed; 0: all", minimum=0, maximum=MAX_SAMPLES)
    max_eval_samples: int = option(
        0, "development examples; chosen by the seed; 0: all", minimum=0, maximum=MAX_SAMPLES
    )
    max_predict_samples: int = option(
        0,
        "test examples; chosen by the seed; 0: all, which GLUE's submission files need",
        minimum=0,
        maximum=MAX_SAMPLES,
        needs=("do_predict", True),
        on_resume=ANY,
    )
    train_data_shuffle: bool = option(True, "shuffle the training examples; in every epoch")
    eval_data_shuffle: bool = option(False, "shuffle evaluation examples; results do not change", on_resume=ANY)
    train_data_file_path: str = option(
        "",
        "ready training features; DIR/NAME.mindrecord, for the classifier also TFRecords",
        on_resume=SAME_PLACE,
    )
    eval_data_file_path: str = option("", "ready development features", on_resume=SAME_PLACE)
    feature_dir: str = option("output/features", "cache of feature files; named by fingerprint", on_resume=ANY)

    dry_run: bool = option(
        False,
        "estimate time, memory and disk; tries two updates a width, keeps only features",
        on_resume=ANY,
    )

    # Length and batch size.
    epoch_num: int = option(3, "epochs; unless train_steps is given", minimum=1, maximum=EPOCHS, alias="epoch_size")
    train_steps: int = option(0, "updates; 0 or -1: those of epoch_num epochs", minimum=-1, maximum=UPDATES)
    train_batch_size: int = option(
        32, "examples per device and micro-batch", minimum=1, maximum=ROWS, alias="batch_size"
    )
    eval_batch_size: int = option(
        32,
        "examples per evaluation batch; reduced where a batch would take more than 1 GB beside the weights",
        minimum=1,
        on_resume=ANY,
        maximum=ROWS,
    )
    length_buckets: int = option(
        0,
        "number of row widths; each compiled once; 0: no padding on CPUs with C++ layers, elsewhere as many "
        "widths as pay off",
        minimum=0,
        maximum=64,
    )
    num_seeds: int = option(
        1, "number of runs; with seed, seed + 1, ...; reports the mean", minimum=1, maximum=1000, needs=TRAINED
    )

    search: dict[str, tuple[Any, ...]] = option(
        {}, "values to try by key; as {epoch_num: [2, 4]}; every combination is trained, and the best one is the model"
    )
    search_trials: int = option(
        0, "combinations of search drawn at random; by the seed; 0: all", minimum=0, maximum=MAX_TRIALS
    )

    # Output and evaluation.
    save_finetune_checkpoint_path: str = option("", "folder of the run; checkpoints, log, curves", on_resume=ANY)
    output_path: str = option(
        "", "folder for results; predictions, too; empty: folder of the run or checkpoint", on_resume=ANY
    )
    eval_steps: int = option(0, "updates between evaluations; 0: one evaluation per epoch", minimum=0, maximum=UPDATES)
    early_stopping: int = option(
        0, "evaluations without improvement that end training; 0: never", minimum=0, maximum=UPDATES
    )

    @property
    def load_checkpoint_path(self) -> str:
        """Weights that the run starts with."""
        return self.load_pretrain_checkpoint_path if self.do_train else self.load_finetune_checkpoint_path

    @property
    def reads_examples(self) -> bool:
        """True if a split that is used has no ready features, so that its examples are read."""
        train_examples = self.do_train and not self.train_data_file_path
        dev_examples = self.do_eval and not self.eval_data_file_path
        return self.do_predict or train_examples or dev_examples

    def albert_config(
        self, vocab_size: int, compute_type: str, weights: str, backend: Backend = Backend.AUTO
    ) -> AlbertConfig:
        architecture = super().albert_config(vocab_size, compute_type, weights, backend)
        chosen = "type_vocab_size" in self.albert_cfg.to_dict()
        if self.mark_shared and self.do_train and architecture.type_vocab_size == 2 and not chosen:
            return architecture.replace(type_vocab_size=4)
        return architecture

    def max_samples(self, split: str) -> int:
        """Return the maximum number of examples of a split, 0 for all."""
        if split.startswith("test"):
            return self.max_predict_samples
        return self.max_train_samples if split == "train" else self.max_eval_samples

    def check_together(self) -> None:
        super().check_together()
        self.divide_global_batch("train_batch_size")
        for key in READY_KEYS:
            if is_tfrecord(getattr(self, key)) and not self.reads_tfrecords:
                raise self.error_of(key, expected=f"DIR/NAME{SUFFIX}: this task reads feature files only")
        if not (self.do_train or self.do_eval or self.do_predict):
            raise ConfigError("do_train, do_eval and do_predict are all false: set at least one to true")
        if self.seed + self.num_seeds - 1 > SEED:
            raise self.error_of("seed", expected=f"at most {SEED + 1 - self.num_seeds} with num_seeds {self.num_seeds}")
        if not self.do_train:
            self.refuse(["teacher"], "do_train is false")
        elif not self.load_pretrain_checkpoint_path:
            self.refuse(["freeze"], "load_pretrain_checkpoint_path is empty, and weights at random would stay so")
        if not self.search:
            self.refuse(["search_trials"], "search is empty")
        elif not (self.do_train and self.do_eval):
            problem = "trials are compared on the development set"
            raise self.error_of("search", problem, hint="set do_train and do_eval to true")
        elif self.distribute:
            raise self.error_of("distribute", "a search runs on one device", hint="search first, then train the best")
        if not self.teacher:
            self.refuse(["temperature"], "no teacher is named")
        if self.do_train:
            if (self.do_eval or self.do_predict) and not self.enable_save_ckpt:
                raise self.error_of("enable_save_ckpt", "do_eval and do_predict need a checkpoint")
            if not self.do_eval:
                self.refuse([key for key in EVALUATION_KEYS if key in type(self).model_fields], "do_eval is false")

    def check_required(self) -> None:
        super().check_required()
        if self.do_train and not self.save_finetune_checkpoint_path:
            raise self.error_of("save_finetune_checkpoint_path", hint="give a folder for the run")
        if not self.do_train and not self.load_finetune_checkpoint_path:
            raise self.error_of("load_finetune_checkpoint_path", hint="give the fine-tuned weights to evaluate")
