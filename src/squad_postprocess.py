"""The best spans of SQuAD's questions -> answers, and their files in the official formats."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from model_utils.files import write_json
from src.create_squad_data import SquadQuestion
from src.squad_get_predictions import Prediction, ScoredSpan

ANSWER_ALWAYS = 1.0  # as threshold


def answer_texts(
    questions: Sequence[SquadQuestion], predictions: Sequence[Prediction], threshold: float | None = None
) -> dict[str, str]:
    """Answers by question id, empty where there is none (Prediction.choose)."""
    chosen = (prediction.choose(threshold) for prediction in predictions)
    return {question.id: span.text if span else "" for question, span in zip(questions, chosen, strict=True)}


def no_answer_probabilities(questions: Sequence[SquadQuestion], predictions: Sequence[Prediction]) -> dict[str, float]:
    """Probabilities of no answer by question id, of networks that tell."""
    absent = [prediction.no_answer_probability for prediction in predictions]
    return {one.id: odds for one, odds in zip(questions, absent, strict=True) if odds is not None}


def write_predictions(
    folder: Path,
    questions: Sequence[SquadQuestion],
    predictions: Sequence[Prediction],
    threshold: float | None = None,
    suffix: str = "",
) -> None:
    """Write the official files, each an object with an entry for every question id.

    predictions.json            the answer's text; empty: no answer
    nbest_predictions.json      the best spans: text, start, end, probability, and the scores of both ends by what they
                                are, start_logit and end_logit of version 1.1 (google's code calls them log_prob, too),
                                start_log_prob and end_log_prob of 2.0; one without text where no span is allowed
    null_odds.json              the probability of no answer, where the network tells. Not log-odds as at google's: the
                                official script takes the file (--na-prob-file), and what is above 1 there as no answer.

    Args:
        threshold: probability of no answer above which there is none. suffix: of the names before ".json".
    """
    nothing = ScoredSpan("", 0, 0, 1.0, 0.0, 0.0)
    probabilities = no_answer_probabilities(questions, predictions)
    scores = "log_prob" if probabilities else "logit"
    n_best = {
        question.id: [_n_best_entry(span, scores) for span in prediction.best or (nothing,)]
        for question, prediction in zip(questions, predictions, strict=True)
    }
    write_json(folder / f"predictions{suffix}.json", answer_texts(questions, predictions, threshold))
    write_json(folder / f"nbest_predictions{suffix}.json", n_best)
    if probabilities:
        write_json(folder / f"null_odds{suffix}.json", probabilities)


def _n_best_entry(span: ScoredSpan, scores: str) -> dict[str, Any]:
    entry = asdict(span)
    return entry | {f"{end}_{scores}": entry.pop(f"{end}_score") for end in ("start", "end")}


def prediction_columns(
    questions: Sequence[SquadQuestion], predictions: Sequence[Prediction], threshold: float | None = None
) -> dict[str, list[Any]]:
    """Columns of a table with a row for each question.

    id, question
    label                   the answers as people gave them; empty: none
    prediction              as in predictions.json
    probability             of the prediction: among the spans of the question, or of no answer
    no_answer_probability   where the network tells
    """
    chosen = [prediction.choose(threshold) for prediction in predictions]
    absent = [prediction.no_answer_probability for prediction in predictions]
    pairs = list(zip(chosen, absent, strict=True))
    columns = {
        "id": [question.id for question in questions],
        "label": [" | ".join(dict.fromkeys(answer.text for answer in each.answers)) for each in questions],
        "prediction": [span.text if span else "" for span in chosen],
        "probability": [span.probability if span else 1.0 if odds is None else odds for span, odds in pairs],
    }
    if None not in absent:
        columns["no_answer_probability"] = absent
    return columns | {"question": [question.question for question in questions]}
