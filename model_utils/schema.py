"""Typed configuration: frozen pydantic models filled from a yaml file and the command line, every value checked.

A configuration derives from Config; its fields are made by option(), section() and sections(). Types of fields: bool,
int, float, str, tuple[str, ...], any of these `| None`, other Config classes (sections), and tuples of one of these.
"""

import copy
import difflib
import functools
import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    field_validator,
    model_validator,
)
from pydantic.fields import FieldInfo

from model_utils.errors import ConfigError, shorten
from model_utils.files import write_text
from model_utils.option_values import (
    canonical,
    describe_allowed,
    extra_of,
    read_list,
    read_value,
    show,
    without_none,
    words_of,
)
from model_utils.yaml_files import read_yaml

ROOT = Path(__file__).resolve().parents[1]
HELP = {"--help", "-h"}
SAME, SAME_PLACE, ANY = "same", "same place", "any"  # on_resume of an option
ELSEWHERE = {"num_train_epochs": "epoch_num"}  # what other libraries call an option -> its name here
MOST_MEANT = 3  # keys that are asked for in place of one that does not exist
VALUES_ONLY = "values only"  # context of a validation of a part: what keys say together is not checked


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
    alias: str = "",
) -> Any:
    """A field with its meaning for --help and the values it may take.

    Args:
        above, below: bounds that are themselves not allowed.
        needs: (another key of the same class, value): elsewhere this option means nothing and must keep its default.
        required: the entry scripts refuse to start while it is empty (Config.check_required).
        on_resume: what an unfinished run that goes on must find here: SAME, where an update or the choice of the best
            checkpoint depends on it; SAME_PLACE for a path, which may be spelt in another way; ANY where neither does,
            or where the run compares what the key comes to (src/training/run_plan.py).
        alias: another name that the command line, a file and Python may give the key.
    """
    extra: Any = {"choices": tuple(choices), "needs": needs, "required": required, "on_resume": on_resume}
    extra["alias"] = alias
    return Field(
        default, description=meaning, ge=minimum, gt=above, le=maximum, lt=below, strict=True, json_schema_extra=extra
    )


def section(default: "Config", meaning: str, used_if: tuple[str, Any] | None = None) -> Any:
    """A nested configuration, of which a file may leave out what is as in `default`.

    used_if: (another key of the same class, value): elsewhere flags of it mean nothing and are refused, but a file may
    have it.
    """
    extra: Any = {"used_if": used_if}
    return Field(default, description=meaning, json_schema_extra=extra)


def sections(kind: type["Config"], meaning: str) -> Any:
    """Nested configurations, tuple[kind, ...]; none by default.

    In yaml they are a list of mappings, on the command line that list as yaml writes it in one line.
    """
    extra: Any = {"choices": (), "needs": None, "on_resume": SAME, "sections": kind}
    return Field((), description=meaning, json_schema_extra=extra)


class Config(BaseModel):
    """Base of all configurations: values are converted to the field's type and checked when an object is made."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, validate_default=True, protected_namespaces=()
    )
    config_file: ClassVar[str] = ""  # yaml in the project's root that is read without --config_path; "" for none
    file_sharers: ClassVar[tuple[type["Config"], ...]] = ()  # classes whose keys may stand in the same yaml
    not_shared: ClassVar[frozenset[str]] = frozenset()  # keys that mean something else there, and are not read from it

    def __init_subclass__(cls, **more: Any) -> None:
        """Let a class give a parent's field another default alone: `key: type = value`."""
        super().__init_subclass__(**more)
        for key in vars(cls).keys() & cls.__pydantic_fields__.keys():
            if not isinstance(getattr(cls, key), FieldInfo):
                setattr(cls, key, with_default(cls.__pydantic_fields__[key], getattr(cls, key)))

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise _sentence(error, type(self)) from None

    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]  # pydantic makes sections without it

    @model_validator(mode="before")
    @classmethod
    def _rename(cls, values: Any) -> Any:
        return canonical(cls.model_fields, values) if isinstance(values, Mapping) else values

    @field_validator("*", mode="wrap")
    @classmethod
    def _convert(cls, value: Any, check: ValidatorFunctionWrapHandler, info: ValidationInfo) -> Any:
        field = cls.model_fields[info.field_name]
        if is_section(field):
            value = {} if value is None else value
            return check(merge(field.default.to_dict(), value) if isinstance(value, Mapping) else value)
        if "sections" in extra_of(field):
            return check(read_list(value))
        if value is None and field.default is None:
            return None
        if value in words_of(field):
            return value
        try:
            value = check(read_value(value, without_none(field.annotation)))
        except ValidationError:
            raise ValueError from None  # whose input is what was given
        if extra_of(field)["choices"] and value not in extra_of(field)["choices"]:
            raise ValueError
        return value

    @model_validator(mode="after")
    def _check_together(self, info: ValidationInfo) -> Self:
        if info.context != VALUES_ONLY:
            self._check_needs()
            self.validate()
        return self

    def _check_needs(self) -> None:
        for key, field in type(self).model_fields.items():
            value, other = getattr(self, key), field
            while value != field.default and extra_of(other).get("needs"):  # what is needed may need something itself
                name, needed = extra_of(other)["needs"]
                other = type(self).model_fields[name]
                if getattr(self, name) != needed:
                    raise ConfigError(
                        f"{key} is {show(value)}, which means nothing while {name} is {show(getattr(self, name))}: "
                        f"set {name} to {show(needed)}, or leave {key} at {show(field.default)}"
                    )

    def check_required(self) -> None:
        """Raise ConfigError if a key is empty without which the run cannot start."""
        for key, field in type(self).model_fields.items():
            if extra_of(field).get("required") and getattr(self, key) == "":
                raise ConfigError(f"--{key} is needed: {field.description}")

    def validate(self) -> None:
        """Check what concerns several keys together; derived classes raise ConfigError."""

    def derive(self, key: str, value: int) -> None:
        """Set a key that is left at 0 to what follows from others; for validate()."""
        if not getattr(self, key):
            self.__dict__[key] = value

    @classmethod
    def complete_flags(cls, flags: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the flags with those that follow from them whatever the file says."""
        return flags

    def fit_to_flags(self, flags: Mapping[str, Any]) -> Self:
        """Return the configuration with what the file says fitted to what the command line says."""
        return self

    def check_flags(self, flags: Mapping[str, Any]) -> None:
        """Check that what the command line gives, a tree of keys, has an effect; derived classes raise ConfigError."""

    def replace(self, **changes: Any) -> Self:
        """The same configuration with other values, checked again."""
        return type(self)(**dict(self) | changes)

    def __str__(self) -> str:
        """As yaml writes it in one line."""
        return yaml.safe_dump(self.to_dict(), default_flow_style=True, sort_keys=False, width=math.inf).strip()

    def to_dict(self) -> dict[str, Any]:
        """The configuration as yaml holds it: sections are dicts, tuples lists; keys that are None are left out."""
        return self.model_dump(mode="json", exclude_none=True, warnings=False)  # of words in place of numbers

    def from_anywhere(self) -> Self:
        """The same configuration for a process that works in another folder: paths by which a run is known (SAME_PLACE)
        are absolute.
        """
        changes: dict[str, Any] = {}
        for key, value in self:
            if isinstance(value, Config):
                changes[key] = value.from_anywhere()
            elif "sections" in extra_of(type(self).model_fields[key]):
                changes[key] = tuple(each.from_anywhere() for each in value)
            elif extra_of(type(self).model_fields[key])["on_resume"] == SAME_PLACE and value:
                changes[key] = os.path.join(os.getcwd(), value)  # not abspath, which takes `link/..` for nothing
        return self.replace(**changes)

    def binding(self, prefix: str = "") -> dict[str, Any]:
        """What an unfinished run must be resumed with, by dotted key; as to_dict, but paths are real ones."""
        result: dict[str, Any] = {}
        for key, value in self.to_dict().items():
            extra = extra_of(type(self).model_fields[key])
            if isinstance(value, dict):
                if extra["used_if"] is None or getattr(self, extra["used_if"][0]) == extra["used_if"][1]:
                    result |= getattr(self, key).binding(f"{prefix}{key}.")
            elif "sections" in extra:
                for number, each in enumerate(getattr(self, key)):
                    result |= each.binding(f"{prefix}{key}[{number}].")
            elif extra["on_resume"] != ANY:
                result[prefix + key] = os.path.realpath(value) if extra["on_resume"] == SAME_PLACE and value else value
        return result


ConfigType = TypeVar("ConfigType", bound=Config)


def with_default(field: FieldInfo, default: Any) -> FieldInfo:
    """The same field with another default."""
    changed = copy.copy(field)
    changed.default = default
    return changed


def is_section(field: FieldInfo) -> bool:
    """Whether a field holds a nested configuration."""
    return isinstance(field.default, Config)


def section_kind(field: FieldInfo) -> type[Config]:
    """The class of a nested configuration, or of those in a list."""
    return extra_of(field).get("sections") or type(field.default)


def leaves_of(kind: type[Config], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Every option of a configuration class; those of sections under dotted names."""
    for key, field in kind.model_fields.items():
        if is_section(field):
            yield from leaves_of(type(field.default), f"{prefix}{key}.")
        else:
            yield prefix + key, field


def _sentence(error: ValidationError, kind: type[Config], origin: str = "", mark: str = "") -> ConfigError:
    """The first error as a sentence; origin: the file or "command line"; mark: what stands before a key there."""
    first = error.errors(include_url=False)[0]
    reason = first.get("ctx", {}).get("error")
    if isinstance(reason, ConfigError):  # of validate()
        parts = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"])
        return ConfigError(f"in {parts[1:]}: {reason}") if parts else reason
    *parents, name = first["loc"]
    prefix, item = mark, False  # item: whether what comes next is the number of a section in a list
    for parent in parents:
        if item:
            prefix, item = f"{prefix[:-1]}[{parent}].", False
        else:
            prefix += f"{parent}."
            item = "sections" in extra_of(kind.model_fields[parent])
            kind = section_kind(kind.model_fields[parent])
    path = f"{prefix[:-1]}[{name}]" if item else f"{prefix}{name}"
    if first["type"] in ("extra_forbidden", "invalid_key"):
        known = [*(prefix + field for field in kind.model_fields), *dict(leaves_of(kind, prefix))]
        return ConfigError(unknown_key(path, known, origin or kind.__name__))
    place = f"{origin}: " if origin else ""
    allowed = "a mapping of keys" if item or is_section(kind.model_fields[name]) else None
    allowed = allowed or describe_allowed(kind.model_fields[name])
    if allowed.startswith("text") and not isinstance(first["input"], str):
        allowed += "; a name that yaml reads as something else stands in quotes"
    return ConfigError(f"{place}{path} is {shorten(first['input'])}, allowed is {allowed}")


def write_config(config: Config, path: str | Path) -> None:
    """Write the configuration as yaml, complete or not at all; read back it is identical."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # Not allow_unicode: with it a next-line character (U+0085) would not come back.
    write_text(path, yaml.safe_dump(config.to_dict(), sort_keys=False))


def merge(tree: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A tree of keys with others in it or in their place; neither argument is changed."""
    merged = {**tree, **changes}
    for key in changes.keys() & tree.keys():
        if isinstance(tree[key], Mapping) and isinstance(changes[key], Mapping):
            merged[key] = merge(tree[key], changes[key])
    return merged


def unknown_key(key: str, known: Sequence[str], origin: str) -> str:
    """The sentence for a key that does not exist, with those that may be meant; `known` may name one twice."""
    key, known = key[:200], list(dict.fromkeys(known))
    more = f" and {len(known) - 20} more, which --help lists" if len(known) > 20 else ""
    meant = _meant(key, known)
    advice = f"did you mean {' or '.join(meant)}?" if meant else f"known are {', '.join(known[:20])}{more}"
    return f"{origin}: {key} is not a key; {advice}"


def _meant(key: str, known: Sequence[str]) -> list[str]:
    """Keys that end alike: in a section or with another beginning (batch_size, per_device_train_batch_size); else the
    nearest one."""

    def last(name: str) -> str:
        return name.removeprefix("--").rpartition(".")[2]

    name = ELSEWHERE.get(last(key), last(key))
    for alike in (
        [each for each in known if last(each) == name],
        [each for each in known if f"_{last(each)}".endswith(f"_{name}") or name.endswith(f"_{last(each)}")],
    ):
        if 0 < len(alike) <= MOST_MEANT:
            return alike
    return difflib.get_close_matches(key, known, 1, cutoff=0.5)


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


def _nest(kind: type[Config], given: Mapping[str, str]) -> dict[str, Any]:
    """Flags as a tree: dots lead into sections."""
    known = [key for key, _ in leaves_of(kind)]
    tree: dict[str, Any] = {}
    for key, value in given.items():
        if key not in known:
            if any(name.startswith(f"{key}.") for name in known):
                raise ConfigError(f"command line: --{key} is a section; set its keys with dots, as --{key}.KEY VALUE")
            flags = ["--config_path", *(f"--{name}" for name in known)]
            raise ConfigError(unknown_key(f"--{key}", flags, "command line"))
        *parents, name = key.split(".")
        functools.reduce(lambda node, parent: node.setdefault(parent, {}), parents, tree)[name] = value
    return tree


def _check_values(kind: type[Config], tree: Mapping[str, Any], origin: str, mark: str = "") -> None:
    try:
        kind.model_validate(tree, context=VALUES_ONLY)
    except ValidationError as error:
        raise _sentence(error, kind, origin, mark) from None


def _read_file(kind: type[Config], path: str) -> dict[str, Any]:
    """The checked content of a yaml file; keys of classes that share the file are left out, and where there are some,
    those that mean something else there.
    """
    tree = {} if path == os.devnull else read_yaml(path)
    owners = (*kind.file_sharers, kind)
    own: dict[str, Any] = {}
    for owner in owners:
        own = {
            key: value for key, value in canonical(owner.model_fields, tree, path).items() if key in owner.model_fields
        }
        _check_values(owner, own, path)
    known = [key for owner in owners for key in owner.model_fields]
    aliases = {extra_of(field).get("alias") for owner in owners for field in owner.model_fields.values()}
    for key in tree:
        if key not in known and key not in aliases:
            raise ConfigError(unknown_key(str(key), [*known, *dict(leaves_of(kind))], path))
    shared = len(own) < len(tree)
    return {key: value for key, value in own.items() if not (shared and key in kind.not_shared)}


def _check_used(config: Config, flags: Mapping[str, Any], prefix: str = "") -> None:
    """Raise ConfigError for a flag of a section that is not used; a file may describe all sections."""
    for key, value in flags.items():
        field = type(config).model_fields[key]
        if not is_section(field):
            continue
        if used_if := extra_of(field)["used_if"]:
            name, needed = used_if
            if getattr(config, name) != needed:
                raise ConfigError(
                    f"command line: --{prefix}{key}.{next(iter(value))} means nothing while {prefix}{name} is "
                    f"{show(getattr(config, name))}, allowed with --{prefix}{name} {show(needed)}"
                )
        _check_used(getattr(config, key), value, f"{prefix}{key}.")


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
    flags = kind.complete_flags(_nest(kind, canonical(kind.model_fields, given, "command line", "--")))
    tree = _read_file(kind, path)
    if HELP & set(words):
        print(format_help(kind, tree, path))
        raise SystemExit(0)
    _check_values(kind, flags, "command line", "--")
    try:
        config = kind(**merge(tree, flags))
    except ConfigError as error:
        origin = "command line" if path == os.devnull else f"{path} with the command line"
        raise ConfigError(f"{origin}: {error}") from None
    _check_used(config, flags)
    config.check_flags(flags)
    return config.fit_to_flags(flags)


def format_help(kind: type[Config], in_file: Mapping[str, Any], path: str) -> str:
    """Every key with its type, the value it has without a flag, and its meaning."""
    lines = [(kind.__doc__ or "").strip(), "", "--config_path FILE"]
    lines.append(f"    yaml file with any of the keys below; default {'none' if path == os.devnull else path}")
    defaults = kind(**in_file)
    for key, field in leaves_of(kind):
        value = functools.reduce(getattr, key.split("."), defaults)
        limits = f"    {describe_allowed(field)}; default {show(value)}"
        if needs := extra_of(field)["needs"]:
            limits += f"; only with {needs[0]} {show(needs[1])}"
        if alias := extra_of(field).get("alias"):
            limits += f"; also --{alias}"
        lines += [f"--{key}", f"    {field.description}", limits]
        if "sections" in extra_of(field):
            for name, part in section_kind(field).model_fields.items():
                lines.append(f"        {name}: {part.description}; {describe_allowed(part)}")
    return "\n".join(lines)
