"""Splitting of raw text into words, for training on texts with entities and for prediction."""

import re
import statistics
import unicodedata
from collections.abc import Iterable, Sequence
from functools import cache

LONG_WORDS, LONG_IDEOGRAPHS = 15, 2  # characters and ideographs; if half of the words have more, they are texts
_IDEOGRAPH = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_CHARACTER = re.compile(r"\S")
_IDEOGRAPHS = re.compile(f"[{_IDEOGRAPH}]")


@cache
def _letter() -> str:
    """Return the pattern of a character of a word: letters, digits, and marks such as the vowel signs of Hindi."""
    marks = "".join(mark for mark in map(chr, range(0x300, 0x20000)) if unicodedata.category(mark).startswith("M"))
    return rf"(?:(?![{_IDEOGRAPH}])[\w{marks}])"


@cache
def _word() -> re.Pattern[str]:
    """Return a pattern: an ideograph; letters with points, commas and hyphens inside; 's and the like; any other."""
    letter = _letter()
    return re.compile(rf"[{_IDEOGRAPH}]|{letter}+(?:[-.,]{letter}+)*|['’]{letter}+|[^\w\s]")


def split_words(text: str, into_characters: bool = False) -> list[tuple[int, int]]:
    """Return the start and end of every word: English mostly as in CoNLL-2003, Chinese ideograph by ideograph.

    Args:
        into_characters: split into all characters but spaces, for models whose training text was split so.
    """
    pattern = _CHARACTER if into_characters else _word()
    return [match.span() for match in pattern.finditer(text)]


def splits_characters(words: Iterable[str]) -> bool:
    """Return True if a text was split into characters: all ideographs, and most letters and digits."""
    letters = re.compile(rf"{_letter()}+")
    letter_words = long_letter_words = 0
    other_words = long_other_words = 0
    for word in words:
        if letters.fullmatch(word):
            letter_words += 1
            long_letter_words += len(word) > 1
        else:
            other_words += 1
            long_other_words += len(word) > 1
    return 10 * long_letter_words <= letter_words and 100 * long_other_words <= other_words


def are_texts(words: Sequence[str]) -> bool:
    """Return True if half of the words are longer than words usually are."""
    ideographs = [len(_IDEOGRAPHS.findall(word)) for word in words]
    return statistics.median(map(len, words)) > LONG_WORDS or statistics.median(ideographs) > LONG_IDEOGRAPHS
