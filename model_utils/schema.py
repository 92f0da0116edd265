"""Typed configuration: frozen pydantic models filled from a yaml file and the command line, with all values checked.

A configuration derives from Config; its fields are made by option(), section() and sections(). Field types: bool, int,
float, str, tuple[str, ...], dict[str, tuple[Any, ...]], Mappings, any of these `| None`, other Config classes
(sections), and tuples of one Config class.
"""

import copy
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

import pydantic
from pydantic import ValidationError, ValidationInfo
from pydantic.fields import FieldInfo

from model_utils.command_line import COMMAND_LINE, make_parser, nest, parse_flags
from model_utils.errors import ConfigError, key_path
from model_utils.files import write_text
from model_utils.option_values import (
    ANY,
    QUOTE,
    SAME_PLACE,
    describe_allowed,
    is_section,
    leaves_of,
    names_of,
    option,
    read_list,
    read_value,
    rules_of,
    section,
    sections,
    show,
    unknown_key,
    value_type,
)
from model_utils.yaml_files import read_yaml, write_yaml

__all__ = ["ANY", "SAME_PLACE", "Config", "load_config", "option", "section", "sections", "write_config"]

ROOT = Path(__file__).resolve().parents[1]
VALUES_ONLY = "values only"  # validation context: check single values, but not keys against each other


class Config(pydantic.BaseModel):
    """Base of all configurations; values are converted to the field's type and checked on construction."""

    model_config = pydantic.ConfigDict(
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        validate_default=True,
        validate_by_name=True,
        validate_by_alias=True,
        protected_namespaces=(),
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
            raise _config_error(error, type(self)) from None

    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]  # pydantic then skips __init__ for sections

    @pydantic.field_validator("*", mode="wrap")
    @classmethod
    def _convert(cls, value: Any, check: pydantic.ValidatorFunctionWrapHandler, info: ValidationInfo) -> Any:
        field = cls.model_fields[info.field_name or ""]
        rules = rules_of(field)
        if rules.is_list:
            return check(read_list(value))
        if rules.section:
            value = {} if value is None else value
            return check(merge(field.default.to_dict(), value) if isinstance(value, Mapping) else value)
        if value in rules.words or (value is None and field.default is None):
            return value
        try:
            value = check(read_value(value, value_type(field)))
        except ValidationError:
            raise ValueError from None  # so that the error's input is the original value
        chosen = value if isinstance(value, tuple) else (value,)
        if rules.choices and not all(item in rules.choices for item in chosen):
            raise ValueError
        return value

    @pydantic.model_validator(mode="after")
    def _check_all(self, info: ValidationInfo) -> Self:
        if info.context != VALUES_ONLY:
            self._check_needs()
            self.check_together()
        return self

    def _check_needs(self) -> None:
        """Raise ConfigError if an option is changed while the key that it needs, directly or indirectly, is not set."""
        for key, field in type(self).model_fields.items():
            value = getattr(self, key)
            needs = None if rules_of(field).section else rules_of(field).needs
            while value != field.default and needs:
                name, needed = needs
                if getattr(self, name) != needed:
                    expected = f"{show(field.default)} while {name} is {show(getattr(self, name))}"
                    remedy = f"leave {name} out" if needed == "" else f"set {name} to {show(needed)}"
                    raise self.error_of(key, expected=expected, hint=f"{remedy}, or leave {key} out")
                needs = rules_of(type(self).model_fields[name]).needs

    def check_required(self) -> None:
        """Raise ConfigError if a required key is empty."""
        for key, field in type(self).model_fields.items():
            if rules_of(field).required and getattr(self, key) == "":
                raise self.error_of(key, hint=f"needed: {field.description}")

    def check_together(self) -> None:
        """Check keys against each other; derived classes raise ConfigError."""

    def error_of(self, key: str, problem: str = "", **more: str) -> ConfigError:
        """Return the error about the value of a key; `more` are `expected` or `hint` of ConfigError."""
        return ConfigError(key=key, value=getattr(self, key), problem=problem, **more)

    def derive(self, key: str, value: int) -> None:
        """Set a key that is 0 to a value derived from others; for check_together()."""
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
        return str(self.to_dict())

    def to_dict(self) -> dict[str, Any]:
        """Return the configuration for yaml: sections become dicts, tuples lists; keys that are None are left out."""
        # No warnings: a word in place of a number is not the field's declared type.
        return self.model_dump(mode="json", exclude_none=True, warnings=False)

    def from_anywhere(self) -> Self:
        """Return the configuration with SAME_PLACE paths made absolute, for a process in another working folder."""
        changes: dict[str, Any] = {}
        for key, value in self:
            rules = rules_of(type(self).model_fields[key])
            if rules.is_list:
                changes[key] = tuple(item.from_anywhere() for item in value)
            elif rules.section:
                changes[key] = value.from_anywhere()
            elif rules.on_resume == SAME_PLACE and value:
                changes[key] = str(Path.cwd() / value)  # not abspath, which drops `link/..` without following
        return self.replace(**changes)

    def resume_fingerprint(self, prefix: str = "") -> dict[str, Any]:
        """Return the keys that must match for a run to resume, as a flat dict by dotted key; paths are resolved."""
        result: dict[str, Any] = {}
        for key, value in self.to_dict().items():
            rules = rules_of(type(self).model_fields[key])
            if rules.is_list:
                for index, item in enumerate(getattr(self, key)):
                    result |= item.resume_fingerprint(f"{prefix}{key}[{index}].")
            elif rules.section:
                if not rules.needs or getattr(self, rules.needs[0]) == rules.needs[1]:
                    result |= getattr(self, key).resume_fingerprint(f"{prefix}{key}.")
            elif rules.on_resume != ANY:
                result[prefix + key] = os.path.realpath(value) if rules.on_resume == SAME_PLACE and value else value
        return result


ConfigType = TypeVar("ConfigType", bound=Config)


def with_default(field: FieldInfo, default: Any) -> FieldInfo:
    """Return a copy of a field with another default."""
    changed = copy.copy(field)
    changed.default = default
    return changed


def write_config(config: Config, path: str | Path) -> None:
    """Write the configuration as yaml, atomically; reading it back gives an identical configuration."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    write_text(Path(path), write_yaml(config.to_dict()))


def merge(tree: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tree of keys updated recursively with `changes`; the arguments are not modified."""
    merged = {**tree, **changes}
    for key in changes.keys() & tree.keys():
        if isinstance(tree[key], Mapping) and isinstance(changes[key], Mapping):
            merged[key] = merge(tree[key], changes[key])
    return merged


def _config_error(error: ValidationError, kind: type[Config]) -> ConfigError:
    """Return the first of pydantic's errors as a ConfigError."""
    first = error.errors(include_url=False)[0]
    path = key_path(first["loc"])
    reason = first.get("ctx", {}).get("error")
    if isinstance(reason, ConfigError):  # raised by check_together()
        return reason.within(path) if path else reason
    *parents, key = first["loc"]
    for parent in parents:
        if isinstance(parent, str):  # not the index of an item
            kind = rules_of(kind.model_fields[parent]).section or kind
    if key in kind.model_fields and first["type"] == "extra_forbidden":
        return ConfigError(f"{path} is given by both of its names: leave one out", key=path)
    if first["type"] in ("extra_forbidden", "invalid_key"):
        prefix = path.removesuffix(str(key))
        return unknown_key(path, [*(prefix + name for name in kind.model_fields), *dict(leaves_of(kind, prefix))])
    if isinstance(key, int):
        return ConfigError(key=path, value=first["input"], expected="a mapping of keys")
    fields = {field.validation_alias: field for field in kind.model_fields.values()} | kind.model_fields
    expected = describe_allowed(fields[key])
    needs_quotes = expected.startswith("text") and not isinstance(first["input"], str)
    return ConfigError(key=path, value=first["input"], expected=expected, hint=QUOTE if needs_quotes else "")


def _checked(kind: type[Config], tree: Mapping[str, Any], origin: str) -> dict[str, Any]:
    """Return a tree with values converted and aliases replaced; keys are not checked against each other."""
    try:
        config = kind.model_validate(tree, context=VALUES_ONLY)
    except ValidationError as error:
        raise _config_error(error, kind).at(origin) from None
    return config.model_dump(mode="json", exclude_unset=True, exclude_none=True, warnings=False)


def _read_file(kind: type[Config], path: str) -> dict[str, Any]:
    """Return the checked keys of a yaml file that belong to `kind`.

    Keys of classes that share the file are checked and left out; if there are any, `not_shared` keys are left out too.
    """
    tree = {} if path == os.devnull else read_yaml(path)
    valid_keys: list[str] = []
    for sharer in kind.file_sharers:
        valid_keys += [*names_of(sharer), *dict(leaves_of(sharer))]
        _checked(sharer, _keys_of(sharer, tree), path)
    valid_keys += [*names_of(kind), *dict(leaves_of(kind))]
    own_tree = _keys_of(kind, tree)
    own_values = _checked(kind, own_tree, path)
    for key in tree:
        if key not in valid_keys:
            raise unknown_key(str(key), valid_keys).at(path)
    if len(own_tree) == len(tree):
        return own_values
    return {key: value for key, value in own_values.items() if key not in kind.not_shared}


def _keys_of(kind: type[Config], tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a tree that belongs to a class, with aliases as they are."""
    names = names_of(kind)
    return {key: value for key, value in tree.items() if key in names}


def _check_used(config: Config, flags: Mapping[str, Any], prefix: str = "") -> None:
    """Raise ConfigError for a flag of an unused section; a file may contain unused sections."""
    for key, value in flags.items():
        field = type(config).model_fields[key]
        if not is_section(field):
            continue
        rules = rules_of(field)
        if rules.needs and getattr(config, rules.needs[0]) != rules.needs[1]:
            name, found = next(iter(value.items()))
            problem = f"it has an effect only with {prefix}{rules.needs[0]} {show(rules.needs[1])}"
            raise ConfigError(key=f"{prefix}{key}.{name}", value=found, problem=problem).at(COMMAND_LINE)
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
    flag_values = parse_flags(kind, argv)
    default_path = str(ROOT / kind.config_file) if kind.config_file else os.devnull
    path = flag_values.pop("config_path", None) or default_path
    wants_help = flag_values.pop("help", False)
    tree = _read_file(kind, path)
    if wants_help:
        make_parser(kind, kind(**tree), path).print_help()
        raise SystemExit(0)
    _checked(kind, nest(flag_values), COMMAND_LINE)
    key_of_alias = {field.validation_alias: key for key, field in kind.model_fields.items()}
    flags = kind.complete_flags(nest({key_of_alias.get(name, name): value for name, value in flag_values.items()}))
    try:
        config = kind(**merge(tree, flags))
    except ConfigError as error:
        raise error.at(COMMAND_LINE if path == os.devnull else f"{path} with the {COMMAND_LINE}") from None
    _check_used(config, flags)
    config.check_flags(flags)
    return config.fit_to_flags(flags)
