"""Everything that the project imports is a direct dependency of the requirements file of the code that imports it."""

import ast
import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.conftest import ROOT

RUN, TEST, DEV = "requirements.txt", "requirements-test.txt", "requirements-dev.txt"
FILES = sorted(path.name for path in ROOT.glob("requirements*.txt"))
FOLDERS = {"tests": (RUN, TEST), "benchmarks": (RUN, TEST, DEV)}  # elsewhere the first alone, but for:
EXTRAS = {"src/conversion/google_checkpoint.py": "requirements-convert.txt", "src/conversion/torch_weights.py": DEV}
PACKAGES = {
    "google.protobuf": "protobuf",
    "ruamel": "ruamel-yaml",
    "sklearn": "scikit-learn",
    "tensorflow": "tensorflow-cpu",
}
PULLED_IN = "# What those pull in"


def pins(file: str, pulled_in: bool = False) -> dict[str, str]:
    """Version by package, of the direct dependencies or of what those pull in."""
    direct, _, rest = (ROOT / file).read_text("utf-8").partition(PULLED_IN)
    found = re.findall(r"^([\w.-]+)==(\S+)", rest if pulled_in else direct, re.MULTILINE)
    return {normalised(name): version for name, version in found}


def normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def applied_pins(file: str) -> dict[str, str]:
    """Version by package of a file and of those that it includes (-r) or is bound by (-c)."""
    versions = pins(file) | pins(file, pulled_in=True)
    for name in re.findall(r"^-[rc] (\S+)", (ROOT / file).read_text("utf-8"), re.MULTILINE):
        versions |= applied_pins(name)
    return versions


def dependencies(package: str) -> list[Requirement]:
    """Return what an installed package requires here, extras aside; nothing for one that is not installed."""
    try:
        lines = importlib.metadata.requires(package) or []
    except importlib.metadata.PackageNotFoundError:
        return []
    requirements = [Requirement(line) for line in lines]
    return [each for each in requirements if each.marker is None or each.marker.evaluate({"extra": ""})]


def unmet(package: str, versions: dict[str, str]) -> list[str]:
    """Return the requirements of a package that a list of pins leaves open or contradicts."""
    result = []
    for requirement in dependencies(package):
        version = versions.get(normalised(requirement.name))
        fixed_by_package = str(requirement.specifier).startswith("==")  # as torch fixes its CUDA libraries
        if not (requirement.specifier.contains(version, prereleases=True) if version else fixed_by_package):
            result.append(f"{package}: {requirement}")
    return result


@pytest.mark.parametrize("file", FILES)
def test_every_requirement_of_a_pinned_package_is_pinned(file: str) -> None:
    """Otherwise a fresh installation takes its newest release, which may need what another package does not bear."""
    versions = applied_pins(file)
    assert [line for package in pins(file) | pins(file, pulled_in=True) for line in unmet(package, versions)] == []


@pytest.mark.parametrize("version", [None, "0.0.1"])
def test_a_pin_that_is_missing_or_unfit_is_found(version: str | None) -> None:
    versions = {name: pin for name, pin in applied_pins(TEST).items() if name != "pluggy"}
    if version:
        versions["pluggy"] = version
    assert len(unmet("pytest", versions)) == 1


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
