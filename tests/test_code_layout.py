"""How the code is laid out: what tests share, how long entry scripts are, what modules are called and import.

Which packages may import from which: pyproject.toml, import-linter.
"""

import ast
import importlib
import re
from collections import Counter
from graphlib import TopologicalSorter

import grimp
import pytest

from tests.conftest import ROOT

MODULES = [file for package in ("src", "model_utils") for file in sorted((ROOT / package).rglob("*.py"))]


def test_no_test_module_imports_another() -> None:
    """Test files share tests/helpers/ and conftest.py alone."""
    for file in (ROOT / "tests").rglob("*.py"):
        assert "from tests" + ".test_" not in file.read_text("utf-8"), file


@pytest.mark.parametrize("script", sorted(ROOT.glob("*.py")), ids=lambda script: script.name)
def test_entry_scripts_are_short(script) -> None:
    assert len(script.read_text("utf-8").splitlines()) <= 85
    assert ast.get_docstring(ast.parse(script.read_text("utf-8")))


def test_no_docstring_begins_with_a_subordinate_clause() -> None:
    """`Return the shape`, not `What shape`."""
    beginning = re.compile(r'"""(What|Whether|As|Of|The same)\b')
    folders = ("src", "model_utils", "tests", "benchmarks", "scripts")
    files = [*ROOT.glob("*.py"), *(file for folder in folders for file in (ROOT / folder).rglob("*.py"))]
    assert [file for file in files if beginning.search(file.read_text("utf-8"))] == []


def test_no_two_modules_have_the_same_name() -> None:
    names = Counter(file.stem for file in MODULES if file.stem != "__init__")
    assert [name for name, count in names.items() if count > 1] == []


def test_no_module_imports_itself_by_way_of_others() -> None:
    graph = grimp.build_graph("src", "model_utils", cache_dir=None)
    TopologicalSorter({name: graph.find_modules_directly_imported_by(name) for name in graph.modules}).prepare()


def test_what_the_image_copies_is_not_kept_from_docker() -> None:
    copied = re.findall(r"^COPY (.+) \S+$", (ROOT / "deploy/Dockerfile").read_text("utf-8"), re.MULTILINE)
    ignored = (ROOT / "deploy/Dockerfile.dockerignore").read_text("utf-8").splitlines()
    assert {f"!{name}" for names in copied for name in names.split()} == {line for line in ignored if line[0] == "!"}


def test_every_module_says_what_it_holds() -> None:
    assert [
        file
        for file in MODULES
        if file.read_text("utf-8") and not ast.get_docstring(ast.parse(file.read_text("utf-8")))
    ] == []


def test_the_map_has_every_folder() -> None:
    text = (ROOT / "docs/architecture.md").read_text("utf-8")
    folders = {f"{file.parent.relative_to(ROOT)}/" for file in MODULES}
    assert [folder for folder in folders - {"src/", "src/inference/server/"} if f"`{folder}`" not in text] == []


@pytest.mark.parametrize("document", [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")], ids=lambda file: file.name)
def test_documents_name_files_that_exist(document) -> None:
    named = re.findall(
        r"\b((?:src|model_utils|tests|benchmarks|scripts)/[a-z0-9_/]+\.(?:py|sh))", document.read_text("utf-8")
    )
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_the_page_of_options_is_up_to_date(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs")
    writer = importlib.import_module("write_configuration")
    assert writer.PAGE.read_text("utf-8") == writer.page()
