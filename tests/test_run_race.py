"""RACE end to end: a reduced model learns real questions by heart; levels and test set."""

from pathlib import Path
from typing import Any

import pytest

import run_race
from model_utils.schema import load_config
from src.tasks.multiple_choice import RaceConfig
from tests.helpers.classifier_run import read, read_rows
from tests.helpers.finetune_arguments import LEARNER, arguments
from tests.helpers.folder_state import folder_state
from tests.helpers.race_files import take_short_passages, write_race

LONGEST_ARTICLE = 700  # characters
PASSAGES = 2  # of each level


def config_of(shared: Path, folder: Path, **changes: Any) -> RaceConfig:
    settings = {
        "data_dir": folder / "RACE",
        "spm_model_file": shared / "data/vocab/30k-clean.model",
        "feature_dir": folder / "features",
        "max_seq_length": 224,
        "max_qa_length": 48,
        "train_batch_size": 8,
        "epoch_num": 40,
        "eval_steps": 20,
        "optimizer_cfg.AdamWeightDecay.learning_rate": 0.002,
    }
    return load_config(RaceConfig, arguments(LEARNER, settings | changes))


@pytest.fixture(scope="module")
def run(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run; training, development and test set are the same questions."""
    folder = tmp_path_factory.mktemp("race")
    passages = take_short_passages(shared / "data/race/RACE.tar.gz", PASSAGES, LONGEST_ARTICLE)
    write_race(folder / "RACE", passages, ("train", "dev", "test"))
    run_race.main(config_of(shared, folder, save_finetune_checkpoint_path=folder / "run", do_predict=True))
    return folder / "run"


def right_answers(run: Path) -> dict[str, str]:
    answers = {}
    for level in ("middle", "high"):
        for file in sorted((run.parent / "RACE/dev" / level).iterdir()):
            letters = read(file)["answers"]
            answers |= {f"{level}/{file.name}/{number}": letter for number, letter in enumerate(letters)}
    return answers


def test_the_training_questions_are_learnt(run: Path) -> None:
    results = read(run / "eval_results.json")
    assert results["accuracy"] == results["accuracy_middle"] == results["accuracy_high"] == 1.0
    assert results["test_accuracy"] == 1.0
    assert results["baselines"]["accuracy"] == results["baselines"]["test_accuracy"] < 0.8


def test_every_question_has_its_choice(run: Path) -> None:
    for split in ("dev", "test"):
        assert read(run / f"predictions_{split}.json") == right_answers(run)
        rows = read_rows(run / f"predictions_{split}.tsv")
        assert {row["id"]: row["prediction"] for row in rows} == {row["id"]: row["label"] for row in rows}
        first = read(run.parent / "RACE" / split / rows[0]["id"].rsplit("/", 1)[0])
        assert [rows[0][name] for name in ("question", *"ABCD")] == [first["questions"][0], *first["options"][0]]
        assert all(0.25 <= float(row["probability"]) <= 1 for row in rows)


def test_one_level_alone(run: Path, shared: Path, tmp_path: Path) -> None:
    where = {"load_finetune_checkpoint_path": run, "output_path": tmp_path, "spm_model_file": ""}
    before = folder_state(run)
    run_race.main(config_of(shared, run.parent, do_train=False, level="high", **where))
    assert folder_state(run) == before
    results = read(tmp_path / "eval_results.json")
    assert results["accuracy"] == 1.0 and "accuracy_middle" not in results
    assert len(read(tmp_path / "predictions_dev.json")) == sum(name.startswith("high") for name in right_answers(run))


def test_questions_may_have_different_numbers_of_options(tmp_path: Path) -> None:
    """From training to evaluation: what pads a row is never chosen, and has no share of the probabilities."""
    (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh"]) + "\n")
    counts = [2, 3, 5, 2] * 2
    passage = {
        "article": "a b c",
        "questions": ["d _"] * len(counts),
        "options": [list("abcde"[:count]) for count in counts],
        "answers": ["ABCDE"[count - 1] for count in counts],
    }
    write_race(tmp_path / "RACE", {"middle": [passage]}, ("train", "dev"))
    settings = {
        "data_dir": tmp_path / "RACE",
        "level": "middle",
        "vocab_file_path": tmp_path / "vocab.txt",
        "feature_dir": tmp_path / "features",
        "max_seq_length": 16,
        "max_qa_length": 8,
        "train_batch_size": 4,
        "epoch_num": 2,
        "save_finetune_checkpoint_path": tmp_path / "run",
    }
    run_race.main(load_config(RaceConfig, arguments(LEARNER, settings)))
    rows = read_rows(tmp_path / "run" / "predictions_dev.tsv")
    assert [row["label"] for row in rows] == passage["answers"]
    assert [[row[letter] for letter in "ABCDE"] for row in rows] == [
        [*options, *[""] * (5 - len(options))] for options in passage["options"]
    ]
    for row, count in zip(rows, counts, strict=True):
        assert row["prediction"] in "ABCDE"[:count]
        assert 1 / count - 1e-6 <= float(row["probability"]) <= 1
