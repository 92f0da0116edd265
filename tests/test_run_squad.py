"""SQuAD end to end: both heads learn real questions by heart, and weights alone give the same answers again."""

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import run_squad_v1
import run_squad_v2
from model_utils.schema import load_config
from model_utils.task_config import SquadConfig, SquadV2Config
from src.create_squad_data import Answer, Question
from src.squad_task import SquadTask, SquadV2Task
from tests.finetune_arguments import LEARNER, arguments

QUESTIONS = 24
LONGEST_CONTEXT = 600  # characters
TASKS = {"squad_v1": (run_squad_v1, SquadConfig), "squad_v2": (run_squad_v2, SquadV2Config)}


def short_questions(path: Path, count: int = QUESTIONS) -> dict[str, Any]:
    """The first questions with short contexts: for v2 as many with an answer as without."""
    chosen: dict[bool, list] = {True: [], False: []}
    for article in json.loads(path.read_text())["data"]:
        for paragraph in article["paragraphs"]:
            for question in paragraph["qas"] if len(paragraph["context"]) < LONGEST_CONTEXT else ():
                one = {"context": paragraph["context"], "qas": [{**question, "answers": question["answers"][:1]}]}
                chosen[bool(question["answers"])].append(one)
    part = count // 2 if chosen[False] else count
    paragraphs = chosen[True][:part] + chosen[False][:part]
    assert len(paragraphs) == count
    return {"version": "test", "data": [{"title": "short", "paragraphs": paragraphs}]}


def config_of(task: str, shared: Path, data: Path, **changes: Any) -> SquadConfig:
    settings = {
        "train_json_path": data,
        "eval_json_path": data,
        "spm_model_file": shared / "data/vocab/30k-clean.model",
        "feature_dir": data.parent / "features",
        "max_seq_length": 224,
        "max_query_length": 32,
        "train_batch_size": 12,
        "epoch_num": 60,
        "eval_steps": 40,
        "length_buckets": 1,
        "optimizer_cfg.AdamWeightDecay.learning_rate": 0.002,
    }
    return load_config(TASKS[task][1], arguments(LEARNER, settings | changes))


@pytest.fixture(scope="module", params=TASKS)
def run(request: pytest.FixtureRequest, shared: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """The task's name and the folder of its finished run, questions.json beside it."""
    folder = tmp_path_factory.mktemp(request.param)
    data = folder / "questions.json"
    data.write_text(json.dumps(short_questions(shared / f"data/{request.param}/train.json")))
    script: ModuleType = TASKS[request.param][0]
    script.main(config_of(request.param, shared, data, save_finetune_checkpoint_path=folder / "run"))
    return request.param, folder / "run"


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def test_the_training_questions_are_learnt(run: tuple[str, Path]) -> None:
    task, folder = run
    results = read(folder / "eval_results.json")
    assert results["exact_match" if task == "squad_v1" else "best_exact"] >= 95.0


def test_files_have_an_entry_for_every_question(run: tuple[str, Path]) -> None:
    task, folder = run
    (article,) = read(folder.parent / "questions.json")["data"]
    wanted = {question["id"] for paragraph in article["paragraphs"] for question in paragraph["qas"]}
    names = ["predictions.json", "nbest_predictions.json"] + ["null_odds.json"] * (task == "squad_v2")
    assert all(read(folder / name).keys() == wanted for name in names)


def test_weights_alone_answer_the_same(run: tuple[str, Path], shared: Path, tmp_path: Path) -> None:
    """Without answers in the file; v2 takes the threshold that was best in training."""
    task, folder = run
    (article,) = read(folder.parent / "questions.json")["data"]
    for paragraph in article["paragraphs"]:
        paragraph["qas"] = [{"id": each["id"], "question": each["question"]} for each in paragraph["qas"]]
    bare = tmp_path / "bare.json"
    bare.write_text(json.dumps({"data": [article]}))
    config = config_of(
        task,
        shared,
        bare,
        do_train=False,
        do_eval=False,
        do_predict=True,
        predict_json_path=bare,
        load_finetune_checkpoint_path=folder,
        spm_model_file="",
        output_path=tmp_path,
    )
    TASKS[task][0].main(config)
    assert read(tmp_path / "predictions_test.json") == read(folder / "predictions.json")


@pytest.mark.parametrize(
    ("language", "context", "answer", "f1"),
    [("en", "Countess Ada wrote", "Ada", 200 / 3), ("zh", "北京大学", "北", 200 / 3), ("en", "the cat", "cat", 100.0)],
)
def test_trivial_answers_of_v1_are_beginnings(language: str, context: str, answer: str, f1: float) -> None:
    task = SquadTask(SquadConfig(max_answer_length=2, language=language), None)
    task.questions["dev"] = [Question("1", "?", context, (Answer(answer, context.index(answer)),))]
    assert task.baselines(None, None) == pytest.approx({"exact_match": 100.0 * (f1 == 100.0), "f1": f1})


def test_trivial_answers_of_v2_are_none() -> None:
    task = SquadV2Task(SquadV2Config(), None)
    task.questions["dev"] = [Question(str(number), "?", "a", is_impossible=number < 1) for number in range(4)]
    assert task.baselines(None, None) == dict.fromkeys(("exact", "f1", "best_exact", "best_f1"), 25.0)
