"""Examples of classification: options, published files and custom files."""

import logging
from collections.abc import Collection, Sequence
from pathlib import Path

from model_utils.errors import ConfigError
from model_utils.schema import SAME_PLACE, option
from src.albert_config import LENGTH, WIDTH
from src.assessment_method import METHODS
from src.create_finetune_data import Example, TextColumns, plain_label, read_examples, read_polarity_files
from src.data.feature_cache import TRAIN
from src.data.feature_files import SUFFIX
from src.tasks.class_labels import drop_labels, drop_unlabelled, warn_of_unmatched
from src.tasks.example_files import NO_DEV_SPLIT, ExampleFiles, ExampleFilesConfig
from src.tasks.finetune_config import READY_KEYS, FinetuneConfig, is_tfrecord
from src.tasks.glue import PUBLISHED_TASKS, read_glue
from src.tasks.task_info import TaskInfo
from src.text.text_tables import (
    DELIMITERS,
    TEXT_SUFFIXES,
    WORKBOOK_SUFFIXES,
    TableOptions,
    names_its_columns,
    read_table,
    suffix_of,
)

logger = logging.getLogger(__name__)
CUSTOM = "custom"
OWN_FILES = ("task_name", CUSTOM)  # `needs` of options for custom files
MAX_LABELS = 100_000
NLI_TASKS = ("mnli", "qnli", "rte", "wnli", "ax", "cmnli", "ocnli")
NLI_LABELS = {"entailment", "neutral", "contradiction", "not_entailment"}
NO_GOLD_LABEL = "-"  # label in SNLI, OCNLI and CMNLI where annotators disagreed


class ClassifierConfig(ExampleFilesConfig):
    """Configuration of python run_classifier.py, which classifies or scores texts and pairs of texts."""

    config_file = "task_classifier_config.yaml"
    reads_tfrecords = True
    searchable = (*FinetuneConfig.searchable, "class_weights", "label_smoothing")

    schema_file_path: str = option("", "schema.json of TFRecord features", on_resume=SAME_PLACE)
    task_name: str = option(
        "custom", "GLUE or CLUE task in data_dir; or custom: any files", choices=(*PUBLISHED_TASKS, CUSTOM)
    )
    assessment_method: str = option(
        "",
        "metric; empty: official metric of the task; with two labels, f1 is that of the second in label_list",
        choices=("", *METHODS),
    )
    num_class: int = option(0, "number of classes; 1: regression; 0: count the labels", minimum=0, maximum=MAX_LABELS)
    classifier_hidden_size: int = option(0, "width of a layer before the classifier; 0: none", minimum=0, maximum=WIDTH)

    window_stride: int = option(
        0,
        "tokens between the starts of windows; of a text longer than max_seq_length, whose logits are averaged; "
        "0: truncate",
        minimum=0,
        maximum=LENGTH,
    )

    skip_labels: tuple[str, ...] = option(
        (),
        "labels of rows to leave out; [\"\"]: rows without one; empty: '-' in natural language inference, else none",
    )

    class_weights: tuple[str, ...] = option(
        (),
        "weights of classes in the loss; balanced (all classes together alike), or LABEL=WEIGHT for some, 1 for the "
        "others; empty: 1",
    )

    label_smoothing: float = option(0.0, "share of a target spread over all classes", minimum=0, below=1)

    multi_label: bool = option(False, "a row has zero or more labels", needs=OWN_FILES)
    label_separator: str = option("|", "text between the labels of a row", needs=("multi_label", True))
    indicator_columns: tuple[str, ...] = option(
        (), "columns of 0 and 1; one for each label, in place of label_column", needs=("multi_label", True)
    )

    # Files of custom examples, and their columns.
    positive_file: str = option("", "positive texts; one per line", needs=OWN_FILES, on_resume=SAME_PLACE)
    negative_file: str = option("", "negative texts; one per line", needs=OWN_FILES, on_resume=SAME_PLACE)
    text_a_column: str = option("text_a", "column of the first text; name, or number from 1", needs=OWN_FILES)
    text_b_column: str = option("", "column of the second text; empty: single texts", needs=OWN_FILES)
    label_column: str = option("label", "column of the label; name, or number from 1", needs=OWN_FILES)
    column_names: tuple[str, ...] = option((), "column names of files without a header", needs=OWN_FILES)
    encoding: str = option("utf-8", "encoding of text files; such as gb18030, utf-16 or latin-1", needs=OWN_FILES)
    sheet: str = option("", "sheet of workbooks; name, or number from 1; empty: first visible one", needs=OWN_FILES)
    delimiter: str = option("", "text between fields; empty: by ending and first line", needs=OWN_FILES)
    label_list: tuple[str, ...] = option((), "labels in order; empty: labels of the examples, sorted", needs=OWN_FILES)

    def check_together(self) -> None:
        super().check_together()
        if self.schema_file_path and not any(is_tfrecord(getattr(self, key)) for key in READY_KEYS):
            problem = f"neither {' nor '.join(READY_KEYS)} names a TFRecord (any file but *{SUFFIX})"
            raise self.error_of("schema_file_path", problem)
        if self.window_stride > self.max_seq_length - 2:
            expected = f"at most {self.max_seq_length - 2}, max_seq_length less 2, as windows have to meet"
            raise self.error_of("window_stride", expected=expected)
        if self.multi_label:
            reason = "multi_label is true"
            losses = ["class_weights", "label_smoothing"]
            self.refuse(["assessment_method", *losses, "skip_labels", "positive_file", *READY_KEYS], reason)
            if self.num_class == 1:
                raise self.error_of(
                    "num_class", "that is a regression and multi_label is true", hint="remove one of the two"
                )
            if not self.label_separator.strip():
                raise self.error_of("label_separator", expected="the text between two labels, which is not blank")
            if self.indicator_columns:
                self.refuse(["label_column", "label_list"], "indicator_columns names the labels")
            for name in self.indicator_columns:
                if self.label_separator in name:
                    problem = f"{name!r} holds the label_separator {self.label_separator!r}"
                    raise self.error_of("indicator_columns", problem, hint="set another label_separator")
        if bool(self.positive_file) != bool(self.negative_file) or (self.positive_file and self.train_file):
            raise ConfigError("positive_file and negative_file belong together and replace train_file")
        if self.task_name != CUSTOM:
            self.refuse(["train_file", "dev_file", "test_file", "dev_ratio"], f"task_name is {self.task_name}")
        published = PUBLISHED_TASKS.get(self.task_name)
        if published and not published.dev_splits and (self.do_train or self.do_eval):
            hint = "set do_train and do_eval to false, and load_finetune_checkpoint_path to a model of mnli"
            raise self.error_of("task_name", "it has test examples only", hint=hint)

    def skipped(self, labels: Collection[str | None]) -> set[str]:
        """Return the labels whose rows are left out.

        Without skip_labels it is "-" in natural language inference: in published tasks of that type, and in files whose
        other labels are all labels of natural language inference.
        """
        if self.skip_labels:
            return {plain_label(label) for label in self.skip_labels}
        other_labels = {label.casefold() for label in labels if label not in (None, NO_GOLD_LABEL)}
        is_nli = self.task_name in NLI_TASKS or (bool(other_labels) and other_labels <= NLI_LABELS)
        return {NO_GOLD_LABEL} if is_nli else set()

    def without_skipped(self, examples: Sequence[Example], split: str, labelled: bool) -> list[Example]:
        """Return the examples whose labels are not skipped (see drop_labels)."""
        labels = {example.label for example in examples}
        skipped = self.skipped(labels)
        if self.skip_labels and labelled and (split == TRAIN or not self.do_train):
            warn_of_unmatched(examples[0].file, frozenset(skipped - {label or "" for label in labels}))
        return drop_labels(examples, skipped, labelled)

    def check_required(self) -> None:
        super().check_required()
        if self.task_name != CUSTOM and self.reads_examples and not self.data_dir:
            raise self.error_of("data_dir", hint="give the folder with the task's files")


class GlueExamples:
    """Examples of a published task by split; `incomplete` holds the splits that were read without some rows."""

    dev_split = None

    def __init__(self, config: ClassifierConfig) -> None:
        self.config = config
        task = PUBLISHED_TASKS[config.task_name]
        self.dev_splits = task.dev_splits or ("dev",)
        self.test_splits = task.test_splits
        self.columns = task.columns
        self.incomplete: set[str] = set()

    def text_columns(self) -> dict[str, str]:
        """Return the column names of the texts, by their keys in records."""
        return self.columns.texts()

    def read(self, split: str) -> list[Example]:
        """Return the examples of a split."""
        examples = read_glue(self.config.task_name, Path(self.config.data_dir), split)
        remaining = self.config.without_skipped(examples, split, split not in self.test_splits)
        if len(remaining) < len(examples):
            self.incomplete.add(split)
        return remaining


class CustomExamples(ExampleFiles[Example]):
    """Examples of custom files by split; without a development file, a share of the training examples replaces it."""

    config: ClassifierConfig
    dev_splits = ("dev",)
    test_splits = ("test",)
    incomplete: frozenset[str] = frozenset()  # only GLUE and CLUE have submission files, which need complete splits

    def __init__(self, config: ClassifierConfig, trained_info: TaskInfo | None = None) -> None:
        super().__init__(config, self._read_file)
        if config.positive_file:
            self.files[TRAIN] = Path(config.positive_file)
        self.columns = TextColumns(
            config.text_a_column,
            config.text_b_column,
            config.label_column,
            config.column_names,
            separator=config.label_separator if config.multi_label else "",
            indicator_columns=config.indicator_columns,
            optional_label="" in config.skip_labels,
            options=TableOptions(config.encoding, config.sheet, config.delimiter),
        )
        trained_columns = trained_info.text_columns if trained_info else {}
        if config.reads_examples and trained_columns and bool(self.columns.text_b) != ("text_b" in trained_columns):
            problem = f"the weights were trained on {' and '.join(trained_columns.values())}"
            raise config.error_of("text_b_column", problem, hint="name as many columns")
        if config.do_eval and "dev" not in self.files and not config.eval_data_file_path:
            if config.do_train and config.train_data_file_path:
                hint = "give one, since train_data_file_path may hold the development share of train_file"
                raise config.error_of("dev_file", hint=hint)
            is_single_label = config.num_class != 1 and not config.multi_label
            self.hold_out(trained_info, lambda example: (example.text_a, example.text_b), stratified=is_single_label)
        self._refuse_unused()

    def _refuse_unused(self) -> None:
        """Raise ConfigError if an option for files, columns or the development share is set but has no effect.

        Without a training the options may be those of the training's files.
        """
        config = self.config
        if not config.do_train:
            return
        reads_train_examples = not config.train_data_file_path or self.dev_split is not None
        reads_table = {
            TRAIN: reads_train_examples and not config.positive_file,
            "dev": config.do_eval and not config.eval_data_file_path,
            "test": config.do_predict,
        }
        tables = [self.files[split] for split, used in reads_table.items() if used and split in self.files]
        if config.positive_file and reads_train_examples and not tables:
            keys = ["text_a_column", "text_b_column", "label_column", "column_names"]
            config.refuse(keys, "positive_file and negative_file have no columns, and no table is read")
        if tables and all(map(names_its_columns, tables)):
            config.refuse(["column_names"], "the files contain their column names")
        suffixes = {suffix_of(file) for file in tables}
        if not suffixes & WORKBOOK_SUFFIXES:
            config.refuse(["sheet"], "no workbook is read")
        if not suffixes & DELIMITERS.keys():
            config.refuse(["delimiter"], f"no {', '.join(DELIMITERS)} is read")
        if not (suffixes & TEXT_SUFFIXES or (reads_train_examples and config.positive_file)):
            config.refuse(["encoding"], "no text file is read")
        if not tables:
            config.refuse(["skip_labels"], "no table is read")
        if config.eval_data_file_path:
            config.refuse(["dev_file"], "eval_data_file_path replaces the examples")
        if config.train_data_file_path and not self.dev_split:
            keys = ["train_file", "positive_file", "negative_file"]
            config.refuse(keys, "train_data_file_path replaces the examples")
        if not self.dev_split:
            config.refuse(["dev_ratio"], NO_DEV_SPLIT)

    def text_columns(self) -> dict[str, str]:
        """Return the column names of the texts in the training table, by their keys in records; {} without a table."""
        config = self.config
        if not config.do_train or TRAIN not in self.files or config.positive_file or config.train_data_file_path:
            return {}
        table = read_table(self.files[TRAIN], self.columns.names, self.columns.text_a, options=self.columns.options)
        texts = self.columns.texts()
        columns = [*texts.values(), *(self.columns.indicator_columns or (self.columns.label,))]
        if len({*map(table.column_index, columns)}) < len(columns):
            logger.warning(f"{table.path}: a column is used twice; texts and label need columns of their own")
        return {key: table.key_of(column, key) for key, column in texts.items()}

    def _read_file(self, split: str) -> list[Example]:
        config = self.config
        if split == TRAIN and config.positive_file:
            return read_polarity_files(self.files[TRAIN], Path(config.negative_file), config.encoding)
        labelled = split != "test"
        examples = read_examples(self.files[split], self.columns, labelled)
        if self.columns.indicator_columns:
            return drop_unlabelled(examples, labelled)
        return config.without_skipped(examples, split, labelled)
