"""Entities in the tags of words, found and counted as conlleval does (Tjong Kim Sang & De Meulder 2003).

A tag is O, or a letter that says where in an entity the word stands and the entity's label: B-PER. Letters are those of
BIO and BIOES (begin, inside, outside, end, single); BMES's M and BILOU's L and U count as I, E and S.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

OUTSIDE = "O"
LETTERS = "BIMLESU"  # in the order of an entity's words
_SAME = str.maketrans("MLU", "IES")
_TAG = re.compile(rf"{OUTSIDE}|[{LETTERS}]-.+")


class EntitySpan(NamedTuple):
    """Words first ... end - 1 of a sentence."""

    label: str
    first: int
    end: int


def is_tag(text: str) -> bool:
    """Whether a text is O, or a letter of a scheme and a label, as B-PER."""
    return _TAG.fullmatch(text) is not None


def all_tags(tags: Iterable[str]) -> list[str]:
    """O, then every letter that occurs with every label that occurs: an unseen pair of them may still be wanted."""
    pairs = [tag.split("-", 1) for tag in set(tags) - {OUTSIDE}]
    letters = sorted({letter for letter, _ in pairs}, key=LETTERS.index)
    return [OUTSIDE, *(f"{letter}-{label}" for label in sorted({label for _, label in pairs}) for letter in letters)]


def find_entities(tags: Sequence[str]) -> list[EntitySpan]:
    """The entities of a sentence, in their order.

    Tags that break their scheme are read as conlleval reads them: an I or E without a beginning begins an entity, and
    another label ends one and begins the next. What is no tag, as a foreign model's `PER`, is a label without a letter.
    """
    entities, first = [], 0
    before, label_before = OUTSIDE, ""
    for index, tag in enumerate([*tags, OUTSIDE]):
        letter, _, label = (tag if is_tag(tag) else f"I-{tag}").partition("-")
        letter = letter.translate(_SAME)
        begins = letter in "BS" or before in "ESO" or label != label_before
        if before != OUTSIDE and (begins or letter == OUTSIDE):
            entities.append(EntitySpan(label_before, first, index))
        if begins:
            first = index
        before, label_before = letter, label
    return entities


def entity_scores(
    gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]], tags: Iterable[str] = ()
) -> dict[str, float]:
    """F1, precision and recall of entities, of which label and both ends must be right, and accuracy of tags.

    Where there is more than one label, f1_LABEL too, of those that occur here or in `tags`, which may. A figure that is
    not defined is 0.
    """
    wanted, found, right = Counter(), Counter(), Counter()
    same = 0
    for ours, theirs in zip(predicted, gold, strict=True):
        mine, true = set(find_entities(ours)), set(find_entities(theirs))
        found.update(entity.label for entity in mine)
        wanted.update(entity.label for entity in true)
        right.update(entity.label for entity in mine & true)
        same += sum(map(str.__eq__, ours, theirs))
    metrics = {
        "f1": _f1(right.total(), found.total(), wanted.total()),
        "precision": right.total() / max(1, found.total()),
        "recall": right.total() / max(1, wanted.total()),
        "tag_accuracy": same / max(1, sum(map(len, gold))),
    }
    labels = sorted({*wanted, *found, *(entity.label for tag in tags for entity in find_entities([tag]))})
    if len(labels) > 1:
        metrics |= {f"f1_{label}": _f1(right[label], found[label], wanted[label]) for label in labels}
    return metrics


def _f1(right: int, found: int, wanted: int) -> float:
    return 2 * right / max(1, found + wanted)
