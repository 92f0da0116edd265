"""albert_tiny, not pre-trained, overfits 64 real training examples of every task."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import run_classifier
import run_ner
import run_race
import run_squad_v1
import run_squad_v2
from model_utils.schema import load_config
from src.tasks.classification_examples import ClassifierConfig
from src.tasks.finetune_config import FinetuneConfig
from src.tasks.multiple_choice import RaceConfig
from src.tasks.question_answering import SquadConfig, SquadV2Config
from src.tasks.token_classification import NerConfig
from tests.helpers.finetune_arguments import arguments
from tests.helpers.race_files import take_short_passages, write_race
from tests.helpers.squad_files import short_questions

pytestmark = pytest.mark.slow
EXAMPLES = 64
MODEL = {"initializer_range": 0.03, "classifier_dropout_prob": 0.0}


def write_mrpc(shared: Path, folder: Path) -> dict[str, Any]:
    lines = (shared / "data/glue/MRPC/train.tsv").read_text(encoding="utf-8-sig").splitlines()[: EXAMPLES + 1]
    for name in ("train.tsv", "dev.tsv"):
        (folder / name).write_text("\n".join(lines) + "\n")
    return {"data_dir": folder, "task_name": "mrpc", "max_seq_length": 128}


def write_race_questions(shared: Path, folder: Path) -> dict[str, Any]:
    passages = take_short_passages(shared / "data/race/RACE.tar.gz", 12, 450)
    write_race(folder, passages, ("train", "dev"))
    cut = {"max_train_samples": EXAMPLES, "max_eval_samples": EXAMPLES}
    return {"data_dir": folder, "max_seq_length": 160, "max_qa_length": 48, **cut}


def write_squad(shared: Path, folder: Path, version: str) -> dict[str, Any]:
    document = short_questions(shared / f"data/{version}/train.json", EXAMPLES)
    (folder / "questions.json").write_text(json.dumps(document))
    file = folder / "questions.json"
    return {"train_json_path": file, "eval_json_path": file, "max_seq_length": 224, "max_query_length": 32}


def write_ner(shared: Path, folder: Path) -> dict[str, Any]:
    sentences = (shared / "data/ner/conll2003/train.txt").read_text().split("\n\n")[:EXAMPLES]
    for name in ("train.txt", "dev.txt"):
        (folder / name).write_text("\n\n".join(sentences) + "\n")
    return {"data_dir": folder, "max_seq_length": 64}


Limit = tuple[Callable[[Any], None], type[FinetuneConfig], Callable[[Path, Path], dict[str, Any]], str, float]
LIMITS: dict[str, Limit] = {
    "mrpc": (run_classifier.main, ClassifierConfig, write_mrpc, "accuracy", 1.0),
    "ner": (run_ner.main, NerConfig, write_ner, "f1", 0.98),
    "squad_v1": (run_squad_v1.main, SquadConfig, lambda *at: write_squad(*at, "squad_v1"), "exact_match", 95.0),
    "squad_v2": (run_squad_v2.main, SquadV2Config, lambda *at: write_squad(*at, "squad_v2"), "best_exact", 95.0),
    "race": (run_race.main, RaceConfig, write_race_questions, "accuracy", 1.0),
}


@pytest.mark.parametrize("task", LIMITS)
def test_64_examples_are_learnt(task: str, shared: Path, tmp_path: Path) -> None:
    main, kind, write, metric, least = LIMITS[task]
    (tmp_path / "data").mkdir()
    settings = write(shared, tmp_path / "data") | {
        "albert_network": "albert_tiny",
        "spm_model_file": shared / "data/vocab/30k-clean.model",
        "feature_dir": tmp_path / "features",
        "save_finetune_checkpoint_path": tmp_path / "run",
        "train_batch_size": 16,
        "epoch_num": 80,
        "eval_steps": 80,
        "early_stopping": 2,
        "length_buckets": 1,
        "optimizer_cfg.AdamWeightDecay.learning_rate": 4e-4,
    }
    main(load_config(kind, arguments(MODEL, settings)))
    assert json.loads((tmp_path / "run/eval_results.json").read_text())[metric] >= least
