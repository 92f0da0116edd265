"""Coverage of documents by examples: how often their tokens are used, and those near their ends in particular."""

from collections.abc import Sequence
from dataclasses import astuple, dataclass

import numpy as np

from src.pretraining_data.instances import MIN_DOCUMENT_TOKENS, Documents, Pair

NEAR = (8, 32, 64)  # distances from the beginning and from the end of a document, in tokens


@dataclass(frozen=True)
class Coverage:
    """Counts that add up over units of documents.

    Attributes:
        uses, tokens: (7,) int64 occurrences in segments, and tokens times passes over the text; for all tokens, the
            first 8, 32 and 64 of each document, and the last 8, 32 and 64.
        documents: number of all documents.
        left_out: documents of fewer than MIN_DOCUMENT_TOKENS.
    """

    uses: np.ndarray
    tokens: np.ndarray
    documents: int
    left_out: int

    @classmethod
    def none(cls) -> "Coverage":
        """Return the coverage of no documents."""
        zeros = np.zeros(1 + 2 * len(NEAR), np.int64)
        return cls(zeros, zeros, 0, 0)

    @classmethod
    def of(cls, documents: Documents, pairs: Sequence[Pair], passes: int) -> "Coverage":
        """Return the coverage of documents by the pairs that several passes over them made."""
        total = len(documents.ids)
        ends = np.array([pair[:2] for pair in pairs], np.int64).reshape(-1, 2)
        changes = np.bincount(ends[:, 0], minlength=total + 1) - np.bincount(ends[:, 1], minlength=total + 1)
        uses = np.cumsum(changes)[:total]
        first = np.array([borders[0] for borders in documents.borders], np.int64)
        last = np.array([borders[-1] - 1 for borders in documents.borders], np.int64)
        position = np.arange(total)
        sizes = last + 1 - first
        from_first = position - np.repeat(first, sizes)
        from_last = np.repeat(last, sizes) - position
        masks = [from_first >= 0, *(distance < near for distance in (from_first, from_last) for near in NEAR)]
        counts = [(uses[mask].sum(), passes * mask.sum()) for mask in masks]
        left_out = documents.left_out
        return cls(*np.array(counts, np.int64).T, len(documents.borders) + left_out, left_out)

    def __add__(self, other: "Coverage") -> "Coverage":
        return Coverage(*(one + another for one, another in zip(astuple(self), astuple(other), strict=True)))

    @property
    def times(self) -> float:
        """Average number of uses of a token in a pass over the text."""
        return float(self.uses[0] / self.tokens[0])

    @property
    def relative(self) -> np.ndarray:
        """(7,) uses of a token, divided by those of an average token."""
        return self.uses / self.tokens * (self.tokens[0] / self.uses[0])

    def __str__(self) -> str:
        near = ", ".join(map(str, NEAR))
        first, last = (", ".join(f"{share:.2f}" for share in half) for half in np.split(self.relative[1:], 2))
        return (
            f"a pass over the text uses each token {self.times:.2f} times; the first {near} of a "
            f"document {first} times as often, the last {near} {last}; {self.left_out:,} of {self.documents:,} "
            f"documents have fewer than {MIN_DOCUMENT_TOKENS} tokens and are left out"
        )
