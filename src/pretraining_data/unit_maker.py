"""Units of documents -> rows: UnitMaker, which every worker process has, here or on a Dask cluster."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

import numpy as np

from src.data.feature_files import Ragged
from src.data.record_writer import PackedRows, pack_rows
from src.pretraining_data.diagnostics import VocabularyFit
from src.pretraining_data.examples import (
    TOKENS,
    build_examples,
    columns,
    concatenate,
    exchange,
    token_columns,
    token_rows,
    without_padding,
)
from src.pretraining_data.instances import Documents, Pair, join_documents, sample_pairs
from src.pretraining_data.masking import InstanceSettings, MaskVocabulary, RowRandom
from src.pretraining_data.sentence_packing import pack_sentences
from src.pretraining_data.word_segmenter import INSIDE_WORD, encode_words
from src.text.corpus import split_sentences
from src.tokenization import FullTokenizer

PACKINGS = {"cut": sample_pairs, "google": pack_sentences}
JIEBA = "jieba"

Document = list[str]


@dataclass(frozen=True)
class UnitResult:
    """Rows and statistics of one unit of documents.

    Attributes:
        token_counts: (V,) int64, predictions of each token or, with dynamic masks, its occurrences.
        short_documents: those that are left out (join_documents).
    """

    packed: PackedRows
    token_counts: np.ndarray
    fit: VocabularyFit
    text_bytes: int
    documents: int
    short_documents: int

    @property
    def row_bytes(self) -> int:
        return sum(map(len, self.packed.rows))


class UnitMaker:
    """Maker of the rows of units of documents; every worker process has one."""

    def __init__(self, tokenizer: FullTokenizer, settings: InstanceSettings, seed: int, passes: int) -> None:
        self.tokenizer = tokenizer
        self.settings = settings
        self.seed = seed
        self.passes = passes
        self.vocabulary = MaskVocabulary.of(tokenizer)
        if settings.masking == "static":
            self.columns = columns(settings.max_seq_length, settings.predictions, tokenizer.pad_id)
        else:
            self.columns = token_columns(settings, tokenizer.pad_id)

    def __reduce__(self) -> tuple[Callable[..., "UnitMaker"], tuple[Any, ...]]:
        """Pickle the vocabulary itself, because other machines may not have its file."""
        return _unit_maker, (vars(self.tokenizer), self.settings, self.seed, self.passes)

    def make(self, unit_number: int, unit: list[Document]) -> UnitResult:
        """Return all examples of a unit, shuffled across passes; they depend only on the seed and the unit's number."""
        documents = join_documents(self.encode(unit))
        rows_by_pass = []
        for pass_number in range(self.passes):
            seed = (self.seed, unit_number, pass_number)
            random = Random(int(np.random.default_rng(seed).integers(2**62)))
            pairs = PACKINGS[self.settings.segment_packing](documents, self.settings, random)
            if pairs:
                rows_by_pass.append(self._rows(documents, pairs, seed))
        fit = VocabularyFit.of(documents.ids & ~INSIDE_WORD, self.tokenizer.unk_id)
        text_bytes = sum(len(text.encode()) for document in unit for text in document)
        sizes = (text_bytes, len(unit), len(unit) - len(documents.borders))
        if not rows_by_pass:
            no_rows = PackedRows([], np.zeros(0, np.int32), np.zeros(0, np.uint32))
            return UnitResult(no_rows, np.zeros(self.tokenizer.vocab_size, np.int64), fit, *sizes)
        rows = concatenate(rows_by_pass)
        packed = pack_rows(self.columns, rows)
        packed = packed.take(np.random.default_rng([self.seed, unit_number]).permutation(len(packed.rows)))
        return UnitResult(packed, self._count(rows), fit, *sizes)

    def _rows(self, documents: Documents, pairs: list[Pair], seed: tuple[int, ...]) -> dict[str, Ragged]:
        segments = np.array([pair[:2] for pair in pairs]).reshape(-1, 4)
        labels = np.array([pair.label for pair in pairs])
        if self.settings.masking == "dynamic":
            return token_rows(documents.ids, segments, labels, self.settings)
        if not self.settings.random_next_sentence:
            segments = exchange(segments, labels == 1)
        random = RowRandom(seed, np.arange(len(pairs)))
        return without_padding(build_examples(documents.ids, segments, labels, self.vocabulary, self.settings, random))

    def _count(self, rows: dict[str, Ragged]) -> np.ndarray:
        """Return UnitResult.token_counts of rows."""
        if self.settings.masking == "dynamic":
            counted = rows[TOKENS].values & ~INSIDE_WORD
        else:
            counted = rows["masked_lm_ids"].values[rows["masked_lm_weights"].values > 0]
        return np.bincount(counted, minlength=self.tokenizer.vocab_size)

    def encode(self, unit: list[Document]) -> list[list[list[int]]]:
        """Return the token ids of the sentences of each document, without empty sentences."""
        documents = [[sentence for text in document for sentence in split_sentences(text)] for document in unit]
        encode = self.tokenizer.encode_batch
        if self.settings.word_segmenter == JIEBA:
            encode = partial(encode_words, self.tokenizer)
        encoded = iter(encode(sentence for document in documents for sentence in document))
        return [[ids for _ in document if (ids := next(encoded))] for document in documents]


def _unit_maker(tokenizer_attributes: dict[str, Any], *arguments: Any) -> UnitMaker:
    tokenizer = FullTokenizer.__new__(FullTokenizer)  # its constructor would read the vocabulary's file
    vars(tokenizer).update(tokenizer_attributes)
    return UnitMaker(tokenizer, *arguments)
