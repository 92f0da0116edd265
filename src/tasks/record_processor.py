"""Base class of the record processors, which encode records and postprocess logits into answers.

Records and answers are JSON objects (table in docs/serving.md). Offsets count characters (Unicode code points) of the
record's text, the end excluded.
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
Outputs = Mapping[str, Any]  # src.training.network_outputs.OutputTable


def is_identity(value: Any) -> bool:
    """Return True if the value is allowed as the id of a record."""
    return value is None or type(value) is int or (type(value) is str and value.isprintable())


def _identity(value: Any) -> Any:
    if is_identity(value):
        return value
    raise PydanticCustomError("identity", "an id is a printable text or an integer")


Identity = Annotated[str | int | None, BeforeValidator(_identity)]
Probability = Annotated[float, Field(ge=0, le=1)]
Offset = Annotated[int, Field(ge=0)]


class Answer(BaseModel):
    """Fields that every answer may have: the id of the record, and whether its text was truncated."""

    id: Identity = None
    truncated: bool | None = None


def text_of(record: Record, *keys: str, needed: bool = True) -> str:
    """Return the text under the first of the keys that the record has; a key with the value null counts as missing.

    Args:
        needed: False: the text may be missing or blank; "" stands for a missing one.

    Raises:
        DataError: the value is no text, or a needed one is missing or blank.
    """
    key = next((key for key in keys if record.get(key) is not None), keys[0])
    text = record.get(key)
    if text is None and not needed:
        return ""
    if key in record and text is None:
        raise DataError(f"{key} is null, but must be a text")
    if text is None:
        raise DataError(f"{' or '.join(keys)} is missing; the record has {', '.join(record) or 'no keys'}")
    if not isinstance(text, str):
        raise DataError(f"{key} is {type(text).__name__}, but must be a text")
    if needed and not text.strip():
        raise DataError(f"{key} is blank, but must be a text")
    return text


def shortest(values: np.ndarray) -> list[Any]:
    """Return float32 values as (nested) lists of floats with the fewest digits that round-trip in float32.

    Converted directly, 0.1 in float32 becomes 0.10000000149011612, and JSON and tables would show all digits.
    """
    return values.astype(np.str_).astype(np.float64).tolist()


def likeliest_name(key: str, names: Sequence[str], probabilities: np.ndarray) -> Record:
    """Return an answer with the likeliest name under `key`, and the probabilities (names,) of all names."""
    by_name = dict(zip(names, shortest(probabilities), strict=True))
    return {key: names[int(probabilities.argmax())], "probabilities": by_name}


class RecordProcessor(ABC):
    """Encoder of a task's records and postprocessor of its logits.

    Attributes:
        ignored_outputs: names of network outputs that answers do not depend on.
        text_keys: default keys of the texts that training files may have under other column names. The second text is
            left out of records if the model was trained without one.

    Args:
        text_columns: keys of the first and second text, required in every record; empty: the column names that the
            model was trained with or, where a record has none of them, the keys in `text_keys`.

    Raises:
        ConfigError: text_columns names a text that the task's records do not have.
    """

    ignored_outputs: tuple[str, ...] = ()
    text_keys: tuple[str, ...] = ()

    def __init__(self, task_info: TaskInfo, tokenizer: FullTokenizer, text_columns: tuple[str, str] = ("", "")) -> None:
        self.task_info = task_info
        self.tokenizer = tokenizer
        self.length = task_info.max_seq_length
        options = dict(zip(("text_a_column", "text_b_column"), text_columns, strict=True))
        for key, column in list(options.items())[len(self.text_keys) :]:
            if column:
                allowed = " and ".join(self.text_keys) or "texts with fixed names"
                raise ConfigError(key=key, value=column, problem=f"records of the task {task_info.task} have {allowed}")
        self._named_columns = dict(zip(self.text_keys, text_columns, strict=False))
        self._warned_of_ignored_text = False

    def text(self, record: Record, key: str, needed: bool = True) -> str:
        """Return the text of a key of `text_keys`, whatever a record calls it; raise DataError as text_of does."""
        if self._named_columns[key]:
            return text_of(record, self._named_columns[key])
        trained_columns = self.task_info.text_columns
        if not needed and trained_columns and key not in trained_columns:
            if record.get(key) and not self._warned_of_ignored_text and key not in trained_columns.values():
                self._warned_of_ignored_text = True
                logger.warning(
                    f"a record has {key}, as training rows had not: it is ignored unless {key}_column is given"
                )
            return ""
        return text_of(record, *dict.fromkeys((trained_columns.get(key, key), key)), needed=needed)

    @abstractmethod
    def parse(self, record: Record) -> Any:
        """Return the item to encode from a record; raise DataError if a text is missing or of another type."""

    def output_size(self, item: Any) -> int:
        """Return the number of outputs for an item if they are large enough to limit the batch, else 0."""
        return 0

    @abstractmethod
    def encode(self, items: Sequence[Any]) -> Features:
        """Return the rows of items, with an array `truncated` (items,) where the task truncates texts."""

    def items_of_rows(self, features: Features) -> np.ndarray:
        """Return the (rows,) index of each row's item; tasks that cut texts into windows override it."""
        return np.arange(len(features.values["input_ids"].counts))

    @abstractmethod
    def postprocess(self, items: Sequence[Any], features: Features, outputs: Outputs) -> list[Record]:
        """Return one answer per item from the network's outputs for the rows."""
