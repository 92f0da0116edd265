"""The English that comes with Python: what counts as prose, and that held-out text is not trained on."""

from scripts.quickstart_corpus import docstrings, prose, split_documents

DOCSTRING = '''"""Tools for words.

This module splits a text into words
and counts them.

    >>> count("a b")
    2

Usage: count(text, n=3)

* The first item of this list is a whole sentence, too.
"""

def count(text):
    """Return how often each word of the text occurs in it."""

class Counter:
    x = "no docstring"
'''


def test_prose_keeps_sentences_and_leaves_out_code_and_titles() -> None:
    module, function = docstrings(DOCSTRING.encode())
    assert list(prose(module)) == [
        "This module splits a text into words and counts them.",
        "The first item of this list is a whole sentence, too.",
    ]
    assert list(prose(function)) == ["Return how often each word of the text occurs in it."]
    assert docstrings(b"print 'another version'") == []


def test_a_paragraph_stands_once_and_a_share_is_held_out() -> None:
    split = split_documents()
    paragraphs = [paragraph for documents in split.values() for document in documents for paragraph in document]
    assert len(paragraphs) == len(set(paragraphs))
    words = {name: sum(len(p.split()) for document in documents for p in document) for name, documents in split.items()}
    assert words["train"] > 100_000
    assert 0.02 < words["heldout"] / words["train"] < 0.25
