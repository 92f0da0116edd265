"""Reader of tagged sentences in JSON, one object a line or a list of objects -> words, tags and line of each.

tokens: lists of words and tags, as Hugging Face's datasets exports them; tags are names, or numbers of classes.
spans: texts with spans of characters, as published with CLUENER or exported by doccano and Label Studio.

An item of a list counts as a line.
"""

import logging
import sys
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from model_utils.errors import DataError, first_few, shorten
from src.tasks.entities import OUTSIDE, EntitySpan
from src.tasks.tagged_columns import TaggedWords
from src.tasks.word_splitting import split_words
from src.text.text_tables import json_values

logger = logging.getLogger(__name__)
_FEATURES = "features"  # key of a first object with the names of tags that are numbers, as dataset_info.json has it
_WORD_KEYS = ("tokens", "words")
_TAG_KEYS = ("ner_tags", "tags", "labels", "ner")
_TEXT_KEYS = ("text", "data")
_SPAN_KEYS = ("label", "labels", "entities")
_ANNOTATIONS = "annotations"
_FORMS = "[start, end, label], {start, end, label}, CLUENER's {label: {mention: [[start, last]]}} or Label Studio's"


class Span(NamedTuple):
    """Label of the characters start ... end - 1 of a text; mention: these characters, "" where the file omits them."""

    start: int
    end: int
    label: str
    mention: str = ""


@dataclass
class _Place:
    """Object of a file that is read; warnings: lines of the file by the warning that counts them."""

    path: Path
    line: int = 0
    warnings: defaultdict[str, list[str]] = field(default_factory=lambda: defaultdict(list))

    def __str__(self) -> str:
        return f"{self.path}: line {self.line}"

    def warn(self, warning: str, mention: str = "") -> None:
        self.warnings[warning].append(f"line {self.line}" + (f" ({shorten(mention)})" if mention else ""))


def find_json_format(path: Path, table_columns: Sequence[str], word_key: str = "", labelled: bool = True) -> str:
    """Return "tokens" or "spans" if the first JSON object of a file has words or spans, else "".

    An object with both `table_columns` is a row of a table. In an unlabelled file a text without these has no spans.
    """
    try:
        _, record = next(json_values(path), (0, None))
    except DataError:  # the reader of the file's format names the line
        return ""
    if not isinstance(record, dict) or {*table_columns} <= {*record}:
        return ""
    if _FEATURES in record or any(isinstance(record.get(key), list) for key in (word_key, *_WORD_KEYS)):
        return "tokens"
    has_spans = any(isinstance(record.get(key), dict | list) for key in (*_SPAN_KEYS, _ANNOTATIONS))
    is_text = not labelled and "text" in record and not {*table_columns} & {*record}
    return "spans" if has_spans or is_text else ""


def _objects(place: _Place) -> Iterator[dict[str, Any]]:
    """Yield the objects of a file, and keep the line of `place`; log its warnings at the end."""
    for line, record in json_values(place.path):
        place.line = line
        if not isinstance(record, dict):
            raise DataError(f"{place} is {shorten(record)}, needed is a JSON object")
        yield record
    for warning, lines in place.warnings.items():
        logger.warning(f"{place.path}: {len(lines):,} {warning}: {first_few(lines)}")


def _keys(record: dict[str, Any]) -> str:
    return first_few(list(map(shorten, record)), 20)


def read_tokens(
    path: Path, word_key: str = "", tag_key: str = "", labelled: bool = True, tag_names: Sequence[str] = ()
) -> Iterator[TaggedWords]:
    """Yield the sentences of a file of words and tags.

    Args:
        word_key, tag_key: keys of the lists; "": the first usual one that the first object has.
        labelled: True if every sentence must have tags.
        tag_names: names of tags that are numbers, in order; empty: those in the first object, if it has any.

    Raises:
        DataError: a key is missing, a word or tag is no word, a number has no name; names the line.
    """
    place = _Place(path)
    features: Any = None
    is_first = True
    for record in _objects(place):
        if is_first and _FEATURES in record and not {word_key, *_WORD_KEYS} & {*record}:
            features = record[_FEATURES]
            continue
        if is_first:
            is_first = False
            word_key = word_key or next((key for key in _WORD_KEYS if key in record), _WORD_KEYS[0])
            tag_key = tag_key or next((key for key in _TAG_KEYS if key in record), _TAG_KEYS[0])
            tag_names = tag_names or _class_names(features, tag_key, place)
            logger.info(
                f"{path.name}: words are read from {word_key}, tags from {tag_key}; its keys are {_keys(record)}"
            )
        words = _words(record, word_key, place)
        has_tags = labelled or record.get(tag_key) is not None
        tags = _words(record, tag_key, place, tag_names) if has_tags else None
        if tags is not None and len(tags) != len(words):
            raise DataError(f"{place} has {len(words)} {word_key} and {len(tags)} {tag_key}")
        if words:
            yield TaggedWords(words, tags, (place.line,))
        else:
            place.warn("sentences have no words and are left out")


def _class_names(features: Any, tag_key: str, place: _Place) -> list[str]:
    """Return the names in `Dataset.features.to_dict()`, [] if there are no features."""
    if features is None:
        return []
    try:
        return [*features[tag_key].get("feature", features[tag_key])["names"]]
    except (AttributeError, KeyError, TypeError):
        raise DataError(f"{place.path}: the first line has {_FEATURES}, but no names of {tag_key}") from None


def _words(record: dict[str, Any], key: str, place: _Place, names: Sequence[str] | None = None) -> tuple[str, ...]:
    """Return the words in a list of a record; numbers in it count `names`, if these are not None."""
    values = record.get(key)
    if not isinstance(values, list):
        raise DataError(f"{place} has no list {key}, its keys are {_keys(record)}")
    words = []
    for value in values:
        word = value
        if names is not None and type(value) is int:
            if not 0 <= value < len(names):
                raise DataError(
                    f"{place} has the number {value} in {key}, of which {len(names)} have names: give all names in the "
                    f"order of their numbers, as label_list or in a first line with {_FEATURES}"
                )
            word = names[value]
        if not isinstance(word, str) or word.split() != [word]:  # prediction files separate columns by spaces
            raise DataError(f"{place} has {shorten(word)} in {key}, allowed are words without spaces")
        words.append(sys.intern(word))  # one object for equal words
    return tuple(words)


def read_spans(
    path: Path, text_key: str = "", labelled: bool = True, into_characters: bool = False
) -> Iterator[TaggedWords]:
    """Yield the texts of a file as words, with BIO tags of their spans.

    Args:
        text_key: key of the text in files that have it; else it is `text` or `data`.
        labelled: True if every text must have spans, or an empty list of them.
        into_characters: passed to split_words.

    Raises:
        DataError: a text or its spans are missing, or a span is not in its text; names the line.
    """
    place = _Place(path)
    forms: Counter[str] = Counter()
    for record in _objects(place):
        is_task = isinstance(record.get("data"), dict)
        texts = record["data"] if is_task else record
        key = next((key for key in (text_key, *_TEXT_KEYS) if key in texts), _TEXT_KEYS[0])
        text = texts.get(key)
        if not isinstance(text, str):
            raise DataError(f"{place} has {shorten(text)} as {key}, needed is a text; its keys are {_keys(texts)}")
        form, spans = _spans_of(record, place)
        for unread in () if is_task else sorted(record.keys() - {"id", key, *_SPAN_KEYS}):
            place.warn(f"texts have the key {shorten(unread)}, which is not read")
        words = split_words(text, into_characters)
        if not words or (is_task and labelled and spans is None):
            place.warn("texts are blank or have no annotation, and are left out")
            continue
        if labelled and spans is None:
            raise DataError(f"{place} has no {', '.join(_SPAN_KEYS)}, its keys are {_keys(record)}")
        forms[form] += 1
        tags = None if spans is None else tuple(_tag_spans(text, words, spans, place))
        yield TaggedWords(tuple(sys.intern(text[start:end]) for start, end in words), tags, (place.line,))
    logger.info(f"{path.name}: {', '.join(f'{count:,} {form}' for form, count in forms.items())}")


def _spans_of(record: dict[str, Any], place: _Place) -> tuple[str, list[Span] | None]:
    """Return the form of a record and its spans, None if it is unlabelled."""
    values = {key: record[key] for key in (*_SPAN_KEYS, _ANNOTATIONS) if record.get(key) is not None}
    if len(values) > 1:
        raise DataError(f"{place} has {' and '.join(values)}: keep the one with the spans")
    for key, value in values.items():
        try:
            if key == _ANNOTATIONS:
                items = _annotated_items(value, place)
                return "tasks of Label Studio", None if items is None else _item_spans(items)
            if isinstance(value, list):
                return "texts with spans in doccano's form, ends excluded", _item_spans(value)
            spans = []
            for label, mentions in value.items():
                for mention, pairs in mentions.items():
                    spans += [Span(start, last + 1, label, mention) for start, last in pairs]
        except (AttributeError, KeyError, TypeError, ValueError):
            raise DataError(f"{place} has {shorten(value)} as {key}, allowed are {_FORMS}") from None
        return "texts with spans in CLUENER's form, ends included", spans
    return "texts without spans", None


def _item_spans(items: list[Any]) -> list[Span]:
    """Return the spans of [start, end, label] or of objects with these; one span for each of several labels."""
    spans = []
    for item in items:
        if isinstance(item, list):
            start, end, label = item
            spans.append(Span(start, end, label))
            continue
        start = item.get("start", item.get("start_offset"))
        end = item.get("end", item.get("end_offset"))
        labels = item.get("labels", item.get("label"))
        labels = labels if isinstance(labels, list) and labels else [labels]
        spans += [Span(start, end, label, item.get("text") or "") for label in labels]
    return spans


def _annotated_items(annotations: list[Any], place: _Place) -> list[Any] | None:
    """Return the labelled values of the first annotation that is not cancelled, None if there is none."""
    results = [annotation["result"] for annotation in annotations if not annotation.get("was_cancelled")]
    if len(results) > 1:
        place.warn("tasks have several annotations, of which the first is read")
    values = [result["value"] for result in results[0]] if results else []
    items = [value for value in values if "labels" in value]
    if len(items) < len(values):
        place.warn("tasks have results without labels, which are left out")
    return items if results else None


def _check_span(span: Span, text: str, place: _Place) -> None:
    """Raise DataError if a span has no label, lies outside the text, or has another mention there."""
    start, end, label, mention = span
    is_in_text = type(start) is int and type(end) is int and 0 <= start <= end <= len(text)
    if not is_in_text or not isinstance(label, str) or not label.strip():
        found = f"{shorten(label)} from {shorten(start)} to {shorten(end)}, end excluded"
        raise DataError(f"{place} has the span {found}, allowed are a label and places from 0 to {len(text)}")
    # Label Studio writes a line break of the text as a backslash and n.
    if mention and "".join(text[start:end].split()) != "".join(str(mention).replace("\\n", "\n").split()):
        found = shorten(text[start:end])
        raise DataError(f"{place} has {shorten(mention)} at {start} to {end}, end excluded, where its text has {found}")


def _tag_spans(text: str, words: Sequence[tuple[int, int]], spans: Sequence[Span], place: _Place) -> list[str]:
    """Return BIO tags of words for spans, aligned to whole words; of spans that overlap the longest one counts.

    Args:
        words: start and end of every word.
    """
    starts = [start for start, _ in words]
    ends = [end for _, end in words]
    mentions: dict[EntitySpan, str] = {}
    for span in spans:
        _check_span(span, text, place)
        mention = text[span.start : span.end]
        first = bisect_right(ends, span.start)
        end = bisect_left(starts, span.end)
        if not mention.strip():
            place.warn("spans hold no word and are left out", mention or span.label)
            continue
        if mention != mention.strip():
            place.warn("spans begin or end with blanks, which are left out", mention)
        if starts[first] < span.start or ends[end - 1] > span.end:
            place.warn("spans cut a word and are aligned to whole words", mention)
        mentions[EntitySpan("_".join(span.label.split()), first, end)] = mention
    tags = [OUTSIDE] * len(words)
    for label, first, end in sorted(mentions, key=lambda entity: entity.first - entity.end):
        if set(tags[first:end]) == {OUTSIDE}:
            tags[first:end] = [f"B-{label}", *([f"I-{label}"] * (end - first - 1))]
        else:
            place.warn("spans overlap longer or earlier ones and are left out", mentions[EntitySpan(label, first, end)])
    return tags
