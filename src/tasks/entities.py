"""Entities in the tags of words, found and counted as conlleval does (Tjong Kim Sang & De Meulder 2003).

A tag is O, or a letter that says where in an entity the word stands and the entity's label: B-PER or B_PER. Letters are
those of BIO and BIOES (begin, inside, outside, end, single); BMES's M and BILOU's L and U count as I, E and S. Tags may
lack labels, as those of word segmentation do, or be of no such scheme, as parts of speech are.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import NamedTuple

OUTSIDE = "O"
LETTERS = "BIMLESU"  # in the order of an entity's words
_BARE = frozenset(LETTERS)
_SAME = str.maketrans("MLU", "IES")
_TAG = re.compile(rf"{OUTSIDE}|[{LETTERS}][-_].+")


class Scheme(Enum):
    """The kinds of tags that a model or a file may have, and what they look like."""

    ENTITIES = "O, B-LABEL, I-LABEL, ..."
    SPANS = "B, I, ... without labels"
    WORDS = "one label a word, as parts of speech are"


class EntitySpan(NamedTuple):
    """Words first ... end - 1 of a sentence."""

    label: str
    first: int
    end: int


def is_tag(text: str) -> bool:
    """Return whether a text is O, or a letter of a scheme and a label, as B-PER."""
    return _TAG.fullmatch(text) is not None


def find_scheme(tags: Iterable[str]) -> Scheme:
    """Return the scheme that tags belong to: one with a letter and a label among them makes all of them entities'."""
    letters = set(tags) - {OUTSIDE}
    if any(map(is_tag, letters)):
        return Scheme.ENTITIES
    return Scheme.SPANS if letters <= _BARE and letters & {"B", "I"} else Scheme.WORDS


def misfits(tags: Iterable[str]) -> tuple[Scheme, set[str]]:
    """Return the scheme of tags in any case, and those that break it, as all with a letter in lower case do."""
    tags = set(tags)
    scheme = find_scheme(map(str.upper, tags))
    if scheme is Scheme.ENTITIES:
        return scheme, {tag for tag in tags if not is_tag(tag)}
    return scheme, tags - _BARE - {OUTSIDE} if scheme is Scheme.SPANS else set()


def all_tags(tags: Iterable[str]) -> list[str]:
    """Return the tags of a model, O first.

    Of entities O and every letter that occurs with every label that occurs: an unseen pair may still be wanted.
    """
    tags = set(tags)
    scheme = find_scheme(tags)
    if scheme is not Scheme.ENTITIES:
        return sorted(tags, key=lambda tag: (tag != OUTSIDE, LETTERS.find(tag) if scheme is Scheme.SPANS else 0, tag))
    inside = tags - {OUTSIDE}
    letters = sorted({tag[0] for tag in inside}, key=LETTERS.index)
    return [OUTSIDE, *(letter + label for label in sorted({tag[1:] for tag in inside}) for letter in letters)]


def find_entities(tags: Sequence[str], scheme: Scheme | None = None) -> list[EntitySpan]:
    """Return the entities of a sentence, in their order.

    Tags that break their scheme are read as conlleval reads them: an I or E without a beginning begins an entity, and
    another label ends one and begins the next. A tag without a letter, as `NN`, is an entity of one word.

    Args:
        scheme: of the model's or the file's tags; None: of these ones.
    """
    entities, first = [], 0
    before, label_before = OUTSIDE, ""
    for index, (letter, label) in enumerate([*_letters_and_labels(tags, scheme), (OUTSIDE, "")]):
        begins = letter in "BS" or before in "ESO" or label != label_before
        if before != OUTSIDE and (begins or letter == OUTSIDE):
            entities.append(EntitySpan(label_before, first, index))
        if begins:
            first = index
        before, label_before = letter, label
    return entities


def unbegun_words(sentences: Iterable[Sequence[str]], scheme: Scheme) -> list[tuple[int, int]]:
    """Return sentence and word of each I, M, E or L that continues nothing.

    There are none in IO and IOB1, where every I may begin an entity, and B only parts those of the same label.
    """
    unbegun = []
    is_iob1 = True
    for index, tags in enumerate(sentences):
        before, label_before = OUTSIDE, ""
        for word, (letter, label) in enumerate(_letters_and_labels(tags, scheme)):
            if before in "ESO" or label != label_before:
                if letter in "IE":
                    unbegun.append((index, word))
                is_iob1 &= letter in "IO"
            is_iob1 &= letter in "BIO"
            before, label_before = letter, label
    return [] if is_iob1 else unbegun


def _letters_and_labels(tags: Sequence[str], scheme: Scheme | None) -> list[tuple[str, str]]:
    """Return the letter of BIOES and the label of each tag, in a list of pairs."""
    are_letters = (scheme or find_scheme(tags)) is Scheme.SPANS
    pairs = []
    for tag in tags:
        if is_tag(tag):
            pairs.append((tag[0].translate(_SAME), tag[2:]))
        elif are_letters and tag in _BARE:
            pairs.append((tag.translate(_SAME), ""))
        else:
            pairs.append(("S", tag))
    return pairs


def entity_scores(
    gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]], tags: Iterable[str] = ()
) -> dict[str, float]:
    """F1, precision and recall of entities, of which label and both ends must be right, and accuracy of tags.

    Where there is more than one label, f1_LABEL too, of those that occur here or in `tags`, which may, and whose scheme
    all tags are read by. A figure that is not defined is 0.
    """
    wanted, found, right = Counter(), Counter(), Counter()
    tags = [*tags]
    scheme = find_scheme(tags or [tag for sentence in (*gold, *predicted) for tag in sentence])
    same = 0
    for ours, theirs in zip(predicted, gold, strict=True):
        mine, true = set(find_entities(ours, scheme)), set(find_entities(theirs, scheme))
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
