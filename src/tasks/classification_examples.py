"""The examples of classification: the options that name them, GLUE's files and one's own."""

from collections.abc import Collection, Sequence
from pathlib import Path

from model_utils.errors import ConfigError, DataError
from model_utils.schema import ANY, SAME_PLACE, option
from src.albert_config import WIDTH
from src.assessment_method import METHODS
from src.create_finetune_data import (
    Example,
    TextColumns,
    drop_labels,
    find_splits,
    plain_label,
    read_examples,
    read_polarity_files,
)
from src.data.feature_cache import TRAIN
from src.data.features import split_off
from src.tasks.finetune_config import FinetuneConfig
from src.tasks.glue import GLUE_TASKS, read_glue
from src.tasks.task_info import NO_DEV_SPLIT, TaskInfo, choose_dev_split
from src.text.text_tables import JSON_SUFFIXES, read_table

CUSTOM = "custom"
OWN_FILES = ("task_name", CUSTOM)  # for needs
MOST_LABELS = 100_000
NLI_TASKS = ("mnli", "qnli", "rte", "wnli", "ax")
NLI_LABELS = {"entailment", "neutral", "contradiction", "not_entailment"}
NO_GOLD_LABEL = "-"  # of SNLI, OCNLI and CMNLI, where annotators disagreed


class ClassifierConfig(FinetuneConfig):
    """Classify texts or pairs of texts, or score them: python run_classifier.py."""

    config_file = "task_classifier_config.yaml"
    reads_tfrecords = True

    task_name: str = option("custom", "a task of GLUE, or custom for one's own files", choices=(*GLUE_TASKS, CUSTOM))
    assessment_method: str = option(
        "",
        "metric; empty: the task's official method; f1 of two labels is that of the second in label_list",
        choices=("", *METHODS),
    )
    num_class: int = option(
        0, "number of classes, 1 for a regression; 0: as many as are found", minimum=0, maximum=MOST_LABELS
    )
    classifier_hidden_size: int = option(
        0, "width of a layer between the encoder and the classifier; 0: none", minimum=0, maximum=WIDTH
    )

    skip_labels: tuple[str, ...] = option(
        (), "labels of rows that are left out; empty: '-' where all others are entailment, neutral, contradiction, ..."
    )

    # custom: the files, and where in them the texts are.
    train_file: str = option(
        "", "tsv, csv, jsonl, ndjson, xls or xlsx; empty: train.* of data_dir", needs=OWN_FILES, on_resume=SAME_PLACE
    )
    dev_file: str = option(
        "", "likewise; where there is none, dev_ratio of the training file", needs=OWN_FILES, on_resume=SAME_PLACE
    )
    test_file: str = option("", "likewise; labels are not needed", needs=OWN_FILES, on_resume=ANY)
    positive_file: str = option("", "one text a line, in place of train_file", needs=OWN_FILES, on_resume=SAME_PLACE)
    negative_file: str = option("", "one text a line, beside positive_file", needs=OWN_FILES, on_resume=SAME_PLACE)
    dev_ratio: float = option(0.1, "share split off for development", above=0, below=1, needs=OWN_FILES)
    text_a_column: str = option("text_a", "name of the column, or its number from 1", needs=OWN_FILES)
    text_b_column: str = option("", "likewise; empty: single texts", needs=OWN_FILES)
    label_column: str = option("label", "likewise", needs=OWN_FILES)
    column_names: tuple[str, ...] = option((), "names of the columns of files without a header", needs=OWN_FILES)
    label_list: tuple[str, ...] = option((), "labels in their order; empty: those found, sorted", needs=OWN_FILES)

    def validate(self) -> None:
        super().validate()
        if bool(self.positive_file) != bool(self.negative_file) or (self.positive_file and self.train_file):
            raise ConfigError("positive_file and negative_file belong together and stand in place of train_file")
        if self.test_file and not self.do_predict:
            raise ConfigError(f"test_file is {self.test_file}, which means nothing while do_predict is false")
        if self.task_name != CUSTOM and not GLUE_TASKS[self.task_name].dev_splits and (self.do_train or self.do_eval):
            raise ConfigError(
                f"task_name is {self.task_name}, which can only be predicted: set do_train and do_eval to false, and "
                "load_finetune_checkpoint_path to a model of mnli"
            )

    def skipped(self, labels: Collection[str | None]) -> set[str]:
        """Return the labels of a file's rows that are no examples.

        Without skip_labels it is "-" in natural language inference: GLUE's tasks of that kind, and files whose other
        labels all have its names.
        """
        if self.skip_labels:
            return {plain_label(label) for label in self.skip_labels}
        others = {label.casefold() for label in labels if label not in (None, NO_GOLD_LABEL)}
        is_inference = self.task_name in NLI_TASKS or (bool(others) and others <= NLI_LABELS)
        return {NO_GOLD_LABEL} if is_inference else set()

    def without_skipped(self, examples: Sequence[Example], labelled: bool) -> list[Example]:
        """Return the examples whose labels are not skipped; see drop_labels."""
        return drop_labels(examples, self.skipped({example.label for example in examples}), labelled)

    def check_required(self) -> None:
        super().check_required()
        if self.task_name != CUSTOM and self.reads_examples and not self.data_dir:
            raise ConfigError("--data_dir is needed: the folder with the files of the GLUE task")


class GlueExamples:
    """The examples of a GLUE task by split; incomplete: splits that were read without rows of their files."""

    dev_split = None

    def __init__(self, config: ClassifierConfig) -> None:
        self.config = config
        task = GLUE_TASKS[config.task_name]
        self.dev_splits, self.test_splits = task.dev_splits or ("dev",), task.test_splits
        self.columns = task.columns
        self.incomplete: set[str] = set()

    def text_columns(self) -> dict[str, str]:
        """The names of the texts' columns, by their keys in records."""
        return {"text_a": self.columns.text_a} | ({"text_b": self.columns.text_b} if self.columns.text_b else {})

    def read(self, split: str) -> list[Example]:
        examples = read_glue(self.config.task_name, Path(self.config.data_dir), split)
        rest = self.config.without_skipped(examples, split not in self.test_splits)
        if len(rest) < len(examples):
            self.incomplete.add(split)
        return rest


class CustomExamples:
    """The examples of one's own files by split; without a development file a part of the training file is one."""

    dev_splits = ("dev",)
    test_splits = ("test",)
    incomplete: frozenset[str] = frozenset()  # no split is submitted

    def __init__(self, config: ClassifierConfig, known: TaskInfo | None = None) -> None:
        self.config = config
        self.columns = TextColumns(config.text_a_column, config.text_b_column, config.label_column, config.column_names)
        named = {TRAIN: config.train_file, "dev": config.dev_file, "test": config.test_file}
        self.files = find_splits(config.data_dir, named)
        self.dev_split = None
        self._training: Sequence[Example] | None = None
        if known and known.text_columns and bool(self.columns.text_b) != ("text_b" in known.text_columns):
            trained, here = " and ".join(known.text_columns.values()), self.columns.text_b
            raise ConfigError(
                f"text_b_column is {here!r}, but the weights were trained on {trained}: name as many columns"
            )
        if config.do_eval and "dev" not in self.files and not config.eval_data_file_path:
            whole = self.read("dev")
            texts = ((example.text_a, example.text_b) for example in whole)
            self.dev_split = choose_dev_split(config.dev_ratio, config.seed, known, whole[0].file, texts)
        self._refuse_unused()

    def _refuse_unused(self) -> None:
        """Raise ConfigError where a file is named that ready features replace, a share that is not split off, or
        columns of tables where there are none, or of lines of JSON, which name theirs.
        """
        config = self.config
        training = (config.do_train and not config.train_data_file_path) or self.dev_split is not None
        tables = {
            TRAIN: training and not config.positive_file,
            "dev": config.do_eval and not config.eval_data_file_path,
            "test": config.do_predict,
        }
        read = [self.files[split] for split, used in tables.items() if used and split in self.files]
        if config.positive_file and training and not read:
            keys = ["text_a_column", "text_b_column", "label_column", "column_names"]
            config.refuse(keys, "the lines of positive_file and negative_file are texts, and no table is read")
        if read and all(file.suffix.lower() in JSON_SUFFIXES for file in read):
            config.refuse(["column_names"], "lines of JSON name their columns themselves")
        if not read:
            config.refuse(["skip_labels"], "no table is read")
        if config.eval_data_file_path:
            config.refuse(["dev_file"], "eval_data_file_path names ready features in place of examples")
        if config.train_data_file_path and not self.dev_split:
            in_place = "train_data_file_path names ready features in place of examples"
            config.refuse(["train_file", "positive_file", "negative_file"], in_place)
        if config.do_train and not self.dev_split:
            config.refuse(["dev_ratio"], NO_DEV_SPLIT)

    def text_columns(self) -> dict[str, str]:
        """The names of the texts' columns in the training file, by their keys in records; none where it has none, or
        is not read."""
        config = self.config
        if not config.do_train or TRAIN not in self.files or config.positive_file or config.train_data_file_path:
            return {}
        table = read_table(self.files[TRAIN], self.columns.names, self.columns.text_a)
        wanted = {"text_a": self.columns.text_a, "text_b": self.columns.text_b}
        names = {key: table.name_of(column) for key, column in wanted.items() if column}
        return {key: name if table.names.count(name) == 1 else key for key, name in names.items()}

    def read(self, split: str) -> list[Example]:
        """The examples of a split; DataError where there is no file for it."""
        config = self.config
        of_its_own = split != TRAIN or ("dev" in self.files and not config.positive_file)
        if split in self.files and of_its_own:
            labelled = split not in self.test_splits
            return config.without_skipped(read_examples(self.files[split], self.columns, labelled), labelled)
        if split == "test":
            raise DataError("there is nothing to predict: name a test_file, or put test.* into data_dir")
        if self._training is None:
            if config.positive_file:
                self._training = read_polarity_files(Path(config.positive_file), Path(config.negative_file))
            elif TRAIN in self.files:
                self._training = config.without_skipped(read_examples(self.files[TRAIN], self.columns), labelled=True)
            else:
                raise DataError(f"there are no {split} examples: name train_file and dev_file, or data_dir")
        if self.dev_split is None:
            return list(self._training)
        return split_off(self._training, self.dev_split.ratio, self.dev_split.seed)[split == "dev"]
