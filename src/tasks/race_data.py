"""Reader and encoder of RACE and C3: passages with questions of 2 to 26 options -> rows of token ids.

As in google-research/albert's race_utils, choice c of a question is [CLS] article [SEP] question and option c [SEP],
with segment 1 from the question on. The option replaces every "_" in the question, or follows it after a space. Of
question and option the last max_qa_length tokens are used, of the article the first tokens that fit.
"""

import itertools
import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Annotated, Any, TypeGuard

import numpy as np
from pydantic import Field

from model_utils.errors import DataError, shorten
from model_utils.json_files import Schema, validated
from src.data.feature_cache import Features
from src.data.feature_files import Ragged
from src.data.features import labelled_features, text_manifest, token_columns
from src.data.packing import TEXT_COLUMNS
from src.tokenization import FullTokenizer
from src.utils import read_json_text

logger = logging.getLogger(__name__)
LEVELS = ("middle", "high")
C3 = "c3"  # CLUE's Chinese data set, which has no levels
SOURCES = (*LEVELS, C3)
ANSWERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
MIN_OPTIONS, MAX_OPTIONS = 2, len(ANSWERS)
Options = Annotated[tuple[str, ...], Field(min_length=MIN_OPTIONS, max_length=MAX_OPTIONS)]
RACE_OPTIONS = 4  # options of RACE's questions, and of features whose manifest has no num_choices
BLANK = "_"
Row = tuple[str, str, Sequence[str]]  # article, question, options


@dataclass(frozen=True, slots=True)
class RaceQuestion:
    """Question on an article; level and answer are indices into SOURCES and options.

    The id is LEVEL/FILE/INDEX or, in C3, FILE/PASSAGE/INDEX.
    """

    id: str
    level: int
    article: str
    question: str
    options: tuple[str, ...]
    answer: int


def read_race(data_dir: Path, split: str, level: str = "all") -> list[RaceQuestion]:
    """Return the questions of a split, sorted by level and file name.

    Args:
        data_dir: folder with {train,dev,test}/{middle,high}/*.txt, or its parent if it is called RACE; or one with C3's
            files, such as m-train.json and d-train.json, all of which are read.
        level: "middle", "high" or "all".

    Raises:
        DataError: the folder is missing or without questions, the content of a file is wrong, or C3 is to be read by
            level.
    """
    root = data_dir / "RACE" if (data_dir / "RACE").is_dir() else data_dir
    c3_files = [file for file in sorted(root.glob("*.json")) if split in re.split("[^a-z]+", file.stem.lower())]
    if c3_files and not (root / split).is_dir():
        if level != "all":
            raise DataError(f"{c3_files[0]} has no levels, but level is {level}: leave it at all")
        questions = [question for file in c3_files for question in _read_c3(file)]
    else:
        questions = list(_read_levels(root / split, level))
    if not questions:
        raise DataError(f"{root} holds no questions of {split}")
    return questions


def _read_levels(split_folder: Path, level: str) -> Iterator[RaceQuestion]:
    for level_id, name in enumerate(LEVELS):
        if level in (name, "all"):
            folder = split_folder / name
            files = sorted(folder.glob("*.txt"))
            if not files:
                raise DataError(f"{folder} holds no *.txt files: give RACE's folder, or read a single --level")
            for file in files:
                yield from _read_passage(file, level_id)


class _RaceSchema(Schema):
    article: str
    questions: list[str]
    options: list[Options]
    answers: list[str]


class _C3Question(Schema):
    question: str
    choice: Options
    answer: str


class _C3Schema(Schema):
    passages: list[tuple[list[str], list[_C3Question], Any]]  # paragraphs, questions, id


def _read_passage(file: Path, level_id: int) -> Iterator[RaceQuestion]:
    passage = validated(read_json_text(file), _RaceSchema, str(file))
    lists = (passage.questions, passage.options, passage.answers)
    if not passage.article.strip() or len({len(values) for values in lists}) > 1:
        raise DataError(f"{file} has a blank article, or questions, options and answers of different lengths")
    for index, (question, options, answer) in enumerate(zip(*lists, strict=True)):
        letters = tuple(ANSWERS[: len(options)])
        question_id = f"{LEVELS[level_id]}/{file.name}/{index}"
        if answer not in letters:
            raise DataError(f"{file}: answers.{index} is {shorten(answer)}, allowed are A to {letters[-1]}")
        yield RaceQuestion(question_id, level_id, passage.article, question, options, ANSWERS.index(answer))


def _read_c3(file: Path) -> Iterator[RaceQuestion]:
    """Yield the questions of [[[paragraphs], [{question, choice, answer}], id], ...]; the answer is a choice."""
    content = validated({"passages": read_json_text(file)}, _C3Schema, str(file))
    for passage_index, (paragraphs, questions, _) in enumerate(content.passages):
        article = "\n".join(paragraphs)
        if not article.strip():
            raise DataError(f"{file}: passages.{passage_index}.0 is blank")
        for index, item in enumerate(questions):
            if item.answer not in item.choice:
                place = f"{file}: passages.{passage_index}.1.{index}.answer"
                raise DataError(f"{place} is {shorten(item.answer)}, allowed are its choices")
            question_id = f"{file.name}/{passage_index}/{index}"
            answer = item.choice.index(item.answer)
            yield RaceQuestion(question_id, SOURCES.index(C3), article, item.question, item.choice, answer)


def is_option_list(options: Any) -> TypeGuard[list[Any]]:
    """Return True for a list with an allowed number of options."""
    return isinstance(options, list) and MIN_OPTIONS <= len(options) <= MAX_OPTIONS


@dataclass(frozen=True)
class RaceSplit:
    """Questions of a split.

    Attributes:
        max_seq_length: tokens of one choice, at least max_qa_length + 3.
        num_choices: choices per row, at least the number of options of each question.
    """

    name: str
    examples: Sequence[RaceQuestion]
    tokenizer: FullTokenizer
    max_seq_length: int
    max_qa_length: int
    num_choices: int = RACE_OPTIONS

    def manifest(self) -> dict[str, Any]:
        levels = {SOURCES[question.level] for question in self.examples}
        texts = (
            (article, [(question.id, question.question, question.options, question.answer) for question in group])
            for article, group in itertools.groupby(self.examples, key=attrgetter("article"))
        )
        lengths = {"max_seq_length": self.max_seq_length, "max_qa_length": self.max_qa_length}
        choices = {} if self.num_choices == RACE_OPTIONS else {"num_choices": self.num_choices}
        return text_manifest(levels, texts, self.tokenizer, **lengths, **choices)

    def features(self) -> Features:
        """Return one row per question, in order.

        Returns:
            The columns of encode_questions and label_ids (int32, index of the gold choice). Arrays, (rows,) each:
            labels, the same as label_ids; levels (int32, indices into SOURCES); option_counts (int32); question_ids
            (text).
        """
        questions = self.examples
        if not questions:
            raise DataError("the split has no questions")
        rows = [(question.article, question.question, question.options) for question in questions]
        lengths = self.max_seq_length, self.max_qa_length
        values, truncated = encode_questions(rows, self.tokenizer, *lengths, self.num_choices)
        if truncated.any():
            logger.info(
                f"{truncated.sum():,} of {len(questions):,} questions are truncated: with their article they exceed "
                f"{self.max_seq_length} tokens, or with an option max_qa_length"
            )
        return labelled_features(
            token_columns(self.tokenizer, self.num_choices * self.max_seq_length),
            values,
            np.array([question.answer for question in questions], np.int32),
            levels=np.array([question.level for question in questions], np.int32),
            option_counts=np.array([len(question.options) for question in questions], np.int32),
            question_ids=np.array([question.id for question in questions]),
        )


def encode_questions(
    rows: Iterable[Row], tokenizer: FullTokenizer, max_seq_length: int, max_qa_length: int, num_choices: int
) -> tuple[dict[str, Ragged], np.ndarray]:
    """Encode one question per row; consecutive rows with the same article tokenize it once.

    Args:
        rows: article, question and at most num_choices options each.

    Returns:
        columns: input_ids, input_mask, segment_ids, int32. Entry t * num_choices + c of a row is token t of choice c;
            every choice is padded to the longest one of its row, and missing choices are all padding.
        truncated: (rows,) bool, True if the row's article or choices were truncated.
    """
    encoded = []
    full_lengths = []
    is_cut = []  # whether question and option exceed max_qa_length
    for article, endings in _tokenize(rows, tokenizer):
        is_cut.append(max(map(len, endings)) > max_qa_length)
        endings = [ending[-max_qa_length:] for ending in endings]
        full_lengths.append(len(article) + max(map(len, endings)) + 3)
        encoded.append((article, endings))
    truncated = (np.array(full_lengths) > max_seq_length) | np.array(is_cut)
    lengths = np.minimum(full_lengths, max_seq_length)
    starts = np.cumsum(lengths) - lengths
    shape = (int(lengths.sum()), num_choices)
    input_ids = np.full(shape, tokenizer.pad_id, np.int32)
    input_mask = np.zeros(shape, np.int32)
    segment_ids = np.zeros(shape, np.int32)
    for (article, endings), start in zip(encoded, starts, strict=True):
        for choice, ending in enumerate(endings):
            article_length = min(len(article), max_seq_length - 3 - len(ending))
            end = start + article_length + len(ending) + 3
            tokens = input_ids[start:end, choice]
            tokens[0] = tokenizer.cls_id
            tokens[1 : article_length + 1] = article[:article_length]
            tokens[article_length + 1] = tokenizer.sep_id
            tokens[article_length + 2 : -1] = ending
            tokens[-1] = tokenizer.sep_id
            input_mask[start:end, choice] = 1
            segment_ids[start + article_length + 2 : end, choice] = 1
    columns = (input_ids, input_mask, segment_ids)
    counts = num_choices * lengths
    values = {name: Ragged(column.ravel(), counts) for name, column in zip(TEXT_COLUMNS, columns, strict=True)}
    return values, truncated


def _tokenize(rows: Iterable[Row], tokenizer: FullTokenizer) -> Iterator[tuple[np.ndarray, list[np.ndarray]]]:
    """Yield the token ids of the article and of question with each option, row by row."""
    for article, group in itertools.groupby(rows, key=itemgetter(0)):
        endings = []
        option_counts = []
        for _, question, choices in group:
            question = tokenizer.preprocess(question)
            endings += [_join(question, tokenizer.preprocess(option)) for option in choices]
            option_counts.append(len(choices))
        ids = iter([np.array(row, np.int32) for row in tokenizer.encode_batch([article, *endings])])
        article_ids = next(ids)
        for option_count in option_counts:
            yield article_ids, list(itertools.islice(ids, option_count))


def _join(question: str, option: str) -> str:
    return question.replace(BLANK, option) if BLANK in question else f"{question} {option}"
