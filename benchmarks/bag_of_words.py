"""What takes no network: what a pre-trained encoder has to beat on a task.

Classification: logistic regression on tf-idf of words and pairs of neighbouring words. Of two texts it sees the words
of each alone; a second figure (overlap) is that with what they share, where they differ and how much of each is in the
other, which no bag of words tells.
RACE: the sliding window of Richardson et al. 2013 (MCTest, algorithm 1), which RACE's paper measures, too.
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np
from scipy import sparse
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression

from src.create_finetune_data import Example
from src.tasks.ner_data import split_words
from src.tasks.race_data import RaceQuestion

STRENGTHS = (0.1, 1.0, 10.0)  # inverse of the regularisation; the best one is chosen on the development set


def words_of(text: str) -> list[str]:
    """Words in lower case; of Chinese, every ideograph."""
    lower = text.lower()
    return [lower[start:end] for start, end in split_words(lower)]


class TextFeatures:
    """tf-idf of words and of pairs of neighbours, as they are in the training texts; of pairs of texts, of both.

    overlap: pairs are compared, too.
    """

    def __init__(self, examples: Sequence[Example], overlap: bool) -> None:
        self.pairs, self.overlap = any(example.text_b for example in examples), overlap
        self.vectorizer = TfidfVectorizer(tokenizer=words_of, token_pattern=None, ngram_range=(1, 2), sublinear_tf=True)
        self.vectorizer.fit([text for each in examples for text in (each.text_a, each.text_b)[: 1 + self.pairs]])

    def __call__(self, examples: Sequence[Example]) -> sparse.csr_matrix:
        """(rows, features) of the examples."""
        first = self.vectorizer.transform([example.text_a for example in examples])
        if not self.pairs:
            return first
        second = self.vectorizer.transform([example.text_b for example in examples])
        if not self.overlap:
            return sparse.hstack([first, second], format="csr")
        shared = first.multiply(second)
        overlap = np.array([_overlap(words_of(each.text_a), words_of(each.text_b)) for each in examples])
        similarity = np.asarray(shared.sum(1))  # cosine: rows have length 1
        dense = sparse.csr_matrix(np.hstack([overlap, similarity]))
        return sparse.hstack([first, second, shared, abs(first - second), dense], format="csr")


def _overlap(first: Sequence[str], second: Sequence[str]) -> tuple[float, float, float]:
    """Share of the first text's words in the second, of the second's in the first, and the ratio of their lengths."""
    one, other = set(first), set(second)
    shared, lengths = len(one & other), sorted((len(first), len(second)))
    return shared / max(1, len(one)), shared / max(1, len(other)), lengths[0] / max(1, lengths[1])


def classification_accuracy(
    train: Sequence[Example], dev: Sequence[Example], evaluated: Sequence[Example], overlap: bool = False
) -> float:
    """Accuracy of logistic regression on what is evaluated; dev: by which its regularisation is chosen."""
    features = TextFeatures(train, overlap)
    rows, labels = features(train), [example.label for example in train]
    models = [LogisticRegression(C=strength, max_iter=1000).fit(rows, labels) for strength in STRENGTHS]
    best = max(models, key=lambda model: model.score(features(dev), [example.label for example in dev]))
    return float(best.score(features(evaluated), [example.label for example in evaluated]))


def sliding_window_accuracy(questions: Sequence[RaceQuestion]) -> float:
    """Share of the questions whose right option has the most words, with the question's, in one stretch of the article.

    The stretch has as many words as question and option have different ones; a word that the article seldom uses counts
    more, log(1 + 1 / uses). Of equal options the first one is taken.
    """
    return float(np.mean([_likeliest_option(question) == question.answer for question in questions]))


def _likeliest_option(question: RaceQuestion) -> int:
    article, asked = words_of(question.article), words_of(question.question)
    uses = Counter(article)
    weights = np.log1p(1.0 / np.array([uses[word] for word in article]))
    scores = []
    for option in question.options:
        wanted = {*asked, *words_of(option)}
        found = np.where([word in wanted for word in article], weights, 0.0)
        scores.append(np.convolve(found, np.ones(max(1, len(wanted))), "full").max())
    return int(np.argmax(scores))
