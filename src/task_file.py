"""task.json beside fine-tuned weights: what the head was trained for, and the names of its labels."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from model_utils.json_files import Schema, read_json, write_checked
from src.albert_config import LENGTH, WIDTH

TASK_FILE = "task.json"
BEAM = 1000  # answers of a question that are kept or looked at, at most
TASKS = ("classification", "regression", "multiple_choice", "squad_v1", "squad_v2", "token_classification")
TEXT_COLUMNS = "text_columns"  # of a card: the names that texts had in the training data, by their keys in records
LABELLED = ("classification", "token_classification")  # an output for each label


@dataclass(frozen=True)
class Task:
    """A task of TASKS, and what task.json says about it.

    labels: in the order of the outputs; () where the outputs are no labels. settings: all the rest (SettingsSchema).
    """

    task: str
    labels: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)


class SettingsSchema(Schema):
    """How fine-tuned weights are used: as in their training. Weights of other projects know nothing of it."""

    max_seq_length: int = Field(512, ge=8, le=LENGTH)
    classifier_hidden_size: int = Field(0, ge=0, le=WIDTH)
    max_qa_length: int = Field(128, ge=1, le=LENGTH)
    doc_stride: int = Field(128, ge=1, le=LENGTH)
    max_query_length: int = Field(64, ge=1, le=LENGTH)
    max_answer_length: int = Field(30, ge=1, le=LENGTH)
    n_best_size: int = Field(20, ge=1, le=BEAM)
    start_n_top: int = Field(5, ge=1, le=BEAM)
    end_n_top: int = Field(5, ge=1, le=BEAM)
    null_threshold: float = 1.0
    text_columns: dict[Literal["text_a", "text_b", "text"], str] = Field(default_factory=dict)


class CardSchema(SettingsSchema):
    """What has to be known to use fine-tuned weights."""

    task: Literal[TASKS]
    labels: tuple[str, ...] | None = None

    @model_validator(mode="after")
    def _labels_fit(self) -> Self:
        if self.task in LABELLED and not self.labels:
            raise ValueError(f"a name in labels for each output of {self.task}")
        if len(set(self.labels or ())) < len(self.labels or ()):
            raise ValueError("labels that differ from each other")
        return self


def folder_of(weights: Path) -> Path:
    """The folder that a checkpoint lies in, or the folder itself."""
    return weights if weights.is_dir() else weights.parent


def write_card(folder: Path, card: Mapping[str, Any]) -> None:
    """Write task.json."""
    write_checked(folder / TASK_FILE, card)


def write_task(folder: Path, task: Task) -> None:
    """Write task.json."""
    write_card(folder, {**task.settings, "task": task.task, "labels": task.labels})


def read_card(weights: Path) -> dict[str, Any] | None:
    """All that task.json beside weights (a checkpoint or its folder) says, or None where there is none.

    Raises:
        DataError: the file is damaged, or was changed after it was written.
    """
    file = folder_of(weights) / TASK_FILE
    if not file.exists():
        return None
    card = read_json(file, CardSchema)
    return card.model_dump(exclude_unset=True) | {"labels": list(card.labels or ())}


def read_task(weights: Path) -> Task | None:
    """What read_card gives, as a Task."""
    card = read_card(weights)
    return card and Task(card.pop("task"), tuple(card.pop("labels")), card)
