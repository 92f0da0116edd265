"""Pydantic models of each task's requests and replies, for validation and the OpenAPI description."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    WrapValidator,
    create_model,
    model_validator,
)
from pydantic_core import PydanticCustomError

from model_utils.errors import key_path, shorten_text
from src.tasks import TASKS
from src.tasks.record_processor import Answer, Identity, is_identity
from src.tasks.spec import RecordField
from src.tasks.task_info import TaskInfo


class RecordError(Answer):
    """Record that could not be answered, with its position from 1; the other records are answered."""

    line: int
    error: str


class Failure(BaseModel):
    """Request that could not be answered."""

    error: str


class StrictModel(BaseModel):
    """Model without unknown keys; only the first unknown key is reported, so that thousands cost nothing."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    @model_validator(mode="before")
    @classmethod
    def _keep_one_unknown(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        names = {*cls.model_fields, *(field.alias for field in cls.model_fields.values())}
        dropped = set(list(value.keys() - names)[1:])
        if not dropped:
            return value
        return {key: item for key, item in value.items() if key not in dropped}


def request_model(task_info: TaskInfo, max_records: int, max_characters: int) -> type[BaseModel]:
    """Return the model of {"records": [...]}, whose fields have the names of the training data's columns.

    A record that does not fit the task becomes an InvalidRecord, so that the others are answered.
    """
    text = Annotated[str, Field(max_length=max_characters)]

    def check_size(words: list[str]) -> list[str]:
        if sum(map(len, words)) + len(words) - 1 > max_characters:
            raise PydanticCustomError("too_long", f"Words should have at most {max_characters} characters together")
        return words

    def definition(field: RecordField, may_miss: bool) -> tuple[Any, Any]:
        if field.list_size:
            min_texts, max_texts = field.list_size
            return Annotated[list[text], Field(min_length=min_texts, max_length=max_texts)], ...
        return (text | None, None) if field.optional or may_miss else (text, ...)

    fields: dict[str, Any] = {}
    for name, field in TASKS[task_info.task].fields.items():
        column = task_info.text_columns.get(name, name)
        has_words = bool(field.words_key) and column != field.words_key
        field_type, default = definition(field, has_words)
        fields[name] = (field_type, Field(default, alias=name if column == "id" else column))
        if has_words:
            words = Annotated[list[str], Field(min_length=1), AfterValidator(check_size)]
            fields[field.words_key] = (words | None, None)
    fields["id"] = (Identity, None)
    record: Any = create_model("Record", __base__=StrictModel, **fields)
    record_or_invalid: Any = Annotated[record, WrapValidator(_validate_record)]
    records: Any = Annotated[list[record_or_invalid], Field(min_length=1, max_length=max_records)]
    return create_model("PredictRequest", __base__=StrictModel, records=(records, ...))


@dataclass(frozen=True)
class InvalidRecord:
    """Record that does not fit the task; error: pydantic's first error."""

    id: str | int | None
    error: dict[str, Any]

    def sentence(self, index: int) -> str:
        """Return the error as a sentence that names the record by its index."""
        return error_sentence(self.error | {"loc": ("body", "records", index, *self.error["loc"])})


def _validate_record(value: Any, validate: Callable[[Any], BaseModel]) -> BaseModel | InvalidRecord:
    try:
        return validate(value)
    except ValidationError as error:
        identity = value.get("id") if isinstance(value, dict) else None
        return InvalidRecord(identity if is_identity(identity) else None, dict(error.errors()[0]))


def reply_model(task: str) -> type[BaseModel]:
    """Return the model of {"answers": [...]}, one per record, in order."""
    answer: Any = TASKS[task].answer
    answers: Any = list[answer | RecordError]
    return create_model("PredictReply", answers=(answers, ...))


def error_sentence(error: dict[str, Any]) -> str:
    """Return a pydantic error as a sentence that begins with its location, such as records[0].question."""
    location = shorten_text(key_path(error["loc"][1:]))
    if error["type"] == "json_invalid":
        return f"the body is not JSON: {error['ctx']['error']} at character {error['loc'][-1]}"
    if not location:
        return 'the body is not a JSON object {"records": [...]} sent with Content-Type: application/json'
    return f"{location}: {error['msg'][0].lower()}{error['msg'][1:]}"
