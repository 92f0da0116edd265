"""Official metrics of SQuAD and CMRC 2018, in percent: evaluate-v1.1.py, evaluate-v2.0.py and cmrc2018_evaluate.py.

SQuAD compares words in lower case, without punctuation and the articles a, an, the, for exact match and F1 of shared
words. CMRC 2018 compares Chinese characters. The best score over the gold answers counts.
"""

import difflib
import re
import string
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from src.create_squad_data import SquadQuestion

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
        predictions: texts by question id.
        language: "en" for SQuAD's metrics, which XQuAD uses for all its languages; "zh" for those of CMRC 2018.
    """
    exact, f1 = question_scores(questions, predictions, language)
    return {"exact_match": _percent(exact), "f1": _percent(f1)}


def question_scores(
    questions: Sequence[SquadQuestion], predictions: Mapping[str, str], language: str = "en", version_2: bool = False
) -> np.ndarray:
    """Return exact match and F1 of the predictions, (2, questions) from 0 to 1, whose means the metrics are."""
    normalise, f1 = _COMPARISONS[language]
    scores = []
    for question in questions:
        prediction = normalise(predictions[question.id])
        answers = [normalise(answer.text) for answer in question.answers]
        if version_2:
            answers = [answer for answer in answers if answer] or [normalise("")]
        exact = float(prediction in answers)
        if version_2 and not (prediction and answers[0]):
            scores.append((exact, exact))
        else:  # version 1 gives F1 0 to texts of which nothing is left
            scores.append((exact, max(f1(prediction, answer) for answer in answers)))
    return np.array(scores).T


def score_answers_v2(
    questions: Sequence[SquadQuestion],
    predictions: Mapping[str, str],
    no_answer: Mapping[str, float] | None = None,
    language: str = "en",
) -> dict[str, float]:
    """Return the metrics of evaluate-v2.0.py; Chinese answers are compared as in cmrc2018_evaluate.py.

    Args:
        predictions: texts by question id, "" for no answer.
        no_answer: probabilities of no answer (--na-prob-file) by question id.
        language: "en" or "zh", as for score_answers.

    Returns:
        exact, f1, total; HasAns_... for questions with answers and NoAns_... for those without, where there are any.
        With no_answer also best_exact and best_f1, and the thresholds that yield them, best_exact_thresh and
        best_f1_thresh.
    """
    scores = dict(zip(("exact", "f1"), question_scores(questions, predictions, language, version_2=True), strict=True))
    has_answer = np.array([bool(question.answers) for question in questions])
    metrics: dict[str, float] = {}
    for prefix, rows in {"": np.ones_like(has_answer), "HasAns_": has_answer, "NoAns_": ~has_answer}.items():
        if rows.any():
            metrics |= {prefix + name: _percent(values[rows]) for name, values in scores.items()}
            metrics[prefix + "total"] = int(rows.sum())
    if no_answer is not None:
        probabilities = np.array([no_answer[question.id] for question in questions])
        is_text = np.array([bool(predictions[question.id]) for question in questions])
        for name, values in scores.items():
            gains = np.where(has_answer, values, -1.0 * is_text)
            best, threshold = _best_threshold(gains, probabilities, int((~has_answer).sum()))
            metrics |= {f"best_{name}": best, f"best_{name}_thresh": threshold}
    return metrics


def _best_threshold(gains: np.ndarray, probabilities: np.ndarray, unanswerable: int) -> tuple[float, float]:
    """Return the best mean score in percent and the lowest threshold that yields it, as evaluate-v2.0.py does.

    Questions are answered one after another, lowest probability first. The threshold is 0 if answering none is best.

    Args:
        gains: (questions,) change of the sum of scores by answering a question.
        probabilities: (questions,) of no answer.
        unanswerable: number of questions without an answer.
    """
    order = np.argsort(probabilities, kind="stable")
    sums = np.cumsum([unanswerable, *gains[order]])
    best = int(sums.argmax())
    return 100.0 * float(sums[best]) / len(gains), float(probabilities[order[best - 1]]) if best else 0.0


def midway(threshold: float, probabilities: Iterable[float]) -> float:
    """Return the mean of threshold and the next larger probability, so that rounding changes no answer; 0 stays 0."""
    larger = [probability for probability in probabilities if probability > threshold]
    return (threshold + min(larger, default=1.0)) / 2 if threshold else 0.0


def _percent(scores: np.ndarray) -> float:
    return 100.0 * sum(scores.tolist()) / len(scores)


def _words(text: str) -> list[str]:
    return _ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split()


def _words_f1(prediction: list[str], answer: list[str]) -> float:
    """Return the F1 of common words."""
    common = (Counter(prediction) & Counter(answer)).total()
    return _f1(common, len(prediction), len(answer))


def _f1(common: int, predicted: int, gold: int) -> float:
    """Return the F1 of precision common / predicted and recall common / gold."""
    if common == 0:
        return 0.0
    precision = common / predicted
    recall = common / gold
    return 2 * precision * recall / (precision + recall)


def _cmrc_text(text: str) -> str:
    return text.lower().strip().translate(_NO_CMRC_PUNCTUATION)


def _cmrc_segments(text: str) -> list[str]:
    """Return Chinese characters and, between them, the words of NLTK's word_tokenize without sentence splitting."""
    segments: list[str] = []
    for index, run in enumerate(_CHINESE.split(text)):
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
    return _f1(common, len(predicted), len(gold))


# By language: normalisation of a text, and F1 of normalised texts.
_COMPARISONS: dict[str, tuple[Any, Any]] = {"en": (_words, _words_f1), "zh": (_cmrc_text, _cmrc_f1)}
