"""Errors caused by the user's input or machine: one sentence that names the value found and the values allowed.

The entry scripts print them without a traceback and exit with code 2 (model_utils.config.run_main).
"""

import itertools
import reprlib
from collections.abc import Iterable, Sequence
from typing import Any, Self

LONGEST = 2000  # characters in an error sentence


class UserError(Exception):
    """Base of errors that the user can fix."""

    def __str__(self) -> str:
        return bounded(super().__str__())


def bounded(sentence: str) -> str:
    """Return the sentence, shortened in the middle if it is longer than LONGEST, as one that quotes a path may be."""
    if len(sentence) <= LONGEST:
        return sentence
    return f"{sentence[: LONGEST // 2]} ... {sentence[-LONGEST // 2 :]}"


class ConfigError(UserError, ValueError):
    """Configuration key that is missing or unknown, or whose value is not allowed or contradicts another.

    The sentence follows from what is given, and ends in "; HINT" if there is a hint:

        expected          KEY is VALUE, allowed is EXPECTED
        problem           KEY is VALUE, but PROBLEM
        an empty value    KEY is missing
        no value          KEY is not a key

    Args:
        text: the whole sentence, where no form fits, as for a file or several keys; "": it is made of the others.
        key: the key to change, without "--" and with dots for sections, or a phrase for what it names.
        value: the value found.
        expected: the values that are allowed.
        problem: a clause that says why the value cannot be used, such as "the model's task is regression".
        hint: what to do, such as "set it above 0".
    """

    def __init__(
        self, text: str = "", *, key: str = "", value: Any = None, expected: str = "", problem: str = "", hint: str = ""
    ) -> None:
        if not text:
            text = f"{key} is not a key" if value is None else f"{key} is missing"
            if expected or problem:
                found = str(value).lower() if isinstance(value, bool) else shorten(value)
                text = f"{key} is {found}, " + (f"allowed is {expected}" if expected else f"but {problem}")
            text += f"; {hint}" if hint else ""
        super().__init__(text)
        self.key = key
        self.value = value
        self.expected = expected
        self.problem = problem
        self.hint = hint

    def within(self, section: str) -> Self:
        """Return the error with its key below a section."""
        if not self.key:
            return self.at(f"in {section}")
        return type(self)(
            key=f"{section}.{self.key}",
            value=self.value,
            expected=self.expected,
            problem=self.problem,
            hint=self.hint,
        )

    def at(self, place: str) -> Self:
        """Return the error with the file, or another place, in front of its sentence."""
        self.args = (f"{place}: {self.args[0]}",)
        return self


class DataError(UserError, ValueError):
    """Text, vocabulary or feature file that is missing, damaged or incompatible."""


class CheckpointError(UserError, ValueError):
    """Checkpoint or run folder that is missing, damaged or incompatible."""


class DivergedError(UserError):
    """Training whose loss or outputs are not finite."""


class DeviceError(UserError, RuntimeError):
    """Requested device that is absent or does not work."""


def key_path(steps: Sequence[str | int]) -> str:
    """Return a[0].b for ("a", 0, "b"), as pydantic's errors have it."""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps).removeprefix(".")


LONGEST_ITEM = 200  # characters
_SHORT = reprlib.Repr()
_SHORT.maxlevel = 2
_SHORT.maxstring = LONGEST_ITEM  # most paths
_SHORT.maxother = 80


def first_few(items: Iterable[str], limit: int = 3) -> str:
    """Return at most `limit` items, long ones cut, joined with commas and followed by "..." if there are more."""
    first = [shorten_text(item, LONGEST_ITEM) for item in itertools.islice(items, limit + 1)]
    return ", ".join([*first[:limit], "..."] if len(first) > limit else first)


def shorten_text(text: str, length: int = 80) -> str:
    """Return the text, cut to `length` characters that end in "..." if it is longer."""
    return text if len(text) <= length else f"{text[: length - 3]}..."


def first_line(error: Exception) -> str:
    """Return the first line of an exception's text, or its class where it has none."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def shorten(value: Any) -> str:
    """Return the repr of a value, shortened for error messages: a wrong value can be of any size and depth."""
    return _SHORT.repr(list(value) if isinstance(value, tuple) else value)
