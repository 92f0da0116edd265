"""Data creation on a Dask cluster: the bytes of one process, whatever happens to workers, and refusals before work."""

import contextlib
import gc
import itertools
import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from model_utils.errors import ConfigError, UserError
from src import create_pretraining_data, merge_parts
from src.create_pretraining_data import PACKAGES, CreateDataConfig
from src.data import dask_cluster
from src.data.dask_cluster import connect
from src.pretraining_data.unit_maker import UnitMaker
from src.tokenization import FullTokenizer
from tests.conftest import ROOT
from tests.helpers.pretraining_rows import SETTINGS
from tests.helpers.small_text import make_records

dask = pytest.importorskip("dask", reason="needs dask (requirements-scale.txt)")
distributed = pytest.importorskip("distributed", reason="needs dask (requirements-scale.txt)")


def double(number: int, seconds: float = 0) -> int:
    time.sleep(seconds)
    return 2 * number


def fail(number: int) -> NoReturn:
    raise ValueError(f"no result of {number}")


def end_worker(number: int) -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)


@contextlib.contextmanager
def local_cluster(workers: int) -> Iterator[Any]:
    # A client that found no scheduler is closed when it is collected; within distributed's lock that waits for ever.
    gc.collect()
    with distributed.LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=":0") as cluster:
        yield cluster


@pytest.fixture(scope="module")
def two_workers() -> Iterator[Any]:
    with local_cluster(2) as cluster:
        yield cluster


@pytest.fixture
def scheduler(two_workers: Any) -> str:
    """The address of a scheduler with two worker processes, which start again after a kill."""
    two_workers.wait_for_workers(2, timeout=60)
    return two_workers.scheduler_address


@pytest.fixture
def small_units(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(create_pretraining_data, "UNIT_CHARACTERS", 20_000)


@pytest.fixture
def no_cache() -> Iterator[None]:
    dask_cluster.environment.cache_clear()
    yield
    dask_cluster.environment.cache_clear()


def on(scheduler: str) -> dict[str, Any]:
    return {"executor": "dask", "scheduler": scheduler, "num_workers": 0}


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def kill_one_worker(scheduler: str) -> None:
    with distributed.Client(scheduler, set_as_default=False) as client:
        os.kill(next(iter(client.run(os.getpid).values())), signal.SIGKILL)


def test_the_output_is_that_of_one_process_even_if_a_worker_is_killed(
    scheduler: str, text_and_model: tuple[Path, Path], tmp_path: Path, small_units: None, monkeypatch: Any
) -> None:
    make_records(tmp_path / "one/pre.mindrecord", *text_and_model, dupe_factor=1)
    make_records(tmp_path / "dask/pre.mindrecord", *text_and_model, dupe_factor=1, **on(scheduler))
    write = create_pretraining_data.RecordWriter.write
    written = itertools.count(1)

    def kill_and_write(*arguments: Any) -> None:
        if next(written) == 3:
            kill_one_worker(scheduler)
        write(*arguments)

    monkeypatch.setattr(create_pretraining_data.RecordWriter, "write", kill_and_write)
    make_records(tmp_path / "killed/pre.mindrecord", *text_and_model, dupe_factor=1, **on(scheduler))
    assert next(written) > 10
    assert contents(tmp_path / "one") == contents(tmp_path / "dask") == contents(tmp_path / "killed")


def test_parts_are_those_of_processes(
    scheduler: str, text_and_model: tuple[Path, Path], tmp_path: Path, small_units: None
) -> None:
    for name, settings in (("one", {}), ("dask", on(scheduler))):
        output = tmp_path / name / "pre.mindrecord"
        for part in ("0/3", "1/3", "2/3"):
            make_records(output, *text_and_model, dupe_factor=1, part=part, **settings)
        merge_parts.main(merge_parts.MergeConfig(output_file=str(output)))
    assert contents(tmp_path / "one") == contents(tmp_path / "dask")


def test_workers_need_no_file_of_the_vocabulary(text_and_model: tuple[Path, Path], tmp_path: Path) -> None:
    model = shutil.copy(text_and_model[1], tmp_path)
    maker = UnitMaker(FullTokenizer(spm_model_file=model), SETTINGS, seed=0, passes=1)
    pickled = pickle.dumps(maker)
    Path(model).unlink()
    documents = [text_and_model[0].read_text("utf-8").splitlines()[:40]]
    assert pickle.loads(pickled).make(0, documents).packed.rows == maker.make(0, documents).packed.rows


def test_a_dry_run_counts_the_threads_of_the_cluster(
    scheduler: str, text_and_model: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_records(tmp_path / "pre.mindrecord", *text_and_model, dry_run=True, **on(scheduler))
    assert "with 2 process(es)" in capsys.readouterr().out and not list(tmp_path.iterdir())


def test_results_come_in_order_and_few_arguments_are_taken_ahead(scheduler: str) -> None:
    taken = 0

    def arguments() -> Iterator[tuple[int, float]]:
        nonlocal taken
        for taken in range(1, 31):
            yield taken, 0.1 if taken % 3 == 0 else 0

    with connect(scheduler, PACKAGES) as cluster, cluster.results_of(double, arguments()) as results:
        for number in range(1, 31):
            assert next(results) == 2 * number and taken <= number + 4


def test_workers_that_join_take_part() -> None:
    with (
        local_cluster(1) as local,
        connect(local.scheduler_address, PACKAGES) as cluster,
        cluster.results_of(os.getpid, itertools.repeat(())) as results,
    ):
        first = next(results)
        local.scale(2)
        assert any(process != first for process in itertools.islice(results, 10_000))


def test_errors_of_calls_are_raised(scheduler: str) -> None:
    with (
        connect(scheduler, PACKAGES) as cluster,
        cluster.results_of(fail, [(7,)]) as results,
        pytest.raises(ValueError, match="no result of 7"),
    ):
        next(results)


def test_text_that_ends_every_worker_is_a_sentence() -> None:
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 0}),
        local_cluster(1) as local,
        connect(local.scheduler_address, PACKAGES) as cluster,
        cluster.results_of(end_worker, [(1,)]) as results,
        pytest.raises(UserError, match="give them more memory"),
    ):
        next(results)


@pytest.mark.parametrize(
    ("end", "idle_seconds", "sentence"),
    [(lambda local: local.close(), 600, "was lost"), (lambda local: local.scale(0), 0, "has had no worker for 0 s")],
)
def test_a_cluster_that_ends_is_a_sentence(
    end: Callable[[Any], None], idle_seconds: int, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dask_cluster, "IDLE_SECONDS", idle_seconds)
    monkeypatch.setattr(dask_cluster, "CONNECT_SECONDS", 5)
    with (
        local_cluster(1) as local,
        connect(local.scheduler_address, PACKAGES) as cluster,
        cluster.results_of(double, itertools.repeat((1, 0.1))) as results,
    ):
        next(results)
        end(local)
        with pytest.raises(UserError, match=sentence):
            list(results)


# --- refused before work starts ---


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (
            {"scheduler": "tcp://host:8786"},
            "scheduler is 'tcp://host:8786', allowed is empty while executor is processes",
        ),
        ({"executor": "dask"}, "scheduler is missing; give its address"),
        (
            {"executor": "dask", "scheduler": "tcp://host:8786", "num_workers": 2},
            "num_workers is 2, allowed is 0",
        ),
        ({"executor": "threads"}, "allowed is one of processes, dask"),
    ],
)
def test_keys_that_contradict_each_other_are_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        CreateDataConfig(input_file="x", output_file="x.mindrecord", **settings)


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:1", "https://127.0.0.1:1", "a b"])
def test_a_scheduler_that_does_not_answer_is_refused(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dask_cluster, "CONNECT_SECONDS", 1)
    with pytest.raises(ConfigError, match="none answered within 1 s"), connect(address, PACKAGES):
        pass


def test_without_dask_the_command_to_install_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(UserError, match=r"distributed .*requirements-scale\.txt"), connect("tcp://x:1", PACKAGES):
        pass


def test_a_scheduler_without_workers_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dask_cluster, "CONNECT_SECONDS", 1)
    with (
        local_cluster(0) as local,
        pytest.raises(UserError, match="has no workers: start some"),
        connect(local.scheduler_address, PACKAGES),
    ):
        pass


@pytest.mark.parametrize(
    ("name", "replacement", "sentence"),
    [
        ("version", lambda package: "9.9", r"has numpy 1\.26\.4, this machine has 9\.9"),
        ("sys", SimpleNamespace(version_info=(3, 99, 0)), r"has Python 3\.\d+, this machine has 3\.99"),
    ],
)
def test_another_python_or_package_is_refused(
    scheduler: str, name: str, replacement: Any, sentence: str, monkeypatch: pytest.MonkeyPatch, no_cache: None
) -> None:
    monkeypatch.setattr(dask_cluster, name, replacement)
    with pytest.raises(UserError, match=sentence), connect(scheduler, PACKAGES):
        pass


@pytest.mark.parametrize(
    ("has_project", "sentence"),
    [(True, r"has project [0-9a-f]{16}, this machine has [0-9a-f]{16}"), (False, "cannot run the project")],
)
def test_a_worker_with_another_project_is_refused(tmp_path: Path, has_project: bool, sentence: str) -> None:
    if has_project:
        for folder in ("src", "model_utils"):
            shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
        (tmp_path / "src/another.py").write_text("")
        (tmp_path / "src/utils.py").write_text((ROOT / "src/utils.py").read_text("utf-8") + "# changed\n", "utf-8")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    with local_cluster(0) as local:
        command = [sys.executable, "-m", "dask", "worker", local.scheduler_address, "--no-dashboard", "--no-nanny"]
        worker = subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.DEVNULL)
        try:
            with pytest.raises(UserError, match=sentence), connect(local.scheduler_address, PACKAGES):
                pass
        finally:
            worker.kill()
            worker.wait()


def test_a_worker_that_joins_with_another_project_is_refused(scheduler: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with connect(scheduler, PACKAGES) as cluster:
        needed = dask_cluster.environment(PACKAGES) | {"project": "another"}
        monkeypatch.setattr(dask_cluster, "environment", lambda packages: needed)
        with cluster.results_of(double, [(1,)]) as results, pytest.raises(UserError, match="this machine has another"):
            next(results)
