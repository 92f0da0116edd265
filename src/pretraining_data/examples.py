"""Pairs of segments -> pre-training examples [CLS] A [SEP] B [SEP]: pure functions on numpy.

Examples are stored in one of two forms: as they are trained on (columns), or as the tokens of both segments
(token_columns), whose masks are drawn when they are read (src/pretraining_data/dynamic_masks.py). Shape letters:
B (examples), L (tokens), P (predictions).
"""

from collections.abc import Sequence

import numpy as np

from src.data.feature_files import Column, Ragged
from src.pretraining_data.masking import InstanceSettings, MaskVocabulary, RowRandom, mask_tokens

TASK = "pretrain"  # in the facts of the files
SPECIAL_TOKENS = 3
TOKENS, SEGMENT_SIZES, LABELS = "tokens", "segment_sizes", "next_sentence_labels"
PRETRAIN_WEIGHTS = ("masked_lm_weights",)  # columns that are 0 in rows which only fill up a batch


def columns(length: int, predictions: int, pad_id: int = 0) -> dict[str, Column]:
    """The columns of pre-training examples of L tokens and P predictions, with google's names and meanings."""
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
    """The columns of pairs without masks: the tokens of A and B, which of SOP stand in the order of the text."""
    label = {LABELS: Column("int32", 0)} if settings.random_next_sentence else {}
    return {
        TOKENS: Column("int32", settings.max_seq_length - SPECIAL_TOKENS, pad_id, per_token=True),
        SEGMENT_SIZES: Column("int32", 2),
        **label,
    }


def token_rows(
    ids: np.ndarray, segments: np.ndarray, labels: np.ndarray, settings: InstanceSettings
) -> dict[str, Ragged]:
    """The rows of pairs without masks; see token_columns, and build_examples for the arguments."""
    rows = len(labels)
    sizes = segments[:, 1::2] - segments[:, ::2]
    tokens = np.concatenate([ids[start:end] for start, end in segments.reshape(-1, 2)])
    label = {LABELS: Ragged(labels.astype(np.int32), np.ones(rows, int))} if settings.random_next_sentence else {}
    return {
        TOKENS: Ragged(tokens, sizes.sum(1)),
        SEGMENT_SIZES: Ragged(sizes.astype(np.int32).ravel(), np.full(rows, 2)),
        **label,
    }


def exchange(segments: np.ndarray, exchanged: np.ndarray) -> np.ndarray:
    """(B, 4) segments of which those of the (B,) bool rows have changed places."""
    return np.where(exchanged[:, None], segments[:, [2, 3, 0, 1]], segments)


def build_examples(
    ids: np.ndarray,
    segments: np.ndarray,
    labels: np.ndarray,
    vocabulary: MaskVocabulary,
    settings: InstanceSettings,
    random: RowRandom,
) -> dict[str, np.ndarray]:
    """Examples of at least one pair, masked and padded to max_seq_length; see columns().

    An example in which no word is short enough to be masked predicts its [CLS] with weight 0.

    Args:
        ids: (tokens,) int32. segments: (B, 4) int, where in `ids` A begins and ends and B begins and ends.
        labels: (B,) int, next_sentence_labels.
    """
    a_start, a_end, b_start, b_end = segments.T[..., None]  # each (B, 1)
    a_size = a_end - a_start
    lengths = a_size + b_end - b_start + SPECIAL_TOKENS
    place = np.arange(settings.max_seq_length)[None]  # (1, L)
    filled = place < lengths  # (B, L), as all below
    in_b = (place > a_size + 1) & filled
    separator = (place == a_size + 1) | (place == lengths - 1)
    special = separator | (place == 0)
    source = np.where(in_b, place - a_size - 2 + b_start, place - 1 + a_start)
    tokens = ids[np.where(filled & ~special, source, a_start)]
    tokens[~filled] = vocabulary.pad_id
    tokens[separator] = vocabulary.sep_id
    tokens[:, 0] = vocabulary.cls_id
    boundary = (vocabulary.word_start[tokens] | special) & filled
    words = boundary | (place == 1) | (place == a_size + 2) if settings.do_whole_word_mask else filled
    inputs, predicted = mask_tokens(tokens, lengths[:, 0], words, filled & ~special, in_b, vocabulary, settings, random)
    predicted[~predicted.any(1), 0] = True
    chosen = np.arange(settings.predictions) < predicted.sum(1, keepdims=True)  # (B, P)
    positions = np.zeros(chosen.shape, np.int32)
    positions[chosen] = np.nonzero(predicted)[1]
    return {
        "input_ids": inputs,
        "input_mask": filled.astype(np.int32),
        "segment_ids": in_b.astype(np.int32),
        "token_boundary": boundary.astype(np.int32),
        "masked_lm_positions": positions,
        "masked_lm_ids": np.where(chosen, np.take_along_axis(tokens, positions, 1), 0).astype(np.int32),
        "masked_lm_weights": (positions > 0).astype(np.float32),
        LABELS: labels.astype(np.int32),
    }


def without_padding(examples: dict[str, np.ndarray]) -> dict[str, Ragged]:
    """The rows of what build_examples returns, as they are stored."""
    tokens = examples["input_mask"].sum(1)
    predictions = np.maximum(1, (examples["masked_lm_weights"] > 0).sum(1))

    def ragged(name: str, values: np.ndarray) -> Ragged:
        if values.ndim == 1:
            return Ragged(values, np.ones_like(tokens))
        counts = predictions if name.startswith("masked_lm") else tokens
        return Ragged(values[np.arange(values.shape[1]) < counts[:, None]], counts)

    return {name: ragged(name, values) for name, values in examples.items()}


def concatenate(parts: Sequence[dict[str, Ragged]]) -> dict[str, Ragged]:
    """The rows of several parts, one after the other."""

    def joined(name: str) -> Ragged:
        rows = [part[name] for part in parts]
        return Ragged(np.concatenate([each.values for each in rows]), np.concatenate([each.counts for each in rows]))

    return {name: joined(name) for name in parts[0]}
