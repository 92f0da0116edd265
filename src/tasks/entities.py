"""Entities in the tags of words, extracted and scored as conlleval does (Tjong Kim Sang & De Meulder 2003).

A tag is O, or the letter of a word's position in an entity with the entity's label, as in B-PER or B_PER. Letters are
those of BIO and BIOES (begin, inside, outside, end, single); BMES's M and BILOU's L and U count as I, E and S. Tags may
have no labels, as in word segmentation, or no letters, as in parts of speech.
"""

import re
from collections.abc import Iterable, Sequence
from enum import Enum
from functools import lru_cache
from typing import Any, NamedTuple

Sentences = Sequence[Sequence[str]]  # words or tags of each sentence
OUTSIDE = "O"
LETTERS = "BIMLESU"  # sorted by position in an entity
_POSITION_LETTERS = frozenset(LETTERS)
_TO_BIOES = str.maketrans("MLU", "IES")
LETTER_LAST = re.compile(rf".+[-_][{LETTERS}]")  # PER-B, which is no tag of a scheme
_TAG = re.compile(rf"{OUTSIDE}|[{LETTERS}][-_].+")


class Scheme(Enum):
    """Tagging scheme of a model or file; the value is its description in messages."""

    ENTITIES = "O, B-LABEL, I-LABEL, ..."
    SPANS = "B, I, ... without labels"
    WORDS = "one label a word, as parts of speech are"


class EntitySpan(NamedTuple):
    """Entity of the words first ... end - 1 of a sentence."""

    label: str
    first: int
    end: int


def is_tag(text: str) -> bool:
    """Return True for O, or a letter with a label, as in B-PER."""
    return _TAG.fullmatch(text) is not None


def find_scheme(tags: Iterable[str]) -> Scheme:
    """Return the scheme of tags; one tag with letter and label suffices for ENTITIES."""
    inside = set(tags) - {OUTSIDE}
    if any(map(is_tag, inside)):
        return Scheme.ENTITIES
    return Scheme.SPANS if inside <= _POSITION_LETTERS and inside & {"B", "I"} else Scheme.WORDS


def find_invalid_tags(tags: Iterable[str]) -> tuple[Scheme, set[str]]:
    """Return the scheme of the tags, found ignoring case, and the tags that are invalid in it.

    Tags with lower-case position letters are invalid.
    """
    tags = set(tags)
    scheme = find_scheme(map(str.upper, tags))
    if scheme is Scheme.ENTITIES:
        return scheme, {tag for tag in tags if not is_tag(tag)}
    return scheme, tags - _POSITION_LETTERS - {OUTSIDE} if scheme is Scheme.SPANS else set()


def all_tags(tags: Iterable[str]) -> list[str]:
    """Return the tags of a model, O first.

    For entities, every letter that occurs is combined with every label, because unseen pairs may occur in other data.
    """
    tags = set(tags)
    scheme = find_scheme(tags)
    if scheme is not Scheme.ENTITIES:
        return sorted(tags, key=lambda tag: (tag != OUTSIDE, LETTERS.find(tag) if scheme is Scheme.SPANS else 0, tag))
    inside = tags - {OUTSIDE}
    letters = sorted({tag[0] for tag in inside}, key=LETTERS.index)
    return [OUTSIDE, *(letter + label for label in sorted({tag[1:] for tag in inside}) for letter in letters)]


def find_entities(tags: Sequence[str], scheme: Scheme | None = None) -> list[EntitySpan]:
    """Return the entities of a sentence, in order.

    Tags that break their scheme are read as conlleval reads them: an I or E without a beginning begins an entity, and
    a new label ends one entity and begins the next. A tag without a letter, such as `NN`, is an entity of one word.

    Args:
        scheme: scheme of the model's or file's tags; None: that of `tags`.
    """
    entities = []
    first = 0
    last_letter, last_label = OUTSIDE, ""
    for index, (letter, label) in enumerate([*letters_and_labels(tags, scheme), (OUTSIDE, "")]):
        begins = letter in "BS" or last_letter in "ESO" or label != last_label
        if last_letter != OUTSIDE and (begins or letter == OUTSIDE):
            entities.append(EntitySpan(last_label, first, index))
        if begins:
            first = index
        last_letter, last_label = letter, label
    return entities


def tag_entity(tags: list[str], entity: EntitySpan) -> bool:
    """Set the BIO tags of an entity; return False, and leave them, if another entity has some of its words."""
    label, first, end = entity
    if {*tags[first:end]} != {OUTSIDE}:
        return False
    tags[first:end] = [f"B-{label}", *([f"I-{label}"] * (end - first - 1))]
    return True


def find_orphan_continuations(sentences: Iterable[Sequence[str]], scheme: Scheme) -> list[tuple[int, int]]:
    """Return the indices (sentence, word) of each I, M, E or L that continues no entity.

    The list is empty for IO and IOB1, where any I may begin an entity, and B only separates entities of one label.
    """
    unbegun = []
    is_iob1 = True
    for sentence_index, tags in enumerate(sentences):
        last_letter, last_label = OUTSIDE, ""
        for word_index, (letter, label) in enumerate(letters_and_labels(tags, scheme)):
            if last_letter in "ESO" or label != last_label:
                if letter in "IE":
                    unbegun.append((sentence_index, word_index))
                is_iob1 &= letter in "IO"
            is_iob1 &= letter in "BIO"
            last_letter, last_label = letter, label
    return [] if is_iob1 else unbegun


def letters_and_labels(tags: Sequence[str], scheme: Scheme | None = None) -> list[tuple[str, str]]:
    """Return the BIOES letter and label of each tag."""
    has_bare_letters = (scheme or find_scheme(tags)) is Scheme.SPANS
    return [_letter_and_label(tag, has_bare_letters) for tag in tags]


@lru_cache(10_000)
def _letter_and_label(tag: str, has_bare_letters: bool) -> tuple[str, str]:
    if is_tag(tag):
        return tag[0].translate(_TO_BIOES), tag[2:]
    if has_bare_letters and tag in _POSITION_LETTERS:
        return tag.translate(_TO_BIOES), ""
    return "S", tag


def entity_scores(gold: Sentences, predicted: Sentences, tags: Iterable[str] = ()) -> dict[str, float]:
    """Return F1, precision and recall of entities, where label and both ends must match, and the accuracy of tags.

    With more than one label, f1_LABEL is added for each label in the sentences or in `tags`. Undefined metrics are 0.

    Args:
        gold, predicted: tags of each sentence.
        tags: tags of the model, which determine the scheme; empty: those of gold and predicted.
    """
    counts = _count_entities(gold, predicted, tags)
    totals = map(sum, zip((0, 0, 0), *counts.values(), strict=True))  # without entities there is no label
    metrics = _metrics(*totals)
    del metrics["support"]
    correct_tags = sum(sum(map(str.__eq__, *pair)) for pair in zip(predicted, gold, strict=True))
    metrics["tag_accuracy"] = correct_tags / max(1, sum(map(len, gold)))
    if len(counts) > 1:
        metrics |= {f"f1_{label}": _metrics(*label_counts)["f1"] for label, label_counts in counts.items()}
    return metrics


def entity_metrics(gold: Sentences, predicted: Sentences, tags: Iterable[str] = ()) -> dict[str, dict[str, float]]:
    """Return precision, recall, F1 and support of the entities of each label, counted as in entity_scores."""
    return {label: _metrics(*counts) for label, counts in _count_entities(gold, predicted, tags).items()}


def mention_macro_f1(words: Sentences, gold: Sentences, predicted: Sentences, tags: Iterable[str] = ()) -> float:
    """Return the mean F1 of the labels, where a label's mention counts once a sentence.

    Source: score.py of github.com/CLUEbenchmark/CLUENER2020.

    Args:
        words: words of each sentence; the others as for entity_scores.
    """
    counts = _count_entities(gold, predicted, tags, words)
    return sum(_metrics(*label_counts)["f1"] for label_counts in counts.values()) / max(1, len(counts))


def _count_entities(
    gold: Sentences, predicted: Sentences, tags: Iterable[str], words: Sentences = ()
) -> dict[str, list[int]]:
    """Return the numbers of correct, predicted and gold entities of each label in the sentences or in `tags`.

    words: words of each sentence, whose mentions are counted instead of places; empty: places.
    """
    tags = [*tags]
    scheme = find_scheme(tags or [tag for sentence in (*gold, *predicted) for tag in sentence])
    counts = {entity.label: [0, 0, 0] for tag in tags for entity in find_entities([tag], scheme)}
    for row, (predicted_tags, gold_tags) in enumerate(zip(predicted, gold, strict=True)):
        sentence_words = words[row] if words else ()
        predicted_entities = _labelled_spans(predicted_tags, scheme, sentence_words)
        gold_entities = _labelled_spans(gold_tags, scheme, sentence_words)
        for index, entities in enumerate((predicted_entities & gold_entities, predicted_entities, gold_entities)):
            for label, _ in entities:
                counts.setdefault(label, [0, 0, 0])[index] += 1
    return dict(sorted(counts.items()))


def _labelled_spans(tags: Sequence[str], scheme: Scheme, words: Sequence[str]) -> set[tuple[str, tuple[Any, ...]]]:
    """Return label and place of the entities of a sentence; given its words, label and mention."""
    entities = find_entities(tags, scheme)
    return {(label, tuple(words[first:end]) if words else (first, end)) for label, first, end in entities}


def _metrics(correct: int, predicted: int, gold: int) -> dict[str, float]:
    """Return F1, precision and recall, 0 where they are undefined, and support."""
    return {
        "f1": 2 * correct / max(1, predicted + gold),
        "precision": correct / max(1, predicted),
        "recall": correct / max(1, gold),
        "support": gold,
    }
