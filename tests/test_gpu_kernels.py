"""Every network has kernels on a GPU, and an update waits for none: with CUDA libraries that compute nothing."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import stub_cuda

ROOT = Path(__file__).parents[1]
UPDATES = ("pre-training", "pre-training otherwise", "classification", "spans or none")
WAITS = {"copy to the host", "cudaStreamSynchronize", "cudaDeviceSynchronize"}
SLOW = ("CalArgmax", "cudnnReduceTensor", "Unpack")  # on an H100: docs/gpu.md


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    if reason := stub_cuda.obstacle():
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("stub_cuda")
    environment = os.environ | stub_cuda.build(folder) | {stub_cuda.LOG: str(folder / "calls")}
    (folder / "calls").touch()
    command = [sys.executable, "-m", "tests.helpers.on_stub_gpu"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-5000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_every_network_has_kernels(calls: dict[str, list[str]]) -> None:
    """An operation without one ends the process with an error that names it."""
    assert calls.keys() == {*UPDATES, "answers: masked words", "answers: spans or none"}
    for name in UPDATES:
        assert sum("Gemm" in each for each in calls[name]) > 20, name


def test_an_update_waits_for_the_gpu_only_when_all_of_it_is_queued(calls: dict[str, list[str]]) -> None:
    """MindSpore waits before an update, around the copies of its inputs, and once behind it."""
    for name in UPDATES:
        *names, end = calls[name]
        start = next(i for i, each in enumerate(names) if "Gemm" in each)
        assert end == "cudaStreamSynchronize" and not WAITS.intersection(names[start:]), name


def test_no_update_takes_slow_kernels(calls: dict[str, list[str]]) -> None:
    found = {each for name in UPDATES for each in calls[name]}
    assert not {each for each in found if any(slow in each for slow in SLOW)}
    assert any("Softmax" in each for each in found)  # names are seen at all
