"""Text -> tokens -> ids, with google-research/albert's FullTokenizer as the reference: SentencePiece or WordPiece.

Two levels, which differ for SentencePiece only: `tokenize` is google's FullTokenizer.tokenize and takes the text as it
is; `preprocess` is what google's scripts do before that (NFKD, accents off, lower case). `encode`, `encode_batch` and
`tokenize_with_offsets` take raw text and preprocess it themselves; the project uses these.
"""

import copy
import hashlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from model_utils.errors import DataError, shorten
from model_utils.json_files import read_file
from src.text.added_tokens import (
    AddedTokens,
    AddedTokenSchema,
    Segment,
    added_tokens_file,
    read_added_tokens,
)
from src.text.sentence_piece import LISTING_LINE, SENTENCEPIECE_SPECIALS, SentencePiece, is_model
from src.text.tracked_text import Offset, trimmed_span
from src.text.wordpiece import WordPiece

WORDPIECE_SPECIALS = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}


class FullTokenizer:
    """google-research/albert's FullTokenizer for a SentencePiece model or a WordPiece vocabulary.

    Added tokens beside the vocabulary (src/text/added_tokens.py) are kept whole; the text between them is tokenized.

    Args:
        content: content of the vocabulary file, if it is yet to be written.

    Attributes:
        vocab: id of each token.
        inv_vocab: token of each id.
        file, content: the vocabulary file.
        sha256: fingerprint of that file and, if there are any, of the added tokens.
        added, added_tokens: tokens added beside the vocabulary, and their list, by id.

    Raises:
        DataError: the file is missing, damaged, of the other type or without a special token.
    """

    def __init__(
        self,
        vocab_file: str | Path | None = None,
        do_lower_case: bool = True,
        spm_model_file: str | Path | None = None,
        content: bytes | None = None,
    ) -> None:
        file = spm_model_file or vocab_file
        if not file:
            raise DataError("no vocabulary is given: set spm_model_file or, of WordPiece, vocab_file (vocab_file_path)")
        self.do_lower_case = do_lower_case
        self.is_sentencepiece = bool(spm_model_file)
        self.file = Path(file)
        self.content = _read(self.file) if content is None else content
        self.sha256 = hashlib.sha256(self.content).hexdigest()
        self._backend: SentencePiece | WordPiece
        if self.is_sentencepiece:
            self._backend = SentencePiece(self.content, self.file, do_lower_case)
            if vocab_file:
                _check_listing(Path(vocab_file), self._backend.tokens, self.file)
        else:
            self._backend = WordPiece(_read_tokens(self.content, self.file), do_lower_case)
        self.vocab = self._backend.vocab
        self.inv_vocab = dict(enumerate(self._backend.tokens))
        self.vocab_size = len(self._backend.tokens)
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
                raise DataError(f"{self.file}: {token.id} is not the id of the added token {shorten(token.content)}")
            entries[token.id] = token.content
        self.added = added
        self.added_tokens = added.tokens
        self._added_contents = frozenset(token.content for token in added.tokens)
        self.inv_vocab = entries
        self.vocab = self.vocab | {token.content: token.id for token in added.tokens}
        self.vocab_size = len(entries)
        self.sha256 = hashlib.sha256(self.sha256.encode() + added.content).hexdigest()

    def files(self, vocabulary: Path) -> dict[Path, bytes]:
        """Return the contents of the file `vocabulary` and of the one with the added tokens beside it."""
        files = {vocabulary: self.content}
        if self.added is not None:
            files[added_tokens_file(vocabulary)] = self.added.content
        return files

    def segments(self, text: str) -> list[Segment]:
        """Return the added tokens in a text and the text between them."""
        if self.added is not None:
            return self.added.split(text)
        return [Segment(0, len(text), None)] if text else []

    def _backend_at(self, text: str, start: int, follows_token: bool = False) -> SentencePiece | WordPiece:
        """Return the backend for the segment of a text that begins at `start`."""
        begins_word = text[start].isspace() or (self.added is not None and self.added.begins_words)
        return self._backend if begins_word or not (start or follows_token) else self._backend.inside_words

    def __reduce__(self) -> tuple[Callable[..., "FullTokenizer"], tuple[Any, ...]]:
        """Pickle the names of the files, so that worker processes open them anew."""
        return open_tokenizer, (self.file, self.do_lower_case, self.is_sentencepiece)

    def preprocess(self, text: str) -> str:
        """Return the text as google's scripts prepare it: preprocess_text for SentencePiece, nothing for WordPiece."""
        if self.added is None or not self.is_sentencepiece:
            return self._backend.preprocess(text)
        parts = []
        for start, end, token in self.segments(text):
            part = text[start:end]
            if token is None:  # white space beside an added token says whether a word begins there
                before = " " if part[0].isspace() else ""
                behind = " " if part[-1].isspace() else ""
                part = before + self._backend.preprocess(part) + behind
            parts.append(part)
        return "".join(parts).strip()

    def tokenize(self, text: str) -> list[str]:
        """Return the tokens of google's FullTokenizer.tokenize; SentencePiece needs text from preprocess."""
        tokens = []
        for start, end, token in self.segments(text):
            tokens += [token.content] if token else self._backend_at(text, start).tokenize(text[start:end])
        return tokens

    def encode(self, text: str, follows_token: bool = False) -> list[int]:
        """Return the ids of a raw text, without special tokens.

        Args:
            follows_token: the text follows a special token directly, and begins a word only if it begins with space.
        """
        ids = []
        for start, end, token in self.segments(text):
            if token is None:
                backend = self._backend_at(text, start, follows_token)
                ids += backend.encode_batch([backend.preprocess(text[start:end])])[0]
            else:
                ids.append(token.id)
        return ids

    def encode_batch(self, texts: Iterable[str]) -> list[list[int]]:
        """Return the ids of tokenize(preprocess(text)) for each text, without special tokens; use one core."""
        if self.added is not None:
            return [self.encode(text) for text in texts]
        return self._backend.encode_batch([self._backend.preprocess(text) for text in texts])

    def tokenize_with_offsets(self, text: str) -> tuple[list[str], list[Offset]]:
        """Return the tokens tokenize(preprocess(text)) of a raw text, and the text[start:end] that they stand for.

        Offsets leave out outer white space, so that a lone "▁" has an empty one. Tokens that share one source
        character ("½", "ﬁ") share its offset.
        """
        tokens: list[str] = []
        offsets: list[Offset] = []
        for start, end, token in self.segments(text):
            if token is None:
                pieces, spans = self._backend_at(text, start).tokenize_with_offsets(text[start:end])
                tokens += pieces
                offsets += [(start + first, start + last) for first, last in spans]
            else:
                tokens.append(token.content)
                offsets.append(trimmed_span(text, start, end))
        return tokens, offsets

    def convert_tokens_to_ids(self, tokens: Iterable[str]) -> list[int]:
        """Return the ids of tokens; for unknown ones, SentencePiece gives unk_id and WordPiece raises DataError."""
        if self.is_sentencepiece:
            return [self.vocab.get(token, self.unk_id) for token in tokens]
        try:
            return [self.vocab[token] for token in tokens]
        except KeyError as error:
            raise DataError(f"the token {error.args[0]!r} is not in {self.file}") from None

    def convert_ids_to_tokens(self, ids: Iterable[int]) -> list[str]:
        """Return the tokens of ids; raise DataError if the vocabulary has no such id."""
        try:
            return [self.inv_vocab[int(index)] for index in ids]
        except KeyError as error:
            raise DataError(f"{self.file} has ids 0 to {self.vocab_size - 1}, not {error.args[0]}") from None

    def is_word_start(self, token: str) -> bool:
        """Return True if a token begins a word, for whole-word masks, by the rules of google's data script.

        WordPiece: no "##". SentencePiece: begins with "▁" or "<", is a punctuation mark, or holds a character that is
        neither an English letter nor ASCII punctuation. Special tokens are words of their own.
        """
        return token in self._added_contents or self._backend.is_word_start(token)

    def characters(self) -> np.ndarray:
        """Return the number of characters that each token stands for, with the space before a word: (V,) int64.

        For SentencePiece that space is "▁". A WordPiece token that begins a word has it, too, but for punctuation and
        Chinese characters. Unknown, control and byte pieces count as one character.
        """
        backend = self._backend
        added = [self.inv_vocab[index] for index in range(len(backend.tokens), self.vocab_size)]
        return np.array([*map(backend.characters, backend.tokens), *map(len, added)])

    def _set_special_ids(self) -> None:
        specials = SENTENCEPIECE_SPECIALS if self.is_sentencepiece else WORDPIECE_SPECIALS
        missing = [token for token in specials.values() if token not in self.vocab]
        if missing:
            raise DataError(f"{self.file} has no entry {', '.join(missing)}; make one with src/train_vocabulary.py")
        ids = [self.vocab[token] for token in specials.values()]
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = ids


def build_tokenizer(
    vocab_file: str | Path | None, spm_model_file: str | Path | None, do_lower_case: bool
) -> FullTokenizer:
    """Return the tokenizer of the files that a configuration names, with the arguments in the order of its keys."""
    return FullTokenizer(vocab_file, do_lower_case, spm_model_file)


def open_tokenizer(
    file: Path, do_lower_case: bool, is_sentencepiece: bool | None = None, content: bytes | None = None
) -> FullTokenizer:
    """Return the tokenizer of a vocabulary file.

    Args:
        is_sentencepiece: whether it is a SentencePiece model; None: decide by the content.
        content: content of the file, if it is yet to be written.
    """
    if content is None:
        content = _read(file)
    if is_sentencepiece is None:
        is_sentencepiece = is_model(content)
    if is_sentencepiece:
        return FullTokenizer(None, do_lower_case, file, content)
    return FullTokenizer(file, do_lower_case, None, content)


def _read(file: Path) -> bytes:
    content = read_file(file)
    if not content:
        raise DataError(f"the vocabulary {file} is empty")
    return content


def _decode(content: bytes, file: Path) -> list[str]:
    r"""Return the lines of a vocabulary; only "\n" ends a line: Chinese vocabularies have other breaks as entries."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if is_model(content):
            raise DataError(f"vocab_file {file} is a SentencePiece model; give it as spm_model_file") from None
        raise DataError(f"vocab_file {file} is not UTF-8 text at byte {error.start}; fetch or convert it") from None
    return text.removesuffix("\n").split("\n")


def _read_tokens(content: bytes, file: Path) -> list[str]:
    """Return the WordPiece entries, one a line; the id is the line number."""
    lines = _decode(content, file)
    if all(LISTING_LINE.match(line) for line in lines[:100]):
        raise DataError(f"vocab_file {file} is the listing of a SentencePiece model; give the .model as spm_model_file")
    return [line.strip() for line in lines]


def _check_listing(listing: Path, tokens: Sequence[str], model: Path) -> None:
    """Raise DataError if vocab_file is not the model's listing; google's commands name both files."""
    pieces = [line.partition("\t")[0] for line in _decode(_read(listing), listing)]
    if pieces != list(tokens):
        raise DataError(f"vocab_file {listing} is not the listing of spm_model_file {model}; leave it out")
