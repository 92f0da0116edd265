"""The vocabulary inside Hugging Face's tokenizer.json, as the file that it was made from.

transformers 5 saves nothing else; this project reads SentencePiece models and WordPiece vocabularies.
"""

import base64
import json
from pathlib import Path
from typing import Any

from sentencepiece.sentencepiece_model_pb2 import ModelProto

from model_utils.errors import DataError


def extract_vocabulary(file: Path) -> tuple[bytes, bool]:
    """The file's contents, and whether it is a SentencePiece model.

    A SentencePiece model has the same pieces, scores, kinds of pieces and normalisation as the one that tokenizer.json
    was made from; what only its training needed is lost.

    Raises:
        DataError: the file is damaged, or its tokenizer is neither of the two.
    """
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        model = content["model"]
        if model["type"] == "Unigram":
            return _sentencepiece(content), True
        if model["type"] == "WordPiece":
            tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
            return "".join(f"{token}\n" for token in tokens).encode(), False
    except OSError as error:
        raise DataError(f"{file} cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise DataError(f"{file} is damaged or no tokenizer: {error!r}") from error
    raise DataError(f"{file} holds a {model['type']} tokenizer; ALBERT's are Unigram (SentencePiece) and WordPiece")


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
