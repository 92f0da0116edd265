"""Answers compared."""

from typing import Any

import pytest


def assert_close(one: Any, other: Any) -> None:
    """Equal texts, nearly equal numbers."""
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_close(one[key], other[key])
    elif isinstance(one, list):
        assert len(one) == len(other)
        for pair in zip(one, other, strict=True):
            assert_close(*pair)
    else:
        assert one == pytest.approx(other, abs=1e-5) if isinstance(one, float) else one == other
