"""Hugging Face's tokenizer.json: reader of its vocabulary, and writer of one that tokenizes as google's code does.

transformers 5 saves no other file. Its own AlbertTokenizer splits text before each of a model's user-defined symbols (a
full stop is one), keeps "2018," whole and turns '' into quotes; google's tokenization does none of that.
"""

import base64
import sys
import unicodedata
from pathlib import Path
from typing import Any

from sentencepiece.sentencepiece_model_pb2 import ModelProto, TrainerSpec  # type: ignore[attr-defined]
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from model_utils.errors import DataError, shorten
from model_utils.json_files import read_object
from src.text.added_tokens import AddedTokens, library_token
from src.text.sentence_piece import SENTENCEPIECE_SPECIALS, is_number_comma

PENALTY = 100.0  # subtracted from a piece's score, so that other pieces are always better


def extract_vocabulary(file: Path) -> tuple[bytes, bool]:
    """Return the content of the vocabulary file, and True if it is a SentencePiece model, False if WordPiece tokens.

    A SentencePiece model has the pieces, scores, types of pieces and normalisation of the one that tokenizer.json was
    made from; settings of its training are lost.

    Raises:
        DataError: the file is damaged or holds a tokenizer of another type.
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
    """Return True if the tokenizer in a tokenizer.json lower-cases text.

    Raises:
        DataError: it is damaged, or treats accents or Chinese characters otherwise than src.tokenization: WordPiece
            removes accents if it lower-cases, SentencePiece always does.
    """
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises no narrower one
        raise DataError(f"{file} is damaged or no tokenizer: {shorten(str(error))}") from None
    normalized = unicodedata.normalize("NFC", tokenizer.normalizer.normalize_str("É") if tokenizer.normalizer else "É")
    with_capitals = "E" if isinstance(tokenizer.model, models.Unigram) else "É"
    if normalized not in ("e", with_capitals):
        raise DataError(
            f"{file}: its normalizer makes {normalized!r} of 'É'; the tokenization here 'e' or {with_capitals!r}"
        )
    if tokenizer.normalizer and b'"handle_chinese_chars":false' in tokenizer.normalizer.__getstate__():
        raise DataError(f"{file}: handle_chinese_chars is False, the tokenization here has True")
    return normalized == "e"


def _sentencepiece(content: dict[str, Any]) -> bytes:
    """Return the SentencePiece model with the vocabulary and normalisation of a tokenizer.json."""
    unk_id = content["model"]["unk_id"]
    pieces = [piece for piece, _ in content["model"]["vocab"]]
    special_ids = {"unk_id": unk_id, "pad_id": pieces.index("<pad>"), "bos_id": -1, "eos_id": -1}
    trainer = TrainerSpec(
        model_type=TrainerSpec.UNIGRAM, vocab_size=len(pieces), unk_piece=pieces[unk_id], **special_ids
    )
    proto = ModelProto(trainer_spec=trainer)
    piece_type = ModelProto.SentencePiece
    types = {}
    for token in content["added_tokens"]:
        types[token["content"]] = piece_type.CONTROL if token["special"] else piece_type.USER_DEFINED
    types[pieces[unk_id]] = piece_type.UNKNOWN
    for piece, score in content["model"]["vocab"]:
        proto.pieces.add(piece=piece, score=score, type=types.get(piece))
    for step in content["normalizer"]["normalizers"]:
        if step["type"] == "Precompiled":
            proto.normalizer_spec.precompiled_charsmap = base64.b64decode(step["precompiled_charsmap"])
    return proto.SerializeToString()


def _combining_marks() -> str:
    """Return a regular expression of the characters that src.tokenization removes; StripAccents removes others."""
    marks = [code for code in range(sys.maxunicode + 1) if unicodedata.combining(chr(code))]
    starts = [mark for mark, before in zip(marks, [-1, *marks], strict=False) if mark != before + 1]
    ends = [mark for mark, after in zip(marks, [*marks[1:], -1], strict=True) if mark != after - 1]
    return "[" + "".join(rf"\x{{{start:X}}}-\x{{{end:X}}}" for start, end in zip(starts, ends, strict=True)) + "]"


def build_tokenizer_json(model: bytes, do_lower_case: bool, added: AddedTokens | None = None) -> Tokenizer:
    """Return a tokenizer that gives the ids of a SentencePiece model as src.tokenization does.

    Ids differ for names of special tokens in a text, which transformers reads as the tokens; for some numbers, since
    pieces like "1," are never chosen here while google's code splits them afterwards; and for normalized added tokens,
    which are also found if the text has several spaces instead of one.

    Raises:
        DataError: the model is no Unigram model.
    """
    proto = ModelProto.FromString(model)
    if proto.trainer_spec.model_type != proto.trainer_spec.UNIGRAM:
        raise DataError("the SentencePiece model is no Unigram model, which transformers' ALBERT needs")
    scores = []
    for entry in proto.pieces:
        penalty = PENALTY if is_number_comma(entry.piece) else 0.0
        scores.append((entry.piece, entry.score - penalty))
    tokenizer = Tokenizer(models.Unigram(scores, unk_id=proto.trainer_spec.unk_id))
    spaces = [normalizers.Replace(Regex(r"[\s\x1c-\x1f]+"), " "), normalizers.Strip(left=False, right=True)]
    steps = [*spaces, normalizers.NFKD(), normalizers.Replace(Regex(_combining_marks()), "")]
    if do_lower_case:
        steps.append(normalizers.Lowercase())
    if characters := proto.normalizer_spec.precompiled_charsmap:
        steps.append(normalizers.Precompiled(characters))
    tokenizer.normalizer = normalizers.Sequence([*steps, *spaces])
    # A text begins with a word; text directly behind a mask begins one only if the added tokens say so.
    begins_words = added is not None and added.begins_words
    metaspace = pre_tokenizers.Metaspace(prepend_scheme="always" if begins_words else "first")
    # Otherwise a space before a normalized token would be a piece of its own.
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
