"""Tokens that were added to a Hugging Face tokenizer."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import Field
from sentencepiece.sentencepiece_model_pb2 import ModelProto  # type: ignore[attr-defined]  # made at import
from tokenizers import normalizers

from model_utils.errors import DataError, shorten
from model_utils.json_files import Schema, parse_json, read_json, read_object, validated
from src.text.added_tokens import AddedTokens, AddedTokenSchema, AddedTokensSchema
from src.text.sentence_piece import SENTENCEPIECE_SPECIALS
from src.tokenization import WORDPIECE_SPECIALS, FullTokenizer

TOKENIZER_CONFIG, TOKENIZER, IDS = "tokenizer_config.json", "tokenizer.json", "added_tokens.json"
SPECIALS_MAP = "special_tokens_map.json"
LISTS = ("additional_special_tokens", "extra_special_tokens")  # of transformers 4 and 5


class TokenizerSchema(Schema):
    """Parts of tokenizer.json that decide where added tokens are found."""

    added_tokens: list[dict[str, Any]] = Field(default_factory=list)
    normalizer: dict[str, Any] | None = None
    pre_tokenizer: dict[str, Any] | None = None


def find_added_tokens(
    folder: Path, tokenizer: FullTokenizer, decoder: Mapping[str, dict[str, Any]], is_general: bool
) -> AddedTokens | None:
    """Return the added tokens of a folder, None if there are none.

    The five special tokens are left out, because their names in a text are plain text here; so are user-defined
    symbols, which the SentencePiece model finds.

    Args:
        tokenizer: tokenizer of the folder's vocabulary, without added tokens.
        decoder: added_tokens_decoder of tokenizer_config.json, the tokens by id.
        is_general: True if transformers uses tokenizer.json as it is and does not rebuild the tokenizer.

    Raises:
        DataError: a file is damaged, or files contradict each other.
    """
    file = folder / TOKENIZER
    described = read_json(file, TokenizerSchema) if file.is_file() else TokenizerSchema()
    token_by_text: dict[str, AddedTokenSchema] = {}
    for origin, description in _descriptions(folder, decoder, described.added_tokens):
        token = validated(description, AddedTokenSchema, str(origin))
        first = token_by_text.setdefault(token.content, token)
        if token.id != first.id:
            raise DataError(f"{origin}: {shorten(token.content)} has the id {token.id}, another file {first.id}")
    specials = SENTENCEPIECE_SPECIALS if tokenizer.is_sentencepiece else WORDPIECE_SPECIALS
    for origin, text in _special_texts(folder):
        if text not in token_by_text and text not in specials.values():
            raise DataError(
                f"{origin}: the special token {shorten(text)} has no id in {TOKENIZER_CONFIG}, {TOKENIZER} or {IDS}: "
                "save the tokenizer with a newer version of transformers"
            )
    user_defined = _user_defined(tokenizer)
    tokens = [
        token
        for text, token in token_by_text.items()
        if text not in specials.values() and (token.special or text not in user_defined)
    ]
    if not tokens:
        return None
    normalized_texts = [token.content for token in tokens if token.normalized]
    begins_words = not is_general or _begins_words(described.pre_tokenizer or {})
    if normalized_texts and not begins_words and tokenizer.is_sentencepiece:
        raise DataError(
            f"{file}: the added token {shorten(normalized_texts[0])} is normalized, and Metaspace's prepend_scheme is "
            "not always, so that spaces before it are pieces: add it with normalized=False"
        )
    normalizer = None
    if normalized_texts:
        normalizer = described.normalizer if is_general else _rebuilt_normalizer(tokenizer)
    return AddedTokens(AddedTokensSchema(begins_words=begins_words, normalizer=normalizer, tokens=tokens), folder)


def _descriptions(
    folder: Path, decoder: Mapping[str, dict[str, Any]], added: list[dict[str, Any]]
) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield file and description of every token in the files; the first one of a token decides its flags."""
    for index, token in decoder.items():
        yield folder / TOKENIZER_CONFIG, {"normalized": not token.get("special"), **token, "id": int(index)}
    for token in added:
        yield folder / TOKENIZER, token
    if (folder / IDS).is_file():
        for text, index in read_object(folder / IDS).items():
            yield folder / IDS, {"content": text, "id": index, "normalized": True}


def _special_texts(folder: Path) -> Iterator[tuple[Path, str]]:
    """Yield file and text of every additional special token that the files list."""
    for file in (folder / TOKENIZER_CONFIG, folder / SPECIALS_MAP):
        content = read_object(file) if file.is_file() else {}
        for key in LISTS:
            listed = content.get(key) or []
            tokens = list(listed.values()) if isinstance(listed, dict) else listed
            for token in tokens if isinstance(tokens, list) else [tokens]:
                yield file, str(token.get("content") if isinstance(token, dict) else token)


def _user_defined(tokenizer: FullTokenizer) -> set[str]:
    """Return the symbols that a SentencePiece model keeps whole in preprocessed text."""
    if not tokenizer.is_sentencepiece:
        return set()
    pieces = ModelProto.FromString(tokenizer.content).pieces
    symbols = {piece.piece for piece in pieces if piece.type == piece.USER_DEFINED}
    return {symbol for symbol in symbols if tokenizer.preprocess(symbol) == symbol}


def _begins_words(pre_tokenizer: dict[str, Any]) -> bool:
    """Return True if a tokenizer.json begins a word behind every added token, by the scheme of its Metaspace."""
    steps = pre_tokenizer.get("pretokenizers", [pre_tokenizer])
    schemes = [step.get("prepend_scheme", "always") for step in steps if step.get("type") == "Metaspace"]
    return all(scheme == "always" for scheme in schemes)


def _rebuilt_normalizer(tokenizer: FullTokenizer) -> dict[str, Any]:
    """Return the normalizer, in the form of tokenizer.json, that transformers gives a tokenizer which it rebuilds."""
    if not tokenizer.is_sentencepiece:
        return parse_json(normalizers.BertNormalizer(lowercase=tokenizer.do_lower_case).__getstate__())
    steps: list[Any] = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
    steps += [normalizers.NFKD(), normalizers.StripAccents()]
    if tokenizer.do_lower_case:
        steps.append(normalizers.Lowercase())
    if characters := ModelProto.FromString(tokenizer.content).normalizer_spec.precompiled_charsmap:
        steps.append(normalizers.Precompiled(characters))
    return parse_json(normalizers.Sequence(steps).__getstate__())
