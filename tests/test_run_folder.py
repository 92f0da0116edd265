"""A run's folder: one configuration, one live process, resumed until finished."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from model_utils.config import PretrainConfig, load_config
from model_utils.errors import CheckpointError, ConfigError, UserError
from src.run_folder import RunFolder

ROOT = Path(__file__).parents[1]


def make_config(*words: str) -> PretrainConfig:
    return load_config(PretrainConfig, ["--config_path", os.devnull, "--train_steps", "100", *words])


def begin(folder: Path, *words: str) -> None:
    with RunFolder(folder, make_config(*words)) as run:
        run.begin(needed_bytes=1)


def test_a_new_folder_is_made_and_bound_when_work_starts(tmp_path: Path) -> None:
    with RunFolder(tmp_path / "a" / "b", make_config()) as run:
        assert not run.finished
        assert not (run.path / "config.yaml").exists()
    with RunFolder(tmp_path / "a" / "b", make_config("--train_steps", "7")) as run:
        run.begin(1)
        assert "train_steps: 7" in (run.path / "config.yaml").read_text()


def test_files_of_others_stay(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "unfinished-1-albert-3.ckpt").write_text("half")
    begin(tmp_path)
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert not (tmp_path / "unfinished-1-albert-3.ckpt").exists()


def test_the_same_configuration_goes_on(tmp_path: Path) -> None:
    begin(tmp_path)
    begin(
        tmp_path, "--log_steps", "3", "--device_id", "1", "--save_checkpoint_steps", "9", "--save_checkpoint_num", "3"
    )
    assert "log_steps: 3" in (tmp_path / "config.yaml").read_text()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--train_steps", "200"], "train_steps is 100 there and 200 here"),
        (["--seed", "77"], "seed is .* there and 77 here"),
        (["--optimizer_cfg.Lamb.learning_rate", "0.125"], r"optimizer_cfg\.Lamb\.learning_rate is .* there and 0\.125"),
    ],
)
def test_another_configuration_is_an_error(tmp_path: Path, words: list[str], sentence: str) -> None:
    begin(tmp_path)
    before = (tmp_path / "config.yaml").read_bytes()
    with pytest.raises(ConfigError, match=sentence), RunFolder(tmp_path, make_config(*words)):
        pytest.fail("opened")
    assert (tmp_path / "config.yaml").read_bytes() == before


def test_checkpoints_without_a_configuration_are_no_run(tmp_path: Path) -> None:
    (tmp_path / "albert-5.ckpt").write_bytes(b"x")
    with pytest.raises(CheckpointError, match=r"no config\.yaml"), RunFolder(tmp_path, make_config()):
        pytest.fail("opened")


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("")
    with pytest.raises(ConfigError, match="is a file, a folder is needed"), RunFolder(tmp_path / "f", make_config()):
        pytest.fail("opened")


def test_a_finished_run_says_so(tmp_path: Path) -> None:
    with RunFolder(tmp_path, make_config()) as run:
        run.begin(1)
        run.finish({"step": 100, "loss": 1.5})
    assert json.loads((tmp_path / "train_results.json").read_text()) == {"step": 100, "loss": 1.5}
    with RunFolder(tmp_path, make_config()) as run:
        assert run.finished


def test_a_live_run_is_refused_until_its_process_is_gone(tmp_path: Path) -> None:
    program = f"""
import os, sys, time
sys.path.insert(0, {str(ROOT)!r})
from model_utils.config import PretrainConfig, load_config
from src.run_folder import RunFolder
config = load_config(PretrainConfig, ["--config_path", os.devnull, "--train_steps", "100"])
with RunFolder({str(tmp_path)!r}, config) as run:
    run.begin(1)
    if os.fork() == 0:  # a data worker that outlives its parent
        time.sleep(60)
    print("open", flush=True)
    time.sleep(60)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        assert process.stdout.readline() == "open\n"
        with pytest.raises(UserError, match=f"live: process {process.pid};"), RunFolder(tmp_path, make_config()):
            pytest.fail("opened")
        process.kill()
        process.wait()
        with RunFolder(tmp_path, make_config()) as run:
            assert not run.finished
            assert (tmp_path / ".lock").read_text().split() == [str(os.getpid())]
    finally:
        os.killpg(process.pid, signal.SIGKILL)


def test_ranks_that_do_not_write_leave_the_folder_alone(tmp_path: Path) -> None:
    with RunFolder(tmp_path / "new", make_config(), writer=False) as run:
        run.begin(1)
        run.finish({})
    assert not (tmp_path / "new").exists()
