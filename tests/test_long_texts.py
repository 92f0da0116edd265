"""Texts of a classification that are longer than a row: windows, their weights, and the answers for them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import run_classifier
from export import main as export
from model_utils.errors import ConfigError
from model_utils.schema import load_config
from src.data.text_rows import encode_windows, mean_of_windows
from src.finetuning.finetune import find_tokenizer
from src.inference.deploy_config import ExportConfig
from src.inference.exported_model import load_exported
from src.model_folder import ModelFolder
from src.tasks.classification_examples import ClassifierConfig
from src.tokenization import FullTokenizer
from tests.helpers.answers import assert_close
from tests.helpers.classifier_run import read, read_columns
from tests.helpers.feature_rows import split_rows
from tests.helpers.finetune_arguments import arguments
from tests.helpers.trained_folders import ARCHITECTURE, write_vocabulary

LENGTH, STRIDE = 12, 6
MODEL = {
    key: getattr(ARCHITECTURE, key)
    for key in ("embedding_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> FullTokenizer:
    return FullTokenizer(write_vocabulary(tmp_path_factory.mktemp("vocabulary")))


@given(st.integers(0, 60), st.integers(0, 60), st.integers(8, 20), st.integers(1, 18))
def test_windows_hold_every_token_of_the_longer_text(
    tokenizer: FullTokenizer, count_a: int, count_b: int, length: int, stride: int
) -> None:
    texts = [" ".join("abcdefgh"[i % 8] for i in range(count)) for count in (count_a, count_b)]
    values, truncated, windows = encode_windows([texts[0]], [texts[1]], tokenizer, length, stride)
    rows = split_rows(values["input_ids"])
    segments = split_rows(values["segment_ids"])
    assert len(windows) == len(rows) and not windows.any()
    assert all(len(row) <= length and row[0] == tokenizer.cls_id and row[-1] == tokenizer.sep_id for row in rows)
    room = length - (3 if count_b else 2)
    if count_a + count_b <= room:
        pairs, _, _ = encode_windows([texts[0]], [texts[1]], tokenizer, length)
        assert len(rows) == 1 and not truncated.any() and list(rows[0]) == list(split_rows(pairs["input_ids"])[0])
        return
    specials = (tokenizer.cls_id, tokenizer.sep_id)
    parts = [
        [
            [token for token, part in zip(row, of_row, strict=True) if part == segment and token not in specials]
            for segment in (0, 1)
        ]
        for row, of_row in zip(rows, segments, strict=True)
    ]
    ids = [tokenizer.encode(text) for text in texts]
    longer = int(count_b > count_a)
    shorter = ids[1 - longer][: room // 2]
    assert truncated[0] == (len(shorter) < len(ids[1 - longer]))
    assert all(part[1 - longer] == shorter for part in parts)
    step = min(stride, room - len(shorter))
    joined = [id for part in parts[:-1] for id in part[longer][:step]] + parts[-1][longer]
    assert joined == ids[longer]


def test_the_mean_is_that_of_the_rows_of_each_text() -> None:
    values = np.array([[1, 2], [3, 6], [5, 5]], np.float32)
    np.testing.assert_array_equal(mean_of_windows(values, np.array([0, 0, 1])), [[2, 4], [5, 5]])
    np.testing.assert_array_equal(mean_of_windows(values, np.arange(3)), values)


def config_of(folder: Path, **changes: Any) -> ClassifierConfig:
    settings = {
        "data_dir": folder,
        "vocab_file_path": write_vocabulary(folder),
        "feature_dir": folder / "features",
        "save_finetune_checkpoint_path": folder / "run",
        "max_seq_length": LENGTH,
        "window_stride": STRIDE,
        "train_batch_size": 8,
        "train_steps": 400,
        "eval_steps": 200,
        "optimizer_cfg.AdamWeightDecay.learning_rate": 0.005,
    }
    model = MODEL | {"max_position_embeddings": 40, "initializer_range": 0.2}
    return load_config(ClassifierConfig, arguments(model, settings | changes))


def texts_and_labels() -> list[tuple[str, str]]:
    """Texts of 3 to 18 words; the last one tells the label, and "g" or "h" stands nowhere else."""
    random = np.random.default_rng(4)
    rows = []
    for number in range(40):
        words = [*random.choice(list("abcdef"), random.integers(2, 18)), "gh"[number % 2]]
        rows.append((" ".join(words), ("first", "second")[number % 2]))
    return rows


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data and a run that has learnt them."""
    folder = tmp_path_factory.mktemp("long_texts")
    table = "\n".join(["text_a\tlabel", *("\t".join(row) for row in texts_and_labels())])
    for name in ("train", "dev"):
        (folder / f"{name}.tsv").write_text(table + "\n")
    run_classifier.main(config_of(folder))
    return folder


def test_what_stands_at_the_end_is_learnt(folder: Path) -> None:
    assert read(folder / "run/eval_results.json")["accuracy"] == 1.0
    assert read(folder / "run/task.json")["window_stride"] == STRIDE
    predictions = read_columns(folder / "run/predictions_dev.tsv")["prediction"]
    assert predictions == [label for _, label in texts_and_labels()]


def test_each_text_counts_alike_in_training(folder: Path) -> None:
    config = config_of(folder)
    task = run_classifier.make_classifier(config, find_tokenizer(config))
    features = task.split("train").features()

    class Records:
        def array(self, name: str) -> np.ndarray:
            return features.arrays[name]

    weights = task.row_weights(Records())
    np.testing.assert_allclose(np.bincount(features.arrays["windows"], weights), 1, rtol=1e-6)


def test_checkpoint_export_and_evaluation_agree(folder: Path, tmp_path: Path) -> None:
    records = [{"text_a": text} for text, _ in texts_and_labels()]
    model = ModelFolder.load(folder / "run")
    answers = model.predictor().predict(records)
    assert [answer["label"] for answer in answers] == [label for _, label in texts_and_labels()]
    assert not any("truncated" in answer for answer in answers)
    words = ["--export_ckpt_file", str(folder / "run"), "--export_file_name", str(tmp_path / "model")]
    export(load_config(ExportConfig, words))
    assert_close(load_exported(tmp_path / "model.mindir").predict(records), answers)
    evaluation = {"do_train": False, "window_stride": 0, "load_finetune_checkpoint_path": folder / "run"}
    run_classifier.main(
        config_of(folder, save_finetune_checkpoint_path="", output_path=tmp_path / "again", **evaluation)
    )
    assert json.loads((tmp_path / "again/eval_results.json").read_text())["accuracy"] == 1.0


def test_a_stride_that_leaves_text_out_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="window_stride is 11"):
        config_of(tmp_path, window_stride=LENGTH - 1)
