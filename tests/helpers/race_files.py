"""Folders like RACE's with few short passages of it."""

import json
import tarfile
from pathlib import Path
from typing import Any


def take_short_passages(archive: Path, count: int, longest: int) -> dict[str, list[dict[str, Any]]]:
    """By level, the first `count` passages of RACE's training set that have less than `longest` characters."""
    found: dict[str, list[dict[str, Any]]] = {"middle": [], "high": []}
    with tarfile.open(archive) as files:
        for member in files:
            parts = Path(member.name).parts
            if member.isfile() and "train" in parts and len(found[parts[-2]]) < count:
                passage = json.load(files.extractfile(member))
                if len(passage["article"]) < longest:
                    found[parts[-2]].append(passage)
            if all(len(passages) == count for passages in found.values()):
                return found
    raise AssertionError(f"{archive} has too few short passages")


def write_race(folder: Path, passages: dict[str, list[dict[str, Any]]], splits: tuple[str, ...]) -> None:
    """RACE's files; all splits have the same passages."""
    for level, chosen in passages.items():
        for split in splits:
            place = folder / split / level
            place.mkdir(parents=True)
            for number, passage in enumerate(chosen):
                (place / f"{number}.txt").write_text(json.dumps(passage))
