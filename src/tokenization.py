"""Text -> tokens -> ids, with google-research/albert's FullTokenizer as the reference: SentencePiece or WordPiece.

Two levels, which differ for SentencePiece only: `tokenize` is google's FullTokenizer.tokenize and takes the text as it
is; `preprocess` is what google's scripts do before that (NFKD, accents off, lower case). `encode`, `encode_batch` and
`tokenize_with_offsets` take raw text and preprocess it themselves; the project uses these.
"""

import copy
import hashlib
import re
import unicodedata
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Self

import numpy as np
import sentencepiece
from sentencepiece.sentencepiece_model_pb2 import ModelProto

from model_utils.errors import DataError, shorten
from model_utils.files import open_file
from src.text.added_tokens import (
    LONE_SURROGATE,
    AddedTokens,
    AddedTokenSchema,
    Segment,
    added_tokens_file,
    read_added_tokens,
)
from src.text.tracked_text import CharacterTable, Offset, TrackedText
from src.text.wordpiece import WordPiece

WORD_START = "▁"
SENTENCEPIECE_SPECIALS = {"pad": "<pad>", "unk": "<unk>", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
WORDPIECE_SPECIALS = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
_SPECIALS = frozenset(SENTENCEPIECE_SPECIALS.values())
# What google's data script takes for English; a piece with any other character is a word of its own there.
_SEPARATE_PUNCTUATION = frozenset('!"#$%&()*+,-./:;?@[\\]^_`{|}~')
_ENGLISH = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ") | _SEPARATE_PUNCTUATION
_UNREADABLE = "\ufffd"
_LISTING_LINE = re.compile(r"\S+\t-?[0-9.e-]+$")


def _decompose(character: str) -> str:
    if LONE_SURROGATE.match(character):
        return _UNREADABLE
    return "".join(c for c in unicodedata.normalize("NFKD", character) if not unicodedata.combining(c))


_DECOMPOSED = CharacterTable(_decompose)


def preprocess_text(text: str, lower: bool) -> str:
    """Text as ALBERT's SentencePiece model wants it, as google-research/albert's function of this name.

    White space becomes single spaces, characters their NFKD form without combining marks; then lower case.
    """
    text = " ".join(text.split())
    if not text.isascii():
        # Character by character: NFKD of a whole text only moves combining marks around, and those go.
        text = text.translate(_DECOMPOSED)
    return text.lower() if lower else text


def is_number_comma(piece: str) -> bool:
    """Return whether google splits a piece in two: a number then has the same tokens with and without a comma."""
    return len(piece) > 1 and piece[-1] == "," and piece[-2].isdigit()


class SentencePiece:
    """A SentencePiece model with google-research/albert's treatment of digits before commas."""

    def __init__(self, model: bytes, file: Path, do_lower_case: bool) -> None:
        self.do_lower_case = do_lower_case
        self._model = model, file
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
        content, file = self._model
        proto = ModelProto.FromString(content)
        proto.normalizer_spec.add_dummy_prefix = False
        return SentencePiece(proto.SerializeToString(), file, self.do_lower_case)

    def preprocess(self, text: str) -> str:
        return preprocess_text(text, self.do_lower_case)

    def tokenize(self, text: str) -> list[str]:
        """Pieces of a text; a piece that ends in digit and comma is split into the number and the comma.

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
        """Ids of preprocessed texts: those of tokenize's tokens, at the library's speed where nothing is doubtful."""
        rows = self.processor.encode(list(texts), num_threads=1)
        for row, text in enumerate(texts):
            if not self._doubtful.isdisjoint(rows[row]):
                rows[row] = [self.vocab.get(token, self.unk_id) for token in self.tokenize(text)]
        return rows

    def tokenize_with_offsets(self, text: str) -> tuple[list[str], list[Offset]]:
        """Pieces of a raw text, preprocessed, and the characters that they come from."""
        tracked = TrackedText.of(text).collapse_spaces().translate(_DECOMPOSED)
        tracked = tracked.lower() if self.do_lower_case else tracked
        pieces = self._encode_with_spans(tracked.text)
        offsets = []
        for _, start, end in pieces:
            first, last = tracked.original_span(start, end)
            while first < last < len(text) and unicodedata.combining(text[last]):  # accents that were taken off
                last += 1
            offsets.append((first, last))
        return [piece for piece, _, _ in pieces], offsets

    def is_word_start(self, token: str) -> bool:
        if token.startswith((WORD_START, "<")) or token in _SEPARATE_PUNCTUATION or token in _SPECIALS:
            return True
        return not _ENGLISH.issuperset(token)

    def characters(self, token: str) -> int:
        index, processor = self.vocab[token], self.processor
        single = processor.is_unknown(index) or processor.is_control(index) or processor.is_byte(index)
        return 1 if single else len(token)

    def _encode_with_spans(self, text: str) -> list[tuple[str, int, int]]:
        """The pieces of tokenize(text) with their places in it."""
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


class FullTokenizer:
    """google-research/albert's FullTokenizer for a SentencePiece model or a WordPiece vocabulary.

    Added tokens beside the vocabulary (src/text/added_tokens.py) are kept whole; the text between them is cut.

    Args:
        content: of the vocabulary, where its file is yet to be written.

    Attributes:
        vocab: id of each token. inv_vocab: token of each id. file: the vocabulary's. content: of that file.
        sha256: fingerprint of the vocabulary: of that file and, where there are any, of the added tokens.
        added, added_tokens: those beside the vocabulary, and the list of them by id.

    Raises:
        DataError: the file is missing, damaged, of the other kind or without a special token.
    """

    def __init__(
        self,
        vocab_file: str | Path | None = None,
        do_lower_case: bool = True,
        spm_model_file: str | Path | None = None,
        content: bytes | None = None,
    ) -> None:
        if not vocab_file and not spm_model_file:
            raise DataError(
                "no vocabulary is given: set spm_model_file (SentencePiece) or, of WordPiece, vocab_file "
                "(elsewhere than in pre-training: vocab_file_path)"
            )
        self.do_lower_case = do_lower_case
        self.is_sentencepiece = bool(spm_model_file)
        self.file = Path(spm_model_file or vocab_file)
        self.content = _read(self.file) if content is None else content
        self.sha256 = hashlib.sha256(self.content).hexdigest()
        self._kind: SentencePiece | WordPiece
        if self.is_sentencepiece:
            self._kind = SentencePiece(self.content, self.file, do_lower_case)
            if vocab_file:
                _check_listing(Path(vocab_file), self._kind.tokens, self.file)
        else:
            self._kind = WordPiece(_read_tokens(self.content, self.file), do_lower_case)
        self.vocab = self._kind.vocab
        self.inv_vocab = dict(enumerate(self._kind.tokens))
        self.vocab_size = len(self._kind.tokens)
        self._set_special_ids()
        self.added: AddedTokens | None = None
        self.added_tokens: Sequence[AddedTokenSchema] = ()
        self._added_contents: frozenset[str] = frozenset()
        if added := read_added_tokens(self.file):
            self._add(added)

    def with_added_tokens(self, added: AddedTokens) -> Self:
        """Return the same tokenizer with added tokens; DataError if their ids do not fit the vocabulary."""
        tokenizer = copy.copy(self)
        tokenizer._add(added)
        return tokenizer

    def _add(self, added: AddedTokens) -> None:
        entries = dict(self.inv_vocab)
        for token in added.tokens:
            is_new = token.id == len(entries) and token.content not in self.vocab
            if not is_new and entries.get(token.id) != token.content:
                raise DataError(
                    f"the added token {shorten(token.content)} has the id {token.id}, which is not its own in "
                    f"{self.file} or not the next one that is free"
                )
            entries[token.id] = token.content
        self.added = added
        self.added_tokens = added.tokens
        self._added_contents = frozenset(token.content for token in added.tokens)
        self.inv_vocab = entries
        self.vocab = self.vocab | {token.content: token.id for token in added.tokens}
        self.vocab_size = len(entries)
        self.sha256 = hashlib.sha256(self.sha256.encode() + added.content).hexdigest()

    def files(self, vocabulary: Path) -> dict[Path, bytes]:
        """Return the files and their contents for a vocabulary of this name: it and the added tokens beside it."""
        files = {vocabulary: self.content}
        return files if self.added is None else files | {added_tokens_file(vocabulary): self.added.content}

    def segments(self, text: str) -> list[Segment]:
        """Return the added tokens in a text and what lies between them."""
        if self.added is not None:
            return self.added.split(text)
        return [Segment(0, len(text), None)] if text else []

    def _cutter(self, text: str, start: int, follows_token: bool = False) -> "SentencePiece | WordPiece":
        """Return what cuts the segment of a text that begins at `start`."""
        begins_word = text[start].isspace() or (self.added is not None and self.added.begins_words)
        return self._kind if begins_word or not (start or follows_token) else self._kind.inside_words

    def __reduce__(self) -> tuple[type, tuple]:
        """Pickled by the names of its files, so that worker processes open them anew."""
        files = (None, self.file) if self.is_sentencepiece else (self.file, None)
        return FullTokenizer, (files[0], self.do_lower_case, files[1])

    def preprocess(self, text: str) -> str:
        """Return the text as google's scripts prepare it: preprocess_text for SentencePiece, nothing for WordPiece."""
        if self.added is None or not self.is_sentencepiece:
            return self._kind.preprocess(text)
        parts = []
        for start, end, token in self.segments(text):
            part = text[start:end]
            if token is None:  # white space beside an added token says whether a word begins there
                before = " " if part[0].isspace() else ""
                behind = " " if part[-1].isspace() else ""
                part = before + self._kind.preprocess(part) + behind
            parts.append(part)
        return "".join(parts).strip()

    def tokenize(self, text: str) -> list[str]:
        """google's FullTokenizer.tokenize; for SentencePiece, lower-casing and accents are left to preprocess."""
        if self.added is None:
            return self._kind.tokenize(text)
        tokens = []
        for start, end, token in self.segments(text):
            tokens += [token.content] if token else self._cutter(text, start).tokenize(text[start:end])
        return tokens

    def encode(self, text: str, follows_token: bool = False) -> list[int]:
        """Return the ids of a raw text, without special tokens.

        Args:
            follows_token: the text goes on directly behind a special token, and begins a word only if it says so.
        """
        ids = []
        for start, end, token in self.segments(text):
            if token is None:
                cutter = self._cutter(text, start, follows_token)
                ids += cutter.encode_batch([cutter.preprocess(text[start:end])])[0]
            else:
                ids.append(token.id)
        return ids

    def encode_batch(self, texts: Iterable[str]) -> list[list[int]]:
        """Ids of raw texts: of tokenize(preprocess(text)) for each, on one core, without special tokens."""
        if self.added is not None:
            return [self.encode(text) for text in texts]
        return self._kind.encode_batch([self._kind.preprocess(text) for text in texts])

    def tokenize_with_offsets(self, text: str) -> tuple[list[str], list[Offset]]:
        """Tokens of a raw text, as tokenize(preprocess(text)), and the characters that they stand for, text[start:end].

        White space around the source of a token is left out, so that nothing is left for a lone "▁". Tokens that share
        one source character ("½", "ﬁ") share its offset.
        """
        if self.added is None:
            return self._kind.tokenize_with_offsets(text)
        tokens: list[str] = []
        offsets: list[Offset] = []
        for start, end, token in self.segments(text):
            if token is None:
                pieces, places = self._cutter(text, start).tokenize_with_offsets(text[start:end])
                tokens += pieces
                offsets += [(start + first, start + last) for first, last in places]
            else:
                tokens.append(token.content)
                offsets.append(TrackedText.of(text).original_span(start, end))
        return tokens, offsets

    def convert_tokens_to_ids(self, tokens: Iterable[str]) -> list[int]:
        """Ids of tokens; SentencePiece has the unknown id for what it does not know, for WordPiece that is an error."""
        if self.is_sentencepiece:
            return [self.vocab.get(token, self.unk_id) for token in tokens]
        try:
            return [self.vocab[token] for token in tokens]
        except KeyError as error:
            raise DataError(f"the token {error.args[0]!r} is not in {self.file}") from None

    def convert_ids_to_tokens(self, ids: Iterable[int]) -> list[str]:
        try:
            return [self.inv_vocab[int(index)] for index in ids]
        except KeyError as error:
            raise DataError(f"{self.file} has ids 0 to {self.vocab_size - 1}, not {error.args[0]}") from None

    def is_word_start(self, token: str) -> bool:
        """Return whether a token begins a word, for whole-word masks, by the rules of google's data script.

        WordPiece: no "##". SentencePiece: begins with "▁" or "<", is a punctuation mark, or holds a character that is
        neither an English letter nor ASCII punctuation. Special tokens are words of their own.
        """
        return token in self._added_contents or self._kind.is_word_start(token)

    def characters(self) -> np.ndarray:
        """(V,) int64: how many characters of text each token stands for, the space before a word included.

        For SentencePiece that space is "▁". A WordPiece token that begins a word has it, too, but for punctuation and
        Chinese characters. Unknown, control and byte pieces count as one character.
        """
        further = [self.inv_vocab[index] for index in range(len(self._kind.tokens), self.vocab_size)]
        return np.array([*map(self._kind.characters, self._kind.tokens), *map(len, further)])

    def _set_special_ids(self) -> None:
        specials = SENTENCEPIECE_SPECIALS if self.is_sentencepiece else WORDPIECE_SPECIALS
        missing = [token for token in specials.values() if token not in self.vocab]
        if missing:
            raise DataError(
                f"{self.file} has no entry {', '.join(missing)}; ALBERT needs {', '.join(specials.values())} "
                f"(src/train_vocabulary.py makes such a vocabulary)"
            )
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = map(self.vocab.get, specials.values())


def build_tokenizer(
    vocab_file: str | Path | None,
    spm_model_file: str | Path | None,
    do_lower_case: bool,
    expected_vocab_size: int | None = None,
    content: bytes | None = None,
) -> FullTokenizer:
    """A FullTokenizer; a DataError where it has another size than the model's vocabulary, if that is given."""
    tokenizer = FullTokenizer(vocab_file, do_lower_case, spm_model_file, content)
    if expected_vocab_size is not None and tokenizer.vocab_size != expected_vocab_size:
        raise DataError(
            f"the vocabulary {tokenizer.file} has {tokenizer.vocab_size} entries and the configuration of the weights "
            f"(vocab_size) says {expected_vocab_size}; put the vocabulary that they were trained with beside them"
        )
    return tokenizer


def open_tokenizer(file: Path, do_lower_case: bool) -> FullTokenizer:
    """A FullTokenizer of a vocabulary's file, of whichever kind it is, whatever its name."""
    content = _read(file)
    files = (None, file) if _is_model(content) else (file, None)
    return FullTokenizer(files[0], do_lower_case, files[1], content)


def _read(file: Path) -> bytes:
    try:
        with open_file(file) as stream:
            content = stream.read()
    except OSError as error:
        raise DataError(f"the vocabulary {file} cannot be read: {error.strerror}") from error
    if not content:
        raise DataError(f"the vocabulary {file} is empty")
    return content


def _load_model(content: bytes, file: Path) -> sentencepiece.SentencePieceProcessor:
    try:
        return sentencepiece.SentencePieceProcessor(model_proto=content)
    except RuntimeError:
        advice = "fetch it again"
        if b"[MASK]\n" in content or b"[MASK]\r\n" in content:
            advice = "it looks like a WordPiece vocabulary, which is given as vocab_file"
        elif _LISTING_LINE.match(content[:1000].decode("utf-8", "replace").split("\n")[0]):
            advice = "it looks like the listing that is written beside a model; give the .model file"
        raise DataError(f"spm_model_file {file} is not a SentencePiece model: {advice}") from None


def _decode(content: bytes, file: Path) -> list[str]:
    """Lines of a vocabulary; only "\n" ends a line, for other line breaks are entries of Chinese vocabularies."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if _is_model(content):
            raise DataError(f"vocab_file {file} is a SentencePiece model; give it as spm_model_file") from None
        raise DataError(f"vocab_file {file} is not UTF-8 text at byte {error.start}; fetch or convert it") from None
    return text.removesuffix("\n").split("\n")


def _is_model(content: bytes) -> bool:
    try:
        return sentencepiece.SentencePieceProcessor().load_from_serialized_proto(content)
    except RuntimeError:
        return False


def _read_tokens(content: bytes, file: Path) -> list[str]:
    """WordPiece entries, one a line; the id is the line number."""
    lines = _decode(content, file)
    if all(_LISTING_LINE.match(line) for line in lines[:100]):
        raise DataError(
            f"vocab_file {file} is the listing of a SentencePiece model; give the .model file itself as spm_model_file"
        )
    return [line.strip() for line in lines]


def _check_listing(listing: Path, tokens: Sequence[str], model: Path) -> None:
    """google's commands name a model and its listing together; any other vocab_file is a contradiction."""
    pieces = [line.partition("\t")[0] for line in _decode(_read(listing), listing)]
    if pieces != list(tokens):
        raise DataError(
            f"vocab_file {listing} and spm_model_file {model} are different vocabularies; give the one that the model "
            f"was trained with"
        )
