"""Ranks that meet, with named time-outs; two of them pre-train as one, whoever of them is slow."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import run_classifier
import run_pretrain
from model_utils.device import Device
from model_utils.errors import UserError
from model_utils.rendezvous import ADDRESS, KEY, LAUNCHER, Rendezvous, RendezvousServer
from model_utils.schema import load_config
from src.checkpoints.checkpoint_files import find_checkpoint
from src.tasks.classification_examples import ClassifierConfig
from src.training.ranks import Ranks, ranks_of
from src.training.trainer import Trainer
from tests.conftest import ROOT
from tests.helpers.classifier_run import classifier_arguments, predicted_labels, write_classifier_data
from tests.helpers.pretraining_run import (
    SHORT_RUN,
    assert_logs_of_ranks_and_one_agree,
    config_of,
    flags_of,
    write_pretraining_data,
)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pretraining_data(tmp_path_factory.mktemp("data"))


# --- meetings ---


def together(size: int, act: Callable[[Ranks], Any]) -> list[Any]:
    """Return what `act` returns in each of several ranks, which are threads here."""
    rendezvous = Rendezvous(size)
    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(lambda rank: act(Ranks(rank, size, rendezvous, wait_minutes=0.5)), range(size)))


def test_every_rank_learns_what_all_say() -> None:
    def act(ranks: Ranks) -> list[list[int]]:
        answers = []
        for meeting in range(200):
            if ranks.rank == meeting % 3:
                time.sleep(0.001)
            answers.append(ranks.gather((ranks.rank + 1) * meeting, "a meeting"))
        return answers

    for answers in together(3, act):
        assert answers == [[meeting, 2 * meeting, 3 * meeting] for meeting in range(200)]


def test_a_sum_is_the_same_on_every_rank() -> None:
    terms = np.random.default_rng(0).standard_normal((3, 50))
    sums = together(3, lambda ranks: ranks.sum(terms[ranks.rank], "a sum"))
    assert all((each == sums[0]).all() for each in sums)
    np.testing.assert_allclose(sums[0], terms.sum(0), rtol=1e-12)
    assert (Ranks().sum(terms[0], "a sum") == terms[0]).all()


def test_who_waits_in_vain_says_for_whom_for_what_and_how_long() -> None:
    with pytest.raises(UserError, match=r"rank 1 did not reach the features within 0\.001 minutes"):
        Ranks(0, 2, Rendezvous(2), wait_minutes=0.001).wait("the features")
    rendezvous = Rendezvous(2)
    threading.Timer(0.2, rendezvous.report, (0, {1: "no room"})).start()
    with pytest.raises(UserError, match="rank 1 has ended while this one waited for it at the features"):
        Ranks(0, 2, rendezvous).wait("the features")


def test_a_process_has_one_group(monkeypatch: pytest.MonkeyPatch) -> None:
    server = RendezvousServer(Rendezvous(2), ("127.0.0.1", 0), b"key")
    monkeypatch.setenv(ADDRESS, f"127.0.0.1:{server.address[1]}")
    monkeypatch.setenv(KEY, "key")
    monkeypatch.setenv(LAUNCHER, "0")
    groups = [ranks_of(Device("CPU", "float32", rank=1, rank_size=2)) for _ in range(2)]
    ranks_of.cache_clear()
    assert groups[0] is groups[1]


def test_ranks_that_differ_are_named() -> None:
    def act(ranks: Ranks) -> str:
        with pytest.raises(UserError) as error:
            ranks.must_agree({"rows": 20, "seed": 1 + ranks.rank // 2}, "what they train on")
        return str(error.value)

    sentence = "the ranks differ in what they train on: seed is 1 on rank 0 and 2 on rank 2; give all"
    assert all(answer.startswith(sentence) for answer in together(3, act))


# --- two ranks pre-train ---

DISTURBED = f"""
import os, signal, sys, time
sys.path.insert(0, {str(ROOT)!r})
import run_pretrain
from src.training.pretrain_config import PretrainConfig
from model_utils.config import run_main
from src.pretraining import pretraining

from src.training import checkpoint, trainer

rank, start = int(os.environ["RANK_ID"]), trainer.Trainer.start
disturbed = sys.argv.pop(1)


def delay(owner, name, seconds):  # the first call of a function
    function = getattr(owner, name)

    def slow(*arguments):
        time.sleep(seconds)
        setattr(owner, name, function)
        return function(*arguments)

    setattr(owner, name, slow)


def start_and_be_stopped(self, micro_batches):
    if self.state.step == 4 and rank == 0:
        os.kill(os.getppid(), signal.SIGTERM)
        time.sleep(1)
    start(self, micro_batches)


trainer.SYNC_SECONDS = 0.0  # after each update, so that the tests know at which one a run stops
LONG = 33  # s; a CPU's collective ends the job after 30
if disturbed in ("evaluation", "compilation", "checkpoint"):
    trainer.Trainer.start = start_and_be_stopped
    delay(checkpoint, "save_checkpoint", LONG if disturbed == "checkpoint" else 5)
if disturbed == "evaluation" and rank == 1:
    delay(pretraining, "evaluate", LONG)
if disturbed == "compilation" and rank == 0:
    delay(trainer.TrainStep, "compile_for", LONG)
run_main(run_pretrain.main, PretrainConfig)
"""
PHASES = "[{share: 0.75, global_batch_size: 16}, {share: 0.25, global_batch_size: 32}]"
LENGTH = SHORT_RUN | {"phases": PHASES}


def start_two(folder: Path, script: str, words: list[str]) -> subprocess.CompletedProcess:
    """Run a script of this text in two ranks."""
    file, logs = folder / "script.py", folder / "logs"
    file.write_text(script)
    command = [sys.executable, ROOT / "scripts/launch.py", "2", logs, file, *words]
    environment = os.environ | {"GLOG_v": "3"}
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


@pytest.mark.parametrize(
    ("slow", "saved"),
    [
        ("evaluation", {}),
        pytest.param("compilation", {}, marks=pytest.mark.slow),
        pytest.param("checkpoint", {"save_checkpoint_steps": 2}, marks=pytest.mark.slow),
    ],
)
def test_two_ranks_train_as_one_process_however_slow_one_is_and_whatever_number_goes_on(
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    slow: str,
    saved: dict[str, int],
) -> None:
    """One rank takes 33 s for something; all are stopped while rank 0 saves for 5 s. One process goes on into the
    second phase, and two ranks end the run: the log is one process's."""
    run, alone = tmp_path / "run", tmp_path / "alone"
    with ThreadPoolExecutor(1) as pool:
        stopping = pool.submit(start_two, tmp_path, DISTURBED, [slow, *flags_of(data, run, **LENGTH | saved)])
        run_pretrain.main(config_of(data, alone, **LENGTH))
        stopped = stopping.result()
    capsys.readouterr()
    assert stopped.returncode == 128 + signal.SIGTERM, stopped.stdout + stopped.stderr
    assert "stopped after step 5, saved" in stopped.stdout and not list(run.glob("unfinished-*"))
    start = Trainer.start

    def start_and_be_stopped(trainer: Trainer, micro_batches: list) -> None:
        if trainer.state.step == 6:
            os.kill(os.getpid(), signal.SIGTERM)
        start(trainer, micro_batches)

    monkeypatch.setattr(Trainer, "start", start_and_be_stopped)
    with pytest.raises(SystemExit, match="143"):
        run_pretrain.main(config_of(data, run, **LENGTH))
    assert "resuming after step 5" in capsys.readouterr().out
    monkeypatch.undo()
    finished = start_two(tmp_path, DISTURBED, ["", *flags_of(data, run, **LENGTH)])
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert "resuming after step 7" in finished.stdout
    assert_logs_of_ranks_and_one_agree(run, alone, 8)
    ours, theirs = find_checkpoint(run).values, find_checkpoint(alone).values
    for name, value in theirs.items():
        np.testing.assert_allclose(ours[name], value, rtol=1e-4, atol=1e-5, err_msg=name)


# --- two ranks fine-tune ---

MAKERS = f"""
import os, sys, time
from pathlib import Path
sys.path.insert(0, {str(ROOT)!r})
import run_classifier
from model_utils.config import run_main
from src.tasks.classification_examples import ClassifierConfig
from src.finetuning import task_data

cached_features, makers = task_data.cached_features, Path(sys.argv.pop(1))


def watched(folder, task, manifest, make):
    def slowly():
        time.sleep(33)
        with makers.open("a") as file:
            file.write(os.environ["RANK_ID"])
        return make()

    return cached_features(folder, task, manifest, slowly)


task_data.cached_features = watched
run_main(run_classifier.main, ClassifierConfig)
"""


@pytest.mark.slow
def test_two_ranks_fine_tune_on_features_of_one_however_slow_it_is(tmp_path: Path) -> None:
    texts = write_classifier_data(tmp_path)
    run, makers = tmp_path / "run", tmp_path / "makers"
    changes = {"feature_dir": tmp_path / "features", "do_predict": True, "epoch_num": 4, "eval_batch_size": 7}
    done = start_two(tmp_path, MAKERS, [str(makers), *classifier_arguments(texts, run, **changes)])
    assert done.returncode == 0, done.stdout + done.stderr
    assert makers.read_text() == "000"  # train, dev, test
    alone = {"do_train": False, "load_finetune_checkpoint_path": run, "output_path": tmp_path / "alone"}
    run_classifier.main(load_config(ClassifierConfig, classifier_arguments(texts, None, **changes, **alone)))
    ours, theirs = (json.loads((folder / "eval_results.json").read_text()) for folder in (run, tmp_path / "alone"))
    assert ours["accuracy"] == theirs["accuracy"] and ours["step"] == theirs["step"]
    for name in ("predictions_dev.tsv", "predictions_test.tsv"):
        assert predicted_labels(run / name) == predicted_labels(tmp_path / "alone" / name)
