"""Commands of the documents and of quickstart.sh: bash splits them into words, their programs must have the options."""

import importlib
import inspect
import re
import subprocess
from pathlib import Path

import pytest

from model_utils.schema import Config, load_config
from tests.conftest import ROOT

DOCUMENTS = [ROOT / "README.md", ROOT / "README_CN.md", *sorted((ROOT / "docs").glob("*.md"))]
QUICKSTART = ROOT / "scripts/quickstart.sh"
BLOCK = re.compile(r"(?<=\n\n)(?: {4,}.*\n)+")
# In a sentence, or a table.
INLINE = re.compile(
    r"(?:`python |\| `|; `|；`)((?:-m |\w+\.py )(?:[^`]* )?(?!--)[^\s`]+)`"
)  # in a sentence, or a table
LINE = re.compile(r"^ *(?:.*\| |if .*; then )?python (?:-m |\w+\S*\.py)", re.MULTILINE)
# In place of python, which writes its words on descriptor 3, and of scripts/env.sh.
STAND_IN = """
python() { printf '%s\\0' "$@" $'\\n' >&3; }
realpath() { echo "${@: -1}"; }
show_usage() { :; }
prepare_environment() { :; }
PROJECT=$PWD
"""


def scripts_of(file: Path) -> list[str]:
    """Return the words that a reader hands to bash, without those that only name an option."""
    text = file.read_text(encoding="utf-8")
    if file == QUICKSTART:
        return [text.replace('. "$(dirname "${BASH_SOURCE[0]}")/env.sh"', "")]
    return [*BLOCK.findall(text), *("python " + command.replace("\n", " ") for command in INLINE.findall(text))]


def commands_of(script: str, folder: Path) -> list[list[str]]:
    """The words of every `python` that bash comes to, where there are no other programs; not of python's own code."""
    words, command = folder / "words", ["/bin/bash", "-c", f"exec 3>words\n{STAND_IN}\n{script}".encode()]
    words.touch()
    subprocess.run(command, cwd=folder, env={"PATH": "/nowhere"}, capture_output=True, check=False)
    commands = [line.split("\0")[:-1] for line in words.read_text(encoding="utf-8").split("\n\0")[:-1]]
    return [words for words in commands if words[0] not in ("-", "-c")]


def kind_of(module: str) -> type[Config]:
    """The configuration that a program's run_main takes."""
    program = importlib.import_module(module)
    return getattr(program, re.search(r"run_main\(main, (\w+)", inspect.getsource(program))[1])


@pytest.mark.parametrize("file", [*DOCUMENTS, QUICKSTART], ids=lambda file: file.name)
def test_the_programs_have_these_options(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)  # of --config_path recipes/NAME.yaml
    commands = [words for script in scripts_of(file) for words in commands_of(script, tmp_path)]
    assert len(commands) >= len(LINE.findall(file.read_text(encoding="utf-8")))
    for program, *words in commands:
        module = words.pop(0) if program == "-m" else program.removesuffix(".py")
        load_config(kind_of(module), [word for word in words if word not in ("--help", "...")])
