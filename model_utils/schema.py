"""Typed configuration: frozen dataclasses filled from a yaml file and the command line, every value checked.

A configuration is a dataclass derived from Config whose fields are made by option(). Types of fields: bool, int,
float, str, tuple[str, ...], any of these `| None`, and other Config classes (sections). This module knows nothing of
the keys themselves; model_utils/config.py holds them.
"""

import dataclasses
import difflib
import functools
import math
import os
import sys
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

import yaml

from model_utils.errors import ConfigError, shorten
from model_utils.files import write_atomically
from model_utils.yaml_files import read_yaml

ROOT = Path(__file__).resolve().parents[1]
HELP = {"--help", "-h"}
BOOLEANS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
SAME, SAME_PLACE, ANY = "same", "same place", "any"  # on_resume of an option
TYPE_NAMES = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}


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
) -> Any:
    """A dataclass field with its meaning for --help and the values it may take.

    Args:
        minimum, maximum: smallest and largest value allowed.
        above, below: bounds that are themselves not allowed.
        needs: (another key of the same class, value): elsewhere this option means nothing and must keep its default.
        required: the entry scripts refuse to start while it is empty (Config.check_required).
        on_resume: what an unfinished run that goes on must find here: SAME, where an update or the choice of the best
            checkpoint depends on it; SAME_PLACE for a path, which may be spelt in another way; ANY where neither does,
            or where the run compares what the key comes to (src/training/trainer.py).
    """
    bounds = {"choices": tuple(choices), "minimum": minimum, "maximum": maximum, "above": above, "below": below}
    metadata = {"meaning": meaning, "needs": needs, "required": required, "on_resume": on_resume, **bounds}
    return dataclasses.field(default=default, metadata=metadata)


def section(kind: type, meaning: str, used_if: tuple[str, Any] | None = None) -> Any:
    """A dataclass field that holds a nested configuration.

    Args:
        used_if: (another key of the same class, value): elsewhere nothing depends on this section.
    """
    return dataclasses.field(default_factory=kind, metadata={"meaning": meaning, "used_if": used_if})


@dataclasses.dataclass(frozen=True)
class Config:
    """Base of all configurations: values are converted to the field's type and checked when an object is made."""

    config_file: ClassVar[str] = ""  # yaml in the project's root that is read without --config_path; "" for none
    file_sharers: ClassVar[tuple[type["Config"], ...]] = ()  # classes whose keys may stand in the same yaml

    def __post_init__(self) -> None:
        for key, kind, metadata in fields_of(type(self)):
            if not is_section(kind):
                object.__setattr__(self, key, convert(getattr(self, key), kind, metadata, key))
        self._check_needs()
        self.validate()

    def _check_needs(self) -> None:
        by_name = {field.name: field for field in dataclasses.fields(self)}
        for field in by_name.values():
            value, other = getattr(self, field.name), field
            while value != field.default and other.metadata.get("needs"):  # what is needed may need something itself
                name, needed = other.metadata["needs"]
                other = by_name[name]
                if getattr(self, name) != needed:
                    raise ConfigError(
                        f"{field.name} is {show(value)}, which means nothing while {name} is "
                        f"{show(getattr(self, name))}: set {name} to {show(needed)}, or leave {field.name} at "
                        f"{show(field.default)}"
                    )

    def check_required(self) -> None:
        """Raise ConfigError if a key is empty without which the run cannot start."""
        for field in dataclasses.fields(self):
            if field.metadata.get("required") and getattr(self, field.name) == "":
                raise ConfigError(f"--{field.name} is needed: {field.metadata['meaning']}")

    def validate(self) -> None:
        """Check what concerns several keys together; derived classes raise ConfigError."""

    def to_dict(self) -> dict[str, Any]:
        """The configuration as yaml holds it: sections are dicts, tuples lists; keys that are None are left out."""
        result: dict[str, Any] = {}
        for key, kind, _ in fields_of(type(self)):
            value = getattr(self, key)
            if is_section(kind):
                result[key] = value.to_dict()
            elif value is not None:
                result[key] = list(value) if isinstance(value, tuple) else value
        return result

    def from_anywhere(self) -> Self:
        """The same configuration for a process that works in another folder: paths by which a run is known (SAME_PLACE)
        are absolute.
        """
        changes: dict[str, Any] = {}
        for key, kind, metadata in fields_of(type(self)):
            value = getattr(self, key)
            if is_section(kind):
                changes[key] = value.from_anywhere()
            elif metadata["on_resume"] == SAME_PLACE and value:
                changes[key] = os.path.join(os.getcwd(), value)  # not abspath, which takes `link/..` for nothing
        return dataclasses.replace(self, **changes)

    def binding(self, prefix: str = "") -> dict[str, Any]:
        """What an unfinished run must be resumed with, by dotted key; as to_dict, but paths are real ones."""
        result: dict[str, Any] = {}
        for key, kind, metadata in fields_of(type(self)):
            value = getattr(self, key)
            if is_section(kind):
                used_if = metadata["used_if"]
                if used_if is None or getattr(self, used_if[0]) == used_if[1]:
                    result |= value.binding(f"{prefix}{key}.")
            elif metadata["on_resume"] != ANY and value is not None:
                place = metadata["on_resume"] == SAME_PLACE and value
                value = os.path.realpath(value) if place else value
                result[prefix + key] = list(value) if isinstance(value, tuple) else value
        return result


ConfigType = TypeVar("ConfigType", bound=Config)


def fields_of(kind: type) -> Iterator[tuple[str, Any, Mapping[str, Any]]]:
    """Name, resolved type and metadata of every field of a configuration class."""
    hints = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        yield field.name, hints[field.name], field.metadata


def is_section(kind: Any) -> bool:
    """Whether a field of this type is a nested configuration."""
    return isinstance(kind, type) and issubclass(kind, Config)


def leaves_of(kind: type, prefix: str = "") -> Iterator[tuple[str, Any, Mapping[str, Any]]]:
    """Like fields_of, with sections replaced by their own fields under dotted names."""
    for key, field_kind, metadata in fields_of(kind):
        if is_section(field_kind):
            yield from leaves_of(field_kind, f"{prefix}{key}.")
        else:
            yield prefix + key, field_kind, metadata


# --- one value ---


def show(value: Any) -> str:
    """A value as yaml and the command line write it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ",".join(map(str, value)) or "empty"
    if value is None:
        return "not set"
    return "empty" if value == "" else str(value)


def describe_allowed(kind: Any, metadata: Mapping[str, Any]) -> str:
    """The values a field may take, for error sentences and --help."""
    if metadata.get("choices"):
        return "one of " + ", ".join(map(show, metadata["choices"]))
    inner = _without_none(kind)
    text = "texts with commas between them, each once" if inner == tuple[str, ...] else TYPE_NAMES[inner]
    words = {"minimum": "at least", "above": "above", "maximum": "at most", "below": "below"}
    limits = [(word, metadata[name]) for name, word in words.items() if metadata.get(name) is not None]
    bounds = [f"{word} {limit:g}" if isinstance(limit, float) else f"{word} {limit}" for word, limit in limits]
    return text + (" " + " and ".join(bounds) if bounds else "")


def convert(value: Any, kind: Any, metadata: Mapping[str, Any], key: str, origin: str = "") -> Any:
    """Give a value from yaml, the command line or Python its field's type, and check it.

    Args:
        key: name of the field, with dots for sections; for the error.
        origin: the file or "command line"; for the error.

    Raises:
        ConfigError: the value has another type or is not allowed.
    """
    if value is None and (kind is str or kind is not _without_none(kind)):
        return "" if kind is str else None
    try:
        converted = _to_type(value, _without_none(kind))
        _check_bounds(converted, metadata)
    except (ValueError, OverflowError):
        place = f"{origin}: " if origin else ""
        raise ConfigError(f"{place}{key} is {shorten(value)}, allowed is {describe_allowed(kind, metadata)}") from None
    return converted


def _without_none(kind: Any) -> Any:
    """int for `int | None`, other types unchanged."""
    if isinstance(kind, types.UnionType):
        (kind,) = (part for part in typing.get_args(kind) if part is not types.NoneType)
    return kind


def _to_type(value: Any, kind: Any) -> Any:
    if typing.get_origin(kind) is tuple:
        return _to_texts(value)
    if kind is bool:
        if str(value).lower() not in BOOLEANS or isinstance(value, float):
            raise ValueError(value)
        return BOOLEANS[str(value).lower()]
    if kind is str:
        if not isinstance(value, str | os.PathLike):
            raise ValueError(value)
        return _characters(os.fspath(value))
    if (
        isinstance(value, bool)
        or not isinstance(value, str | int | float)
        or (kind is int and isinstance(value, float))
    ):
        raise ValueError(value)
    number = kind(value)
    if not math.isfinite(number):
        raise ValueError(value)
    return number


def _to_texts(value: Any) -> tuple[str, ...]:
    """A list from yaml, or `a,b` and `[a, b]` from the command line."""
    if isinstance(value, str):
        value = [word.strip() for word in value.strip().removeprefix("[").removesuffix("]").split(",")]
        value = [word for word in value if word]
    if not isinstance(value, list | tuple) or not all(isinstance(word, str) for word in value):
        raise ValueError(value)
    if len(set(value)) < len(value):
        raise ValueError(value)
    return tuple(map(_characters, value))


def _characters(text: str) -> str:
    """The text itself, if it can be a part of a name and be written as UTF-8."""
    if "\0" in text:
        raise ValueError(text)
    text.encode()  # fails for bytes of the command line that are not UTF-8
    return text


def _check_bounds(value: Any, metadata: Mapping[str, Any]) -> None:
    if metadata.get("choices") and value not in metadata["choices"]:
        raise ValueError(value)
    limits = {name: metadata.get(name) for name in ("minimum", "maximum", "above", "below")}
    outside = {
        "minimum": lambda limit: value < limit,
        "maximum": lambda limit: value > limit,
        "above": lambda limit: value <= limit,
        "below": lambda limit: value >= limit,
    }
    if any(outside[name](limit) for name, limit in limits.items() if limit is not None):
        raise ValueError(value)


# --- files ---


def write_config(config: Config, path: str | Path) -> None:
    """Write the configuration as yaml, complete or not at all; read back it is identical."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # Not allow_unicode: with it a next-line character (U+0085) would not come back.
    text = yaml.safe_dump(config.to_dict(), sort_keys=False)
    write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


# --- merging ---


def _flatten(tree: Mapping[Any, Any], kind: type, origin: str, prefix: str = "") -> dict[str, Any]:
    """Nested yaml keys as dotted ones; every key must be a field."""
    known = {key: field_kind for key, field_kind, _ in fields_of(kind)}
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        name = f"{prefix}{key}"
        if key not in known:
            raise ConfigError(unknown_key(name, [prefix + other for other in known], origin))
        if not is_section(known[key]):
            flat[name] = value
        elif value is None:
            continue
        elif isinstance(value, Mapping):
            flat |= _flatten(value, known[key], origin, f"{name}.")
        else:
            raise ConfigError(f"{origin}: {name} is {shorten(value)}, allowed is a mapping of keys")
    return flat


def unknown_key(key: str, known: Sequence[str], origin: str) -> str:
    """The sentence for a key that does not exist, with the nearest one that does."""
    nearest = difflib.get_close_matches(key[:200], known, 1, cutoff=0.5)
    more = f" and {len(known) - 20} more, which --help lists" if len(known) > 20 else ""
    advice = f"did you mean {nearest[0]}?" if nearest else f"known are {', '.join(known[:20])}{more}"
    return f"{origin}: {key[:200]} is not a key; {advice}"


def _parse_arguments(arguments: Sequence[str]) -> dict[str, str]:
    """`--key value` and `--key=value` as a dict; a key given again replaces the first."""
    values: dict[str, str] = {}
    words = list(arguments)
    while words:
        word = words.pop(0)
        if not word.startswith("--") or word == "--":
            raise ConfigError(f"command line: {shorten(word)} stands where an option (--key value) is expected")
        key, equals, value = word[2:].partition("=")
        if not equals:
            if not words or words[0].startswith("--"):
                raise ConfigError(f"command line: --{key[:200]} needs a value")
            value = words.pop(0)
        values[key] = value
    return values


def _build(kind: type[ConfigType], flat: Mapping[str, Any]) -> ConfigType:
    values: dict[str, Any] = {}
    for key, field_kind, _ in fields_of(kind):
        if is_section(field_kind):
            inner = {name.partition(".")[2]: flat[name] for name in flat if name.startswith(f"{key}.")}
            values[key] = _build(field_kind, inner)
        elif key in flat:
            values[key] = flat[key]
    return kind(**values)


def _read_file(kind: type[Config], path: str) -> dict[str, Any]:
    """The checked values of a yaml file under dotted keys; those of classes that share the file are left out."""
    tree = {} if path == os.devnull else read_yaml(path)
    values: dict[str, Any] = {}
    for owner in reversed((kind, *kind.file_sharers)):
        own = {key for key, _, _ in fields_of(owner)}
        leaves = {key: (field_kind, metadata) for key, field_kind, metadata in leaves_of(owner)}
        values = {}
        for key, value in _flatten({key: tree[key] for key in tree if key in own}, owner, path).items():
            values[key] = convert(value, *leaves[key], key, path)
    known = [key for owner in (kind, *kind.file_sharers) for key, _, _ in fields_of(owner)]
    for key in tree:
        if key not in known:
            raise ConfigError(unknown_key(str(key), known, path))
    return values


def load_config(kind: type[ConfigType], argv: Sequence[str] | None = None) -> ConfigType:
    """Merge the class's defaults, a yaml file and the command line into one checked configuration.

    Args:
        argv: words of the command line, by default this process's own. `--config_path FILE` selects the yaml;
            without it the class's own file in the project's root is read.

    Raises:
        ConfigError: a file, key or value is wrong; names the file or the command line, the key and what is allowed.
        SystemExit: after printing what --help asks for.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    given = _parse_arguments([word for word in words if word not in HELP])
    path = given.pop("config_path", None) or (str(ROOT / kind.config_file) if kind.config_file else os.devnull)
    leaves = {key: (field_kind, metadata) for key, field_kind, metadata in leaves_of(kind)}
    for key in given:
        if key not in leaves:
            if any(name.startswith(f"{key}.") for name in leaves):
                raise ConfigError(f"command line: --{key} is a section; set its keys with dots, as --{key}.KEY VALUE")
            flags = ["--config_path", *(f"--{name}" for name in leaves)]
            raise ConfigError(unknown_key(f"--{key}", flags, "command line"))
    merged = _read_file(kind, path)
    if HELP & set(words):
        print(format_help(kind, merged, path))
        raise SystemExit(0)
    merged |= {key: convert(value, *leaves[key], f"--{key}", "command line") for key, value in given.items()}
    try:
        return _build(kind, merged)
    except ConfigError as error:
        raise ConfigError(f"{path} with the command line: {error}") from None


def format_help(kind: type[Config], in_file: Mapping[str, Any], path: str) -> str:
    """Every key with its type, the value it has without a flag, and its meaning."""
    lines = [(kind.__doc__ or "").strip(), "", "--config_path FILE"]
    lines.append(f"    yaml file with any of the keys below; default {'none' if path == os.devnull else path}")
    defaults = _build(kind, in_file)
    for key, field_kind, metadata in leaves_of(kind):
        value = functools.reduce(getattr, key.split("."), defaults)
        lines += [f"--{key}", f"    {metadata['meaning']}"]
        limits = f"    {describe_allowed(field_kind, metadata)}; default {show(value)}"
        if metadata["needs"]:
            limits += "; only with {} {}".format(metadata["needs"][0], show(metadata["needs"][1]))
        lines.append(limits)
    return "\n".join(lines)
