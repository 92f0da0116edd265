"""Content of task.json, and facts that follow from the list of tasks."""

from dataclasses import replace
from typing import Any

import pytest

from model_utils.errors import DataError
from src.albert_config import PRESETS, AlbertConfig
from src.conversion.hugging_face_folder import PROBLEM_TYPES
from src.finetuning.results import Report
from src.tasks import HEADS, TASKS, parse_task_info, tasks_of_head
from src.tasks.spec import EvaluationResult
from src.tasks.task_info import TaskInfo
from tests.helpers.scripted_predictor import SCRIPTS
from tests.helpers.trained_folders import TASK_INFOS

LABELS = {"classification": ["a", "b"], "multi_label": ["a", "b"], "token_classification": ["O", "B-X"]}


def parse(task: str, **content: Any) -> TaskInfo:
    return parse_task_info({"task": task, "labels": LABELS.get(task), **content}, "task.json", TASKS)


@pytest.mark.parametrize("task", TASKS)
def test_what_is_stated_comes_back_and_the_rest_has_defaults(task: str) -> None:
    task_info = parse(task, max_seq_length=40, note="kept")
    labels = LABELS.get(task, [])
    assert task_info.explicit_values() == {"task": task, "labels": labels, "max_seq_length": 40, "note": "kept"}
    assert task_info.values_with_defaults().keys() == {"task", "labels", "note", *task_info.setting_keys()}
    assert parse_task_info(task_info.explicit_values(), "task.json", TASKS) == task_info


def test_calibration_is_stated_although_it_has_a_default() -> None:
    task_info = parse("squad_v2")
    assert task_info.null_threshold == 1.0 and "null_threshold" not in task_info.explicit_values()
    assert task_info.model_copy(update={"null_threshold": 0.5}).explicit_values()["null_threshold"] == 0.5


def test_lengths_are_fitted_to_the_network() -> None:
    architecture = AlbertConfig(max_position_embeddings=32)
    fitted = parse("squad_v1").clipped_to(architecture)
    assert (fitted.max_seq_length, fitted.max_query_length) == (32, 28)
    choice = parse("multiple_choice").clipped_to(architecture)
    assert (choice.max_seq_length, choice.max_qa_length) == (32, 29)
    assert parse("regression").clipped_to(architecture.replace(use_relative_positions=True)).max_seq_length == 512


def test_a_row_holds_the_beam() -> None:
    beam = parse("squad_v2", start_n_top=3, end_n_top=7)
    assert (beam.shortest_row, beam.searched_starts) == (7, 3)
    assert parse("squad_v2", start_n_top=30, max_seq_length=40).clipped_to(PRESETS["albert_base"]).start_n_top == 30
    short = PRESETS["albert_base"].replace(max_position_embeddings=20)
    assert parse("squad_v2", start_n_top=30, max_seq_length=40).clipped_to(short).shortest_row == 20
    assert (parse("squad_v1").shortest_row, parse("squad_v1").searched_starts) == (1, 0)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ({"task": "fill_mask"}, "task.json: task is 'fill_mask', allowed is 'classification', 'regression', "),
        ({"labels": []}, "task.json: task is missing"),
        ({"task": "classification"}, "task.json: needed is a name in labels for each output of classification"),
        ({"task": "regression", "labels": ["a", "a"]}, "task.json: needed is labels that differ from each other"),
        ({"task": "squad_v1", "doc_stride": 0}, "task.json: doc_stride is 0, allowed is greater than or equal to 1"),
        (
            {"task": "regression", "doc_stride": -3},
            "task.json: doc_stride is -3, allowed is greater than or equal to 1",
        ),
    ],
)
def test_what_is_refused(content: dict[str, Any], sentence: str) -> None:
    with pytest.raises(DataError) as caught:
        parse_task_info(content, "task.json")
    assert str(caught.value).startswith(sentence)


@pytest.mark.parametrize(
    ("module", "outputs", "tasks"),
    [
        ("classifier", 1, ["regression", "multiple_choice"]),
        ("classifier", 2, ["classification", "multi_label", "token_classification"]),
        ("qa_outputs", 2, ["squad_v1"]),
        ("start_logits", 1, ["squad_v2"]),
    ],
)
def test_the_outputs_of_a_head_tell_its_tasks(module: str, outputs: int, tasks: list[str]) -> None:
    assert tasks_of_head(module, outputs) == tasks


def test_a_class_of_transformers_without_a_problem_type_names_one_task() -> None:
    classes = [head.hugging_face for name, head in HEADS.items() if head.hugging_face and name not in PROBLEM_TYPES]
    assert len(set(classes)) == len(classes)


def test_every_task_is_whole() -> None:
    for name, spec in TASKS.items():
        assert name == spec.name and spec.fields
        assert set(spec.processor.text_keys) <= set(spec.fields)
        assert (spec.head is None) == (spec.losses is None) == (name not in HEADS)


def test_results_of_later_splits_have_their_names(capsys: pytest.CaptureFixture[str]) -> None:
    report, result = Report(), EvaluationResult({"f1": 0.5}, print, ("a warning",), {"threshold": 0.1})
    report.add("dev", "", result, {"f1": 0.25})
    report.add("test", "test_", replace(result, warnings=(), calibration={}), {})
    assert report.metrics == {"f1": 0.5, "test_f1": 0.5} and report.calibration == {"threshold": 0.1}
    report.log()
    assert capsys.readouterr().out == "f1: 0.5000 (baseline 0.2500)\ntest_f1: 0.5000\ndev: a warning\n"


def test_results_of_other_splits_of_the_same_checkpoint_are_kept() -> None:
    earlier = {"step": 2, "f1": 0.5, "mcc": 0.4, "test_f1": 0.6, "baselines": {"f1": 0.1, "test_f1": 0.2}}
    earlier["remarks"] = ["dev: old", "test: old"]
    splits = ("dev", "test")
    report = Report({"step": 2}, {"f1": 0.7}, warnings=["dev: new"])
    report = report.with_earlier(earlier, splits, ["dev"])
    content = {
        "step": 2,
        "f1": 0.7,
        "test_f1": 0.6,
        "baselines": {"test_f1": 0.2},
        "remarks": ["test: old", "dev: new"],
    }
    assert report.content() == content
    report = Report({"step": 2}, {"test_f1": 0.7})
    report = report.with_earlier(earlier, splits, ["test"])
    assert report.metrics == {"f1": 0.5, "mcc": 0.4, "test_f1": 0.7} and report.warnings == ["dev: old"]
    report = Report({"step": 3}, {"f1": 0.7})
    report = report.with_earlier(earlier, splits, ["dev"])
    assert report.metrics == {"f1": 0.7}


def test_what_runs_with_every_task_leaves_none_out() -> None:
    assert {*TASK_INFOS, "embeddings"} == SCRIPTS.keys() == TASKS.keys()
