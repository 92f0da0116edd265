"""Values that nobody expects, damage to bytes, and rules for every case of the generated faults."""

import gc
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from model_utils.config import _sentence
from model_utils.errors import UserError

SECONDS = 20  # that one case may take
GROWTH = 64 << 20  # bytes that all cases of a test may leave in memory; a leak in each of 40 cases shows
COUNTS = pytest.mark.parametrize("count", [40, pytest.param(2000, marks=pytest.mark.slow)])

# Texts that mean something to yaml, JSON, the shell or a file system.
WORDS = """NaN nan inf -inf 1e999 -1 0 0x10 1_000 9999999999999999999999 null ~ true no "" ' " [ { ]} &a *a !!int - ? :
    # !!binary %TAG --- ... .. / // ~root $HOME `id` ; & | > [MASK] [CLS] \\ud800 \\u0000 <pad> 2024-02-31""".split()
BLANKS = ["", " ", "\t", "\n", "\r\n", "a\0b", "\ud800", "\u2028", "\x85", "\ufeff"]
LONG = ["x" * 5000, "[" * 3000, "{" * 3000, "- " * 3000, "9" * 5000, "a" * 300 + "/b"]
TEXTS = st.one_of(st.sampled_from([*WORDS, *BLANKS, *LONG]), st.text(max_size=20))
NUMBERS = st.one_of(
    st.integers(), st.integers(10**18, 10**400), st.floats(), st.sampled_from([2**31, 2**32, 2**63, -1])
)
SCALARS = st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(TEXTS, inner, max_size=4)),
    max_leaves=8,
)


@st.composite
def damaged(draw: Callable, content: bytes) -> bytes:
    """Content that lost its end, or had bytes replaced, taken out or put in."""
    places = st.integers(0, len(content))
    for _ in range(draw(st.integers(1, 3))):
        place, length = draw(places), draw(st.sampled_from([0, 1, 4, 100, len(content)]))
        patch = draw(st.one_of(st.binary(max_size=12), TEXTS.map(lambda text: text.encode("utf-8", "surrogatepass"))))
        content = content[:place] + patch + content[place + length :]
    return content


OTHER_KINDS = ("folder", "pipe", "loop", "dangling", "absent")


def put(path: Path, content: bytes | str) -> None:
    """Make `path` a file of this content, or what the word of OTHER_KINDS says."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content == "folder":
        path.mkdir()
    elif content == "pipe":
        os.mkfifo(path)
    elif content in ("loop", "dangling"):
        path.symlink_to(path.name if content == "loop" else "nowhere")


class Hang(BaseException):
    """A case took longer than SECONDS; no handler of the code under test catches it."""


def _hang(number: int, frame: FrameType | None) -> None:
    raise Hang(f"no answer after {SECONDS} seconds")


def only_sentences(action: Callable[[], Any]) -> None:
    """The action ends well or in a sentence of run_main: another exception, a hang or an endless one fails the test."""
    before = signal.signal(signal.SIGALRM, _hang)
    signal.alarm(SECONDS)
    try:
        action()
    except (UserError, OSError) as error:
        sentence = _sentence(error, None)
        if not 0 < len(sentence) < 5000:
            raise AssertionError(f"a sentence of {len(sentence)} characters") from error
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def _resident() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def explore(count: int, strategy: st.SearchStrategy, check: Callable[[Any], object]) -> None:
    """Check `count` generated cases: always the same ones in the ordinary tests, new ones in the slow ones."""

    @settings(max_examples=count, derandomize=count < 1000, database=None, suppress_health_check=list(HealthCheck))
    @given(strategy)
    def case(value: Any) -> None:
        only_sentences(lambda: check(value))

    case()
    before = _resident()
    case()
    assert _resident() - before < GROWTH, f"{count} cases left {(_resident() - before) >> 20} MB in memory"
