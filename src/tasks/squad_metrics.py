"""Official metrics of SQuAD and CMRC 2018, in percent: evaluate-v1.1.py, evaluate-v2.0.py and cmrc2018_evaluate.py.

SQuAD compares words in lower case, without punctuation and the articles a, an, the, for exact match and F1 of shared
words. CMRC 2018 compares Chinese characters. The best score over the gold answers counts.

Questions without a prediction count as wrong; the official script for version 2.0 alone fails on them.
"""

import difflib
import logging
import re
import string
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from typing import Any

from model_utils.errors import first_few
from src.create_squad_data import SquadQuestion

Score = Callable[[str, str], float]  # of a prediction and an answer, 0 to 1

logger = logging.getLogger(__name__)
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_CMRC_PUNCTUATION = str.maketrans("", "", "-:_*^/\\~`+=，。：？！“”；’《》·、「」（）－～『』")
_CHINESE = re.compile("([\u4e00-\u9fa5])")


def score_answers(
    questions: Sequence[SquadQuestion], predictions: Mapping[str, str], language: str = "en"
) -> dict[str, float]:
    """Return exact_match and f1 of evaluate-v1.1.py, or EM and F1 of cmrc2018_evaluate.py under the same names.

    Args:
        questions: questions with gold answers.
        predictions: texts by question id; a missing one scores 0.
        language: "en" for SQuAD's metrics, which XQuAD uses for all its languages; "zh" for those of CMRC 2018.
    """
    _report_missing(questions, predictions)
    scores = zip(("exact_match", "f1"), question_scores(questions, predictions, language), strict=True)
    return {name: _percent(by_question.values(), len(questions)) for name, by_question in scores}


def question_scores(
    questions: Sequence[SquadQuestion], predictions: Mapping[str, str], language: str = "en", version_2: bool = False
) -> tuple[dict[str, float], dict[str, float]]:
    """Return exact match and F1 of every prediction by question id, 0 to 1, whose means the official metrics are."""
    answers = {question.id: [answer.text for answer in question.answers] for question in questions}
    exact, f1 = _SCORES[language]
    if version_2:
        normalise, exact, f1 = _V2_SCORES[language]
        answers = {key: [text for text in texts if normalise(text)] or [""] for key, texts in answers.items()}
    return _best(predictions, answers, exact), _best(predictions, answers, f1)


def score_with_threshold(
    questions: Sequence[SquadQuestion],
    predictions: Mapping[str, str],
    no_answer: Mapping[str, float] | None = None,
    threshold: float = 1.0,
    language: str = "en",
) -> dict[str, float]:
    """Return the metrics of evaluate-v2.0.py; Chinese answers are compared as in cmrc2018_evaluate.py.

    Args:
        predictions: texts by question id, "" for no answer; a missing one scores 0.
        no_answer: probabilities of no answer (--na-prob-file) by question id.
        threshold: probability of no answer above which the prediction is ignored (--na-prob-thresh).
        language: "en" or "zh", as for score_answers.

    Returns:
        exact, f1, total; HasAns_... for questions with answers and NoAns_... for those without, where there are any.
        With no_answer also best_exact and best_f1, independent of `threshold`, and the thresholds that yield them,
        best_exact_thresh and best_f1_thresh.
    """
    _report_missing(questions, predictions)
    has_answer = {question.id: bool(question.answers) for question in questions}
    raw = dict(zip(("exact", "f1"), question_scores(questions, predictions, language, version_2=True), strict=True))
    probabilities = dict.fromkeys(predictions, 0.0) if no_answer is None else no_answer
    thresholded: dict[str, dict[str, float]] = {}
    for name, scores in raw.items():
        thresholded[name] = {}
        for key, score in scores.items():
            is_answered = probabilities[key] <= threshold
            thresholded[name][key] = score if is_answered else float(not has_answer[key])
    groups = {
        "": list(has_answer),
        "HasAns_": [key for key, value in has_answer.items() if value],
        "NoAns_": [key for key, value in has_answer.items() if not value],
    }
    figures: dict[str, float] = {}
    for prefix, keys in groups.items():
        if keys:
            for name, scores in thresholded.items():
                figures[prefix + name] = _percent((scores.get(key, 0.0) for key in keys), len(keys))
            figures[prefix + "total"] = len(keys)
    if no_answer is not None:
        for name, scores in raw.items():
            best, best_threshold = _best_threshold(scores, predictions, no_answer, has_answer)
            figures |= {f"best_{name}": best, f"best_{name}_thresh": best_threshold}
    return figures


def _best_threshold(
    scores: Mapping[str, float],
    predictions: Mapping[str, str],
    no_answer: Mapping[str, float],
    has_answer: Mapping[str, bool],
) -> tuple[float, float]:
    """Return the best mean score in percent and the lowest threshold that yields it, as evaluate-v2.0.py does.

    Questions are answered one after another, lowest probability first. The threshold is 0 if answering none is best.
    """
    score: float = sum(not has_answer[key] for key in scores)
    best = score
    threshold = 0.0
    for key in sorted(no_answer, key=no_answer.__getitem__):
        if key in scores:
            score += scores[key] if has_answer[key] else -bool(predictions[key])
            if score > best:
                best = score
                threshold = no_answer[key]
    return 100.0 * best / len(has_answer), threshold


def midway(threshold: float, probabilities: Iterable[float]) -> float:
    """Return the mean of threshold and the next larger probability, so that rounding changes no answer; 0 stays 0."""
    larger = [probability for probability in probabilities if probability > threshold]
    return (threshold + min(larger, default=1.0)) / 2 if threshold else 0.0


def _report_missing(questions: Sequence[SquadQuestion], predictions: Mapping[str, str]) -> None:
    missing = [question.id for question in questions if question.id not in predictions]
    if missing:
        count = f"{len(missing):,} of {len(questions):,} questions"
        logger.info(f"{count} have no prediction and count as wrong: {first_few(missing)}")


def _best(predictions: Mapping[str, str], answers: Mapping[str, Sequence[str]], score: Score) -> dict[str, float]:
    """Return the score of each prediction by question id: the maximum over the gold answers."""
    return {
        key: max(score(predictions[key], text) for text in texts)
        for key, texts in answers.items()
        if key in predictions
    }


def _percent(scores: Iterable[float], total: int) -> float:
    return 100.0 * sum(scores) / total


# --- one prediction and one answer ---


def _words(text: str) -> list[str]:
    return _ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split()


def _exact(prediction: str, answer: str) -> float:
    return float(_words(prediction) == _words(answer))


def _v1_f1(prediction: str, answer: str) -> float:
    """Return the F1 of common words; 0 where both texts have none."""
    predicted_words = _words(prediction)
    gold_words = _words(answer)
    common = (Counter(predicted_words) & Counter(gold_words)).total()
    return _harmonic_mean(common, len(predicted_words), len(gold_words))


def _v2_f1(f1: Score, normalise: Callable[[str], Any], prediction: str, answer: str) -> float:
    """Return f1, but 1 where both texts are empty after normalisation."""
    predicted = normalise(prediction)
    gold = normalise(answer)
    return f1(prediction, answer) if predicted and gold else float(predicted == gold)


def _harmonic_mean(common: int, predicted: int, gold: int) -> float:
    """Return the F1 of precision common / predicted and recall common / gold."""
    if common == 0:
        return 0.0
    precision = common / predicted
    recall = common / gold
    return 2 * precision * recall / (precision + recall)


def _cmrc_text(text: str) -> str:
    return text.lower().strip().translate(_NO_CMRC_PUNCTUATION)


def _cmrc_exact(prediction: str, answer: str) -> float:
    return float(_cmrc_text(prediction) == _cmrc_text(answer))


def _cmrc_segments(text: str) -> list[str]:
    """Return Chinese characters and, between them, the words of NLTK's word_tokenize without sentence splitting."""
    segments: list[str] = []
    for index, run in enumerate(_CHINESE.split(_cmrc_text(text))):
        is_character = index % 2 == 1  # re.split puts the matches at the odd indices
        segments += [run] if is_character else _word_tokenizer().tokenize(run)
    return segments


@cache
def _word_tokenizer() -> Any:
    from nltk.tokenize.destructive import NLTKWordTokenizer  # takes a second to load

    return NLTKWordTokenizer()


def _cmrc_f1(prediction: str, answer: str) -> float:
    """Return the F1 of the longest common run of segments."""
    predicted = _cmrc_segments(prediction)
    gold = _cmrc_segments(answer)
    common = difflib.SequenceMatcher(None, predicted, gold, autojunk=False).find_longest_match().size
    return _harmonic_mean(common, len(predicted), len(gold))


_SCORES: dict[str, tuple[Score, Score]] = {"en": (_exact, _v1_f1), "zh": (_cmrc_exact, _cmrc_f1)}
# Normalisation of a text, exact match and F1 of version 2.0.
_V2_SCORES = {
    language: (normalise, _SCORES[language][0], partial(_v2_f1, _SCORES[language][1], normalise))
    for language, normalise in (("en", _words), ("zh", _cmrc_text))
}
