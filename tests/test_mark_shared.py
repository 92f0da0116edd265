"""Tokens that both texts of a pair have get segment ids of their own, in training as in prediction (mark_shared)."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import run_classifier
from export import main as export
from model_utils.errors import ConfigError, DataError
from model_utils.schema import load_config
from src.checkpoints.checkpoint_files import Checkpoint
from src.data.feature_cache import Features
from src.data.features import mark_shared_tokens, token_columns
from src.data.text_rows import encode_windows
from src.finetuning.marked_segments import SEGMENTS, WORDS, with_marked_segments
from src.inference.deploy_config import ExportConfig
from src.inference.exported_model import load_exported
from src.model_folder import ModelFolder
from src.tasks.classification_examples import ClassifierConfig
from src.tasks.multiple_choice import RaceConfig, RaceTask
from src.tasks.question_answering import SquadConfig, SquadTask
from src.tasks.race_data import encode_questions
from src.tokenization import FullTokenizer
from tests.helpers.answers import assert_close
from tests.helpers.classifier_run import read, read_columns, read_rows
from tests.helpers.exported_records import RECORDS
from tests.helpers.exported_records import TEXTS as TEXTS_OF_RECORDS
from tests.helpers.feature_rows import split_rows
from tests.helpers.finetune_arguments import arguments
from tests.helpers.trained_folders import ONE_LAYER, make_folder, write_vocabulary

TEXTS = st.lists(st.sampled_from("abcdefX"), min_size=1, max_size=6).map(" ".join)  # X is unknown


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> FullTokenizer:
    return FullTokenizer(write_vocabulary(tmp_path_factory.mktemp("vocabulary")), do_lower_case=False)


def expected_segments(first: str, second: str) -> list[int]:
    """Segment ids of [CLS] first [SEP] second [SEP] by their definition."""
    shared = {*first.split()} & {*second.split()} - {"X"}
    marks = [[2 * (word in shared) for word in text.split()] for text in (first, second)]
    return [0, *marks[0], 0, *(1 + mark for mark in marks[1]), 1]


@given(st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=5))
def test_tokens_of_both_texts_are_marked(tokenizer: FullTokenizer, pairs: list[tuple[str, str]]) -> None:
    values, _, _ = encode_windows(*zip(*pairs, strict=True), tokenizer, 40)
    features = mark_shared_tokens(Features(token_columns(tokenizer, 40), values), 1, tokenizer)
    assert split_rows(features.values["segment_ids"]) == [expected_segments(*pair) for pair in pairs]


def test_rows_are_marked_in_parts(tokenizer: FullTokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A token is not shared with a row of another part, nor of the same one."""
    monkeypatch.setattr("src.data.features.MARKED_AT_ONCE", 2)
    pairs = [("a b", "b c"), ("c", "a"), ("d e f", "f d"), ("b", "b"), ("e", "c a")]
    values, _, _ = encode_windows(*zip(*pairs, strict=True), tokenizer, 40)
    features = mark_shared_tokens(Features({}, values), 1, tokenizer)
    assert split_rows(features.values["segment_ids"]) == [expected_segments(*pair) for pair in pairs]
    assert values["segment_ids"].values.max() == 1  # what it was given stays


@given(st.lists(st.tuples(TEXTS, TEXTS, st.tuples(TEXTS, TEXTS, TEXTS)), min_size=1, max_size=4))
def test_tokens_of_an_article_and_a_choice_are_marked(
    tokenizer: FullTokenizer, rows: list[tuple[str, str, tuple[str, ...]]]
) -> None:
    values, _ = encode_questions(rows, tokenizer, 40, 20, 3)
    features = mark_shared_tokens(Features({}, values), 3, tokenizer)
    found, masks = (split_rows(features.values[name]) for name in ("segment_ids", "input_mask"))
    for (article, question, options), row, mask in zip(rows, found, masks, strict=True):
        for choice, option in enumerate(options):
            segments = np.array(row[choice::3])[np.array(mask[choice::3]) == 1]
            assert segments.tolist() == expected_segments(article, f"{question} {option}")


def test_marked_segments_begin_as_the_others_and_one_vector() -> None:
    random = np.random.default_rng(0)
    values = {SEGMENTS: random.standard_normal((2, 8), np.float32), WORDS: random.standard_normal((9, 8), np.float32)}
    contents = Checkpoint(Path("a.ckpt"), values, {})
    table = with_marked_segments(contents, 4).values[SEGMENTS]
    np.testing.assert_array_equal(table[:2], values[SEGMENTS])
    marks = table[2:] - table[:2]
    np.testing.assert_allclose(marks[0], marks[1], atol=1e-6)
    norm = np.linalg.norm(values[WORDS], axis=1).mean()
    assert np.linalg.norm(marks[0]) == pytest.approx(0.3 * norm, rel=1e-5)
    marked = Checkpoint(contents.path, values | {SEGMENTS: table}, {})  # as a run with marks leaves them
    assert with_marked_segments(marked, 4) is marked and with_marked_segments(contents, 2) is contents


def write_pairs(file: Path, rows: int, seed: int) -> None:
    """Pairs of texts with the label "yes" if they share a word."""
    random = np.random.default_rng(seed)
    lines = ["text_a\ttext_b\tlabel"]
    for number in range(rows):
        words = [str(word) for word in random.permutation(list("abcdefghijklmnop"))]
        first, second = words[:5], words[5:10]
        if number % 2:
            second[random.integers(5)] = first[random.integers(5)]
        lines.append(f"{' '.join(first)}\t{' '.join(second)}\t{'yes' if number % 2 else 'no'}")
    file.write_text("\n".join(lines) + "\n")


def config_of(folder: Path, **changes: Any) -> ClassifierConfig:
    settings = {
        "data_dir": folder,
        "text_b_column": "text_b",
        "feature_dir": folder / "features",
        "max_seq_length": 16,
        "train_batch_size": 16,
        "optimizer_cfg.AdamWeightDecay.learning_rate": 0.005,
    }
    return load_config(ClassifierConfig, arguments({}, settings | changes))


def test_whether_two_texts_share_a_word_is_learnt_answered_and_exported(tmp_path: Path) -> None:
    write_pairs(tmp_path / "train.tsv", 320, 1)
    write_pairs(tmp_path / "dev.tsv", 80, 2)
    start = make_folder(tmp_path / "start", "fill_mask")
    training = {"load_pretrain_checkpoint_path": start, "mark_shared": True, "epoch_num": 16}
    run_classifier.main(config_of(tmp_path, save_finetune_checkpoint_path=tmp_path / "run", **training))
    assert read(tmp_path / "run/eval_results.json")["accuracy"] >= 0.95
    assert read(tmp_path / "run/albert_config.json")["type_vocab_size"] == 4

    weights = {"do_train": False, "load_finetune_checkpoint_path": tmp_path / "run", "output_path": tmp_path / "again"}
    run_classifier.main(config_of(tmp_path, **weights))
    table = tmp_path / "run/predictions_dev.tsv"
    assert (tmp_path / "again/predictions_dev.tsv").read_text() == table.read_text()

    records = [dict(zip(("text_a", "text_b"), row.values(), strict=False)) for row in read_rows(tmp_path / "dev.tsv")]
    predicted = read_columns(table)["prediction"]
    answers = ModelFolder.load(tmp_path / "run").predictor().predict(records)
    assert [answer["label"] for answer in answers] == predicted
    name = tmp_path / "exported/shared"
    export(load_config(ExportConfig, ["--export_ckpt_file", str(tmp_path / "run"), "--export_file_name", str(name)]))
    assert_close(load_exported(name.with_suffix(".mindir")).predict(records), answers)

    marked_features = next((tmp_path / "features").glob("*.mindrecord"))
    changes = {"load_pretrain_checkpoint_path": start, "eval_data_file_path": marked_features}
    with pytest.raises(DataError, match="were made with mark_shared True, needed is False"):
        run_classifier.main(config_of(tmp_path, save_finetune_checkpoint_path=tmp_path / "other", **changes))


@pytest.mark.parametrize("task", ["classification", "multiple_choice", "squad_v1"])
def test_answers_depend_on_marks(tmp_path: Path, task: str) -> None:
    folder = make_folder(tmp_path / "run", task, ONE_LAYER.replace(type_vocab_size=4), mark_shared=True)
    marked = ModelFolder.load(folder)
    plain = replace(marked, task_info=marked.task_info.model_copy(update={"mark_shared": False}))
    records = [RECORDS[task](text) for text in TEXTS_OF_RECORDS]
    assert marked.predictor().predict(records) != plain.predictor().predict(records)


def test_tasks_of_two_texts_are_trained_with_marks(tmp_path: Path) -> None:
    tokenizer = FullTokenizer(write_vocabulary(tmp_path))
    question = {"id": "1", "article": "a b", "questions": ["c"], "options": [["d", "e"]], "answers": ["A"]}
    for split in ("train", "dev"):
        (tmp_path / f"RACE/{split}/middle").mkdir(parents=True)
        (tmp_path / f"RACE/{split}/middle/1.txt").write_text(json.dumps(question))
    race = load_config(
        RaceConfig, arguments({}, {"data_dir": tmp_path / "RACE", "level": "middle", "mark_shared": True})
    )
    squad = load_config(SquadConfig, arguments({}, {"mark_shared": True}))
    assert RaceTask(race, tokenizer).task_info.mark_shared and SquadTask(squad, tokenizer).task_info.mark_shared


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"text_b_column": ""}, "mark_shared"),
        ({"albert_cfg.type_vocab_size": 3}, "albert_cfg.type_vocab_size"),
    ],
)
def test_where_there_is_nothing_to_mark(tmp_path: Path, changes: dict[str, Any], key: str) -> None:
    for name in ("train", "dev"):
        write_pairs(tmp_path / f"{name}.tsv", 8, 1)
    run = {"mark_shared": True, "vocab_file_path": write_vocabulary(tmp_path), "num_class": 2}
    with pytest.raises(ConfigError) as error:
        run_classifier.main(config_of(tmp_path, save_finetune_checkpoint_path=tmp_path / "run", **run | changes))
    assert error.value.key == key
