"""Postprocessing of SQuAD: best spans -> answers, and their files in the official formats."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from model_utils.files import write_json
from src.create_squad_data import SquadQuestion
from src.squad_get_predictions import NO_SPAN, Prediction, ScoredSpan

ANSWER_ALWAYS = 1.0  # threshold of no_answer_probability that no question exceeds


def answer_texts(
    questions: Sequence[SquadQuestion], predictions: Sequence[Prediction], threshold: float | None = None
) -> dict[str, str]:
    """Return the answers by question id, "" for no answer."""
    pairs = zip(questions, predictions, strict=True)
    return {question.id: prediction.answer(threshold).text for question, prediction in pairs}


def no_answer_probabilities(questions: Sequence[SquadQuestion], predictions: Sequence[Prediction]) -> dict[str, float]:
    """Return the probabilities of no answer by question id; empty for a network without this output."""
    return {
        question.id: prediction.no_answer_probability
        for question, prediction in zip(questions, predictions, strict=True)
        if prediction.no_answer_probability is not None
    }


def write_predictions(
    folder: Path,
    questions: Sequence[SquadQuestion],
    predictions: Sequence[Prediction],
    threshold: float | None = None,
    suffix: str = "",
) -> None:
    """Write the official files, each an object with an entry for every question id.

    predictions.json            text of the answer; "" for no answer
    nbest_predictions.json      best spans: text, start, end, probability and the scores of both ends, start_logit and
                                end_logit for version 1.1 (google's code calls them log_prob), start_log_prob and
                                end_log_prob for 2.0; a single span without text if no span is allowed
    null_odds.json              probability of no answer, if the network has this output. It is not log-odds as in
                                google's code, because the official script (--na-prob-file) needs probabilities.

    Args:
        threshold: probability of no answer above which the answer is empty.
        suffix: inserted in the file names before ".json".
    """
    probabilities = no_answer_probabilities(questions, predictions)
    score_name = "log_prob" if probabilities else "logit"
    n_best = {
        question.id: [_n_best_entry(span, score_name) for span in prediction.best or (NO_SPAN,)]
        for question, prediction in zip(questions, predictions, strict=True)
    }
    write_json(folder / f"predictions{suffix}.json", answer_texts(questions, predictions, threshold))
    write_json(folder / f"nbest_predictions{suffix}.json", n_best)
    if probabilities:
        write_json(folder / f"null_odds{suffix}.json", probabilities)


def _n_best_entry(span: ScoredSpan, score_name: str) -> dict[str, Any]:
    entry = asdict(span)
    for end in ("start", "end"):
        entry[f"{end}_{score_name}"] = entry.pop(f"{end}_score")
    return entry


def prediction_columns(
    questions: Sequence[SquadQuestion], predictions: Sequence[Prediction], threshold: float | None = None
) -> dict[str, list[Any]]:
    """Return the columns of a table with a row for each question.

    id, question
    label                   gold answers; "" for no answer
    prediction              as in predictions.json
    probability             of the prediction: among the spans of the question, or of no answer
    no_answer_probability   if the network has this output
    """
    answers = [prediction.answer(threshold) for prediction in predictions]
    no_answer = [prediction.no_answer_probability for prediction in predictions]
    columns: dict[str, list[Any]] = {
        "id": [question.id for question in questions],
        "label": [" | ".join(dict.fromkeys(answer.text for answer in question.answers)) for question in questions],
        "prediction": [span.text for span in answers],
        "probability": [span.probability for span in answers],
    }
    if None not in no_answer:
        columns["no_answer_probability"] = no_answer
    return columns | {"question": [question.question for question in questions]}
