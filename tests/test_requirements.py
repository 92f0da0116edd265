"""Imports are direct dependencies in pyproject.toml, and requirements*.txt are what a resolver makes of those."""

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.conftest import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
DEPENDENCIES = {"": PROJECT["dependencies"], **PROJECT["optional-dependencies"]}  # by extra
DEV = ("", "test", "dev", "onnx")
FOLDERS = {"tests": ("", "test"), "benchmarks": DEV, "docs/experiments": DEV}  # elsewhere "" alone, but for:
EXTRAS = {
    "model_utils/remote_files.py": "scale",
    "scripts/run_tests.py": "test",
    "src/conversion/google_checkpoint.py": "convert",
    "src/conversion/torch_weights.py": "dev",
    "src/data/dask_cluster.py": "scale",
    "src/inference/exported_model.py": "onnx",
    "src/inference/onnx_graph.py": "onnx",
    "src/pretraining_data/word_segmenter.py": "chinese",
    "src/text/arrow_tables.py": "arrow",
}
PACKAGES = {
    "google.protobuf": "protobuf",
    "ruamel": "ruamel-yaml",
    "sklearn": "scikit-learn",
    "tensorflow": "tensorflow-cpu",
}
FILES = sorted(path.name for path in ROOT.glob("requirements*.txt"))


def normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def packages(extra: str) -> set[str]:
    return {requirement.partition("==")[0] for requirement in DEPENDENCIES[extra]}


def pins(file: str) -> dict[str, str]:
    """Version by package."""
    return dict(re.findall(r"^([\w.-]+)==(\S+)", (ROOT / file).read_text("utf-8"), re.MULTILINE))


def extras_of_folder(file: str) -> tuple[str, ...]:
    return next((extras for folder, extras in FOLDERS.items() if file.startswith(f"{folder}/")), ("",))


@pytest.fixture(scope="module")
def imports() -> dict[str, set[str]]:
    """The packages of other projects that each tracked module imports."""
    listed = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, check=True, capture_output=True, text=True)
    files = [Path(file) for file in listed.stdout.splitlines()]
    known = {file.parts[0].removesuffix(".py") for file in files} | sys.stdlib_module_names
    found = {}
    for file in files:
        modules: set[str] = set()
        for node in ast.walk(ast.parse((ROOT / file).read_text("utf-8"), str(file))):
            if isinstance(node, ast.Import):
                modules |= {each.name for each in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                modules.add(node.module)
            elif file.parts[0] != "tests" and isinstance(node, ast.Call) and getattr(node.func, "id", "") == "require":
                modules.add(node.args[0].value)
        tops = {".".join(name.split(".")[: 1 + name.startswith("google.")]) for name in modules}
        found[str(file)] = {PACKAGES.get(top, normalised(top)) for top in tops - known}
    return found


def test_every_import_is_a_direct_dependency(imports: dict[str, set[str]]) -> None:
    for file, imported in imports.items():
        extras = (*extras_of_folder(file), EXTRAS.get(file, ""))
        assert imported - set().union(*map(packages, extras)) == set(), file


def test_every_direct_dependency_is_imported(imports: dict[str, set[str]]) -> None:
    used = set().union(*(imported for file, imported in imports.items() if extras_of_folder(file) == ("",)))
    assert packages("") - used == set()


@pytest.mark.parametrize("file", FILES)
def test_a_file_on_top_of_requirements_txt_changes_nothing_of_it(file: str) -> None:
    assert pins("requirements.txt").items() <= pins(file).items()


def test_a_package_has_one_version() -> None:
    versions = {pin for file in FILES for pin in pins(file).items()}
    assert len(versions) == len(dict(versions))


def test_a_resolver_makes_these_files_for_every_python(tmp_path: Path) -> None:
    """Each file names all that its packages need, in versions that bear each other."""
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts")
    for name in ("pyproject.toml", *FILES):
        shutil.copy(ROOT / name, tmp_path)
    environment = os.environ | {"PATH": f"{sys.prefix}/bin:{os.environ['PATH']}", "UV_HTTP_RETRIES": "0"}
    command = ["bash", "scripts/lock.sh"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    if "Failed to fetch" in done.stderr:
        pytest.skip("needs the package index, which does not answer")
    assert done.returncode == 0, done.stdout + done.stderr
    for file in FILES:
        assert (tmp_path / file).read_text("utf-8") == (ROOT / file).read_text("utf-8")
