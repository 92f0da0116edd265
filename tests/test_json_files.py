"""Small JSON files: what their schema lets through, and which sentence refuses the rest."""

import json
import os
from pathlib import Path

import pytest
from pydantic import Field

from model_utils.errors import CheckpointError, DataError
from model_utils.json_files import FileName, Schema, Sha256, parse_json, read_json, read_object, write_checked


class Card(Schema):
    """Schema of the files that these tests read."""

    task: str
    length: int = Field(ge=1, le=1000)
    threshold: float = 0.0
    labels: tuple[str, ...] = ()
    file: FileName = ""
    sha256: Sha256 = ""


GOOD = {"task": "ner", "length": 5, "threshold": 1, "labels": ["a", "b"], "further": {"kept": True}}


def refusal(file: Path, content: bytes) -> str:
    file.write_bytes(content)
    with pytest.raises(CheckpointError, match="card") as caught:
        read_json(file, Card, CheckpointError)
    return str(caught.value).removeprefix(f"{file}")


@pytest.mark.parametrize("text", ['{"key": 1, "key": 1}', '[{"a": {"b": 0, "key": 1, "c": 2, "key": 3}}]'])
def test_a_key_that_is_there_twice_is_named(text: str) -> None:
    with pytest.raises(ValueError, match='duplicate key "key"'):
        parse_json(text)


def test_what_fits_is_read(tmp_path: Path) -> None:
    file = tmp_path / "card.json"
    file.write_text(json.dumps(GOOD))
    card = read_json(file, Card)
    assert (card.task, card.length, card.threshold, card.labels) == ("ner", 5, 1.0, ("a", "b"))
    assert card.model_dump()["further"] == {"kept": True}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"file": "../other"}, ": file is '../other', allowed is the name of a file in the same folder"),
        ({"file": "a\n/"}, ": file is 'a\\n/', allowed is the name of a file in the same folder"),
        ({"file": ".."}, ": file is '..', allowed is the name of a file in the same folder"),
        ({"sha256": "0" * 63 + "\n"}, ": sha256 is '0000"),
        ({"task": 5}, ": task is 5, allowed is a valid string"),
        ({"length": "5"}, ": length is '5', allowed is a valid integer"),
        ({"length": True}, ": length is True, allowed is a valid integer"),
        ({"length": 0}, ": length is 0, allowed is greater than or equal to 1"),
        ({"labels": ["a", None]}, ": labels.1 is None, allowed is a valid string"),
        ({"labels": "ab"}, ": labels is 'ab', allowed is a valid"),
    ],
)
def test_a_wrong_value_is_named(tmp_path: Path, change: dict, sentence: str) -> None:
    assert refusal(tmp_path / "card.json", json.dumps(GOOD | change).encode()).startswith(sentence)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", " is damaged or not JSON"),
        (b'{"task": "ner"', " is damaged or not JSON"),
        (b"\xff\xfe{}", " is damaged or not JSON"),
        (b"[" * 99 + b"]" * 99, " holds [[[...]]], needed is an object with keys"),
        (b"[" * 1000 + b"]" * 1000, " is damaged or not JSON"),
        (b"[" * 100_000, " is damaged or not JSON"),
        (b'{"threshold": NaN}', " is damaged or not JSON"),
        (b'{"threshold": 1e999}', " is damaged or not JSON"),
        (b'{"task": "\\ud800"}', " is damaged or not JSON"),
        (b'{"length": ' + b"9" * 5000 + b"}", " is damaged or not JSON"),
        (b'{"task": "x", "length": ' + b"9" * 500 + b"}", ": length is 9999"),
        (b"{}", ": task is missing"),
        (b"null", " holds None, needed is an object with keys"),
    ],
)
def test_a_damaged_file_is_a_sentence(tmp_path: Path, content: bytes, sentence: str) -> None:
    found = refusal(tmp_path / "card.json", content)
    assert found.startswith(sentence) and len(found) < 300


def test_only_files_are_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name in ("pipe", ".", "absent", "n" * 300, "a\0b"):
        with pytest.raises(DataError):
            read_object(tmp_path / name)


def test_values_changed_afterwards_are_noticed(tmp_path: Path) -> None:
    file = tmp_path / "card.json"
    write_checked(file, GOOD)
    assert read_object(file) == GOOD
    written = json.loads(file.read_text())
    file.write_text(json.dumps(dict(reversed(written.items()))))  # the layout is free
    assert read_object(file) == GOOD
    file.write_text(json.dumps(written | {"threshold": 0.5}))
    with pytest.raises(DataError, match=r"was changed after it was written.*remove the key checksum"):
        read_object(file)
    del written["checksum"]
    file.write_text(json.dumps(written | {"threshold": 0.5}))
    assert read_object(file)["threshold"] == 0.5


def test_every_flipped_byte_is_noticed(tmp_path: Path) -> None:
    file = tmp_path / "card.json"
    write_checked(file, GOOD)
    written = file.read_bytes()
    key = written.index(b"checksum")  # with another name it is any key, and the file has no checksum
    for position in (*range(key), *range(key + len("checksum"), len(written))):
        damaged = bytearray(written)
        damaged[position] ^= 1
        file.write_bytes(damaged)
        with pytest.raises(DataError, match=r"card\.json"):
            read_object(file)


@pytest.mark.parametrize(
    "text", ["[" * 1000 + "]" * 1000, '{"a": NaN}', '{"a": 1e999}', '"\\udc80"', "1" * 5000, "{'a': 1}"]
)
def test_what_cannot_be_written_again_is_no_json(text: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        parse_json(text)
    assert len(str(caught.value)) < 200
