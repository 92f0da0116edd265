"""How many threads compute: the cores at hand, shared among processes and cut by a container's limit; its memory."""

import os
from pathlib import Path

import pytest

from model_utils import control_groups, cpu_threads
from model_utils.cpu_threads import choose_threads, cpu_limit
from model_utils.errors import ConfigError, DeviceError
from model_utils.memory import available_memory
from src.albert_config import PRESETS, check_memory


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """One of eight cores and no limits; the control groups' folder."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    (tmp_path / "own").write_text("4:cpu:/old\n0::/user/container\n")
    (tmp_path / "groups/user/container").mkdir(parents=True)
    monkeypatch.setattr(control_groups, "OWN_GROUP", tmp_path / "own")
    monkeypatch.setattr(control_groups, "CONTROL_GROUPS", tmp_path / "groups")
    monkeypatch.setattr(cpu_threads, "_chosen_threads", 0)
    return tmp_path / "groups"


@pytest.mark.parametrize(
    ("wanted", "processes", "variable", "chosen"),
    [(0, 1, "", 8), (0, 2, "", 4), (0, 16, "", 1), (5, 2, "3", 5), (0, 2, "3", 3), (0, 1, "99", 8), (0, 1, "0", 8)],
)
def test_they_are_what_is_wanted_or_a_share_of_the_cores(
    machine: Path, monkeypatch: pytest.MonkeyPatch, wanted: int, processes: int, variable: str, chosen: int
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", variable)
    assert choose_threads(wanted, processes) == chosen
    with pytest.raises(DeviceError, match=rf"computes with {chosen} thread.* 7"):
        choose_threads(7)


def test_a_container_s_memory_is_the_machine_s(machine: Path) -> None:
    whole = available_memory()
    (machine / "user/memory.max").write_text("3000000000\n")
    (machine / "user/container/memory.max").write_text("max\n")
    assert available_memory() == 3_000_000_000 < whole
    with pytest.raises(ConfigError, match="this machine's memory has 3 GB"):
        check_memory(PRESETS["albert_xxlarge"].replace(share_parameters="none"))


def test_a_containers_limit_is_kept(machine: Path) -> None:
    assert cpu_limit() == 8
    (machine / "user/container/cpu.max").write_text("max 100000\n")
    assert cpu_limit() == 8
    (machine / "user/cpu.max").write_text("250000 100000\n")
    assert cpu_limit() == 2.5 and choose_threads(0) == 3
    (machine / "user/container/cpu.max").write_text("50000 100000\n")
    assert cpu_limit() == 0.5
    (machine.parent / "own").unlink()
    assert cpu_limit() == 8
