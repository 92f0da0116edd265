"""task.json beside fine-tuned weights: what the head was trained for, and the names of its labels."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from model_utils.json_files import Schema, read_validated, write_checked
from src.albert_config import LENGTH, WIDTH
from src.tasks import parse_task_info
from src.tasks.task_info import TaskInfo

TASK_FILE = "task.json"
BEAM = 1000


@dataclass(frozen=True)
class Task:
    """A fine-tuned task, and what task.json says about it.

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


def folder_of(weights: Path) -> Path:
    """The folder that a checkpoint lies in, or the folder itself."""
    return weights if weights.is_dir() else weights.parent


def write_task_info(folder: Path, task_info: TaskInfo) -> None:
    """Write task.json."""
    write_checked(folder / TASK_FILE, task_info.stated())


def write_task(folder: Path, task: Task) -> None:
    """Write task.json."""
    content = {**task.settings, "task": task.task, "labels": task.labels}
    write_task_info(folder, parse_task_info(content, str(folder / TASK_FILE)))


def read_task_info(weights: Path) -> TaskInfo | None:
    """What task.json beside weights (a checkpoint or its folder) says, or None where there is none.

    Raises:
        DataError: the file is damaged, or was changed after it was written.
    """
    file = folder_of(weights) / TASK_FILE
    return read_validated(file, partial(parse_task_info, origin=str(file))) if file.exists() else None


def read_task(weights: Path) -> Task | None:
    """What read_task_info gives, as a Task."""
    task_info = read_task_info(weights)
    if task_info is None:
        return None
    content = task_info.stated()
    return Task(content.pop("task"), tuple(content.pop("labels")), content)
