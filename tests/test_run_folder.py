"""A run's folder: one configuration, one live process, resumed until finished."""

import copy
import errno
import functools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from model_utils.errors import CheckpointError, ConfigError, UserError
from model_utils.schema import Config, leaves_of, load_config
from src.albert_config import AlbertConfig
from src.tasks.classification_examples import ClassifierConfig
from src.tasks.embedding_pairs import EmbeddingsConfig
from src.tasks.multiple_choice import RaceConfig
from src.tasks.question_answering import SquadConfig, SquadV2Config
from src.tasks.token_classification import NerConfig
from src.training.pretrain_config import PhaseConfig, PretrainConfig
from src.training.ranks import Ranks
from src.training.run_folder import RunFolder

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
    killed = tmp_path / "unfinished-albert-killed"
    killed.mkdir()
    (killed / "albert-3.ckpt").write_text("half")
    (killed / ".scratch-of-albert").touch()
    begin(tmp_path)
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert not killed.exists()


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
        (["--optimizer_cfg.optimizer", "Lamb"], r"optimizer_cfg\.optimizer is 'AdamWeightDecay' there and 'Lamb' here"),
        (["--albert_cfg.hidden_size", "120"], r"albert_cfg\.hidden_size is '\(absent\)' there and 120 here"),
        (["--data_dir", "/elsewhere"], "data_dir is '' there and '/elsewhere' here"),
    ],
)
def test_another_configuration_is_an_error(tmp_path: Path, words: list[str], sentence: str) -> None:
    begin(tmp_path)
    before = (tmp_path / "config.yaml").read_bytes()
    with pytest.raises(ConfigError, match=sentence), RunFolder(tmp_path, make_config(*words)):
        pytest.fail("opened")
    assert (tmp_path / "config.yaml").read_bytes() == before


# What an unfinished run may go on with although it differs; all else changes an update or which checkpoint is the best.
FREE = """
    albert_cfg.recompute device_target device_id threads compute_type fused_layers max_skipped_steps enable_data_sink
    data_sink_steps enable_save_ckpt save_checkpoint_steps save_checkpoint_minutes save_checkpoint_num
    log_steps report_to dry_run
""".split()
FREE_IN_PRETRAINING = "save_checkpoint_path eval_steps eval_data_dir eval_batches".split()
FREE_IN_FINETUNING = """
    save_finetune_checkpoint_path output_path feature_dir do_predict max_predict_samples test_file predict_json_path
    eval_batch_size eval_data_shuffle
""".split()


@pytest.mark.parametrize(
    "kind", [PretrainConfig, ClassifierConfig, RaceConfig, SquadConfig, SquadV2Config, NerConfig, EmbeddingsConfig]
)
def test_every_key_that_an_update_or_a_choice_depends_on_binds_a_run(kind: type[Config]) -> None:
    free = set(FREE + (FREE_IN_PRETRAINING if kind is PretrainConfig else FREE_IN_FINETUNING))
    lamb = ["--optimizer_cfg.optimizer", "Lamb", "--optimizer_cfg.Lamb.warmup_steps", "0"]
    config = load_config(kind, ["--config_path", os.devnull, *lamb])
    for key, _ in leaves_of(kind):
        changed = copy.deepcopy(config)
        *sections, name = key.split(".")
        owner = functools.reduce(getattr, sections, changed)
        value = getattr(AlbertConfig() if getattr(owner, name) is None else owner, name)
        other = (PhaseConfig(),) if key == "phases" else another(value)
        object.__setattr__(owner, name, other)  # past the checks of what belongs together
        unused = sections[:1] == ["optimizer_cfg"] and sections[1:] not in ([], ["Lamb"])
        assert (changed.resume_fingerprint() == config.resume_fingerprint()) == (key in free or unused), key


def another(value: Any) -> Any:
    match value:
        case bool():
            return not value
        case str() | tuple():
            return value + type(value)("x")
        case dict():
            return {"epoch_num": (1,)}
        case _:
            return value + 1


def test_the_same_place_may_be_spelt_in_another_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "data")
    begin(tmp_path / "run", "--data_dir", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    for spelling in ("data", "./data/", f"{tmp_path}/run/../data", "link"):
        begin(tmp_path / "run", "--data_dir", spelling)
        monkeypatch.chdir(tmp_path / "run")
        begin(tmp_path / "run", "--data_dir", str(tmp_path / "data"))
        monkeypatch.chdir(tmp_path)


def test_a_link_in_the_old_place_serves_a_moved_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "old/data").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "old")
    begin(tmp_path / "old/run", "--data_dir", "data")
    (tmp_path / "old").rename(tmp_path / "new")
    monkeypatch.chdir(tmp_path / "new")
    with pytest.raises(ConfigError, match=r"data_dir is "):
        begin(tmp_path / "new/run", "--data_dir", "data")
    (tmp_path / "old").symlink_to(tmp_path / "new")
    begin(tmp_path / "new/run", "--data_dir", "data")


def test_another_phase_is_refused_by_its_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    phases = "[{share: 0.5, data_dir: data}, {share: 0.5, batch_size: 8}]"
    monkeypatch.chdir(tmp_path)
    begin(tmp_path / "run", "--phases", phases)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    begin(tmp_path / "run", "--phases", phases.replace("data}", "../data}"))
    for change, sentence in (
        (phases.replace("data}", "../data}").replace("8", "4"), r"phases\[1\].batch_size is 8 there and 4 here"),
        (phases, r"phases\[0\].data_dir is '.*/data' there and '.*/elsewhere/data' here"),
        ("[]", r"phases\[0\].share is 0.5 there and '\(absent\)' here"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            begin(tmp_path / "run", "--phases", change)


def test_a_moved_folder_is_still_that_run(tmp_path: Path) -> None:
    begin(tmp_path / "old", "--save_checkpoint_path", str(tmp_path / "old"))
    (tmp_path / "old").rename(tmp_path / "new")
    begin(tmp_path / "new", "--save_checkpoint_path", str(tmp_path / "new"))
    words = ["--config_path", os.devnull, "--save_finetune_checkpoint_path"]
    with RunFolder(tmp_path / "tuned", load_config(NerConfig, [*words, str(tmp_path / "tuned")])) as run:
        run.begin(1)
    (tmp_path / "tuned").rename(tmp_path / "moved")
    with RunFolder(tmp_path / "moved", load_config(NerConfig, [*words, str(tmp_path / "moved")])) as run:
        assert run.begun


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("train_file: x.tsv", "cannot be resumed here: .*train_file is not a key"),
        ("seed: [", "cannot be resumed here: .*is not yaml"),
        ("seed: x", "cannot be resumed here: .*seed is 'x'"),
    ],
)
def test_another_kind_of_run_and_a_damaged_configuration_are_refused(tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(ConfigError, match=sentence), RunFolder(tmp_path, make_config()):
        pytest.fail("opened")


def test_checkpoints_without_a_configuration_are_no_run(tmp_path: Path) -> None:
    (tmp_path / "albert-5.ckpt").write_bytes(b"x")
    with pytest.raises(CheckpointError, match=r"no config\.yaml"), RunFolder(tmp_path, make_config()):
        pytest.fail("opened")


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("")
    with (
        pytest.raises(ConfigError, match=r"nothing can be written there: .*f: Not a directory"),
        RunFolder(tmp_path / "f", make_config()),
    ):
        pytest.fail("opened")


def test_a_finished_run_says_so(tmp_path: Path) -> None:
    with RunFolder(tmp_path, make_config()) as run:
        run.begin(1)
        run.finish({"step": 100, "loss": 1.5})
    assert json.loads((tmp_path / "train_results.json").read_text()) == {"step": 100, "loss": 1.5}
    with RunFolder(tmp_path, make_config()) as run:
        assert run.finished


def test_a_file_system_without_locks_is_no_live_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.lockf", refuse)
    sentence = f"{tmp_path}/.lock cannot be locked: No locks available; choose a folder on a local disk"
    with pytest.raises(UserError, match=sentence), RunFolder(tmp_path, make_config()):
        pytest.fail("opened")


def test_a_live_run_is_refused_until_its_process_is_gone(tmp_path: Path) -> None:
    program = f"""
import os, sys, time
sys.path.insert(0, {str(ROOT)!r})
from src.training.pretrain_config import PretrainConfig
from model_utils.schema import load_config
from src.training.ranks import Ranks
from src.training.run_folder import RunFolder
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
    with RunFolder(tmp_path / "new", make_config(), Ranks(1, 2)) as run:
        run.begin(1)
        run.finish({})
    assert not (tmp_path / "new").exists()
