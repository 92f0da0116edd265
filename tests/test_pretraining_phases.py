"""Pre-training in phases end to end: other lengths, batches, masks and weights in one run, killed in each phase."""

import re
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import run_pretrain
from model_utils.errors import DataError
from src.checkpoints.checkpoint_files import find_checkpoint
from tests.helpers.kills import kill_at
from tests.helpers.pretraining_run import config_of, log, start, write_examples, write_pretraining_data

SHORT = {"train_steps": 12, "log_steps": 1, "save_checkpoint_steps": 2, "eval_steps": 5, "eval_batches": 2}
WARM_UP = {"optimizer_cfg.AdamWeightDecay.warmup_steps": 2}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with vocab.txt, train/ and held_out/ of length 32 and dynamic/ of length 16."""
    folder = write_pretraining_data(tmp_path_factory.mktemp("data"))
    write_examples(folder, "train", "dynamic", max_seq_length=16, masking="dynamic", max_predictions_per_seq=3)
    return folder


def phases(data: Path) -> str:
    """They begin after 0, 3 and 8 updates."""
    return (
        f"[{{share: 0.25, data_dir: {data}/dynamic, batch_size: 4, sop_loss_weight: 0}}, "
        f"{{share: 0.4, data_dir: {data}/dynamic, accumulation_steps: 2, masked_lm_prob: 0.3, ngram: 1}}, "
        "{share: 0.35, learning_rate: 0.0005}]"
    )


def train(data: Path, run: Path, **changes: Any) -> None:
    run_pretrain.main(config_of(data, run, phases=phases(data), **SHORT, **WARM_UP, **changes))


@pytest.fixture(scope="module")
def finished(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("runs") / "undisturbed"
    train(data, run)
    return run


def test_a_run_in_phases_logs_what_each_trains_with(data: Path, finished: Path) -> None:
    records = log(finished)
    assert [record["phase"] for record in records] == [1] * 3 + [2] * 5 + [3] * 4
    assert [record["step"] for record in records if "eval_mlm_loss" in record] == [5, 10, 12]
    weights = [round((r["loss"] - r["mlm_loss"]) / r["sop_loss"], 4) for r in records]
    assert weights == [0.0] * 3 + [1.0] * 9
    schedule = [0.001 * (1 - step / 12) for step in range(1, 13)]
    schedule[0] = 0.0005  # of the warm-up
    factors = [1.0] * 8 + [0.5] * 4
    expected = [rate * factor for rate, factor in zip(schedule, factors, strict=True)]
    np.testing.assert_allclose([record["learning_rate"] for record in records], expected, rtol=1e-5, atol=1e-12)


def test_killed_in_any_phase_a_run_ends_with_the_same_weights(
    data: Path, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """In the first one, after its last update and a checkpoint before it; in the second; where the third one begins."""
    kill_at(monkeypatch, 3, 7, 8)
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            train(data, tmp_path)
    train(data, tmp_path)
    assert re.findall(r"resuming after step (\d+)", capsys.readouterr().out) == ["2", "6", "8"]
    assert log(tmp_path) == log(finished)
    ours, theirs = find_checkpoint(tmp_path).values, find_checkpoint(finished).values
    np.testing.assert_equal(ours, theirs)


@pytest.mark.slow
def test_a_run_that_is_killed_in_earnest_ends_with_the_same_weights(data: Path, finished: Path, tmp_path: Path) -> None:
    """By SIGKILL, in each phase, wherever the command is when the line of an update appears."""
    settings = {"phases": phases(data), **SHORT, **WARM_UP}
    for step in (2, 6, 10):
        code, said = start(data, tmp_path, signal.SIGKILL, step, **settings)
        assert code == -signal.SIGKILL, said
    code, said = start(data, tmp_path, **settings)
    assert code == 0 and "resuming after step" in said, said
    assert log(tmp_path) == log(finished)
    ours, theirs = find_checkpoint(tmp_path).values, find_checkpoint(finished).values
    np.testing.assert_equal(ours, theirs)


def test_masks_that_are_written_are_no_phases_to_draw(data: Path, tmp_path: Path) -> None:
    config = config_of(data, tmp_path, phases="[{share: 0.5}, {share: 0.5, masked_lm_prob: 0.3}]", **SHORT, **WARM_UP)
    with pytest.raises(DataError, match=r"masked_lm_prob is 0\.3.*masks of .*train"):
        run_pretrain.main(config)
