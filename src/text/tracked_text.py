"""Text operations that remember which original character each character comes from, for token offsets."""

import itertools
import re
import unicodedata
from collections.abc import Callable, Iterable
from dataclasses import dataclass

Offset = tuple[int, int]  # first character and the one after the last


class CharacterTable(dict[int, str]):
    """A table for str.translate that works out the entry of a character when it first meets it."""

    def __init__(self, rule: Callable[[str], str]) -> None:
        super().__init__()
        self._rule = rule

    def __missing__(self, code: int) -> str:
        self[code] = self._rule(chr(code))
        return self[code]


@dataclass(frozen=True)
class TrackedText:
    """A text, and for each of its characters the position in the original; methods as str's of the same names."""

    text: str
    origins: list[int]

    @classmethod
    def of(cls, text: str) -> "TrackedText":
        return cls(text, list(range(len(text))))

    def translate(self, table: CharacterTable) -> "TrackedText":
        text = self.text.translate(table)
        return TrackedText(text, self._repeat(len(table[ord(character)]) for character in self.text))

    def lower(self) -> "TrackedText":
        # Only the form of a final sigma depends on its neighbours, never the number of characters.
        return TrackedText(self.text.lower(), self._repeat(len(character.lower()) for character in self.text))

    def decompose(self) -> "TrackedText":
        """NFD: each character by itself, then runs of combining marks in the order of their classes."""
        parts = [
            (part, origin)
            for character, origin in zip(self.text, self.origins, strict=True)
            for part in unicodedata.normalize("NFD", character)
        ]
        ordered: list[tuple[str, int]] = []
        for is_mark, run in itertools.groupby(parts, key=lambda part: unicodedata.combining(part[0]) > 0):
            marks = list(run)
            ordered += sorted(marks, key=lambda part: unicodedata.combining(part[0])) if is_mark else marks
        return TrackedText("".join(part for part, _ in ordered), [origin for _, origin in ordered])

    def split(self) -> list["TrackedText"]:
        return [
            TrackedText(word.group(), self.origins[word.start() : word.end()])
            for word in re.finditer(r"\S+", self.text)
        ]

    def collapse_spaces(self) -> "TrackedText":
        """As " ".join(text.split()); the single spaces come from the characters before the words."""
        words = self.split()
        origins: list[int] = []
        for word in words:
            origins += [word.origins[0] - 1] * bool(origins) + word.origins
        return TrackedText(" ".join(word.text for word in words), origins)

    def original_span(self, start: int, end: int) -> Offset:
        """Where text[start:end] comes from, white space at its ends left out; empty if nothing else is there."""
        while start < end and self.text[start].isspace():
            start += 1
        while start < end and self.text[end - 1].isspace():
            end -= 1
        if start < end:
            return min(self.origins[start:end]), max(self.origins[start:end]) + 1
        position = self.origins[start] if start < len(self.origins) else (self.origins[-1] + 1 if self.origins else 0)
        return position, position

    def _repeat(self, counts: Iterable[int]) -> list[int]:
        return [origin for origin, count in zip(self.origins, counts, strict=True) for _ in range(count)]
