"""Search by meaning: the texts of a file whose vectors are nearest to that of a record's text."""

import itertools
import logging
from collections.abc import Iterable, Sequence

import numpy as np

from model_utils.errors import ConfigError, DataError
from src.inference.file_answers import RECORDS_AT_ONCE, predict_batch
from src.inference.predictor import Predictor
from src.inference.record_files import NumberedRecord
from src.tasks.embeddings import EMBEDDINGS, l2_normalise
from src.tasks.record_processor import Record, shortest

logger = logging.getLogger(__name__)
TOP_K = 5


class TextSearch:
    """Predictor whose answers are the nearest records of a collection, by the cosine of their vectors.

    The collection and its vectors, 4 bytes times hidden_size a record, stay in memory.

    Args:
        predictor: of vectors.
        collection: records to search.
        top_k: records in an answer.

    Raises:
        ConfigError: the predictor gives no vectors.
        DataError: a record of the collection cannot be read, or there is none.
    """

    def __init__(self, predictor: Predictor, collection: Iterable[NumberedRecord], top_k: int = TOP_K) -> None:
        self.task_info = predictor.task_info
        self.top_k = top_k
        self._predictor = predictor
        if self.task_info.task != EMBEDDINGS.name:
            raise ConfigError(
                f"search needs vectors, but the model's task is {self.task_info.task}: set --embeddings true, or "
                "export with --export_embeddings true"
            )
        self._records: list[Record] = []
        vectors = []
        truncated_count = 0
        stream = (each for each in collection if each.error or any(each.record.values()))  # without blank lines
        while batch := list(itertools.islice(stream, RECORDS_AT_ONCE)):
            for record, answer in predict_batch(predictor, batch):
                if "error" in answer:
                    raise DataError(f"the collection to search, line {record.line}: {answer['error']}")
                self._records.append({"line": record.line, "record": record.record})
                vectors.append(np.array(answer["pooled"], np.float32))
                truncated_count += "truncated" in answer
        if not vectors:
            raise DataError("the collection to search holds no records")
        self._vectors = l2_normalise(np.stack(vectors))
        cut = f"; {truncated_count:,} are too long, and only their beginning is found" if truncated_count else ""
        logger.info(f"searching {len(vectors):,} records{cut}")

    def skip(self, records: Sequence[Record]) -> None:
        """Choose the sizes of batches as `predict` would, and compute nothing."""
        self._predictor.skip(records)

    def predict(self, records: Sequence[Record]) -> list[Record]:
        """Return {"matches": [{"score": cosine, "line": ..., "record": ...}, ...]}, best first, for each record.

        A record that cannot be answered gets {"error": sentence}, and a truncated text truncated: true.
        """
        answers = self._predictor.predict(records)
        found = [answer for answer in answers if "pooled" in answer]
        if not found:
            return answers
        queries = l2_normalise(np.array([answer.pop("pooled") for answer in found], np.float32))
        for answer, query in zip(found, queries, strict=True):
            scores = self._vectors @ query
            best = np.argsort(-scores, kind="stable")[: self.top_k]
            matches = zip(shortest(scores[best]), best, strict=True)
            answer["matches"] = [{"score": score, **self._records[row]} for score, row in matches]
        return answers
