"""SQuAD v1.1 and v2.0: which span of a text answers a question, if any does."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from mindspore import nn

from model_utils.errors import ConfigError
from src.albert_config import AlbertConfig
from src.albert_for_finetune import AlbertForQuestionAnswering, AlbertForSpanSearch
from src.create_finetune_data import sample
from src.create_squad_data import Question, SquadWindows, read_squad, squad_facts, squad_features
from src.data.feature_files import RecordSet
from src.finetune_eval_model import QuestionAnsweringScores, SpanSearchScores
from src.squad_postprocess import (
    ANSWER_ALWAYS,
    Prediction,
    answer_texts,
    beam_predictions,
    independent_predictions,
    no_answer_probabilities,
    prediction_columns,
    write_predictions,
)
from src.tasks.finetune_config import SquadConfig, SquadV2Config
from src.tasks.finetuning import TRAIN, Judgement, Source
from src.tasks.prediction_table import write_prediction_table
from src.tasks.squad_metrics import score_answers, score_with_threshold
from src.tokenization import FullTokenizer

THRESHOLD = "null_threshold"  # probability of no answer above which there is none
SUFFIXES = {"dev": "", "test": "_test"}  # of the names of prediction files


class SquadTask:
    """See src.tasks.finetuning.Task; SQuAD v1.1."""

    kind = "squad"
    lanes = 1
    pairs = True
    selection = "f1"
    dev_splits = ("dev",)
    test_splits = ("test",)
    scores_texts = True
    version_2 = False

    def __init__(self, config: SquadConfig, tokenizer: FullTokenizer) -> None:
        if config.max_query_length + 4 > config.max_seq_length:
            raise ConfigError(
                f"max_query_length is {config.max_query_length}, allowed is at most max_seq_length - 4 "
                f"({config.max_seq_length - 4})"
            )
        self.config, self.tokenizer = config, tokenizer
        self.questions: dict[str, list[Question]] = {}
        kept = ("max_seq_length", "doc_stride", "max_query_length", "max_answer_length", "n_best_size", "language")
        self.card: dict[str, Any] = {"task": "squad_v2" if self.version_2 else "squad_v1", "labels": []}
        self.card |= {key: getattr(config, key) for key in kept}

    def source(self, split: str) -> Source:
        config = self.config
        keys = {TRAIN: "train_json_path", "dev": "eval_json_path", "test": "predict_json_path"}
        path = getattr(config, keys[split])
        if not path:
            raise ConfigError(f"--{keys[split]} is needed: questions in SQuAD's format")
        questions = read_squad(Path(path), self.version_2, labelled=split != "test")
        self.questions[split] = sample(questions, config.most_samples(split), config.seed)
        lengths = (config.max_seq_length, config.doc_stride, config.max_query_length)
        described = (self.questions[split], self.tokenizer, *lengths, split == TRAIN)
        return Source(squad_facts(*described), partial(squad_features, *described))

    def training_network(self, architecture: AlbertConfig, seed: int) -> nn.Cell:
        return AlbertForQuestionAnswering(self.scores_network(architecture), seed)

    def scores_network(self, architecture: AlbertConfig) -> nn.Cell:
        return QuestionAnsweringScores(architecture)

    def judge(
        self, split: str, records: RecordSet, outputs: dict[str, np.ndarray], card: Mapping[str, Any]
    ) -> Judgement:
        config, questions = self.config, self.questions[split]
        windows = SquadWindows.of(records.array)
        predictions = independent_predictions(questions, windows, outputs, config.n_best_size, config.max_answer_length)
        metrics = {}
        if are_labelled(questions):
            metrics = score_answers(questions, answer_texts(questions, predictions), config.language)
        return Judgement(metrics, partial(self._write, split, predictions, None), remarks_on_labels(questions))

    def _write(self, split: str, predictions: list[Prediction], threshold: float | None, folder: Path) -> None:
        questions = self.questions[split]
        write_predictions(folder, questions, predictions, threshold, SUFFIXES[split])
        write_prediction_table(folder, split, prediction_columns(questions, predictions, threshold))

    def baselines(self, train: RecordSet, dev: RecordSet) -> dict[str, float]:
        """The beginning of every text, of as many words (Chinese: characters) as an answer may have tokens."""
        questions, most, language = self.questions["dev"], self.config.max_answer_length, self.config.language
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

    def __init__(self, config: SquadV2Config, tokenizer: FullTokenizer) -> None:
        super().__init__(config, tokenizer)
        self.card |= {"start_n_top": config.start_n_top, "end_n_top": config.end_n_top}

    def training_network(self, architecture: AlbertConfig, seed: int) -> nn.Cell:
        return AlbertForSpanSearch(self.scores_network(architecture), seed)

    def scores_network(self, architecture: AlbertConfig) -> nn.Cell:
        return SpanSearchScores(architecture, self.config.start_n_top, self.config.end_n_top)

    def judge(
        self, split: str, records: RecordSet, outputs: dict[str, np.ndarray], card: Mapping[str, Any]
    ) -> Judgement:
        config, questions = self.config, self.questions[split]
        windows = SquadWindows.of(records.array)
        predictions = beam_predictions(questions, windows, outputs, config.n_best_size, config.max_answer_length)
        absent, best = no_answer_probabilities(questions, predictions), dict[str, float]()
        if are_labelled(questions):
            answers = answer_texts(questions, predictions)
            figures = score_with_threshold(questions, answers, absent)
            best = {name: value for name, value in figures.items() if name.startswith("best_")}
        calibration = {THRESHOLD: best["best_f1_thresh"]} if THRESHOLD not in card and split == "dev" else {}
        threshold = ({THRESHOLD: ANSWER_ALWAYS} | card | calibration)[THRESHOLD]
        written = answer_texts(questions, predictions, threshold)
        metrics = score_with_threshold(questions, written) | best | {THRESHOLD: threshold} if best else {}
        origin = "stored with the weights" if THRESHOLD in card else f"as no {THRESHOLD} is stored with the weights"
        origin = "which gives these very questions the best f1" if calibration else origin
        remarks = [*remarks_on_labels(questions)]
        remarks.append(f"an answer is empty where no_answer_probability is above {threshold:g}, {origin}")
        if not any(written.values()):
            remarks.append(f"no question is answered: {_why_none(absent, threshold)}")
        return Judgement(metrics, partial(self._write, split, predictions, threshold), tuple(remarks), calibration)

    def baselines(self, train: RecordSet, dev: RecordSet) -> dict[str, float]:
        """Never an answer."""
        share = 100.0 * float(np.mean([question.is_impossible for question in self.questions["dev"]]))
        return dict.fromkeys(("exact", "f1", "best_exact", "best_f1"), share)


def _why_none(absent: Mapping[str, float], threshold: float) -> str:
    """Why all answers are empty; absent: the questions' no_answer_probability."""
    if all(probability > threshold for probability in absent.values()):
        return f"none has a no_answer_probability of {threshold:g} or less"
    return "where no_answer_probability allows one, no allowed span is among the best starts and ends"


def are_labelled(questions: Sequence[Question]) -> bool:
    """Whether the file said of every question what is right."""
    return all(question.answers or question.is_impossible for question in questions)


def remarks_on_labels(questions: Sequence[Question]) -> tuple[str, ...]:
    """A sentence where some questions have answers and others do not, so that there are no figures."""
    without = sum(not (question.answers or question.is_impossible) for question in questions)
    if without in (0, len(questions)):
        return ()
    return (f"{without:,} of {len(questions):,} questions do not say their answers: there are no figures",)
