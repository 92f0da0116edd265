"""Benchmarks: the one who waits is stopped, what is compared is the same, and the count of operations is right."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import squad_features, train_step
from benchmarks.train_step import Timing, TrainStepConfig
from benchmarks.turns import Contender
from model_utils.errors import ConfigError
from model_utils.schema import load_config
from src.training.training_config import PretrainConfig

ROOT = Path(__file__).resolve().parents[1]


def state(process: int) -> str:
    """The kernel's letter for what a process does; T is stopped."""
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_contender_answers_and_is_stopped_in_between() -> None:
    with Contender(list, [3, 1, 2]) as contender:
        process = contender._process.pid
        for _ in range(2):
            assert contender.call("sort") is None
            # The signal is on its way: wait for what it does, as a stopped child is reported to its parent.
            assert os.WIFSTOPPED(os.waitpid(process, os.WUNTRACED)[1]) and state(process) == "T"
            assert contender.call("copy") == [1, 2, 3]
    assert not Path(f"/proc/{process}").exists()


def test_errors_of_a_contender_reach_the_caller() -> None:
    with pytest.raises(ConfigError, match="--nonsense is not a key"):
        Contender(load_config, PretrainConfig, ["--nonsense", "1"])
    with pytest.raises(RuntimeError, match="ended with code 1"):
        Contender(int, "three")


def test_sides_that_compute_different_losses_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    sides = [Timing("this project", "CPU", "", 1.0, 11.0, []), Timing("transformers", "CPU", "", 1.0, 11.001, [])]
    monkeypatch.setattr(train_step, "measure", lambda config: sides)
    assert train_step.main(TrainStepConfig()) == 1
    assert "the first losses are 11 (this project) and 11.001 (transformers)" in capsys.readouterr().err
    sides[1].first_loss = float("nan")
    assert train_step.main(TrainStepConfig()) == 1


def test_transformers_is_compared_on_the_cpu_only() -> None:
    with pytest.raises(ConfigError, match="--only ours"):
        TrainStepConfig(device_target="GPU")
    with pytest.raises(ConfigError, match="--only ours"):
        TrainStepConfig(compute_type="bfloat16")
    assert TrainStepConfig(device_target="GPU", only="ours").architecture().compute_type == "float16"


def test_questions_of_a_file_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abc"]) + "\n")
    questions = [{"id": name, "question": "a", "answers": [{"text": "b", "answer_start": 2}]} for name in ("1", "2")]
    paragraph = {"context": "a b " + "c " * 70, "qas": questions}  # two windows of 68 tokens
    (tmp_path / "q.json").write_text(json.dumps({"version": "2.0", "data": [{"title": "", "paragraphs": [paragraph]}]}))
    words = ["--questions", str(tmp_path / "q.json"), "--vocab_file_path", str(tmp_path / "vocab.txt")]
    squad_features.main(load_config(squad_features.SquadFeaturesConfig, [*words, "--max_seq_length", "68"]))
    assert capsys.readouterr().out.startswith("2 questions, 4 windows, ")


@pytest.mark.oracles
def test_both_sides_take_turns() -> None:
    pytest.importorskip("transformers")
    sizes = ["--albert_network", "albert_tiny", "--batch_size", "2", "--length", "16", "--rounds", "1"]
    command = [sys.executable, "-m", "benchmarks.train_step", *sizes]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "first losses differ by" in done.stdout and "transformers takes" in done.stdout
