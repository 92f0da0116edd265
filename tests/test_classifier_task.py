"""Tasks of classification without a network: examples, labels, options, tables of predictions."""

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from model_utils.errors import ConfigError, DataError
from model_utils.schema import load_config
from src.assessment_method import assess
from src.create_finetune_data import Example
from src.data.ready_features import ReadySplit
from src.finetuning.finetune import find_tokenizer
from src.tasks import parse_task_info
from src.tasks.classification import ClassifierTask
from src.tasks.classification_examples import ClassifierConfig, CustomExamples
from src.tasks.spec import PreparedSplit
from src.tasks.task_info import DevSplit
from tests.helpers.classifier_run import (
    config_of,
    evaluating,
    predicted_labels,
    read_columns,
    write_classifier_data,
    write_table,
)
from tests.helpers.finetune_arguments import arguments
from tests.helpers.trained_folders import head_of


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with vocab.txt, train.tsv, dev.tsv and test.tsv."""
    return write_classifier_data(tmp_path_factory.mktemp("data"))


def test_figures_of_a_regression_can_be_computed_from_its_predictions(data: Path, tmp_path: Path) -> None:
    """Scores as close to each other as float32 allows."""
    task = ClassifierTask(config_of(data, tmp_path / "run", num_class=1), tokenizer=None)
    scores = np.nextafter(np.float32(0.7), np.float32([0, 0.7, 1]))
    prepared = PreparedSplit(ReadySplit("dev", Path()), gold_scores(3, 1, 2))
    result = task.evaluate(prepared, {"logits": scores[:, None]}, task.task_info)
    result.write(tmp_path)
    columns = read_columns(tmp_path / "predictions_dev.tsv")
    assert list(columns) == ["index", "label", "prediction"]
    again = [np.float32(list(map(float, columns[name]))) for name in ("prediction", "label")]
    assert assess("spearman_correlation", *again) == pytest.approx(result.metrics)
    assert result.metrics["spearman_correlation"] == pytest.approx(-0.5)


def test_gold_scores_are_written_as_the_file_has_them(data: Path, tmp_path: Path) -> None:
    task = ClassifierTask(config_of(data, tmp_path / "run", num_class=1), tokenizer=None)
    labels = ["2.400", "0.1", "3"]
    examples = [Example("a", "", label, Path("dev.tsv"), line) for line, label in enumerate(labels, 2)]
    split = SimpleNamespace(name="dev", examples=examples, complete=True)
    logits = np.float32([[0.1], [2.4], [1e-7]])
    prepared = PreparedSplit(split, gold_scores(2.4, 0.1, 3))
    task.evaluate(prepared, {"logits": logits}, task.task_info).write(tmp_path)
    columns = read_columns(tmp_path / "predictions_dev.tsv")
    assert columns["label"] == labels
    assert columns["prediction"] == ["0.1", "2.4", "1e-07"]


def gold_scores(*scores: float) -> SimpleNamespace:
    """Records of a regression's rows."""
    return SimpleNamespace(columns={"label_ids": None}, array=lambda _: np.float32(scores))


@pytest.mark.parametrize("cap", [0, 1, 2, 3])
def test_a_capped_test_set_is_no_submission(data: Path, tmp_path: Path, cap: int) -> None:
    """Unless the cap leaves nothing out."""
    (tmp_path / "test.tsv").write_text("index\tsentence\n0\ta dull film\n1\ta fine film\n")
    settings = {"task_name": "sst-2", "data_dir": tmp_path, "do_predict": True, "max_predict_samples": cap}
    task = ClassifierTask(config_of(data, tmp_path / "run", **settings), tokenizer=None)
    prepared = PreparedSplit(task.split("test"), SimpleNamespace(columns={}))
    result = task.evaluate(prepared, {"logits": np.float32([[1, 0], [0, 3]])[: cap or 2]}, task.task_info)
    result.write(tmp_path)
    assert predicted_labels(tmp_path / "predictions_test.tsv") == ["0", "1"][: cap or 2]
    assert (tmp_path / "SST-2.tsv").exists() == (cap != 1)
    assert [warning.split()[0] for warning in result.warnings] == (["SST-2.tsv"] if cap == 1 else [])


def test_weights_say_that_the_task_is_a_regression(data: Path, tmp_path: Path) -> None:
    config = evaluating(data, tmp_path)
    tokenizer = find_tokenizer(config)
    task = ClassifierTask(config, tokenizer, head_of("regression"))
    assert task.regression
    assert task.task_info.task == "regression"
    assert task.method == "spearman_correlation"
    assert not ClassifierTask(config, tokenizer, head_of("classification", "bad", "good")).regression
    with pytest.raises(ConfigError, match="num_class"):
        ClassifierTask(config.replace(num_class=2), tokenizer, head_of("regression"))


def test_the_names_of_the_texts_columns_are_known(tmp_path: Path) -> None:
    """task.json has them, for records to be read by (src/tasks/answerer.py)."""
    (tmp_path / "train.csv").write_text("review,title,label\nfine,a,good\n")
    (tmp_path / "plain.tsv").write_text("good\tfine\ta\n")

    def names(**settings: Any) -> dict[str, str]:
        return CustomExamples(load_config(ClassifierConfig, arguments({}, settings))).text_columns()

    assert names(train_file=tmp_path / "train.csv", text_a_column="1") == {"text_a": "review"}
    both = {"text_a_column": "review", "text_b_column": 2}
    assert names(train_file=tmp_path / "train.csv", **both) == {"text_a": "review", "text_b": "title"}
    headless = {"column_names": "label,body,head", "text_a_column": "body"}
    assert names(train_file=tmp_path / "plain.tsv", **headless) == {"text_a": "body"}
    assert names(positive_file=tmp_path / "plain.tsv", negative_file=tmp_path / "plain.tsv") == {}


@pytest.fixture
def without_dev(tmp_path: Path) -> Path:
    """A folder with a training file alone."""
    write_table(tmp_path / "train.tsv", 40, 4)
    return tmp_path


def test_development_examples_are_those_that_the_weights_were_chosen_by(
    data: Path, without_dev: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Others were trained on."""
    config = config_of(data, without_dev / "run", seed=7, dev_ratio=0.2, data_dir=without_dev)
    tokenizer = find_tokenizer(config)
    training = ClassifierTask(config, tokenizer)
    again = evaluating(data, without_dev, data_dir=without_dev)
    known = parse_task_info(training.task_info.stated(), "task.json")
    task = ClassifierTask(again, tokenizer, known)
    assert task.examples.read("dev") == training.examples.read("dev")
    assert "a share of 0.2 of the training file" in capsys.readouterr().out
    silent = known.model_copy(update={"dev_split": DevSplit(ratio=0.2, seed=7)})  # about the file, as others were
    assert ClassifierTask(again, tokenizer, silent).examples.read("dev") == task.examples.read("dev")
    elsewhere = ClassifierTask(again, tokenizer, known.model_copy(update={"dev_split": None}))
    assert elsewhere.examples.read("dev") != task.examples.read("dev")
    assert "dev_ratio 0.1 and seed 12345" in capsys.readouterr().out


def test_no_share_of_a_training_file_that_has_changed_is_evaluated(data: Path, without_dev: Path) -> None:
    """Rows that were trained on would be in it; corrected labels change nothing."""
    file = without_dev / "train.tsv"
    config = config_of(data, without_dev / "run", data_dir=without_dev)
    known = ClassifierTask(config, find_tokenizer(config)).task_info
    again = evaluating(data, without_dev, data_dir=without_dev)
    header, *rows = file.read_text().splitlines()
    file.write_text("\n".join([header, *rows]).replace("\tbad", "\tgood", 1) + "\n")
    assert CustomExamples(again, known).dev_split == known.dev_split
    for changed in (rows[1:], [*rows, rows[0]], rows[::-1]):
        file.write_text("\n".join([header, *changed]) + "\n")
        with pytest.raises(DataError, match=r"train\.tsv"):
            CustomExamples(again, known)
    write_table(without_dev / "dev.tsv", 10, 5)
    assert len(CustomExamples(again, known).read("dev")) == 10


def test_a_rare_label_may_stand_in_the_share_for_development_alone(data: Path, without_dev: Path) -> None:
    config = config_of(data, without_dev / "run", data_dir=without_dev)
    tokenizer = find_tokenizer(config)
    line = ClassifierTask(config, tokenizer).examples.read("dev")[0].line
    rows = (without_dev / "train.tsv").read_text().splitlines()
    rows[line - 1] = rows[line - 1].rsplit("\t", 1)[0] + "\trare"
    (without_dev / "train.tsv").write_text("\n".join(rows) + "\n")
    assert ClassifierTask(config, tokenizer).labels == ["bad", "good", "rare"]


def test_polarity_files_stand_in_place_of_the_folders_training_file(data: Path, tmp_path: Path) -> None:
    named = {}
    for name in ("positive", "negative"):
        (tmp_path / f"{name}.txt").write_text(f"so {name}\n")
        named[f"{name}_file"] = tmp_path / f"{name}.txt"
    shutil.copytree(data, tmp_path / "data", ignore=shutil.ignore_patterns("features"))
    for name in ("train.csv", "test.csv"):  # several are an error only of a split that is read
        (tmp_path / "data" / name).touch()
    config = config_of(data, tmp_path, data_dir=tmp_path / "data", **named)
    examples = CustomExamples(config)
    assert len(examples.read("dev")) == 45
    assert {one.text_a for one in examples.read("train")} == {"so positive", "so negative"}
    with pytest.raises(DataError, match=r"test\.csv, test\.tsv"):
        examples.read("test")
    one_test_file = config.replace(do_predict=True, test_file=str(data / "test.tsv"))
    assert len(CustomExamples(one_test_file).read("test")) == 21


def test_weights_of_pairs_are_not_evaluated_on_single_texts(data: Path) -> None:
    """Nor the other way round."""
    head = head_of("classification", "bad", "good")
    pairs = head.model_copy(update={"text_columns": {"text_a": "premise", "text_b": "claim"}})
    single = head.model_copy(update={"text_columns": {"text_a": "review"}})
    config = evaluating(data, "run")
    paired_config = config.replace(text_b_column="claim")
    with pytest.raises(ConfigError, match=r"text_b_column is '', .* premise and claim"):
        CustomExamples(config, pairs)
    CustomExamples(paired_config, pairs)
    with pytest.raises(ConfigError, match=r"text_b_column is 'claim', .* review"):
        CustomExamples(paired_config, single)


POLARITY = {"positive_file": "a", "negative_file": "b", "train_file": "", "dev_file": "", "do_eval": False}


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"dev_ratio": 0.3}, "dev_ratio"),
        ({"dev_file": "dev.tsv", "eval_data_file_path": "a.mindrecord"}, "dev_file"),
        ({"train_file": "train.tsv", "train_data_file_path": "a.mindrecord"}, "train_file"),
        ({"positive_file": "a", "negative_file": "b", "train_data_file_path": "a.mindrecord"}, "positive_file"),
        ({**POLARITY, "text_b_column": "b"}, "text_b_column"),
        ({**POLARITY, "column_names": "text,label"}, "column_names"),
        ({"train_file": "a.jsonl", "dev_file": "b.jsonl", "column_names": "text,label"}, "column_names"),
    ],
)
def test_options_that_do_nothing_are_refused(data: Path, tmp_path: Path, changes: dict, key: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{key} is "):
        CustomExamples(config_of(data, tmp_path, **changes))


def test_lower_case_is_as_asked_for_where_nothing_beside_the_weights_says_it(data: Path, tmp_path: Path) -> None:
    config = config_of(data, tmp_path / "run", load_pretrain_checkpoint_path=tmp_path, do_lower_case=False)
    assert not find_tokenizer(config).do_lower_case


def test_a_layer_before_the_classifier_is_that_of_the_weights(data: Path, tmp_path: Path) -> None:
    known = head_of("classification", "bad", "good").model_copy(update={"classifier_hidden_size": 5})
    config = evaluating(data, tmp_path)
    tokenizer = find_tokenizer(config)
    assert ClassifierTask(config, tokenizer, known).task_info.classifier_hidden_size == 5
    with pytest.raises(ConfigError, match=r"classifier_hidden_size is 6, .* 5"):
        ClassifierTask(config.replace(classifier_hidden_size=6), tokenizer, known)
