"""From records to rows for a network, and from its outputs to answers: one class for each kind of task.

A record is a JSON object, an answer another one (docs/serving.md has the table). Offsets count characters of the text
that was given.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from scipy.special import softmax

from model_utils.errors import ConfigError, DataError
from src.create_finetune_data import encode_pairs, token_columns
from src.create_squad_data import Question, SquadWindows, squad_features
from src.data.entities import find_entities
from src.data.feature_cache import Features
from src.data.feature_files import Column, Ragged
from src.data.ner_data import Sentence, ner_features, split_words, word_logits
from src.data.race_data import ANSWERS, NUM_CHOICES, encode_questions
from src.squad_postprocess import Prediction, Span, beam_predictions, independent_predictions
from src.task_file import TEXT_COLUMNS
from src.tasks.fill_mask import encode_masked, likeliest
from src.tokenization import FullTokenizer
from src.trained_model import shortest_row

Record = dict[str, Any]
Outputs = Mapping[str, Any]  # as src.training.network_outputs.OutputTable has them


class Answerer(Protocol):
    """What a task knows about records.

    lanes: texts side by side in a row. shortest: tokens that every row must have. ignored_outputs: of the network, that
    answers do not depend on.
    """

    lanes: int
    shortest: int
    ignored_outputs: tuple[str, ...]

    def read(self, record: Record) -> Any:
        """What is needed of a record.

        Raises:
            DataError: something is missing or no text.
        """

    def outputs_of(self, item: Any) -> int:
        """Numbers that the network returns for an item, where they are so many that they have to be reckoned with."""

    def features(self, items: Sequence[Any]) -> Features:
        """Rows of records; array `truncated` (records,) says whose text was cut, where texts are cut."""

    def answers(self, items: Sequence[Any], features: Features, outputs: Outputs) -> list[Record]:
        """One answer for each of the items, of the network's outputs for the rows."""


def text_of(record: Record, *keys: str, needed: bool = True) -> str:
    """A text of a record under the first of these keys that it has, "" for none that is not needed.

    Raises:
        DataError: it is missing, blank or no text.
    """
    key = next((key for key in keys if key in record), keys[0])
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


class _Task:
    """Args:
        text_columns: keys of the first and the second text in records, which every record must have then; empty: the
            names of the columns that the model was trained with, and where a record has none of them, those of `texts`.

    Raises:
        ConfigError: the task's records have no such text.
    """

    lanes = 1
    shortest = 1
    ignored_outputs: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()  # keys of texts whose columns have names of their own in training

    def __init__(
        self, card: Mapping[str, Any], tokenizer: FullTokenizer, text_columns: tuple[str, str] = ("", "")
    ) -> None:
        self.card, self.tokenizer, self.length = card, tokenizer, card["max_seq_length"]
        for key, column in list(zip(("text_a_column", "text_b_column"), text_columns, strict=True))[len(self.texts) :]:
            if column:
                known = " and ".join(self.texts) or "texts with fixed names"
                raise ConfigError(f"{key} is {column}, but records of the model's task, {card['task']}, have {known}")
        self._given = dict(zip(self.texts, text_columns, strict=False))

    def text(self, record: Record, key: str, needed: bool = True) -> str:
        """One of `texts`, whatever its key in the record is.

        Raises:
            DataError: it is missing, blank or no text.
        """
        if self._given[key]:
            return text_of(record, self._given[key])
        trained = self.card.get(TEXT_COLUMNS, {}).get(key, key)
        return text_of(record, *dict.fromkeys((trained, key)), needed=needed)

    def outputs_of(self, item: Any) -> int:
        return 0


class ClassificationAnswerer(_Task):
    """text_a, text_b -> label, probabilities."""

    texts = ("text_a", "text_b")

    def read(self, record: Record) -> tuple[str, str]:
        return self.text(record, "text_a"), self.text(record, "text_b", needed=False)

    def features(self, items: Sequence[tuple[str, str]]) -> Features:
        values, truncated = encode_pairs(*zip(*items, strict=True), self.tokenizer, self.length)
        return Features(token_columns(self.tokenizer, self.length), values, {"truncated": truncated})

    def answers(self, items: Sequence[Any], features: Features, outputs: Outputs) -> list[Record]:
        return [_choose("label", self.card["labels"], row) for row in softmax(outputs["logits"], 1)]


class RegressionAnswerer(ClassificationAnswerer):
    """text_a, text_b -> score."""

    def answers(self, items: Sequence[Any], features: Features, outputs: Outputs) -> list[Record]:
        return [{"score": float(row[0])} for row in outputs["logits"]]


class EmbeddingsAnswerer(ClassificationAnswerer):
    """text_a -> pooled."""

    ignored_outputs = ("sequence_output",)

    texts = ("text_a",)

    def read(self, record: Record) -> tuple[str, str]:
        return self.text(record, "text_a"), ""

    def answers(self, items: Sequence[Any], features: Features, outputs: Outputs) -> list[Record]:
        return [{"pooled": row.tolist()} for row in outputs["pooled_output"]]


class ChoiceAnswerer(_Task):
    """article, question, options -> answer, probabilities."""

    lanes = NUM_CHOICES

    def read(self, record: Record) -> tuple[str, str, list[str]]:
        options = record.get("options")
        if not isinstance(options, list) or len(options) != NUM_CHOICES:
            raise DataError(f"options is no list of {NUM_CHOICES} texts")
        options = [text_of({"an option": option}, "an option") for option in options]
        return text_of(record, "article"), text_of(record, "question"), options

    def features(self, items: Sequence[tuple[str, str, list[str]]]) -> Features:
        lengths = self.length, self.card["max_qa_length"]
        values, truncated = encode_questions(*zip(*items, strict=True), self.tokenizer, *lengths)
        return Features(token_columns(self.tokenizer, self.length * NUM_CHOICES), values, {"truncated": truncated})

    def answers(self, items: Sequence[Any], features: Features, outputs: Outputs) -> list[Record]:
        return [_choose("answer", ANSWERS, row) for row in softmax(outputs["logits"], 1)]


class SpanAnswerer(_Task):
    """context, question -> answer, start, end, score, no_answer_probability, n_best; long contexts in windows."""

    def __init__(self, card: Mapping[str, Any], tokenizer: FullTokenizer, *text_columns: Any) -> None:
        super().__init__(card, tokenizer, *text_columns)
        self.is_beam = card["task"] == "squad_v2"
        self.shortest = shortest_row(card)
        self.threshold = card["null_threshold"] if self.is_beam else None

    def read(self, record: Record) -> tuple[str, str]:
        return text_of(record, "context"), text_of(record, "question")

    def features(self, items: Sequence[tuple[str, str]]) -> Features:
        lengths = self.length, self.card["doc_stride"], self.card["max_query_length"]
        return squad_features(self._questions(items), self.tokenizer, *lengths, training=False)

    def answers(self, items: Sequence[tuple[str, str]], features: Features, outputs: Outputs) -> list[Record]:
        predict = beam_predictions if self.is_beam else independent_predictions
        windows = SquadWindows.of(features.arrays.__getitem__)
        limits = self.card["n_best_size"], self.card["max_answer_length"]
        return [self._answer(one) for one in predict(self._questions(items), windows, outputs, *limits)]

    def _questions(self, items: Sequence[tuple[str, str]]) -> list[Question]:
        return [Question(str(number), question, context) for number, (context, question) in enumerate(items)]

    def _answer(self, prediction: Prediction) -> Record:
        chosen, absent = prediction.choose(self.threshold), prediction.no_answer_probability
        nothing = {"answer": "", "start": None, "end": None, "score": 1.0 if absent is None else absent}
        return {
            **(_span(chosen) if chosen else nothing),
            "no_answer_probability": absent,
            "n_best": [_span(span) for span in prediction.best],
        }


class EntityAnswerer(_Task):
    """text or tokens -> entities; offsets of tokens count characters of them with single spaces between."""

    texts = ("text",)

    def read(self, record: Record) -> tuple[str, list[tuple[int, int]]]:
        if "tokens" not in record:
            text = self.text(record, "text")
            return text, split_words(text)
        tokens = record["tokens"]
        if not isinstance(tokens, list) or not tokens:
            raise DataError("tokens is no list of texts")
        spans, position = [], 0
        for token in tokens:
            spans.append((position, position + len(text_of({"a token": token}, "a token"))))
            position = spans[-1][1] + 1
        return " ".join(tokens), spans

    def features(self, items: Sequence[tuple[str, list[tuple[int, int]]]]) -> Features:
        sentences = [Sentence(tuple(text[start:end] for start, end in spans)) for text, spans in items]
        return ner_features(sentences, self.card["labels"], self.tokenizer, self.length)

    def answers(self, items: Sequence[Any], features: Features, outputs: Outputs) -> list[Record]:
        words = word_logits(features.arrays.__getitem__, outputs["logits"])
        return [self._answer(*item, softmax(logits, 1)) for item, logits in zip(items, words, strict=True)]

    def _answer(self, text: str, spans: list[tuple[int, int]], probabilities: np.ndarray) -> Record:
        best, scores = probabilities.argmax(1), probabilities.max(1)
        entities = []
        for label, first, end in find_entities([self.card["labels"][index] for index in best]):
            place = {"start": spans[first][0], "end": spans[end - 1][1]}
            score = float(scores[first:end].mean())
            entities.append({"text": text[place["start"] : place["end"]], "label": label, **place, "score": score})
        return {"entities": entities}


class MaskAnswerer(_Task):
    """text with [MASK] -> predictions, the likeliest tokens for each mask."""

    texts = ("text",)
    top_k = 5

    def read(self, record: Record) -> tuple[list[int], list[int]]:
        ids = encode_masked(self.text(record, "text"), self.tokenizer, self.length)
        return ids, [place for place, token in enumerate(ids) if token == self.tokenizer.mask_id]

    def outputs_of(self, item: tuple[list[int], list[int]]) -> int:
        return len(item[1]) * self.tokenizer.vocab_size

    def features(self, items: Sequence[tuple[list[int], list[int]]]) -> Features:
        counts = np.array([len(ids) for ids, _ in items], np.int64)
        ids = np.concatenate([ids for ids, _ in items]).astype(np.int32)
        columns = token_columns(self.tokenizer, self.length)
        filled = (ids, np.ones_like(ids), np.zeros_like(ids))
        values = {name: Ragged(column, counts) for name, column in zip(columns, filled, strict=True)}
        most = max(len(places) for _, places in items)
        positions = np.array([places + [0] * (most - len(places)) for _, places in items], np.int32)
        columns["masked_lm_positions"] = Column("int32", most)
        values["masked_lm_positions"] = Ragged(positions.ravel(), np.full(len(items), most))
        return Features(columns, values)

    def answers(self, items: Sequence[Any], features: Features, outputs: Outputs) -> list[Record]:
        return [
            {"predictions": [likeliest(logits, self.tokenizer, self.top_k) for logits in rows[: len(places)]]}
            for (_, places), rows in zip(items, outputs["mlm_logits"], strict=True)
        ]


ANSWERERS: dict[str, type[_Task]] = {
    "classification": ClassificationAnswerer,
    "regression": RegressionAnswerer,
    "multiple_choice": ChoiceAnswerer,
    "squad_v1": SpanAnswerer,
    "squad_v2": SpanAnswerer,
    "token_classification": EntityAnswerer,
    "fill_mask": MaskAnswerer,
    "embeddings": EmbeddingsAnswerer,
}


def _choose(key: str, names: Sequence[str], probabilities: np.ndarray) -> Record:
    shares = {name: float(share) for name, share in zip(names, probabilities, strict=True)}
    return {key: names[int(probabilities.argmax())], "probabilities": shares}


def _span(span: Span) -> Record:
    return {"answer": span.text, "start": span.start, "end": span.end, "score": span.probability}
