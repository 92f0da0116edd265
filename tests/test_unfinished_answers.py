"""Unfinished answers: what the next run goes on behind, what it does not, and what stays."""

import fcntl
import logging
import os
from pathlib import Path

import pytest

from model_utils.errors import DataError
from src.inference.record_files import write_records
from src.inference.unfinished_answers import fingerprint_of
from src.text.text_tables import read_table

FIRST, OTHER = "0123456789abcdef", "f" * 16
RECORDS = [
    {"text_a": "é\u2028\r", "score": 0.1, "probabilities": {"good": 1e-7}},
    {"id": None, "line": 2, "error": "blank"},
    {"text_a": "", "more": [1, 2**70], "label": None},
    {"text_a": "x", "truncated": True},
    {"text_a": "y"},
]


def finish(
    output: Path, fingerprint: str = FIRST, count: int = len(RECORDS), is_stopped: bool = False
) -> tuple[int, int]:
    """Write the other records, or stop behind some; return how many were taken over, and errors in them."""
    with write_records(str(output), fingerprint, 2) as answers:
        taken = answers.count, answers.failed
        for record in RECORDS[answers.count : count]:
            answers.write(record)
        if is_stopped:
            raise KeyboardInterrupt
    return taken


def interrupt(output: Path, count: int, fingerprint: str = FIRST) -> None:
    with pytest.raises(KeyboardInterrupt):
        finish(output, fingerprint, count, is_stopped=True)


@pytest.mark.parametrize("ending", ["jsonl", "txt", "csv", "tsv", "xlsx"])
def test_every_format_is_as_without_an_interruption(tmp_path: Path, ending: str) -> None:
    output = tmp_path / f"out.{ending}"
    assert finish(tmp_path / f"whole.{ending}") == (0, 0)
    interrupt(output, 3)
    interrupt(output, 4)
    assert finish(output) == (4, 1)
    if ending == "xlsx":  # holds the time
        names = read_table(output).names
        assert list(read_table(output).select(names)) == list(read_table(tmp_path / "whole.xlsx").select(names))
    else:
        assert output.read_bytes() == (tmp_path / f"whole.{ending}").read_bytes()
    assert len(list(tmp_path.iterdir())) == 2 and output.stat().st_mode == (tmp_path / f"whole.{ending}").stat().st_mode


DAMAGES = [b"", b'{"text_a": "half', b'{"whole": 1}', b"\0" * 4096, b"7\n{}\n", b"\xff\n", b"\n"]


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_lines_are_written_again(tmp_path: Path, damage: bytes) -> None:
    finish(tmp_path / "whole")
    interrupt(tmp_path / "out", 4)
    (unfinished,) = tmp_path.glob("out.*")
    unfinished.write_bytes(unfinished.read_bytes() + damage)
    assert finish(tmp_path / "out") == (4, 1)
    assert (tmp_path / "out").read_bytes() == (tmp_path / "whole").read_bytes()
    interrupt(tmp_path / "out", 3)  # a finished output stays until the next one is
    unfinished.write_bytes(damage + unfinished.read_bytes())
    assert finish(tmp_path / "out") == ((2, 1) if not damage else (0, 0))
    assert (tmp_path / "out").read_bytes() == (tmp_path / "whole").read_bytes()


@pytest.mark.parametrize(("count", "fingerprint"), [(1, FIRST), (4, "")])
def test_what_nothing_can_go_on_behind_is_removed(tmp_path: Path, count: int, fingerprint: str) -> None:
    interrupt(tmp_path / "out.jsonl", count, fingerprint)
    assert not list(tmp_path.iterdir())


def test_answers_of_another_run_are_removed_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """But not those of another output."""
    for name in ("out", "out.jsonl", "out.b", "[o]ut"):
        interrupt(tmp_path / name, 4)
    assert finish(tmp_path / "out", OTHER) == (0, 0)
    (warning,) = (record.getMessage() for record in caplog.records if record.levelno == logging.WARNING)
    assert warning.startswith(f"{tmp_path}/out.{FIRST}.unfinished is removed")
    assert {path.name for path in tmp_path.glob("*.unfinished")} == {
        f"{name}.{FIRST}.unfinished" for name in ("out.jsonl", "out.b", "[o]ut")
    }


@pytest.mark.parametrize("fingerprint", [FIRST, OTHER])
def test_two_processes_do_not_write_the_same_output(tmp_path: Path, fingerprint: str) -> None:
    interrupt(tmp_path / "out", 4)
    (unfinished,) = tmp_path.iterdir()
    before = unfinished.read_bytes()
    with unfinished.open() as elsewhere:
        fcntl.flock(elsewhere, fcntl.LOCK_EX)
        with pytest.raises(DataError, match="another process"):
            finish(tmp_path / "out", fingerprint)
    assert unfinished.read_bytes() == before
    assert finish(tmp_path / "out") == (4, 1)


def test_a_link_in_its_place_is_refused_and_stays(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("all")
    (tmp_path / f"out.{FIRST}.unfinished").symlink_to("precious")
    with pytest.raises(DataError, match="out cannot be written"):
        finish(tmp_path / "out")
    assert (tmp_path / "precious").read_text() == "all"


def test_longest_names_and_links_as_outputs(tmp_path: Path) -> None:
    output = tmp_path / ("好" * 85)
    (tmp_path / "link").symlink_to(output)
    interrupt(output, 4)
    assert finish(tmp_path / "link") == (4, 1)
    assert len(output.read_text(encoding="utf-8").split("\n")) == 6 and (tmp_path / "link").is_symlink()


def test_a_fingerprint_is_of_contents_and_settings(tmp_path: Path) -> None:
    file, folder = tmp_path / "a.jsonl", tmp_path / "saved"
    folder.mkdir()
    for path in (file, folder / "data.arrow"):
        path.write_text("a")
    files = [str(file), "", str(folder)]
    assert fingerprint_of([*files, "-"], "options") == ""
    first = fingerprint_of(files, "options")
    os.utime(file, (0, 0))
    assert first == fingerprint_of(files, "options") != fingerprint_of(files, "others")
    for path in (file, folder / "data.arrow"):
        path.write_text("b")
        assert fingerprint_of(files, "options") != first
        path.write_text("a")
    (folder / "b").mkdir()
    assert fingerprint_of(files, "options") == first
