"""Content of task.json, the file beside fine-tuned weights that says their task and the settings to use them with."""

import logging
from typing import Annotated, Any, ClassVar, Self

from pydantic import Field, field_validator, model_validator

from model_utils.json_files import Schema, Sha256, matching
from src.albert_config import LENGTH, AlbertConfig

logger = logging.getLogger(__name__)
TextKey = Annotated[str, matching("text|text_a|text_b", "text, text_a or text_b")]


class DevSplit(Schema):
    """Share of the training examples that was split off for development.

    Attributes:
        ratio: size of the share.
        seed: seed that chose it.
        texts_sha256: hash of the texts of all examples, with their classes if stratified; of others the share was
            trained on.
        stratified: every class has about the same share.
    """

    ratio: float = Field(gt=0, lt=1)
    seed: int
    texts_sha256: Sha256 | None = None
    stratified: bool = False


class TaskInfo(Schema):
    """Settings that all tasks share; subclasses add those of a task. Unknown keys of the file are preserved.

    Attributes:
        labels: labels in the order of the head's outputs; empty where the outputs are no labels.
        max_seq_length: tokens per row.
        text_columns: column names of the texts in the training data, by their keys in records.
        dev_split: None where the development examples have their own file.
        mark_shared: True if tokens that both texts of a pair have are marked by mark_shared_tokens.
        optional: settings that files lack where they are empty.
    """

    optional: ClassVar[frozenset[str]] = frozenset({"text_columns", "dev_split", "mark_shared"})
    task: str
    labels: tuple[str, ...] = ()
    max_seq_length: int = Field(default=512, ge=8, le=LENGTH)
    text_columns: dict[TextKey, str] = Field(default_factory=dict)
    dev_split: DevSplit | None = None
    mark_shared: bool = False

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
    def setting_keys(cls) -> set[str]:
        """Return the keys of the settings for using the weights; every one has a default."""
        return cls.model_fields.keys() - {"task", "labels"} - cls.optional

    @property
    def shortest_row(self) -> int:
        """Minimum number of tokens of a row."""
        return 1

    @property
    def searched_starts(self) -> int:
        """Number of span starts in the head's beam, 0 for a head without beam search."""
        return 0

    def clipped_to(self, architecture: AlbertConfig) -> Self:
        """Return a copy with lengths capped at what the network supports."""
        if architecture.use_relative_positions:
            return self
        longest = min(self.max_seq_length, architecture.max_position_embeddings)
        return self.model_copy(update={"max_seq_length": longest})

    def explicit_values(self) -> dict[str, Any]:
        """Return the content of task.json: the explicitly set values, as JSON values."""
        return self._dumped(exclude_unset=True) | {"labels": list(self.labels)}

    def values_with_defaults(self) -> dict[str, Any]:
        """Return all settings as JSON values, defaults included."""
        return self._dumped()

    def _dumped(self, **options: Any) -> dict[str, Any]:
        empty = {key for key in self.optional if not getattr(self, key)}
        return self.model_dump(mode="json", exclude=empty, **options)


class LabelledInfo(TaskInfo):
    """Settings of a head with one output per label."""

    @model_validator(mode="after")
    def _has_labels(self) -> Self:
        if not self.labels:
            raise ValueError(f"a name in labels for each output of {self.task}")
        return self
