"""Hugging Face's tokenizer.json: the vocabulary inside, and one that cuts text as google's code does.

transformers 5 saves nothing else. Its own AlbertTokenizer cuts text before each of a model's user-defined symbols (a
full stop is one), keeps "2018," whole and turns '' into quotes, all of which google's tokenization does not.
"""

import base64
import sys
import unicodedata
from pathlib import Path
from typing import Any

from sentencepiece.sentencepiece_model_pb2 import ModelProto
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from model_utils.errors import DataError, shorten
from model_utils.json_files import read_object
from src.text.added_tokens import AddedTokens, library_token
from src.tokenization import SENTENCEPIECE_SPECIALS, is_number_comma

NEVER = -100.0  # added to a piece's score, so that others are always better


def extract_vocabulary(file: Path) -> tuple[bytes, bool]:
    """The vocabulary file's contents, and whether it is a SentencePiece model (else WordPiece tokens); else DataError.

    A SentencePiece model has the same pieces, scores, kinds of pieces and normalisation as the one that tokenizer.json
    was made from; what only its training needed is lost.
    """
    try:
        content = read_object(file)
        model = content["model"]
        if model["type"] == "Unigram":
            return _sentencepiece(content), True
        if model["type"] == "WordPiece":
            tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
            if [model["vocab"][token] for token in tokens] != list(range(len(tokens))):
                raise DataError(f"{file}: the ids of its vocabulary are not 0 to {len(tokens) - 1}")
            return "".join(f"{token}\n" for token in tokens).encode(), False
    except DataError:
        raise
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise DataError(f"{file} is damaged or no tokenizer: {shorten(error)}") from error
    raise DataError(
        f"{file} holds a tokenizer of type {shorten(model['type'])}; ALBERT's are Unigram (SentencePiece) and WordPiece"
    )


def lower_cases(file: Path) -> bool:
    """Return whether the tokenizer in a tokenizer.json lower-cases text.

    Raises:
        DataError: it is damaged, or treats accents or Chinese characters otherwise than src.tokenization: WordPiece
            loses accents where it lower-cases, and nowhere else, SentencePiece always does.
    """
    content = read_object(file)
    steps, lower, without_accents = [content.get("normalizer")], False, False
    while steps:
        step = steps.pop()
        if not isinstance(step, dict | None):
            raise DataError(f"{file} is damaged or no tokenizer: its normalizer is {shorten(step)}")
        step = step or {}
        steps += step.get("normalizers", [])
        lower |= step.get("type") == "Lowercase" or bool(step.get("lowercase"))
        without_accents |= _takes_accents(step)
        if not step.get("handle_chinese_chars", True):
            raise DataError(f"{file}: handle_chinese_chars is False, the tokenization here has True")
    model = content.get("model")
    is_unigram = isinstance(model, dict) and model.get("type") == "Unigram"
    if without_accents != (lower or is_unigram):
        raise DataError(
            f"{file}: its normalizer {'takes' if without_accents else 'keeps'} accents and "
            f"{'lower-cases' if lower else 'keeps capitals'}; the tokenization here takes accents from "
            f"{'all text' if is_unigram else 'lower-cased text and keeps others'}"
        )
    return lower


def _takes_accents(step: dict[str, Any]) -> bool:
    """Return whether a step of a normalizer removes accents; also one of build_tokenizer_json."""
    if step.get("type") == "BertNormalizer":
        stated = step.get("strip_accents")
        return bool(step.get("lowercase") if stated is None else stated)
    pattern = step.get("pattern")
    replaced = str(pattern.get("Regex")) if isinstance(pattern, dict) else ""  # marks of whichever version of Unicode
    ours = step.get("content") == "" and replaced.startswith(_combining_marks().partition("-")[0])
    return step.get("type") == "StripAccents" or ours


def _sentencepiece(content: dict[str, Any]) -> bytes:
    proto = ModelProto()
    kinds = ModelProto.SentencePiece
    special = {
        entry["content"]: kinds.CONTROL if entry["special"] else kinds.USER_DEFINED for entry in content["added_tokens"]
    }
    unknown, pieces = content["model"]["unk_id"], [piece for piece, _ in content["model"]["vocab"]]
    special[pieces[unknown]] = kinds.UNKNOWN
    for piece, score in content["model"]["vocab"]:
        entry = proto.pieces.add(piece=piece, score=score)
        if piece in special:
            entry.type = special[piece]
    proto.trainer_spec.model_type = proto.trainer_spec.UNIGRAM
    proto.trainer_spec.vocab_size = len(pieces)
    proto.trainer_spec.unk_id, proto.trainer_spec.unk_piece = unknown, pieces[unknown]
    proto.trainer_spec.pad_id = pieces.index("<pad>")
    proto.trainer_spec.bos_id = proto.trainer_spec.eos_id = -1
    for step in content["normalizer"]["normalizers"]:
        if step["type"] == "Precompiled":
            proto.normalizer_spec.precompiled_charsmap = base64.b64decode(step["precompiled_charsmap"])
    return proto.SerializeToString()


def _combining_marks() -> str:
    """A regular expression of the characters that src.tokenization leaves out; StripAccents would take other marks."""
    marks = [number for number in range(sys.maxunicode + 1) if unicodedata.combining(chr(number))]
    starts = [mark for mark, before in zip(marks, [-1, *marks], strict=False) if mark != before + 1]
    ends = [mark for mark, after in zip(marks, [*marks[1:], -1], strict=True) if mark != after - 1]
    return "[" + "".join(rf"\x{{{start:X}}}-\x{{{end:X}}}" for start, end in zip(starts, ends, strict=True)) + "]"


def build_tokenizer_json(model: bytes, do_lower_case: bool, added: AddedTokens | None = None) -> Tokenizer:
    """A tokenizer that gives a SentencePiece model's ids as src.tokenization does.

    Exceptions: the names of special tokens in a text, which transformers takes for the tokens, and some numbers, since
    pieces like "1," are never chosen here where google's code splits them afterwards, and added tokens that are
    normalized, which are also found where the text has several spaces for one. DataError if it is no Unigram
    model.
    """
    proto = ModelProto.FromString(model)
    if proto.trainer_spec.model_type != proto.trainer_spec.UNIGRAM:
        raise DataError("the SentencePiece model is no Unigram model, which transformers' ALBERT needs")
    scores = [(each.piece, each.score + NEVER * is_number_comma(each.piece)) for each in proto.pieces]
    tokenizer = Tokenizer(models.Unigram(scores, unk_id=proto.trainer_spec.unk_id))
    spaces = [normalizers.Replace(Regex(r"[\s\x1c-\x1f]+"), " "), normalizers.Strip(left=False, right=True)]
    lower = [normalizers.Lowercase()] if do_lower_case else []
    characters = proto.normalizer_spec.precompiled_charsmap
    precompiled = [normalizers.Precompiled(characters)] if characters else []
    decompose = [normalizers.NFKD(), normalizers.Replace(Regex(_combining_marks()), "")]
    tokenizer.normalizer = normalizers.Sequence([*spaces, *decompose, *lower, *precompiled, *spaces])
    # The start of a text is a word's start; what follows a mask directly is one only if the added tokens say so.
    begins_words = added is not None and added.begins_words
    metaspace = pre_tokenizers.Metaspace(prepend_scheme="always" if begins_words else "first")
    # A space before a normalized token would be a piece of its own.
    spaced = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), metaspace])
    tokenizer.pre_tokenizer = spaced if begins_words else metaspace
    tokenizer.decoder = decoders.Metaspace(prepend_scheme=metaspace.prepend_scheme)
    specials = SENTENCEPIECE_SPECIALS
    tokenizer.add_special_tokens([AddedToken(name, lstrip=role == "mask") for role, name in specials.items()])
    if added:
        tokenizer.add_tokens([library_token(token) for token in added.tokens])
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{specials['cls']}:0 $A:0 {specials['sep']}:0",
        pair=f"{specials['cls']}:0 $A:0 {specials['sep']}:0 $B:1 {specials['sep']}:1",
        special_tokens=[(specials[role], tokenizer.token_to_id(specials[role])) for role in ("cls", "sep")],
    )
    return tokenizer
