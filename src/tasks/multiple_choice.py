"""Multiple choice, as in RACE: a question on an article, with 2 to 26 options."""

import dataclasses
import itertools
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
from pydantic import Field
from scipy.special import softmax

from model_utils.errors import DataError
from model_utils.files import write_json
from model_utils.schema import SAME_PLACE, option
from src.albert_config import LENGTH, AlbertConfig
from src.albert_for_finetune import AlbertForMultipleChoice
from src.assessment_method import assess
from src.data.feature_cache import TRAIN, Features, Split
from src.data.feature_files import RecordSet, manifest_path, read_manifest
from src.data.features import sample, token_columns
from src.finetune_eval_model import MultipleChoiceScores
from src.tasks.finetune_config import FinetuneConfig
from src.tasks.prediction_table import write_prediction_table
from src.tasks.race_data import (
    ANSWERS,
    LEVELS,
    MAX_OPTIONS,
    MIN_OPTIONS,
    RACE_OPTIONS,
    RaceQuestion,
    RaceSplit,
    encode_questions,
    is_option_list,
    read_race,
)
from src.tasks.record_processor import Answer, Outputs, Probability, Record, RecordProcessor, likeliest_name, text_of
from src.tasks.spec import (
    EvaluationResult,
    PreparedSplit,
    RecordField,
    Task,
    TaskSpec,
    linear_head,
)
from src.tasks.task_info import TaskInfo
from src.tokenization import FullTokenizer


class RaceConfig(FinetuneConfig):
    """Configuration of python run_race.py, which answers reading comprehension questions with 2 to 26 options."""

    config_file = "task_race_config.yaml"
    max_seq_length: int = 512
    epoch_num: int = 5
    train_batch_size: int = 8
    learning_rate_of_base = 1e-5

    data_dir: str = option("", "the folder RACE; or its parent, or a folder of C3's *.json", on_resume=SAME_PLACE)
    level: str = option("all", "school level of the questions", choices=("middle", "high", "all"))
    max_qa_length: int = option(
        0,
        "maximum tokens of question and option together; 0: 128, or max_seq_length - 3 if less",
        minimum=0,
        maximum=LENGTH,
    )

    def check_together(self) -> None:
        super().check_together()
        if not self.reads_examples:
            self.refuse(["level"], "the features are ready")
        self.derive("max_qa_length", min(128, self.max_seq_length - 3))
        if self.max_qa_length + 3 > self.max_seq_length:
            raise self.error_of("max_qa_length", expected=f"at most max_seq_length - 3 ({self.max_seq_length - 3})")

    def check_required(self) -> None:
        super().check_required()
        if self.reads_examples and not self.data_dir:
            raise self.error_of("data_dir", hint="give the folder RACE, or that of C3's files")


class RaceTask(Task):
    """Task of RACE: dev selects the best checkpoint, and do_predict evaluates test."""

    feature_format = "race"
    selection = "accuracy"
    config: RaceConfig

    def __init__(self, config: RaceConfig, tokenizer: FullTokenizer, trained_info: TaskInfo | None = None) -> None:
        super().__init__(config, tokenizer, trained_info)
        self._questions: dict[str, list[RaceQuestion]] = {}
        used_splits = {TRAIN: config.do_train, "dev": config.do_eval, "test": config.do_predict}
        option_counts = [self._most_options(name) for name, is_used in used_splits.items() if is_used]
        self.num_choices = max(option_counts, default=RACE_OPTIONS)
        self.spec = dataclasses.replace(
            MULTIPLE_CHOICE,
            scores=lambda architecture, _: MultipleChoiceScores(architecture, self.num_choices),
            texts_per_row=self.num_choices,
        )
        self.task_info = ChoiceInfo(
            task=self.spec.name,
            max_seq_length=config.max_seq_length,
            max_qa_length=config.max_qa_length,
            mark_shared=self.kept_by_weights("mark_shared"),
        )

    def _most_options(self, name: str) -> int:
        """Return the largest number of options in a split, or that of the rows of its ready features."""
        if ready := self.ready_file(name):
            return read_manifest(manifest_path(Path(ready))).get("num_choices", RACE_OPTIONS)
        self._questions[name] = read_race(Path(self.config.data_dir), name, self.config.level)
        return max(len(question.options) for question in self._questions[name])

    def split(self, name: str) -> RaceSplit:
        config = self.config
        questions = self._questions.pop(name, None) or read_race(Path(config.data_dir), name, config.level)
        questions = sample(questions, config.max_samples(name), config.seed)
        lengths = config.max_seq_length, config.max_qa_length
        return RaceSplit(name, questions, self.tokenizer, *lengths, self.num_choices)

    def check_ready(self, records: RecordSet, path: Path) -> None:
        if (num_choices := records.manifest.get("num_choices", RACE_OPTIONS)) != self.num_choices:
            raise DataError(f"{path} has rows of {num_choices} options, but other splits of {self.num_choices}")

    def expected_manifest(self) -> dict[str, Any]:
        return super().expected_manifest() | {"max_qa_length": self.config.max_qa_length}

    def evaluate(self, prepared: PreparedSplit, outputs: Outputs, task_info: TaskInfo) -> EvaluationResult:
        records = prepared.records
        logits = outputs["logits"]
        is_missing = np.arange(logits.shape[1]) >= records.array("option_counts")[:, None]
        logits = np.where(is_missing, -np.inf, logits)
        choices = logits.argmax(1)
        gold = records.array("labels")
        levels = records.array("levels")
        metrics = assess("accuracy", choices, gold)
        for level_id, level in enumerate(LEVELS):
            rows = levels == level_id
            if rows.any() and not rows.all():
                metrics[f"accuracy_{level}"] = assess("accuracy", choices[rows], gold[rows])["accuracy"]
        letters = np.array(list(ANSWERS))
        columns = {
            "id": records.array("question_ids").tolist(),
            "label": letters[gold].tolist(),
            "prediction": letters[choices].tolist(),
            "probability": softmax(logits, 1).max(1),
        }
        return EvaluationResult(metrics, partial(_write, prepared.split, columns))

    def baseline(self, train: PreparedSplit, dev: PreparedSplit) -> dict[str, float]:
        """Return the metrics of the letter that is most often right in training."""
        gold = dev.records.array("labels")
        majority = np.bincount(train.records.array("labels")).argmax()
        return assess("accuracy", np.full_like(gold, majority), gold)


def _write(split: Split, columns: dict[str, Sequence[Any]], folder: Path) -> None:
    """Write predictions_SPLIT.json, letters by question id, and predictions_SPLIT.tsv with the texts."""
    answers = dict(zip(columns["id"], columns["prediction"], strict=True))
    write_json(folder / f"predictions_{split.name}.json", answers)
    if questions := split.examples:
        columns = columns | {"question": [question.question for question in questions]}
        option_columns = itertools.zip_longest(*(question.options for question in questions), fillvalue="")
        columns |= dict(zip(ANSWERS, option_columns, strict=False))
    write_prediction_table(folder, split.name, columns)


class ChoiceInfo(TaskInfo):
    """Settings with max_qa_length, the tokens of question and option together."""

    max_qa_length: int = Field(128, ge=1, le=LENGTH)

    def clipped_to(self, architecture: AlbertConfig) -> Self:
        info = super().clipped_to(architecture)
        return info.model_copy(update={"max_qa_length": min(info.max_qa_length, info.max_seq_length - 3)})


class ChoiceProcessor(RecordProcessor):
    """Processor: article, question, options -> answer, probabilities."""

    task_info: ChoiceInfo

    def parse(self, record: Record) -> tuple[str, str, list[str]]:
        options = record.get("options")
        if not is_option_list(options):
            raise DataError(f"options must be a list of {MIN_OPTIONS} to {MAX_OPTIONS} texts")
        options = [text_of({"an option": option}, "an option") for option in options]
        return text_of(record, "article"), text_of(record, "question"), options

    def encode(self, items: Sequence[tuple[str, str, list[str]]]) -> Features:
        """Return one row per option, and the arrays `truncated` (items,) and `items` (rows,), the index of its item."""
        rows = [(article, question, [option]) for article, question, options in items for option in options]
        lengths = self.length, self.task_info.max_qa_length
        values, row_truncated = encode_questions(rows, self.tokenizer, *lengths, 1)
        truncated = np.array([cut.any() for cut in self._by_record(items, row_truncated)])
        item_indices = np.repeat(np.arange(len(items)), [len(options) for _, _, options in items])
        arrays = {"truncated": truncated, "items": item_indices}
        return Features(token_columns(self.tokenizer, self.length), values, arrays)

    def items_of_rows(self, features: Features) -> np.ndarray:
        return features.arrays["items"]

    def postprocess(self, items: Sequence[Any], features: Features, outputs: Outputs) -> list[Record]:
        records = self._by_record(items, outputs["logits"][:, 0])
        return [likeliest_name("answer", ANSWERS[: len(logits)], softmax(logits)) for logits in records]

    def _by_record(self, items: Sequence[tuple[str, str, list[str]]], values: np.ndarray) -> list[np.ndarray]:
        counts = [len(options) for _, _, options in items]
        return np.split(values, np.cumsum(counts)[:-1])


class ChoiceAnswer(Answer):
    answer: str = Field(description="letter of the option, A for the first")
    probabilities: dict[str, Probability]


MULTIPLE_CHOICE = TaskSpec(
    "multiple_choice",
    lambda architecture, _: MultipleChoiceScores(architecture, num_choices=1),
    ChoiceProcessor,
    {"article": RecordField(), "question": RecordField(), "options": RecordField(list_size=(MIN_OPTIONS, MAX_OPTIONS))},
    ChoiceAnswer,
    linear_head("classifier", 1, "AlbertForMultipleChoice"),
    ChoiceInfo,
    losses=AlbertForMultipleChoice,
    config=RaceConfig,
)
