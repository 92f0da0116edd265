"""Headless Chromium, as Debian's package `chromium` installs it, driven by playwright (requirements-dev.txt)."""

import contextlib
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
QUIET = "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking --disable-sync"


@contextlib.contextmanager
def chromium() -> Iterator[Any]:
    """Yield a browser; skip the test where playwright or Chromium is missing."""
    reason = "needs playwright: pip install -r requirements-dev.txt"
    sync_api = pytest.importorskip("playwright.sync_api", reason=reason)
    if CHROMIUM is None:
        pytest.skip("needs Chromium (on Debian and Ubuntu: apt install chromium)")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=QUIET.split())
        yield browser
        browser.close()
