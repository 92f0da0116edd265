"""Search over settings end to end on a small classifier."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import run_classifier
from model_utils.errors import ConfigError, DivergedError
from src.checkpoints.checkpoint_files import list_checkpoints
from src.finetuning.finetune import Finetuning
from src.model_folder import ModelFolder
from src.training.trainer import Trainer
from tests.helpers.classifier_run import config_of, read, read_columns, write_classifier_data
from tests.helpers.folder_state import folder_state
from tests.helpers.kills import kill_at

RATE = "optimizer_cfg.AdamWeightDecay.learning_rate"
SEARCH = f"{{{RATE}: [1e-6, 0.005], epoch_num: [3]}}"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_classifier_data(tmp_path_factory.mktemp("data"))


def config(data: Path, run: Path, search: str = SEARCH, **changes: Any) -> Any:
    return config_of(data, run, search=search, epoch_num=3, save_checkpoint_steps=5, **changes)


def test_a_killed_search_goes_on_and_its_folder_is_that_of_the_best_model(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Killed in its second trial, which is bit for bit a run of its own with the same settings."""
    run, fit = tmp_path / "run", Trainer.fit
    fitted: list[str] = []
    kill_at(monkeypatch, 17, folder="trial-002")
    monkeypatch.setattr(Trainer, "fit", lambda trainer: (fitted.append(trainer.folder.path.name), fit(trainer))[1])
    with pytest.raises(KeyboardInterrupt):
        run_classifier.main(config(data, run, do_predict=True))
    assert fitted == ["trial-001", "trial-002"] and not list_checkpoints(run)
    finished = folder_state(run / "trial-001")
    fitted.clear()
    capsys.readouterr()
    run_classifier.main(config(data, run, do_predict=True))
    assert fitted == ["trial-002"] and "resuming after step 15" in capsys.readouterr().out
    assert folder_state(run / "trial-001") == finished

    results = read(run / "search.json")
    metrics = {row["trial"]: row["metric"] for row in results["trials"]}
    assert results["best"] == max(metrics, key=lambda name: metrics[name])
    assert results["best"] == "trial-002"
    for row in results["trials"]:
        assert row["metric"] == read(run / row["trial"] / "eval_results.json")["accuracy"] and row["seconds"] > 0
    assert list(read_columns(run / "search.tsv")) == ["trial", RATE, "epoch_num", "accuracy", "seconds"]
    assert read(run / "eval_results.json")["accuracy"] == metrics[results["best"]]
    assert (run / "predictions_test.tsv").exists() and not list(run.glob("trial-*/predictions_test.tsv"))
    assert "| test |" in (run / "README.md").read_text()
    assert "| test |" not in (run / "trial-001/README.md").read_text()

    run_classifier.main(config_of(data, tmp_path / "alone", epoch_num=3, **{RATE: 0.005}))
    alone, trial, model = (ModelFolder.load(folder).weights for folder in (tmp_path / "alone", run / "trial-002", run))
    np.testing.assert_equal(trial, alone)
    np.testing.assert_equal(model, alone)
    before = folder_state(run)
    run_classifier.main(config(data, run, do_predict=True))
    assert fitted == ["trial-002", "alone"] and folder_state(run).keys() == before.keys()
    assert len(list_checkpoints(run)) == 1


def test_a_trial_that_diverges_loses_and_several_seeds_count_by_their_mean(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train = Finetuning.train

    def train_or_diverge(finetuning: Finetuning, path: Path, *more: Any) -> Any:
        if "trial-001" in str(path):
            raise DivergedError("training diverged")
        return train(finetuning, path, *more)

    monkeypatch.setattr(Finetuning, "train", train_or_diverge)
    run_classifier.main(config(data, tmp_path, "{epoch_num: [1, 2]}", num_seeds=2, seed=3))
    first, second = read(tmp_path / "search.json")["trials"]
    assert first["metric"] is None
    by_seed = {seed: read(tmp_path / f"trial-002/seed-{seed}/eval_results.json")["accuracy"] for seed in (3, 4)}
    assert second["metric"] == pytest.approx(sum(by_seed.values()) / 2)
    best_seed = max(by_seed, key=lambda seed: by_seed[seed])
    assert second["model"] == f"trial-002/seed-{best_seed}"
    reports = {f"trial-002/seed-{seed}/report_dev.html": seed for seed in by_seed}
    for report, seed in (reports | {"report_dev.html": best_seed}).items():
        assert f"\nseed: {seed}\n" in (tmp_path / report).read_text()
    assert read(tmp_path / "eval_results.json")["accuracy"] == max(by_seed.values())


def test_settings_that_a_task_refuses_fail_before_the_first_training(data: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="class_weights"):
        run_classifier.main(config(data, tmp_path / "run", "{class_weights: [balanced, great=2]}"))
    assert not (tmp_path / "run").exists()


def test_a_dry_run_of_a_search_is_that_of_its_first_trial(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_classifier.main(config(data, tmp_path / "run", "{train_batch_size: [4, 8]}", dry_run=True))
    assert " 150 updates take" in capsys.readouterr().out  # 3 epochs of 203 // 4
    assert not (tmp_path / "run").exists()


def test_a_search_replaces_no_weights_that_it_did_not_write(data: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run/albert-0.ckpt").write_bytes(b"weights")
    with pytest.raises(ConfigError, match="holds weights"):
        run_classifier.main(config(data, tmp_path / "run"))
    assert (tmp_path / "run/albert-0.ckpt").read_bytes() == b"weights"
