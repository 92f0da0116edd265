"""train_log.jsonl as a resumed run finds it."""

import subprocess
import sys
from pathlib import Path

import pytest

from model_utils.errors import DataError
from src.training.run_log import LOG_FILE, read_log


def test_damaged_lines_are_reported_and_the_others_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    lines = [
        b'{"step": 1, "loss": 2.5}',
        b'{"step": 2, "lo\xff',
        b'{"step": 3, "loss": null}',
        b"",
        b'{"loss": 1}',
        b'{"step": 4, "loss": "low"}',
        b"[" * 1000,
        b"5",
        b'{"step": 5, "loss": 1}',
        b'{"step": 9, "loss": 0.5}',
        b'{"step": 6, "lo',
    ]
    (tmp_path / LOG_FILE).write_bytes(b"\n".join(lines))
    assert [record["step"] for record in read_log(tmp_path, 6)] == [1, 3, 5]
    said = caplog.messages
    assert [int(sentence.split(": line ")[1].split()[0].rstrip(":")) for sentence in said] == [2, 4, 5, 6, 7, 8, 11]
    assert all(sentence.endswith("; passed over") for sentence in said)


def test_a_folder_in_its_place(tmp_path: Path) -> None:
    assert read_log(tmp_path, 1) == []
    (tmp_path / LOG_FILE).mkdir()
    with pytest.raises(DataError, match=r"train_log\.jsonl cannot be read: it is a folder"):
        read_log(tmp_path, 1)


def test_torch_is_not_loaded(tmp_path: Path) -> None:
    """Where it is installed tensorboardX would, for more than a second; who has loaded it keeps it."""
    code = f"""
import sys
from pathlib import Path
from src.training.run_log import RunLog
log = RunLog(Path({str(tmp_path)!r}), ("loss",), 9, 0, {{}})
assert "torch" not in sys.modules
sys.modules["torch"] = sys
del sys.modules["tensorboardX"]
RunLog(Path({str(tmp_path)!r}), ("loss",), 9, 0, {{}})
assert sys.modules["torch"] is sys
"""
    subprocess.run([sys.executable, "-c", code], check=True)
    assert list((tmp_path / "tensorboard").iterdir())
