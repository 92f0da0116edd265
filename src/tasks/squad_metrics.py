"""The official metrics of SQuAD, in percent: what evaluate-v1.1.py, evaluate-v2.0.py and cmrc2018_evaluate.py print.

SQuAD compares words in lower case, without punctuation and the articles a, an, the: whether they are the same, and how
many are shared (F1). CMRC 2018 compares Chinese characters. Of several answers the best fitting one counts.

The official script for version 2.0 breaks off at questions without a prediction; here they are wrong, as in the others.
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
    """exact_match and f1 as evaluate-v1.1.py has them; or EM and F1 of cmrc2018_evaluate.py, under the same names.

    Args:
        questions: with answers.
        predictions: texts by question id. A question without one counts 0.
        language: "en" for SQuAD's metrics, which XQuAD uses for all its languages; "zh" for CMRC 2018's.
    """
    _report_missing(questions, predictions)
    answers = {question.id: [answer.text for answer in question.answers] for question in questions}
    scores = zip(("exact_match", "f1"), _SCORES[language], strict=True)
    return {name: _percent(_best(predictions, answers, score).values(), len(questions)) for name, score in scores}


def score_with_threshold(
    questions: Sequence[SquadQuestion],
    predictions: Mapping[str, str],
    no_answer: Mapping[str, float] | None = None,
    threshold: float = 1.0,
    language: str = "en",
) -> dict[str, float]:
    """The figures of evaluate-v2.0.py; of Chinese, answers are compared as cmrc2018_evaluate.py does.

    Args:
        predictions: texts by question id, "" for no answer. A question without one counts 0.
        no_answer: probabilities of no answer (--na-prob-file) of all predictions.
        threshold: above it, a question is taken as one without an answer whatever its prediction (--na-prob-thresh).
        language: "en" or "zh", as for score_answers.

    Returns:
        exact, f1, total; the same as HasAns_... of questions with answers and NoAns_... of those without, where there
        are any. With no_answer: best_exact, best_f1 (without regard to threshold), and best_exact_thresh and
        best_f1_thresh, which give them.
    """
    _report_missing(questions, predictions)
    compared, exact, f1 = _V2_SCORES[language]
    answers = {each.id: [a.text for a in each.answers if compared(a.text)] or [""] for each in questions}
    has_answer = {question.id: bool(question.answers) for question in questions}
    raw = {name: _best(predictions, answers, score) for name, score in (("exact", exact), ("f1", f1))}
    odds = dict.fromkeys(predictions, 0.0) if no_answer is None else no_answer
    kept = {
        name: {key: score if odds[key] <= threshold else float(not has_answer[key]) for key, score in scores.items()}
        for name, scores in raw.items()
    }
    figures: dict[str, float] = {}
    for prefix, wanted in (("", (True, False)), ("HasAns_", (True,)), ("NoAns_", (False,))):
        if keys := [key for key, has in has_answer.items() if has in wanted]:
            for name, scores in kept.items():
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
    """The best mean score in percent, and the threshold for it: that of evaluate-v2.0.py, which takes the lowest.

    One question more is answered at a time, the one with the lowest probability first. Where nothing is better than to
    answer none, the threshold is 0.
    """
    score = best = sum(not has_answer[key] for key in scores)
    threshold = 0.0
    for key in sorted(no_answer, key=no_answer.__getitem__):
        if key in scores:
            score += scores[key] if has_answer[key] else -bool(predictions[key])
            if score > best:
                best, threshold = score, no_answer[key]
    return 100.0 * best / len(has_answer), threshold


def midway(threshold: float, probabilities: Iterable[float]) -> float:
    """Between a threshold and the next larger probability, so that rounding decides no answer; 0, for none, stays."""
    larger = [probability for probability in probabilities if probability > threshold]
    return (threshold + min(larger, default=1.0)) / 2 if threshold else 0.0


def _report_missing(questions: Sequence[SquadQuestion], predictions: Mapping[str, str]) -> None:
    missing = [question.id for question in questions if question.id not in predictions]
    if missing:
        count = f"{len(missing):,} of {len(questions):,} questions"
        logger.info(f"{count} have no prediction and count as wrong: {first_few(missing)}")


def _best(predictions: Mapping[str, str], answers: Mapping[str, Sequence[str]], score: Score) -> dict[str, float]:
    """Score by question id of what was predicted, by the answer that fits best."""
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
    """Harmonic mean of the shares of common words; 0 where both texts have none."""
    words, wanted = _words(prediction), _words(answer)
    return _harmonic_mean((Counter(words) & Counter(wanted)).total(), len(words), len(wanted))


def _v2_f1(f1: Score, compared: Callable[[str], Any], prediction: str, answer: str) -> float:
    """An F1; but 1 where nothing of both texts is compared."""
    ours, wanted = compared(prediction), compared(answer)
    return f1(prediction, answer) if ours and wanted else float(ours == wanted)


def _harmonic_mean(common: int, found: int, wanted: int) -> float:
    """F1 of precision common / found and recall common / wanted."""
    if common == 0:
        return 0.0
    precision, recall = common / found, common / wanted
    return 2 * precision * recall / (precision + recall)


def _cmrc_text(text: str) -> str:
    return text.lower().strip().translate(_NO_CMRC_PUNCTUATION)


def _cmrc_exact(prediction: str, answer: str) -> float:
    return float(_cmrc_text(prediction) == _cmrc_text(answer))


def _cmrc_segments(text: str) -> list[str]:
    """Chinese characters, and between them the words of NLTK's word_tokenize, taken as one sentence."""
    runs = _CHINESE.split(_cmrc_text(text))  # every second one is a Chinese character
    return [
        part for index, run in enumerate(runs) for part in ([run] if index % 2 else _word_tokenizer().tokenize(run))
    ]


@cache
def _word_tokenizer() -> Any:
    from nltk.tokenize.destructive import NLTKWordTokenizer  # takes a second to load

    return NLTKWordTokenizer()


def _cmrc_f1(prediction: str, answer: str) -> float:
    """From the longest run of segments that is in both."""
    segments, wanted = _cmrc_segments(prediction), _cmrc_segments(answer)
    common = difflib.SequenceMatcher(None, segments, wanted, autojunk=False).find_longest_match().size
    return _harmonic_mean(common, len(segments), len(wanted))


_SCORES: dict[str, tuple[Score, Score]] = {"en": (_exact, _v1_f1), "zh": (_cmrc_exact, _cmrc_f1)}
# What is compared of a text, exact and F1 of version 2.0.
_V2_SCORES = {
    language: (compared, _SCORES[language][0], partial(_v2_f1, _SCORES[language][1], compared))
    for language, compared in (("en", _words), ("zh", _cmrc_text))
}
