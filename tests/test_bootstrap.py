"""The environment of the scripts: one installation at a time, wherever the project lies."""

import errno
import fcntl
import io

import pytest

from scripts import bootstrap


@pytest.mark.parametrize("fault", [None, "folder", "lock"])
def test_installations_wait_for_each_other_where_that_can_be(fault, tmp_path, monkeypatch) -> None:
    """NFS locks no file that is open for reading alone, and a project may lie where nobody may write."""
    locked, installed = [], []

    def lock(file: io.TextIOWrapper, how: int) -> None:
        locked.append((file.name, file.writable(), how))
        if fault == "lock":
            raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(bootstrap, "LOCK", tmp_path / ("none/lock" if fault == "folder" else "lock"))
    monkeypatch.setattr(bootstrap.fcntl, "flock", lock)
    monkeypatch.setattr(bootstrap, "usable", lambda: True)
    monkeypatch.setattr(bootstrap, "install", installed.append)
    monkeypatch.setattr(bootstrap.sys, "argv", ["bootstrap.py", "requirements.txt"])
    bootstrap.main()
    assert installed == [["requirements.txt"]]
    assert locked == ([] if fault == "folder" else [(str(tmp_path / "lock"), True, fcntl.LOCK_EX)])
