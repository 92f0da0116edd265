"""Features common to all tasks: token columns, labels, manifest entries that identify texts, samples of examples."""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from model_utils.errors import DataError
from src.data.feature_cache import Features
from src.data.feature_files import Column, Ragged
from src.data.packing import TEXT_COLUMNS
from src.tokenization import FullTokenizer

Item = TypeVar("Item")
LABELS = "labels"  # name of the array of gold label ids or scores of the examples
MARKED = "mark_shared"  # entry of the manifest of features with marks
MARKED_AT_ONCE = 1000  # rows, to bound memory
WINDOWS = "windows"  # name of the array with the example of each row, of classifications


def sample(items: Sequence[Item], limit: int, seed: int) -> list[Item]:
    """Return at most `limit` items, chosen by the seed, in their order; all items if `limit` is 0.

    The sample of a smaller number is a subset of the sample of a larger one.
    """
    if not 0 < limit < len(items):
        return list(items)
    return [items[index] for index in sorted(np.random.default_rng(seed).permutation(len(items))[:limit])]


def split_off(
    items: Sequence[Item], ratio: float, seed: int, labels: Sequence[str] | None = None
) -> tuple[list[Item], list[Item]]:
    """Split items into (the rest, a share `ratio` of them chosen by the seed), both in their order.

    Args:
        labels: class of each item; every class then has about the same share in both, and at least one item in the
            rest. Items are chosen as without labels if the classes are too many for that.

    Raises:
        DataError: one of the two would be empty.
    """
    count = round(ratio * len(items))
    if not 0 < count < len(items):
        raise DataError(
            f"{len(items)} examples cannot be split into two parts with {ratio:g} of them in the second: give a "
            "development file (dev_file), more examples or another dev_ratio"
        )
    order = np.random.default_rng(seed).permutation(len(items))
    chosen = order[:count]
    if labels is not None:
        classes = np.unique(np.asarray(labels), return_inverse=True)[1][order]
        by_class = np.argsort(classes, kind="stable")
        is_not_first_of_class = np.diff(classes[by_class], prepend=-1) == 0
        candidates = order[by_class][is_not_first_of_class]
        if count <= len(candidates):
            chosen = candidates[((np.arange(count) + 0.5) * len(candidates) / count).astype(int)]  # equally spaced
    is_chosen = np.isin(np.arange(len(items)), chosen)
    rest, part = ([items[index] for index in np.flatnonzero(mask)] for mask in (~is_chosen, is_chosen))
    return rest, part


def token_columns(tokenizer: FullTokenizer, width: int) -> dict[str, Column]:
    """Return the columns of tokenized texts: input_ids, input_mask and segment_ids."""
    padding = {"input_ids": tokenizer.pad_id}
    return {name: Column("int32", width, padding.get(name, 0), True) for name in TEXT_COLUMNS}


def token_values(counts: np.ndarray, input_ids: np.ndarray, segment_ids: np.ndarray | None = None) -> dict[str, Ragged]:
    """Return the values of token_columns for rows without padding.

    Args:
        counts: (rows,) tokens of each row.
        input_ids, segment_ids: (tokens,) int32; without segment_ids all are 0.
    """
    segments = np.zeros_like(input_ids) if segment_ids is None else segment_ids
    arrays = (input_ids, np.ones_like(input_ids), segments)
    return {name: Ragged(array, counts) for name, array in zip(TEXT_COLUMNS, arrays, strict=True)}


def mark_shared_tokens(features: Features, texts_per_row: int, tokenizer: FullTokenizer) -> Features:
    """Return features in which tokens that occur in both texts of a pair are marked: their segment ids are 2 larger.

    Special and unknown tokens are never marked.

    Args:
        features: rows of pairs with segment ids 0 and 1.
        texts_per_row: pairs in a row, token by token: entry t * texts_per_row + c is token t of pair c.
    """
    inputs = features.values["input_ids"]
    segments = features.values["segment_ids"].values.copy()
    others = (tokenizer.cls_id, tokenizer.sep_id, tokenizer.pad_id, tokenizer.unk_id)
    for row in range(0, len(inputs.counts), MARKED_AT_ONCE):
        counts = inputs.counts[row : row + MARKED_AT_ONCE]
        start = inputs.offsets[row]
        ids, row_segments = (array[start : start + counts.sum()] for array in (inputs.values, segments))
        pairs = np.arange(len(counts)).repeat(counts) * texts_per_row + np.arange(len(ids)) % texts_per_row
        keys = pairs * tokenizer.vocab_size + ids  # a token of another pair has another key
        is_word = ~np.isin(ids, others)
        first, second = (keys[is_word & (row_segments == segment)] for segment in (0, 1))
        row_segments += 2 * (is_word & np.isin(keys, np.intersect1d(first, second))).astype(np.int32)
    return replace(features, values=features.values | {"segment_ids": Ragged(segments, inputs.counts)})


def labelled_features(
    columns: dict[str, Column], values: dict[str, Ragged], targets: np.ndarray, **arrays: np.ndarray
) -> Features:
    """Return features with a column `label_ids` and an array `labels` of targets, int32 or float32.

    Args:
        targets: (examples,), or (examples, C) where an example has several.
        arrays: further arrays; WINDOWS (rows,) is the example of each row where an example has several rows.
    """
    of_rows = targets[arrays[WINDOWS]] if WINDOWS in arrays else targets
    ragged = Ragged(of_rows.ravel(), np.full(len(of_rows), targets[:1].size))
    label_column = {"label_ids": Column(targets.dtype.name, targets.shape[1] if targets.ndim == 2 else 0)}
    return Features(columns | label_column, values | {"label_ids": ragged}, {LABELS: targets, **arrays})


def hash_texts(texts: Iterable[Any]) -> str:
    """Return the sha256 of texts (JSON values) in their order."""
    digest = hashlib.sha256()
    for text in texts:
        digest.update(json.dumps(text).encode())
    return digest.hexdigest()


def text_manifest(
    source: Iterable[str], texts: Iterable[Any], tokenizer: FullTokenizer, **settings: Any
) -> dict[str, Any]:
    """Return the manifest (src/data/feature_cache.py) of features made from texts.

    Args:
        source: names of the files, for readers of the manifest.
        texts: everything that enters the features, as JSON values.
        settings: further entries.
    """
    return {
        "source": sorted(source),
        "texts_sha256": hash_texts(texts),
        "vocab_sha256": tokenizer.sha256,
        "vocab_size": tokenizer.vocab_size,
        "do_lower_case": tokenizer.do_lower_case,
        **settings,
    }


def best_windows(starts: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return, for every token of a text, the first of the windows that show it with the most context.

    Args:
        starts: (windows,) ascending index of each window's first token.
        counts: (windows,) tokens of each window; together the windows cover the text.
    """
    best_window = np.zeros(starts[-1] + counts[-1], np.int64)
    best_context = np.full(len(best_window), -np.inf)
    for window, (start, count) in enumerate(zip(starts.tolist(), counts.tolist(), strict=True)):
        position = np.arange(count)
        context = np.minimum(position, position[::-1]) + 0.01 * count
        covered = slice(start, start + count)
        better = context > best_context[covered]
        best_context[covered][better] = context[better]
        best_window[covered][better] = window
    return best_window
