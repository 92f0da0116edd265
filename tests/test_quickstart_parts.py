"""Labelled docstrings: every part has some, none stands twice, and none is in both files."""

from scripts.quickstart_parts import PARTS, split_docstrings


def test_docstrings_and_their_parts() -> None:
    split = split_docstrings()
    texts = [docstring for rows in split.values() for docstring, _ in rows]
    assert len(texts) == len(set(texts)) > 2000
    assert all("\t" not in text and "\n" not in text for text in texts)
    for rows in split.values():
        assert {part for _, part in rows} == PARTS.keys()
    assert 0.1 < len(split["dev"]) / len(texts) < 0.2
