"""SQuAD end to end: both heads learn real questions by heart, and weights alone give the same answers again."""

import json
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy.special import logit

import run_squad_v1
import run_squad_v2
from model_utils.schema import load_config
from src.create_squad_data import SquadAnswer, SquadQuestion, SquadSplit, read_squad
from src.tasks.question_answering import SQUAD_V2, SquadConfig, SquadTask, SquadV2Config, SquadV2Task, label_warnings
from src.tasks.spec import EvaluationResult, PreparedSplit
from src.tasks.squad_metrics import score_answers, score_answers_v2
from tests.helpers.classifier_run import read, read_rows
from tests.helpers.finetune_arguments import LEARNER, arguments
from tests.helpers.folder_state import folder_state
from tests.helpers.squad_files import short_questions

QUESTIONS = 24
TASKS = {"squad_v1": (run_squad_v1, SquadConfig), "squad_v2": (run_squad_v2, SquadV2Config)}


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
        "optimizer_cfg.AdamWeightDecay.learning_rate": 0.002,
    }
    return load_config(TASKS[task][1], arguments(LEARNER, settings | changes))


@pytest.fixture(scope="module", params=TASKS)
def run(request: pytest.FixtureRequest, shared: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """The task's name and the folder of its finished run, questions.json beside it."""
    folder = tmp_path_factory.mktemp(request.param)
    data = folder / "questions.json"
    data.write_text(json.dumps(short_questions(shared / f"data/{request.param}/train.json", QUESTIONS)))
    script: ModuleType = TASKS[request.param][0]
    script.main(config_of(request.param, shared, data, save_finetune_checkpoint_path=folder / "run"))
    return request.param, folder / "run"


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


def official_figures(task: str, data: Path, folder: Path, suffix: str = "") -> dict[str, float]:
    """Return the figures of the official script for written files; tests/test_squad_metrics.py holds its arithmetic."""
    questions = read_squad(data, task == "squad_v2")
    written = read(folder / f"predictions{suffix}.json")
    if task == "squad_v1":
        return score_answers(questions, written)
    found = {key: spans[0]["text"] for key, spans in read(folder / f"nbest_predictions{suffix}.json").items()}
    at_any = score_answers_v2(questions, found, read(folder / f"null_odds{suffix}.json"))
    best = {name: value for name, value in at_any.items() if name.startswith("best_")}
    return score_answers_v2(questions, written) | best


def test_figures_are_those_of_the_files_that_are_written(run: tuple[str, Path]) -> None:
    task, folder = run
    results = read(folder / "eval_results.json")
    figures = official_figures(task, folder.parent / "questions.json", folder)
    assert figures == {name: results[name] for name in figures}
    if task == "squad_v2":
        threshold = read(folder / "task.json")["null_threshold"]
        assert results["f1"] == results["best_f1"] and results["null_threshold"] == threshold < 1
        assert any(f"above {threshold:g}, which maximises f1" in each for each in results["remarks"])


def test_predictions_say_what_is_right_and_how_sure_they_are(run: tuple[str, Path]) -> None:
    task, folder = run
    rows = read_rows(folder / "predictions_dev.tsv")
    assert {row["id"]: row["prediction"] for row in rows} == read(folder / "predictions.json")
    right = {
        each.id: each.answers[0].text if each.answers else ""
        for each in read_squad(folder.parent / "questions.json", True)
    }
    assert {row["id"]: row["label"] for row in rows} == right
    n_best = read(folder / "nbest_predictions.json")
    for row in rows:
        sure = n_best[row["id"]][0]["probability"] if row["prediction"] else float(row["no_answer_probability"])
        assert float(row["probability"]) == sure
    assert ("no_answer_probability" in rows[0]) == (task == "squad_v2")
    errors = {row["id"] for row in read_rows(folder / "errors_dev.tsv")}
    assert errors <= {row["id"] for row in rows if row["label"] != row["prediction"]}
    assert f"eval_json_path: {folder.parent / 'questions.json'}\n" in (folder / "report_dev.html").read_text()


def test_evaluation_of_other_questions_leaves_the_model_alone(
    run: tuple[str, Path], shared: Path, tmp_path: Path
) -> None:
    """With lengths and a test set of its own, which is evaluated because it has answers; v2 keeps its threshold."""
    task, folder = run
    few = tmp_path / "few.json"
    (article,) = read(folder.parent / "questions.json")["data"]
    few.write_text(json.dumps({"data": [article | {"paragraphs": article["paragraphs"][-3:]}]}))
    before = folder_state(folder)
    config = config_of(
        task,
        shared,
        few,
        do_train=False,
        do_predict=True,
        predict_json_path=folder.parent / "questions.json",
        load_finetune_checkpoint_path=folder,
        max_predict_samples=20,
        max_query_length=28,
        spm_model_file="",
        output_path=tmp_path,
    )
    TASKS[task][0].main(config)
    assert folder_state(folder) == before
    results = read(tmp_path / "eval_results.json")
    figures = official_figures(task, few, tmp_path)
    assert figures == {name: results[name] for name in figures}
    predicted = read(tmp_path / "predictions_test.json")
    assert len(predicted) == 20
    sampled = tmp_path / "sampled.json"
    article["paragraphs"] = [each for each in article["paragraphs"] if each["qas"][0]["id"] in predicted]
    sampled.write_text(json.dumps({"data": [article]}))
    figures = official_figures(task, sampled, tmp_path, "_test")
    assert figures == {name: results[f"test_{name}"] for name in figures}
    if task == "squad_v2":
        assert results["test_null_threshold"] == read(folder / "task.json")["null_threshold"]


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
    assert not any(name.startswith("test_") for name in read(tmp_path / "eval_results.json"))


def prepared(split: str, questions: list[SquadQuestion], records: Any = None) -> PreparedSplit:
    return PreparedSplit(SquadSplit(split, questions, None, 16, 8, 4), records)


@pytest.mark.parametrize(
    ("language", "context", "answer", "f1"),
    [("en", "Countess Ada wrote", "Ada", 200 / 3), ("zh", "北京大学", "北", 200 / 3), ("en", "the cat", "cat", 100.0)],
)
def test_baseline_answers_of_v1_are_beginnings(language: str, context: str, answer: str, f1: float) -> None:
    task = SquadTask(SquadConfig(max_answer_length=2, language=language), None)
    questions = [SquadQuestion("1", "?", context, (SquadAnswer(answer, context.index(answer)),))]
    assert task.baseline(None, prepared("dev", questions)) == pytest.approx(
        {"exact_match": 100.0 * (f1 == 100.0), "f1": f1}
    )


def test_baseline_answers_of_v2_are_none() -> None:
    task = SquadV2Task(SquadV2Config(), None)
    questions = [SquadQuestion(str(number), "?", "a", is_impossible=number < 1) for number in range(4)]
    assert task.baseline(None, prepared("dev", questions)) == dict.fromkeys(
        ("exact", "f1", "best_exact", "best_f1"), 25.0
    )


# --- evaluation of four questions in "x", which no network answers rightly ---

SURE = (0.5, 0.6, 0.7, 0.8)  # no_answer_probability


def evaluate(
    split: str, settings: dict[str, Any], questions: list[SquadQuestion], end: float = 2.0
) -> EvaluationResult:
    rows = len(questions)
    task = SquadV2Task(SquadV2Config(), None)
    arrays = {"windows": np.int32([[row, row, 1, 2] for row in range(rows)]), "token_spans": np.int32([[0, 1]] * rows)}
    outputs = {"start_top_index": np.full((rows, 1), 2.0), "end_top_index": np.full((rows, 1), end)}
    outputs |= {name: np.zeros((rows, 1)) for name in ("start_top_log_probs", "end_top_log_probs")}
    outputs["cls_logits"] = logit(SURE[:rows])
    task_info = SQUAD_V2.info(task="squad_v2", **settings)
    return task.evaluate(prepared(split, questions, SimpleNamespace(array=arrays.__getitem__)), outputs, task_info)


def four_questions(told: bool = True) -> list[SquadQuestion]:
    """The last one has an answer; the others have none, or do not tell."""
    return [
        SquadQuestion(str(row), "?", "x", () if row < 3 else (SquadAnswer("b", 0),), told and row < 3)
        for row in range(4)
    ]


def test_a_threshold_at_which_nothing_is_answered_is_named() -> None:
    result = evaluate("dev", {}, four_questions())
    assert result.calibration == {"null_threshold": 0.0}
    assert {result.metrics[name] for name in ("exact", "f1", "best_exact", "best_f1")} == {75.0}
    threshold, unanswered = result.warnings
    assert "no_answer_probability is above 0," in threshold
    assert unanswered == "no question is answered"


def test_a_stored_threshold_is_used_and_only_development_questions_make_one(tmp_path: Path) -> None:
    stored = evaluate("dev", {"null_threshold": 0.65}, four_questions())
    assert stored.calibration == {}
    assert stored.metrics["exact"] == 25.0 and stored.metrics["best_exact"] == 75.0
    [warning] = stored.warnings
    assert warning.endswith("no_answer_probability is above 0.65, stored with the weights")
    stored.write(tmp_path)
    assert list(read(tmp_path / "predictions.json").values()) == ["x", "x", "", ""]
    test = evaluate("test", {}, four_questions())
    assert test.calibration == {} and (test.metrics["null_threshold"], test.metrics["exact"]) == (1.0, 0.0)
    assert "have no null_threshold" in test.warnings[0]


def test_figures_need_the_answers_of_all_questions() -> None:
    result = evaluate("test", {"null_threshold": 0.65}, four_questions(told=False))
    assert result.metrics == {}


@pytest.mark.parametrize(("labelled", "warned"), [(0, False), (1, True), (2, True), (3, False)])
def test_questions_without_a_gold_answer_beside_others_are_counted(labelled: int, warned: bool) -> None:
    questions = [SquadQuestion(f"q{row}", "a ?", "a b", (SquadAnswer("a", 0),)) for row in range(labelled)]
    questions += [SquadQuestion(f"q{row}", "a ?", "a b") for row in range(labelled, 3)]
    warnings = label_warnings(questions)
    assert len(warnings) == warned
    assert all(f"{3 - labelled} of 3" in warning for warning in warnings)
