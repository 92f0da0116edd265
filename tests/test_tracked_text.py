"""Tracked text: each operation gives the text that str gives, and origins that point to its sources."""

import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from src.text.tracked_text import CharacterTable, TrackedText

# Marks of several combining classes, vowel signs and music that decompose, letters whose lower case is longer.
texts = st.one_of(
    st.text(max_size=20),
    st.text(
        st.sampled_from("aÉe\u0301\u0323\u0327İΣß ½각\t\u3000\u302e\u20dd\u093c\u0b57\U0001d165\U0001d16d\U0001d15e"),
        max_size=20,
    ),
)
DOUBLED = CharacterTable(lambda character: {"a": "", "e": "xyz"}.get(character, character))


@given(texts)
def test_text_is_that_of_str(text):
    tracked = TrackedText.of(text)
    assert tracked.lower().text == text.lower()
    assert tracked.decompose().text == unicodedata.normalize("NFD", text)
    assert tracked.translate(DOUBLED).text == text.replace("a", "").replace("e", "xyz")
    assert tracked.collapse_spaces().text == " ".join(text.split())
    assert [word.text for word in tracked.split()] == text.split()


@given(texts)
def test_origins_point_to_the_sources(text):
    decomposed = TrackedText.of(text).decompose()
    for character, origin in zip(decomposed.text, decomposed.origins, strict=True):
        assert character in unicodedata.normalize("NFD", text[origin])
    collapsed = TrackedText.of(text).collapse_spaces()
    for character, origin in zip(collapsed.text, collapsed.origins, strict=True):
        assert character == text[origin] or (character == " " and text[origin].isspace())
    lowered = TrackedText.of(text).lower()
    for character, origin in zip(lowered.text, lowered.origins, strict=True):
        assert character in text[origin].lower() + "ς"


def test_spans_leave_white_space_out():
    tracked = TrackedText.of(" ab\t cd ").collapse_spaces()
    assert tracked.text == "ab cd"
    assert tracked.original_span(0, 3) == (1, 3)
    assert tracked.original_span(2, 5) == (5, 7)
    assert tracked.original_span(2, 3) == (5, 5)
    assert tracked.original_span(5, 5) == (7, 7)
    assert TrackedText.of("").original_span(0, 0) == (0, 0)
