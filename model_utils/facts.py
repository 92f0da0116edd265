"""Facts by which runs and ranks know each other again: nested settings as flat ones, and where two sets differ."""

from collections.abc import Mapping
from typing import Any

ABSENT = "(absent)"


def flatten(facts: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested keys joined with dots, as on the command line; tuples become lists, as in yaml."""
    flat: dict[str, Any] = {}
    for key, value in facts.items():
        if isinstance(value, dict):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = list(value) if isinstance(value, tuple) else value
    return flat


def first_difference(left: Mapping[str, Any], right: Mapping[str, Any]) -> tuple[str, Any, Any] | None:
    """The first key, in the order of `left`, under which two sets of facts differ, and both values (or ABSENT)."""
    for key in [*left, *(key for key in right if key not in left)]:
        values = left.get(key, ABSENT), right.get(key, ABSENT)
        if values[0] != values[1]:
            return key, *values
    return None
