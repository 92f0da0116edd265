"""train_log.jsonl as a resumed run finds it."""

import subprocess
import sys
from pathlib import Path

import pytest

from model_utils.errors import DataError
from src.training.event_file import EventFile
from src.training.run_log import LOG_FILE, RunLog, read_log
from tests.helpers.small_disk import no_file_beyond

ROOT = Path(__file__).parents[1]


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


def test_a_full_disk_is_an_error_where_it_is_met(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer in a thread would die unseen, and the run wait for it without end."""
    events = EventFile(tmp_path, 1)
    events.add_scalar("train/loss", 2.5, 1)
    events.flush()
    content = next(tmp_path.glob("events.out.tfevents.*")).read_bytes()
    assert b"train/loss" in content and b"brain.Event:2" in content

    def write(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tensorboardX.record_writer.RecordWriter.write", write)
    for number in range(100):
        with pytest.raises(OSError, match="No space left"):
            events.add_scalar("train/loss", 2.5, number)


def test_baselines_of_evaluations_are_not_those_of_training(tmp_path: Path) -> None:
    numbers = {"epoch": 1.0, "learning_rate": 0.1, "skipped_steps": 0, "examples_per_s": 1.0, "tokens_per_s": 1.0}
    record = {"step": 1, "loss": 0.5, "accuracy": 0.9, **numbers, "mfu": None, "eta_s": None, "eval_accuracy": 0.6}
    for name, training in (("accuracy", " (baseline 0.620)"), ("eval_accuracy", "")):
        log = RunLog(tmp_path, ("loss", "accuracy"), 9, 0, {name: {"baseline": 0.62}})
        first, second = log.sentence(record).split("\n")
        assert f"accuracy 0.9000{training}  lr" in first and second.endswith("accuracy 0.6000 (baseline 0.620)")
        log.close()


def test_a_run_of_hours_counts_no_updates_in_all(tmp_path: Path) -> None:
    numbers = {"epoch": 1.0, "learning_rate": 0.1, "skipped_steps": 0, "examples_per_s": 1.0, "tokens_per_s": 1.0}
    record = {"step": 500, "loss": 0.5, **numbers, "mfu": None, "eta_s": 60}
    for steps, begins in ((None, "step 500  epoch"), (900, "step 500/900  epoch")):
        log = RunLog(tmp_path, ("loss",), steps, 0, {})
        assert log.sentence(record).startswith(begins) and log.sentence(record).endswith("eta 0:01:00")
        log.close()


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
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
    assert list((tmp_path / "tensorboard").iterdir())


def test_a_log_that_finds_no_room_is_named(tmp_path: Path) -> None:
    numbers = {"epoch": 1.0, "learning_rate": 0.1, "skipped_steps": 0, "examples_per_s": 1.0, "tokens_per_s": 1.0}
    log = RunLog(tmp_path, ("loss",), 9, 0, {})
    with no_file_beyond(1), pytest.raises(OSError, match="too large") as caught:
        log.write({"step": 1, "loss": 0.5, **numbers, "mfu": None, "eta_s": None})
    assert caught.value.filename == str(tmp_path / "train_log.jsonl")
    log.close()


def test_an_event_file_that_finds_no_room_is_named(tmp_path: Path) -> None:
    events = EventFile(tmp_path / "tensorboard", 1)
    events.add_scalar("train/loss", 0.5, 1)
    with no_file_beyond(1), pytest.raises(OSError, match="too large") as caught:
        events.flush()
    assert caught.value.filename == str(tmp_path / "tensorboard")
    events.close()
