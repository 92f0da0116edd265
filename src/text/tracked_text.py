"""Text operations that track the original position of each character, for token offsets."""

import itertools
import re
import unicodedata
from collections.abc import Callable, Iterable
from dataclasses import dataclass

Offset = tuple[int, int]  # first character, end (exclusive)


class CharacterTable(dict[int, str]):
    """Table for str.translate that computes the entry of a character at its first use."""

    def __init__(self, rule: Callable[[str], str]) -> None:
        super().__init__()
        self._rule = rule

    def __missing__(self, code: int) -> str:
        self[code] = self._rule(chr(code))
        return self[code]


def trimmed_span(text: str, start: int, end: int) -> Offset:
    """Return the span of text[start:end] without outer white space."""
    first, last = TrackedText.of(text[start:end]).original_span(0, end - start)
    return start + first, start + last


@dataclass(frozen=True)
class TrackedText:
    """Text with the original position of each character; its methods work like those of str."""

    text: str
    origins: list[int]

    @classmethod
    def of(cls, text: str) -> "TrackedText":
        return cls(text, list(range(len(text))))

    def translate(self, table: CharacterTable) -> "TrackedText":
        text = self.text.translate(table)
        return TrackedText(text, self._repeat(len(table[ord(character)]) for character in self.text))

    def lower(self) -> "TrackedText":
        # Only the form of a final sigma depends on its neighbours, and never changes the number of characters.
        return TrackedText(self.text.lower(), self._repeat(len(character.lower()) for character in self.text))

    def decompose(self) -> "TrackedText":
        """Return the text in NFD: decompose each character, then sort runs of combining marks by class."""
        decomposed = [
            (character, origin)
            for composed, origin in zip(self.text, self.origins, strict=True)
            for character in unicodedata.normalize("NFD", composed)
        ]
        ordered: list[tuple[str, int]] = []
        for is_mark, run in itertools.groupby(decomposed, key=lambda pair: unicodedata.combining(pair[0]) > 0):
            pairs = list(run)
            if is_mark:
                pairs.sort(key=lambda pair: unicodedata.combining(pair[0]))
            ordered += pairs
        return TrackedText("".join(character for character, _ in ordered), [origin for _, origin in ordered])

    def split(self) -> list["TrackedText"]:
        return [
            TrackedText(word.group(), self.origins[word.start() : word.end()])
            for word in re.finditer(r"\S+", self.text)
        ]

    def collapse_spaces(self) -> "TrackedText":
        """Return " ".join(text.split()); a space originates from the character before its word."""
        words = self.split()
        origins: list[int] = []
        for word in words:
            if origins:
                origins.append(word.origins[0] - 1)
            origins += word.origins
        return TrackedText(" ".join(word.text for word in words), origins)

    def original_span(self, start: int, end: int) -> Offset:
        """Return the original span of text[start:end] without outer white space; an empty span if nothing is left."""
        while start < end and self.text[start].isspace():
            start += 1
        while start < end and self.text[end - 1].isspace():
            end -= 1
        if start < end:
            return min(self.origins[start:end]), max(self.origins[start:end]) + 1
        if not self.origins:
            return 0, 0
        position = self.origins[start] if start < len(self.origins) else self.origins[-1] + 1
        return position, position

    def _repeat(self, counts: Iterable[int]) -> list[int]:
        return [origin for origin, count in zip(self.origins, counts, strict=True) for _ in range(count)]
