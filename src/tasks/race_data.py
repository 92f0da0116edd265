"""RACE: folders of passages with questions of 2 to 26 options -> rows of token ids.

As google-research/albert's race_utils: choice c of a question is [CLS] article [SEP] question and option c [SEP], with
segment 1 from the question on. The option takes the place of every "_" in the question; without one it follows after a
space. Of question and option the last max_qa_length tokens stay, of the article the first ones that there is room for.
"""

import itertools
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from model_utils.errors import DataError, shorten
from src.data.feature_cache import Features
from src.data.feature_files import Ragged
from src.data.features import labelled_features, text_facts, token_columns
from src.data.packing import TEXT_COLUMNS
from src.tokenization import FullTokenizer
from src.utils import read_json_text

logger = logging.getLogger(__name__)
LEVELS = ("middle", "high")
ANSWERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
FEWEST_OPTIONS, MOST_OPTIONS = 2, len(ANSWERS)
RACE_OPTIONS = 4  # of each question of RACE, and of features that do not say how many
BLANK = "_"
_KEYS = ("article", "questions", "options", "answers")


@dataclass(frozen=True, slots=True)
class RaceQuestion:
    """A question; id: LEVEL/FILE/NUMBER, numbers from 0; level, answer: indices into LEVELS and options."""

    id: str
    level: int
    article: str
    question: str
    options: tuple[str, ...]
    answer: int


def read_race(data_dir: Path, split: str, level: str = "all") -> list[RaceQuestion]:
    """The questions of a split, in the order of levels and file names.

    Args:
        data_dir: a folder that holds {train,dev,test}/{middle,high}/*.txt, or one that holds it as RACE.
        level: "middle", "high" or "all".

    Raises:
        DataError: the folder is not there or is empty, or a file is not as it must be.
    """
    root = data_dir / "RACE" if (data_dir / "RACE").is_dir() else data_dir
    questions = []
    for number, name in enumerate(LEVELS):
        if level in (name, "all"):
            folder = root / split / name
            files = sorted(folder.glob("*.txt"))
            if not files:
                raise DataError(
                    f"{folder} holds no *.txt files; allowed is RACE's folder, unpacked from RACE.tar.gz, or --level "
                    "middle or high for one of its parts"
                )
            for file in files:
                questions += _read_passage(file, number)
    return questions


def _read_passage(file: Path, level: int) -> list[RaceQuestion]:
    passage = read_json_text(file)
    missing = [key for key in _KEYS if key not in passage] if isinstance(passage, dict) else list(_KEYS)
    if missing:
        raise DataError(f"{file} is not a RACE passage: it has no {', '.join(missing)}")
    article, questions, options, answers = (passage[key] for key in _KEYS)
    if not isinstance(article, str) or not article.strip():
        raise DataError(f"{file}: the article is empty or no text")
    lists = (questions, options, answers)
    if not all(isinstance(part, list) for part in lists) or len({len(part) for part in lists}) > 1:
        raise DataError(f"{file}: questions, options and answers are not lists of the same length")
    found = []
    for number, (question, choices, answer) in enumerate(zip(questions, options, answers, strict=True)):
        if not isinstance(question, str):
            raise DataError(f"{file}: question {number} (from 0) is no text")
        if not is_option_list(choices) or not all(isinstance(choice, str) for choice in choices):
            raise DataError(
                f"{file}: question {number} (from 0) has the options {shorten(choices)}, allowed are {FEWEST_OPTIONS} "
                f"to {MOST_OPTIONS} texts"
            )
        letters = tuple(ANSWERS[: len(choices)])
        if answer not in letters:
            raise DataError(
                f"{file}: question {number} (from 0) has the answer {shorten(answer)}, allowed are A to {letters[-1]}"
            )
        name = f"{LEVELS[level]}/{file.name}/{number}"
        found.append(RaceQuestion(name, level, article, question, tuple(choices), ANSWERS.index(answer)))
    return found


def is_option_list(options: Any) -> bool:
    """Return whether this is a list of as many options as a question may have."""
    return isinstance(options, list) and FEWEST_OPTIONS <= len(options) <= MOST_OPTIONS


@dataclass(frozen=True)
class RaceSplit:
    """Questions of a split.

    max_seq_length: tokens of one choice, at least max_qa_length + 3. num_choices: of a row, at least the options of
        each question.
    """

    name: str
    examples: Sequence[RaceQuestion]
    tokenizer: FullTokenizer
    max_seq_length: int
    max_qa_length: int
    num_choices: int = RACE_OPTIONS

    def facts(self) -> dict[str, Any]:
        levels = {LEVELS[question.level] for question in self.examples}
        texts = (
            (article, [(each.id, each.question, each.options, each.answer) for each in group])
            for article, group in itertools.groupby(self.examples, key=attrgetter("article"))
        )
        lengths = {"max_seq_length": self.max_seq_length, "max_qa_length": self.max_qa_length}
        choices = {} if self.num_choices == RACE_OPTIONS else {"num_choices": self.num_choices}
        return text_facts(levels, texts, self.tokenizer, **lengths, **choices)

    def features(self) -> Features:
        """One row a question, in their order.

        Returns:
            Columns of encode_questions; label_ids: int32, the right choice. Arrays labels (rows,) int32, the same;
            levels (rows,) int32, indices into LEVELS; option_counts (rows,) int32; question_ids (rows,) text.
        """
        questions = self.examples
        if not questions:
            raise DataError("there are no questions to make features of")
        values, truncated = encode_questions(
            [question.article for question in questions],
            [question.question for question in questions],
            [question.options for question in questions],
            self.tokenizer,
            self.max_seq_length,
            self.max_qa_length,
            self.num_choices,
        )
        if truncated.any():
            logger.info(
                f"{truncated.sum():,} of {len(questions):,} questions do not fit into {self.max_seq_length} tokens "
                "with their article, or their options not into max_qa_length; they are cut"
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
    articles: Sequence[str],
    questions: Sequence[str],
    options: Sequence[Sequence[str]],
    tokenizer: FullTokenizer,
    max_seq_length: int,
    max_qa_length: int,
    num_choices: int,
) -> tuple[dict[str, Ragged], np.ndarray]:
    """Rows of one question each; an article that stands several times in a row is tokenized once.

    Args:
        articles, questions: (rows,). options: (rows,) of at most num_choices each.

    Returns:
        input_ids, input_mask, segment_ids: int32. Entry t * num_choices + c of a row is token t of choice c; every
            choice is padded to the longest one of its row, and missing ones are padding alone.
        truncated: (rows,) bool, whether tokens of the row's article or choices were cut off.
    """
    rows = [
        (article, [ending[-max_qa_length:] for ending in endings], max(map(len, endings)) > max_qa_length)
        for article, endings in _tokenize(articles, questions, options, tokenizer)
    ]
    needed = np.array([len(article) + max(map(len, endings)) + 3 for article, endings, _ in rows])
    truncated = (needed > max_seq_length) | np.array([cut for _, _, cut in rows])
    lengths = np.minimum(needed, max_seq_length)
    starts = np.cumsum(lengths) - lengths
    shape = (int(lengths.sum()), num_choices)
    input_ids = np.full(shape, tokenizer.pad_id, np.int32)
    input_mask, segment_ids = np.zeros(shape, np.int32), np.zeros(shape, np.int32)
    for (article, endings, _), start in zip(rows, starts, strict=True):
        for choice, ending in enumerate(endings):
            kept = min(len(article), max_seq_length - 3 - len(ending))
            second, end = start + kept + 2, start + kept + len(ending) + 3
            tokens = input_ids[start:end, choice]
            tokens[0], tokens[kept + 1], tokens[-1] = tokenizer.cls_id, tokenizer.sep_id, tokenizer.sep_id
            tokens[1 : kept + 1], tokens[kept + 2 : -1] = article[:kept], ending
            input_mask[start:end, choice] = 1
            segment_ids[second:end, choice] = 1
    columns = (input_ids, input_mask, segment_ids)
    counts = num_choices * lengths
    return {name: Ragged(rows.ravel(), counts) for name, rows in zip(TEXT_COLUMNS, columns, strict=True)}, truncated


def _tokenize(
    articles: Sequence[str], questions: Sequence[str], options: Sequence[Sequence[str]], tokenizer: FullTokenizer
) -> Iterator[tuple[np.ndarray, list[np.ndarray]]]:
    """Ids of the article and of every question with option, row by row."""
    rows = zip(articles, questions, options, strict=True)
    for article, group in itertools.groupby(rows, key=itemgetter(0)):
        asked = [(tokenizer.preprocess(question), choices) for _, question, choices in group]
        endings = [_join(question, tokenizer.preprocess(option)) for question, choices in asked for option in choices]
        ids = iter([np.array(row, np.int32) for row in tokenizer.encode_batch([article, *endings])])
        article_ids = next(ids)
        for _, choices in asked:
            yield article_ids, list(itertools.islice(ids, len(choices)))


def _join(question: str, option: str) -> str:
    return question.replace(BLANK, option) if BLANK in question else f"{question} {option}"
