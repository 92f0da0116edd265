"""Tokens that were added to a Hugging Face tokenizer, from all the files that may name them."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field
from sentencepiece.sentencepiece_model_pb2 import ModelProto  # type: ignore[attr-defined]  # made at import
from tokenizers import normalizers

from model_utils.errors import DataError, shorten
from model_utils.json_files import Schema, parse_json, read_object, validated
from src.text.added_tokens import AddedTokens, AddedTokensSchema
from src.text.sentence_piece import SENTENCEPIECE_SPECIALS
from src.tokenization import WORDPIECE_SPECIALS, FullTokenizer

TOKENIZER_CONFIG, TOKENIZER = "tokenizer_config.json", "tokenizer.json"
IDS, SPECIALS_MAP = "added_tokens.json", "special_tokens_map.json"
LISTS = ("additional_special_tokens", "extra_special_tokens")  # of transformers 4 and 5


class NamedTokenSchema(Schema):
    """Description of a token in the files; None stands for a value that they do not give."""

    id: int | None = Field(None, ge=0)
    content: str
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool | None = None
    special: bool = False


def find_added_tokens(folder: Path, tokenizer: FullTokenizer, is_generic: bool) -> AddedTokens | None:
    """Return the added tokens of a folder, None if there are none.

    Special tokens without an id get the next free one, as in transformers. The five special tokens are left out,
    because their names in a text are plain text here; so are user-defined symbols, which the SentencePiece model finds.

    Args:
        tokenizer: tokenizer of the folder's vocabulary, without added tokens.
        is_generic: True if transformers uses tokenizer.json as it is and does not rebuild the tokenizer.

    Raises:
        DataError: a file is damaged, or files contradict each other.
    """
    files = {name: _read(folder / name) for name in (TOKENIZER_CONFIG, SPECIALS_MAP, IDS, TOKENIZER)}
    tokens = _complete_tokens(_named_tokens(files, folder), tokenizer)
    if not tokens:
        return None
    normalized_tokens = [token["content"] for token in tokens if token["normalized"]]
    begins_words = not is_generic or _begins_words(files[TOKENIZER].get("pre_tokenizer"))
    if normalized_tokens and not begins_words and tokenizer.is_sentencepiece:
        raise DataError(
            f"{folder / TOKENIZER}: the added token {shorten(normalized_tokens[0])} is normalized, and Metaspace's "
            "prepend_scheme is not always, so that spaces before it are pieces: add it with normalized=False"
        )
    described = {
        "begins_words": begins_words,
        "normalizer": _normalizer(files[TOKENIZER], tokenizer, is_generic) if normalized_tokens else None,
        "tokens": tokens,
    }
    return AddedTokens(validated(described, AddedTokensSchema, str(folder)), folder)


def _named_tokens(files: Mapping[str, dict[str, Any]], folder: Path) -> list[NamedTokenSchema]:
    """Return every token that the files name, once, with what they say together."""
    tokens: dict[str, NamedTokenSchema] = {}
    for origin, value in _token_entries(files, folder):
        token = validated(value, NamedTokenSchema, str(origin))
        earlier = tokens.setdefault(token.content, token)
        if None not in (token.id, earlier.id) and token.id != earlier.id:
            raise DataError(f"{origin}: {shorten(token.content)} has the id {token.id}, another file {earlier.id}")
        tokens[token.content] = earlier.model_copy(
            update={
                "id": token.id if earlier.id is None else earlier.id,
                "special": earlier.special or (token.special and earlier.normalized is None),
            }
        )
    return list(tokens.values())


def _complete_tokens(named: Sequence[NamedTokenSchema], tokenizer: FullTokenizer) -> list[dict[str, Any]]:
    """Return the tokens that the vocabulary's tokenizer does not find by itself, with all ids and flags."""
    specials = SENTENCEPIECE_SPECIALS if tokenizer.is_sentencepiece else WORDPIECE_SPECIALS
    user_defined = _user_defined(tokenizer)
    taken = {token.id for token in named} | set(tokenizer.inv_vocab)
    free_ids = (index for index in itertools.count() if index not in taken)
    tokens = []
    for token in named:
        is_in_model = not token.special and token.content in user_defined
        if token.content in specials.values() or is_in_model or not token.content:
            continue
        index = tokenizer.vocab.get(token.content) if token.id is None else token.id
        if index is None:
            index = next(free_ids)
        normalized = not token.special if token.normalized is None else token.normalized
        tokens.append(token.model_dump() | {"id": index, "normalized": normalized})
    return tokens


def _read(file: Path) -> dict[str, Any]:
    return read_object(file) if file.is_file() else {}


def _token_entries(files: Mapping[str, dict[str, Any]], folder: Path) -> Iterator[tuple[Path, Any]]:
    """Yield the file and the description of every token in the files; the first one of a token decides its flags."""
    config = files[TOKENIZER_CONFIG]
    for index, token in config.get("added_tokens_decoder", {}).items():  # as TokenizerSettingsSchema allows them
        yield folder / TOKENIZER_CONFIG, {"normalized": not token.get("special"), **token, "id": int(index)}
    added = files[TOKENIZER].get("added_tokens") or []
    if not isinstance(added, list):
        raise DataError(f"{folder / TOKENIZER}: added_tokens is {shorten(added)}, needed is a list")
    for token in added:
        yield folder / TOKENIZER, token
    for name in (TOKENIZER_CONFIG, SPECIALS_MAP):
        for key, value in files[name].items():
            if key in LISTS:
                if not isinstance(value, dict | list | str | None):
                    raise DataError(f"{folder / name}: {key} is {shorten(value)}, needed is a list")
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
    """Return True if a tokenizer.json begins a word behind every added token, by the scheme of its Metaspace."""
    steps = [pre_tokenizer]
    while steps:
        step = steps.pop()
        if isinstance(step, dict):
            if step.get("type") == "Metaspace":
                return step.get("prepend_scheme", "always") == "always"
            inner = step.get("pretokenizers")
            steps += inner if isinstance(inner, list) else []
    return True


def _normalizer(content: dict[str, Any], tokenizer: FullTokenizer, is_generic: bool) -> dict[str, Any] | None:
    """Return the normalizer, in the form of tokenizer.json, of the text in which normalized tokens are searched."""
    if is_generic:
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
