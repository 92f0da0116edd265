"""Reading and writing of small JSON files beside weights and features, checked against a schema.

A schema is a pydantic model derived from `Schema`. A file may carry a `checksum` of its own content (write_checked),
by which later changes are detected; files without one are accepted.
"""

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

from jiter import from_json
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from model_utils.errors import DataError, UserError, shorten
from model_utils.files import NAME_BYTES, open_file, write_json

CHECKSUM = "checksum"


def matching(pattern: str, allowed: str) -> AfterValidator:
    """Return a validator of texts that match the whole pattern; `allowed` describes them in the error."""

    def check(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError(allowed)
        return text

    return AfterValidator(check)


FileName = Annotated[
    str, Field(max_length=NAME_BYTES), matching(r"[^/\x00]*[^/.\x00][^/\x00]*", "the name of a file in the same folder")
]
Sha256 = Annotated[str, matching("[0-9a-f]{64}", "a sha256 of 64 hexadecimal digits")]


class Schema(BaseModel):
    """Base of file schemas: types are strict, and keys that the schema does not name are kept."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False, frozen=True, protected_namespaces=())


SchemaType = TypeVar("SchemaType", bound=Schema)
Result = TypeVar("Result")


def parse_json(text: str | bytes) -> Any:
    """Return the value of a JSON text; raise ValueError if it cannot be written as JSON again.

    So it is not UTF-8, is nested too deeply, has a key twice, or holds NaN, 1e999 or half a surrogate pair.
    """
    content = text.encode() if isinstance(text, str) else text
    value = from_json(content, allow_inf_nan=False, catch_duplicate_keys=True)
    json.dumps(value, allow_nan=False)  # from_json makes infinity of 1e999
    return value


def read_file(path: Path, error: type[UserError] = DataError) -> bytes:
    """Return the content of a small file; raise `error` if open_file cannot read it."""
    try:
        with open_file(path) as file:
            return file.read()
    except OSError as reason:
        raise error(f"{path} cannot be read: {reason.strerror}") from reason


def read_object(path: Path, error: type[UserError] = DataError) -> dict[str, Any]:
    """Return the object in a JSON file; raise `error` if it is missing, damaged or does not match its checksum."""
    return read_validated(path, dict, error)


def read_json(path: Path, schema: type[SchemaType], error: type[UserError] = DataError) -> SchemaType:
    """Return the object in a JSON file as an instance of its schema; raise `error` as read_object and validated do."""
    return read_validated(path, lambda value: validated(value, schema, str(path), error), error)


def read_validated(path: Path, validate: Callable[[Any], Result], error: type[UserError] = DataError) -> Result:
    """Return `validate(object)` of the object in a JSON file.

    Args:
        validate: raises `error` if a key is missing or wrong.
        error: class raised if the file is missing, damaged or does not match its checksum.
    """
    content = read_file(path, error)
    try:
        value = parse_json(content)
    except ValueError as reason:
        raise error(f"{path} is damaged or not JSON: {reason}") from None
    if not isinstance(value, dict):
        raise error(f"{path} holds {shorten(value)}, needed is an object with keys")
    validate(value)  # before the checksum, because its error names the wrong key
    if CHECKSUM in value and value.pop(CHECKSUM) != checksum_of(value):
        raise error(f"{path} was changed after it was written: restore its values, or remove the key {CHECKSUM}")
    return validate(value)


def validated(value: Any, schema: type[SchemaType], origin: str, error: type[UserError] = DataError) -> SchemaType:
    """Return a value as an instance of its schema; raise `error`, which names `origin` (a file or line) and key."""
    try:
        # pydantic's JSON mode accepts lists for tuples and whole numbers for floats.
        return schema.model_validate_json(json.dumps(value))
    except ValidationError as reason:
        raise error(f"{origin}: {_sentence(reason)}") from None


def _sentence(reason: ValidationError) -> str:
    """Return a sentence for the first error: the key, its value and what is allowed."""
    first = reason.errors(include_url=False)[0]
    key = ".".join(map(str, first["loc"]))[:200]
    allowed = first["msg"].removeprefix("Value error, ")
    if not key:
        return f"needed is {allowed}"
    if first["type"] == "missing":
        return f"{key} is missing"
    allowed = re.sub("^(Input should be|(String|List|Tuple) should have) |( after validation)", "", allowed)
    return f"{key} is {shorten(first['input'])}, allowed is {allowed}"


def checksum_of(content: Mapping[str, Any]) -> str:
    """Return the hexadecimal sha256 of an object's values, independent of key order and layout."""
    canonical = json.dumps(json.loads(json.dumps(content)), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def write_checked(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON object with a checksum of its content."""
    write_json(path, {**content, CHECKSUM: checksum_of(content)})
