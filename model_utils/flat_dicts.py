"""Comparison of settings and manifests between runs or ranks: flatten nested dicts, find the first difference."""

from collections.abc import Mapping
from typing import Any

ABSENT = "(absent)"


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return a flat dict whose nested keys are joined with dots, as on the command line; tuples become lists."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = list(value) if isinstance(value, tuple) else value
    return flat


def first_difference(left: Mapping[str, Any], right: Mapping[str, Any]) -> tuple[str, Any, Any] | None:
    """Return (key, left value, right value) of the first key that differs, or None; a missing value is ABSENT.

    Keys are compared in the order of `left`, then those of `right` alone.
    """
    for key in [*left, *(key for key in right if key not in left)]:
        left_value = left.get(key, ABSENT)
        right_value = right.get(key, ABSENT)
        if left_value != right_value:
            return key, left_value, right_value
    return None
