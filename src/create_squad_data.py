"""Features of SQuAD: questions about a context -> rows of token ids, the windows.

As in google-research/albert's squad_utils, a row is [CLS] question [SEP] context tokens [SEP], with segment 1 from the
context on. A context that does not fit is cut into overlapping windows, doc_stride tokens apart. If a window does not
hold the whole answer, its training target is [CLS].

google aligns an answer with tokens by a longest common subsequence; this module uses the tokenizer's offsets.
"""

import itertools
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field, field_validator

from model_utils.errors import DataError, first_few, shorten
from model_utils.json_files import Schema, matching, parse_json, validated
from src.data.feature_cache import TRAIN, Features
from src.data.feature_files import Column, Ragged
from src.data.features import best_windows, text_manifest, token_columns, token_values
from src.text.text_tables import json_values
from src.tokenization import FullTokenizer
from src.utils import read_lines

logger = logging.getLogger(__name__)
_TARGETS = ("start_positions", "end_positions", "is_impossible")
_RECORD_KEYS = {"paragraphs", "context", "question"}


@dataclass(frozen=True, slots=True)
class SquadAnswer:
    """Answer text and its position in the context."""

    text: str
    start: int  # first character


@dataclass(frozen=True, slots=True)
class SquadQuestion:
    """Question with its context and gold answers.

    Attributes:
        context: the same str object for all questions of a paragraph.
        answers: empty if is_impossible, or if the file has no answers.
        source: name of the file.
    """

    id: str
    question: str
    context: str
    answers: tuple[SquadAnswer, ...] = ()
    is_impossible: bool = False
    source: str = ""


Text = Annotated[str, matching(r"(?s).*\S.*", "a text that is not blank")]


class _Answer(Schema):
    text: str
    answer_start: int


class _Question(Schema):
    id: Text
    question: str
    answers: list[_Answer] = Field(default_factory=list)
    is_impossible: bool = False

    @field_validator("answers", mode="before")
    @classmethod
    def _as_objects(cls, answers: Any) -> Any:
        """Return answers in Hugging Face's form, a list of texts and one of starts, as objects."""
        if not isinstance(answers, dict):
            return answers
        texts = answers.get("text")
        starts = answers.get("answer_start")
        if not isinstance(texts, list) or not isinstance(starts, list) or len(texts) != len(starts):
            raise ValueError("a list of objects, or the lists text and answer_start of the same length")
        return [{"text": text, "answer_start": start} for text, start in zip(texts, starts, strict=True)]


class _FlatQuestion(_Question):
    context: Text


class _Paragraph(Schema):
    context: Text
    qas: list[_Question]


class _Article(Schema):
    paragraphs: list[_Paragraph]


def read_squad(path: Path, version_2: bool, labelled: bool = True) -> list[SquadQuestion]:
    """Return the questions of a file in order.

    The file is a JSON document or JSON lines. It holds articles as in SQuAD 1.1 and 2.0, or flat records as in Hugging
    Face's datasets: each a question with its context.

    Args:
        version_2: allow questions without an answer, with or without is_impossible.
        labelled: True requires the answers of every question, unless version_2 allows none. False reads answers and
            is_impossible if they are there; a question with neither is unlabelled.

    Raises:
        DataError: the file cannot be read or has another format.
    """
    path = Path(path)
    questions: list[SquadQuestion] = []
    contexts: dict[str, str] = {}  # flat records repeat them
    for origin, record in _records(path):
        paragraphs: list[tuple[str, Sequence[_Question]]]
        if isinstance(record, dict) and record.keys() & {"context", "question"}:
            flat = validated(record, _FlatQuestion, origin)
            paragraphs = [(flat.context, [flat])]
        else:
            article = validated(record, _Article, origin)
            paragraphs = [(paragraph.context, paragraph.qas) for paragraph in article.paragraphs]
        for context, items in paragraphs:
            context = contexts.setdefault(context, context)
            for item in items:
                is_impossible = _is_impossible(item, version_2, labelled, origin)
                answers = tuple(SquadAnswer(answer.text, answer.answer_start) for answer in item.answers)
                questions.append(SquadQuestion(item.id, item.question, context, answers, is_impossible, path.name))
    if not questions:
        raise DataError(f"{path} holds no questions")
    id_counts = Counter(question.id for question in questions)
    if duplicate := next((question_id for question_id, count in id_counts.items() if count > 1), None):
        raise DataError(f"{path}: two questions have the id {shorten(duplicate)}")
    return questions


def _records(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield the articles or flat records of a file, each with its place in messages."""
    lines = list(read_lines(path))
    try:
        document = parse_json("".join(lines))
    except ValueError as error:
        first_line = next((line.strip() for line in lines if line.strip()), "")
        if not (first_line.startswith("{") and first_line.endswith("}")):
            raise DataError(f"{path} is not JSON: {error}") from None
        yield from ((f"{path}: line {line}", record) for line, record in json_values(path))
        return
    if isinstance(document, dict) and "data" not in document and document.keys() & _RECORD_KEYS:
        yield f"{path}: line 1", document  # JSON lines with a single record
        return
    records = document.get("data") if isinstance(document, dict) else document
    if not isinstance(records, list):
        raise DataError(f"{path} is not in SQuAD's format: data is {shorten(records)}, needed is a list of articles")
    for index, record in enumerate(records):
        yield f"{path}: data.{index}", record


def _is_impossible(item: _Question, version_2: bool, labelled: bool, origin: str) -> bool:
    """Return True if a question is labelled as having no answer; raise DataError if its label is missing or wrong."""
    count = len(item.answers)
    if labelled and "answers" not in item.model_fields_set:
        raise DataError(f"{origin}: answers is missing in question {shorten(item.id)}")
    states = "is_impossible" in item.model_fields_set
    if not labelled and not count and not (version_2 and item.is_impossible):
        return False
    if states and item.is_impossible == bool(count):
        found = f"is_impossible is {str(item.is_impossible).lower()}"
        raise DataError(f"{origin}: {found} in question {shorten(item.id)}, which has {count} answers")
    if not count and not version_2:
        found = f"answers is empty in question {shorten(item.id)}"
        raise DataError(f"{origin}: {found}; use run_squad_v2.py for questions without an answer")
    return not count


@dataclass(frozen=True)
class SquadWindows:
    """Context tokens of each row (window), in the order of the rows.

    Attributes:
        questions: (rows,) index of the question.
        first_tokens: (rows,) index into token_spans of the row's first context token.
        token_counts: (rows,) number of context tokens.
        context_starts: (rows,) position in the row of the first context token.
        token_spans: (tokens of all contexts, 2) first character and end (exclusive) of each token.
    """

    questions: np.ndarray
    first_tokens: np.ndarray
    token_counts: np.ndarray
    context_starts: np.ndarray
    token_spans: np.ndarray

    @classmethod
    def of(cls, array: Callable[[str], np.ndarray]) -> "SquadWindows":
        """Return the windows from the arrays, by name, of features for evaluation."""
        questions, first_tokens, token_counts, context_starts = array("windows").T
        return cls(questions, first_tokens, token_counts, context_starts, array("token_spans"))

    def max_context(self) -> np.ndarray:
        """Return (rows, largest token count) bool: the row has the maximum context of the token in its question.

        The context of a token is the smaller number of tokens before or after it in the row. If rows are equal, the
        longer one has the maximum, then the first one (google's _check_is_max_context). False after a row's tokens.
        """
        is_max = np.arange(max(1, self.token_counts.max(initial=0))) < self.token_counts[:, None]
        bounds = np.flatnonzero(np.diff(self.questions, prepend=-1, append=-1))
        for first_row, end_row in itertools.pairwise(bounds.tolist()):
            if end_row - first_row > 1:
                starts = self.first_tokens[first_row:end_row] - self.first_tokens[first_row]
                counts = self.token_counts[first_row:end_row]
                best = best_windows(starts, counts)
                for row, start in enumerate(starts.tolist()):
                    is_max[first_row + row, : counts[row]] = best[start : start + counts[row]] == row
        return is_max


@dataclass(frozen=True)
class SquadSplit:
    """Questions of a split with the settings of their features; max_seq_length is at least max_query_length + 4."""

    name: str
    examples: Sequence[SquadQuestion]
    tokenizer: FullTokenizer
    max_seq_length: int
    doc_stride: int
    max_query_length: int

    @property
    def training(self) -> bool:
        """Training features: targets are the first answers, questions without them in the context are left out."""
        return self.name == TRAIN

    def manifest(self) -> dict[str, Any]:
        texts = (
            (context, [(q.question, [(a.text, a.start) for a in q.answers], q.is_impossible) for q in group])
            for context, group in itertools.groupby(self.examples, key=attrgetter("context"))
        )
        settings = {key: getattr(self, key) for key in ("max_seq_length", "doc_stride", "max_query_length", "training")}
        return text_manifest({question.source for question in self.examples}, texts, self.tokenizer, **settings)

    def features(self) -> Features:
        """Return one row for each window of each question, in order.

        Returns:
            Columns input_ids, input_mask, segment_ids, p_mask (1 at question and [SEP], which cannot be an answer):
            int32, per_token.
            For training also start_positions, end_positions, is_impossible, int32: first and last token of the answer
            and 0; or 0, 0, 1 if the row does not hold the answer.
            For evaluation the arrays that SquadWindows reads, and truncated (questions,) bool: the question was cut.
        """
        windowed = _make_windows(self)
        if windowed.left_out:
            logger.info(_describe(windowed.left_out, len(self.examples)))
        if not windowed.windows:
            raise DataError("there are no questions to make features of")
        windows = np.array(windowed.windows, np.int32)
        _, _, token_counts, context_starts = windows.T
        input_ids = np.concatenate(windowed.pieces)
        columns, values = _token_columns(self.tokenizer, self.max_seq_length, input_ids, token_counts, context_starts)
        if self.training:
            ones = np.ones(len(windows), np.int64)
            targets = zip(_TARGETS, np.array(windowed.positions, np.int32).T, strict=True)
            target_values = {name: Ragged(column, ones) for name, column in targets}
            target_columns = dict.fromkeys(target_values, Column("int32", 0))
            return Features(columns | target_columns, values | target_values)
        arrays = {
            "windows": windows,
            "token_spans": np.concatenate(windowed.token_spans),
            "truncated": windowed.truncated,
        }
        return Features(columns, values, arrays)


@dataclass
class _Windows:
    """Windows of the contexts of all questions.

    Attributes:
        pieces: token ids of all rows in order, each row in three arrays.
        windows: values of SquadWindows for each row, up to context_starts.
        positions: values of _TARGETS for each row.
    """

    truncated: np.ndarray
    pieces: list[np.ndarray] = field(default_factory=list)
    windows: list[tuple[int, int, int, int]] = field(default_factory=list)
    positions: list[tuple[int, int, int]] = field(default_factory=list)
    token_spans: list[np.ndarray] = field(default_factory=lambda: [np.zeros((0, 2), np.int32)])
    left_out: list[SquadQuestion] = field(default_factory=list)


def _make_windows(split: SquadSplit) -> _Windows:
    """Return the windows of a split's contexts, tokenizing consecutive equal contexts once."""
    tokenizer = split.tokenizer
    sep = np.array([tokenizer.sep_id], np.int32)
    tokens_before = 0  # in the contexts before this one
    queries = tokenizer.encode_batch(question.question for question in split.examples)
    windowed = _Windows(np.array([len(query) > split.max_query_length for query in queries]))
    numbered_questions = zip(range(len(split.examples)), split.examples, queries, strict=True)
    for context, group in itertools.groupby(numbered_questions, key=lambda item: item[1].context):
        tokens, offsets = tokenizer.tokenize_with_offsets(context)
        ids = np.array(tokenizer.convert_tokens_to_ids(tokens), np.int32)
        spans = np.array(offsets, np.int32).reshape(-1, 2)
        for question_index, question, query in group:
            answer = None
            if split.training and not question.is_impossible:
                answer = _answer_tokens(question, spans)
                if answer is None:
                    windowed.left_out.append(question)
                    continue
            head = np.array([tokenizer.cls_id, *query[: split.max_query_length], tokenizer.sep_id], np.int32)
            room = split.max_seq_length - len(head) - 1
            step = min(split.doc_stride, room)
            for first in range(0, max(0, len(ids) - room) + step, step):
                window_ids = ids[first : first + room]
                windowed.pieces += [head, window_ids, sep]
                windowed.windows.append((question_index, tokens_before + first, len(window_ids), len(head)))
                windowed.positions.append(_positions(answer, first, len(window_ids), len(head)))
        windowed.token_spans.append(spans)
        tokens_before += len(spans)
    return windowed


def _token_columns(
    tokenizer: FullTokenizer, width: int, input_ids: np.ndarray, token_counts: np.ndarray, context_starts: np.ndarray
) -> tuple[dict[str, Column], dict[str, Ragged]]:
    """Return columns and values of input_ids, input_mask, segment_ids and p_mask; input_ids: of all rows in order."""
    one = np.ones_like(token_counts)
    segment_lengths = np.stack([context_starts, token_counts + 1], 1).ravel()
    segments = np.repeat(np.tile(np.array([0, 1], np.int32), len(token_counts)), segment_lengths)
    # Of [CLS]; of the question and its [SEP]; of the context; of the last [SEP].
    mask_lengths = np.stack([one, context_starts - 1, token_counts, one], 1).ravel()
    p_mask = np.repeat(np.tile(np.array([0, 1, 0, 1], np.int32), len(token_counts)), mask_lengths)
    columns = token_columns(tokenizer, width) | {"p_mask": Column("int32", width, 1, True)}
    lengths = (context_starts + token_counts + 1).astype(np.int64)
    return columns, token_values(lengths, input_ids, segments) | {"p_mask": Ragged(p_mask, lengths)}


def _answer_tokens(question: SquadQuestion, spans: np.ndarray) -> tuple[int, int] | None:
    """Return first and last token of the first answer; None if it is not at its start or has no token."""
    answer = question.answers[0]
    if not answer.text or not question.context.startswith(answer.text, answer.start):
        return None
    tokens = np.flatnonzero((spans[:, 0] < answer.start + len(answer.text)) & (spans[:, 1] > answer.start))
    return (int(tokens[0]), int(tokens[-1])) if len(tokens) else None


def _positions(
    answer: tuple[int, int] | None, first: int, token_count: int, context_start: int
) -> tuple[int, int, int]:
    """Return the values of _TARGETS for a window of the context tokens from `first` on; answer: its context tokens."""
    if answer is None or answer[0] < first or answer[1] >= first + token_count:
        return 0, 0, 1
    return answer[0] - first + context_start, answer[1] - first + context_start, 0


def _describe(left_out: Sequence[SquadQuestion], total: int) -> str:
    answers = [
        f"{question.id[:80]} ({shorten(question.answers[0].text)} at {shorten(question.answers[0].start)})"
        for question in left_out
    ]
    return (
        f"{left_out[0].source}: {len(left_out):,} of {total:,} questions are left out, their answer is not at "
        f"answer_start: {first_few(answers)}"
    )
