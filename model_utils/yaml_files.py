"""Reader of yaml configuration files; all yaml of the project is read here."""

import re
from pathlib import Path
from typing import Any

import yaml

from model_utils.errors import ConfigError, shorten
from model_utils.json_files import NESTING, read_file

MOST_BYTES = 1 << 17  # of a configuration; the reader takes tens of seconds for a megabyte
_INT, _FLOAT, _MERGE = (f"tag:yaml.org,2002:{name}" for name in ("int", "float", "merge"))


class _CheckedLoader(yaml.SafeLoader):
    """Loader that rejects yaml features which hide mistakes in a configuration.

    Rejected are duplicate keys (yaml silently keeps the last), keys that are lists or mappings, merged mappings (<<),
    numbers in base 8 or 60 (010 is 8, 1:30 is 90), and deep or recursive nesting, which could exhaust memory or time.
    """

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._open: list[str | None] = []  # anchors of the nodes that enclose the current one

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event = self.peek_event()
        line = event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent) and event.anchor in self._open:
            raise ConfigError(f"line {line}: *{event.anchor} refers to a node that contains it")
        if len(self._open) == NESTING:
            raise ConfigError(f"line {line}: more than {NESTING} nested lists or mappings")
        self._open.append(getattr(event, "anchor", None))
        try:
            return super().compose_node(parent, index)
        finally:
            self._open.pop()

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys: set[Any] = set()
        for key_node, _ in node.value:
            line = key_node.start_mark.line + 1
            if key_node.tag == _MERGE:
                raise ConfigError(f"line {line}: << is not supported: write the keys themselves")
            if not isinstance(key_node, yaml.ScalarNode):
                raise ConfigError(f"line {line}: a list or mapping stands where a key is expected")
            key = self.construct_object(key_node, deep=True)
            if key in keys:
                raise ConfigError(f"line {line}: the key {str(key)[:200]} is given twice")
            keys.add(key)
        return super().construct_mapping(node, deep)

    def construct_number(self, node: yaml.ScalarNode) -> int | float:
        text = self.construct_scalar(node)
        if ":" in text or re.fullmatch("[-+]?0[0-9_]+", text):
            raise ConfigError(
                f"line {node.start_mark.line + 1}: {shorten(text)} would be read in base 8 or 60: write a number "
                "without colons and leading 0, or a text in quotes"
            )
        as_number = self.construct_yaml_int if node.tag == _INT else self.construct_yaml_float
        return as_number(node)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ValueError, OverflowError, LookupError, AttributeError) as error:  # `!!int x`, the 31st of February
            if isinstance(error, ConfigError):
                raise
            value = shorten(getattr(node, "value", ""))
            raise ConfigError(
                f"line {node.start_mark.line + 1}: {value} is not a valid {node.tag.rpartition(':')[2]}"
            ) from None


for _tag in (_INT, _FLOAT):
    _CheckedLoader.add_constructor(_tag, _CheckedLoader.construct_number)


def parse_yaml(text: str) -> Any:
    """Return the value of a yaml text; raise yaml.YAMLError if it is not yaml, ConfigError if it is rejected."""
    return yaml.load(text, _CheckedLoader)


def read_yaml(path: str | Path) -> dict[str, Any]:
    """Return the mapping in a yaml file; raise ConfigError if it is missing, not yaml, not a mapping, or rejected."""
    raw = read_file(Path(path), ConfigError)
    if len(raw) > MOST_BYTES:
        raise ConfigError(
            f"{path} has {len(raw):,} bytes, a configuration has at most {MOST_BYTES:,}: is it another file?"
        )
    try:
        content = parse_yaml(raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ConfigError(f"the configuration {path} is not UTF-8 text: byte {error.start}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"the configuration {path} is not yaml: {' '.join(str(error).split())[:300]}") from error
    except ConfigError as error:
        raise ConfigError(f"{path}, {error}") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError(f"the configuration {path} holds {type(content).__name__}, a mapping of keys is needed")
    return content
