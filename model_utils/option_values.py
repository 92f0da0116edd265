"""Options: fields of a configuration with their meaning and limits, and their values, read, shown and described."""

import difflib
import os
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import EnumType
from typing import Any

from pydantic import BaseModel, Field
from pydantic.fields import FieldInfo

from model_utils.errors import ConfigError
from model_utils.flat_dicts import flatten
from model_utils.yaml_files import parse_yaml

SAME, SAME_PLACE, ANY = "same", "same place", "any"  # on_resume of an option
BOOLEANS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
Mappings = dict[str, dict[str, Any]]  # type of an option with keys by name, which another class checks
TYPE_NAMES = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    tuple[str, ...]: "texts with commas between them, each once",
    dict[str, tuple[Any, ...]]: "a mapping of keys to lists of values, {KEY: [VALUE, ...], ...}",
    Mappings: "a mapping of names to mappings of keys, {NAME: {KEY: VALUE, ...}, ...}",
}
BOUND_NAMES = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}
EPOCHS_KEYS = {"num_train_epochs", "epoch_num", "epoch_size"}  # names of one option, here and in other libraries
QUOTE = "put text that yaml reads as another type in quotes"


@dataclass(frozen=True)
class Rules:
    """Properties of a field that pydantic does not check; option() and section() explain them."""

    choices: tuple[Any, ...] = ()
    needs: tuple[str, Any] | None = None
    required: bool = False
    on_resume: str = SAME
    words: tuple[str, ...] = ()  # allowed in place of a number that is then derived from other keys
    section: type[Any] | None = None  # class of a nested configuration, or of the items of a list of them
    is_list: bool = False


def rules_of(field: FieldInfo) -> Rules:
    """Return the rules that option(), section() or sections() gave a field."""
    return typing.cast(dict[str, Rules], field.json_schema_extra)["rules"]


def is_section(field: FieldInfo) -> bool:
    """Return True if a field holds a nested configuration, and not a list of them."""
    return rules_of(field).section is not None and not rules_of(field).is_list


def leaves_of(kind: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Yield (name, field) of all options of a configuration class; names in sections are dotted."""
    for key, field in kind.model_fields.items():
        if is_section(field):
            yield from leaves_of(type(field.default), f"{prefix}{key}.")
        else:
            yield prefix + key, field


def names_of(kind: type[BaseModel]) -> list[str]:
    """Return the keys of a configuration class and their aliases."""
    aliases = [field.validation_alias for field in kind.model_fields.values()]
    return [*kind.model_fields, *(alias for alias in aliases if isinstance(alias, str))]


def unknown_key(key: str, valid_keys: Sequence[str]) -> ConfigError:
    """Return the error for a key that does not exist; it suggests keys with the same last name, else the nearest."""

    def last_name(name: str) -> str:
        return name.removeprefix("--").rpartition(".")[2]

    key = key[:200]
    names = EPOCHS_KEYS if last_name(key) in EPOCHS_KEYS else {last_name(key)}
    suggestions = [valid for valid in dict.fromkeys(valid_keys) if last_name(valid) in names][:3]
    suggestions = suggestions or difflib.get_close_matches(key, valid_keys, 1, cutoff=0.5)
    hint = f"did you mean {' or '.join(suggestions)}?" if suggestions else f"known are {', '.join(valid_keys[:20])}"
    return ConfigError(key=key, hint=hint)


def option(
    default: Any,
    meaning: str,
    *,
    choices: Sequence[Any] = (),
    minimum: float | None = None,
    maximum: float | None = None,
    above: float | None = None,
    below: float | None = None,
    needs: tuple[str, Any] | None = None,
    required: bool = False,
    on_resume: str = SAME,
    alias: str | None = None,
) -> Any:
    """Return a field with its meaning for --help and its allowed values.

    Args:
        choices: the allowed values, for a list those of its items; (): any.
        minimum, maximum: inclusive bounds.
        above, below: exclusive bounds.
        needs: (another key of the same class, value): with another value this option has no effect and must keep its
            default.
        required: the entry scripts do not start while it is empty (Config.check_required).
        on_resume: rule for the value when an unfinished run resumes. SAME: unchanged, because updates or the choice of
            the best checkpoint depend on it. SAME_PLACE: a path to the same file, spelt in any way. ANY: may change,
            because neither depends on it or src/training/run_plan.py compares the derived values.
        alias: second name of the key on the command line, in files and in Python.
    """
    extra: Any = {"rules": Rules(tuple(choices), needs, required, on_resume)}
    return Field(
        default,
        description=meaning,
        ge=minimum,
        gt=above,
        le=maximum,
        lt=below,
        strict=True,
        validation_alias=alias,
        json_schema_extra=extra,
    )


def section(default: Any, meaning: str, used_if: tuple[str, Any] | None = None) -> Any:
    """Return a field for a nested configuration; keys that a file leaves out are those of `default`.

    Args:
        used_if: (key of the same class, value) without which flags of the section are rejected; a file may have it.
    """
    extra: Any = {"rules": Rules(needs=used_if, section=type(default))}
    return Field(default, description=meaning, json_schema_extra=extra)


def sections(kind: type[Any], meaning: str) -> Any:
    """Return a field for a list of nested configurations, tuple[kind, ...]; empty by default.

    In yaml it is a list of mappings, on the command line the same list as yaml on one line.
    """
    extra: Any = {"rules": Rules(section=kind, is_list=True)}
    return Field((), description=meaning, json_schema_extra=extra)


def show(value: Any) -> str:
    """Return a value as yaml and the command line write it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        if all(isinstance(item, str) for item in value):
            return ",".join(value) or "empty"
        return f"[{', '.join(map(str, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {show(item)}' for key, item in value.items())}}}" if value else "empty"
    if value is None:
        return "not set"
    return "empty" if value == "" else str(value)


def describe_allowed(field: FieldInfo) -> str:
    """Return the values allowed for a field as text, for error messages and --help."""
    rules = rules_of(field)
    if rules.section:
        return "a list of mappings, [{KEY: VALUE, ...}, ...]" if rules.is_list else "a mapping of keys"
    if rules.choices:
        choices = ", ".join(map(show, rules.choices))
        is_list = value_type(field) == tuple[str, ...]
        return f"any of {choices}, with commas between them" if is_list else f"one of {choices}"
    bounds = []
    for constraint in field.metadata:
        for name in BOUND_NAMES:
            if hasattr(constraint, name):
                limit = getattr(constraint, name)
                number = f"{limit:g}" if isinstance(limit, float) else str(limit)
                bounds.append(f"{BOUND_NAMES[name]} {number}")
    text = f"{TYPE_NAMES[value_type(field)]} {' and '.join(bounds)}".rstrip()
    return text + "".join(f", or {word}" for word in rules.words)


def value_type(field: FieldInfo) -> Any:
    """Return the type of an option: int for `int | None`."""
    kind = field.annotation
    if isinstance(kind, types.UnionType):
        (kind,) = (member for member in typing.get_args(kind) if member is not types.NoneType)
    return kind


def read_value(value: Any, kind: Any) -> Any:
    """Return a value from yaml, the command line or Python, converted to its field's type, or raise ValueError.

    Args:
        kind: bool, int, float, str, an Enum, tuple[str, ...], dict[str, tuple[Any, ...]] or Mappings.
    """
    if kind is str:
        return _read_text(value)
    if kind is bool:
        return BOOLEANS.get(str(value).lower(), value) if isinstance(value, str | int) else value
    if isinstance(kind, EnumType):
        return kind(value)
    if kind in (int, float):
        return kind(value) if isinstance(value, str) else value
    if kind == Mappings:
        return (parse_yaml(value) if isinstance(value, str) else value) or {}
    if typing.get_origin(kind) is dict:
        return read_lists(value)
    return _read_words(value)


def _read_text(value: Any) -> Any:
    """Return a text or path as a text that encodes, None as "", and any other value unchanged."""
    if value is None:
        return ""
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    return _checked_text(value) if isinstance(value, str) else value


def _read_words(value: Any) -> tuple[str, ...]:
    """Return a list of different texts, or a text with commas between them; raise ValueError for others."""
    if isinstance(value, str) and not value.startswith("["):
        value = [word.strip() for word in value.split(",") if word.strip()]
    words = read_list(value)
    if not all(isinstance(word, str) for word in words) or len(set(words)) < len(words):
        raise ValueError
    return tuple(map(_checked_text, words))


def read_lists(value: Any) -> dict[str, tuple[Any, ...]]:
    """Return a mapping of dotted keys to lists from yaml, Python or its yaml text; sections may be nested.

    Raises ValueError if it is no mapping, or a value is no list or an empty one.
    """
    value = parse_yaml(value) if isinstance(value, str) else value
    if not isinstance(value, Mapping | None):
        raise ValueError
    lists = flatten(value or {})
    if (value and not lists) or not all(isinstance(values, list) and values for values in lists.values()):
        raise ValueError
    return {key: tuple(values) for key, values in lists.items()}


def read_list(value: Any) -> Sequence[Any]:
    """Return a list from yaml, Python or its yaml text on the command line; raise ValueError for others."""
    value = parse_yaml(value) if isinstance(value, str) else value
    if not isinstance(value, list | tuple | None):
        raise ValueError
    return value or ()


def _checked_text(text: str) -> str:
    """Return the text; raise ValueError if it holds a NUL or cannot be encoded as UTF-8."""
    if "\0" in text:
        raise ValueError
    text.encode()  # fails for command-line bytes that are not UTF-8
    return text
