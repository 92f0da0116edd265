"""Values of cells as texts, and errors of damaged files, alike for workbooks, JSON and Arrow."""

import contextlib
from collections.abc import Iterator, Sequence
from datetime import datetime, time
from pathlib import Path
from typing import Any

from model_utils.errors import DataError, shorten, shorten_text

Row = list[str] | list[str | None]  # None: the value is not text, a number or a boolean
NumberedRows = Iterator[tuple[int, Row]]
LONGEST_NUMBER = 9  # digits of a column's number; int() refuses more than 4,300


@contextlib.contextmanager
def reading_errors(path: Path, form: str) -> Iterator[None]:
    """Turn any error that a damaged file causes in the library that reads it into a DataError."""
    try:
        yield
    except DataError:
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.strerror:
            raise DataError(f"{path} cannot be read: {error.strerror}") from error
        reason = shorten_text(" ".join(str(error).split()), 200)
        raise DataError(f"{path} is damaged, locked or not {form} ({reason}); save or copy it again") from error


def text_of(value: Any) -> str | None:
    """Return a value as text: whole numbers without a decimal point, null as "", a container as None."""
    if value is None or isinstance(value, str):
        return value or ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return None if isinstance(value, list | dict) else str(value)


def without_midnight(value: Any) -> Any:
    """Return the date of a datetime at midnight, and any other value unchanged."""
    return value.date() if isinstance(value, datetime) and value.time() == time.min else value


def joined_texts(items: Sequence[Any], separator: str, place: str) -> str | None:
    """Return the items as one text, or None if one is neither text nor a number.

    Raises:
        DataError: an item holds the separator, unless that is blank.
    """
    texts = [text_of(item) for item in items]
    if None in texts:
        return None
    plain = [text for text in texts if text is not None]
    for text in plain:
        if separator.strip() and separator in text:
            raise DataError(f"{place} has {shorten(text)} in a list, which holds the separator {separator}")
    return separator.join(plain)


def index_of(names: Sequence[str], column: str) -> int:
    """Return the index of a column, given by name or by number from 1; -1 if there is none."""
    if column in names:
        return names.index(column)
    is_number = column.isdecimal() and len(column) <= LONGEST_NUMBER and 1 <= int(column) <= len(names)
    return int(column) - 1 if is_number else -1
