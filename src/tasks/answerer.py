"""From records to rows for a network, and from its outputs to answers: what every task's Answerer has.

A record is a JSON object, an answer another one (docs/serving.md has the table). Offsets count characters (Unicode code
points) of the text that was given, the end excluded.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, BeforeValidator, Field
from pydantic_core import PydanticCustomError

from model_utils.errors import ConfigError, DataError
from src.data.feature_cache import Features
from src.tasks.task_info import TaskInfo
from src.tokenization import FullTokenizer

logger = logging.getLogger(__name__)

Record = dict[str, Any]
Outputs = Mapping[str, Any]  # as src.training.network_outputs.OutputTable has them


def is_identity(value: Any) -> bool:
    """Return True for what a record's id may be."""
    return value is None or type(value) is int or (type(value) is str and value.isprintable())


def _identity(value: Any) -> Any:
    if is_identity(value):
        return value
    raise PydanticCustomError("identity", "an id is a printable text or an integer")


Identity = Annotated[str | int | None, BeforeValidator(_identity)]
Probability = Annotated[float, Field(ge=0, le=1)]
Offset = Annotated[int, Field(ge=0)]


class Answer(BaseModel):
    """What every answer may carry: the record's own id, and that its text was too long and has been cut."""

    id: Identity = None
    truncated: bool | None = None


def text_of(record: Record, *keys: str, needed: bool = True) -> str:
    """The text under the first of these keys, "" if missing and not needed; DataError for what is blank or no text.

    What is null is missing.
    """
    key = next((key for key in keys if record.get(key) is not None), keys[0])
    text = record.get(key)
    if text is None and not needed:
        return ""
    if text is None:
        raise DataError(f"{' or '.join(keys)} is missing; the record has {', '.join(record) or 'nothing'}")
    if not isinstance(text, str):
        raise DataError(f"{key} is {type(text).__name__}, needed is a text")
    if needed and not text.strip():
        raise DataError(f"{key} is blank, needed is a text")
    return text


def shortest(values: np.ndarray) -> list[Any]:
    """Return float32 values as (nested) lists of floats with as few digits as tell them from other float32 numbers.

    0.1 in float32 is 0.10000000149011612 as a float, of which JSON and tables would show all digits.
    """
    return values.astype(np.str_).astype(np.float64).tolist()


def likeliest_name(key: str, names: Sequence[str], probabilities: np.ndarray) -> Record:
    """An answer: the name with the largest of the probabilities (names,) under this key, and all of them."""
    shares = dict(zip(names, shortest(probabilities), strict=True))
    return {key: names[int(probabilities.argmax())], "probabilities": shares}


class Answerer(ABC):
    """What a task knows about records.

    ignored_outputs: of the network, that answers do not depend on.
    texts: keys of the texts in records whose columns have names of their own in training. A second one is no part of
        a record where training had none.

    Args:
        text_columns: keys of the first and the second text in records, which every record must have then; empty: the
            names of the columns that the model was trained with, and where a record has none of them, those of `texts`.

    Raises:
        ConfigError: the task's records have no such text.
    """

    ignored_outputs: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()

    def __init__(self, task_info: TaskInfo, tokenizer: FullTokenizer, text_columns: tuple[str, str] = ("", "")) -> None:
        self.task_info, self.tokenizer, self.length = task_info, tokenizer, task_info.max_seq_length
        for key, column in list(zip(("text_a_column", "text_b_column"), text_columns, strict=True))[len(self.texts) :]:
            if column:
                known = " and ".join(self.texts) or "texts with fixed names"
                raise ConfigError(f"{key} is {column}, but records of the model's task, {task_info.task}, have {known}")
        self._given = dict(zip(self.texts, text_columns, strict=False))
        self._told_of_left_out = False  # of a text that training did not have

    def text(self, record: Record, key: str, needed: bool = True) -> str:
        """One of `texts`, whatever its key in the record is; raises as text_of."""
        if self._given[key]:
            return text_of(record, self._given[key])
        trained = self.task_info.text_columns
        if not needed and trained and key not in trained:
            if record.get(key) and not self._told_of_left_out and key not in trained.values():
                self._told_of_left_out = True
                logger.warning(
                    f"a record has {key}, which the texts that the model was trained on had not: it is left out unless "
                    f"{key}_column names it"
                )
            return ""
        return text_of(record, *dict.fromkeys((trained.get(key, key), key)), needed=needed)

    @abstractmethod
    def read(self, record: Record) -> Any:
        """What is needed of a record; DataError where something is missing or no text."""

    def outputs_of(self, item: Any) -> int:
        """Numbers that the network returns for an item, where they are so many that they have to be reckoned with."""
        return 0

    @abstractmethod
    def features(self, items: Sequence[Any]) -> Features:
        """Rows of records; array `truncated` (records,) says whose text was cut, where texts are cut."""

    def items_of_rows(self, features: Features) -> np.ndarray:
        """Return the (rows,) index of the item that a row belongs to; tasks that cut texts into windows override it."""
        return np.arange(len(features.values["input_ids"].counts))

    @abstractmethod
    def answers(self, items: Sequence[Any], features: Features, outputs: Outputs) -> list[Record]:
        """One answer for each of the items, of the network's outputs for the rows."""
