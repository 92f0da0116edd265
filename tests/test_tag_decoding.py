"""Decoding of tags: the best of all allowed sequences, found by trying every one."""

import itertools

import numpy as np
import pytest
from scipy.special import softmax

from src.tasks.entities import find_entities, find_orphan_continuations, find_scheme, letters_and_labels
from src.tasks.tag_decoding import (
    best_path,
    decode,
    is_scheme_followed,
    scheme_transitions,
    scored_transitions,
    tag_probabilities,
)

SCHEMES = {
    "BIO": ("O", "B-A", "I-A", "B-B", "I-B"),
    "BIOES": ("O", "B-A", "I-A", "E-A", "S-A", "S-B"),
    "BMES": ("O", "B-A", "M-A", "E-A", "S-A"),
    "BILOU": ("O", "B_A", "I_A", "L_A", "U_A"),
    "segments": ("B", "M", "E", "S"),
    "spans": ("B", "I"),
}


def is_allowed(tags: list[str], labels: tuple[str, ...]) -> bool:
    """An I or E continues an entity of its label and, in schemes with E, every entity that has begun ends."""
    scheme = find_scheme(labels)
    has_ends = any(letter == "E" for letter, _ in letters_and_labels(labels, scheme))
    previous = ("O", "")
    for letter, label in [*letters_and_labels(tags, scheme), ("O", "")]:
        if letter in "IE" and not (previous[0] in "BI" and previous[1] == label):
            return False
        if has_ends and previous[0] in "BI" and letter not in "IE":
            return False
        previous = (letter, label)
    return True


@pytest.mark.parametrize("name", SCHEMES)
def test_the_best_allowed_tags_are_found(name: str) -> None:
    labels = SCHEMES[name]
    transitions = scheme_transitions(labels)
    random = np.random.default_rng(0)
    changed = 0
    for words in random.integers(1, 6, 60):
        logits = random.normal(size=(words, len(labels))).astype(np.float32)
        path = decode(logits, transitions)
        changed += (path != logits.argmax(1)).any()
        allowed = [
            each
            for each in itertools.product(range(len(labels)), repeat=words)
            if is_allowed([labels[tag] for tag in each], labels)
        ]
        best = max(allowed, key=lambda each: logits[np.arange(words), list(each)].sum())
        assert path.tolist() == list(best)
        assert not find_orphan_continuations([[labels[tag] for tag in path]], find_scheme(labels))
    assert changed > 10


@pytest.mark.parametrize(
    "labels", [("O", "I-A", "I-B"), ("NN", "VB"), ("O", "A", "B"), ("O", "S-A"), ("O", "B-A", "I-B"), ("O", "B-A")]
)
def test_schemes_that_allow_all(labels: tuple[str, ...]) -> None:
    """IO, parts of speech, and a label that could never begin."""
    assert scheme_transitions(labels) is None
    logits = np.random.default_rng(0).normal(size=(9, len(labels)))
    assert (decode(logits, None) == logits.argmax(1)).all()


def test_a_sentence_that_no_allowed_tags_fit_has_some() -> None:
    labels = ("B", "I", "E")
    assert decode(np.array([[0.0, 2.0, 1.0]]), scheme_transitions(labels)).shape == (1,)


@pytest.mark.parametrize(
    ("sentences", "expected"),
    [
        ("B-A I-A O,O O", True),
        ("I-A I-A O,O O,O O,O O,O O,O O,O O,O O,O O,O O,O O", False),  # IOB1
        (",".join(["B-A I-A O"] * 19 + ["O I-A O"]), True),  # an error
        ("B-A O,O", True),
        ("B-A I-X,O", False),
    ],
)
def test_schemes_of_training_tags(sentences: str, expected: bool) -> None:
    tags = [sentence.split() for sentence in sentences.split(",")]
    assert is_scheme_followed(tags, ("O", "B-A", "I-A", "B-X", "I-X")) == expected
    assert not is_scheme_followed(tags, ("O", "I-A"))


def test_entities_are_whole() -> None:
    """Where the argmax of the words would split an entity, or begin it with I."""
    labels = SCHEMES["BIO"]
    logits = np.array([[0, 2, 0, 0, 0], [0, 0, 1.0, 0, 1.1], [1, 0, 0, 0, 1.2]])
    assert find_entities([labels[tag] for tag in logits.argmax(1)]) != [("A", 0, 2)]
    tags = [labels[tag] for tag in decode(logits, scheme_transitions(labels))]
    assert find_entities(tags) == [("A", 0, 2)]


@pytest.mark.parametrize("name", ["BIO", "BIOES", ""])
def test_scored_transitions_give_the_best_path_and_its_probabilities(name: str) -> None:
    """The path is the best of all sequences, or of those that the scheme allows."""
    labels = SCHEMES.get(name, ("NN", "VB", "DT"))
    random = np.random.default_rng(0)
    for words in random.integers(1, 5, 20):
        logits = random.normal(size=(words, len(labels))).astype(np.float32)
        table = random.normal(0, 2, (len(labels) + 2, len(labels))).astype(np.float32)
        scores = scored_transitions(table, scheme_transitions(labels))
        sums = {}
        for path in itertools.product(range(len(labels)), repeat=words):
            if not name or is_allowed([labels[tag] for tag in path], labels):
                ends = table[-2, path[0]] + table[-1, path[-1]]
                pairs = sum(table[pair] for pair in itertools.pairwise(path))
                sums[path] = logits[range(words), path].sum() + pairs + ends
        assert tuple(best_path(logits, scores)) == max(sums, key=lambda path: sums[path])
        expected = np.zeros(logits.shape)
        for path, probability in zip(sums, softmax([*sums.values()]), strict=True):
            expected[range(words), path] += probability
        np.testing.assert_allclose(tag_probabilities(logits, scores), expected, atol=1e-6)
