"""SQuAD: questions whose answers are parts of a context -> rows of token ids, the windows.

As google-research/albert's squad_utils: a row is [CLS] question [SEP] part of the context [SEP], with segment 1 from
the context on. A context that does not fit is cut into overlapping parts, doc_stride tokens apart. Where a part does
not hold the whole answer, training points at [CLS].

google finds an answer's tokens by a longest common subsequence of context and tokens; here the tokenizer tells them.
"""

import itertools
import json
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np

from model_utils.errors import DataError, first_few, shorten
from model_utils.json_files import parse_json
from src.data.feature_cache import TRAIN, Features
from src.data.feature_files import Column, Ragged
from src.data.features import best_windows, text_facts, token_columns
from src.tokenization import FullTokenizer
from src.utils import read_lines

logger = logging.getLogger(__name__)
_TARGETS = ("start_positions", "end_positions", "is_impossible")
_RECORD_KEYS = {"paragraphs", "context_text", "context", "question"}
_KINDS = {str: "a text", list: "a list", dict: "an object", int: "a whole number", bool: "true or false"}


@dataclass(frozen=True, slots=True)
class SquadAnswer:
    """A part of a context: its text, and the character that it starts at."""

    text: str
    start: int


@dataclass(frozen=True, slots=True)
class SquadQuestion:
    """One question.

    context: one object for all questions of a paragraph. answers: none where is_impossible, or where the file does not
    tell. source: name of the file.
    """

    id: str
    question: str
    context: str
    answers: tuple[SquadAnswer, ...] = ()
    is_impossible: bool = False
    source: str = ""


@dataclass(frozen=True)
class _Node:
    """A value in a JSON file, and where it stands."""

    file: Path
    place: str
    value: Any

    def member(self, key: str, kind: type) -> Any:
        """A member of an object, of this kind and no other."""
        if key not in self.value:
            raise self.fault(key, "missing")
        if type(self.value[key]) is not kind:
            raise self.fault(key, f"{json.dumps(self.value[key])[:40]}, needed is {_KINDS[kind]}")
        return self.value[key]

    def text(self, key: str) -> str:
        """A text that is not empty."""
        text = self.member(key, str)
        if not text.strip():
            raise self.fault(key, "empty")
        return text

    def elements(self, key: str, kind: type) -> list[Any]:
        """Return a list whose elements are of this kind and no other."""
        values = self.member(key, list)
        for index, value in enumerate(values):
            if type(value) is not kind:
                raise self.fault(f"{key}[{index}]", f"{json.dumps(value)[:40]}, needed is {_KINDS[kind]}")
        return values

    def objects(self, key: str) -> Iterator["_Node"]:
        """Yield the elements of a list of objects."""
        for index, value in enumerate(self.elements(key, dict)):
            yield _Node(self.file, f"{self.place}{key}[{index}].", value)

    def fault(self, key: str, found: str) -> DataError:
        return DataError(f"{self.file} is not in SQuAD's form: {self.place}{key} is {found}")


def read_squad(path: Path, version_2: bool, labelled: bool = True) -> list[SquadQuestion]:
    """Return the questions of a file, in their order.

    The file is a JSON document, or JSON lines. It holds articles in the form of SQuAD 1.1 or 2.0 or of CMRC 2018's
    trial data, or flat records as Hugging Face's datasets have them: a question with its context each.

    Args:
        version_2: whether questions without an answer are allowed; they have no answers, and may say is_impossible.
        labelled: every question must have its answers, or be without one by version_2. Otherwise answers and
            is_impossible are read where they are; a question with neither is one of which the file does not tell.

    Raises:
        DataError: the file cannot be read, or is of another form; names the place and what is wrong there.
    """
    path = Path(path)
    questions: list[SquadQuestion] = []
    contexts: dict[str, str] = {}  # flat records repeat them
    for paragraph, nodes, keys in _paragraphs(path):
        context = paragraph.text(keys["context"])
        context = contexts.setdefault(context, context)
        for node in nodes:
            name, question = node.text(keys["id"]), node.member(keys["question"], str)
            answers = _read_answers(node, context) if labelled or "answers" in node.value else ()
            told = labelled or bool(answers) or (version_2 and node.value.get("is_impossible") is True)
            impossible = told and _is_impossible(node, answers, version_2)
            questions.append(SquadQuestion(name, question, context, answers, impossible, path.name))
    if not questions:
        raise DataError(f"{path} holds no questions")
    names = Counter(question.id for question in questions)
    if twice := next((name for name, count in names.items() if count > 1), None):
        raise DataError(f"{path}: two questions have the id {shorten(twice)}")
    return questions


def _records(path: Path) -> Iterator[_Node]:
    """Yield the articles or flat records of a file."""
    lines = list(read_lines(path))
    try:
        document = parse_json("".join(lines))
    except ValueError as error:
        first = next((line.strip() for line in lines if line.strip()), "")
        if not (first.startswith("{") and first.endswith("}")):
            raise DataError(f"{path} is not JSON: {error}") from None
        yield from _line_records(path, lines)
        return
    if isinstance(document, dict) and "data" not in document and document.keys() & _RECORD_KEYS:
        yield _Node(path, "line 1: ", document)  # the only one
        return
    if isinstance(document, list):
        document = {"data": document}
    if not isinstance(document, dict):
        raise DataError(f"{path} is not in SQuAD's form: it holds {_KINDS.get(type(document), 'a single value')}")
    yield from _Node(path, "", document).objects("data")


def _line_records(path: Path, lines: Sequence[str]) -> Iterator[_Node]:
    for line_number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = parse_json(line)
        except ValueError as error:
            raise DataError(f"{path}: line {line_number} is not JSON: {error}") from None
        if not isinstance(record, dict):
            raise DataError(f"{path}: line {line_number} is {shorten(record)}, needed is an object")
        yield _Node(path, f"line {line_number}: ", record)


def _paragraphs(path: Path) -> Iterator[tuple[_Node, Iterable[_Node], dict[str, str]]]:
    """Yield paragraphs, their questions and the names that their members have."""
    names = {"context": "context", "id": "id", "question": "question"}
    for record in _records(path):
        if "context_text" in record.value:
            trial_names = {"context": "context_text", "id": "query_id", "question": "query_text"}
            yield record, record.objects("qas"), trial_names
        elif record.value.keys() & {"context", "question"}:
            yield record, [record], names
        else:
            for paragraph in record.objects("paragraphs"):
                yield paragraph, paragraph.objects("qas"), names


def _read_answers(node: _Node, context: str) -> tuple[SquadAnswer, ...]:
    if isinstance(node.value.get("answers"), dict):  # Hugging Face's
        columns = _Node(node.file, f"{node.place}answers.", node.value["answers"])
        starts = columns.elements("answer_start", int)
        texts = columns.elements("text", str)
        if len(starts) != len(texts):
            raise columns.fault("answer_start", f"a list of {len(starts)}, needed are {len(texts)}, as texts")
        return tuple(map(SquadAnswer, texts, starts))
    texts = node.member("answers", list)
    if texts and all(isinstance(text, str) for text in texts):  # CMRC 2018's trial data
        return tuple(SquadAnswer(text, context.find(text)) for text in texts)
    return tuple(
        SquadAnswer(answer.member("text", str), answer.member("answer_start", int))
        for answer in node.objects("answers")
    )


def _is_impossible(node: _Node, answers: Sequence[SquadAnswer], version_2: bool) -> bool:
    impossible = node.member("is_impossible", bool) if "is_impossible" in node.value else not answers
    if impossible == bool(answers):
        raise node.fault("is_impossible", f"{json.dumps(impossible)} while there are {len(answers)} answers")
    if impossible and not version_2:
        raise DataError(
            f"{node.file}: {node.place}answers is empty; questions without an answer are SQuAD 2.0's (run_squad_v2.py)"
        )
    return impossible


@dataclass(frozen=True)
class SquadWindows:
    """Which tokens of which contexts the rows hold, in the order of the rows.

    questions: (rows,) number of the question.
    firsts: (rows,) where in token_spans the row's part of the context begins. counts: (rows,) tokens of that part.
    places: (rows,) where in the row it begins.
    token_spans: (tokens of all contexts, 2) first character of each, and the one after its last.
    """

    questions: np.ndarray
    firsts: np.ndarray
    counts: np.ndarray
    places: np.ndarray
    token_spans: np.ndarray

    @classmethod
    def of(cls, array: Callable[[str], np.ndarray]) -> "SquadWindows":
        """From the arrays, given by name, of features that were not made for training."""
        return cls(*array("windows").T, array("token_spans"))

    def max_context(self) -> np.ndarray:
        """(rows, largest count) bool: no other row of the question has more of the token's surroundings.

        Surroundings are the smaller one of the numbers of tokens before and after it; of equal rows the longer one
        has more, then the first one (google's _check_is_max_context). False behind a row's tokens.
        """
        has_most = np.arange(max(1, self.counts.max(initial=0))) < self.counts[:, None]
        bounds = np.flatnonzero(np.diff(self.questions, prepend=-1, append=-1))
        for first, end in itertools.pairwise(bounds.tolist()):
            if end - first > 1:
                starts, counts = self.firsts[first:end], self.counts[first:end]
                best = best_windows(starts - starts[0], counts)
                for row, start in enumerate((starts - starts[0]).tolist()):
                    has_most[first + row, : counts[row]] = best[start : start + counts[row]] == row
        return has_most


@dataclass(frozen=True)
class SquadSplit:
    """Questions of a split; max_seq_length, in tokens, is at least max_query_length + 4."""

    name: str
    examples: Sequence[SquadQuestion]
    tokenizer: FullTokenizer
    max_seq_length: int
    doc_stride: int
    max_query_length: int

    @property
    def training(self) -> bool:
        """Whether the first answer is looked for, and questions without it at its start are left out."""
        return self.name == TRAIN

    def facts(self) -> dict[str, Any]:
        texts = (
            (context, [(one.question, [(a.text, a.start) for a in one.answers], one.is_impossible) for one in group])
            for context, group in itertools.groupby(self.examples, key=attrgetter("context"))
        )
        settings = {key: getattr(self, key) for key in ("max_seq_length", "doc_stride", "max_query_length", "training")}
        return text_facts({question.source for question in self.examples}, texts, self.tokenizer, **settings)

    def features(self) -> Features:
        """One row for each window of each question, in their order.

        Returns:
            Columns input_ids, input_mask, segment_ids, p_mask (1 at question and [SEP], which cannot be an answer):
            int32, per_token. For training start_positions, end_positions, is_impossible: int32, first and last token of
            the answer and 0, or 0, 0, 1 where the row does not hold it; otherwise the arrays that SquadWindows reads,
            and truncated (questions,) bool, whether a question was cut off.
        """
        cut = _cut(self)
        if cut.left_out:
            logger.info(_describe(cut.left_out, len(self.examples)))
        if not cut.windows:
            raise DataError("there are no questions to make features of")
        _, _, counts, places = placed = np.array(cut.windows, np.int32).T
        input_ids = np.concatenate(cut.pieces)
        columns, values = _token_columns(self.tokenizer, self.max_seq_length, input_ids, counts, places)
        if self.training:
            ones = np.ones(len(counts), np.int64)
            targets = zip(_TARGETS, np.array(cut.positions, np.int32).T, strict=True)
            learnt = {name: Ragged(column, ones) for name, column in targets}
            return Features(columns | dict.fromkeys(learnt, Column("int32", 0)), values | learnt)
        arrays = {"windows": placed.T, "token_spans": np.concatenate(cut.token_spans), "truncated": cut.truncated}
        return Features(columns, values, arrays)


@dataclass
class _Cut:
    """Contexts cut into windows.

    pieces: of all rows, one after the other. windows, positions: of each row, as SquadWindows and _TARGETS have them.
    """

    truncated: np.ndarray
    pieces: list[np.ndarray] = field(default_factory=list)
    windows: list[tuple[int, int, int, int]] = field(default_factory=list)
    positions: list[tuple[int, int, int]] = field(default_factory=list)
    token_spans: list[np.ndarray] = field(default_factory=lambda: [np.zeros((0, 2), np.int32)])
    left_out: list[SquadQuestion] = field(default_factory=list)


def _cut(split: SquadSplit) -> _Cut:
    tokenizer, sep, tokens_before = split.tokenizer, np.array([split.tokenizer.sep_id], np.int32), 0
    queries = tokenizer.encode_batch(question.question for question in split.examples)
    cut = _Cut(np.array([len(query) > split.max_query_length for query in queries]))
    asked = zip(range(len(split.examples)), split.examples, queries, strict=True)
    for context, group in itertools.groupby(asked, key=lambda item: item[1].context):
        tokens, offsets = tokenizer.tokenize_with_offsets(context)
        ids = np.array(tokenizer.convert_tokens_to_ids(tokens), np.int32)
        spans = np.array(offsets, np.int32).reshape(-1, 2)
        for number, question, query in group:
            answer = None
            if split.training and not question.is_impossible:
                answer = _answer_tokens(question, spans)
                if answer is None:
                    cut.left_out.append(question)
                    continue
            head = np.array([tokenizer.cls_id, *query[: split.max_query_length], tokenizer.sep_id], np.int32)
            room = split.max_seq_length - len(head) - 1
            step = min(split.doc_stride, room)
            for first in range(0, max(0, len(ids) - room) + step, step):
                part = ids[first : first + room]
                cut.pieces += [head, part, sep]
                cut.windows.append((number, tokens_before + first, len(part), len(head)))
                cut.positions.append(_positions(answer, first, len(part), len(head)))
        cut.token_spans.append(spans)
        tokens_before += len(spans)
    return cut


def _token_columns(
    tokenizer: FullTokenizer, width: int, input_ids: np.ndarray, counts: np.ndarray, places: np.ndarray
) -> tuple[dict[str, Column], dict[str, Ragged]]:
    """Columns and rows of input_ids and what follows from where the parts of the context (counts) begin (places)."""
    one = np.ones_like(counts)
    segments = np.repeat(np.tile(np.array([0, 1], np.int32), len(counts)), np.stack([places, counts + 1], 1).ravel())
    parts = np.stack([one, places - 1, counts, one], 1).ravel()  # [CLS], question and [SEP], context, [SEP]
    p_mask = np.repeat(np.tile(np.array([0, 1, 0, 1], np.int32), len(counts)), parts)
    columns = token_columns(tokenizer, width) | {"p_mask": Column("int32", width, 1, True)}
    values = (input_ids, np.ones_like(input_ids), segments, p_mask)
    lengths = (places + counts + 1).astype(np.int64)
    return columns, {name: Ragged(rows, lengths) for name, rows in zip(columns, values, strict=True)}


def _answer_tokens(question: SquadQuestion, spans: np.ndarray) -> tuple[int, int] | None:
    """First and last token of the first answer; None where the context has another text there, or no token."""
    answer = question.answers[0]
    if not answer.text or not question.context.startswith(answer.text, answer.start):
        return None
    tokens = np.flatnonzero((spans[:, 0] < answer.start + len(answer.text)) & (spans[:, 1] > answer.start))
    return (int(tokens[0]), int(tokens[-1])) if len(tokens) else None


def _positions(answer: tuple[int, int] | None, first: int, count: int, place: int) -> tuple[int, int, int]:
    """Values of _TARGETS for the part of a context of `count` tokens from `first` on, which begins at `place`."""
    if answer is None or answer[0] < first or answer[1] >= first + count:
        return 0, 0, 1
    return answer[0] - first + place, answer[1] - first + place, 0


def _describe(left_out: Sequence[SquadQuestion], total: int) -> str:
    shown = []
    for question in left_out:
        answer = question.answers[0]
        there = question.context[max(0, answer.start) : max(0, answer.start + len(answer.text))]
        shown.append(
            f"{question.id[:80]} ({shorten(answer.text)} at {shorten(answer.start)}, where {shorten(there)} stands)"
        )
    return (
        f"{left_out[0].source}: {len(left_out):,} of {total:,} questions have an answer that does not lie where "
        f"answer_start says and are left out: {first_few(shown)}"
    )
