"""Damaged files of PyTorch, in its two formats, by bytes, pickle opcodes and members of the zip."""

import io
import pickletools
import zipfile
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from tests.faults.cases import damaged

# One opcode in the place of another of the same length: a number, an object from nowhere, the end.
OPCODES = b"\x85\x86\x87}]()t.R\x81bNqrjhKMJ\x88\x89X\x8c\x8a\x93QPcaeus02\xff\x00"


@st.composite
def flipped(draw: Callable, content: bytes) -> bytes:
    """Content with some bytes replaced, in its first part as well as anywhere."""
    changed = bytearray(content)
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.one_of(st.integers(0, min(800, len(content) - 1)), st.integers(0, len(content) - 1)))
        changed[place] = draw(st.integers(0, 255))
    return bytes(changed)


@st.composite
def other_opcodes(draw: Callable, pickled: bytes) -> bytes:
    """A pickle with other opcodes, or other small arguments, in places where it has opcodes."""
    places = [place for _, _, place in pickletools.genops(pickled)]
    changed = bytearray(pickled)
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.sampled_from(places))
        changed[place] = draw(st.sampled_from(OPCODES))
        if draw(st.booleans()) and place + 1 < len(changed):
            changed[place + 1] = draw(st.integers(0, 255))
    return bytes(changed)


def zipped(members: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    """The bytes of an archive."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return file.getvalue()


def members_of(content: bytes) -> dict[str, bytes]:
    """The members of an archive by name."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@st.composite
def other_members(draw: Callable, content: bytes) -> bytes:
    """An archive whose pickle has other opcodes, or that lost, shortened or compressed members."""
    members = members_of(content)
    pickled = next(name for name in members if name.endswith("data.pkl"))
    kind = draw(st.sampled_from(["opcodes", "missing", "cut", "compressed"]))
    name = draw(st.sampled_from(sorted(members)))
    if kind == "opcodes":
        members[pickled] = draw(other_opcodes(members[pickled]))
    elif kind == "missing":
        del members[name]
    elif kind == "cut":
        members[name] = members[name][: draw(st.integers(0, len(members[name])))]
    return zipped(members, zipfile.ZIP_DEFLATED if kind == "compressed" else zipfile.ZIP_STORED)


def pytorch_files(new: bytes, old: bytes) -> st.SearchStrategy[Any]:
    """Damaged files, from a whole one of the zip format and one of the format before."""
    pickles = old.index(b"FloatStorage")  # the pickle with the names and shapes is around it
    return st.one_of(
        damaged(new),
        damaged(old),
        damaged(old[: pickles + 2000]),
        flipped(new),
        flipped(old),
        other_members(new),
        st.integers(0, len(new)).map(lambda size: new[:size]),
        st.integers(0, len(old)).map(lambda size: old[:size]),
    )
