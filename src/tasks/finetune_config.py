"""The configurations of the fine-tuning scripts; model_utils/schema.py says how a configuration is made."""

from typing import Any

from model_utils.config import EPOCHS, ROWS, UPDATES
from model_utils.errors import ConfigError
from model_utils.schema import ANY, SAME_PLACE, option
from src.albert_config import LENGTH, WIDTH
from src.assessment_method import METHODS
from src.data.entities import is_tag
from src.data.ner_data import FORMATS
from src.tasks.glue import GLUE_TASKS
from src.training.training_config import DecayedAdamConfig, OptimizerConfig, TrainingConfig

CUSTOM = "custom"
TFRECORD = ".tfrecord"
SAMPLES = 2**31 - 1
LABELS = 100_000
BEAM = 1000  # answers of a question that are kept or looked at, at most


def adam_of_rate(learning_rate: float) -> OptimizerConfig:
    """Optimizers of a fine-tuning, where warmup_ratio says the warm-up."""
    return OptimizerConfig(
        AdamWeightDecay=DecayedAdamConfig(learning_rate=learning_rate, warmup_steps=0), Lamb=DecayedAdamConfig()
    )


class FinetuneConfig(TrainingConfig):
    """The keys that all tasks share."""

    optimizer_cfg: OptimizerConfig = adam_of_rate(5e-5)

    # What is done, from which weights.
    do_train: bool = option(True, "fine-tune")
    do_eval: bool = option(True, "measure the development set with the best checkpoint, and write its predictions")
    do_predict: bool = option(
        False, "write predictions of the test set, measured too where it has labels", on_resume=ANY
    )
    load_pretrain_checkpoint_path: str = option(
        "",
        "pre-trained weights to start from, a checkpoint or a run's folder; empty: a cold start",
        on_resume=SAME_PLACE,
    )
    load_finetune_checkpoint_path: str = option(
        "", "fine-tuned weights for do_eval and do_predict", needs=("do_train", False)
    )

    # On which texts.
    data_dir: str = option("", "folder with the task's files", on_resume=SAME_PLACE)
    vocab_file_path: str = option("", "WordPiece vocabulary, if none lies beside the weights", on_resume=SAME_PLACE)
    spm_model_file: str = option("", "SentencePiece model, if none lies beside the weights", on_resume=SAME_PLACE)
    do_lower_case: bool = option(True, "lower-case the text, where no vocabulary lies beside the weights to say so")
    max_seq_length: int = option(128, "tokens of a row, special ones included", minimum=8, maximum=LENGTH)
    max_train_samples: int = option(0, "examples trained on, chosen by the seed; 0: all", minimum=0, maximum=SAMPLES)
    max_eval_samples: int = option(
        0, "development examples measured, chosen by the seed; 0: all", minimum=0, maximum=SAMPLES
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
    eval_data_shuffle: bool = option(False, "measure in another order; the results are the same", on_resume=ANY)
    train_data_file_path: str = option(
        "",
        "training features that are ready, in place of texts: DIR/NAME.mindrecord; classifier: *.tfrecord too",
        on_resume=SAME_PLACE,
    )
    eval_data_file_path: str = option("", "development features, likewise", on_resume=SAME_PLACE)
    schema_file_path: str = option("", "schema.json of *.tfrecord features", on_resume=SAME_PLACE)
    feature_dir: str = option(
        "output/features", "where feature files are kept, named by a hash of what made them", on_resume=ANY
    )

    # How long, with what batch.
    epoch_num: int = option(3, "epochs", minimum=1, maximum=EPOCHS)
    train_steps: int = option(0, "updates; above 0 it wins over epoch_num", minimum=-1, maximum=UPDATES)
    train_batch_size: int = option(32, "examples of a device and micro-batch", minimum=1, maximum=ROWS)
    eval_batch_size: int = option(
        32,
        "examples of a batch of an evaluation; fewer where they would take more than 1 GB beside the weights",
        minimum=1,
        on_resume=ANY,
        maximum=ROWS,
    )
    length_buckets: int = option(4, "widths of batches; each is compiled once", minimum=1, maximum=64)
    warmup_ratio: float = option(
        0.1, "share of the updates over which the rate grows; 0: the optimizer's warmup_steps", minimum=0, below=1
    )
    num_seeds: int = option(1, "runs with seed, seed + 1, ...; their mean is reported", minimum=1, maximum=1000)

    # What is written and measured.
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

    def most_samples(self, split: str) -> int:
        """Examples of a split that are used, 0 for all."""
        if split.startswith("test"):
            return self.max_predict_samples
        return self.max_train_samples if split == "train" else self.max_eval_samples

    def optimizer_settings(self, train_steps: int) -> dict[str, Any]:
        warmup = {"warmup_steps": round(self.warmup_ratio * train_steps)} if self.warmup_ratio else {}
        return super().optimizer_settings(train_steps) | warmup

    def validate(self) -> None:
        super().validate()
        if not (self.do_train or self.do_eval or self.do_predict):
            raise ConfigError("do_train, do_eval and do_predict are all false: nothing is left to do")
        if self.do_train:
            chosen = getattr(self.optimizer_cfg, self.optimizer_cfg.optimizer)
            if self.warmup_ratio and chosen.warmup_steps:
                raise ConfigError(
                    f"warmup_ratio is {self.warmup_ratio:g} and {self.optimizer_cfg.optimizer}.warmup_steps is "
                    f"{chosen.warmup_steps}: one of them must be 0"
                )
            measured = "do_eval" if self.do_eval else "do_predict" if self.do_predict else ""
            if measured and not self.enable_save_ckpt:
                raise ConfigError(
                    f"enable_save_ckpt is false, which leaves nothing for {measured} to measure: set "
                    "enable_save_ckpt to true, or do_eval and do_predict to false"
                )
            if not self.do_eval and (self.early_stopping or self.eval_steps):
                raise ConfigError("early_stopping and eval_steps mean nothing while do_eval is false")

    def check_required(self) -> None:
        super().check_required()
        if self.do_train and not self.save_finetune_checkpoint_path:
            raise ConfigError("--save_finetune_checkpoint_path is needed: the run's folder")
        if not self.do_train and not self.load_finetune_checkpoint_path:
            raise ConfigError("--load_finetune_checkpoint_path is needed while do_train is false")


class ClassifierConfig(FinetuneConfig):
    """Classify texts or pairs of texts, or score them: python run_classifier.py."""

    config_file = "task_classifier_config.yaml"

    task_name: str = option("custom", "a task of GLUE, or custom for one's own files", choices=(*GLUE_TASKS, CUSTOM))
    assessment_method: str = option(
        "",
        "what is measured; empty: the task's official method; f1 of two labels is that of the second in label_list",
        choices=("", *METHODS),
    )
    num_class: int = option(
        0, "number of classes, 1 for a regression; 0: as many as are found", minimum=0, maximum=LABELS
    )
    classifier_hidden_size: int = option(
        0, "width of a layer between the encoder and the classifier; 0: none", minimum=0, maximum=WIDTH
    )

    # custom: the files, and where in them the texts are.
    train_file: str = option(
        "",
        "tsv, csv, jsonl, xls or xlsx; empty: train.* of data_dir",
        needs=("task_name", "custom"),
        on_resume=SAME_PLACE,
    )
    dev_file: str = option(
        "",
        "likewise; where there is none, dev_ratio of the training file",
        needs=("task_name", "custom"),
        on_resume=SAME_PLACE,
    )
    test_file: str = option("", "likewise; labels are not needed", needs=("task_name", "custom"), on_resume=ANY)
    positive_file: str = option(
        "", "one text a line, in place of train_file", needs=("task_name", "custom"), on_resume=SAME_PLACE
    )
    negative_file: str = option(
        "", "one text a line, beside positive_file", needs=("task_name", "custom"), on_resume=SAME_PLACE
    )
    dev_ratio: float = option(0.1, "share split off for development", above=0, below=1, needs=("task_name", "custom"))
    text_a_column: str = option("text_a", "name of the column, or its number from 1", needs=("task_name", "custom"))
    text_b_column: str = option("", "likewise; empty: single texts", needs=("task_name", "custom"))
    label_column: str = option("label", "likewise", needs=("task_name", "custom"))
    column_names: tuple[str, ...] = option(
        (), "names of the columns of files without a header", needs=("task_name", "custom")
    )
    label_list: tuple[str, ...] = option(
        (), "labels in their order; empty: those found, sorted", needs=("task_name", "custom")
    )

    def validate(self) -> None:
        super().validate()
        if self.schema_file_path and not any(
            path.endswith(TFRECORD) for path in (self.train_data_file_path, self.eval_data_file_path)
        ):
            raise ConfigError(
                f"schema_file_path is {self.schema_file_path}, but neither train_data_file_path nor "
                f"eval_data_file_path names a *{TFRECORD} file"
            )
        if bool(self.positive_file) != bool(self.negative_file) or (self.positive_file and self.train_file):
            raise ConfigError("positive_file and negative_file belong together and stand in place of train_file")


class RaceConfig(FinetuneConfig):
    """Answer reading comprehension questions with four choices: python run_race.py."""

    config_file = "task_race_config.yaml"
    max_seq_length: int = 512
    epoch_num: int = 5
    train_batch_size: int = 8
    optimizer_cfg: OptimizerConfig = adam_of_rate(1e-5)

    level: str = option("all", "which examinations are trained on and measured", choices=("middle", "high", "all"))
    max_qa_length: int = option(128, "tokens of question and choice together", minimum=1, maximum=LENGTH)


class SquadConfig(FinetuneConfig):
    """Answer questions with a span of the text (SQuAD v1.1): python run_squad_v1.py."""

    config_file = "task_squad_v1_config.yaml"
    max_seq_length: int = 384
    epoch_num: int = 2
    train_batch_size: int = 48

    train_json_path: str = option("", "training questions in SQuAD's format", on_resume=SAME_PLACE)
    eval_json_path: str = option("", "development questions", on_resume=SAME_PLACE)
    predict_json_path: str = option("", "questions to predict, answers not needed", on_resume=ANY)
    language: str = option(
        "en", "how answers are compared: by words of English or by characters of Chinese", choices=("en", "zh")
    )
    doc_stride: int = option(
        128, "tokens between the beginnings of two windows of a long text", minimum=1, maximum=LENGTH
    )
    max_query_length: int = option(64, "tokens of a question", minimum=1, maximum=LENGTH)
    max_answer_length: int = option(30, "tokens of an answer", minimum=1, maximum=LENGTH)
    n_best_size: int = option(20, "answers kept for each question", minimum=1, maximum=BEAM)


class SquadV2Config(SquadConfig):
    """Answer questions with a span of the text, or with none (SQuAD v2.0): python run_squad_v2.py."""

    config_file = "task_squad_v2_config.yaml"

    start_n_top: int = option(5, "starts that the search goes on with", minimum=1, maximum=BEAM)
    end_n_top: int = option(5, "ends looked at for each start", minimum=1, maximum=BEAM)


class NerConfig(FinetuneConfig):
    """Find names in texts, by a tag for each word: python run_ner.py."""

    config_file = "task_ner_config.yaml"

    train_file: str = option("", "tagged sentences; empty: train.* of data_dir", on_resume=SAME_PLACE)
    dev_file: str = option("", "likewise; where there is none, dev_ratio of the training file", on_resume=SAME_PLACE)
    test_file: str = option("", "likewise; tags are not needed", on_resume=ANY)
    data_format: str = option(
        "auto",
        "columns: a word and its tag a line; lines: words, TAB, tags; names: a table of texts and names in them",
        choices=("auto", *FORMATS),
    )
    dev_ratio: float = option(0.1, "share split off for development", above=0, below=1)
    text_column: str = option("review", "names: column of the text, its name or its number from 1")
    name_column: str = option("dish_name", "names: column of a name that occurs in the text, or nothing")
    name_label: str = option("DISH", "names: label of these names")
    label_list: tuple[str, ...] = option((), "tags in their order; empty: those of the training sentences")

    def validate(self) -> None:
        super().validate()
        wrong = [label for label in self.label_list if not is_tag(label)]
        if wrong:
            raise ConfigError(f"label_list holds {wrong[0]!r}, allowed are O, B-LABEL, I-LABEL, ...")
