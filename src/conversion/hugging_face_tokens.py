"""Tokens that were added to a Hugging Face tokenizer, from all the files that may name them."""

import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import Field
from sentencepiece.sentencepiece_model_pb2 import ModelProto
from tokenizers import normalizers

from model_utils.errors import DataError, shorten
from model_utils.json_files import Schema, parse_json, read_object, validated
from src.text.added_tokens import AddedTokens, AddedTokensSchema
from src.tokenization import SENTENCEPIECE_SPECIALS, WORDPIECE_SPECIALS, FullTokenizer

TOKENIZER_CONFIG, TOKENIZER = "tokenizer_config.json", "tokenizer.json"
IDS, SPECIALS_MAP = "added_tokens.json", "special_tokens_map.json"
LISTS = ("additional_special_tokens", "extra_special_tokens")  # of transformers 4 and 5


class NamedTokenSchema(Schema):
    """A token as the files describe it; None where they do not say it."""

    id: int | None = Field(None, ge=0)
    content: str
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool | None = None
    special: bool = False


def find_added_tokens(folder: Path, tokenizer: FullTokenizer, is_general: bool) -> AddedTokens | None:
    """Return the tokens of a folder that are kept whole there and not by the vocabulary here, None for none.

    Special tokens that are named without an id get the next free ones, as transformers gives them. The five special
    tokens in a text are no tokens here, and user-defined symbols are found by the SentencePiece model itself.

    Args:
        tokenizer: of the folder's vocabulary alone.
        is_general: transformers takes tokenizer.json as it is, and does not make the tokenizer anew.

    Raises:
        DataError: a file is damaged, or files contradict each other.
    """
    files = {name: _read(folder / name) for name in (TOKENIZER_CONFIG, SPECIALS_MAP, IDS, TOKENIZER)}
    named: dict[str, NamedTokenSchema] = {}
    for origin, value in _mentions(files, folder):
        token = validated(value, NamedTokenSchema, str(origin))
        earlier = named.setdefault(token.content, token)
        if None not in (token.id, earlier.id) and token.id != earlier.id:
            raise DataError(f"{origin}: {shorten(token.content)} has the id {token.id}, another file {earlier.id}")
        named[token.content] = earlier.model_copy(
            update={
                "id": token.id if earlier.id is None else earlier.id,
                "special": earlier.special or (token.special and earlier.normalized is None),
            }
        )
    ours = SENTENCEPIECE_SPECIALS if tokenizer.is_sentencepiece else WORDPIECE_SPECIALS
    by_model = _user_defined(tokenizer)
    taken = {token.id for token in named.values()} | set(tokenizer.inv_vocab)
    free_ids = (index for index in itertools.count() if index not in taken)
    tokens = []
    for token in named.values():
        is_model_s = not token.special and token.content in by_model
        if token.content in ours.values() or is_model_s or not token.content:
            continue
        index = tokenizer.vocab.get(token.content) if token.id is None else token.id
        if index is None:
            index = next(free_ids)
        normalized = not token.special if token.normalized is None else token.normalized
        tokens.append(token.model_dump() | {"id": index, "normalized": normalized})
    if not tokens:
        return None
    any_normalized = any(token["normalized"] for token in tokens)
    begins_words = not is_general or _begins_words(files[TOKENIZER].get("pre_tokenizer"))
    if any_normalized and not begins_words and tokenizer.is_sentencepiece:
        names = [shorten(token["content"]) for token in tokens if token["normalized"]]
        raise DataError(
            f"{folder / TOKENIZER}: the added token {names[0]} is normalized, and Metaspace's prepend_scheme is not "
            "always, so that spaces before the token are pieces there: add it with normalized=False"
        )
    described = {
        "begins_words": begins_words,
        "normalizer": _normalizer(files[TOKENIZER], tokenizer, is_general) if any_normalized else None,
        "tokens": tokens,
    }
    return AddedTokens(validated(described, AddedTokensSchema, str(folder)), folder)


def _read(file: Path) -> dict[str, Any]:
    return read_object(file) if file.is_file() else {}


def _mentions(files: Mapping[str, dict[str, Any]], folder: Path) -> Iterator[tuple[Path, Any]]:
    """Yield the file and the description of every token in the files, the ones that decide about flags first."""
    config = files[TOKENIZER_CONFIG]
    decoder = config.get("added_tokens_decoder", {})
    if not isinstance(decoder, dict):
        raise DataError(f"{folder / TOKENIZER_CONFIG}: added_tokens_decoder is {shorten(decoder)}, needed is an object")
    for index, token in decoder.items():
        if not index.isdecimal() or not isinstance(token, dict):
            raise DataError(f"{folder / TOKENIZER_CONFIG}: added_tokens_decoder has {shorten(index)}: {shorten(token)}")
        yield folder / TOKENIZER_CONFIG, {"normalized": not token.get("special"), **token, "id": int(index)}
    added = files[TOKENIZER].get("added_tokens") or []
    if not isinstance(added, list):
        raise DataError(f"{folder / TOKENIZER}: added_tokens is {shorten(added)}, needed is a list")
    for token in added:
        yield folder / TOKENIZER, token
    for name in (TOKENIZER_CONFIG, SPECIALS_MAP):
        for key, value in files[name].items():
            if key in LISTS:
                values = value.values() if isinstance(value, dict) else value or []
                for token in values if not isinstance(values, str) else [values]:
                    yield folder / name, _special(token)
            elif key.endswith("_token") and isinstance(value, str | dict):
                yield folder / name, _special(value)
    for content, index in files[IDS].items():
        yield folder / IDS, {"content": content, "id": index}


def _special(token: Any) -> Any:
    """Return the description of a special token, which may be its text alone."""
    if isinstance(token, str):
        return {"content": token, "special": True}
    return token | {"special": True} if isinstance(token, dict) else token


def _user_defined(tokenizer: FullTokenizer) -> set[str]:
    """Return the symbols that a SentencePiece model keeps whole in preprocessed text."""
    if not tokenizer.is_sentencepiece:
        return set()
    pieces = ModelProto.FromString(tokenizer.content).pieces
    symbols = {piece.piece for piece in pieces if piece.type == piece.USER_DEFINED}
    return {symbol for symbol in symbols if tokenizer.preprocess(symbol) == symbol}


def _begins_words(pre_tokenizer: Any) -> bool:
    """Return whether a tokenizer.json begins a word behind every added token: by Metaspace's scheme."""
    steps = [pre_tokenizer]
    while steps:
        step = steps.pop()
        if isinstance(step, dict):
            if step.get("type") == "Metaspace":
                return step.get("prepend_scheme", "always") == "always"
            inner = step.get("pretokenizers")
            steps += inner if isinstance(inner, list) else []
    return True


def _normalizer(content: dict[str, Any], tokenizer: FullTokenizer, is_general: bool) -> dict[str, Any] | None:
    """Return what makes the text that normalized tokens are searched for in, as in tokenizer.json."""
    if is_general:
        return content.get("normalizer")
    if not tokenizer.is_sentencepiece:
        return parse_json(normalizers.BertNormalizer(lowercase=tokenizer.do_lower_case).__getstate__())
    steps: list[Any] = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
    steps += [normalizers.NFKD(), normalizers.StripAccents()]
    if tokenizer.do_lower_case:
        steps.append(normalizers.Lowercase())
    if characters := ModelProto.FromString(tokenizer.content).normalizer_spec.precompiled_charsmap:
        steps.append(normalizers.Precompiled(characters))
    return parse_json(normalizers.Sequence(steps).__getstate__())
