"""Reader of tagged sentences in JSON, one object a line or a list of objects, of which an item counts as a line.

tokens: lists of words and tags, as Hugging Face's datasets exports them; tags are names, or numbers of classes.
spans: texts with spans of characters, as published with CLUENER or exported by doccano and Label Studio.
"""

import logging
import re
import sys
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from model_utils.errors import DataError, first_few, shorten
from src.tasks.entities import OUTSIDE, EntitySpan, tag_entity
from src.tasks.tagged_sentences import Sentence
from src.tasks.word_splitting import split_words
from src.text.text_tables import json_values

logger = logging.getLogger(__name__)
_FEATURES = "features"  # key of a first object with the names of tags that are numbers, as dataset_info.json has it
_SEPARATORS = re.compile(r"[ \t\r\n]")  # of columns and lines in prediction files
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


class _Records:
    """Objects of a file; as a string, the file and the line of the current one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.line = 0
        self.warnings: defaultdict[str, list[str]] = defaultdict(list)  # lines by the warning that counts them

    def __str__(self) -> str:
        return f"{self.path}: line {self.line}"

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield the objects; log the warnings at the end."""
        for line, record in json_values(self.path):
            self.line = line
            if not isinstance(record, dict):
                raise DataError(f"{self} is {shorten(record)}, needed is a JSON object")
            yield record
        for warning, lines in self.warnings.items():
            logger.warning(f"{self.path}: {len(lines):,} {warning}: {first_few(lines)}")

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


def _keys(record: dict[str, Any]) -> str:
    return first_few(list(map(shorten, record)), 20)


def read_tokens(
    path: Path, word_key: str = "", tag_key: str = "", labelled: bool = True, tag_names: Sequence[str] = ()
) -> Iterator[Sentence]:
    """Yield the sentences of a file of words and tags.

    Args:
        word_key, tag_key: keys of the lists; "": the first usual one that the first object has.
        labelled: True if every sentence must have tags.
        tag_names: names of tags that are numbers, in order; empty: those in the first object, if it has any.

    Raises:
        DataError: a key is missing, a word or tag is no word, a number has no name; names the line.
    """
    records = _Records(path)
    features: Any = None
    has_keys = False
    for record in records:
        if not has_keys and _FEATURES in record and not {word_key, *_WORD_KEYS} & {*record}:
            features = record[_FEATURES]
            continue
        if not has_keys:
            has_keys = True
            word_key = word_key or next((key for key in _WORD_KEYS if key in record), _WORD_KEYS[0])
            tag_key = tag_key or next((key for key in _TAG_KEYS if key in record), _TAG_KEYS[0])
            tag_names = tag_names or _class_names(features, tag_key, path)
            logger.info(f"{path.name}: words are read from {word_key}, tags from {tag_key} of {_keys(record)}")
        words = _words(record, word_key, records)
        has_tags = labelled or record.get(tag_key) is not None
        tags = _words(record, tag_key, records, tag_names) if has_tags else None
        if tags is not None and len(tags) != len(words):
            raise DataError(f"{records} has {len(words)} {word_key} and {len(tags)} {tag_key}")
        if words:
            yield Sentence(words, tags, path, (records.line,))
        else:
            records.warn("sentences have no words and are left out")


def _class_names(features: Any, tag_key: str, path: Path) -> list[str]:
    """Return the names in `Dataset.features.to_dict()`, [] if there are no features."""
    if features is None:
        return []
    try:
        return [*features[tag_key].get("feature", features[tag_key])["names"]]
    except (AttributeError, KeyError, TypeError):
        raise DataError(f"{path}: the first line has {_FEATURES}, but no names of {tag_key}") from None


def _words(record: dict[str, Any], key: str, records: _Records, names: Sequence[str] | None = None) -> tuple[str, ...]:
    """Return the words in a list of a record; integers are indices into `names`, None: they are refused."""
    values = record.get(key)
    if not isinstance(values, list):
        raise DataError(f"{records} has no list {key}, its keys are {_keys(record)}")
    words = []
    for value in values:
        word = value
        if names is not None and type(value) is int:
            if not 0 <= value < len(names):
                raise DataError(
                    f"{records} has the number {value} in {key}, of which {len(names)} have names: give all names in "
                    f"the order of their numbers, as label_list or in a first line with {_FEATURES}"
                )
            word = names[value]
        if not isinstance(word, str) or not word or _SEPARATORS.search(word):
            raise DataError(f"{records} has {shorten(word)} in {key}, allowed are words without spaces")
        words.append(sys.intern(word))  # one object for equal words
    return tuple(words)


def read_spans(
    path: Path, text_key: str = "", labelled: bool = True, into_characters: bool = False
) -> Iterator[Sentence]:
    """Yield the texts of a file as words, with BIO tags of their spans.

    Args:
        text_key: key of the text in files that have it; else it is `text` or `data`.
        labelled: True if every text must have spans, or an empty list of them.
        into_characters: passed to split_words.

    Raises:
        DataError: a text or its spans are missing, or a span is not in its text; names the line.
    """
    records = _Records(path)
    for record in records:
        is_task = isinstance(record.get("data"), dict)  # of Label Studio
        texts = record["data"] if is_task else record
        key = next((key for key in (text_key, *_TEXT_KEYS) if key in texts), _TEXT_KEYS[0])
        text = texts.get(key)
        if not isinstance(text, str):
            raise DataError(f"{records} has {shorten(text)} as {key}, needed is a text; its keys are {_keys(texts)}")
        spans = _spans_of(record, records)
        for unread in () if is_task else sorted(record.keys() - {"id", key, *_SPAN_KEYS, _ANNOTATIONS}):
            records.warn(f"texts have the key {shorten(unread)}, which is not read")
        words = split_words(text, into_characters)
        if not words or (is_task and labelled and spans is None):
            records.warn("texts are blank or have no annotation, and are left out")
            continue
        if labelled and spans is None:
            raise DataError(f"{records} has no {', '.join(_SPAN_KEYS)}, its keys are {_keys(record)}")
        tags = None if spans is None else tuple(_tag_spans(text, words, spans, records))
        yield Sentence(tuple(sys.intern(text[start:end]) for start, end in words), tags, path, (records.line,))


def _spans_of(record: dict[str, Any], records: _Records) -> list[Span] | None:
    """Return the spans of a record, None if it is unlabelled."""
    values = {key: record[key] for key in (*_SPAN_KEYS, _ANNOTATIONS) if record.get(key) is not None}
    if not values:
        return None
    if len(values) > 1:
        raise DataError(f"{records} has {' and '.join(values)}: keep the one with the spans")
    [(key, value)] = values.items()
    try:
        if key == _ANNOTATIONS:
            return _annotated_spans(value, records)
        if isinstance(value, list):
            return _item_spans(value)
        return [
            Span(start, last + 1, label, mention)
            for label, mentions in value.items()
            for mention, pairs in mentions.items()
            for start, last in pairs
        ]
    except (AttributeError, KeyError, TypeError, ValueError):
        raise DataError(f"{records} has {shorten(value)} as {key}, allowed are {_FORMS}") from None


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


def _annotated_spans(annotations: list[Any], records: _Records) -> list[Span] | None:
    """Return the spans of the first annotation of Label Studio that is not cancelled, None if there is none."""
    results = [annotation["result"] for annotation in annotations if not annotation.get("was_cancelled")]
    if not results:
        return None
    if len(results) > 1:
        records.warn("tasks have several annotations, of which the first is read")
    values = [result["value"] for result in results[0]]
    items = [value for value in values if "labels" in value]
    if len(items) < len(values):
        records.warn("tasks have results without labels, which are left out")
    return _item_spans(items)


def _check_span(span: Span, text: str, records: _Records) -> None:
    """Raise DataError if a span has no label, lies outside the text, or has another mention there."""
    start, end, label, mention = span
    is_in_text = type(start) is int and type(end) is int and 0 <= start <= end <= len(text)
    if not is_in_text or not isinstance(label, str) or not label.strip():
        found = f"{shorten(label)} from {shorten(start)} to {shorten(end)}, end excluded"
        raise DataError(f"{records} has the span {found}, allowed are a label and offsets from 0 to {len(text)}")
    # Label Studio writes a line break of the text as a backslash and n.
    if mention and "".join(text[start:end].split()) != "".join(str(mention).replace("\\n", "\n").split()):
        raise DataError(
            f"{records} has {shorten(mention)} at {start} to {end}, end excluded, where its text has "
            f"{shorten(text[start:end])}"
        )


def _tag_spans(text: str, words: Sequence[tuple[int, int]], spans: Sequence[Span], records: _Records) -> list[str]:
    """Return BIO tags of words for spans, aligned to whole words; of spans that overlap the longest one counts.

    Args:
        words: start and end of every word.
    """
    starts = [start for start, _ in words]
    ends = [end for _, end in words]
    mentions: dict[EntitySpan, str] = {}
    for span in spans:
        _check_span(span, text, records)
        mention = text[span.start : span.end]
        first = bisect_right(ends, span.start)
        end = bisect_left(starts, span.end)
        if not mention.strip():
            records.warn("spans hold no word and are left out", mention or span.label)
            continue
        if mention != mention.strip():
            records.warn("spans begin or end with blanks, which are left out", mention)
        if starts[first] < span.start or ends[end - 1] > span.end:
            records.warn("spans cut a word and are aligned to whole words", mention)
        mentions[EntitySpan("_".join(span.label.split()), first, end)] = mention
    tags = [OUTSIDE] * len(words)
    for entity in sorted(mentions, key=lambda entity: entity.first - entity.end):
        if not tag_entity(tags, entity):
            records.warn("spans overlap longer or earlier ones and are left out", mentions[entity])
    return tags
