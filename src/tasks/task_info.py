"""What task.json says beside fine-tuned weights: what the head was trained for, and how it is used."""

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from model_utils.errors import DataError
from model_utils.json_files import Schema, Sha256
from src.albert_config import LENGTH, AlbertConfig
from src.data.features import hash_texts

logger = logging.getLogger(__name__)


class DevSplit(Schema):
    """Which part of the training examples was split off for development: its share, and the seed that chose it.

    texts_sha256: of all of these examples' texts, since of others the same share has been trained on.
    """

    ratio: float = Field(gt=0, lt=1)
    seed: int
    texts_sha256: Sha256 | None = None


class TaskInfo(Schema):
    """What all tasks have; a task's own settings are those of a subclass. Other keys of the file are kept.

    labels: in the order of the head's outputs; none where the outputs are no labels.
    max_seq_length: tokens of a row. text_columns: the texts' names in the training data, by their keys in records.
    dev_split: None where the development examples have a file of their own.
    """

    task: str
    labels: tuple[str, ...] = ()
    max_seq_length: int = Field(512, ge=8, le=LENGTH)
    text_columns: dict[Literal["text_a", "text_b", "text"], str] = Field(default_factory=dict)
    dev_split: DevSplit | None = None

    @field_validator("labels", mode="before")
    @classmethod
    def _null_is_none(cls, labels: Any) -> Any:
        return tuple(labels or ()) if isinstance(labels, list | None) else labels

    @model_validator(mode="after")
    def _labels_differ(self) -> Self:
        if len(set(self.labels)) < len(self.labels):
            raise ValueError("labels that differ from each other")
        return self

    @classmethod
    def settings(cls) -> set[str]:
        """The keys that a task's weights are used by, each with a default."""
        return cls.model_fields.keys() - {"task", "labels", "text_columns", "dev_split"}

    @property
    def shortest_row(self) -> int:
        """Tokens that a row must have."""
        return 1

    @property
    def searched_starts(self) -> int:
        """Starts of spans that the head goes on with, 0 for a head that searches none."""
        return 0

    def fitted(self, architecture: AlbertConfig) -> Self:
        """The same with lengths that a network takes."""
        if architecture.use_relative_positions:
            return self
        longest = min(self.max_seq_length, architecture.max_position_embeddings)
        return self.model_copy(update={"max_seq_length": longest})

    def stated(self) -> dict[str, Any]:
        """The content of task.json: what was given, as JSON values."""
        return self._dumped(exclude_unset=True) | {"labels": list(self.labels)}

    def completed(self) -> dict[str, Any]:
        """All settings as JSON values, defaults too."""
        return self._dumped()

    def _dumped(self, **options: Any) -> dict[str, Any]:
        empty = {key for key in ("text_columns", "dev_split") if not getattr(self, key)}
        return self.model_dump(mode="json", exclude=empty, **options)


NO_DEV_SPLIT = "no share of the training file is evaluated"  # why dev_ratio means nothing


def choose_dev_split(ratio: float, seed: int, known: TaskInfo | None, training: Path, texts: Iterable[Any]) -> DevSplit:
    """How development examples are split off: as for the weights that are there, whose other examples were trained on.

    Args:
        known: of the weights, where nothing is trained.
        training: the file. texts: of all its examples, as JSON values.

    Raises:
        DataError: the weights' were split off other examples.
    """
    ours = DevSplit(ratio=ratio, seed=seed, texts_sha256=hash_texts(texts))
    if known is None:
        return ours
    if (theirs := known.dev_split) is None:
        logger.warning(
            "the weights' task.json names no share of the training file that was kept out of the training: the one of "
            f"dev_ratio {ratio:g} by seed {seed} is evaluated, which was trained on unless that left out the same"
        )
        return ours
    if theirs.texts_sha256 not in (None, ours.texts_sha256):
        raise DataError(
            f"{training} holds other texts than those that the weights' development examples were split off from, so "
            "that this share may have been trained on: needed are file and columns of the training, or a dev_file"
        )
    if (theirs.ratio, theirs.seed) != (ratio, seed):
        logger.info(
            f"the development examples are those that the weights were chosen by: a share of {theirs.ratio:g} of the "
            f"training file, by seed {theirs.seed}"
        )
    return theirs


def check_left_out(ready: Path, made_of: str | None, rest: str, training: Path) -> None:
    """Raise DataError, or warn, where ready training features may hold the share of a file that is evaluated.

    Args:
        made_of: the sha256 of the features' texts, where they say it. rest: that of the file's texts without the share.
    """
    if made_of is None:
        logger.warning(
            f"{ready} does not say which texts it was made of: unless they are all others than the share of {training} "
            "that is evaluated, that was trained on; give a dev_file"
        )
    elif made_of != rest:
        raise DataError(
            f"{ready} was made of other texts than those of {training} without the share that is evaluated, which may "
            "be among them: needed are features of just these, or a dev_file"
        )


class LabelledInfo(TaskInfo):
    """Of a head with an output for each label."""

    @model_validator(mode="after")
    def _has_labels(self) -> Self:
        if not self.labels:
            raise ValueError(f"a name in labels for each output of {self.task}")
        return self
