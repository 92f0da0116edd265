"""SentencePiece as in google-research/albert: preprocessing, pieces, and digits before commas."""

import re
import unicodedata
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import sentencepiece
from sentencepiece.sentencepiece_model_pb2 import ModelProto  # type: ignore[attr-defined]  # made at import

from model_utils.errors import DataError
from src.text.added_tokens import LONE_SURROGATE
from src.text.tracked_text import CharacterTable, Offset, TrackedText

WORD_START = "▁"
SENTENCEPIECE_SPECIALS = {"pad": "<pad>", "unk": "<unk>", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
_SPECIALS = frozenset(SENTENCEPIECE_SPECIALS.values())
# What google's data script takes for English; a piece with any other character is a word of its own there.
_SEPARATE_PUNCTUATION = frozenset('!"#$%&()*+,-./:;?@[\\]^_`{|}~')
_ENGLISH = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ") | _SEPARATE_PUNCTUATION
_UNREADABLE = "\ufffd"
LISTING_LINE = re.compile(r"\S+\t-?[0-9.e-]+$")


def _decompose(character: str) -> str:
    if LONE_SURROGATE.match(character):
        return _UNREADABLE
    return "".join(c for c in unicodedata.normalize("NFKD", character) if not unicodedata.combining(c))


_DECOMPOSED = CharacterTable(_decompose)


def preprocess_text(text: str, lower: bool) -> str:
    """Normalise text for ALBERT's SentencePiece model, as google-research/albert's function of this name does.

    White space becomes single spaces, characters their NFKD form without combining marks; then lower case.
    """
    text = " ".join(text.split())
    if not text.isascii():
        # Character by character: NFKD of a whole text only moves combining marks around, and those go.
        text = text.translate(_DECOMPOSED)
    return text.lower() if lower else text


def is_number_comma(piece: str) -> bool:
    """Return True if google splits the piece in two, so that a number has the same tokens with and without a comma."""
    return len(piece) > 1 and piece[-1] == "," and piece[-2].isdigit()


class SentencePiece:
    """SentencePiece model with google-research/albert's treatment of digits before commas."""

    def __init__(self, model: bytes, file: Path, do_lower_case: bool) -> None:
        self.do_lower_case = do_lower_case
        self._content = model
        self._file = file
        self.processor = _load_model(model, file)
        self.tokens = [self.processor.id_to_piece(index) for index in range(self.processor.get_piece_size())]
        self.vocab = {token: index for index, token in enumerate(self.tokens)}
        self.unk_id = self.processor.unk_id()
        # encode() may give these ids where google's tokens have others: an unknown piece may read like a control
        # symbol, and google splits a piece like "▁2018,".
        self._doubtful = {self.unk_id} | {index for index, token in enumerate(self.tokens) if is_number_comma(token)}

    @cached_property
    def inside_words(self) -> "SentencePiece":
        """The model for text that begins no word: without the "▁" that it puts before every text."""
        proto = ModelProto.FromString(self._content)
        proto.normalizer_spec.add_dummy_prefix = False
        return SentencePiece(proto.SerializeToString(), self._file, self.do_lower_case)

    def preprocess(self, text: str) -> str:
        return preprocess_text(text, self.do_lower_case)

    def tokenize(self, text: str) -> list[str]:
        """Return the pieces of a text; split a piece that ends in digit and comma into the number and the comma.

        The number is tokenized again by itself, so that it always begins with "▁", even inside a word: google's
        code has a correction for that which compares str with bytes and never fires in Python 3.
        """
        pieces = []
        for piece in self.processor.encode(LONE_SURROGATE.sub(_UNREADABLE, text), return_type=str):
            if is_number_comma(piece):
                pieces += self.processor.encode(piece[:-1].replace(WORD_START, ""), return_type=str)
                pieces.append(",")
            else:
                pieces.append(piece)
        return pieces

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of tokenize(text) for preprocessed texts, at the library's speed where nothing is doubtful."""
        rows = self.processor.encode(list(texts), num_threads=1)
        for row, text in enumerate(texts):
            if not self._doubtful.isdisjoint(rows[row]):
                rows[row] = [self.vocab.get(token, self.unk_id) for token in self.tokenize(text)]
        return rows

    def tokenize_with_offsets(self, text: str) -> tuple[list[str], list[Offset]]:
        """Return the pieces of a raw text, preprocessed, and the characters that they come from."""
        tracked = TrackedText.of(text).collapse_spaces().translate(_DECOMPOSED)
        if self.do_lower_case:
            tracked = tracked.lower()
        pieces = self._encode_with_spans(tracked.text)
        offsets = []
        for _, start, end in pieces:
            first, last = tracked.original_span(start, end)
            while first < last < len(text) and unicodedata.combining(text[last]):  # accents that were removed
                last += 1
            offsets.append((first, last))
        return [piece for piece, _, _ in pieces], offsets

    def is_word_start(self, token: str) -> bool:
        if token.startswith((WORD_START, "<")) or token in _SEPARATE_PUNCTUATION or token in _SPECIALS:
            return True
        return not _ENGLISH.issuperset(token)

    def characters(self, token: str) -> int:
        """Return the number of characters of text that a token stands for (see FullTokenizer.characters)."""
        index = self.vocab[token]
        processor = self.processor
        single = processor.is_unknown(index) or processor.is_control(index) or processor.is_byte(index)
        return 1 if single else len(token)

    def _encode_with_spans(self, text: str) -> list[tuple[str, int, int]]:
        """Return the pieces of tokenize(text) with their start and end in it."""
        result: list[tuple[str, int, int]] = []
        for piece, start, end in self._pieces_with_spans(text):
            if is_number_comma(piece):
                number = self._pieces_with_spans(piece[:-1].replace(WORD_START, ""))
                shift = end - 1 - max((last for _, _, last in number), default=0)
                result += [(part, max(start, first + shift), max(start, last + shift)) for part, first, last in number]
                result.append((",", end - 1, end))
            else:
                result.append((piece, start, end))
        return result

    def _pieces_with_spans(self, text: str) -> list[tuple[str, int, int]]:
        mapping = self.processor.encode(text, return_type="offset_mapping")
        return [(piece, *span) for piece, span in zip(mapping["pieces"], mapping["offsets"], strict=True)]


def _load_model(content: bytes, file: Path) -> sentencepiece.SentencePieceProcessor:
    try:
        return sentencepiece.SentencePieceProcessor(model_proto=content)
    except RuntimeError:
        advice = "fetch it again"
        if b"[MASK]\n" in content or b"[MASK]\r\n" in content:
            advice = "it looks like a WordPiece vocabulary, which is given as vocab_file"
        elif LISTING_LINE.match(content[:1000].decode("utf-8", "replace").split("\n")[0]):
            advice = "it looks like the listing that is written beside a model; give the .model file"
        raise DataError(f"spm_model_file {file} is not a SentencePiece model: {advice}") from None


def is_model(content: bytes) -> bool:
    """Return True if the content is that of a SentencePiece model."""
    try:
        return sentencepiece.SentencePieceProcessor().load_from_serialized_proto(content)
    except RuntimeError:
        return False
