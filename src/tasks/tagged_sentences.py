"""Sentences with tagged words, and their features for token classification: rows of token ids.

The tag of a word is learnt and predicted at its first token.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from model_utils.errors import DataError, shorten
from src.data.feature_cache import Features
from src.data.feature_files import Column, Ragged
from src.data.features import best_windows, text_manifest, token_columns, token_values
from src.tokenization import FullTokenizer


@dataclass(frozen=True, slots=True)
class Sentence:
    """Words of a sentence, and their tags if it is labelled.

    Attributes:
        lines: lines of the words in the file, or the only line.
    """

    words: tuple[str, ...]
    tags: tuple[str, ...] | None = None
    file: Path = Path()
    lines: tuple[int, ...] = ()

    def line_of(self, word: int) -> int:
        return self.lines[min(word, len(self.lines) - 1)]

    def location(self, word: int) -> str:
        return f"{self.file}: line {self.line_of(word)}"


@dataclass(frozen=True)
class NerSplit:
    """Sentences of a split.

    Attributes:
        labels: tags by id.
        mark_capitals: True if tokens of words whose first letter is a capital have segment id 1.
    """

    name: str
    examples: Sequence[Sentence]
    labels: Sequence[str]
    tokenizer: FullTokenizer
    max_seq_length: int
    mark_capitals: bool = False

    def manifest(self) -> dict[str, Any]:
        tagged = ((sentence.words, sentence.tags) for sentence in self.examples)
        source = {sentence.file.name for sentence in self.examples}
        settings = {"max_seq_length": self.max_seq_length, "labels": list(self.labels)}
        return text_manifest(source, tagged, self.tokenizer, mark_capitals=self.mark_capitals, **settings)

    def features(self) -> Features:
        """Return one row per sentence, in order; a long sentence has one row per window.

        Windows overlap by half, and a word belongs to the window with most of its context.

        Returns:
            Columns input_ids, input_mask, segment_ids (int32) and, if all sentences are labelled, label_ids (int32)
            and label_weights (float32, 1 at the first token of each word of the row); all per_token.
            Arrays `words` (all words, 2) int32, row and position of each word; `sentence_words` (sentences,) int32,
            number of words.
        """
        sentences = self.examples
        tokenizer = self.tokenizer
        if not sentences:
            raise DataError("the split has no sentences")
        label_ids = _label_ids(sentences, self.labels)
        word_counts = np.array([len(sentence.words) for sentence in sentences], np.int64)
        words = [word for sentence in sentences for word in sentence.words]
        pieces = tokenizer.encode_batch(words)
        word_types = np.array([self.mark_capitals and _is_capitalised(word) for word in words], np.int32)
        ids: list[int] = []
        types: list[int] = []
        lengths: list[int] = []
        word_positions = np.zeros((word_counts.sum(), 2), np.int32)
        room = self.max_seq_length - 2
        step = max(1, room // 2)
        first_word = 0
        for word_count in word_counts.tolist():
            end_word = first_word + word_count
            word_tokens = [piece or [tokenizer.unk_id] for piece in pieces[first_word:end_word]]
            tokens = list(itertools.chain.from_iterable(word_tokens))
            token_counts = [*map(len, word_tokens)]
            token_types = word_types[first_word:end_word].repeat(token_counts).tolist()
            first_tokens = np.cumsum([0, *token_counts[:-1]])
            starts = np.arange(0, max(0, len(tokens) - room) + step, step)
            sizes = np.minimum(len(tokens) - starts, room)
            windows = best_windows(starts, sizes)[first_tokens]
            rows = len(lengths) + windows
            word_positions[first_word:end_word] = np.stack([rows, first_tokens - starts[windows] + 1], 1)
            for start, size in zip(starts.tolist(), sizes.tolist(), strict=True):
                ids += [tokenizer.cls_id, *tokens[start : start + size], tokenizer.sep_id]
                types += [0, *token_types[start : start + size], 0]
                lengths.append(size + 2)
            first_word = end_word
        row_lengths = np.array(lengths, np.int64)
        input_ids = np.array(ids, np.int32)
        columns = token_columns(tokenizer, self.max_seq_length)
        values = token_values(row_lengths, input_ids, np.array(types, np.int32))
        if label_ids is not None:
            indices = values["input_ids"].offsets[word_positions[:, 0]] + word_positions[:, 1]
            columns["label_ids"] = Column("int32", self.max_seq_length, 0, True)
            columns["label_weights"] = Column("float32", self.max_seq_length, 0, True)
            for name, word_values in (("label_ids", label_ids), ("label_weights", 1)):
                array = np.zeros(len(input_ids), columns[name].dtype)
                array[indices] = word_values
                values[name] = Ragged(array, row_lengths)
        return Features(columns, values, {"words": word_positions, "sentence_words": word_counts.astype(np.int32)})


def _is_capitalised(word: str) -> bool:
    return next(filter(str.isalpha, word), "").isupper()


def _label_ids(sentences: Sequence[Sentence], labels: Sequence[str]) -> np.ndarray | None:
    """Return the label ids (all words,), None if a sentence has no tags; raise DataError for unknown tags."""
    if any(sentence.tags is None for sentence in sentences):
        return None
    ids = {label: index for index, label in enumerate(labels)}
    for sentence in sentences:
        for word, tag in enumerate(sentence.tags or ()):
            if tag not in ids:
                raise DataError(
                    f"{sentence.location(word)} has the tag {shorten(tag)}, allowed are {', '.join(labels)}"
                )
    return np.array([ids[tag] for sentence in sentences for tag in sentence.tags or ()], np.int32)


def word_logits(array: Callable[[str], np.ndarray], logits: Ragged) -> list[np.ndarray]:
    """Return the logits (words, C) of each sentence from a network's logits for all tokens (tokens, C).

    Args:
        array: returns an array of NerSplit's features by name.
    """
    rows, positions = array("words").T
    return np.split(logits.values[logits.offsets[rows] + positions], np.cumsum(array("sentence_words"))[:-1])
