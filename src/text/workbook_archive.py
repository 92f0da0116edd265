"""Parts of an .xlsx file as streams of XML events: bounded in size, without entities, and nothing said twice."""

import posixpath
import zipfile
from collections.abc import Iterator
from typing import Any
from xml.parsers import expat

from model_utils.errors import shorten

ALWAYS_UNPACKED = 32 << 20  # decompressed bytes allowed for any workbook
MAX_UNPACKED = 1 << 30  # decompressed bytes allowed for large files
MAX_RATIO = 50  # compression ratio allowed for large files; Excel's sheets have about 10
MAX_DEPTH = 100  # elements inside each other
MAX_TAG = 1 << 20  # bytes of an element's name and attributes, which take 250 times as much in memory
SINGLE_ELEMENTS = {"workbookPr", "sheets", "sheetData", "numFmts", "cellXfs"}  # elements that a part has once
SINGLE_PARTS = {"officeDocument", "sharedStrings", "styles"}
UNNESTED = {"row", "c", "si"}  # elements that are never inside one of their kind
CHUNK = 1 << 16  # bytes parsed at once
SAVE_ANEW = "open it in Excel or LibreOffice and save it again"
Event = tuple[str, dict[str, str] | None, str]  # local tag; attributes, None at the element's end; text at its end


class Fault(ValueError):  # noqa: N818 - its text becomes a DataError
    """Fault of a workbook; the message lacks its subject (file or row)."""


def check_archive(archive: zipfile.ZipFile) -> None:
    """Raise Fault if decompressing the archive could exhaust memory, or an entry is repeated or oddly compressed."""
    entries = archive.infolist()
    size = sum(entry.file_size for entry in entries)
    allowed = min(MAX_UNPACKED, ALWAYS_UNPACKED + MAX_RATIO * sum(entry.compress_size for entry in entries))
    if size > allowed:
        raise Fault(f"would unpack to {size >> 20:,} MB, allowed are {allowed >> 20:,} MB; save its sheet as .csv")
    names = set()
    for entry in entries:
        if entry.filename.casefold() in names:
            raise Fault(f"is damaged: it holds {shorten(entry.filename)} twice; {SAVE_ANEW}")
        # zipfile decompresses only these two in pieces, and a workbook has no others.
        if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise Fault(f"is damaged: {shorten(entry.filename)} has an unknown compression; {SAVE_ANEW}")
        names.add(entry.filename.casefold())


def read_events(archive: zipfile.ZipFile, part: str) -> Iterator[Event]:
    """Yield the starts and ends of the XML elements of a part; raise Fault if the part is missing."""
    events: list[Event] = []
    texts: list[str] = []
    open_tags: list[str] = []
    part_tags: set[str] = set()

    def start(name: str, attributes: dict[str, str]) -> None:
        tag = name.rpartition(":")[2]
        is_in_root = len(open_tags) == 1
        if (tag in SINGLE_ELEMENTS and is_in_root and tag in part_tags) or (tag in UNNESTED and tag in open_tags):
            raise repetition_fault(part, tag)
        if is_in_root:
            part_tags.add(tag)
        open_tags.append(tag)
        if len(open_tags) > MAX_DEPTH:
            raise Fault(f"is damaged: {shorten(part)} has more than {MAX_DEPTH} elements inside each other")
        texts.clear()
        events.append((tag, attributes, ""))

    def end(_: str) -> None:
        events.append((open_tags.pop(), None, "".join(texts)))
        texts.clear()

    def refuse_entities(*_: Any) -> None:
        raise Fault("is damaged: it declares a document type")

    parser = expat.ParserCreate()
    parser.buffer_text = True
    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.CharacterDataHandler = texts.append
    parser.StartDoctypeDeclHandler = refuse_entities
    if part not in archive.namelist():
        raise Fault(f"is damaged: it lacks {shorten(part)}; {SAVE_ANEW}")
    with archive.open(part) as source:
        while chunk := source.read(CHUNK):
            parser.Parse(chunk)
            if source.tell() - parser.CurrentByteIndex > MAX_TAG:
                raise Fault(f"is damaged: {shorten(part)} has an element or a comment of more than {MAX_TAG} bytes")
            yield from events
            events.clear()
    parser.Parse(b"", True)
    yield from events


def repetition_fault(part: str, name: str) -> Fault:
    """Return the fault of a part that says something twice."""
    return Fault(f"is damaged: {shorten(part)} has {shorten(name)} twice; {SAVE_ANEW}")


def read_relations(archive: zipfile.ZipFile, part: str) -> tuple[dict[str, tuple[str, str]], dict[str, str]]:
    """Return the parts that a part refers to: type and name by relationship id, and name by type."""
    folder, file_name = posixpath.split(part)
    relations: dict[str, tuple[str, str]] = {}
    parts: dict[str, str] = {}
    for tag, attributes, _ in read_events(archive, posixpath.join(folder, "_rels", f"{file_name}.rels")):
        if tag == "Relationship" and attributes is not None:
            name = attributes["Id"]
            relation_type = posixpath.basename(attributes["Type"])
            target = posixpath.normpath(posixpath.join("/", folder, attributes["Target"])).lstrip("/")
            if name in relations:
                raise repetition_fault(part, f"relation {name}")
            if relation_type in parts and relation_type in SINGLE_PARTS:
                raise repetition_fault(part, f"relation {relation_type}")
            relations[name] = (relation_type, target)
            parts[relation_type] = target
    return relations, parts
