"""One or two texts -> rows of token ids: [CLS] a [SEP], or [CLS] a [SEP] b [SEP] with segment 1 from b on.

As in google-research/albert's classifier_utils; a text that is too long for a row is cut or read in windows.
"""

import itertools
from collections.abc import Sequence

import numpy as np

from src.data.feature_files import Ragged
from src.data.features import token_values
from src.tokenization import FullTokenizer


def encode_windows(
    texts_a: Sequence[str],
    texts_b: Sequence[str],
    tokenizer: FullTokenizer,
    max_seq_length: int,
    window_stride: int = 0,
) -> tuple[dict[str, Ragged], np.ndarray, np.ndarray]:
    """Encode one or two texts in one row or, if they are too long for it, in several.

    Args:
        texts_b: second texts; one without tokens means that the row has a single text.
        max_seq_length: maximum tokens of a row, at least 3.
        window_stride: stride in tokens between consecutive windows of a text, at most a window's tokens; of a pair the
            longer text has windows, and each has the shorter one beside it, truncated to half of the room. 0: a single
            row. A text that is too long for that loses tokens at its end; of a pair, the longer one, or the second if
            both are equally long (google's _truncate_seq_pair).

    Returns:
        Columns input_ids, input_mask and segment_ids, int32, without padding; truncated, (texts,) bool; the index of
        each row's texts, (rows,).
    """
    rows = []
    first_segment_counts = []
    truncated = []
    row_counts = []
    for ids_a, ids_b in zip(tokenizer.encode_batch(texts_a), tokenizer.encode_batch(texts_b), strict=True):
        room = max_seq_length - (3 if ids_b else 2)
        if window_stride and len(ids_a) + len(ids_b) > room:
            pairs, is_truncated = _windows(ids_a, ids_b, room, window_stride)
        else:
            length_a = min(len(ids_a), max(room - len(ids_b), (room + 1) // 2))
            length_b = min(len(ids_b), room - length_a)
            pairs = [(ids_a[:length_a], ids_b[:length_b])]
            is_truncated = length_a + length_b < len(ids_a) + len(ids_b)
        for part_a, part_b in pairs:
            row = [tokenizer.cls_id, *part_a, tokenizer.sep_id]
            first_segment_counts.append(len(row))
            rows.append([*row, *part_b, tokenizer.sep_id] if ids_b else row)
        truncated.append(is_truncated)
        row_counts.append(len(pairs))
    counts = np.array([len(row) for row in rows], np.int64)
    input_ids = np.fromiter(itertools.chain.from_iterable(rows), np.int32, counts.sum())
    segment_counts = np.stack([first_segment_counts, counts - first_segment_counts], 1).ravel()
    segment_ids = np.repeat(np.tile(np.array([0, 1], np.int32), len(rows)), segment_counts)
    values = token_values(counts, input_ids, segment_ids)
    return values, np.array(truncated), np.repeat(np.arange(len(row_counts)), row_counts)


def _windows(
    ids_a: list[int], ids_b: list[int], room: int, window_stride: int
) -> tuple[list[tuple[list[int], list[int]]], bool]:
    """Return the tokens of both texts in each window, and whether the shorter text lost some."""
    a_is_long = len(ids_a) >= len(ids_b)
    long, shorter = (ids_a, ids_b) if a_is_long else (ids_b, ids_a)
    short = shorter[: room // 2]
    width = room - len(short)
    step = min(window_stride, width)
    parts = [long[start : start + width] for start in range(0, max(1, len(long) - width + step), step)]
    pairs = [(part, short) if a_is_long else (short, part) for part in parts]
    return pairs, len(short) < len(shorter)


def mean_of_windows(values: np.ndarray, windows: np.ndarray) -> np.ndarray:
    """Return the mean over the rows of each text, (texts, *), of values (rows, *).

    Args:
        windows: (rows,) the text of each row, ascending; every text has a row.
    """
    starts = np.flatnonzero(np.diff(windows, prepend=-1))
    counts = np.diff(starts, append=len(windows)).reshape(-1, *[1] * (values.ndim - 1))
    return np.add.reduceat(values, starts) / counts.astype(values.dtype)
