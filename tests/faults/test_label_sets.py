"""Labels that are none, or are not what they seem: rows left out, warnings, and the way out of an error."""

import json
import logging
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from model_utils.errors import ConfigError, DataError
from src.create_finetune_data import plain_label
from src.finetuning.finetune import find_tokenizer
from src.tasks.class_labels import label_warnings
from src.tasks.classification import ClassifierTask
from src.tasks.classification_examples import NLI_TASKS
from src.tasks.classifier_tasks import make_classifier
from src.tasks.glue import PUBLISHED_TASKS
from src.tasks.task_info import TaskInfo
from tests.faults.label_sets import NUMERALS, SOUND, SUSPICIOUS, TEXTS
from tests.helpers.classifier_run import SPECIALS, config_of

NLI = ["entailment", "neutral", "contradiction"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "vocab.txt").write_text("\n".join([*SPECIALS, *"abcdefgh"]) + "\n")
    return tmp_path


def write(file: Path, labels: list[str]) -> None:
    file.write_text("text_a\tlabel\n" + "".join(f"a\t{label}\n" for label in labels))


def task_of(folder: Path, known: TaskInfo | None = None, **changes: Any) -> ClassifierTask:
    config = config_of(folder, folder / "run", **changes)
    return ClassifierTask(config, find_tokenizer(config), known)


def labels_of(task: ClassifierTask, split: str) -> list[str | None]:
    return [example.label for example in task.split(split).examples]


@pytest.mark.parametrize("name", SOUND)
def test_sound_labels_give_no_warning(name: str) -> None:
    assert label_warnings(Counter(SOUND[name] * 3)) == []


@pytest.mark.parametrize("name", SUSPICIOUS)
def test_suspicious_labels_are_named(name: str) -> None:
    labels, named = SUSPICIOUS[name]
    [warning] = label_warnings(Counter(labels * 3))
    assert all(repr(label) in warning for label in named)
    assert not any(repr(label) in warning for label in {*labels} - {*named})


def test_rare_labels_are_named_and_many_are_counted() -> None:
    [warning] = label_warnings(Counter({"common": 9, "thrice": 3, "twice": 2, "never": 0}))
    assert "'twice', 'never'" in warning and "common" not in warning and "thrice" not in warning
    [warning] = label_warnings(Counter({f"label {number}": 1 for number in range(1205)}))
    assert "1,200 more" in warning and len(warning) < 300


@pytest.mark.parametrize(("written", "label"), [*NUMERALS.items(), *((text, text) for text in TEXTS)])
def test_whole_numbers_are_one_label_however_they_are_written(written: str, label: str) -> None:
    assert plain_label(written) == label


def test_a_whole_number_is_one_class_in_files_label_list_and_weights(folder: Path) -> None:
    write(folder / "train.tsv", ["1", "1.0", "1.00", "0", "0.0"])
    write(folder / "dev.tsv", ["1.0", "0"])
    task = task_of(folder)
    assert task.labels == list(task.task_info.labels) == ["0", "1"]
    assert task.split("train").features().arrays["labels"].tolist() == [1, 1, 1, 0, 0]
    assert task_of(folder, label_list="1.0,0").labels == ["1", "0"]
    known = task.task_info.model_copy(update={"labels": ("0.0", "1.0")})
    assert task_of(folder, known, do_train=False).labels == ["0", "1"]
    with pytest.raises(ConfigError, match=r"\b1, 1, 0\b"):
        task_of(folder, label_list="1,1.0,0")


@pytest.mark.parametrize(
    ("labels", "changes", "rest"),
    [
        ([*NLI, "-"], {}, NLI),
        (["Entailment", "not_entailment", "-"], {}, ["Entailment", "not_entailment"]),
        (["a", "b", "-"], {}, ["a", "b", "-"]),
        (["a", "b", "-"], {"skip_labels": "-"}, ["a", "b"]),
        ([*NLI, "-", "?"], {"skip_labels": "?,-"}, NLI),
        (["0", "1", "-1.0"], {"skip_labels": "-1"}, ["0", "1"]),
    ],
)
def test_rows_without_a_gold_label_are_left_out_of_every_split(
    folder: Path, caplog: pytest.LogCaptureFixture, labels: list[str], changes: dict[str, str], rest: list[str]
) -> None:
    caplog.set_level("INFO")
    for split in ("train", "dev", "test"):
        write(folder / f"{split}.tsv", labels * 3)
    task = task_of(folder, do_predict=True, **changes)
    assert task.labels == sorted(rest)
    for split in ("train", "dev", "test"):
        caplog.clear()
        assert labels_of(task, split) == rest * 3
        features = task.split(split).features()
        assert len(features.arrays["labels"]) == 3 * len(rest)
        skipped = 3 * (len(labels) - len(rest))
        assert (f"{split}.tsv: {skipped} of {3 * len(labels)} rows" in caplog.text) == bool(skipped)


def test_labels_to_skip_that_no_row_has_are_named_once(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    for split, labels in (("train", ["a", "b", "?"]), ("dev", ["a", "b"])):
        write(folder / f"{split}.tsv", labels)
    task = task_of(folder, skip_labels="?,x")
    task.split("train")
    task.split("dev")
    [warning] = [record.getMessage() for record in caplog.records if "skip_labels" in record.getMessage()]
    assert "train.tsv" in warning and "'x'" in warning and "'?'" not in warning


def test_scores_with_a_decimal_comma_name_it(folder: Path) -> None:
    for split in ("train", "dev"):
        write(folder / f"{split}.tsv", ["1.0", "2,5"])
    with pytest.raises(DataError, match=r"line 3 has the label '2,5'.*decimal point"):
        task_of(folder, num_class=1).split("train").features()


def test_the_share_for_development_has_no_skipped_rows(folder: Path) -> None:
    write(folder / "train.tsv", [*NLI, "-"] * 10)
    task = task_of(folder, dev_ratio=0.5)
    assert len(labels_of(task, "train")) == len(labels_of(task, "dev")) == 15
    assert "-" not in {*labels_of(task, "train"), *labels_of(task, "dev")}


@pytest.mark.parametrize(("labels", "kept"), [(["-1"] * 4, 4), (["-1.0"] * 4, 4), (["?"] * 4, 4), (["a", "?"] * 2, 2)])
def test_a_test_file_of_such_labels_alone_is_unlabelled(folder: Path, labels: list[str], kept: int) -> None:
    write(folder / "train.tsv", ["a", "b"] * 3)
    write(folder / "test.tsv", labels)
    split = task_of(folder, do_predict=True, do_eval=False, skip_labels="?").split("test")
    assert len(split.examples) == kept
    assert ("label_ids" in split.features().columns) == ("a" in labels)


def test_nothing_but_skipped_rows_is_a_sentence(folder: Path) -> None:
    write(folder / "train.tsv", ["?", "?"])
    with pytest.raises(DataError, match=r"train\.tsv.*skip_labels"):
        task_of(folder, skip_labels="?")


@pytest.mark.parametrize("name", ["mnli", "qnli", "rte", "wnli", "cmnli", "ocnli"])
def test_published_tasks_leave_out_what_has_no_gold_label(folder: Path, name: str) -> None:
    task = PUBLISHED_TASKS[name]
    columns = [task.columns.text_a, task.columns.text_b, task.columns.label]
    rows = [["a", "b", label] for label in ["-", *task.labels]]
    for file in task.files.values():
        lines = ["\t".join(row) for row in [columns, *rows]]
        if file.endswith(".json"):
            lines = [json.dumps(dict(zip(columns, row, strict=True))) for row in rows]
        (folder / file).write_text("\n".join(lines) + "\n")
    classifier = task_of(folder, task_name=name, do_predict=True)
    for split in task.files:
        assert labels_of(classifier, split) == list(task.labels)
        assert not classifier.split(split).complete


def test_labels_of_other_tasks_of_glue_are_checked(folder: Path) -> None:
    assert "cola" not in NLI_TASKS
    for split in ("train", "dev"):
        (folder / f"{split}.tsv").write_text("source\t1\t\ta\nsource\t-\t\tb\n")
    with pytest.raises(DataError, match=r"line 2 has the label '-'"):
        task_of(folder, task_name="cola").split("train").features()


def test_a_label_of_the_development_file_alone_names_the_way_out(folder: Path) -> None:
    write(folder / "train.tsv", ["a", "b"] * 3)
    write(folder / "dev.tsv", ["a", "b", "c"])
    with pytest.raises(DataError, match=r"dev\.tsv: line 4 has the label 'c'.*training file.*--label_list"):
        task_of(folder).split("dev").features()
    assert len(task_of(folder, label_list="a,b,c").split("dev").features().arrays["labels"]) == 3
    with pytest.raises(DataError, match=r"line 4 has the label 'c'") as refused:
        task_of(folder, label_list="a,b").split("dev").features()
    assert "--label_list" not in str(refused.value)


def test_training_warns_once_of_its_own_rows(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(folder / "train.tsv", ["a", "b", "a,b"] * 3 + ["Rare"])
    write(folder / "dev.tsv", ["a", "b"])
    task = task_of(folder)
    for split in ("train", "dev"):
        task.split(split)
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len([text for text in warnings if "'a,b'" in text and "train.tsv" in text]) == 1
    assert len([text for text in warnings if "'Rare'" in text]) == 1


@pytest.mark.parametrize("columns", [{"text_a_column": "label"}, {"text_a_column": "2"}, {"text_b_column": "text_a"}])
def test_a_column_that_is_used_twice_is_warned_of(
    folder: Path, caplog: pytest.LogCaptureFixture, columns: dict[str, str]
) -> None:
    write(folder / "train.tsv", ["a", "b"] * 10)
    task_of(folder)
    assert "used twice" not in caplog.text
    task_of(folder, **columns)
    assert "train.tsv: a column is used twice" in caplog.text


def test_other_separators_of_several_labels_are_named(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(folder / "train.tsv", ["a,b", "b,a", "c|d", "none"] * 6)
    config = config_of(folder, folder / "run", multi_label=True)
    make_classifier(config, find_tokenizer(config)).split("train")
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 2
    assert "they need | between them (--label_separator): 'a,b', 'b,a'" in warnings[1]
    assert "leave their cells empty: 'none'" in warnings[0]


@pytest.mark.parametrize("label", ["", " ", "\u3000"])
def test_blank_labels_name_their_line(folder: Path, label: str) -> None:
    write(folder / "train.tsv", ["a", "b", label])
    with pytest.raises(DataError, match="line 4"):
        task_of(folder)
