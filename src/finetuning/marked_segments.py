"""Embeddings of segment ids 2 and 3, those of tokens that occur in both texts of a pair (mark_shared)."""

from dataclasses import replace

import numpy as np

from src.checkpoints.checkpoint_files import Checkpoint

SEGMENTS = "albert.embeddings.token_type_embeddings"
WORDS = "albert.embeddings.word_embeddings"
# Norm of the mark over the mean norm of a word: docs/experiments/2026-11-30-marks.md.
MARK = 0.3
SEED = 1  # of the mark, the same in all runs


def with_marked_segments(contents: Checkpoint, type_vocab_size: int) -> Checkpoint:
    """Return weights with embeddings of the segment ids 2 and 3: those of 0 and 1, and a random vector, the mark.

    Weights that have `type_vocab_size` segment ids, as those of a run with marks, stay as they are.
    """
    segments, words = contents.values.get(SEGMENTS), contents.values.get(WORDS)
    if segments is None or words is None or len(segments) != 2 or type_vocab_size != 4:
        return contents
    mark = np.random.default_rng(SEED).standard_normal(segments.shape[1])
    mark *= MARK * np.linalg.norm(words.astype(np.float32), axis=1).mean() / np.linalg.norm(mark)
    marked = np.concatenate([segments, segments + mark]).astype(segments.dtype)
    return replace(contents, values=contents.values | {SEGMENTS: marked})
