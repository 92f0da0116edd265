"""Texts one after the other, without padding between them, as the backbone reads them (src/albert_model.py).

Shape letters: T texts, N tokens, those of no text behind the last one included, L tokens of a text that have places,
B rows of a batch, C texts of a row.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

TEXT_COLUMNS = ("input_ids", "input_mask", "segment_ids")  # of texts that have a row each
# packed_ids, packed_segments (1, N), positions (N,): of each token, in its text; begins (T + 1,): where texts begin and
# the last one ends; places (T, L): of the tokens of each text, N - 1 behind them. All are int32.
PACKED_COLUMNS = ("packed_ids", "packed_segments", "begins", "positions", "places")
SIZE_STEP = 16  # sizes that nobody has chosen are multiples of it


@dataclass(frozen=True)
class Packing:
    """How batches of rows are packed.

    texts_per_row: C. places: L; a head that needs first tokens alone has 1. sizes: the usual values of N, ascending; a
    batch that fits none has one of its own.
    """

    texts_per_row: int
    places: int
    sizes: tuple[int, ...] = ()

    def sizes_for(self, tokens: np.ndarray) -> np.ndarray:
        """N for batches (batches,) of so many tokens; the last place is always one of no text."""
        own = -(-(tokens + 1) // SIZE_STEP) * SIZE_STEP
        if not self.sizes:
            return own
        sizes, fitting = np.array(self.sizes), np.searchsorted(self.sizes, tokens + 1)
        return np.where(fitting < len(sizes), sizes[np.minimum(fitting, len(sizes) - 1)], own)

    def pack(self, batch: Mapping[str, np.ndarray], real: np.ndarray, size: int) -> dict[str, np.ndarray]:
        """The PACKED_COLUMNS of a batch of rows that are padded, (B, *), of which those that are not real have no text.

        Where a row has several texts, they are interleaved: entry t * C + c is token t of text c, or padding.
        """
        mask = self._apart(batch["input_mask"] * real[:, None]) == 1
        ids, segments = (self._apart(batch[name])[mask] for name in ("input_ids", "segment_ids"))
        return pack_texts(ids, segments, mask.sum(1), len(mask), size, self.places)

    def _apart(self, column: np.ndarray) -> np.ndarray:
        """(B, L C) interleaved -> (B C, L), a row for each text."""
        rows, width = column.shape
        texts = column.reshape(rows, width // self.texts_per_row, self.texts_per_row).swapaxes(1, 2)
        return texts.reshape(rows * self.texts_per_row, -1)


def pack_texts(
    ids: np.ndarray, segments: np.ndarray, lengths: np.ndarray, texts: int, size: int, places: int
) -> dict[str, np.ndarray]:
    """PACKED_COLUMNS of texts whose ids and segments (tokens,) stand one after the other, `lengths` of them.

    Args:
        texts: T, empty ones behind those given. size: N. places: L.
    """
    begins = np.zeros(texts + 1, int)
    begins[1 : len(lengths) + 1] = np.cumsum(lengths)
    begins[len(lengths) + 1 :] = len(ids)
    of_tokens = begins[:-1, None] + np.arange(places)
    columns = (
        _filled_up(ids, size)[None],
        _filled_up(segments, size)[None],
        begins,
        _filled_up(np.arange(len(ids)) - np.repeat(begins[: len(lengths)], lengths), size),
        np.where(of_tokens < begins[1:, None], of_tokens, size - 1),
    )
    return {name: column.astype(np.int32) for name, column in zip(PACKED_COLUMNS, columns, strict=True)}


def _filled_up(values: np.ndarray, size: int) -> np.ndarray:
    """As many, 0 behind those given."""
    return np.pad(values, (0, size - len(values)))


def deal_rows(
    lengths: np.ndarray,
    batch_size: int,
    order: np.ndarray,
    drop_remainder: bool,
    random: np.random.Generator | None,
    ranks: int = 1,
) -> np.ndarray:
    """Deal rows to batches that have about as many tokens each: every batch has one row of each B-th part by length.

    Args:
        lengths: (rows,) tokens. order: permutation of the rows, of which the last ones may be left out.
        drop_remainder: leave out what does not fill a batch; else it is the last one, filled up with -1.
        random: which row of its part a batch gets; None: longer ones beside shorter ones, always the same.
        ranks: that each get as many rows of a batch, one rank's behind the other's, with about as many tokens.

    Returns:
        Row numbers, (batches, B) int64.
    """
    full = len(order) // batch_size * batch_size
    chosen, rest = order[:full], order[full:]
    parts = chosen[np.argsort(lengths[chosen], kind="stable")].reshape(batch_size, -1)
    if random is None:
        parts[1::2] = parts[1::2, ::-1]
    else:
        parts = random.permuted(parts, axis=1)
    rows = _deal_to_ranks(parts.T.reshape(-1, batch_size // ranks, ranks), lengths).reshape(-1, batch_size)
    if len(rest) and not drop_remainder:
        rows = np.concatenate([rows, np.append(rest, np.full(batch_size - len(rest), -1))[None]])
    return rows


def _deal_to_ranks(groups: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Give each rank one row of each group, from the longest on, the longer ones to ranks with fewer tokens so far.

    Args:
        groups: (batches, groups, ranks) row numbers, ascending in length within a batch.

    Returns:
        (batches, ranks, groups); which rank has the longest row changes from batch to batch.
    """
    batches, count, ranks = groups.shape
    dealt, tokens = np.empty((batches, ranks, count), groups.dtype), np.zeros((batches, ranks), int)
    for group in reversed(range(count)):
        fewest_first = np.argsort(tokens, axis=1, kind="stable")
        np.put_along_axis(dealt[:, :, group], fewest_first, groups[:, group, ::-1], axis=1)
        tokens += lengths[dealt[:, :, group]]
    turned = (np.arange(ranks) + np.arange(batches)[:, None]) % ranks
    return np.take_along_axis(dealt, turned[:, :, None], axis=1)
