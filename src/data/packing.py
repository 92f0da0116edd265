"""Packed batches: texts one after the other, without padding between them, for the backbone (src/albert_model.py).

Shape letters: T texts, N tokens including the padding behind the last text, L output tokens of a text, B rows of a
batch, C texts of a row.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

TEXT_COLUMNS = ("input_ids", "input_mask", "segment_ids")  # of padded rows
# All are int32. packed_ids, packed_segments: (1, N). begins: (T + 1,), the index where each text begins, and the end of
# the last one. positions: (N,), of each token in its text. token_indices: (T, L), where each text's tokens stand, N - 1
# for padding.
PACKED_COLUMNS = ("packed_ids", "packed_segments", "begins", "positions", "token_indices")
SIZE_STEP = 16  # sizes outside Packing.sizes are multiples of it


@dataclass(frozen=True)
class Packing:
    """Settings for packing batches of rows.

    Attributes:
        texts_per_row: C.
        output_length: L; 1 for a head that reads only first tokens.
        sizes: the usual values of N, ascending; N of a batch that exceeds them is a multiple of SIZE_STEP.
    """

    texts_per_row: int
    output_length: int
    sizes: tuple[int, ...] = ()

    def sizes_for(self, tokens: np.ndarray) -> np.ndarray:
        """Return N for batches of so many tokens (batches,); the last of the N tokens is always padding."""
        rounded = -(-(tokens + 1) // SIZE_STEP) * SIZE_STEP
        usual = np.array([*self.sizes, 0])[np.searchsorted(self.sizes, tokens + 1)]  # 0: the batch exceeds all of them
        return np.where(usual > 0, usual, rounded)

    def pack(self, batch: Mapping[str, np.ndarray], real: np.ndarray, size: int) -> dict[str, np.ndarray]:
        """Return the PACKED_COLUMNS of a batch of padded rows.

        Args:
            batch: columns (B, *). The texts of a row are interleaved: entry t * C + c is token t of text c, or padding.
            real: (B,) bool; the texts of other rows are empty.
            size: N.
        """
        mask = self._split_texts(batch["input_mask"] * real[:, None]) == 1
        ids = self._split_texts(batch["input_ids"])[mask]
        segments = self._split_texts(batch["segment_ids"])[mask]
        return pack_texts(ids, segments, mask.sum(1), len(mask), size, self.output_length)

    def _split_texts(self, column: np.ndarray) -> np.ndarray:
        """Reshape interleaved texts of W tokens, (B, W * C), to (B * C, W), one row for each text."""
        rows, width = column.shape
        texts = column.reshape(rows, width // self.texts_per_row, self.texts_per_row).swapaxes(1, 2)
        return texts.reshape(rows * self.texts_per_row, -1)


def pack_texts(
    ids: np.ndarray, segments: np.ndarray, lengths: np.ndarray, texts: int, size: int, output_length: int
) -> dict[str, np.ndarray]:
    """Return the PACKED_COLUMNS of concatenated texts.

    Args:
        ids, segments: (tokens,) of all texts.
        lengths: (texts,) tokens of each text.
        texts: T; empty texts are appended.
        size: N.
        output_length: L.
    """
    begins = np.zeros(texts + 1, int)
    begins[1 : len(lengths) + 1] = np.cumsum(lengths)
    begins[len(lengths) + 1 :] = len(ids)
    token_indices = begins[:-1, None] + np.arange(output_length)
    positions = np.arange(len(ids)) - np.repeat(begins[: len(lengths)], lengths)
    padding = (0, size - len(ids))
    columns = (
        np.pad(ids, padding)[None],
        np.pad(segments, padding)[None],
        begins,
        np.pad(positions, padding),
        np.where(token_indices < begins[1:, None], token_indices, size - 1),
    )
    return {name: column.astype(np.int32) for name, column in zip(PACKED_COLUMNS, columns, strict=True)}


def deal_rows(
    lengths: np.ndarray,
    batch_size: int,
    order: np.ndarray,
    random: np.random.Generator | None,
    ranks: int = 1,
) -> np.ndarray:
    """Deal rows to batches of about equally many tokens: sorted by length and cut into B strata, one row of each.

    Args:
        lengths: (rows,) tokens of each row.
        batch_size: B, rows of all ranks together.
        order: the rows; the last ones that fill no batch make a last batch, padded with -1.
        random: generator that draws the row of each stratum; None: longer rows join shorter ones, always the same.
        ranks: each rank gets B / ranks adjacent rows of a batch, with about equally many tokens.

    Returns:
        Row indices, (batches, B) int64.
    """
    full = len(order) // batch_size * batch_size
    full_rows = order[:full]
    leftover = order[full:]
    strata = full_rows[np.argsort(lengths[full_rows], kind="stable")].reshape(batch_size, -1)
    if random is None:
        strata[1::2] = strata[1::2, ::-1]
    else:
        strata = random.permuted(strata, axis=1)
    rows = _deal_to_ranks(strata.T.reshape(-1, batch_size // ranks, ranks), lengths).reshape(-1, batch_size)
    if len(leftover):
        rows = np.concatenate([rows, np.append(leftover, np.full(batch_size - len(leftover), -1))[None]])
    return rows


def _deal_to_ranks(groups: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Give each rank one row of each group, longest group first; longer rows go to ranks with fewer tokens so far.

    Args:
        groups: (batches, groups, ranks) row indices, ascending in length within a batch.

    Returns:
        (batches, ranks, groups) row indices; the rank with the longest row changes from batch to batch.
    """
    batches, count, ranks = groups.shape
    dealt = np.empty((batches, ranks, count), groups.dtype)
    tokens = np.zeros((batches, ranks), int)
    for group in reversed(range(count)):
        fewest_first = np.argsort(tokens, axis=1, kind="stable")
        np.put_along_axis(dealt[:, :, group], fewest_first, groups[:, group, ::-1], axis=1)
        tokens += lengths[dealt[:, :, group]]
    rotated = (np.arange(ranks) + np.arange(batches)[:, None]) % ranks
    return np.take_along_axis(dealt, rotated[:, :, None], axis=1)
