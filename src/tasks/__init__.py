"""Registry of tasks: TaskSpecs by name, parsing of task.json, and tasks by the shape of a head."""

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
# All settings of all tasks: task.json may contain those of other tasks, but only with valid values.
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


def parse_task_info(content: Any, origin: str, allowed: Collection[str] = ()) -> TaskInfo:
    """Return the content of task.json (path: origin) as the TaskInfo of its task.

    Args:
        allowed: names of tasks; (): all that have a head.

    Raises:
        DataError: a value is not allowed; names key and value.
    """
    allowed = allowed or [name for name, spec in TASKS.items() if spec.head]
    task_schema = create_model("TaskSchema", __base__=Schema, task=(Literal[tuple(allowed)], ...))
    info = TASKS[validated(content, task_schema, origin).task].info
    validated(content, SettingsSchema, origin)
    return validated(content, info, origin)


def tasks_of_head(module: str, outputs: int) -> list[str]:
    """Return the names of the tasks whose head has this Head.module and number of outputs."""
    heads = {name: TASKS[name].head for name in FINE_TUNED if TASKS[name].head.module == module}
    exact = [name for name, head in heads.items() if head.outputs == outputs]
    return exact or [name for name, head in heads.items() if not head.outputs]
