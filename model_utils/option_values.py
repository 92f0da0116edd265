"""One value of a configuration: read, shown, and what is allowed in its place."""

import os
import re
import types
import typing
from collections.abc import Mapping
from typing import Any

import yaml
from pydantic.fields import FieldInfo

from model_utils.errors import ConfigError, shorten
from model_utils.yaml_files import parse_yaml

BOOLEANS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
TYPE_NAMES = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
# A word of a list in brackets, with quotation marks or without, and the comma behind it.
_ITEM = re.compile(r"""\s*(?P<word>"[^"]*"|'[^']*'|[^,]*?)\s*(?:,|$)""")
BOUND_NAMES = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}


def extra_of(field: FieldInfo) -> Mapping[str, Any]:
    """What option() or section() say about a field beyond what pydantic checks."""
    return typing.cast(Mapping[str, Any], field.json_schema_extra)


def canonical(
    fields: Mapping[str, FieldInfo], values: Mapping[Any, Any], origin: str = "", mark: str = ""
) -> dict[Any, Any]:
    """Return keys and values with aliases replaced by the keys that they stand for.

    Raises:
        ConfigError: a key and its alias have different values.
    """
    renamed = dict(values)
    for key, field in fields.items():
        alias = extra_of(field).get("alias")
        if not alias or alias not in renamed:
            continue
        value = renamed.pop(alias)
        if renamed.setdefault(key, value) != value:
            place = f"{origin}: " if origin else ""
            both = f"{mark}{alias} is {shorten(value)} and {mark}{key} is {shorten(renamed[key])}"
            raise ConfigError(f"{place}{both}, two names of one key: give one of them")
    return renamed


def words_of(field: FieldInfo) -> tuple[str, ...]:
    """Words that may stand in place of a number which follows from other keys."""
    return extra_of(field).get("words", ())


def show(value: Any) -> str:
    """A value as yaml and the command line write it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        if all(isinstance(each, str) for each in value):
            return ",".join(value) or "empty"
        return f"[{', '.join(map(str, value))}]"
    if value is None:
        return "not set"
    return "empty" if value == "" else str(value)


def describe_allowed(field: FieldInfo) -> str:
    """The values a field may take, for error sentences and --help."""
    if extra_of(field)["choices"]:
        return "one of " + ", ".join(map(show, extra_of(field)["choices"]))
    if "sections" in extra_of(field):
        return "a list of mappings, [{KEY: VALUE, ...}, ...]"
    inner = without_none(field.annotation)
    text = "texts with commas between them, each once" if inner == tuple[str, ...] else TYPE_NAMES[inner]
    limits = {name: getattr(each, name) for each in field.metadata for name in BOUND_NAMES if hasattr(each, name)}
    bounds = [
        f"{BOUND_NAMES[name]} {limit:g}" if isinstance(limit, float) else f"{BOUND_NAMES[name]} {limit}"
        for name, limit in limits.items()
    ]
    return text + (" " + " and ".join(bounds) if bounds else "") + "".join(f", or {word}" for word in words_of(field))


def without_none(kind: Any) -> Any:
    """int for `int | None`, other types unchanged."""
    if isinstance(kind, types.UnionType):
        (kind,) = (part for part in typing.get_args(kind) if part is not types.NoneType)
    return kind


def read_value(value: Any, kind: Any) -> Any:
    """A value from yaml, the command line or Python as the type of its field; ValueError where it has no reading."""
    if kind is str:
        value = os.fspath(value) if isinstance(value, os.PathLike) else value
        return _characters(value) if isinstance(value, str) else "" if value is None else value
    if kind is bool:
        return BOOLEANS.get(str(value).lower(), value) if isinstance(value, str | int) else value
    if kind in (int, float):
        return kind(value) if isinstance(value, str) else value
    if isinstance(value, str):
        value = _read_words(value.strip())
    if not isinstance(value, list | tuple) or not all(isinstance(word, str) for word in value):
        raise ValueError
    if len(set(value)) < len(value):
        raise ValueError
    return tuple(map(_characters, value))


def _read_words(text: str) -> list[str]:
    """Those of `a,b`, `[a, b]` and `["a", "b, with a comma"]`, from the command line."""
    if not text.startswith("["):
        return [word.strip() for word in text.split(",") if word.strip()]
    words = [match["word"] for match in _ITEM.finditer(text.removeprefix("[").removesuffix("]")) if match["word"]]
    return [word[1:-1] if len(word) > 1 and word[0] == word[-1] and word[0] in "'\"" else word for word in words]


def read_list(value: Any) -> list[Any] | tuple[Any, ...]:
    """A list of mappings from yaml or Python, or from its text on the command line; ValueError where it is none."""
    try:
        value = parse_yaml(value) if isinstance(value, str) else value
    except (yaml.YAMLError, ConfigError):
        raise ValueError from None  # a ConfigError would be taken for the whole sentence
    if not isinstance(value, list | tuple | None):
        raise ValueError
    return value or ()


def _characters(text: str) -> str:
    """The text itself, if it can be a part of a name and be written as UTF-8."""
    if "\0" in text:
        raise ValueError
    text.encode()  # fails for bytes of the command line that are not UTF-8
    return text
