"""Requests and answers of each task as pydantic models, from which the checks and the OpenAPI description follow.

Offsets `start` and `end` count characters (Unicode code points) of the text that was sent, the end excluded.
"""

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, create_model
from pydantic_core import PydanticCustomError

from model_utils.errors import ConfigError


def _identity(value: Any) -> Any:
    if value is None or type(value) is int or (type(value) is str and value.isprintable()):
        return value
    raise PydanticCustomError("identity", "an id is a printable text or an integer")


Identity = Annotated[str | int | None, BeforeValidator(_identity)]
Probability = Annotated[float, Field(ge=0, le=1)]
Offset = Annotated[int, Field(ge=0)]


class Answer(BaseModel):
    """What every answer may carry: the record's own id, and that its text was too long and has been cut."""

    id: Identity = None
    truncated: bool | None = None


class ClassificationAnswer(Answer):
    label: str
    probabilities: dict[str, Probability]


class RegressionAnswer(Answer):
    score: float


class ChoiceAnswer(Answer):
    answer: str = Field(description="letter of the option, A for the first")
    probabilities: dict[str, Probability]


class Span(BaseModel):
    answer: str = Field(description="text of the passage, empty for no answer")
    start: Offset | None
    end: Offset | None
    score: float


class SpanAnswer(Span, Answer):
    no_answer_probability: Probability | None
    n_best: list[Span] = Field(description="the likeliest spans, best first")


class Entity(BaseModel):
    text: str
    label: str
    start: Offset
    end: Offset
    score: Probability


class EntitiesAnswer(Answer):
    entities: list[Entity]


class TokenProbability(BaseModel):
    token: str
    probability: Probability


class MaskAnswer(Answer):
    predictions: list[list[TokenProbability]] = Field(description="for each [MASK] the likeliest tokens, best first")


class EmbeddingAnswer(Answer):
    pooled: list[float]


class RecordError(Answer):
    """A record that the model could not answer; the others of its request are answered."""

    error: str


class Failure(BaseModel):
    """A request that could not be answered."""

    error: str


ANSWERS: dict[str, type[Answer]] = {
    "classification": ClassificationAnswer,
    "regression": RegressionAnswer,
    "multiple_choice": ChoiceAnswer,
    "squad_v1": SpanAnswer,
    "squad_v2": SpanAnswer,
    "token_classification": EntitiesAnswer,
    "fill_mask": MaskAnswer,
    "embeddings": EmbeddingAnswer,
}


def request_model(card: dict[str, Any], max_records: int, max_characters: int) -> type[BaseModel]:
    """{"records": [...]} with the fields of the model's task.

    Args:
        card: the predictor's; "labels" gives the number of options of a multiple-choice model.
        max_records: of one request. max_characters: of each text.

    Raises:
        ConfigError: the card names a task that this server does not know.
    """
    text = Annotated[str, Field(max_length=max_characters)]
    count = len(card.get("labels") or "ABCD")
    needed, optional = (text, ...), (text | None, None)
    pair = {"text_a": needed, "text_b": optional}
    options = (Annotated[list[text], Field(min_length=count, max_length=count)], ...)
    fields = {
        "classification": pair,
        "regression": pair,
        "multiple_choice": {"article": needed, "question": needed, "options": options},
        "squad_v1": {"context": needed, "question": needed},
        "squad_v2": {"context": needed, "question": needed},
        "token_classification": {"text": needed},
        "fill_mask": {"text": needed},
        "embeddings": {"text_a": needed},
    }.get(card["task"])
    if fields is None:
        raise ConfigError(f"the model's task is {card['task']!r}, allowed are {', '.join(ANSWERS)}")
    record = create_model("Record", __config__=ConfigDict(extra="forbid"), **fields, id=(Identity, None))
    records = Annotated[list[record], Field(min_length=1, max_length=max_records)]
    return create_model("PredictRequest", __config__=ConfigDict(extra="forbid"), records=(records, ...))


def reply_model(task: str) -> type[BaseModel]:
    """{"answers": [...]}, one for each record, in order."""
    return create_model("PredictReply", answers=(list[ANSWERS[task] | RecordError], ...))


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
            allowed = f"{limits['max_length']} at most" if "max_length" in limits else f"{limits['min_length']} or more"
            return f"{place} has {limits['actual_length']} entries, allowed are {allowed}"
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
