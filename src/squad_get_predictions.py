"""Predictions of SQuAD: network outputs of the windows -> the best spans of every question.

The rules are those of google-research/albert's squad_utils: an answer starts in the window with the maximum context of
its first token, has at most max_answer_length tokens, and counts once if its text occurs several times. Its score is
the sum of its start and end score. Answers are spans of the original context, by the character offsets of their tokens.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from scipy.special import expit

from src.create_squad_data import SquadQuestion, SquadWindows
from src.data.feature_files import Ragged

_SPANS_AT_ONCE = 2**20  # bounds memory: they are scored together


@dataclass(frozen=True, slots=True)
class ScoredSpan:
    """Candidate answer context[start:end] with its probability among the best spans of the question.

    Attributes:
        start_score, end_score: logits for SQuAD 1.1, log-probabilities for 2.0; spans are ranked by their sum.
    """

    text: str
    start: int
    end: int
    probability: float
    start_score: float
    end_score: float


NO_SPAN = ScoredSpan("", 0, 0, 1.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Prediction:
    """Best spans of a question with distinct texts, the best one first; empty if no span is allowed.

    Attributes:
        no_answer_probability: probability that the context has no answer; None for a network without this output.
    """

    best: tuple[ScoredSpan, ...]
    no_answer_probability: float | None = None

    def answer(self, threshold: float | None = None) -> ScoredSpan:
        """Return the best span; one without text if there is none, or no_answer_probability is above the threshold."""
        no_answer = self.no_answer_probability
        is_answered = threshold is None or no_answer is None or no_answer <= threshold
        if self.best and is_answered:
            return self.best[0]
        return replace(NO_SPAN, probability=1.0 if no_answer is None else no_answer)


def independent_predictions(
    questions: Sequence[SquadQuestion],
    windows: SquadWindows,
    outputs: Mapping[str, Ragged],
    n_best_size: int,
    max_answer_length: int,
) -> list[Prediction]:
    """Return a prediction per question from SQuAD v1.1's network, which scores starts and ends independently.

    All allowed spans of a window are compared; google's code compares only those between its best starts and ends.

    Args:
        questions: questions of the windows.
        outputs: start_logits and end_logits of the tokens of all rows, (tokens,).
        n_best_size: number of spans to keep per window and per question.
    """
    chunks = list(_best_of_all_spans(windows, outputs, n_best_size, max_answer_length))
    spans, scores = (np.concatenate(arrays) for arrays in zip(*chunks, strict=True))
    return [Prediction(best) for best in _best_of_questions(questions, windows, spans, scores, n_best_size)]


def _best_of_all_spans(
    windows: SquadWindows, outputs: Mapping[str, Ragged], n_best_size: int, max_answer_length: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the n_best_size best spans of each window (spans, 3) with their scores (spans, 2), for several windows.

    A span is a window, first and last token, counted from the window's first context token.
    """
    may_start = windows.max_context()
    width = may_start.shape[1]
    max_length = min(max_answer_length, width)
    num_best = min(n_best_size, width * max_length)
    row_starts = outputs["start_logits"].offsets[:-1]
    characters = np.pad(windows.token_spans, ((0, 1), (0, 0)))  # the last one is padding
    rows_at_once = max(1, _SPANS_AT_ONCE // (width * max_length))
    for first_row in range(0, len(may_start), rows_at_once):
        chunk = slice(first_row, first_row + rows_at_once)
        positions = windows.context_starts[chunk, None] + np.arange(width)
        starts, ends = (
            outputs[name].values[row_starts[chunk, None] + np.minimum(positions, outputs[name].counts[chunk, None] - 1)]
            for name in ("start_logits", "end_logits")
        )
        starts = np.where(may_start[chunk], starts, -np.inf)
        ends = np.where(np.arange(width) < windows.token_counts[chunk, None], ends, -np.inf)
        ends = np.pad(ends, ((0, 0), (0, max_length - 1)), constant_values=-np.inf)
        sums = starts[:, :, None] + sliding_window_view(ends, max_length, axis=1)  # (window, first token, length - 1)
        tokens = np.minimum(windows.first_tokens[chunk, None] + np.arange(width), len(characters) - 1)
        start_characters = characters[tokens, 0]
        end_characters = np.pad(characters[tokens, 1], ((0, 0), (0, max_length - 1)))
        end_characters = sliding_window_view(end_characters, max_length, axis=1)
        # Spans without a character, such as the single first piece of a word before an emoji.
        sums[end_characters <= start_characters[:, :, None]] = -np.inf
        sums = sums.reshape(len(sums), -1)
        threshold = np.partition(sums, -num_best, axis=1)[:, [-num_best]]
        rows, spans = np.nonzero((sums >= threshold) & (sums > -np.inf))
        order = np.lexsort((spans, -sums[rows, spans], rows))
        # Ties at the threshold could exceed num_best and memory.
        order = order[np.arange(len(rows)) - np.searchsorted(rows, rows) < num_best]
        rows = rows[order]
        first_tokens, lengths = np.divmod(spans[order], max_length)
        last_tokens = first_tokens + lengths
        scores = np.stack([starts[rows, first_tokens], ends[rows, last_tokens]], 1)
        yield np.stack([rows + first_row, first_tokens, last_tokens], 1), scores


def beam_predictions(
    questions: Sequence[SquadQuestion],
    windows: SquadWindows,
    outputs: Mapping[str, np.ndarray],
    n_best_size: int,
    max_answer_length: int,
) -> list[Prediction]:
    """Return a prediction per question from SQuAD v2.0's network, which searches ends for its best starts.

    A question has no answer only if every window has none: the smallest cls_logits of its windows counts, as in
    google's code.

    Args:
        questions: questions of the windows.
        outputs: those of SpanSearchScores: start_top_log_probs, start_top_index (rows, S); end_top_log_probs,
            end_top_index (rows, S * E), end e of start s at s * E + e; cls_logits (rows,), log-odds of no answer.
    """
    ends = outputs["end_top_index"].astype(np.int64) - windows.context_starts[:, None]
    ends_per_start = ends.shape[1] // outputs["start_top_index"].shape[1]
    starts = outputs["start_top_index"].astype(np.int64).repeat(ends_per_start, 1) - windows.context_starts[:, None]
    may_start = windows.max_context()
    is_allowed = (starts >= 0) & (ends < windows.token_counts[:, None])
    is_allowed &= (starts <= ends) & (ends < starts + max_answer_length)
    is_allowed &= np.take_along_axis(may_start, starts.clip(0, may_start.shape[1] - 1), 1)
    rows, candidates = np.nonzero(is_allowed)
    spans = np.stack([rows, starts[rows, candidates], ends[rows, candidates]], 1)
    start_scores = outputs["start_top_log_probs"][rows, candidates // ends_per_start]
    scores = np.stack([start_scores, outputs["end_top_log_probs"][rows, candidates]], 1)
    no_answer_logits = np.full(len(questions), np.inf)
    np.minimum.at(no_answer_logits, windows.questions, outputs["cls_logits"].astype(np.float64))
    best_spans = _best_of_questions(questions, windows, spans, scores, n_best_size)
    return [Prediction(*pair) for pair in zip(best_spans, expit(no_answer_logits).tolist(), strict=True)]


def _best_of_questions(
    questions: Sequence[SquadQuestion], windows: SquadWindows, spans: np.ndarray, scores: np.ndarray, n_best_size: int
) -> Iterator[tuple[ScoredSpan, ...]]:
    """Yield the best spans of each question; of equal scores the first in the order of windows and tokens."""
    rows, first_tokens, last_tokens = spans.T
    question_indices = windows.questions[rows]
    scores = scores.astype(np.float64)
    order = np.lexsort((last_tokens, first_tokens, rows, -scores.sum(1), question_indices))
    starts = windows.token_spans[windows.first_tokens[rows] + first_tokens, 0]
    ends = windows.token_spans[windows.first_tokens[rows] + last_tokens, 1]
    characters = np.stack([starts, ends], 1)[order]
    scores = scores[order]
    bounds = np.searchsorted(question_indices[order], np.arange(len(questions) + 1))
    for question, (first, end) in zip(questions, itertools.pairwise(bounds.tolist()), strict=True):
        yield _distinct_spans(question.context, characters[first:end], scores[first:end], n_best_size)


def _distinct_spans(
    context: str, characters: np.ndarray, scores: np.ndarray, n_best_size: int
) -> tuple[ScoredSpan, ...]:
    """Return the first spans with distinct texts, of characters and scores (spans, 2), the best one first."""
    first_occurrences: dict[str, tuple[int, int]] = {}  # text -> start, span index
    for index, (start, end) in enumerate(characters.tolist()):
        text = context[start:end].strip()
        if text and text not in first_occurrences:
            first_occurrences[text] = context.index(text, start), index
        if len(first_occurrences) == n_best_size:
            break
    best_scores = scores[np.array([index for _, index in first_occurrences.values()], int)]
    sums = best_scores.sum(1)
    weights = np.exp(sums - sums.max(initial=-np.inf))
    probabilities = (weights / weights.sum()).tolist()
    spans = zip(first_occurrences.items(), probabilities, best_scores.tolist(), strict=True)
    return tuple(ScoredSpan(text, start, start + len(text), p, *pair) for (text, (start, _)), p, pair in spans)
