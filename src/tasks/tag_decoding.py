"""Decoding of tags: the most probable tags of a sentence that follow BIO or BIOES (Viterbi's algorithm).

In BIO an I-X follows B-X or I-X only; in BIOES an entity that has begun also has to end. Unless the network scores
transitions (a CRF), the argmax of every word is the answer wherever it follows the scheme, and only other sentences are
searched.
"""

from collections.abc import Iterable, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
from scipy.special import softmax

from src.tasks.entities import letters_and_labels

FOLLOWING_SHARE = 0.9  # of the training sentences, the others may have errors
FORBIDDEN = -1e6  # finite, since a scheme may allow no tags at all: BIE for a sentence of one word


class Transitions(NamedTuple):
    """Transitions between C tags, allowed or scored: at a sentence's begin and end (C,), and b after a: pairs[a, b]."""

    first: np.ndarray
    last: np.ndarray
    pairs: np.ndarray


@cache
def scheme_transitions(labels: tuple[str, ...]) -> Transitions | None:
    """Return the transitions that tags allow, None if they allow all, as IO does, or if some label has no beginning."""
    letters, names = map(np.array, zip(*letters_and_labels(labels), strict=True))
    continues = np.isin(letters, ["I", "E"])
    if not continues.any() or not {*names[continues]} <= {*names[letters == "B"]}:
        return None
    is_open = np.isin(letters, ["B", "I"])
    may_end = ~is_open | ~np.isin(names, names[letters == "E"])  # a label without E- ends anywhere
    pairs = np.where(continues, is_open[:, None] & (names[:, None] == names), may_end[:, None])
    return Transitions(~continues, may_end, pairs)


def is_scheme_followed(sentences: Iterable[Sequence[str]], labels: tuple[str, ...]) -> bool:
    """Return True if the tags of most sentences have allowed transitions alone, as in BIO; in IOB1 an I may be first.

    Sentences without a tag that continues an entity do not count.
    """
    transitions = scheme_transitions(labels)
    if transitions is None:
        return False
    ids = {label: index for index, label in enumerate(labels)}
    counts = {True: 0, False: 0}
    for tags in sentences:
        path = np.array([ids.get(tag, 0) for tag in tags])
        if not transitions.first[path].all():
            counts[_is_allowed(path, transitions)] += 1
    return counts[True] >= FOLLOWING_SHARE * sum(counts.values())


def _is_allowed(path: np.ndarray, transitions: Transitions) -> bool:
    ends = transitions.first[path[0]] and transitions.last[path[-1]]
    return bool(ends and transitions.pairs[path[:-1], path[1:]].all())


def decode(logits: np.ndarray, transitions: Transitions | None) -> np.ndarray:
    """Return the tag ids (words,) with the largest sum of logits among those with allowed transitions.

    Args:
        logits: (words, C) of a sentence of at least one word.
        transitions: None: all are allowed.
    """
    path = logits.argmax(1)
    if transitions is None or _is_allowed(path, transitions):
        return path
    return best_path(logits, scored_transitions(np.zeros((logits.shape[1] + 2, logits.shape[1])), transitions))


def scored_transitions(table: np.ndarray, allowed: Transitions | None) -> Transitions:
    """Return the transitions in the output of a CRF (C + 2, C), with FORBIDDEN for those that are not allowed."""
    scores = Transitions(table[-2], table[-1], table[:-2])
    if allowed is None:
        return scores
    return Transitions(*(np.where(may, score, FORBIDDEN) for may, score in zip(allowed, scores, strict=True)))


def best_path(logits: np.ndarray, scores: Transitions) -> np.ndarray:
    """Return the tag ids (words,) with the largest sum of logits (words, C) and scores of transitions."""
    previous_tags = []
    best = logits[0] + scores.first  # (C,): sum of the best path to here that ends in each tag
    for words in logits[1:]:
        sums = best + scores.pairs.T  # entry [b, a]: the path goes from a to b
        previous_tags.append(sums.argmax(1))
        best = sums.max(1) + words
    path = np.zeros(len(logits), np.int64)
    path[-1] = (best + scores.last).argmax()
    for word in range(len(path) - 1, 0, -1):
        path[word - 1] = previous_tags[word - 1][path[word]]
    return path


def tag_probabilities(logits: np.ndarray, scores: Transitions) -> np.ndarray:
    """Return the probability of each tag of each word over all paths, (words, C), for arguments as of best_path."""
    before = np.zeros(logits.shape)  # log of the sum over the paths to a word, without its logit
    behind = np.zeros(logits.shape)
    before[0] = scores.first
    behind[-1] = scores.last
    for word in range(1, len(logits)):
        before[word] = np.logaddexp.reduce((before[word - 1] + logits[word - 1])[:, None] + scores.pairs)
        behind[-word - 1] = np.logaddexp.reduce(scores.pairs + behind[-word] + logits[-word], axis=1)
    return softmax(before + logits + behind, 1)
