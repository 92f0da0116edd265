"""The tasks by name: TaskSpecs, task.json read as its task's TaskInfo, and tasks by the shape of a head."""

from collections.abc import Collection
from typing import Any, Literal

from pydantic import create_model

from model_utils.json_files import Schema, validated
from src.tasks.classification import CLASSIFICATION, REGRESSION
from src.tasks.fill_mask import EMBEDDINGS, FILL_MASK
from src.tasks.multiple_choice import MULTIPLE_CHOICE
from src.tasks.question_answering import SQUAD_V1, SQUAD_V2
from src.tasks.spec import TaskSpec
from src.tasks.task_info import TaskInfo
from src.tasks.token_classification import TOKEN_CLASSIFICATION

_SPECS = (CLASSIFICATION, REGRESSION, MULTIPLE_CHOICE, SQUAD_V1, SQUAD_V2, TOKEN_CLASSIFICATION, FILL_MASK, EMBEDDINGS)
TASKS: dict[str, TaskSpec] = {spec.name: spec for spec in _SPECS}
FINE_TUNED = tuple(name for name, spec in TASKS.items() if spec.head)
# What task.json may say of any task: a key that the task at hand does not use is kept, but not with a wrong value.
SettingsSchema = create_model(
    "SettingsSchema",
    __base__=Schema,
    **{
        key: (field.annotation, field)
        for spec in TASKS.values()
        for key, field in spec.info.model_fields.items()
        if key not in ("task", "labels")
    },
)


def parse_task_info(content: Any, origin: str, allowed: Collection[str] = FINE_TUNED) -> TaskInfo:
    """What task.json (origin) says of one of the allowed tasks; DataError names key, value and what is allowed."""
    named = create_model("Named", __base__=Schema, task=(Literal[tuple(allowed)], ...))
    info = TASKS[validated(content, named, origin).task].info
    validated(content, SettingsSchema, origin)
    return validated(content, info, origin)


def tasks_of_head(module: str, outputs: int) -> list[str]:
    """The tasks that a head may be for, by Head.module and its outputs."""
    heads = {name: TASKS[name].head for name in FINE_TUNED if TASKS[name].head.module == module}
    exact = [name for name, head in heads.items() if head.outputs == outputs]
    return exact or [name for name, head in heads.items() if not head.outputs]
