"""Class weights and reports of evaluations, against scikit-learn on the written predictions, and in Chromium."""

import base64
import json
import shlex
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import classification_report, confusion_matrix, precision_recall_fscore_support
from sklearn.utils.class_weight import compute_class_weight

from model_utils.errors import ConfigError
from model_utils.schema import load_config
from src.create_squad_data import SquadAnswer, SquadQuestion
from src.data.feature_files import Column, Ragged
from src.finetuning.report_files import CONTEXT, SHOWN_CLASSES, SHOWN_ERRORS, write_report
from src.squad_get_predictions import Prediction, ScoredSpan
from src.squad_postprocess import answer_texts
from src.tasks.class_weights import class_weights
from src.tasks.classification import ClassifierTask
from src.tasks.classification_examples import ClassifierConfig
from src.tasks.classifier_tasks import make_classifier
from src.tasks.entities import Scheme, find_entities
from src.tasks.evaluation_report import (
    Confusion,
    EvaluationReport,
    Mark,
    MarkedText,
    calibration_error,
    classifier_report,
)
from src.tasks.question_answering import SquadConfig, SquadTask, SquadV2Config, SquadV2Task
from src.tasks.spec import EvaluationResult, PreparedSplit
from src.tasks.squad_metrics import score_answers, score_answers_v2
from src.tasks.token_classification import NerConfig, NerTask
from src.training.run_log import CURVES_FILE
from tests.helpers.browser import chromium
from tests.helpers.classifier_run import read_columns
from tests.helpers.finetune_arguments import arguments

LABELS = ("bad", "fair", "good", "never")
SCRIPT = "<script>document.title = 'run'</script> & <b>bold</b>"
ROWS = 120
EVALUATED = SimpleNamespace(columns={"input_ids": Column("int32", 8, 0, True)}, lengths=np.int32([3, 8, 8, 5]))
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


def test_balanced_weights_are_those_of_scikit_learn() -> None:
    gold = np.random.default_rng(4).choice(3, 300, p=[0.7, 0.2, 0.1])
    expected = compute_class_weight("balanced", classes=np.arange(3), y=gold)
    assert class_weights(["balanced"], LABELS[:3], gold) == pytest.approx(expected)


def test_labels_without_a_weight_count_once() -> None:
    assert class_weights(["good=2.5", "bad=0.5"], LABELS, np.zeros(0, int)).tolist() == [0.5, 1.0, 2.5, 1.0]


def test_the_last_equals_sign_separates() -> None:
    assert class_weights(["a=b=3"], ["a=b", "c"], np.zeros(0, int)).tolist() == [3.0, 1.0]


@pytest.mark.parametrize("entry", ["balanced=1", "good", "good=", "good=0", "good=-1", "good=nan", "good=inf", "=2"])
def test_other_weights_are_refused(entry: str) -> None:
    with pytest.raises(ConfigError, match="class_weights"):
        class_weights([entry], LABELS, np.zeros(0, int))


def test_a_label_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match="twice"):
        class_weights(["good=1", "good=2"], LABELS, np.zeros(0, int))


# --- evaluations of random outputs, written as a run writes them ---


def write(folder: Path, result: EvaluationResult, config: Any) -> None:
    result.write(folder)
    (folder / CURVES_FILE).write_bytes(base64.b64decode(PIXEL))
    write_report(folder, "dev", result, {}, EVALUATED, folder / "albert-1.ckpt", config)


def evaluate_texts(folder: Path, **settings: Any) -> None:
    """Evaluate a classifier whose gold label is the likeliest one of most rows, and never the last one."""
    random = np.random.default_rng(4)
    logits = np.float32(random.normal(size=(ROWS, 4)))
    gold = np.where(random.random(ROWS) < 0.7, logits[:, :3].argmax(1), random.choice(3, ROWS))
    labels = np.array(LABELS)[gold]
    if settings:  # several labels
        gold = (logits > 0) ^ (random.random((ROWS, 4)) < 0.1)
        gold[:, 3] = False
        labels = ["|".join(np.array(LABELS)[row]) for row in gold]
    rows = [f"{SCRIPT} {index}\t{label}" for index, label in enumerate(labels)]
    for split in ("train", "dev"):
        (folder / f"{split}.tsv").write_text("\n".join(["text_a\tlabel", *rows]) + "\n")
    options = {"data_dir": folder, "label_list": ",".join(LABELS), **settings}
    config = load_config(ClassifierConfig, arguments({}, options))
    task = make_classifier(config, tokenizer=None)
    assert (type(task) is ClassifierTask) == (not settings)
    records = SimpleNamespace(columns={"label_ids": None}, array=lambda _: gold)
    write(folder, task.evaluate(PreparedSplit(task.split("dev"), records), {"logits": logits}, task.task_info), config)


def evaluate_entities(folder: Path) -> None:
    """Evaluate sentences of which most tags are right."""
    random = np.random.default_rng(5)
    tags = ["O", "B-LOC", "I-LOC", "B-<PER>", "I-<PER>"]
    sentences = [random.choice(tags, 1 + row % 9).tolist() for row in range(ROWS)]
    text = "\n\n".join("\n".join(f"<b>w{index} {tag}" for index, tag in enumerate(row)) for row in sentences)
    for split in ("train", "dev"):
        (folder / f"{split}.txt").write_text(text)
    config = load_config(NerConfig, arguments({}, {"data_dir": folder}))
    task = NerTask(config, None)
    counts = np.array([len(row) for row in sentences])
    words = np.array([(row, position) for row, count in enumerate(counts) for position in range(count)])
    gold = np.array([task.labels.index(tag) for row in sentences for tag in row])
    predicted = np.where(random.random(len(gold)) < 0.9, gold, random.choice(len(tags), len(gold)))
    logits = np.eye(len(tags))[predicted] * random.uniform(1, 5, (len(gold), 1))
    records = SimpleNamespace(array={"words": words, "sentence_words": counts}.get)
    prepared = PreparedSplit(SimpleNamespace(name="dev", examples=task.read("dev")), records)
    write(folder, task.evaluate(prepared, {"logits": Ragged(logits, counts)}, task.task_info), config)


def evaluate_answers(folder: Path, version_2: bool = False) -> None:
    """Evaluate answers in "aaa bbb ccc ddd": the right word, two words with it, another one, or with version 2 none."""
    context = f"aaa bbb ccc ddd {SCRIPT}"
    random = np.random.default_rng(6)
    config = SquadV2Config() if version_2 else SquadConfig()
    task = SquadV2Task(config, None) if version_2 else SquadTask(config, None)
    questions, predictions = [], []
    for index in range(ROWS):
        start = 4 * int(random.integers(3))
        is_impossible = version_2 and index % 3 == 0
        answers = () if is_impossible else (SquadAnswer(context[start : start + 3], start),)
        questions.append(SquadQuestion(str(index), SCRIPT, context, answers, is_impossible))
        first, end = [(start, start + 3), (start, start + 7), (12, 15)][random.integers(3)]
        span = ScoredSpan(context[first:end], first, end, random.random(), 0.0, 0.0)
        predictions.append(Prediction((span,), random.random() if version_2 else None))
    threshold = 0.5 if version_2 else None
    answers = answer_texts(questions, predictions, threshold)
    metrics = (score_answers_v2 if version_2 else score_answers)(questions, answers)
    report = partial(task._report, questions, predictions, threshold)
    write(folder, EvaluationResult(metrics, lambda _: None, ("a < b",), report=report), config)
    (folder / "metrics.json").write_text(json.dumps(metrics))


EVALUATIONS: dict[str, Callable[[Path], None]] = {
    "classes": evaluate_texts,
    "labels": partial(evaluate_texts, multi_label=True),
    "entities": evaluate_entities,
    "squad_v1": evaluate_answers,
    "squad_v2": partial(evaluate_answers, version_2=True),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The folder that each evaluation has written into."""
    folders = {name: tmp_path_factory.mktemp(name) for name in EVALUATIONS}
    for name, folder in folders.items():
        EVALUATIONS[name](folder)
    return folders


def report_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "report_dev.json").read_text())


# --- the figures ---


def assert_figures(classes: dict[str, dict[str, float]], gold: Any, predictions: Any, labels: Any) -> None:
    figures = precision_recall_fscore_support(gold, predictions, labels=labels, zero_division=0)
    expected = [dict(zip(("precision", "recall", "f1", "support"), row, strict=True)) for row in np.transpose(figures)]
    assert list(classes.values()) == [pytest.approx(row) for row in expected]


def test_figures_of_classes_are_those_of_scikit_learn(folders: dict[str, Path]) -> None:
    report = report_of(folders["classes"])
    columns = read_columns(folders["classes"] / "predictions_dev.tsv")
    expected = classification_report(
        columns["label"], columns["prediction"], labels=LABELS, output_dict=True, zero_division=0
    )
    for label in LABELS:
        figures = {name.replace("f1-score", "f1"): value for name, value in expected[label].items()}
        assert report["classes"][label] == pytest.approx(figures)


def test_figures_of_labels_are_those_of_scikit_learn(folders: dict[str, Path]) -> None:
    columns = read_columns(folders["labels"] / "predictions_dev.tsv")
    decisions = [
        [[label in cell.split("|") for label in LABELS] for cell in columns[name]] for name in ("label", "prediction")
    ]
    classes = report_of(folders["labels"])["classes"]
    assert list(classes) == list(LABELS)
    assert_figures(classes, *np.array(decisions), labels=range(4))


def test_figures_of_entities_are_those_of_scikit_learn(folders: dict[str, Path]) -> None:
    """Spans are in the gold tags, in the predicted ones, or in both."""
    columns = read_columns(folders["entities"] / "predictions_dev.tsv")
    spans: dict[str, set[tuple[Any, ...]]] = {"label": set(), "prediction": set()}
    for name, found in spans.items():
        for row in range(ROWS):
            tags = [tag for index, tag in zip(columns["index"], columns[name], strict=True) if index == str(row)]
            found |= {(row, *span) for span in find_entities(tags, Scheme.ENTITIES)}
    every = sorted(spans["label"] | spans["prediction"])
    gold, predictions = ([span[1] if span in found else "" for span in every] for found in spans.values())
    report = report_of(folders["entities"])
    assert list(report["classes"]) == ["<PER>", "LOC"]
    assert_figures(report["classes"], gold, predictions, labels=["<PER>", "LOC"])


@pytest.mark.parametrize("name", ["classes", "entities"])
def test_confusions_are_those_of_scikit_learn(folders: dict[str, Path], name: str) -> None:
    columns = read_columns(folders[name] / "predictions_dev.tsv")
    labels = sorted({*columns["label"], *columns["prediction"]})
    expected = confusion_matrix(columns["label"], columns["prediction"], labels=labels)
    np.fill_diagonal(expected, 0)
    confusions = report_of(folders[name])["confusions"]
    counts = np.zeros_like(expected)
    for confusion in confusions:
        counts[labels.index(confusion["label"]), labels.index(confusion["prediction"])] = confusion["rows"]
    assert (counts == expected).all()
    assert [row["rows"] for row in confusions] == sorted(expected[expected > 0], reverse=True)


def test_the_calibration_error_is_the_mean_distance_of_bins() -> None:
    confidence = np.array([0.95, 0.95, 0.6, 0.65])
    is_right = np.array([True, False, True, True])
    # Two rows at 0.95, one of them right; 0.6 and 0.65 share a bin, both right.
    assert calibration_error(confidence, is_right) == pytest.approx((2 * 0.45 + 2 * 0.375) / 4)
    assert calibration_error(np.array([1.0]), np.array([True])) == 0.0


@pytest.mark.parametrize("name", ["classes", "entities"])
def test_the_calibration_error_is_that_of_the_written_predictions(folders: dict[str, Path], name: str) -> None:
    columns = read_columns(folders[name] / "predictions_dev.tsv")
    is_right = np.array(columns["label"]) == np.array(columns["prediction"])
    expected = calibration_error(np.array(columns["probability"], float), is_right)
    assert report_of(folders[name])["calibration_error"] == pytest.approx(expected)


# --- the errors ---


@pytest.mark.parametrize("name", ["classes", "labels"])
def test_the_surest_errors_come_first(folders: dict[str, Path], name: str) -> None:
    columns = read_columns(folders[name] / "predictions_dev.tsv")
    errors = read_columns(folders[name] / "errors_dev.tsv")
    probabilities = list(map(float, errors["probability"]))
    assert probabilities == sorted(probabilities, reverse=True) and 0 < probabilities[-1] < probabilities[0] < 1
    wrong = {row for row in range(ROWS) if columns["label"][row] != columns["prediction"][row]}
    assert set(map(int, errors["index"])) == wrong
    for column in ("label", "prediction", "text_a"):
        assert errors[column] == [columns[column][int(row)] for row in errors["index"]]


def test_wrong_sentences_have_their_entities_marked(folders: dict[str, Path]) -> None:
    columns = read_columns(folders["entities"] / "predictions_dev.tsv")
    errors = read_columns(folders["entities"] / "errors_dev.tsv")
    rows: dict[str, list[tuple[str, ...]]] = {str(row): [] for row in range(ROWS)}
    for index, *cells in zip(*(columns[name] for name in ("index", "word", "label", "prediction")), strict=True):
        rows[index].append(tuple(cells))
    for index, words in rows.items():
        texts, gold, predicted = zip(*words, strict=True)
        is_wrong = find_entities(gold, Scheme.ENTITIES) != find_entities(predicted, Scheme.ENTITIES)
        assert (index in errors["index"]) == is_wrong
        if is_wrong:
            row = errors["index"].index(index)
            for name, tags in (("label", gold), ("prediction", predicted)):
                pieces = list(texts)
                for label, first, end in find_entities(tags, Scheme.ENTITIES):
                    pieces[first] = "[" + pieces[first]
                    pieces[end - 1] += f"]({label})"
                assert errors[name][row] == " ".join(pieces)


def test_lengths_and_rows_that_may_be_cut_are_counted(folders: dict[str, Path]) -> None:
    for folder in folders.values():
        assert report_of(folder)["tokens"] == {"mean": 6.0, "max": 8, "limit": 8, "rows_at_limit": 2}


@pytest.mark.parametrize("name", ["squad_v1", "squad_v2"])
def test_wrong_answers_and_right_ones_have_the_official_f1(folders: dict[str, Path], name: str) -> None:
    metrics = json.loads((folders[name] / "metrics.json").read_text())
    errors = read_columns(folders[name] / "errors_dev.tsv")
    right = ROWS - len(errors["id"])
    assert 0 < right < ROWS
    assert 100 * right / ROWS == pytest.approx(metrics["exact" if name == "squad_v2" else "exact_match"])
    assert 100 * (right + sum(map(float, errors["f1"]))) / ROWS == pytest.approx(metrics["f1"])
    assert {"question", "label", "prediction", "probability"} < errors.keys()
    assert ("" in errors["label"]) == ("" in errors["prediction"]) == (name == "squad_v2")


def test_marks_without_labels_are_brackets() -> None:
    assert str(MarkedText("我喜欢", [Mark(0, 1, "both"), Mark(1, 3, "gold", "V")])) == "[我][喜欢](V)"


# --- the page ---


@pytest.mark.parametrize("name", EVALUATIONS)
def test_texts_are_escaped(folders: dict[str, Path], name: str) -> None:
    page = (folders[name] / "report_dev.html").read_text("utf-8")
    assert "&lt;" in page
    assert not any(tag in page for tag in ("<script", "<b>bold", "<b>w", "<PER>", "a < b"))


def page_of(folder: Path, report: EvaluationReport) -> str:
    write(folder, EvaluationResult({"f1": 0.5}, lambda _: None, report=lambda: report), SquadConfig())
    return (folder / "report_dev.html").read_text("utf-8")


def test_a_page_without_errors_is_written(tmp_path: Path) -> None:
    report = classifier_report(["a", "b"], np.float32([[0.9, 0.1]] * 3), np.zeros(3, int), [])
    assert "0 of 0 errors" in page_of(tmp_path, report)
    assert (tmp_path / "errors_dev.tsv").read_text() == "index\tlabel\tprediction\tprobability\n"


def test_long_passages_are_shown_around_their_marks(tmp_path: Path) -> None:
    text = f"{'a' * 5000}<gold>{'b' * 5000}"
    passage = MarkedText(text, [Mark(5000, 5006, "gold"), Mark(5002, 5008, "predicted")])
    report = EvaluationReport(np.ones(1), np.zeros(1, bool), {"id": ["1"]}, {"context": [passage]})
    page = page_of(tmp_path, report)
    marks = '<mark class="gold">&lt;g</mark><mark class="both">old&gt;</mark><mark class="predicted">bb</mark>'
    assert f" {'a' * CONTEXT}{marks}{'b' * CONTEXT} " in page


def test_a_command_of_other_bytes_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "orig_argv", ["python", "run.py", "--data_dir", "caf\udce9"])
    report = EvaluationReport(np.ones(1), np.ones(1, bool), {"id": []})
    assert r"caf\udce9" in page_of(tmp_path, report)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as browser:
        yield browser


@pytest.fixture
def open_report(browser: Any) -> Iterator[Callable[[Path], Any]]:
    """open_report(folder) -> the page of report_dev.html; at the end nothing else was read and no script has run."""
    faults: list[str] = []
    pages = []

    def open_report(folder: Path) -> Any:
        page = browser.new_page()
        pages.append(page)
        address = (folder / "report_dev.html").as_uri()
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("console", lambda line: faults.append(line.text))
        page.on("request", lambda sent: faults.append(sent.url) if sent.url != address else None)
        page.goto(address)
        return page

    yield open_report
    for page in pages:
        assert page.title() == "Evaluation report 评估报告: dev"
        page.close()
    assert faults == []


def test_the_page_shows_texts_as_they_are(folders: dict[str, Path], open_report: Callable[[Path], Any]) -> None:
    page = open_report(folders["classes"])
    errors = read_columns(folders["classes"] / "errors_dev.tsv")
    shown = page.locator("table").last.locator("tr td:last-child").all_inner_texts()
    assert shown == errors["text_a"][:SHOWN_ERRORS] and SCRIPT in shown[0]
    assert page.inner_text("pre >> nth=0") == shlex.join(sys.orig_argv)
    assert f"data_dir: {folders['classes']}" in page.inner_text("pre >> nth=2")


def test_the_page_shows_the_training(folders: dict[str, Path], open_report: Callable[[Path], Any]) -> None:
    page = open_report(folders["classes"])
    assert page.evaluate("document.querySelector('img').naturalWidth") == 1


def test_the_page_shows_the_confusion_matrix(folders: dict[str, Path], open_report: Callable[[Path], Any]) -> None:
    page = open_report(folders["classes"])
    columns = read_columns(folders["classes"] / "predictions_dev.tsv")
    cells = [int(cell or 0) for cell in page.locator(".matrix td").all_inner_texts()]
    expected = confusion_matrix(columns["label"], columns["prediction"], labels=LABELS)
    assert cells == expected.ravel().tolist()


def test_a_matrix_joins_all_but_the_commonest_classes(tmp_path: Path, open_report: Callable[[Path], Any]) -> None:
    gold = np.repeat(np.arange(30), np.arange(1, 31))
    predictions = np.where(gold % 2, gold, 0)
    confusion = Confusion([f"c{index}" for index in range(30)], gold, predictions)
    report = EvaluationReport(np.ones(len(gold)), gold == predictions, {"index": []}, confusion=confusion)
    page_of(tmp_path, report)
    page = open_report(tmp_path)
    heads = page.locator(".matrix tr:first-child div").all_inner_texts()
    assert len(heads) == SHOWN_CLASSES + 1 and heads[0] == "c0" and heads[-2] == "c29"
    cells = np.array([int(cell or 0) for cell in page.locator(".matrix td").all_inner_texts()]).reshape(21, 21)
    assert cells.sum() == len(gold) and cells[-2, -2] == 30
    assert cells[:-1].sum(1).tolist() == [int(head[1:]) + 1 for head in heads[:-1]]


def test_the_page_marks_spans(folders: dict[str, Path], open_report: Callable[[Path], Any]) -> None:
    page = open_report(folders["squad_v1"])
    errors = read_columns(folders["squad_v1"] / "errors_dev.tsv")
    passage = page.locator("bdi").first
    assert passage.inner_text() == f"aaa bbb ccc ddd {SCRIPT}"
    gold = "".join(passage.locator(".gold, .both").all_inner_texts())
    predicted = "".join(passage.locator(".predicted, .both").all_inner_texts())
    assert (gold, predicted) == (errors["label"][0], errors["prediction"][0])
    page = open_report(folders["entities"])
    labels = page.locator("mark small").all_inner_texts()
    assert set(labels) == {"LOC", "<PER>"}
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
