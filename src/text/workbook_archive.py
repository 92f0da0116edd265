"""Parts of an .xlsx file as streams of XML events, bounded in size and without entities."""

import posixpath
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.parsers import expat

from model_utils.errors import DataError, shorten

ALWAYS_UNPACKED = 32 << 20  # decompressed bytes allowed for any workbook
MOST_UNPACKED = 1 << 30  # decompressed bytes allowed for large files
MOST_SHRUNK = 50  # compression ratio allowed for large files; Excel's sheets have about 10
DEEPEST = 100  # nested elements
LONGEST_TAG = 1 << 20  # bytes of an element's name and attributes, which take 250 times as much in memory
CHUNK = 1 << 16  # bytes parsed at once
Event = tuple[str, dict[str, str] | None, str]  # local tag; attributes, None at the element's end; text at its end


def check_archive(path: Path, archive: zipfile.ZipFile) -> None:
    """Raise DataError if decompressing a workbook could exhaust memory."""
    entries = archive.infolist()
    size = sum(entry.file_size for entry in entries)
    allowed = min(MOST_UNPACKED, ALWAYS_UNPACKED + MOST_SHRUNK * sum(entry.compress_size for entry in entries))
    if size > allowed:
        found = f"{path} would unpack to {size >> 20:,} MB"
        raise DataError(f"{found}, allowed are {allowed >> 20:,} MB; save its sheet as .csv")
    # zipfile decompresses only these two in pieces, and a workbook has no others.
    if any(entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) for entry in entries):
        raise DataError(f"{path} has a part with an unknown compression; save it again")


def read_events(archive: zipfile.ZipFile, part: str) -> Iterator[Event]:
    """Yield the starts and ends of the XML elements of a part; raise ValueError where it exceeds a limit."""
    events: list[Event] = []
    texts: list[str] = []
    open_tags: list[str] = []

    def start(name: str, attributes: dict[str, str]) -> None:
        open_tags.append(name.rpartition(":")[2])
        if len(open_tags) > DEEPEST:
            raise ValueError(f"{shorten(part)} has more than {DEEPEST} nested elements")
        texts.clear()
        events.append((open_tags[-1], attributes, ""))

    def end(_: str) -> None:
        events.append((open_tags.pop(), None, "".join(texts)))
        texts.clear()

    def refuse_entities(*_: Any) -> None:
        raise ValueError(f"{shorten(part)} declares a document type")

    parser = expat.ParserCreate()
    parser.buffer_text = True
    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.CharacterDataHandler = texts.append
    parser.StartDoctypeDeclHandler = refuse_entities
    with archive.open(part) as source:
        while chunk := source.read(CHUNK):
            parser.Parse(chunk)
            if source.tell() - parser.CurrentByteIndex > LONGEST_TAG:
                raise ValueError(f"{shorten(part)} has an element or a comment of more than {LONGEST_TAG} bytes")
            yield from events
            events.clear()
    parser.Parse(b"", True)
    yield from events


def read_relations(archive: zipfile.ZipFile, part: str) -> dict[str, tuple[str, str]]:
    """Return type and name of the parts that a part refers to, by relationship id."""
    folder, file_name = posixpath.split(part)
    relations: dict[str, tuple[str, str]] = {}
    for tag, attributes, _ in read_events(archive, posixpath.join(folder, "_rels", f"{file_name}.rels")):
        if tag == "Relationship" and attributes is not None:
            target = posixpath.normpath(posixpath.join("/", folder, attributes["Target"])).lstrip("/")
            relations[attributes["Id"]] = (posixpath.basename(attributes["Type"]), target)
    return relations
