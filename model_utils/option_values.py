"""Parsing, display and description of single configuration values."""

import os
import re
import types
import typing
from collections.abc import Mapping
from enum import EnumType
from typing import Any

import yaml
from pydantic.fields import FieldInfo

from model_utils.errors import ConfigError, shorten
from model_utils.yaml_files import parse_yaml

BOOLEANS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
TYPE_NAMES = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
# One item of a list in brackets, quoted or not, with the comma after it.
_ITEM = re.compile(r"""\s*(?P<word>"[^"]*"|'[^']*'|[^,]*?)\s*(?:,|$)""")
BOUND_NAMES = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}


def extra_of(field: FieldInfo) -> Mapping[str, Any]:
    """Return the properties that option() or section() attach to a field and that pydantic does not check."""
    return typing.cast(Mapping[str, Any], field.json_schema_extra)


def canonical(
    fields: Mapping[str, FieldInfo], values: Mapping[Any, Any], origin: str = "", mark: str = ""
) -> dict[Any, Any]:
    """Return keys and values with aliases replaced by their keys.

    Args:
        origin: the file or "command line", for the error.
        mark: prefix of keys in the error, such as "--".

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
            prefix = f"{origin}: " if origin else ""
            both = f"{mark}{alias} is {shorten(value)} and {mark}{key} is {shorten(renamed[key])}"
            raise ConfigError(f"{prefix}{both}, two names of one key: set only one of them")
    return renamed


def words_of(field: FieldInfo) -> tuple[str, ...]:
    """Return the words allowed in place of a number that is then derived from other keys."""
    return extra_of(field).get("words", ())


def show(value: Any) -> str:
    """Return a value as yaml and the command line write it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        if all(isinstance(item, str) for item in value):
            return ",".join(value) or "empty"
        return f"[{', '.join(map(str, value))}]"
    if value is None:
        return "not set"
    return "empty" if value == "" else str(value)


def describe_allowed(field: FieldInfo) -> str:
    """Return the values allowed for a field as text, for error messages and --help."""
    if extra_of(field)["choices"]:
        return "one of " + ", ".join(map(show, extra_of(field)["choices"]))
    if "sections" in extra_of(field):
        return "a list of mappings, [{KEY: VALUE, ...}, ...]"
    value_type = without_none(field.annotation)
    text = "texts with commas between them, each once" if value_type == tuple[str, ...] else TYPE_NAMES[value_type]
    bounds = []
    for constraint in field.metadata:
        for name in BOUND_NAMES:
            if hasattr(constraint, name):
                limit = getattr(constraint, name)
                number = f"{limit:g}" if isinstance(limit, float) else str(limit)
                bounds.append(f"{BOUND_NAMES[name]} {number}")
    if bounds:
        text += " " + " and ".join(bounds)
    return text + "".join(f", or {word}" for word in words_of(field))


def without_none(kind: Any) -> Any:
    """Return int for `int | None`; other types unchanged."""
    if isinstance(kind, types.UnionType):
        (kind,) = (member for member in typing.get_args(kind) if member is not types.NoneType)
    return kind


def read_value(value: Any, kind: Any) -> Any:
    """Return a value from yaml, the command line or Python converted to its field's type.

    Args:
        kind: bool, int, float, str, an Enum or tuple[str, ...].

    Raises:
        ValueError: the value cannot be converted.
    """
    if kind is str:
        value = os.fspath(value) if isinstance(value, os.PathLike) else value
        return _characters(value) if isinstance(value, str) else "" if value is None else value
    if kind is bool:
        return BOOLEANS.get(str(value).lower(), value) if isinstance(value, str | int) else value
    if isinstance(kind, EnumType):
        return kind(value)
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
    """Return the items of a list on the command line: `a,b`, `[a, b]` or `["a", "b, with a comma"]`."""
    if not text.startswith("["):
        return [word.strip() for word in text.split(",") if word.strip()]
    words = [match["word"] for match in _ITEM.finditer(text.removeprefix("[").removesuffix("]")) if match["word"]]
    return [word[1:-1] if len(word) > 1 and word[0] == word[-1] and word[0] in "'\"" else word for word in words]


def read_list(value: Any) -> list[Any] | tuple[Any, ...]:
    """Return a list of mappings from yaml, Python or its yaml text on the command line; raise ValueError for others."""
    try:
        value = parse_yaml(value) if isinstance(value, str) else value
    except (yaml.YAMLError, ConfigError):
        raise ValueError from None  # a ConfigError would become the whole message, without the key
    if not isinstance(value, list | tuple | None):
        raise ValueError
    return value or ()


def _characters(text: str) -> str:
    """Return the text; raise ValueError if it holds a NUL or cannot be encoded as UTF-8."""
    if "\0" in text:
        raise ValueError
    text.encode()  # fails for command-line bytes that are not UTF-8
    return text
