"""Reader and writer of yaml configuration files; all yaml of the project passes here.

It is YAML 1.2: 1e-4 is a number, 010 is ten, and yes, on and 1:30 are texts. A key that is given twice is an error.
"""

import io
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from model_utils.errors import ConfigError, shorten_text
from model_utils.json_files import read_file

MAX_BYTES = 1 << 17  # of a configuration; the reader takes tens of seconds for a megabyte
NESTING = 100  # levels of lists and mappings


def parse_yaml(text: str) -> Any:
    """Return the value of a yaml text; raise ConfigError if it is not yaml."""
    try:
        return _yaml().load(text)
    except MarkedYAMLError as error:
        raise ConfigError(f"not yaml: line {error.problem_mark.line + 1}: {shorten_text(error.problem, 300)}") from None
    except (YAMLError, ValueError, LookupError) as error:  # the last two for `!!int x`, the 31st of February
        raise ConfigError(f"not yaml: {shorten_text(str(error), 300)}") from None


def write_yaml(value: Any) -> str:
    """Return a value as yaml text."""
    text = io.StringIO()
    _yaml().dump(value, text)
    return text.getvalue()


def _yaml() -> YAML:
    yaml: Any = YAML(typ="safe", pure=True)
    yaml.max_depth = NESTING
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False
    yaml.allow_unicode = False  # with it a next-line character (U+0085) would be lost on reading
    yaml.width = MAX_BYTES
    return yaml


def read_yaml(path: str | Path) -> dict[str, Any]:
    """Return the mapping in a yaml file; raise ConfigError if it is missing, too large, not yaml or not a mapping."""
    raw = read_file(Path(path), ConfigError)
    if len(raw) > MAX_BYTES:
        raise ConfigError(f"{path} has {len(raw):,} bytes, a configuration has at most {MAX_BYTES:,}")
    try:
        content = parse_yaml(raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ConfigError(f"the configuration {path} is not UTF-8 text: byte {error.start}") from error
    except ConfigError as error:
        raise ConfigError(f"{path} is {error}") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError(f"the configuration {path} holds {type(content).__name__}, a mapping of keys is needed")
    return content
