"""task.json beside fine-tuned weights: what the head was trained for, and the names of its labels."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from model_utils.errors import DataError
from model_utils.files import write_json

TASK_FILE = "task.json"
TASKS = ("classification", "regression", "multiple_choice", "squad_v1", "squad_v2", "token_classification")
LABELLED = ("classification", "token_classification")  # an output for each label


@dataclass(frozen=True)
class Task:
    """A task of TASKS, and the labels in the order of the outputs; () where the outputs are no labels."""

    task: str
    labels: tuple[str, ...] = ()


def write_task(folder: Path, task: Task) -> None:
    """Write task.json."""
    write_json(folder / TASK_FILE, asdict(task))


def read_card(weights: Path) -> dict[str, Any] | None:
    """All that task.json beside weights (a checkpoint or its folder) says, or None where there is none.

    Raises:
        DataError: the file is damaged.
    """
    file = (weights if weights.is_dir() else weights.parent) / TASK_FILE
    if not file.exists():
        return None
    try:
        card = json.loads(file.read_text(encoding="utf-8"))
        card |= {"task": card["task"], "labels": [str(label) for label in card.get("labels") or ()]}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{file} is damaged: {error!r}") from error
    if card["task"] not in TASKS:
        raise DataError(f"{file}: task is {card['task']!r}, allowed is one of {', '.join(TASKS)}")
    return card


def read_task(weights: Path) -> Task | None:
    """The task and the labels of read_card."""
    card = read_card(weights)
    return card and Task(card["task"], tuple(card["labels"]))
