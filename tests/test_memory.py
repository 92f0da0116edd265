"""Memory that processes have held."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from model_utils.memory import peak_memory
from tests.conftest import ROOT


def test_peak_memory_is_of_this_process_and_not_of_the_one_that_started_it() -> None:
    held = np.ones(50_000_000)  # 400 MB
    command = [sys.executable, "-c", "from model_utils.memory import peak_memory; print(peak_memory())"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert 10e6 < int(done.stdout) < 200e6 < held.nbytes
    assert held.nbytes < peak_memory() <= peak_memory(os.getpid())


def test_where_the_peak_is_not_told_what_is_held_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: "Name:\tpython\nVmSize:\t   900 kB\nVmRSS:\t   300 kB\n")
    assert peak_memory() == 300 * 1024
