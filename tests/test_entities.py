"""Entities as conlleval finds and counts them; the expected figures were worked out by its rules by hand."""

import pytest

from src.tasks.entities import EntitySpan, all_tags, entity_scores, find_entities, is_tag


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
        ("PER PER ORG O LABEL_1", [("PER", 0, 2), ("ORG", 2, 3), ("LABEL_1", 4, 5)]),  # foreign labels without letters
        ("O O", []),
        ("", []),
    ],
)
def test_find_entities(tags: str, entities: list[tuple[str, int, int]]) -> None:
    assert find_entities(tags.split()) == [EntitySpan(*entity) for entity in entities]


def test_scores() -> None:
    gold = ["B-PER I-PER O B-LOC".split(), "B-ORG O B-PER".split(), "O".split()]
    predicted = ["B-PER O O B-LOC".split(), "B-LOC O B-PER".split(), "B-PER".split()]
    scores = entity_scores(gold, predicted)
    # Right: LOC of the first and PER of the second sentence, of five predicted and four wanted.
    assert scores == pytest.approx(
        {
            "f1": 4 / 9,
            "precision": 2 / 5,
            "recall": 2 / 4,
            "tag_accuracy": 5 / 8,
            "f1_LOC": 2 / 3,
            "f1_ORG": 0.0,
            "f1_PER": 2 / 5,
        }
    )


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


def test_is_tag() -> None:
    assert all(map(is_tag, ("O", "B-PER", "M-x", "U-a-b")))
    assert not any(map(is_tag, ("", "B", "B-", "X-PER", "PER", "o")))
