"""Pre-training that goes on from google's, Hugging Face's or one's own weights on one's own text."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import pretrain_eval
import run_pretrain
from model_utils.errors import DataError
from model_utils.schema import load_config
from src.conversion import google_checkpoint
from src.model_folder import ModelFolder
from src.training.pretrain_config import PretrainConfig, PretrainEvalConfig
from tests.helpers.conversions import (
    PRE_TRAINING,
    SMALL,
    as_google,
    convert,
    own_weights,
    random_values,
    sizes,
    write_hugging_face,
)
from tests.helpers.pretraining_run import words_of
from tests.helpers.small_text import make_records, train_model, write_text

CONFIG = SMALL.replace(max_position_embeddings=32, hidden_dropout_prob=0.0, num_hidden_layers=2)
VALUES = {name: 0.3 * value for name, value in random_values(CONFIG, PRE_TRAINING).items()}
Weights = Callable[[Path, Path, pytest.MonkeyPatch], Path]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A vocabulary, and a folder with examples of a text that it made."""
    folder = tmp_path_factory.mktemp("text")
    model = train_model(folder, write_text(tmp_path_factory.mktemp("all")))
    records = folder / "data" / "own.mindrecord"
    make_records(records, write_text(folder, 3), model, max_seq_length=32, max_predictions_per_seq=5, dupe_factor=1)
    return model, records.parent


def hugging_face(folder: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    written = write_hugging_face(folder / "hf", CONFIG, VALUES)
    shutil.copy(model, written / "spiece.model")
    return convert("hf", "mindspore", written, folder / "ours")


def google(folder: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Without TensorFlow: what it would read from the checkpoint."""
    (folder / "tf").mkdir()
    shutil.copy(model, folder / "tf/30k-clean.model")
    (folder / "tf/albert_config.json").write_text(json.dumps(sizes(CONFIG)))
    (folder / "tf/model.ckpt-best.index").touch()
    monkeypatch.setattr(google_checkpoint, "read_variables", lambda prefix: (as_google(VALUES, CONFIG), 0))
    return convert("tf", "mindspore", folder / "tf", folder / "ours")


def own(folder: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    ModelFolder.load(hugging_face(folder, model, monkeypatch)).save(folder / "own")
    return folder / "own"


def go_on(weights: Path, data: Path, run: Path, **changes: object) -> None:
    flags = {"config_path": os.devnull, "device_target": "CPU", "load_checkpoint_path": weights, "data_dir": data}
    flags |= {"save_checkpoint_path": run, "train_steps": 2, "log_steps": 1, "do_shuffle": False}
    flags |= {"optimizer_cfg.AdamWeightDecay.warmup_steps": 0}
    run_pretrain.main(load_config(PretrainConfig, words_of(flags | changes)))


@pytest.mark.parametrize("source", [google, hugging_face, own])
def test_training_begins_where_the_weights_are(
    text: tuple[Path, Path],
    tmp_path: Path,
    source: Weights,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """All examples are one batch, so that the first update's losses are those of an evaluation."""
    model, data = text
    weights = source(tmp_path, model, monkeypatch)
    rows = json.loads((data / "own.facts.json").read_text())["rows"]
    capsys.readouterr()
    go_on(weights, data, tmp_path / "run", batch_size=rows)
    said = capsys.readouterr().out
    assert f"{len(VALUES)} matched; 0 missing: none; 0 unexpected: none; 0 of other shape: none" in said
    first, second = map(json.loads, (tmp_path / "run/train_log.jsonl").read_text().splitlines())
    flags = {"load_checkpoint_path": weights, "data_dir": data, "output_path": tmp_path, "device_target": "CPU"}
    pretrain_eval.main(load_config(PretrainEvalConfig, words_of({"config_path": os.devnull, **flags})))
    evaluated = json.loads((tmp_path / "eval_results.json").read_text())
    for name in ("mlm_loss", "sop_loss", "mlm_accuracy", "sop_accuracy"):
        assert first[name] == pytest.approx(evaluated[name], rel=1e-5), name
    assert evaluated["hidden_tokens"] > 0.6 * evaluated["masked_tokens"]
    # Random weights, not the text's own bias, which would make it the unigram's, 2 nats below; texts of Pythons differ.
    assert first["mlm_loss"] == pytest.approx(evaluated["baselines"]["mlm_loss"]["chance"], abs=0.1)
    assert second["loss"] < first["loss"]
    trained = own_weights(tmp_path / "run")
    for name in ("mlm.bias", "mlm.dense.weight", "sop.weight", "albert.pooler.weight"):
        change = np.abs(trained[name] - VALUES[name]).max()
        assert 0 < change < 5e-4, name  # an update at a rate of 5e-4, and one at 0


def test_data_of_another_vocabulary_is_refused_with_the_command_that_makes_it(
    text: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, _ = text
    weights = hugging_face(tmp_path, model, monkeypatch)
    some = write_text(tmp_path, 30)
    command = f"python -m src.create_pretraining_data --spm_model_file {weights / 'spiece.model'} --do_lower_case true"
    for name, settings in (("other", {"model": train_model(tmp_path, some)}), ("cased", {"do_lower_case": False})):
        records = tmp_path / name / "own.mindrecord"
        make_records(records, some, **{"model": model, "max_seq_length": 32, "dupe_factor": 1} | settings)
        with pytest.raises(DataError, match=f"another vocabulary than the weights in {weights}: .*{command}$"):
            go_on(weights, records.parent, tmp_path / "run", batch_size=4)
