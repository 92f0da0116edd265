"""Small JSON files beside weights and features, checked against a schema; every error is a sentence.

A schema is a pydantic model derived from `Schema`. A file may carry a `checksum` of its own content (write_checked):
then values that somebody changed afterwards are noticed. Files without one are read as they are.
"""

import hashlib
import itertools
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from model_utils.errors import DataError, UserError, shorten
from model_utils.files import NAME_BYTES, open_file, write_json

CHECKSUM = "checksum"
NESTING = 100  # brackets inside each other; Python's own limit depends on who calls
TOO_DEEP = f"its brackets are nested too deeply, allowed are {NESTING} inside each other"


def matching(pattern: str, allowed: str) -> AfterValidator:
    """What a text of a schema must match as a whole; allowed: the same in words, for the sentence that refuses it."""

    def check(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError(allowed)
        return text

    return AfterValidator(check)


FileName = Annotated[
    str,
    Field(max_length=NAME_BYTES),
    matching(r"[^/\x00]*[^/.\x00][^/\x00]*", "the name of a file in the same folder"),
]
Sha256 = Annotated[str, matching("[0-9a-f]{64}", "a sha256 of 64 hexadecimal digits")]


class Schema(BaseModel):
    """What a file must hold: types are taken strictly; keys that the schema does not name are kept as they are."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False, frozen=True, protected_namespaces=())


SchemaType = TypeVar("SchemaType", bound=Schema)
Result = TypeVar("Result")


class UnwritableError(ValueError):
    """What is wrong with `value`, which was read from JSON and cannot be written as JSON."""

    def __init__(self, reason: str, value: Any) -> None:
        super().__init__(reason)
        self.value = value


def parse_json(text: str | bytes) -> Any:
    """A JSON value that can be written again: Python also reads NaN, 1e999 and halves of surrogate pairs, which cannot
    (UnwritableError). ValueError says what else is wrong.
    """
    try:
        value = json.loads(text.decode("utf-8") if isinstance(text, bytes) else text)
    except RecursionError:
        raise ValueError(TOO_DEEP) from None
    except UnicodeDecodeError as error:
        raise ValueError(f"byte {error.start} is not UTF-8 text") from None
    try:
        _check_depth(value)
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError:
        raise UnwritableError("a text in it holds half of a surrogate pair, which is no character", value) from None
    except ValueError as error:
        raise UnwritableError(str(error), value) from None
    return value


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(NESTING):
        lists = [each.values() if isinstance(each, dict) else each for each in level if isinstance(each, list | dict)]
        level = list(itertools.chain(*lists))
        if not level:
            return
    raise ValueError(TOO_DEEP)


def read_file(path: Path, error: type[UserError] = DataError) -> bytes:
    """The content of a small file; `error` where open_file cannot read it."""
    try:
        with open_file(path) as file:
            return file.read()
    except OSError as reason:
        raise error(f"{path} cannot be read: {reason.strerror}") from reason


def read_object(path: Path, error: type[UserError] = DataError) -> dict[str, Any]:
    """The object in a JSON file; `error` where it is missing or damaged, or changed after write_checked wrote it."""
    return read_validated(path, dict, error)


def read_json(path: Path, schema: type[SchemaType], error: type[UserError] = DataError) -> SchemaType:
    """The object in a JSON file as its schema has it; `error` as read_object and validated."""
    return read_validated(path, lambda value: validated(value, schema, str(path), error), error)


def read_validated(path: Path, validate: Callable[[Any], Result], error: type[UserError] = DataError) -> Result:
    """The object in a JSON file as `validate` has it, which raises `error` where a key is missing or wrong."""
    content = read_file(path, error)
    try:
        value = parse_json(content)
    except ValueError as reason:
        raise error(f"{path} is damaged or not JSON: {reason}") from None
    if not isinstance(value, dict):
        raise error(f"{path} holds {shorten(value)}, needed is an object with keys")
    validate(value)  # which says more than that something was changed
    if CHECKSUM in value and value.pop(CHECKSUM) != checksum_of(value):
        raise error(
            f"{path} was changed after it was written: its {CHECKSUM} is not that of its values; put the old values "
            f"back, or, to change one on purpose, remove the key {CHECKSUM} as well"
        )
    return validate(value)


def validated(value: Any, schema: type[SchemaType], origin: str, error: type[UserError] = DataError) -> SchemaType:
    """A value as its schema has it; else `error` names `origin` (a file or its line), the key and what is allowed."""
    try:
        # Through JSON's own rules: lists are tuples there, and a whole number is a number.
        return schema.model_validate_json(json.dumps(value))
    except ValidationError as reason:
        raise error(f"{origin}: {_sentence(reason)}") from None


def _sentence(reason: ValidationError) -> str:
    first = reason.errors(include_url=False)[0]
    key, allowed = ".".join(map(str, first["loc"]))[:200], first["msg"].removeprefix("Value error, ")
    if not key:
        return f"needed is {allowed}"
    if first["type"] == "missing":
        return f"{key} is missing"
    allowed = allowed.removeprefix("Input should be ").removeprefix("String should have ")
    return f"{key} is {shorten(first['input'])}, allowed is {allowed}"


def checksum_of(content: Mapping[str, Any]) -> str:
    """Hexadecimal sha256 of an object's values, however the file is laid out."""
    canonical = json.dumps(json.loads(json.dumps(content)), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def write_checked(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON object with a checksum of its content."""
    write_json(path, {**content, CHECKSUM: checksum_of(content)})
