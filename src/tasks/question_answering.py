"""Extractive question answering: SQuAD v1.1 and v2.0."""

import logging
from collections.abc import Sequence
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
from src.data.feature_cache import TRAIN, Features, Split
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
from src.tasks.evaluation_report import EvaluationReport, Mark, MarkedText, wrong_rows
from src.tasks.finetune_config import FinetuneConfig
from src.tasks.prediction_table import write_prediction_table
from src.tasks.record_processor import Answer, Offset, Outputs, Probability, Record, RecordProcessor, text_of
from src.tasks.spec import (
    EvaluationResult,
    Head,
    PreparedSplit,
    RecordField,
    Shapes,
    Task,
    TaskSpec,
    dense_shapes,
    linear_head,
)
from src.tasks.squad_metrics import midway, question_scores, score_answers, score_answers_v2
from src.tasks.task_info import TaskInfo
from src.tokenization import FullTokenizer

logger = logging.getLogger(__name__)
BEAM = 1000  # upper limit of beam and n-best sizes
THRESHOLD = "null_threshold"  # key in task.json and option of the same name
SUFFIXES = {"dev": "", "test": "_test"}  # suffixes of the official prediction files


class SquadConfig(FinetuneConfig):
    """Configuration of python run_squad_v1.py, which answers questions with a span of the context (SQuAD v1.1)."""

    config_file = "task_squad_v1_config.yaml"
    max_seq_length: int = 384
    epoch_num: int = 2
    train_batch_size: int = 48

    train_json_path: str = option(
        "", "training questions; in SQuAD's format, as flat records or JSON lines", on_resume=SAME_PLACE
    )
    eval_json_path: str = option("", "development questions; in the same formats", on_resume=SAME_PLACE)
    predict_json_path: str = option(
        "", "test questions; with or without answers", needs=("do_predict", True), on_resume=ANY
    )
    language: str = option(
        "en", "unit of answer comparison; English words (en) or Chinese characters (zh)", choices=("en", "zh")
    )
    doc_stride: int = option(128, "tokens between the starts of windows", minimum=1, maximum=LENGTH)
    max_query_length: int = option(
        0, "maximum tokens of a question; 0: 64, or max_seq_length - 4 if less", minimum=0, maximum=LENGTH
    )
    max_answer_length: int = option(30, "maximum tokens of an answer", minimum=1, maximum=LENGTH)
    n_best_size: int = option(20, "answers to keep per question", minimum=1, maximum=BEAM)

    def check_together(self) -> None:
        super().check_together()
        self.derive("max_query_length", min(64, self.max_seq_length - 4))
        if self.max_query_length + 4 > self.max_seq_length:
            raise self.error_of("max_query_length", expected=f"at most max_seq_length - 4 ({self.max_seq_length - 4})")


class SquadV2Config(SquadConfig):
    """Configuration of python run_squad_v2.py, which answers questions with a span or no answer (SQuAD v2.0)."""

    config_file = "task_squad_v2_config.yaml"

    start_n_top: int = option(5, "v2: span starts; beam size", minimum=1, maximum=BEAM)
    end_n_top: int = option(5, "v2: span ends per start", minimum=1, maximum=BEAM)

    def check_together(self) -> None:
        super().check_together()
        beam = max(self.start_n_top, self.end_n_top)
        if beam > self.max_seq_length:
            expected = f"at most max_seq_length ({self.max_seq_length})"
            raise ConfigError(key="the larger of start_n_top and end_n_top", value=beam, expected=expected)


class SquadTask(Task):
    """Task of SQuAD v1.1."""

    feature_format = "squad"
    selection = "f1"
    needs_examples = True
    version_2 = False
    config: SquadConfig

    def __init__(self, config: SquadConfig, tokenizer: FullTokenizer, trained_info: TaskInfo | None = None) -> None:
        super().__init__(config, tokenizer, trained_info)
        self.spec = SQUAD_V2 if self.version_2 else SQUAD_V1
        keys = (*self.spec.info.setting_keys() - {THRESHOLD}, "language")
        settings = {key: getattr(config, key) for key in keys}
        settings["mark_shared"] = self.kept_by_weights("mark_shared")
        self.task_info = self.spec.info(task=self.spec.name, **settings)

    def split(self, name: str) -> SquadSplit:
        config = self.config
        key = {TRAIN: "train_json_path", "dev": "eval_json_path", "test": "predict_json_path"}[name]
        path = getattr(config, key)
        if not path:
            raise config.error_of(key, hint="give a file of questions in SQuAD's format")
        questions = read_squad(Path(path), self.version_2, labelled=name != "test")
        questions = sample(questions, config.max_samples(name), config.seed)
        lengths = (config.max_seq_length, config.doc_stride, config.max_query_length)
        return SquadSplit(name, questions, self.tokenizer, *lengths)

    def evaluate(self, prepared: PreparedSplit, outputs: Outputs, task_info: TaskInfo) -> EvaluationResult:
        config = self.config
        questions = prepared.split.examples
        windows = SquadWindows.of(prepared.records.array)
        predictions = independent_predictions(questions, windows, outputs, config.n_best_size, config.max_answer_length)
        metrics = {}
        if are_labelled(questions):
            metrics = score_answers(questions, answer_texts(questions, predictions), config.language)
        report = partial(self._report, questions, predictions)
        write = partial(_write, prepared.split, predictions, None)
        return EvaluationResult(metrics, write, label_warnings(questions), report=report)

    def _report(
        self, questions: Sequence[SquadQuestion], predictions: Sequence[Prediction], threshold: float | None = None
    ) -> EvaluationReport:
        """Return the report on the answers; those that do not match exactly are errors."""
        columns = prediction_columns(questions, predictions, threshold)
        answers = dict(zip(columns["id"], columns["prediction"], strict=True))
        exact, f1 = question_scores(questions, answers, self.config.language, self.version_2)
        confidence = np.array(columns["probability"])
        is_correct = exact > 0
        wrong = wrong_rows(confidence, is_correct)
        columns["f1"] = f1.tolist()
        errors = {name: [values[row] for row in wrong] for name, values in columns.items()}
        passages = [_marked_passage(questions[row], predictions[row].answer(threshold)) for row in wrong]
        return EvaluationReport(confidence, is_correct, errors, {"context": passages})

    def baseline(self, train: PreparedSplit, dev: PreparedSplit) -> dict[str, float]:
        """Return the metrics of the first max_answer_length words (Chinese: characters) of each context."""
        questions = dev.split.examples
        length = self.config.max_answer_length
        is_chinese = self.config.language == "zh"
        answers = {}
        for question in questions:
            words = question.context if is_chinese else question.context.split()
            answers[question.id] = ("" if is_chinese else " ").join(words[:length])
        return score_answers(questions, answers, self.config.language)


class SquadV2Task(SquadTask):
    """Task of SQuAD v2.0; it fits null_threshold on the development set, by f1, where task.json states none.

    exact and f1 of all questions, of those with an answer (HasAns_) and of those without (NoAns_) measure the written
    predictions, as google's evaluate_v2 does; best_exact and best_f1 each use the threshold that maximises it.
    """

    selection = "best_f1"
    version_2 = True

    def evaluate(self, prepared: PreparedSplit, outputs: Outputs, task_info: TaskInfo) -> EvaluationResult:
        config = self.config
        questions = prepared.split.examples
        windows = SquadWindows.of(prepared.records.array)
        predictions = beam_predictions(questions, windows, outputs, config.n_best_size, config.max_answer_length)
        no_answer = no_answer_probabilities(questions, predictions)
        best_metrics: dict[str, float] = {}
        if are_labelled(questions):
            answers = answer_texts(questions, predictions)
            metrics = score_answers_v2(questions, answers, no_answer, config.language)
            best_metrics = {name: value for name, value in metrics.items() if name.startswith("best_")}
        calibration = {}
        threshold = task_info.explicit_values().get(THRESHOLD)
        origin = "stored with the weights"
        if threshold is None and best_metrics and prepared.split.name == "dev":
            threshold = midway(best_metrics["best_f1_thresh"], no_answer.values())
            calibration = {THRESHOLD: threshold}
            origin = "which maximises f1 on this split"
        elif threshold is None:
            threshold = ANSWER_ALWAYS
            origin = f"because the weights have no {THRESHOLD}"
        written = answer_texts(questions, predictions, threshold)
        metrics = {}
        if best_metrics:
            metrics = score_answers_v2(questions, written, language=config.language)
            metrics |= best_metrics | {THRESHOLD: threshold}
        warnings = [*label_warnings(questions)]
        warnings.append(f"answers are empty where no_answer_probability is above {threshold:g}, {origin}")
        if not any(written.values()):
            warnings.append("no question is answered")
        write = partial(_write, prepared.split, predictions, threshold)
        report = partial(self._report, questions, predictions, threshold)
        return EvaluationResult(metrics, write, tuple(warnings), calibration, report)

    def baseline(self, train: PreparedSplit, dev: PreparedSplit) -> dict[str, float]:
        """Return the metrics of answering no question."""
        score = 100.0 * float(np.mean([question.is_impossible for question in dev.split.examples]))
        return dict.fromkeys(("exact", "f1", "best_exact", "best_f1"), score)


def _write(split: Split, predictions: list[Prediction], threshold: float | None, folder: Path) -> None:
    """Write the official files and predictions_SPLIT.tsv."""
    write_predictions(folder, split.examples, predictions, threshold, SUFFIXES[split.name])
    write_prediction_table(folder, split.name, prediction_columns(split.examples, predictions, threshold))


def _marked_passage(question: SquadQuestion, answer: ScoredSpan) -> MarkedText:
    """Return the context with the gold answers, where it has them, and the predicted one marked."""
    marks = [
        Mark(gold.start, gold.start + len(gold.text), "gold")
        for gold in set(question.answers)
        if gold.text and gold.start >= 0 and question.context.startswith(gold.text, gold.start)
    ]
    if answer.text:
        marks.append(Mark(answer.start, answer.end, "predicted"))
    return MarkedText(question.context, marks)


def are_labelled(questions: Sequence[SquadQuestion]) -> bool:
    """Return True if every question has answers or is marked as impossible."""
    return all(question.answers or question.is_impossible for question in questions)


def label_warnings(questions: Sequence[SquadQuestion]) -> tuple[str, ...]:
    """Return a warning if only some questions have gold answers, so that there are no metrics."""
    unlabelled = sum(not (question.answers or question.is_impossible) for question in questions)
    if unlabelled in (0, len(questions)):
        return ()
    return (f"there are no metrics: {unlabelled:,} of {len(questions):,} questions have no gold answer",)


class SpanInfo(TaskInfo):
    """Settings for cutting contexts into windows and comparing spans; lengths are in tokens."""

    max_seq_length: int = Field(384, ge=8, le=LENGTH)
    doc_stride: int = Field(128, ge=1, le=LENGTH)
    max_query_length: int = Field(64, ge=1, le=LENGTH)
    max_answer_length: int = Field(30, ge=1, le=LENGTH)
    n_best_size: int = Field(20, ge=1, le=BEAM)

    def clipped_to(self, architecture: AlbertConfig) -> Self:
        info = super().clipped_to(architecture)
        return info.model_copy(update={"max_query_length": min(info.max_query_length, info.max_seq_length - 4)})


class SpanSearchInfo(SpanInfo):
    """Settings of the beam search, and the no_answer_probability above which a question gets no answer."""

    start_n_top: int = Field(5, ge=1, le=BEAM)
    end_n_top: int = Field(5, ge=1, le=BEAM)
    null_threshold: float = ANSWER_ALWAYS

    @property
    def shortest_row(self) -> int:
        return max(self.start_n_top, self.end_n_top)

    def clipped_to(self, architecture: AlbertConfig) -> Self:
        info = super().clipped_to(architecture)
        beam = {key: min(getattr(info, key), info.max_seq_length) for key in ("start_n_top", "end_n_top")}
        return info.model_copy(update=beam)

    @property
    def searched_starts(self) -> int:
        return self.start_n_top


def with_threshold(task_info: TaskInfo, threshold: float | None) -> TaskInfo:
    """Return task_info with another null_threshold; None: unchanged, with a warning if every question is answered.

    Raises:
        ConfigError: the task has no threshold.
    """
    if threshold is None:
        if isinstance(task_info, SpanSearchInfo) and task_info.null_threshold >= ANSWER_ALWAYS:
            logger.warning(f"the model has no {THRESHOLD} below 1 and answers every question: give --{THRESHOLD}")
        return task_info
    if not isinstance(task_info, SpanSearchInfo):
        raise ConfigError(key=THRESHOLD, value=threshold, problem=f"the model's task is {task_info.task}, not squad_v2")
    return task_info.model_copy(update={THRESHOLD: threshold})


class SpanProcessor(RecordProcessor):
    """Processor: context, question -> answer, start, end, score, no_answer_probability, n_best.

    Long contexts are cut into windows.
    """

    task_info: SpanInfo

    def parse(self, record: Record) -> tuple[str, str]:
        return text_of(record, "context"), text_of(record, "question")

    def encode(self, items: Sequence[tuple[str, str]]) -> Features:
        lengths = self.length, self.task_info.doc_stride, self.task_info.max_query_length
        return SquadSplit("", self._questions(items), self.tokenizer, *lengths).features()

    def items_of_rows(self, features: Features) -> np.ndarray:
        return SquadWindows.of(features.arrays.__getitem__).questions

    def postprocess(self, items: Sequence[tuple[str, str]], features: Features, outputs: Outputs) -> list[Record]:
        windows = SquadWindows.of(features.arrays.__getitem__)
        limits = self.task_info.n_best_size, self.task_info.max_answer_length
        predict = beam_predictions if isinstance(self.task_info, SpanSearchInfo) else independent_predictions
        predictions = predict(self._questions(items), windows, outputs, *limits)
        return [self._answer(prediction) for prediction in predictions]

    def _questions(self, items: Sequence[tuple[str, str]]) -> list[SquadQuestion]:
        return [SquadQuestion(str(index), question, context) for index, (context, question) in enumerate(items)]

    def _answer(self, prediction: Prediction) -> Record:
        threshold = self.task_info.null_threshold if isinstance(self.task_info, SpanSearchInfo) else None
        entry = _span_entry(prediction.answer(threshold))
        if not entry["answer"]:
            entry |= {"start": None, "end": None}
        no_answer = prediction.no_answer_probability
        n_best = [_span_entry(candidate) for candidate in prediction.best]
        return {**entry, "no_answer_probability": no_answer, "n_best": n_best}


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


def _search_shapes(hidden_size: int, *_: int) -> Shapes:
    shapes: Shapes = {
        "end_layer_norm.gamma": (hidden_size,),
        "end_layer_norm.beta": (hidden_size,),
        "answer_logits.weight": (1, hidden_size),
    }
    for name in ("start_logits", "end_logits"):
        shapes |= dense_shapes(name, hidden_size, 1)
    for name in ("end_hidden", "answer_hidden"):
        shapes |= dense_shapes(name, 2 * hidden_size, hidden_size)
    return shapes


_FIELDS = {"context": RecordField(), "question": RecordField()}
SQUAD_V1 = TaskSpec(
    "squad_v1",
    lambda architecture, _: QuestionAnsweringScores(architecture),
    SpanProcessor,
    _FIELDS,
    SpanAnswer,
    linear_head("qa_outputs", 2, "AlbertForQuestionAnswering"),
    SpanInfo,
    losses=AlbertForQuestionAnswering,
    config=SquadConfig,
)
SQUAD_V2 = TaskSpec(
    "squad_v2",
    lambda architecture, task_info: SpanSearchScores(architecture, task_info.start_n_top, task_info.end_n_top),
    SpanProcessor,
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
