"""Readers of raw text: files -> documents, each a list of text units (paragraphs, or sentences if one per line).

The first lines of a file decide between four layouts:

- WikiExtractor: `<doc ...>`, the title, text lines with HTML entities, `</doc>`. Articles without text are skipped.
- JSON lines, as WikiExtractor --json writes them: each object is a document, its text is the value of text_key. Other
  JSON is refused.
- WikiText: one paragraph per line, headings as ` = Title = `. A first-level heading begins a document; headings are
  dropped.
- Plain text: each line is a unit and blank lines separate documents, as in google's BERT and ALBERT. Text with
  hard line breaks (books) is recognised by its even right margin: its lines are joined into paragraphs, a blank line
  ends a paragraph and two or more end a document; an indented line of Chinese also begins a paragraph.

Of Parquet and Arrow files, known by their ending, each row is a document, its text is the column text_key.

In these and the first two layouts the first line is dropped if it is the document's title. Files may be compressed
(src/utils.py). HTML, XML and UTF-16 are refused.

Memory holds one document, of Parquet files 1,024 rows. A document ends after the paragraph that makes it longer than
MAX_DOCUMENT_CHARACTERS, and a joined paragraph ends at the sentence before it exceeds MAX_PARAGRAPH_CHARACTERS.
"""

import html
import itertools
import json
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from model_utils.errors import DataError, first_few, shorten
from model_utils.remote_files import RemoteFile, TextFile
from src.text.arrow_tables import open_arrow
from src.text.text_tables import is_arrow
from src.utils import check_text, read_lines

MAX_DOCUMENT_CHARACTERS = 1_000_000
MAX_PARAGRAPH_CHARACTERS = 10_000  # text with hard line breaks may have no blank line at all
MAX_LINE_BYTES = 1 << 20
MAX_JSON_BYTES = 64 << 20  # a JSON line must be read whole
MARGINS = 40, 120  # right margin of text with hard line breaks: minimum columns, maximum characters
WIKIEXTRACTOR_KEYS = {"url", "title", "text"}  # objects with these (and other) keys have HTML entities in their text
SNIFFED_CHARACTERS = 100_000  # enough to get past the title page and table of contents of a book

_DOC_START = re.compile(r"<doc\b[^\n]*>$")
_TITLE = re.compile(r"""\btitle=(["'])(?P<title>.*?)\1(?=\s+\w+=|\s*>)""")
_ENTITY = re.compile(r"&#?\w+;")
# JSON over several lines: an object, or the first one of a list, with a key and the beginning of a value.
_JSON = re.compile(r'\s*(?:\[\s*)?\{\s*"[^"\n]*"\s*:\s*["\[{\dtfn-]')
_MARKUP = re.compile(r"<(?:mediawiki|\?xml|!doctype|html)\b", re.IGNORECASE)
_HEADING = re.compile(r"(=(?: =){0,5}) \S.* \1$")
_CJK = r"\u3000-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff00-\uffef\U00020000-\U0002fa1f"
IS_CJK = re.compile(f"[{_CJK}]")
_INDENTED = re.compile(f"\u3000|  +[“‘{_CJK}]")  # beginning of a Chinese paragraph
_ABBREVIATIONS = frozenset(
    """mr mrs ms dr prof st sr jr vs etc e.g i.e cf no vol fig gen col capt lt sgt rev hon gov sen rep pres messrs mme
    mlle approx ca al inc ltd co corp op ed eds trans dept univ jan feb mar apr jun jul aug sep sept oct nov dec mt ft
    pp viz u.s u.k u.n d.c a.m p.m""".split()
)
# Western punctuation ends a sentence only before white space (closing quotes may come between). Chinese punctuation,
# and ! and ? between ideographs, need no space.
_STOP = re.compile(
    r"(?P<western>(?<![.!?…])[.!?…]+[\"'”’)\]»]*)(?=\s)|[。！？]+[”’』」）》\"]*"
    r"|(?<=[\u4e00-\u9fff])[!?]+[”’』」）》\"]*(?=[\u4e00-\u9fff])"
)
_SENTENCE_END = re.compile(r"[。！？；][”’』」）》]*$")
_FIRST_WORD = re.compile(rf"[^\s{_CJK}]+")
_LAST_WORD = re.compile(r"[^\s(\[\"'“‘]+$")
_NEXT_WORD = re.compile(r"[\s\"'“‘(\[«]*(\S)")


def read_documents(paths: Iterable[str | TextFile], text_key: str = "text") -> Iterator[list[str]]:
    """Yield the documents of several files in order.

    Raises:
        DataError: a file cannot be read, or no file holds any text.
    """
    paths = list(paths)
    has_text = False
    for path in paths:
        for document in iter_documents(path, text_key):
            has_text = True
            yield document
    if not has_text:
        raise DataError(f"there is no text in {first_few(map(str, paths))} ({len(paths)} file(s) in all)")


def iter_documents(path: str | TextFile, text_key: str = "text") -> Iterator[list[str]]:
    """Yield the documents of one text file, each a list of non-empty units of text without line breaks.

    Args:
        text_key: key of the text in JSON lines, its column in Parquet and Arrow files.
    """
    path = Path(path) if isinstance(path, str) else path
    if is_arrow(Path(path.absolute())):
        if isinstance(path, RemoteFile):
            raise DataError(f"{path}: Parquet and Arrow files are read from a disk only; copy it there")
        yield from _collect(_arrow_units(path, text_key))
        return
    stream = map(_strip_line, read_lines(path, MAX_LINE_BYTES))
    head = _take(stream, SNIFFED_CHARACTERS)
    first_line = next((line.strip() for line in head if line), "")
    indented_lines = itertools.chain(head, stream)
    lines = map(str.strip, indented_lines)
    if _MARKUP.match(first_line):
        raise DataError(f"{path} is XML or HTML: extract its text first (of a Wikipedia dump with WikiExtractor)")
    check_text("\n".join(head), len(head) == 1, path)
    if _DOC_START.match(first_line):
        yield from _collect(_wikiextractor_units(lines))
    elif _is_json(first_line) or _JSON.match("\n".join(head)):
        yield from _collect(_json_units(path, text_key))
    elif (heading := _HEADING.match(first_line)) and heading[1] == "=":
        yield from _collect(_wikitext_units(lines))
    elif _has_hard_line_breaks(head):
        yield from _collect(_book_units(indented_lines))
    else:
        yield from _collect(lines)


def split_sentences(text: str) -> list[str]:
    """Split a paragraph into sentences after 。！？ and after . ! ? before white space (English and Chinese rules).

    Common abbreviations, initials ("J. Austen") and punctuation before a lower-case letter do not end a sentence.
    """
    sentences = []
    start = 0
    for stop in _STOP.finditer(text):
        if stop["western"] and not _ends_sentence(text, stop.start(), stop.end()):
            continue
        sentences.append(text[start : stop.end()].strip())
        start = stop.end()
    sentences.append(text[start:].strip())
    return [sentence for sentence in sentences if sentence]


def _strip_line(line: str) -> str:
    """Strip white space from a line, but keep the indentation that begins a Chinese paragraph."""
    return line.rstrip() if _INDENTED.match(line) else line.strip()


def _take(lines: Iterator[str], characters: int) -> list[str]:
    """Take lines from an iterator until they hold this number of characters."""
    taken = []
    while characters > 0 and (line := next(lines, None)) is not None:
        taken.append(line)
        characters -= 1 + len(line)
    return taken


# --- layouts: lines -> units; an empty unit separates documents ---


def _collect(units: Iterable[str]) -> Iterator[list[str]]:
    """Yield documents from units; the unit that makes a document longer than MAX_DOCUMENT_CHARACTERS ends it."""
    document: list[str] = []
    size = 0
    for unit in units:
        if unit:
            document.append(unit)
            size += len(unit)
        if document and (not unit or size > MAX_DOCUMENT_CHARACTERS):
            yield document
            document = []
            size = 0
    if document:
        yield document


def _wikiextractor_units(lines: Iterable[str]) -> Iterator[str]:
    title = ""  # set until the first unit of the article
    for line in lines:
        start = _DOC_START.match(line)
        if start or line == "</doc>":
            yield ""
            attribute = _TITLE.search(line) if start else None
            title = attribute["title"] if attribute else ""
        elif line:
            units = filter(None, map(str.strip, decode_entities(line).splitlines()))
            if title and (first_unit := next(units, "")):
                if not _is_title(first_unit, title):
                    yield first_unit
                title = ""
            yield from units


def _is_title(unit: str, title: str) -> bool:
    """Return True if the first unit of a document repeats its title."""
    return unit == title or (bool(_normalise_title(title)) and _normalise_title(title) == _normalise_title(unit))


def _normalise_title(title: str) -> str:
    return " ".join(decode_entities(title).replace("_", " ").split())


def decode_entities(text: str) -> str:
    """Decode HTML entities that end with a semicolon."""
    return _ENTITY.sub(lambda entity: html.unescape(entity[0]), text) if "&" in text else text


def _is_json(line: str) -> bool:
    """Return True if a line is a JSON object or list; numbers in brackets are more likely footnotes."""
    try:
        value = _load_json(line) if line[:1] in ("{", "[") else None
    except ValueError:
        return False
    if isinstance(value, list):
        return not value or not all(isinstance(element, int) for element in value)
    return isinstance(value, dict)


def _load_json(line: str) -> Any:
    """Return the value of a line of JSON, which may hold NaN and half surrogate pairs, as crawled text does."""
    try:
        return json.loads(line)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _json_units(path: TextFile, text_key: str) -> Iterator[str]:
    for line_number, line in enumerate(read_lines(path, MAX_JSON_BYTES), 1):
        try:
            units = _object_units(line, text_key) if line.strip() else []
        except ValueError as error:
            raise DataError(
                f"{path}: line {line_number} {error}; write one JSON object per line with the document as its "
                f"{shorten(text_key)} (text_key), or exclude the file from the pattern"
            ) from None
        yield from units
        yield ""


def _object_units(line: str, text_key: str) -> list[str]:
    """Return the units of a JSON object, with U+FFFD for lone surrogates; raise ValueError if it has no text."""
    try:
        value = _load_json(line)
    except ValueError as error:
        raise ValueError(f"is not JSON, or has more than {MAX_JSON_BYTES:,} bytes: {error}") from None
    if not isinstance(value, dict):
        raise ValueError("is not a JSON object")
    if text_key not in value:
        raise ValueError(f"has no {shorten(text_key)}, but {first_few(map(shorten, value), 10) or 'nothing'}")
    if not isinstance(value[text_key], str):
        raise ValueError(f"has the {shorten(text_key)} {shorten(value[text_key])}, which is not text")
    text = value[text_key].encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if text_key == "text" and value.keys() >= WIKIEXTRACTOR_KEYS:
        text = decode_entities(text)
    return _text_units(text, value.get("title") if text_key != "title" else None)


def _arrow_units(path: Path, text_key: str) -> Iterator[str]:
    names, rows, other_types = open_arrow(path, with_shards=False)
    if text_key not in names or names.index(text_key) in other_types:
        found = first_few(map(shorten, names), 10)
        raise DataError(f"{path} has no texts in a column {shorten(text_key)}, but {found}: name it with text_key")
    for _, row in rows:
        document = dict(zip(names, row, strict=True))
        yield from _text_units(document[text_key] or "", document.get("title") if text_key != "title" else None)
        yield ""


def _text_units(text: str, title: Any) -> list[str]:
    """Return the lines of a document that are not empty, without the first one if it is the title."""
    units = [unit.strip() for unit in text.split("\n") if unit.strip()]
    has_title = units and isinstance(title, str) and _is_title(units[0], title)
    return units[1:] if has_title else units


def _wikitext_units(lines: Iterable[str]) -> Iterator[str]:
    for line in lines:
        heading = _HEADING.match(line)
        if heading is None and line:
            yield line
        elif heading and heading[1] == "=":
            yield ""


def _book_units(lines: Iterable[str]) -> Iterator[str]:
    for has_text, group in itertools.groupby(lines, key=bool):
        if has_text:
            yield from _join_lines(group)
        elif len(list(itertools.islice(group, 2))) == 2:
            yield ""


def _join_lines(lines: Iterable[str]) -> Iterator[str]:
    """Yield paragraphs joined from their lines, with a space between lines except beside Chinese and Japanese.

    A paragraph that exceeds MAX_PARAGRAPH_CHARACTERS is cut after its last full sentence, or at the line without one.
    """
    text = ""
    for line in lines:
        if text and _INDENTED.match(line):
            yield text
            text = ""
        line = line.strip()
        separator = "" if not text or IS_CJK.match(text[-1]) or IS_CJK.match(line[0]) else " "
        text += separator + line
        if len(text) > MAX_PARAGRAPH_CHARACTERS:
            *full_sentences, remainder = split_sentences(text)
            yield text.removesuffix(remainder).strip() if full_sentences else text
            text = remainder if full_sentences else ""
    if text:
        yield text


def _has_hard_line_breaks(lines: list[str]) -> bool:
    """Return True if most lines end where the next word would cross a right margin.

    The margin of Chinese text may be in characters or in columns. Text whose lines mostly end a sentence has none.
    """
    pairs = []
    for line, next_line in itertools.pairwise(lines):
        if line and next_line and not _INDENTED.match(next_line):
            pairs.append((line, next_line))
    sentence_ends = sum(bool(_SENTENCE_END.search(line)) for line, _ in pairs)
    if len(pairs) < 10 or 2 * sentence_ends > len(pairs):
        return False
    return any(_has_margin(pairs, width) for width in (len, _columns))


def _has_margin(pairs: list[tuple[str, str]], width: Callable[[str], int]) -> bool:
    """Return True if most lines are full up to a common margin; pairs hold a line and the next one."""
    longest = sorted((line for line, _ in pairs), key=width)[int(0.95 * len(pairs))]
    margin = width(longest)
    min_columns, max_characters = MARGINS
    full_lines = sum(width(line) + _needed(next_line, width) > margin for line, next_line in pairs)
    return min_columns <= _columns(longest) and margin <= max_characters and full_lines > 0.7 * len(pairs)


def _needed(line: str, width: Callable[[str], int]) -> int:
    """Return the width that the beginning of a line needs at the end of the line before.

    It is that of two ideographs, or of a space, the first word and two characters.
    """
    word = _FIRST_WORD.match(line)
    return 3 + width(word.group()) if word else 2 * width(line[0])


def _columns(text: str) -> int:
    """Return the width of a text in columns; an ideograph takes two."""
    if text.isascii():
        return len(text)
    return sum(1 + (unicodedata.east_asian_width(character) in "WF") for character in text)


def _ends_sentence(text: str, start: int, end: int) -> bool:
    """Return True if the punctuation text[start:end] ends a sentence, not an abbreviation, initial or quotation."""
    next_word = _NEXT_WORD.match(text, end)
    if next_word and next_word[1].islower():
        return False
    last_word = _LAST_WORD.search(text, max(0, start - 20), start)
    if last_word is None or text[start:end] != ".":
        return True
    word = last_word.group()
    is_initial = len(word) == 1 and word.isupper() and word != "I"
    return not is_initial and word.lower() not in _ABBREVIATIONS
