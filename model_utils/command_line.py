"""The command line of a configuration: a flag for each key, with argparse."""

import argparse
import operator
import os
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from model_utils.errors import ConfigError, shorten
from model_utils.option_values import describe_allowed, leaves_of, rules_of, show, unknown_key

COMMAND_LINE = "command line"


def parse_flags(kind: type[BaseModel], argv: Sequence[str] | None) -> dict[str, Any]:
    """Return the flags of the command line by key; raise ConfigError for an unknown one or one without a value."""
    try:
        flags, unknown = make_parser(kind, kind(), os.devnull).parse_known_args(argv)
    except argparse.ArgumentError as error:
        raise ConfigError(f"{COMMAND_LINE}: {error}", key=error.argument_name or "") from None
    if unknown:
        name = unknown[0].partition("=")[0]
        valid_keys = dict(leaves_of(kind))
        if not name.startswith("--"):
            raise ConfigError(f"{COMMAND_LINE}: {shorten(name)} stands where an option (--key value) is expected")
        if any(key.startswith(f"{name[2:]}.") for key in valid_keys):
            raise ConfigError(key=name, hint=f"it is a section: set its keys, as {name}.KEY VALUE").at(COMMAND_LINE)
        raise unknown_key(name, ["--config_path", *(f"--{key}" for key in valid_keys)]).at(COMMAND_LINE)
    return vars(flags)


def nest(flags: Mapping[str, str]) -> dict[str, Any]:
    """Return the flags as a tree: dots lead into sections."""
    tree: dict[str, Any] = {}
    for key, value in flags.items():
        *parents, name = key.split(".")
        branch = tree
        for parent in parents:
            branch = branch.setdefault(parent, {})
        branch[name] = value
    return tree


def make_parser(kind: type[BaseModel], defaults: BaseModel, path: str) -> argparse.ArgumentParser:
    """Return a parser with a flag for each key, whose --help has type, value without the flag, and meaning."""
    parser = argparse.ArgumentParser(
        description=kind.__doc__,
        usage="%(prog)s [--config_path FILE] [--KEY VALUE ...]",
        formatter_class=argparse.RawTextHelpFormatter,
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
        exit_on_error=False,
        add_help=False,
    )
    parser.add_argument("--help", "-h", action="store_true", help="show this and end")
    file_help = f"yaml file with any of the keys below; default {'none' if path == os.devnull else path}"
    parser.add_argument("--config_path", metavar="FILE", help=file_help.replace("%", "%%"))
    for key, field in leaves_of(kind):
        rules = rules_of(field)
        default = operator.attrgetter(key)(defaults)
        limits = f"{describe_allowed(field)}; default {show(default)}"
        if rules.needs:
            limits += f"; only with {rules.needs[0]} {show(rules.needs[1])}"
        lines = [field.description or "", limits]
        if rules.is_list and rules.section:
            items = rules.section.model_fields.items()
            lines += [f"    {name}: {item.description}; {describe_allowed(item)}" for name, item in items]
        parser.add_argument(f"--{key}", metavar="VALUE", help="\n".join(lines).replace("%", "%%"))
        if field.validation_alias:
            parser.add_argument(f"--{field.validation_alias}", metavar="VALUE", help=f"another name of --{key}")
    return parser
