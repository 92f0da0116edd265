"""Pairs of segments -> pre-training examples [CLS] A [SEP] B [SEP]: pure functions on numpy.

Examples are stored in one of two forms: masked, ready for training (columns), or as the tokens of both segments
(token_columns), which are masked when they are read (src/pretraining_data/dynamic_masks.py). Shape letters:
B (examples), L (tokens), P (predictions).
"""

from collections.abc import Sequence

import numpy as np

from src.data.feature_files import Column, Ragged
from src.pretraining_data.masking import InstanceSettings, MaskVocabulary, RowRandom, mask_tokens
from src.pretraining_data.word_segmenter import INSIDE_WORD

TASK = "pretrain"  # in the manifest of the files
SPECIAL_TOKENS = 3
TOKENS = "tokens"
SEGMENT_SIZES = "segment_sizes"
LABELS = "next_sentence_labels"
PRETRAIN_WEIGHTS = ("masked_lm_weights",)  # columns that are 0 in padding rows


def columns(length: int, predictions: int, pad_id: int = 0) -> dict[str, Column]:
    """Return the columns of masked examples of `length` tokens, with google's names and meanings."""
    return {
        "input_ids": Column("int32", length, pad_id, per_token=True),
        "input_mask": Column("int32", length, per_token=True),
        "segment_ids": Column("int32", length, per_token=True),
        "token_boundary": Column("int32", length, per_token=True),
        "masked_lm_positions": Column("int32", predictions),
        "masked_lm_ids": Column("int32", predictions),
        "masked_lm_weights": Column("float32", predictions),
        LABELS: Column("int32", 0),
    }


def token_columns(settings: InstanceSettings, pad_id: int) -> dict[str, Column]:
    """Return the columns of unmasked pairs: the tokens of A and B, for SOP in the order of the text."""
    label_column = {LABELS: Column("int32", 0)} if settings.random_next_sentence else {}
    return {
        TOKENS: Column("int32", settings.max_seq_length - SPECIAL_TOKENS, pad_id, per_token=True),
        SEGMENT_SIZES: Column("int32", 2),
        **label_column,
    }


def token_rows(
    ids: np.ndarray, segments: np.ndarray, labels: np.ndarray, settings: InstanceSettings
) -> dict[str, Ragged]:
    """Return unmasked pairs as rows of token_columns; for the arguments see build_examples."""
    rows = len(labels)
    sizes = segments[:, 1::2] - segments[:, ::2]
    tokens = np.concatenate([ids[start:end] for start, end in segments.reshape(-1, 2)])
    label_rows = {LABELS: Ragged(labels.astype(np.int32), np.ones(rows, int))} if settings.random_next_sentence else {}
    return {
        TOKENS: Ragged(tokens, sizes.sum(1)),
        SEGMENT_SIZES: Ragged(sizes.astype(np.int32).ravel(), np.full(rows, 2)),
        **label_rows,
    }


def exchange(segments: np.ndarray, exchanged: np.ndarray) -> np.ndarray:
    """Return (B, 4) segments with A and B swapped in the rows where `exchanged` (B,) is true."""
    return np.where(exchanged[:, None], segments[:, [2, 3, 0, 1]], segments)


def build_examples(
    ids: np.ndarray,
    segments: np.ndarray,
    labels: np.ndarray,
    vocabulary: MaskVocabulary,
    settings: InstanceSettings,
    random: RowRandom,
) -> dict[str, np.ndarray]:
    """Return the masked examples of at least one pair, padded to max_seq_length; for the columns see `columns`.

    An example in which no word is short enough to be masked predicts its [CLS] with weight 0.

    Args:
        ids: (tokens,) int32, with or without INSIDE_WORD.
        segments: (B, 4) int, indices in `ids`: start and end of A, start and end of B.
        labels: (B,) int, next_sentence_labels.
    """
    a_start, a_end, b_start, b_end = segments.T[..., None]  # each (B, 1)
    a_size = a_end - a_start
    lengths = a_size + b_end - b_start + SPECIAL_TOKENS
    position = np.arange(settings.max_seq_length)[None]  # (1, L)
    filled = position < lengths  # (B, L), as all below
    in_b = (position > a_size + 1) & filled
    separator = (position == a_size + 1) | (position == lengths - 1)
    special = separator | (position == 0)
    source = np.where(in_b, position - a_size - 2 + b_start, position - 1 + a_start)
    marked = ids[np.where(filled & ~special, source, a_start)]
    tokens = marked & ~INSIDE_WORD
    continues = marked != tokens
    tokens[~filled] = vocabulary.pad_id
    tokens[separator] = vocabulary.sep_id
    tokens[:, 0] = vocabulary.cls_id
    boundary = ((vocabulary.word_start[tokens] & ~continues) | special) & filled
    word_starts = filled
    if settings.do_whole_word_mask:
        word_starts = boundary | (position == 1) | (position == a_size + 2)
    maskable = filled & ~special
    inputs, predicted = mask_tokens(tokens, lengths[:, 0], word_starts, maskable, in_b, vocabulary, settings, random)
    predicted[~predicted.any(1), 0] = True
    is_prediction = np.arange(settings.predictions) < predicted.sum(1, keepdims=True)  # (B, P)
    positions = np.zeros(is_prediction.shape, np.int32)
    positions[is_prediction] = np.nonzero(predicted)[1]
    return {
        "input_ids": inputs,
        "input_mask": filled.astype(np.int32),
        "segment_ids": in_b.astype(np.int32),
        "token_boundary": boundary.astype(np.int32),
        "masked_lm_positions": positions,
        "masked_lm_ids": np.where(is_prediction, np.take_along_axis(tokens, positions, 1), 0).astype(np.int32),
        "masked_lm_weights": (positions > 0).astype(np.float32),
        LABELS: labels.astype(np.int32),
    }


def without_padding(examples: dict[str, np.ndarray]) -> dict[str, Ragged]:
    """Return the examples of build_examples as they are stored, without padding."""
    tokens = examples["input_mask"].sum(1)
    predictions = np.maximum(1, (examples["masked_lm_weights"] > 0).sum(1))

    def ragged(name: str, values: np.ndarray) -> Ragged:
        if values.ndim == 1:
            return Ragged(values, np.ones_like(tokens))
        counts = predictions if name.startswith("masked_lm") else tokens
        return Ragged(values[np.arange(values.shape[1]) < counts[:, None]], counts)

    return {name: ragged(name, values) for name, values in examples.items()}


def concatenate(parts: Sequence[dict[str, Ragged]]) -> dict[str, Ragged]:
    """Return the rows of several parts, one after the other."""
    joined = {}
    for name in parts[0]:
        values = np.concatenate([part[name].values for part in parts])
        counts = np.concatenate([part[name].counts for part in parts])
        joined[name] = Ragged(values, counts)
    return joined
