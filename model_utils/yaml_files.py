"""The one reader of yaml files: a mapping, or a sentence that says why it is none."""

import re
from pathlib import Path
from typing import Any

import yaml

from model_utils.errors import ConfigError, shorten
from model_utils.json_files import NESTING, read_file

_INT, _FLOAT, _MERGE = (f"tag:yaml.org,2002:{name}" for name in ("int", "float", "merge"))


class _CheckedLoader(yaml.SafeLoader):
    """Refuses what yaml allows and no configuration needs: a key given twice, of which it would silently keep the last,
    keys that are no text or number, merged mappings, numbers that are others than they look (010 is 8, 1:30 is 90), and
    nesting so deep, or endless, that reading it takes all memory or time.
    """

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._open: list[str | None] = []  # anchors of the nodes around the present one

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event = self.peek_event()
        line = event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent) and event.anchor in self._open:
            raise ConfigError(f"line {line}: *{event.anchor} stands inside of what it names")
        if len(self._open) == NESTING:
            raise ConfigError(f"line {line}: more than {NESTING} lists or mappings inside each other")
        self._open.append(getattr(event, "anchor", None))
        try:
            return super().compose_node(parent, index)
        finally:
            self._open.pop()

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            line = key_node.start_mark.line + 1
            if key_node.tag == _MERGE:
                raise ConfigError(f"line {line}: << is not read here: write the keys themselves")
            if not isinstance(key_node, yaml.ScalarNode):
                raise ConfigError(f"line {line}: a list or mapping stands where a key is expected")
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                raise ConfigError(f"line {line}: the key {str(key)[:200]} is given twice")
            seen.add(key)
        return super().construct_mapping(node, deep)

    def construct_number(self, node: yaml.ScalarNode) -> int | float:
        text = self.construct_scalar(node)
        if ":" in text or re.fullmatch("[-+]?0[0-9_]+", text):
            raise ConfigError(
                f"line {node.start_mark.line + 1}: {shorten(text)} would be read in base 8 or 60: write a number "
                "without colons and without a 0 in front, a text in quotes"
            )
        as_number = self.construct_yaml_int if node.tag == _INT else self.construct_yaml_float
        return as_number(node)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ValueError, OverflowError, LookupError, AttributeError) as error:  # `!!int`, the 31st of February
            if isinstance(error, ConfigError):
                raise
            value = shorten(getattr(node, "value", ""))
            raise ConfigError(f"line {node.start_mark.line + 1}: {value} is no {node.tag.rpartition(':')[2]}") from None


for _tag in (_INT, _FLOAT):
    _CheckedLoader.add_constructor(_tag, _CheckedLoader.construct_number)


def parse_yaml(text: str) -> Any:
    """What a yaml text says; yaml.YAMLError or ConfigError where it is none, or none that a configuration needs."""
    return yaml.load(text, _CheckedLoader)


def read_yaml(path: str | Path) -> dict[str, Any]:
    """The mapping in a yaml file; ConfigError if it is missing, no yaml, no mapping, or gives a key twice."""
    raw = read_file(Path(path), ConfigError)
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
