"""Added tokens, which are searched for before a text is cut into pieces, as in Hugging Face's tokenizers.

FILE.added_tokens.json beside the vocabulary FILE holds them. The `tokenizers` library finds them in a text, so their
flags have that library's meaning: lstrip and rstrip (white space at that side belongs to the token), single_word (no
letters beside it), normalized (it is searched for in the text that the normalizer returns).
"""

import json
import os
import re
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import Field
from tokenizers import AddedToken, Tokenizer, models

from model_utils.errors import DataError, shorten
from model_utils.json_files import Schema, read_json

SUFFIX = ".added_tokens.json"
# Half of a surrogate pair is no text, and the libraries reject it.
LONE_SURROGATE = re.compile("[\ud800-\udfff]")
NO_TOKEN = "\0"  # the library's token for text between added tokens


class AddedTokenSchema(Schema):
    """Added token: its id, and how the library searches for it."""

    id: int = Field(ge=0)
    content: str = Field(min_length=1, max_length=1000)
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool = False
    special: bool = False


class AddedTokensSchema(Schema):
    """Content of FILE.added_tokens.json.

    Attributes:
        begins_words: text directly behind a token begins a word (SentencePiece's "▁"), as in transformers'
            AlbertTokenizer.
        normalizer: that of tokenizer.json; None if no token is normalized.
    """

    begins_words: bool = True
    normalizer: dict[str, Any] | None = None
    tokens: list[AddedTokenSchema] = Field(min_length=1)


class Segment(NamedTuple):
    """text[start:end]: an added token, or None for text between added tokens."""

    start: int
    end: int
    token: AddedTokenSchema | None


class AddedTokens:
    """Added tokens of a vocabulary, and the search for them in texts.

    Attributes:
        tokens, begins_words: as in AddedTokensSchema, by ascending id.
        content: content of the file beside the vocabulary.

    Raises:
        DataError: an id or a token occurs twice, or the library does not know the normalizer.
    """

    def __init__(self, described: AddedTokensSchema, origin: object) -> None:
        self.tokens = sorted(described.tokens, key=lambda token: token.id)
        self.begins_words = described.begins_words
        for key in ("id", "content"):
            if len({getattr(token, key) for token in self.tokens}) < len(self.tokens):
                raise DataError(f"{origin}: two added tokens have the same {key}")
        described = described.model_copy(update={"tokens": self.tokens})
        self.content = (json.dumps(described.model_dump(), ensure_ascii=False, indent=1) + "\n").encode()
        self._searcher = _searcher(described, origin)

    def split(self, text: str) -> list[Segment]:
        """Return the text's segments in their order; together they cover it."""
        encoding = self._searcher.encode(LONE_SURROGATE.sub("\ufffd", text), add_special_tokens=False)
        segments = []
        end = 0
        for index, (first, last) in zip(encoding.ids, encoding.offsets, strict=True):
            if index == 0:
                continue
            if first > end:
                segments.append(Segment(end, first, None))
            segments.append(Segment(first, last, self.tokens[index - 1]))
            end = last
        if end < len(text):
            segments.append(Segment(end, len(text), None))
        return segments


def added_tokens_file(vocabulary: Path) -> Path:
    """Return the path of the file with the tokens that were added to a vocabulary."""
    return vocabulary.with_name(vocabulary.name + SUFFIX)


def read_added_tokens(vocabulary: Path) -> AddedTokens | None:
    """Return the tokens beside a vocabulary, None if there are none; raise DataError if their file is damaged."""
    file = added_tokens_file(vocabulary)
    return AddedTokens(read_json(file, AddedTokensSchema), file) if os.path.lexists(file) else None


def library_token(token: AddedTokenSchema) -> AddedToken:
    """Return the library's object for a token."""
    flags = token.model_dump(include={"single_word", "lstrip", "rstrip", "normalized", "special"})
    return AddedToken(token.content, **flags)


def _searcher(described: AddedTokensSchema, origin: object) -> Tokenizer:
    """Return a tokenizer that gives added token i the id i + 1, and any other text the id 0."""
    searcher = Tokenizer(models.WordLevel({NO_TOKEN: 0}, unk_token=NO_TOKEN))
    if described.normalizer is not None:
        content = json.loads(searcher.to_str()) | {"normalizer": described.normalizer}
        try:
            searcher = Tokenizer.from_str(json.dumps(content))
        except Exception as error:  # the library raises no narrower one
            raise DataError(f"{origin}: the normalizer is unknown or damaged: {shorten(str(error))}") from None
    searcher.add_tokens([library_token(token) for token in described.tokens])
    for index, token in enumerate(described.tokens):
        if searcher.token_to_id(token.content) != index + 1:
            raise DataError(f"{origin}: {shorten(token.content)} cannot be an added token")
    return searcher
