"""Requests and replies of each task as pydantic models, from which the checks and the OpenAPI description follow."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, WrapValidator, create_model, model_validator

from model_utils.errors import ConfigError
from src.tasks import TASKS
from src.tasks.answerer import Answer, Identity, is_identity
from src.tasks.spec import RecordField
from src.tasks.task_info import TaskInfo


class RecordError(Answer):
    """A record that could not be answered, with its place from 1; the others of its request are answered."""

    line: int
    error: str


class Failure(BaseModel):
    """A request that could not be answered."""

    error: str


class Known(BaseModel):
    """What has no other keys than its own; of others the first one is an error, however many thousands there are."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    @model_validator(mode="before")
    @classmethod
    def _leave_one_unknown(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        names = {*cls.model_fields, *(field.alias for field in cls.model_fields.values())}
        others = set(list(value.keys() - names)[1:])
        return {key: each for key, each in value.items() if key not in others} if others else value


def request_model(task_info: TaskInfo, max_records: int, max_characters: int) -> type[BaseModel]:
    """Return the model of {"records": [...]}, with the task's fields under the names of the training data's columns.

    A record that does not fit becomes an InvalidRecord, so that it costs no other one its answer.

    Raises:
        ConfigError: the task is none of TASKS.
    """
    if task_info.task not in TASKS:
        raise ConfigError(f"the model's task is {task_info.task!r}, allowed are {', '.join(TASKS)}")
    text = Annotated[str, Field(max_length=max_characters)]

    def definition(field: RecordField) -> tuple[Any, Any]:
        if field.texts:
            fewest, most = field.texts
            return Annotated[list[text], Field(min_length=fewest, max_length=most)], ...
        return (text | None, None) if field.optional else (text, ...)

    fields = {}
    for name, field in TASKS[task_info.task].fields.items():
        kind, default = definition(field)
        column = task_info.text_columns.get(name, name)
        fields[name] = (kind, Field(default, alias=name if column == "id" else column))
    record = create_model("Record", __base__=Known, **fields, id=(Identity, None))
    checked_alone = Annotated[record, WrapValidator(_or_invalid)]
    records = Annotated[list[checked_alone], Field(min_length=1, max_length=max_records)]
    return create_model("PredictRequest", __base__=Known, records=(records, ...))


@dataclass(frozen=True)
class InvalidRecord:
    """A record that does not fit the task; error: the first one of pydantic's."""

    id: str | int | None
    error: dict[str, Any]

    def sentence(self, index: int) -> str:
        """Return the error as a sentence that names the record by its index."""
        return sentence(self.error | {"loc": ("body", "records", index, *self.error["loc"])})


def _or_invalid(value: Any, validate: Callable[[Any], BaseModel]) -> BaseModel | InvalidRecord:
    try:
        return validate(value)
    except ValidationError as error:
        identity = value.get("id") if isinstance(value, dict) else None
        return InvalidRecord(identity if is_identity(identity) else None, error.errors()[0])


def reply_model(task: str) -> type[BaseModel]:
    """{"answers": [...]}, one for each record, in order."""
    return create_model("PredictReply", answers=(list[TASKS[task].answer | RecordError], ...))


def sentence(error: dict[str, Any]) -> str:
    """One of pydantic's errors as a sentence that names the place, what was found and what is allowed."""
    place = _place(error["loc"])
    limits = error.get("ctx", {})
    match error["type"]:
        case "json_invalid":
            return f"the body is no JSON: {limits['error']} at character {error['loc'][-1]}"
        case "missing" if len(error["loc"]) > 1:
            return f"{place} is missing"
        case "extra_forbidden":
            return f"{place} is not known here; /openapi.json says what is"
        case "string_too_long":
            return f"{place} has {len(error['input']):,} characters, allowed are {limits['max_length']:,}"
        case "too_long" | "too_short":
            bound = "max_length" if "max_length" in limits else "min_length"
            allowed = "allowed are at most" if bound == "max_length" else "allowed are at least"
            return f"{place} has {limits['actual_length']} entries, {allowed} {limits[bound]}"
        case _ if len(error["loc"]) == 1:
            return 'the body is no JSON object {"records": [...]} sent with Content-Type: application/json'
        case _:
            return f"{place}: {error['msg'][0].lower()}{error['msg'][1:]}"


def _place(location: Sequence[str | int]) -> str:
    """records[0].question of ("body", "records", 0, "question"); names come from outside and may be anything."""
    place = ""
    for part in location[1:]:
        if isinstance(part, int):
            place += f"[{part}]"
        else:
            name = part if part.isidentifier() and len(part) <= 40 else repr(part[:40])
            place += f".{name}" if place else name
    return place
