"""Fixtures for all tests, and which tests run: --slow and --oracles of scripts/test.sh, graphs in heavy files alone."""

import gc
import importlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import hypothesis
import pytest

from model_utils.messages import show_messages

hypothesis.settings.register_profile("project", deadline=None)  # how long an example takes says nothing here
hypothesis.settings.load_profile("project")
ROOT = Path(__file__).resolve().parents[1]
HEAVY_FILES = (ROOT / "tests/heavy_files.txt").read_text(encoding="utf-8").split()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="run the tests marked slow")
    parser.addoption("--oracles", action="store_true", help="run the tests that compare with other libraries")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what takes minutes or other libraries unless it is asked for; CI asks for --oracles.

    What is asked for runs, so that a library that is missing then is a failure. scripts/test.sh counts what is left
    out, by reason.
    """
    for marker, reason in (("slow", "give --slow to run it"), ("oracles", "give --oracles to run it")):
        if not config.getoption(f"--{marker}"):
            for item in items:
                if marker in item.keywords:
                    item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def shared() -> Path:
    """Folder with real text, vocabularies and golden figures: ALBERT_SHARED, else `shared` beside the project."""
    folder = Path(os.environ.get("ALBERT_SHARED") or ROOT.parent / "shared")
    if not (folder / "golden").is_dir():
        pytest.skip(f"needs the reference data in {folder} (or the folder named in ALBERT_SHARED)")
    return folder


@pytest.fixture(scope="session")
def golden(shared: Path) -> Path:
    """Folder with figures computed by google's own code."""
    return shared / "golden"


def import_library(name: str) -> ModuleType:
    """Import a module, and leave what it made out of collections of garbage."""
    module = importlib.import_module(name)
    gc.collect()
    gc.freeze()
    return module


@pytest.fixture(scope="session")
def text_and_model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A real text, and a SentencePiece vocabulary of it."""
    from tests.helpers.small_text import train_model, write_text  # imports MindSpore

    folder = tmp_path_factory.mktemp("text")
    text = write_text(folder)
    return text, train_model(folder, text)


@pytest.fixture(scope="session")
def torch() -> ModuleType:
    """torch, for tests marked oracles: other tests run where it is not installed."""
    return import_library("torch")


@pytest.fixture(scope="session")
def transformers(torch: ModuleType) -> ModuleType:
    """transformers, likewise."""
    return import_library("transformers")


@pytest.fixture(scope="session")
def tensorflow() -> ModuleType:
    """TensorFlow, likewise: it writes checkpoints as google's."""
    return import_library("tensorflow")


@pytest.fixture(autouse=True)
def messages() -> None:
    """Messages on standard output, as the commands show them."""
    show_messages()


@pytest.fixture(scope="session", autouse=True)
def graph_mode() -> None:
    """Graph mode, as every entry script sets it; tests that never import MindSpore do not wait for it."""
    if "mindspore" in sys.modules:
        import mindspore

        mindspore.set_context(mode=mindspore.GRAPH_MODE)


@pytest.fixture(scope="session", autouse=True)
def garbage_before_compilation() -> Iterator[None]:
    """Collect the networks of earlier tests before a network compiles for the first time.

    MindSpore collects garbage after it has named a graph. Networks that go then take the name along, and the next call
    compiles the same graph again. Modules are left out of these collections, which takes most of their time away.
    """
    if "mindspore" not in sys.modules:
        yield
        return
    from mindspore.graph import api

    gc.freeze()
    compile_graph = api._CellGraphExecutor.compile

    def collect_and_compile(executor: Any, network: Any, *arguments: Any, **options: Any) -> Any:
        if not network.compile_cache:
            gc.collect()
        return compile_graph(executor, network, *arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(api._CellGraphExecutor, "compile", collect_and_compile)
        yield


@pytest.fixture(scope="module", autouse=True)
def no_graphs(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail tests that compile a graph, but in the files that scripts/test.sh gives a process of their own."""
    if request.path.name in HEAVY_FILES or "mindspore" not in sys.modules:
        yield
        return
    from mindspore.graph import api

    def refuse(*_: Any, **__: Any) -> None:
        pytest.fail(f"this test compiles a graph: add {request.path.name} to tests/heavy_files.txt")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(api._CellGraphExecutor, "compile", refuse)
        patch.setattr(api._JitExecutor, "compile", refuse)
        yield


@pytest.fixture(scope="session", autouse=True)
def layer_threads() -> Iterator[None]:
    """The operations of src/nn/native deal out shares to three threads, though a test file may have one core."""
    with pytest.MonkeyPatch.context() as patch:
        if "src.nn.native_operations" in sys.modules:
            patch.setattr("src.nn.native_operations.threads", lambda: 3)
        yield


@pytest.fixture(scope="session", autouse=True)
def draw_curves() -> Iterator[Any]:
    """Runs draw no curves and measure the device's speed once: both take longer than most trainings here.

    Yields what draws curves, for the tests that look at them.
    """
    if "src.training.trainer" not in sys.modules:
        yield None
        return
    from src.training import run_log, utilisation

    draw, measure = run_log.RunLog._draw, utilisation.matmul_flops_per_second
    speeds: dict[Any, float] = {}

    def measure_once(config: Any) -> float:
        key = config.compute_type, config.backend
        if key not in speeds:
            speeds[key] = measure(config)
        return speeds[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_log.RunLog, "_draw", lambda _, path: path.touch())
        patch.setattr(utilisation, "matmul_flops_per_second", measure_once)
        yield draw


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, draw_curves: Any) -> Path:
    """Folder of a small run of the loop that nothing interrupts, with its curves."""
    from src.training.run_log import RunLog
    from tests.helpers.numpy_loop import fit, make_config  # loads MindSpore, which most tests do without

    folder = tmp_path_factory.mktemp("undisturbed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunLog, "_draw", draw_curves)
        fit(make_config(folder))
    return folder


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a small classifier."""
    from tests.helpers.trained_folders import make_folder

    return make_folder(tmp_path_factory.mktemp("classifier") / "run", "classification")


@pytest.fixture(scope="module")
def classify(classifier: Path) -> Any:
    """Its predictor, with small batches."""
    from src.model_folder import ModelFolder

    return ModelFolder.load(classifier).predictor(batch_tokens=64)
