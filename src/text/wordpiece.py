"""WordPiece as in google's BERT: clean, split at white space, punctuation and Chinese characters, then longest match.

Written in Python because no library agrees with google's code on all of Unicode: `tokenizers` differs, for instance,
in private-use characters, final sigma and the version of the Unicode tables. str.translate does in one pass what
google's code does character by character, and words are looked up in a cache, so it is no slower than that library.
"""

import re
import unicodedata
from collections.abc import Sequence

from src.text.tracked_text import CharacterTable, Offset, TrackedText

UNKNOWN = "[UNK]"
LONGEST_WORD = 200  # characters; a longer word is unknown
CACHE_SIZE = 1 << 17
CACHED_WORD = 40  # characters
_CJK = re.compile(  # google's ranges
    "[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002a6df\U0002a700-\U0002ceaf\U0002f800-\U0002fa1f]"
)


def _clean(character: str) -> str:
    """Drop control characters, turn white space into a space, and put spaces around Chinese characters."""
    if character in "\t\n\r" or unicodedata.category(character) == "Zs":
        return " "
    if character in "\0\ufffd" or unicodedata.category(character) in ("Cc", "Cf"):
        return ""
    if _CJK.match(character):
        return f" {character} "
    return character


def _split_punctuation(character: str) -> str:
    """Put spaces around punctuation, which includes all ASCII signs ("$", "^")."""
    is_ascii_sign = character.isascii() and character.isprintable() and not character.isalnum() and character != " "
    return f" {character} " if is_ascii_sign or unicodedata.category(character)[0] == "P" else character


def _split_punctuation_without_marks(character: str) -> str:
    return "" if unicodedata.category(character) == "Mn" else _split_punctuation(character)


_CLEANED = CharacterTable(_clean)
_SPLIT = CharacterTable(_split_punctuation)
_SPLIT_WITHOUT_MARKS = CharacterTable(_split_punctuation_without_marks)


def is_ideograph(text: str) -> bool:
    """Return True for a single Chinese character, which is a word of its own."""
    return bool(_CJK.fullmatch(text))


def split_words(text: str, do_lower_case: bool) -> list[str]:
    """Return the words of a raw text, before they are divided into pieces."""
    return [part for word in text.translate(_CLEANED).split() for part in _normalize(word, do_lower_case).split()]


def _normalize(word: str, do_lower_case: bool) -> str:
    """Put spaces around punctuation; with do_lower_case also lower-case the word and remove accents."""
    if not do_lower_case:
        return word.translate(_SPLIT)
    return unicodedata.normalize("NFD", word.lower()).translate(_SPLIT_WITHOUT_MARKS)


class WordPiece:
    """A WordPiece vocabulary and its tokenizer, equal to FullTokenizer of google's BERT and ALBERT on any text."""

    def __init__(self, tokens: Sequence[str], do_lower_case: bool) -> None:
        self.tokens = list(tokens)
        self.vocab = {token: index for index, token in enumerate(self.tokens)}
        self.do_lower_case = do_lower_case
        self._longest = max(map(len, self.tokens))
        self._cache: dict[str, list[str]] = {}

    @property
    def inside_words(self) -> "WordPiece":
        """The backend for text behind an added token: the same, because a word begins there, too."""
        return self

    def preprocess(self, text: str) -> str:
        return text

    def tokenize(self, text: str) -> list[str]:
        pieces: list[str] = []
        for word in text.translate(_CLEANED).split():
            cached = self._cache.get(word)
            pieces += self._tokenize_word(word) if cached is None else cached
        return pieces

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return [[self.vocab[token] for token in self.tokenize(text)] for text in texts]

    def tokenize_with_offsets(self, text: str) -> tuple[list[str], list[Offset]]:
        """Return the pieces of a text and the characters that they come from, removed accents included."""
        tokens: list[str] = []
        offsets: list[Offset] = []
        for word in TrackedText.of(text).translate(_CLEANED).split():
            if self.do_lower_case:
                parts = word.lower().decompose().translate(_SPLIT_WITHOUT_MARKS).split()
            else:
                parts = word.translate(_SPLIT).split()
            for part in parts:
                for token, start, end in self._match(part.text):
                    first, last = part.original_span(start, end)
                    while self.do_lower_case and last < len(text) and unicodedata.category(text[last]) == "Mn":
                        last += 1
                    tokens.append(token)
                    offsets.append((first, last))
        return tokens, offsets

    def is_word_start(self, token: str) -> bool:
        return not token.startswith("##")

    def characters(self, token: str) -> int:
        """Return the number of characters of text that a token stands for (see FullTokenizer.characters)."""
        if token == UNKNOWN:
            return 1
        if not self.is_word_start(token):
            return len(token) - len("##")
        stands_alone = token.translate(_CLEANED).translate(_SPLIT) != token
        return len(token) + (not stands_alone)

    def _tokenize_word(self, word: str) -> list[str]:
        pieces = [token for part in _normalize(word, self.do_lower_case).split() for token, _, _ in self._match(part)]
        if len(word) <= CACHED_WORD:
            if len(self._cache) >= CACHE_SIZE:
                self._cache.clear()
            self._cache[word] = pieces
        return pieces

    def _match(self, part: str) -> list[tuple[str, int, int]]:
        """Return the longest entries from left to right with start and end; UNKNOWN if they do not cover `part`."""
        pieces: list[tuple[str, int, int]] = []
        start = 0
        while start < len(part) <= LONGEST_WORD:
            for end in range(min(len(part), start + self._longest), start, -1):
                piece = part[start:end] if start == 0 else "##" + part[start:end]
                if piece in self.vocab:
                    pieces.append((piece, start, end))
                    start = end
                    break
            else:
                break
        return pieces if pieces and start == len(part) else [(UNKNOWN, 0, len(part))]
