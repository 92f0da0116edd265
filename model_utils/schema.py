"""Typed configuration: frozen pydantic models filled from a yaml file and the command line, with all values checked.

A configuration derives from Config; its fields are made by option(), section() and sections(). Field types: bool, int,
float, str, tuple[str, ...], any of these `| None`, other Config classes (sections), and tuples of one Config class.
"""

import copy
import difflib
import functools
import math
import os
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
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
EPOCHS = {"num_train_epochs", "epoch_num", "epoch_size"}  # names of one option, here and in other libraries
MOST_MEANT = 3  # suggestions for a key that does not exist
VALUES_ONLY = "values only"  # validation context: check single values, but not keys against each other


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
    """Return a field with its meaning for --help and its allowed values.

    Args:
        choices: the allowed values; (): any.
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
    extra: Any = {"choices": tuple(choices), "needs": needs, "required": required, "on_resume": on_resume}
    extra["alias"] = alias
    return Field(
        default, description=meaning, ge=minimum, gt=above, le=maximum, lt=below, strict=True, json_schema_extra=extra
    )


def section(default: "Config", meaning: str, used_if: tuple[str, Any] | None = None) -> Any:
    """Return a field for a nested configuration; keys that a file leaves out are those of `default`.

    Args:
        used_if: (another key of the same class, value): with another value the section has no effect; its flags are
            rejected, but a file may contain it.
    """
    extra: Any = {"used_if": used_if}
    return Field(default, description=meaning, json_schema_extra=extra)


def sections(kind: type["Config"], meaning: str) -> Any:
    """Return a field for a list of nested configurations, tuple[kind, ...]; empty by default.

    In yaml it is a list of mappings, on the command line the same list as yaml on one line.
    """
    extra: Any = {"choices": (), "needs": None, "on_resume": SAME, "sections": kind}
    return Field((), description=meaning, json_schema_extra=extra)


class Config(BaseModel):
    """Base of all configurations; values are converted to the field's type and checked on construction."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, validate_default=True, protected_namespaces=()
    )
    config_file: ClassVar[str] = ""  # default of --config_path, a yaml in the project's root; "": none
    file_sharers: ClassVar[tuple[type["Config"], ...]] = ()  # classes whose keys may be in the same yaml
    not_shared: ClassVar[frozenset[str]] = frozenset()  # keys with another meaning there, ignored

    def __init_subclass__(cls, **more: Any) -> None:
        """Allow `key: type = value` in a derived class, which changes only the default of the parent's field."""
        super().__init_subclass__(**more)
        for key in vars(cls).keys() & cls.__pydantic_fields__.keys():
            if not isinstance(getattr(cls, key), FieldInfo):
                setattr(cls, key, with_default(cls.__pydantic_fields__[key], getattr(cls, key)))

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise _sentence(error, type(self), values) from None

    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]  # pydantic then skips __init__ for sections

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
            raise ValueError from None  # so that the error's input is the original value
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
        """Raise ConfigError if an option is changed while the key that it needs, directly or indirectly, is not set."""
        for key, field in type(self).model_fields.items():
            value = getattr(self, key)
            needed_field = field
            while value != field.default and extra_of(needed_field).get("needs"):
                name, needed = extra_of(needed_field)["needs"]
                needed_field = type(self).model_fields[name]
                if getattr(self, name) != needed:
                    raise ConfigError(
                        f"{key} is {show(value)}, which means nothing while {name} is {show(getattr(self, name))}: "
                        f"set {name} to {show(needed)}, or leave {key} at {show(field.default)}"
                    )

    def check_required(self) -> None:
        """Raise ConfigError if a required key is empty."""
        for key, field in type(self).model_fields.items():
            if extra_of(field).get("required") and getattr(self, key) == "":
                raise ConfigError(f"--{key} is needed: {field.description}")

    def validate(self) -> None:
        """Check keys against each other; derived classes raise ConfigError."""

    def derive(self, key: str, value: int) -> None:
        """Set a key that is 0 to a value derived from others; for validate()."""
        if not getattr(self, key):
            self.__dict__[key] = value

    @classmethod
    def complete_flags(cls, flags: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the flags together with flags that they imply, whatever the file says."""
        return flags

    def fit_to_flags(self, flags: Mapping[str, Any]) -> Self:
        """Return the configuration with values of the file adapted to the flags."""
        return self

    def check_flags(self, flags: Mapping[str, Any]) -> None:
        """Check that the flags, a tree of keys, have an effect; derived classes raise ConfigError."""

    def replace(self, **changes: Any) -> Self:
        """Return the configuration with other values, checked again."""
        return type(self)(**dict(self) | changes)

    def __str__(self) -> str:
        """Return the configuration as yaml on one line."""
        return yaml.safe_dump(self.to_dict(), default_flow_style=True, sort_keys=False, width=math.inf).strip()

    def to_dict(self) -> dict[str, Any]:
        """Return the configuration for yaml: sections become dicts, tuples lists; keys that are None are left out."""
        # No warnings: a word in place of a number is not the field's declared type.
        return self.model_dump(mode="json", exclude_none=True, warnings=False)

    def from_anywhere(self) -> Self:
        """Return the configuration with SAME_PLACE paths made absolute, for a process in another working folder."""
        changes: dict[str, Any] = {}
        for key, value in self:
            if isinstance(value, Config):
                changes[key] = value.from_anywhere()
            elif "sections" in extra_of(type(self).model_fields[key]):
                changes[key] = tuple(item.from_anywhere() for item in value)
            elif extra_of(type(self).model_fields[key])["on_resume"] == SAME_PLACE and value:
                changes[key] = os.path.join(os.getcwd(), value)  # not abspath, which drops `link/..` without following
        return self.replace(**changes)

    def resume_fingerprint(self, prefix: str = "") -> dict[str, Any]:
        """Return the keys that must match for a run to resume, as a flat dict by dotted key; paths are resolved."""
        result: dict[str, Any] = {}
        for key, value in self.to_dict().items():
            extra = extra_of(type(self).model_fields[key])
            if isinstance(value, dict):
                if extra["used_if"] is None or getattr(self, extra["used_if"][0]) == extra["used_if"][1]:
                    result |= getattr(self, key).resume_fingerprint(f"{prefix}{key}.")
            elif "sections" in extra:
                for index, item in enumerate(getattr(self, key)):
                    result |= item.resume_fingerprint(f"{prefix}{key}[{index}].")
            elif extra["on_resume"] != ANY:
                result[prefix + key] = os.path.realpath(value) if extra["on_resume"] == SAME_PLACE and value else value
        return result


ConfigType = TypeVar("ConfigType", bound=Config)


def with_default(field: FieldInfo, default: Any) -> FieldInfo:
    """Return a copy of a field with another default."""
    changed = copy.copy(field)
    changed.default = default
    return changed


def is_section(field: FieldInfo) -> bool:
    """Return True if a field holds a nested configuration."""
    return isinstance(field.default, Config)


def section_kind(field: FieldInfo) -> type[Config]:
    """Return the class of a nested configuration or of the items of a list of them."""
    return extra_of(field).get("sections") or type(field.default)


def leaves_of(kind: type[Config], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Yield (name, field) of all options of a configuration class; names in sections are dotted."""
    for key, field in kind.model_fields.items():
        if is_section(field):
            yield from leaves_of(type(field.default), f"{prefix}{key}.")
        else:
            yield prefix + key, field


def _sentence(
    error: ValidationError, kind: type[Config], given: Collection[str], origin: str = "", mark: str = ""
) -> ConfigError:
    """Return the first error as a ConfigError.

    Args:
        given: keys as the user wrote them, perhaps under their aliases.
        origin: the file or "command line".
        mark: prefix of keys, as "--".
    """
    first = error.errors(include_url=False)[0]
    reason = first.get("ctx", {}).get("error")
    if isinstance(reason, ConfigError):  # raised by validate()
        location = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in first["loc"])
        return ConfigError(f"in {location[1:]}: {reason}") if location else reason
    *parents, name = first["loc"]
    prefix = mark
    is_index = False  # True if the next step of the location is an index into a list of sections
    for parent in parents:
        if is_index:
            prefix = f"{prefix[:-1]}[{parent}]."
            is_index = False
        else:
            prefix += f"{parent}."
            is_index = "sections" in extra_of(kind.model_fields[parent])
            kind = section_kind(kind.model_fields[parent])
    path = f"{prefix[:-1]}[{name}]" if is_index else f"{prefix}{name}"
    if first["type"] in ("extra_forbidden", "invalid_key"):
        valid_keys = [*(prefix + field for field in kind.model_fields), *dict(leaves_of(kind, prefix))]
        return ConfigError(unknown_key(path, valid_keys, origin or kind.__name__))
    if not parents and name not in given and (alias := extra_of(kind.model_fields[name]).get("alias")) in given:
        path = f"{mark}{alias}"
    origin_prefix = f"{origin}: " if origin else ""
    allowed = "a mapping of keys" if is_index or is_section(kind.model_fields[name]) else None
    allowed = allowed or describe_allowed(kind.model_fields[name])
    if allowed.startswith("text") and not isinstance(first["input"], str):
        allowed += "; put text that yaml reads as another type in quotes"
    return ConfigError(f"{origin_prefix}{path} is {shorten(first['input'])}, allowed is {allowed}")


def write_config(config: Config, path: str | Path) -> None:
    """Write the configuration as yaml, atomically; reading it back gives an identical configuration."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # Not allow_unicode: with it a next-line character (U+0085) would be lost on reading.
    write_text(path, yaml.safe_dump(config.to_dict(), sort_keys=False))


def merge(tree: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tree of keys updated recursively with `changes`; the arguments are not modified."""
    merged = {**tree, **changes}
    for key in changes.keys() & tree.keys():
        if isinstance(tree[key], Mapping) and isinstance(changes[key], Mapping):
            merged[key] = merge(tree[key], changes[key])
    return merged


def unknown_key(key: str, known: Sequence[str], origin: str) -> str:
    """Return the message for a key that does not exist, with suggestions; `known` may contain duplicates."""
    key = key[:200]
    known = list(dict.fromkeys(known))
    more = f" and {len(known) - 20} more, which --help lists" if len(known) > 20 else ""
    suggestions = _suggestions(key, known)
    advice = f"did you mean {' or '.join(suggestions)}?" if suggestions else f"known are {', '.join(known[:20])}{more}"
    return f"{origin}: {key} is not a key; {advice}"


def _suggestions(key: str, valid_keys: Sequence[str]) -> list[str]:
    """Return keys with the same last name or a common ending (train_batch_size, batch_size), else the nearest one."""

    def last(name: str) -> str:
        return name.removeprefix("--").rpartition(".")[2]

    name = last(key)
    same_name = [valid for valid in valid_keys if last(valid) == name or {last(valid), name} <= EPOCHS]
    if 0 < len(same_name) <= MOST_MEANT:
        return same_name
    same_ending = [
        valid for valid in valid_keys if f"_{last(valid)}".endswith(f"_{name}") or name.endswith(f"_{last(valid)}")
    ]
    if 0 < len(same_ending) <= MOST_MEANT:
        return same_ending
    return difflib.get_close_matches(key, valid_keys, 1, cutoff=0.5)


def _parse_arguments(arguments: Sequence[str]) -> dict[str, str]:
    """Return `--key value` and `--key=value` as a dict; the last value of a repeated key wins."""
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


def _nest(kind: type[Config], flags: Mapping[str, str]) -> dict[str, Any]:
    """Return the flags as a tree: dots lead into sections."""
    valid_keys = [key for key, _ in leaves_of(kind)]
    tree: dict[str, Any] = {}
    for key, value in flags.items():
        if key not in valid_keys:
            if any(name.startswith(f"{key}.") for name in valid_keys):
                raise ConfigError(f"command line: --{key} is a section; set its keys with dots, as --{key}.KEY VALUE")
            valid_flags = ["--config_path", *(f"--{name}" for name in valid_keys)]
            raise ConfigError(unknown_key(f"--{key}", valid_flags, "command line"))
        *parents, name = key.split(".")
        section_tree = tree
        for parent in parents:
            section_tree = section_tree.setdefault(parent, {})
        section_tree[name] = value
    return tree


def _check_values(
    kind: type[Config], tree: Mapping[str, Any], given: Collection[str], origin: str, mark: str = ""
) -> None:
    """Raise ConfigError for an unknown key or a wrong value in a tree, without checking keys against each other."""
    try:
        kind.model_validate(tree, context=VALUES_ONLY)
    except ValidationError as error:
        raise _sentence(error, kind, given, origin, mark) from None


def _read_file(kind: type[Config], path: str) -> dict[str, Any]:
    """Return the checked keys of a yaml file that belong to `kind`.

    Keys of classes that share the file are checked and left out; if there are any, `not_shared` keys are left out too.
    """
    tree = {} if path == os.devnull else read_yaml(path)
    owners = (*kind.file_sharers, kind)
    owner_tree: dict[str, Any] = {}
    for owner in owners:
        renamed = canonical(owner.model_fields, tree, path)
        owner_tree = {key: value for key, value in renamed.items() if key in owner.model_fields}
        _check_values(owner, owner_tree, tree, path)
    kind_tree = owner_tree  # `kind` is the last owner
    valid_keys = [key for owner in owners for key in owner.model_fields]
    aliases = {extra_of(field).get("alias") for owner in owners for field in owner.model_fields.values()}
    for key in tree:
        if key not in valid_keys and key not in aliases:
            raise ConfigError(unknown_key(str(key), [*valid_keys, *dict(leaves_of(kind))], path))
    is_shared = len(kind_tree) < len(tree)
    return {key: value for key, value in kind_tree.items() if not (is_shared and key in kind.not_shared)}


def _check_used(config: Config, flags: Mapping[str, Any], prefix: str = "") -> None:
    """Raise ConfigError for a flag of an unused section; a file may contain unused sections."""
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
            the default is the class's `config_file` in the project's root.

    Raises:
        ConfigError: a file, key or value is wrong; names the file or the command line, the key and what is allowed.
        SystemExit: after printing the help, if --help is among the words.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    arguments = _parse_arguments([word for word in words if word not in HELP])
    path = arguments.pop("config_path", None) or (str(ROOT / kind.config_file) if kind.config_file else os.devnull)
    flags = kind.complete_flags(_nest(kind, canonical(kind.model_fields, arguments, "command line", "--")))
    tree = _read_file(kind, path)
    if HELP & set(words):
        print(format_help(kind, tree, path))
        raise SystemExit(0)
    _check_values(kind, flags, arguments, "command line", "--")
    try:
        config = kind(**merge(tree, flags))
    except ConfigError as error:
        origin = "command line" if path == os.devnull else f"{path} with the command line"
        raise ConfigError(f"{origin}: {error}") from None
    _check_used(config, flags)
    config.check_flags(flags)
    return config.fit_to_flags(flags)


def format_help(kind: type[Config], in_file: Mapping[str, Any], path: str) -> str:
    """Return the text of --help: every key with its type, its value without a flag, and its meaning."""
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
            for name, item_field in section_kind(field).model_fields.items():
                lines.append(f"        {name}: {item_field.description}; {describe_allowed(item_field)}")
    return "\n".join(lines)
