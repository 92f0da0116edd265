"""Registry of tasks: TaskSpecs by name, parsing of task.json, and tasks by the shape of a head."""

from collections.abc import Callable, Collection
from typing import Any

from pydantic import create_model

from model_utils.errors import DataError, shorten
from model_utils.json_files import Schema, validated
from src.tasks.classification import CLASSIFICATION, REGRESSION
from src.tasks.classification_examples import ClassifierConfig
from src.tasks.classifier_tasks import make_classifier
from src.tasks.embedding_pairs import EMBEDDING_PAIRS
from src.tasks.embeddings import EMBEDDINGS
from src.tasks.fill_mask import FILL_MASK
from src.tasks.finetune_config import FinetuneConfig
from src.tasks.multi_label import MULTI_LABEL
from src.tasks.multiple_choice import MULTIPLE_CHOICE, RaceConfig, RaceTask
from src.tasks.question_answering import SQUAD_V1, SQUAD_V2, SquadConfig, SquadTask, SquadV2Config, SquadV2Task
from src.tasks.spec import Head, Task, TaskSpec
from src.tasks.task_info import TaskInfo
from src.tasks.token_classification import TOKEN_CLASSIFICATION, NerConfig, NerTask

_SPECS = (
    CLASSIFICATION,
    REGRESSION,
    MULTI_LABEL,
    MULTIPLE_CHOICE,
    SQUAD_V1,
    SQUAD_V2,
    TOKEN_CLASSIFICATION,
    EMBEDDING_PAIRS,
    FILL_MASK,
    EMBEDDINGS,
)
TASKS: dict[str, TaskSpec] = {spec.name: spec for spec in _SPECS}
HEADS: dict[str, Head] = {name: spec.head for name, spec in TASKS.items() if spec.head}
TASK_MAKERS: dict[type[FinetuneConfig], Callable[..., Task]] = {
    ClassifierConfig: make_classifier,
    RaceConfig: RaceTask,
    SquadConfig: SquadTask,
    SquadV2Config: SquadV2Task,
    NerConfig: NerTask,
}
# All settings of all tasks: task.json may contain those of other tasks, but only with valid values.
_SETTINGS: dict[str, Any] = {
    key: (field.annotation, field)
    for spec in TASKS.values()
    for key, field in spec.info.model_fields.items()
    if key not in ("task", "labels")
}
_SettingsSchema = create_model("_SettingsSchema", __base__=Schema, **_SETTINGS)


def parse_task_info(content: Any, origin: str, allowed: Collection[str] = HEADS) -> TaskInfo:
    """Return the content of task.json (path: origin) as the TaskInfo of its task.

    Args:
        allowed: names of tasks.

    Raises:
        DataError: a value is not allowed; names key and value.
    """
    task = validated(content, TaskInfo, origin).task
    if task not in allowed:
        raise DataError(f"{origin}: task is {shorten(task)}, allowed is {', '.join(map(repr, allowed))}")
    validated(content, _SettingsSchema, origin)
    return validated(content, TASKS[task].info, origin)


def tasks_of_head(module: str, outputs: int) -> list[str]:
    """Return the names of the tasks whose head has this Head.module and number of outputs."""
    heads = {name: head for name, head in HEADS.items() if head.module == module}
    exact = [name for name, head in heads.items() if head.outputs == outputs]
    return exact or [name for name, head in heads.items() if not head.outputs]
