"""SQuAD v1.1 and v2.0: which span of a text answers a question, if any does."""

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Self

import numpy as np
from pydantic import BaseModel, Field

from model_utils.errors import ConfigError
from model_utils.schema import ANY, SAME_PLACE, option
from src.albert_config import LENGTH, AlbertConfig
from src.albert_for_finetune import AlbertForQuestionAnswering, AlbertForSpanSearch
from src.create_squad_data import SquadQuestion, SquadSplit, SquadWindows, read_squad
from src.data.feature_cache import TRAIN, Features
from src.data.features import sample
from src.finetune_eval_model import QuestionAnsweringScores, SpanSearchScores
from src.squad_get_predictions import Prediction, ScoredSpan, beam_predictions, independent_predictions
from src.squad_postprocess import (
    ANSWER_ALWAYS,
    answer_texts,
    no_answer_probabilities,
    prediction_columns,
    write_predictions,
)
from src.tasks.answerer import Answer, Answerer, Offset, Outputs, Probability, Record, text_of
from src.tasks.finetune_config import FinetuneConfig
from src.tasks.prediction_table import write_prediction_table
from src.tasks.spec import EvaluationResult, Head, PreparedSplit, RecordField, Shapes, Task, TaskSpec, dense_shapes
from src.tasks.squad_metrics import midway, score_answers, score_with_threshold
from src.tasks.task_info import TaskInfo
from src.tokenization import FullTokenizer

logger = logging.getLogger(__name__)
BEAM = 1000  # answers of a question that are kept or looked at, at most
THRESHOLD = "null_threshold"  # of SpanSearchInfo
SUFFIXES = {"dev": "", "test": "_test"}  # of the names of prediction files


class SquadConfig(FinetuneConfig):
    """Answer questions with a span of the text (SQuAD v1.1): python run_squad_v1.py."""

    config_file = "task_squad_v1_config.yaml"
    max_seq_length: int = 384
    epoch_num: int = 2
    train_batch_size: int = 48

    data_dir: str = option("", "means nothing here: files are named one by one", on_resume=SAME_PLACE)
    train_data_file_path: str = option(
        "", "features of train_json_path that are ready: DIR/NAME.mindrecord", on_resume=SAME_PLACE
    )
    eval_data_file_path: str = option("", "features of eval_json_path, likewise", on_resume=SAME_PLACE)
    train_json_path: str = option(
        "", "training questions in SQuAD's form, also flat records or JSON lines", on_resume=SAME_PLACE
    )
    eval_json_path: str = option("", "development questions", on_resume=SAME_PLACE)
    predict_json_path: str = option(
        "", "questions to predict, answers not needed", needs=("do_predict", True), on_resume=ANY
    )
    language: str = option(
        "en", "how answers are compared: by words of English or by characters of Chinese", choices=("en", "zh")
    )
    doc_stride: int = option(
        128, "tokens between the beginnings of two windows of a long text", minimum=1, maximum=LENGTH
    )
    max_query_length: int = option(
        0, "tokens of a question; 0: 64, or max_seq_length - 4 where that is less", minimum=0, maximum=LENGTH
    )
    max_answer_length: int = option(30, "tokens of an answer", minimum=1, maximum=LENGTH)
    n_best_size: int = option(20, "answers kept for each question", minimum=1, maximum=BEAM)

    def validate(self) -> None:
        super().validate()
        if self.data_dir:
            raise ConfigError("data_dir means nothing here: name train_json_path, eval_json_path, predict_json_path")
        self.derive("max_query_length", min(64, self.max_seq_length - 4))
        if self.max_query_length + 4 > self.max_seq_length:
            raise ConfigError(
                f"max_query_length is {self.max_query_length}, allowed is at most max_seq_length - 4 "
                f"({self.max_seq_length - 4})"
            )


class SquadV2Config(SquadConfig):
    """Answer questions with a span of the text, or with none (SQuAD v2.0): python run_squad_v2.py."""

    config_file = "task_squad_v2_config.yaml"

    start_n_top: int = option(5, "starts that the search goes on with", minimum=1, maximum=BEAM)
    end_n_top: int = option(5, "ends looked at for each start", minimum=1, maximum=BEAM)

    def validate(self) -> None:
        super().validate()
        if (tokens := max(self.start_n_top, self.end_n_top)) > self.max_seq_length:
            raise ConfigError(
                f"the larger of start_n_top and end_n_top is {tokens}, allowed is at most max_seq_length "
                f"({self.max_seq_length})"
            )


class SquadTask(Task):
    """SQuAD v1.1."""

    kind = "squad"
    selection = "f1"
    needs_examples = True
    version_2 = False

    def __init__(self, config: SquadConfig, tokenizer: FullTokenizer, known: TaskInfo | None = None) -> None:
        super().__init__(config, tokenizer, known)
        self.spec = SQUAD_V2 if self.version_2 else SQUAD_V1
        kept = (*self.spec.info.settings() - {THRESHOLD}, "language")
        self.task_info = self.spec.info(task=self.spec.name, **{key: getattr(config, key) for key in kept})

    def split(self, name: str) -> SquadSplit:
        config = self.config
        key = {TRAIN: "train_json_path", "dev": "eval_json_path", "test": "predict_json_path"}[name]
        path = getattr(config, key)
        if not path:
            raise ConfigError(f"--{key} is needed: questions in SQuAD's format")
        questions = read_squad(Path(path), self.version_2, labelled=name != "test")
        questions = sample(questions, config.most_samples(name), config.seed)
        lengths = (config.max_seq_length, config.doc_stride, config.max_query_length)
        return SquadSplit(name, questions, self.tokenizer, *lengths)

    def evaluate(self, prepared: PreparedSplit, outputs: Outputs, task_info: TaskInfo) -> EvaluationResult:
        config, questions = self.config, prepared.split.examples
        windows = SquadWindows.of(prepared.records.array)
        predictions = independent_predictions(questions, windows, outputs, config.n_best_size, config.max_answer_length)
        metrics = {}
        if are_labelled(questions):
            metrics = score_answers(questions, answer_texts(questions, predictions), config.language)
        return EvaluationResult(
            metrics, partial(_write, prepared.split, predictions, None), remarks_on_labels(questions)
        )

    def baseline(self, train: PreparedSplit, dev: PreparedSplit) -> dict[str, float]:
        """The beginning of each context, of as many words (Chinese: characters) as an answer may have tokens."""
        questions, most, language = dev.split.examples, self.config.max_answer_length, self.config.language
        first = {
            each.id: each.context[:most] if language == "zh" else " ".join(each.context.split()[:most])
            for each in questions
        }
        return score_answers(questions, first, language)


class SquadV2Task(SquadTask):
    """SQuAD v2.0: the threshold that suits the development set best is stored with the weights and used from then on.

    exact and f1, of all questions, of those with an answer (HasAns_) and of those without (NoAns_), are figures of what
    is written, as google's evaluate_v2 has them; best_exact and best_f1 those of the thresholds best for them.
    """

    selection = "best_f1"
    version_2 = True
    config: SquadV2Config

    def evaluate(self, prepared: PreparedSplit, outputs: Outputs, task_info: TaskInfo) -> EvaluationResult:
        config, questions = self.config, prepared.split.examples
        windows = SquadWindows.of(prepared.records.array)
        predictions = beam_predictions(questions, windows, outputs, config.n_best_size, config.max_answer_length)
        absent, best = no_answer_probabilities(questions, predictions), dict[str, float]()
        if are_labelled(questions):
            answers = answer_texts(questions, predictions)
            figures = score_with_threshold(questions, answers, absent, language=config.language)
            best = {name: value for name, value in figures.items() if name.startswith("best_")}
        stored = THRESHOLD in task_info.model_fields_set
        calibrated = best and not stored and prepared.split.name == "dev"
        calibration = {THRESHOLD: midway(best["best_f1_thresh"], absent.values())} if calibrated else {}
        threshold = calibration.get(THRESHOLD, task_info.null_threshold)
        written = answer_texts(questions, predictions, threshold)
        metrics = {}
        if best:
            metrics = score_with_threshold(questions, written, language=config.language) | best | {THRESHOLD: threshold}
        origin = "stored with the weights" if stored else f"as no {THRESHOLD} is stored with the weights"
        origin = "which gives these very questions the best f1" if calibration else origin
        remarks = [*remarks_on_labels(questions)]
        remarks.append(f"an answer is empty where no_answer_probability is above {threshold:g}, {origin}")
        if not any(written.values()):
            remarks.append(f"no question is answered: {_why_none(absent, threshold)}")
        write = partial(_write, prepared.split, predictions, threshold)
        collapsed = metrics and not any(written.values()) and not all(one.is_impossible for one in questions)
        collapse = "no question is answered" if collapsed else ""
        return EvaluationResult(metrics, write, tuple(remarks), calibration, collapse)

    def baseline(self, train: PreparedSplit, dev: PreparedSplit) -> dict[str, float]:
        """No answer to any question."""
        share = 100.0 * float(np.mean([question.is_impossible for question in dev.split.examples]))
        return dict.fromkeys(("exact", "f1", "best_exact", "best_f1"), share)


def _write(split: SquadSplit, predictions: list[Prediction], threshold: float | None, folder: Path) -> None:
    """The official files, and predictions_SPLIT.tsv."""
    write_predictions(folder, split.examples, predictions, threshold, SUFFIXES[split.name])
    write_prediction_table(folder, split.name, prediction_columns(split.examples, predictions, threshold))


def _why_none(absent: Mapping[str, float], threshold: float) -> str:
    """Why all answers are empty; absent: the questions' no_answer_probability."""
    if all(probability > threshold for probability in absent.values()):
        return f"none has a no_answer_probability of {threshold:g} or less"
    return "where no_answer_probability allows one, no allowed span is among the best starts and ends"


def are_labelled(questions: Sequence[SquadQuestion]) -> bool:
    """Whether the file said of every question what is right."""
    return all(question.answers or question.is_impossible for question in questions)


def remarks_on_labels(questions: Sequence[SquadQuestion]) -> tuple[str, ...]:
    """A sentence where some questions have answers and others do not, so that there are no figures."""
    without = sum(not (question.answers or question.is_impossible) for question in questions)
    if without in (0, len(questions)):
        return ()
    return (f"{without:,} of {len(questions):,} questions do not say their answers: there are no figures",)


class SpanInfo(TaskInfo):
    """How contexts are cut into windows, and which spans are compared; lengths are in tokens."""

    max_seq_length: int = Field(384, ge=8, le=LENGTH)
    doc_stride: int = Field(128, ge=1, le=LENGTH)
    max_query_length: int = Field(64, ge=1, le=LENGTH)
    max_answer_length: int = Field(30, ge=1, le=LENGTH)
    n_best_size: int = Field(20, ge=1, le=BEAM)

    def fitted(self, architecture: AlbertConfig) -> Self:
        info = super().fitted(architecture)
        return info.model_copy(update={"max_query_length": min(info.max_query_length, info.max_seq_length - 4)})


class SpanSearchInfo(SpanInfo):
    """The beam, and the probability of no answer above which there is none."""

    start_n_top: int = Field(5, ge=1, le=BEAM)
    end_n_top: int = Field(5, ge=1, le=BEAM)
    null_threshold: float = ANSWER_ALWAYS

    @property
    def shortest_row(self) -> int:
        return max(self.start_n_top, self.end_n_top)

    def fitted(self, architecture: AlbertConfig) -> Self:
        info = super().fitted(architecture)
        beam = {key: min(getattr(info, key), info.max_seq_length) for key in ("start_n_top", "end_n_top")}
        return info.model_copy(update=beam)

    @property
    def searched_starts(self) -> int:
        return self.start_n_top


def with_threshold(task_info: TaskInfo, threshold: float | None) -> TaskInfo:
    """task_info with another null_threshold; None: that of its own, with a warning where it is to answer always.

    Raises:
        ConfigError: the task has no threshold.
    """
    if threshold is None:
        if isinstance(task_info, SpanSearchInfo) and task_info.null_threshold >= ANSWER_ALWAYS:
            logger.warning(
                f"the model has no {THRESHOLD} of its own and answers every question: give --{THRESHOLD}, the "
                "no_answer_probability above which there is no answer"
            )
        return task_info
    if not isinstance(task_info, SpanSearchInfo):
        raise ConfigError(f"{THRESHOLD} is {threshold:g}, but the model's task is {task_info.task}, not squad_v2")
    return task_info.model_copy(update={THRESHOLD: threshold})


class SpanAnswerer(Answerer):
    """context, question -> answer, start, end, score, no_answer_probability, n_best; long contexts in windows."""

    predict = staticmethod(independent_predictions)

    @property
    def threshold(self) -> float | None:
        """Of Prediction.choose."""
        return None

    def read(self, record: Record) -> tuple[str, str]:
        return text_of(record, "context"), text_of(record, "question")

    def features(self, items: Sequence[tuple[str, str]]) -> Features:
        lengths = self.length, self.task_info.doc_stride, self.task_info.max_query_length
        return SquadSplit("", self._questions(items), self.tokenizer, *lengths).features()

    def items_of_rows(self, features: Features) -> np.ndarray:
        return SquadWindows.of(features.arrays.__getitem__).questions

    def answers(self, items: Sequence[tuple[str, str]], features: Features, outputs: Outputs) -> list[Record]:
        windows = SquadWindows.of(features.arrays.__getitem__)
        limits = self.task_info.n_best_size, self.task_info.max_answer_length
        return [self._answer(one) for one in self.predict(self._questions(items), windows, outputs, *limits)]

    def _questions(self, items: Sequence[tuple[str, str]]) -> list[SquadQuestion]:
        return [SquadQuestion(str(number), question, context) for number, (context, question) in enumerate(items)]

    def _answer(self, prediction: Prediction) -> Record:
        chosen, absent = prediction.choose(self.threshold), prediction.no_answer_probability
        nothing = {"answer": "", "start": None, "end": None, "score": 1.0 if absent is None else absent}
        return {
            **(_span_entry(chosen) if chosen else nothing),
            "no_answer_probability": absent,
            "n_best": [_span_entry(span) for span in prediction.best],
        }


class SpanSearchAnswerer(SpanAnswerer):
    """The same, or no answer."""

    predict = staticmethod(beam_predictions)

    @property
    def threshold(self) -> float | None:
        return self.task_info.null_threshold


def _span_entry(span: ScoredSpan) -> Record:
    return {"answer": span.text, "start": span.start, "end": span.end, "score": span.probability}


class Span(BaseModel):
    answer: str = Field(description="text of the passage, empty for no answer")
    start: Offset | None
    end: Offset | None
    score: float


class SpanAnswer(Span, Answer):
    no_answer_probability: Probability | None
    n_best: list[Span] = Field(description="the likeliest spans, best first")


def _search_shapes(hidden: int, *_: int) -> Shapes:
    shapes = {"end_layer_norm.gamma": (hidden,), "end_layer_norm.beta": (hidden,), "answer_logits.weight": (1, hidden)}
    for name in ("start_logits", "end_logits"):
        shapes |= dense_shapes(name, hidden, 1)
    for name in ("end_hidden", "answer_hidden"):
        shapes |= dense_shapes(name, 2 * hidden, hidden)
    return shapes


_FIELDS = {"context": RecordField(), "question": RecordField()}
SQUAD_V1 = TaskSpec(
    "squad_v1",
    lambda architecture, _: QuestionAnsweringScores(architecture),
    SpanAnswerer,
    _FIELDS,
    SpanAnswer,
    Head(
        "qa_outputs",
        2,
        (("qa_outputs.",),),
        lambda hidden, *_: dense_shapes("qa_outputs", hidden, 2),
        "AlbertForQuestionAnswering",
    ),
    SpanInfo,
    losses=AlbertForQuestionAnswering,
    config=SquadConfig,
)
SQUAD_V2 = TaskSpec(
    "squad_v2",
    lambda architecture, task_info: SpanSearchScores(architecture, task_info.start_n_top, task_info.end_n_top),
    SpanSearchAnswerer,
    _FIELDS,
    SpanAnswer,
    Head(
        "start_logits",
        1,
        (("start_logits.", "end_hidden.", "end_layer_norm.", "end_logits.", "answer_hidden.", "answer_logits."),),
        _search_shapes,
    ),
    SpanSearchInfo,
    losses=AlbertForSpanSearch,
    config=SquadV2Config,
)
