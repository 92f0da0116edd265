"""What a network says about the windows of SQuAD -> the best spans of every question.

The rules are google-research/albert's (squad_utils): an answer starts where its window has the most context, has at
most max_answer_length tokens, and counts once however often its text is found. Its score is that of its start plus that
of its end. Answers are parts of the original context, by the characters that their tokens come from.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from scipy.special import expit

from src.create_squad_data import SquadQuestion, SquadWindows
from src.data.feature_files import Ragged

_WINDOWS_AT_ONCE = 64  # every span of these is scored at the same time


@dataclass(frozen=True, slots=True)
class ScoredSpan:
    """A possible answer, context[start:end], and its probability among the best ones of its question.

    start_score, end_score: of its two ends, logits for version 1.1, log-probabilities for 2.0; their sum ranks it.
    """

    text: str
    start: int
    end: int
    probability: float
    start_score: float
    end_score: float


@dataclass(frozen=True, slots=True)
class Prediction:
    """The best spans of a question, of different texts, the best one first; none where no span is allowed.

    no_answer_probability: that the context has no answer; None from a network that does not tell.
    """

    best: tuple[ScoredSpan, ...]
    no_answer_probability: float | None = None

    def choose(self, threshold: float | None = None) -> ScoredSpan | None:
        """The answer; None where no span is allowed, or no_answer_probability is above the threshold."""
        if threshold is not None and self.no_answer_probability is not None and self.no_answer_probability > threshold:
            return None
        return self.best[0] if self.best else None


def independent_predictions(
    questions: Sequence[SquadQuestion],
    windows: SquadWindows,
    outputs: Mapping[str, Ragged],
    n_best_size: int,
    max_answer_length: int,
) -> list[Prediction]:
    """Predictions of SQuAD v1.1's network, which scores starts and ends by themselves, one for each question.

    All allowed spans of a window are compared, not those between its best starts and ends alone as in google's code.

    Args:
        questions: the windows' own.
        outputs: start_logits, end_logits of all rows' tokens, (tokens,).
        n_best_size: spans to keep of every window and of every question.
    """
    parts = list(_best_of_all_spans(windows, outputs, n_best_size, max_answer_length))
    places, scores = (np.concatenate(part) for part in zip(*parts, strict=True))
    return [Prediction(best) for best in _best_of_questions(questions, windows, places, scores, n_best_size)]


def _best_of_all_spans(
    windows: SquadWindows, outputs: Mapping[str, Ragged], n_best_size: int, max_answer_length: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Places (spans, 3) and scores (spans, 2) of the n_best_size best spans of each window, for some windows at a time.

    A place is a window with the first and the last token in its part of the context.
    """
    may_start = windows.max_context()
    width = may_start.shape[1]
    longest = min(max_answer_length, width)
    most = min(n_best_size, width * longest)
    counts = outputs["start_logits"].counts
    first_token = np.cumsum(counts) - counts
    characters = np.pad(windows.token_spans, ((0, 1), (0, 0)))  # and what rows are filled up with
    for first in range(0, len(may_start), _WINDOWS_AT_ONCE):
        chunk = slice(first, first + _WINDOWS_AT_ONCE)
        at = windows.context_starts[chunk, None] + np.arange(width)
        starts, ends = (
            outputs[name].values[first_token[chunk, None] + np.minimum(at, outputs[name].counts[chunk, None] - 1)]
            for name in ("start_logits", "end_logits")
        )
        starts = np.where(may_start[chunk], starts, -np.inf)
        ends = np.where(np.arange(width) < windows.token_counts[chunk, None], ends, -np.inf)
        ends = np.pad(ends, ((0, 0), (0, longest - 1)), constant_values=-np.inf)
        sums = starts[:, :, None] + sliding_window_view(ends, longest, axis=1)
        own = characters[np.minimum(windows.first_tokens[chunk, None] + np.arange(width), len(characters) - 1)]
        behind = sliding_window_view(np.pad(own[:, :, 1], ((0, 0), (0, longest - 1))), longest, axis=1)
        sums[behind <= own[:, :, :1]] = -np.inf  # of no character, as a word's lone first piece before an emoji
        sums = sums.reshape(len(sums), -1)
        least = np.partition(sums, -most, axis=1)[:, [-most]]
        rows, spans = np.nonzero((sums >= least) & (sums > -np.inf))
        order = np.lexsort((spans, -sums[rows, spans], rows))
        order = order[np.arange(len(rows)) - np.searchsorted(rows, rows) < most]  # memory, where many are equal
        rows, spans = rows[order], spans[order]
        tokens, lengths = np.divmod(spans, longest)
        scores = np.stack([starts[rows, tokens], ends[rows, tokens + lengths]], 1)
        yield np.stack([rows + first, tokens, tokens + lengths], 1), scores


def beam_predictions(
    questions: Sequence[SquadQuestion],
    windows: SquadWindows,
    outputs: Mapping[str, np.ndarray],
    n_best_size: int,
    max_answer_length: int,
) -> list[Prediction]:
    """Predictions of SQuAD v2.0's network, which searches ends for its best starts, one for each question.

    A question has no answer if every window says so: the smallest cls_logits of its windows counts (as google's).

    Args:
        questions: the windows' own.
        outputs: those of SpanSearchScores: start_top_log_probs, start_top_index (rows, S); end_top_log_probs,
            end_top_index (rows, S * E), end e of start s at s * E + e; cls_logits (rows,), log-odds of no answer.
    """
    ends = outputs["end_top_index"].astype(np.int64) - windows.context_starts[:, None]
    repeats = ends.shape[1] // outputs["start_top_index"].shape[1]
    starts = outputs["start_top_index"].astype(np.int64).repeat(repeats, 1) - windows.context_starts[:, None]
    may_start = windows.max_context()
    allowed = (
        (starts >= 0) & (ends < windows.token_counts[:, None]) & (starts <= ends) & (ends < starts + max_answer_length)
    )
    allowed &= np.take_along_axis(may_start, starts.clip(0, may_start.shape[1] - 1), 1)
    rows, spans = np.nonzero(allowed)
    places = np.stack([rows, starts[rows, spans], ends[rows, spans]], 1)
    of_starts = outputs["start_top_log_probs"][rows, spans // repeats]
    scores = np.stack([of_starts, outputs["end_top_log_probs"][rows, spans]], 1)
    no_answer = np.full(len(questions), np.inf)
    np.minimum.at(no_answer, windows.questions, outputs["cls_logits"].astype(np.float64))
    found = _best_of_questions(questions, windows, places, scores, n_best_size)
    return [Prediction(*pair) for pair in zip(found, expit(no_answer).tolist(), strict=True)]


def _best_of_questions(
    questions: Sequence[SquadQuestion], windows: SquadWindows, places: np.ndarray, scores: np.ndarray, n_best_size: int
) -> Iterator[tuple[ScoredSpan, ...]]:
    """The best of these spans for each question; of equally good ones the first in the order of windows and tokens."""
    rows, first_tokens, last_tokens = places.T
    numbers, scores = windows.questions[rows], scores.astype(np.float64)
    order = np.lexsort((last_tokens, first_tokens, rows, -scores.sum(1), numbers))
    starts = windows.token_spans[windows.first_tokens[rows] + first_tokens, 0]
    ends = windows.token_spans[windows.first_tokens[rows] + last_tokens, 1]
    characters, scores = np.stack([starts, ends], 1)[order], scores[order]
    bounds = np.searchsorted(numbers[order], np.arange(len(questions) + 1))
    for question, (first, last) in zip(questions, itertools.pairwise(bounds.tolist()), strict=True):
        yield _different_texts(question.context, characters[first:last], scores[first:last], n_best_size)


def _different_texts(
    context: str, characters: np.ndarray, scores: np.ndarray, n_best_size: int
) -> tuple[ScoredSpan, ...]:
    """The first spans that have different texts, of characters (spans, 2) and scores (spans, 2), the best one first."""
    found: dict[str, tuple[int, int]] = {}
    for index, (start, end) in enumerate(characters.tolist()):
        text = context[start:end].strip()
        if text and text not in found:
            found[text] = context.index(text, start), index
        if len(found) == n_best_size:
            break
    kept = scores[np.array([index for _, index in found.values()], int)]
    weights = np.exp(kept.sum(1) - kept.sum(1).max(initial=-np.inf))
    probabilities = (weights / weights.sum()).tolist()
    spans = zip(found.items(), probabilities, kept.tolist(), strict=True)
    return tuple(ScoredSpan(text, start, start + len(text), p, *pair) for (text, (start, _)), p, pair in spans)
