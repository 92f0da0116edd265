"""Everything that the project imports is a direct dependency of the requirements file of the code that imports it."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

RUN, TEST, DEV = "requirements.txt", "requirements-test.txt", "requirements-dev.txt"
FILES = sorted(path.name for path in ROOT.glob("requirements*.txt"))
FOLDERS = {"tests": (RUN, TEST), "benchmarks": (RUN, TEST, DEV)}  # elsewhere the first alone, but for:
EXTRAS = {"src/conversion/google_checkpoint.py": "requirements-convert.txt", "src/conversion/torch_weights.py": DEV}
PACKAGES = {"google.protobuf": "protobuf", "sklearn": "scikit-learn", "tensorflow": "tensorflow-cpu", "yaml": "pyyaml"}
PULLED_IN = "# What those pull in"


def pins(file: str, pulled_in: bool = False) -> dict[str, str]:
    """Version by package, of the direct dependencies or of what those pull in."""
    direct, _, rest = (ROOT / file).read_text("utf-8").partition(PULLED_IN)
    found = re.findall(r"^([\w.-]+)==(\S+)", rest if pulled_in else direct, re.MULTILINE)
    return {normalised(name): version for name, version in found}


def normalised(name: str) -> str:
    return name.lower().replace("_", "-")


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
        tops = {".".join(name.split(".")[: 1 + name.startswith("google.")]) for name in modules}
        found[str(file)] = {PACKAGES.get(top, normalised(top)) for top in tops - known}
    return found


def test_every_import_is_a_direct_dependency(imports: dict[str, set[str]]) -> None:
    for file, packages in imports.items():
        files = (*FOLDERS.get(Path(file).parts[0], (RUN,)), EXTRAS.get(file, RUN))
        assert packages - {name for each in files for name in pins(each)} == set(), file


def test_every_direct_dependency_is_imported(imports: dict[str, set[str]]) -> None:
    used = set().union(*(packages for file, packages in imports.items() if Path(file).parts[0] not in FOLDERS))
    assert pins(RUN).keys() - used == set()


def test_a_package_has_one_version() -> None:
    versions: dict[str, set[str]] = {}
    for file in FILES:
        assert pins(file).keys().isdisjoint(pins(file, pulled_in=True)), file
        for name, version in (pins(file) | pins(file, pulled_in=True)).items():
            versions.setdefault(name, set()).add(version)
    assert {name for name, found in versions.items() if len(found) > 1} == set()
