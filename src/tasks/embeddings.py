"""Task of pre-trained weights without fine-tuning: turn a text into a vector."""

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar

import numpy as np

from model_utils.json_files import matching
from src.data.feature_cache import Features
from src.data.feature_files import Ragged
from src.finetune_eval_model import EncoderOutputs
from src.tasks.classification import ClassificationProcessor
from src.tasks.record_processor import Answer, Outputs, Record, shortest
from src.tasks.spec import RecordField, TaskSpec
from src.tasks.task_info import TaskInfo

POOLER = "pooler"
POOLINGS = (POOLER, "cls", "mean", "max")
MIN_NORM = 1e-12  # of a vector that is divided by its length


class EmbeddingsInfo(TaskInfo):
    """Settings with `pooling`: that of the training; empty: none was trained."""

    optional: ClassVar[frozenset[str]] = TaskInfo.optional | {"pooling"}
    pooling: Annotated[str, matching("|".join(("", *POOLINGS)), ", ".join(POOLINGS))] = ""


class EmbeddingsProcessor(ClassificationProcessor):
    """Processor: text_a -> pooled, a vector (H,).

    Attributes:
        pooling: pooler (the trained dense layer on the first token's state), or cls, mean, max of the states of all
            tokens, [CLS] and [SEP] included, as sentence-transformers has them.
        normalise: True for vectors of length 1.
        hidden_size: H.
    """

    text_keys: tuple[str, ...] = ("text_a",)
    pooling = POOLER
    normalise = False
    hidden_size = 0

    @property
    def ignored_outputs(self) -> tuple[str, ...]:  # type: ignore[override]
        return ("sequence_output",) if self.pooling == POOLER else ("pooled_output",)

    def parse(self, record: Record) -> tuple[str, str]:
        return self.text(record, "text_a"), ""

    def output_size(self, item: tuple[str, str]) -> int:
        return 0 if self.pooling == POOLER else self.length * self.hidden_size

    def postprocess(self, items: Sequence[Any], features: Features, outputs: Outputs) -> list[Record]:
        return [{"pooled": row} for row in shortest(self.vectors(outputs))]

    def vectors(self, outputs: Outputs) -> np.ndarray:
        """Return the vectors (rows, H) of all rows."""
        vectors = outputs["pooled_output"] if self.pooling == POOLER else pool(outputs["sequence_output"], self.pooling)
        return l2_normalise(vectors) if self.normalise else vectors


def l2_normalise(vectors: np.ndarray) -> np.ndarray:
    """Return vectors (rows, H) divided by their lengths."""
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), MIN_NORM)


def pool(states: Ragged, pooling: str) -> np.ndarray:
    """Return (texts, H) float32 of the states of all tokens of each text, (tokens, H): cls, mean or max."""
    starts = states.offsets[:-1]
    if pooling == "cls":
        return states.values[starts]
    if pooling == "max":
        return np.maximum.reduceat(states.values, starts)
    return np.add.reduceat(states.values, starts) / states.counts[:, None].astype(np.float32)


class EmbeddingAnswer(Answer):
    pooled: list[float]


EMBEDDINGS = TaskSpec(
    "embeddings",
    lambda architecture, _: EncoderOutputs(architecture),
    EmbeddingsProcessor,
    {"text_a": RecordField()},
    EmbeddingAnswer,
    info=EmbeddingsInfo,
    needed=("albert.",),
)
