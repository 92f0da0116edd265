"""Entities as conlleval finds and counts them; the expected figures were worked out by its rules by hand."""

import pytest

from src.tasks.entities import (
    EntitySpan,
    Scheme,
    all_tags,
    entity_scores,
    find_entities,
    find_invalid_tags,
    find_orphan_continuations,
    find_scheme,
    is_tag,
    mention_macro_f1,
)


@pytest.mark.parametrize(
    ("tags", "entities"),
    [
        ("B-PER I-PER O B-LOC", [("PER", 0, 2), ("LOC", 3, 4)]),
        ("B-PER B-PER", [("PER", 0, 1), ("PER", 1, 2)]),
        ("S-PER I-PER", [("PER", 0, 1), ("PER", 1, 2)]),
        ("O I-PER I-PER", [("PER", 1, 3)]),  # IOB1: an I may begin an entity
        ("I-PER I-LOC", [("PER", 0, 1), ("LOC", 1, 2)]),
        ("B-PER I-LOC I-LOC", [("PER", 0, 1), ("LOC", 1, 3)]),
        ("S-PER B-PER I-PER E-PER S-LOC", [("PER", 0, 1), ("PER", 1, 4), ("LOC", 4, 5)]),
        ("B-PER E-PER I-PER", [("PER", 0, 2), ("PER", 2, 3)]),
        ("B-NAME M-NAME E-NAME O S-NAME", [("NAME", 0, 3), ("NAME", 4, 5)]),  # BMES
        ("B-NAME I-NAME L-NAME U-NAME", [("NAME", 0, 3), ("NAME", 3, 4)]),  # BILOU
        ("B-A-B I-A-B", [("A-B", 0, 2)]),
        ("B_PER I_PER B_PER", [("PER", 0, 2), ("PER", 2, 3)]),
        ("PER PER ORG O LABEL_1", [("PER", 0, 1), ("PER", 1, 2), ("ORG", 2, 3), ("LABEL_1", 4, 5)]),  # no letters
        ("NN NN VB", [("NN", 0, 1), ("NN", 1, 2), ("VB", 2, 3)]),
        ("B B I", [("", 0, 1), ("", 1, 3)]),  # segments of words, without labels
        ("B M E S B E", [("", 0, 3), ("", 3, 4), ("", 4, 6)]),
        ("B I O I O", [("", 0, 2), ("", 3, 4)]),
        ("B PER I", [("B", 0, 1), ("PER", 1, 2), ("I", 2, 3)]),  # a letter is a tag only where all are
        ("O O", []),
        ("", []),
    ],
)
def test_find_entities(tags: str, entities: list[tuple[str, int, int]]) -> None:
    assert find_entities(tags.split()) == [EntitySpan(*entity) for entity in entities]


def test_scores() -> None:
    gold = ["B-PER I-PER O B-LOC".split(), "B-ORG O B-PER".split(), "O".split()]
    predicted = ["B-PER O O B-LOC".split(), "B-LOC O B-PER".split(), "B-PER".split()]
    # Right: LOC of the first and PER of the second sentence, of five predicted and four wanted.
    expected = {"f1": 4 / 9, "precision": 2 / 5, "recall": 2 / 4, "tag_accuracy": 5 / 8}
    expected |= {"f1_LOC": 2 / 3, "f1_ORG": 0.0, "f1_PER": 2 / 5}
    assert entity_scores(gold, predicted) == pytest.approx(expected)


def test_a_mention_counts_once_a_text() -> None:
    """CLUENER's score.py: X is found at one of its two places, Y under another label."""
    words = ["X a X".split(), "Y X".split()]
    gold = ["B-PER O B-PER".split(), "B-ORG O".split()]
    predicted = ["B-PER O O".split(), "B-PER B-PER".split()]
    # PER: X of the first text is right, Y and X of the second are not there; ORG: Y is missed.
    assert mention_macro_f1(words, gold, predicted) == pytest.approx((2 / (3 + 1) + 0) / 2)
    assert mention_macro_f1(words, gold, gold, ["O", "B-PER", "B-ORG", "B-LOC"]) == pytest.approx(2 / 3)
    assert mention_macro_f1([], [], []) == 0.0


def test_nothing_found_and_nothing_there_is_zero() -> None:
    scores = entity_scores([["O", "O"]], [["O", "O"]])
    assert scores == {"f1": 0.0, "precision": 0.0, "recall": 0.0, "tag_accuracy": 1.0}


def test_figures_of_labels_do_not_depend_on_what_is_found() -> None:
    """Those of several seeds are averaged."""
    names = {"f1_A", "f1_B"}
    for predicted in (["O", "O"], ["B-A", "O"], ["B-A", "B-B"]):
        scores = entity_scores([["B-A", "O"]], [predicted], ["O", "B-A", "I-A", "B-B"])
        assert {name for name in scores if name.startswith("f1_")} == names
    assert not any(name.startswith("f1_") for name in entity_scores([["B-A"]], [["B-A"]], ["O", "B-A", "I-A"]))


def test_tag_names_hold_pairs_that_do_not_occur() -> None:
    tags = ["O", "S-ORG", "B-PER", "E-PER", "M-PER"]
    per = ["B-PER", "M-PER", "E-PER", "S-PER"]
    assert all_tags(tags) == ["O", "B-ORG", "M-ORG", "E-ORG", "S-ORG", *per]


@pytest.mark.parametrize(
    ("tags", "expected", "scheme"),
    [
        ("S_ORG B_PER O", ["O", "B_ORG", "S_ORG", "B_PER", "S_PER"], Scheme.ENTITIES),
        ("I-PER I-LOC O", ["O", "I-LOC", "I-PER"], Scheme.ENTITIES),
        ("S E B M", ["B", "M", "E", "S"], Scheme.SPANS),
        ("B I O", ["O", "B", "I"], Scheme.SPANS),
        ("VB NN DT", ["DT", "NN", "VB"], Scheme.WORDS),
        ("VB O DT", ["O", "DT", "VB"], Scheme.WORDS),
        ("S M L", ["L", "M", "S"], Scheme.WORDS),  # sizes
        ("I NN", ["I", "NN"], Scheme.WORDS),
        ("O", ["O"], Scheme.WORDS),
    ],
)
def test_schemes_and_the_tags_of_their_models(tags: str, expected: list[str], scheme: Scheme) -> None:
    assert all_tags(tags.split()) == expected
    assert find_scheme(tags.split()) is find_scheme(expected) is scheme
    assert find_invalid_tags(tags.split()) == (scheme, set())


@pytest.mark.parametrize(
    ("tags", "wrong"),
    [("O B-PER VBZ", "VBZ"), ("O B-PER b-PER", "b-PER"), ("o b-per", "o b-per"), ("b i o", "b i o"), ("B-PER B", "B")],
)
def test_tags_that_break_their_scheme(tags: str, wrong: str) -> None:
    assert find_invalid_tags(tags.split())[1] == set(wrong.split())


@pytest.mark.parametrize(
    ("sentences", "expected"),
    [
        ("I-A O,B-A I-A", [(0, 0)]),
        ("B-A I-B,O B-A I-A", [(0, 1)]),
        ("M-A E-A,B-A E-A,O E-A", [(0, 0), (2, 1)]),
        ("I O,B I", [(0, 0)]),
        ("I-A I-A O I-B", []),  # IO
        ("I-A B-A I-B,O I-A", []),  # IOB1
        ("B-A I-A E-A S-A", []),
    ],
)
def test_words_that_continue_nothing(sentences: str, expected: list[tuple[int, int]]) -> None:
    tags = [sentence.split() for sentence in sentences.split(",")]
    assert find_orphan_continuations(tags, find_scheme(tag for one in tags for tag in one)) == expected


def test_the_scheme_of_scores_is_that_of_all_tags() -> None:
    """A sentence that only has letters may be one of a model of other labels."""
    assert entity_scores([["I", "I"]], [["I", "I"]], ["I", "NN"])["f1_I"] == 1.0
    scores = entity_scores([["NN", "NN", "VB"]], [["NN", "VB", "VB"]])
    assert scores["f1"] == scores["precision"] == scores["recall"] == scores["tag_accuracy"] == pytest.approx(2 / 3)
    assert entity_scores([["B", "B", "I"]], [["B", "I", "I"]], ["B", "I"])["f1"] == 0.0
    scores = entity_scores([["B", "E", "S"]], [["B", "E", "S"]], ["B", "M", "E", "S"])
    assert scores["f1"] == 1.0 and not any(name.startswith("f1_") for name in scores)


def test_is_tag() -> None:
    assert all(map(is_tag, ("O", "B-PER", "M-x", "U-a-b", "B_PER")))
    assert not any(map(is_tag, ("", "B", "B-", "X-PER", "PER", "o")))
