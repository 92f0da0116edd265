"""The notebooks run from top to bottom, and what they show is true."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
FACTS = """
assert results["accuracy"] > results["baselines"]["accuracy"]
assert [answer["label"] for answer in answers] == ["good", "bad"]
ours, theirs = (model.predict([{"text": "a"}])[0]["probabilities"] for model in (exported, predictor))
assert ours.keys() == theirs.keys() == {"good", "bad"}
assert all(abs(ours[label] - theirs[label]) < 1e-5 for label in ours)
"""


def code_of(notebook: Path) -> str:
    cells = json.loads(notebook.read_text("utf-8"))["cells"]
    return "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.name)
def test_notebooks_are_kept_without_outputs(notebook: Path) -> None:
    cells = json.loads(notebook.read_text("utf-8"))["cells"]
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in cells)


def test_first_answers(tmp_path: Path) -> None:
    code = code_of(ROOT / "notebooks/first-answers.ipynb") + FACTS
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT / "notebooks",
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
