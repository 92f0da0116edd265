"""Errors whose cause is the user's input or machine: one sentence that names what was found and what is allowed.

The entry scripts print them without a traceback and exit with code 2 (model_utils.config.run_main).
"""

import reprlib
from collections.abc import Sequence
from typing import Any

LONGEST = 2000  # characters of an error sentence


class UserError(Exception):
    """The run cannot go on for a reason that the user can fix."""

    def __str__(self) -> str:
        return bounded(super().__str__())


def bounded(sentence: str) -> str:
    """Return a sentence without its middle where that quotes something very long, as a path of the user may be."""
    if len(sentence) <= LONGEST:
        return sentence
    return f"{sentence[: LONGEST // 2]} ... {sentence[-LONGEST // 2 :]}"


class ConfigError(UserError, ValueError):
    """A key of the configuration is unknown, or has a value of a wrong type, out of range or at odds with another."""


class DataError(UserError, ValueError):
    """A text, vocabulary or feature file is missing, damaged or made for something else."""


class CheckpointError(UserError, ValueError):
    """A checkpoint or a run's folder is missing, damaged or belongs to something else."""


class DeviceError(UserError, RuntimeError):
    """The device that was asked for is not there or does not work."""


_SHORT = reprlib.Repr()
_SHORT.maxlevel, _SHORT.maxstring, _SHORT.maxother = 2, 80, 80


def first_few(items: Sequence[str], most: int = 3) -> str:
    """The first items, as a sentence shows them where there may be many."""
    return ", ".join(items[:most]) + (", ..." if len(items) > most else "")


def shorten_text(text: str, length: int = 80) -> str:
    """Return the text, of a long one the beginning and "..."."""
    return text if len(text) <= length else f"{text[: length - 3]}..."


def shorten(value: Any) -> str:
    """A value as an error sentence shows it: a wrong one can be of any size and depth."""
    return _SHORT.repr(value)
