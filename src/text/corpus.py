"""Raw text files -> documents, each a list of text units (a paragraph, or a sentence where the file has one a line).

Four layouts are told apart by a file's first lines:

- WikiExtractor: `<doc ...>`, the title, text lines with HTML's entities, `</doc>`. Articles without text are skipped.
- JSON lines, as WikiExtractor --json writes them: an object with a member "text" is a document; text_key gives another
  name. Other JSON is refused.
- WikiText: paragraphs as lines, headings as ` = Title = `. A first-level heading begins a document, headings are
  dropped.
- Plain text: each line is a unit and blank lines separate documents, as in google's BERT and ALBERT. Text with
  hard line breaks (books) is recognised by its even right margin: its lines are joined into paragraphs, a blank line
  ends a paragraph and two or more end a document; an indented line of Chinese begins a paragraph, too.

In the first two layouts the first line is left out if it is the title that the document names. Files may be compressed
(src/utils.py). Other kinds of files (HTML, XML, UTF-16) are refused.

Memory holds one document, which ends after the paragraph with which it has more than MAX_DOCUMENT_CHARACTERS. A
paragraph of more than MAX_PARAGRAPH_CHARACTERS ends with a sentence.
"""

import errno
import glob
import html
import itertools
import os
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NoReturn

from model_utils.errors import DataError, first_few, shorten
from model_utils.json_files import UnwritableError, parse_json
from model_utils.schema import Config, option
from src.utils import read_lines

MAX_DOCUMENT_CHARACTERS = 1_000_000
MAX_PARAGRAPH_CHARACTERS = 10_000  # of text with hard line breaks, which may have no blank line anywhere
MAX_LINE_BYTES = 1 << 20
MAX_JSON_BYTES = 64 << 20  # of a line that is a JSON object, which has to be read whole
MARGINS = 40, 120  # of text with hard line breaks: least columns, most characters
WIKIEXTRACTOR_KEYS = {"url", "title", "text"}  # beside others; --json escapes the text as HTML, too
SNIFFED_CHARACTERS = 100_000  # enough of a book to get past its title page and table of contents

_DOC_START = re.compile(r"<doc\b[^\n]*>$")
_TITLE = re.compile(r"""\btitle=(["'])(?P<title>.*?)\1(?=\s+\w+=|\s*>)""")
_ENTITY = re.compile(r"&#?\w+;")
# An object with a key and the beginning of a value, by itself or the first of a list: JSON of several lines.
_JSON = re.compile(r'\s*(?:\[\s*)?\{\s*"[^"\n]*"\s*:\s*["\[{\dtfn-]')
_MARKUP = re.compile(r"<(?:mediawiki|\?xml|!doctype|html)\b", re.IGNORECASE)
_HEADING = re.compile(r"(=(?: =){0,5}) \S.* \1$")
_CJK = r"\u3000-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff00-\uffef\U00020000-\U0002fa1f"
IS_CJK = re.compile(f"[{_CJK}]")
_INDENTED = re.compile(f"\u3000|  +[“‘{_CJK}]")  # as a Chinese paragraph begins
_ABBREVIATIONS = frozenset(
    """mr mrs ms dr prof st sr jr vs etc e.g i.e cf no vol fig gen col capt lt sgt rev hon gov sen rep pres messrs mme
    mlle approx ca al inc ltd co corp op ed eds trans dept univ jan feb mar apr jun jul aug sep sept oct nov dec mt ft
    pp viz u.s u.k u.n d.c a.m p.m""".split()
)
# A Western stop needs white space after it and its closing quotes; a Chinese one does not, nor do ! and ? between
# ideographs.
_STOP = re.compile(
    r"(?P<western>(?<![.!?…])[.!?…]+[\"'”’)\]»]*)(?=\s)|[。！？]+[”’』」）》\"]*"
    r"|(?<=[\u4e00-\u9fff])[!?]+[”’』」）》\"]*(?=[\u4e00-\u9fff])"
)
_SENTENCE_END = re.compile(r"[。！？；][”’』」）》]*$")
_FIRST_WORD = re.compile(rf"[^\s{_CJK}]+")
_LAST_WORD = re.compile(r"[^\s(\[\"'“‘]+$")
_NEXT_WORD = re.compile(r"[\s\"'“‘(\[«]*(\S)")


class CorpusConfig(Config):
    """Text files, and how to read them."""

    input_file: str = option(
        "",
        "text files, also compressed (gzip, zstd, bzip2, xz): names or glob patterns with commas between them",
        required=True,
    )
    text_key: str = option("text", "key of the text in JSON lines")


def expand_glob(pattern: str) -> list[Path]:
    """The files that a path, a glob pattern, a folder or a comma-separated list of these names, sorted.

    A folder stands for all files below it but hidden ones, in folders that are links as well.

    Raises:
        DataError: a part of the pattern matches no file or no regular one, one whose name is not UTF-8 or a folder that
            cannot be read, or all files are empty.
    """
    if not pattern.replace(",", "").strip():
        raise DataError("the pattern of input files is empty; give a path or a glob pattern in quotes")
    names = [pattern] if _match(pattern) else [name.strip() for name in pattern.split(",") if name.strip()]
    files: dict[Path, Path] = {}  # a file may have several names
    for name in names:
        found = _match(name)
        if not found:
            raise DataError(
                f"no file matches {shorten(name)}; give a path, a glob pattern in quotes, or several with commas"
            )
        for path in found:
            try:
                str(path).encode()
            except UnicodeEncodeError:
                shown = os.fsencode(path).decode("utf-8", "backslashreplace")
                raise DataError(f"the name of the file {shown} is not UTF-8: rename it") from None
            files.setdefault(path.resolve(), path)
    if not any(path.stat().st_size for path in files):
        raise DataError(f"{shorten(pattern)} matches {len(files)} file(s), and all are empty")
    return sorted(files.values())


def read_documents(paths: Iterable[str | Path], text_key: str = "text") -> Iterator[list[str]]:
    """Yield the documents of several files, one after the other.

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
        raise DataError(f"no text was found in {first_few(list(map(str, paths)))} ({len(paths)} file(s) in all)")


def iter_documents(path: str | Path, text_key: str = "text") -> Iterator[list[str]]:
    """Stream the documents of one text file; a document is its units of text, never empty, without line breaks.

    Args:
        text_key: key of the text in JSON lines.
    """
    path = Path(path)
    indented = map(_stripped, read_lines(path, MAX_LINE_BYTES))
    head = _take(indented, SNIFFED_CHARACTERS)
    first = next((line.strip() for line in head if line), "")
    indented = itertools.chain(head, indented)
    lines = map(str.strip, indented)
    if kind := _kind_that_is_no_text(first, head):
        raise DataError(f"{path} {kind}; a file that is something else can be left out of the pattern")
    if _DOC_START.match(first):
        yield from _collect(_wikiextractor_units(lines))
    elif _is_json(first) or _JSON.match("\n".join(head)):
        yield from _collect(_json_units(path, text_key))
    elif (heading := _HEADING.match(first)) and heading[1] == "=":
        yield from _collect(_wikitext_units(lines))
    elif _has_hard_line_breaks(head):
        yield from _collect(_book_units(indented))
    else:
        yield from _collect(lines)


def split_sentences(text: str) -> list[str]:
    """Split a paragraph into sentences after 。！？ and after . ! ? before white space (English and Chinese rules).

    Not after common abbreviations, initials ("J. Austen") or a stop followed by a lower-case letter.
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


def _match(pattern: str) -> list[Path]:
    """Return all files of one path, folder or glob pattern."""
    if "\0" in pattern:  # which glob takes for an error of the program
        return []
    literal = Path(pattern)
    is_there = False
    try:
        is_there = literal.exists()
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:  # as a list of many files is, which is no name
            raise
    candidates = [literal] if is_there else [Path(name) for name in glob.glob(pattern, recursive=True)]
    files = []
    for path in candidates:
        if path.is_dir():
            files += _files_below(path)
        elif path.exists() and not path.is_file():
            raise DataError(f"{path} is a device or a pipe; the text is read several times: write it to a file")
        else:
            files.append(path)
    return files


def _files_below(folder: Path) -> Iterator[Path]:
    """The files of a folder and of those in it, but hidden ones; links are followed, and no folder is read twice."""

    def refuse(error: OSError) -> NoReturn:
        raise DataError(f"{error.filename} cannot be read: {error.strerror}") from error

    read = set()
    for place, folders, names in os.walk(folder, onerror=refuse, followlinks=True):
        if (real := os.path.realpath(place)) in read:
            folders.clear()
            continue
        read.add(real)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        visible = (Path(place, name) for name in names if not name.startswith("."))
        yield from (file for file in visible if file.is_file())


def _stripped(line: str) -> str:
    """A line without white space around it, but for the indentation with which a paragraph of Chinese begins."""
    return line.rstrip() if _INDENTED.match(line) else line.strip()


def _kind_that_is_no_text(first: str, head: list[str]) -> str:
    """What a file is that begins with these lines, where it is no text; else ""."""
    if _MARKUP.match(first):
        return "is XML or HTML: take the text out of it first, of a dump of Wikipedia with WikiExtractor"
    if any("\0" in line for line in head):
        return "has NUL characters, as UTF-16 has: convert it to UTF-8 (for instance with iconv)"
    if len(head) == 1 and "\r" in first:
        return "has lines that end with a carriage return alone: end them with a line feed (tr '\\r' '\\n')"
    return ""


def _take(lines: Iterator[str], characters: int) -> list[str]:
    """The first lines, as many as hold this number of characters."""
    taken = []
    while characters > 0 and (line := next(lines, None)) is not None:
        taken.append(line)
        characters -= 1 + len(line)
    return taken


# --- layouts: lines -> units, where an empty unit is a border between documents ---


def _collect(units: Iterable[str]) -> Iterator[list[str]]:
    """Documents from units; the unit that makes a document longer than MAX_DOCUMENT_CHARACTERS ends it."""
    document: list[str] = []
    size = 0
    for unit in units:
        if unit:
            document.append(unit)
            size += len(unit)
        if document and (not unit or size > MAX_DOCUMENT_CHARACTERS):
            yield document
            document, size = [], 0
    if document:
        yield document


def _wikiextractor_units(lines: Iterable[str]) -> Iterator[str]:
    title = ""  # until the article's first unit
    for line in lines:
        start = _DOC_START.match(line)
        if start or line == "</doc>":
            yield ""
            attribute = _TITLE.search(line) if start else None
            title = attribute["title"] if attribute else ""
        elif line:
            units = filter(None, map(str.strip, decode_entities(line).splitlines()))
            if title and (first := next(units, "")):
                if not _is_title(first, title):
                    yield first
                title = ""
            yield from units


def _is_title(unit: str, title: str) -> bool:
    """Return whether the first unit of a document repeats its title."""
    return unit == title or (bool(_comparable(title)) and _comparable(title) == _comparable(unit))


def _comparable(title: str) -> str:
    return " ".join(decode_entities(title).replace("_", " ").split())


def decode_entities(text: str) -> str:
    """HTML's &amp; and the like, of which only those with a semicolon are meant."""
    return _ENTITY.sub(lambda entity: html.unescape(entity[0]), text) if "&" in text else text


def _is_json(line: str) -> bool:
    """Whether a line is a JSON object or list by itself; numbers in brackets are more likely footnotes."""
    try:
        value = parse_json(line) if line[:1] in ("{", "[") else None
        return isinstance(value, dict | list) and not (value and all(isinstance(each, int) for each in value))
    except UnwritableError:
        return True
    except ValueError:
        return False


def _json_units(path: Path, text_key: str) -> Iterator[str]:
    for number, line in enumerate(read_lines(path, MAX_JSON_BYTES), 1):
        try:
            units = _object_units(line, text_key) if line.strip() else []
        except ValueError as error:
            raise DataError(
                f"{path}: line {number} {error}; of JSON allowed is one object a line with a document as its "
                f"{shorten(text_key)} (text_key); a file that is something else can be left out of the pattern"
            ) from None
        yield from units
        yield ""


def _object_units(line: str, text_key: str) -> list[str]:
    """Return the units of a JSON object, with U+FFFD for halves of surrogate pairs; ValueError if it has no text."""
    try:
        value = parse_json(line)
    except UnwritableError as error:
        value = error.value
    except ValueError as error:
        raise ValueError(f"is not JSON, or has more than {MAX_JSON_BYTES:,} bytes: {error}") from None
    if not isinstance(value, dict):
        raise ValueError("is no JSON object")
    if text_key not in value:
        raise ValueError(f"has no {shorten(text_key)}, but {first_few(list(map(shorten, value)), 10) or 'nothing'}")
    if not isinstance(value[text_key], str):
        raise ValueError(f"has the {shorten(text_key)} {shorten(value[text_key])}, which is no text")
    text = value[text_key].encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if text_key == "text" and value.keys() >= WIKIEXTRACTOR_KEYS:
        text = decode_entities(text)
    units = [unit.strip() for unit in text.split("\n") if unit.strip()]
    title = value.get("title") if text_key != "title" else None
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
    """One paragraph from its lines; Chinese and Japanese are joined to anything without a space.

    What is longer than MAX_PARAGRAPH_CHARACTERS is cut after its last whole sentence, or where it has none at the line.
    """
    text = ""
    for line in lines:
        if text and _INDENTED.match(line):
            yield text
            text = ""
        line = line.strip()
        glue = "" if not text or IS_CJK.match(text[-1]) or IS_CJK.match(line[0]) else " "
        text += glue + line
        if len(text) > MAX_PARAGRAPH_CHARACTERS:
            *whole, rest = split_sentences(text)
            yield text.removesuffix(rest).strip() if whole else text
            text = rest if whole else ""
    if text:
        yield text


def _has_hard_line_breaks(lines: list[str]) -> bool:
    """Whether most lines end where the next word would have crossed a right margin.

    That of Chinese text may be so many characters or so many columns; most of its lines do not end with a sentence.
    """
    pairs = itertools.pairwise(lines)
    inner = [(line, following) for line, following in pairs if line and following and not _INDENTED.match(following)]
    if len(inner) < 10 or 2 * sum(bool(_SENTENCE_END.search(line)) for line, _ in inner) > len(inner):
        return False
    return any(_has_margin(inner, width) for width in (len, _columns))


def _has_margin(inner: list[tuple[str, str]], width: Callable[[str], int]) -> bool:
    """Whether most lines, each given with the one behind it, are as wide as they can be below a common margin."""
    longest = sorted((line for line, _ in inner), key=width)[int(0.95 * len(inner))]
    margin, (least, most) = width(longest), MARGINS
    full = sum(width(line) + _needed(following, width) > margin for line, following in inner)
    return least <= _columns(longest) and margin <= most and full > 0.7 * len(inner)


def _needed(line: str, width: Callable[[str], int]) -> int:
    """The room on the line before that a line's beginning does not fit into: two ideographs, or a space, the first word
    and two characters."""
    word = _FIRST_WORD.match(line)
    return 3 + width(word.group()) if word else 2 * width(line[0])


def _columns(text: str) -> int:
    """How wide a text is where ideographs take twice the place of letters."""
    return len(text) if text.isascii() else sum(1 + (unicodedata.east_asian_width(each) in "WF") for each in text)


def _ends_sentence(text: str, start: int, end: int) -> bool:
    """Whether the stop text[start:end] ends a sentence: not an abbreviation, an initial or a quoted question."""
    following = _NEXT_WORD.match(text, end)
    if following and following[1].islower():
        return False
    last_word = _LAST_WORD.search(text, max(0, start - 20), start)
    if last_word is None or text[start:end] != ".":
        return True
    word = last_word.group()
    is_initial = len(word) == 1 and word.isupper() and word != "I"
    return not is_initial and word.lower() not in _ABBREVIATIONS
