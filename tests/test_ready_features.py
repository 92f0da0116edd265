"""Features that are ready in files: which are read, whether they are of this model and task, and what is refused."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import run_classifier
from model_utils.errors import ConfigError, DataError
from src.data.ready_features import read_tfrecord
from src.finetuning.finetune import find_tokenizer
from src.tasks.classification import ClassifierTask
from src.tasks.classification_examples import CustomExamples
from tests.helpers.classifier_run import (
    config_of,
    read,
    train_classifier,
    write_classifier_data,
)
from tests.helpers.feature_rows import split_rows
from tests.helpers.tfrecord_files import tf_example, tf_row, write_tfrecord

CLS, SEP, A, B = 2, 3, 5, 6


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with vocab.txt, train.tsv, dev.tsv and test.tsv."""
    return write_classifier_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def run(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_classifier(data, tmp_path_factory.mktemp("run") / "run")


def test_googles_rows_lose_their_padding_and_what_filled_up(tmp_path):
    rows = [
        tf_row([CLS, A, SEP], 3, label_ids=1, is_real_example=1),
        tf_row([CLS, 0, SEP, B, SEP], 3, label_ids=0, is_real_example=1),
        tf_row([], 0, label_ids=0, is_real_example=0),
    ]
    features = read_tfrecord(write_tfrecord(tmp_path / "a.tfrecord", rows))
    assert split_rows(features.values["input_ids"]) == [[CLS, A, SEP], [CLS, 0, SEP, B, SEP]]
    assert split_rows(features.values["segment_ids"]) == [[0, 0, 0], [0, 0, 0, 1, 1]]
    assert features.values["input_mask"].values.tolist() == [1] * 8
    assert features.arrays["labels"].tolist() == [1, 0]
    assert {name: (column.dtype, column.width) for name, column in features.columns.items()} == {
        **dict.fromkeys(("input_ids", "input_mask", "segment_ids"), ("int32", 8)),
        "label_ids": ("int32", 0),
    }


def test_records_without_an_example_are_refused(tmp_path):
    filler = tf_row([], 0, label_ids=0, is_real_example=0)
    with pytest.raises(DataError, match=r"a\.tfrecord has no example: is_real_example is 0 in all its 2 records"):
        read_tfrecord(write_tfrecord(tmp_path / "a.tfrecord", [filler] * 2))
    rows = [tf_row([CLS, A, SEP], 3, label_ids=1), tf_row([], 0, label_ids=0)]
    with pytest.raises(DataError, match=r"b\.tfrecord: record 2 has no token: its input_mask is 0 throughout"):
        read_tfrecord(write_tfrecord(tmp_path / "b.tfrecord", rows))
    rows = [
        tf_row([CLS, A, SEP], 3, label_ids=1, is_real_example=1),
        filler,
        tf_row([], 0, label_ids=0, is_real_example=1),
    ]
    with pytest.raises(DataError, match=r"c\.tfrecord: record 3 has no token"):
        read_tfrecord(write_tfrecord(tmp_path / "c.tfrecord", rows))


def test_googles_scores(tmp_path):
    rows = [tf_row([CLS, SEP], 2, label_ids=np.float32(score)) for score in (4.75, 0)]
    features = read_tfrecord(write_tfrecord(tmp_path / "a.tfrecord", rows))
    assert features.columns["label_ids"].dtype == "float32"
    assert features.arrays["labels"].tolist() == [4.75, 0.0]


def test_tfrecords_of_another_kind(tmp_path, shared):
    with pytest.raises(DataError, match=r"restaurant_review_train has no column label_ids; needed are input_ids"):
        read_tfrecord(shared / "data" / "dish_names" / "restaurant_review_train")
    several = tf_example({name: np.array([1, 2]) for name in ("input_ids", "input_mask", "segment_ids", "label_ids")})
    with pytest.raises(DataError, match="has 2 label_ids in a row"):
        read_tfrecord(write_tfrecord(tmp_path / "a.tfrecord", [several]))


def test_a_schema_names_the_columns(tmp_path):
    path = write_tfrecord(tmp_path / "a.tfrecord", [tf_row([CLS, A, SEP], 3, label_ids=1)] * 2)
    shapes = {name: [8] for name in ("input_ids", "input_mask", "segment_ids")} | {"label_ids": [1]}
    columns = {name: {"type": "int64", "rank": 1, "shape": shape} for name, shape in shapes.items()}
    schema, bad = tmp_path / "schema.json", tmp_path / "bad.json"
    schema.write_text(json.dumps({"datasetType": "TF", "numRows": 2, "columns": columns}))
    bad.write_text("{}")
    features, plain = read_tfrecord(path, schema), read_tfrecord(path)
    assert features.columns == plain.columns
    for name, ragged in plain.values.items():
        np.testing.assert_array_equal(features.values[name].values, ragged.values)
    with pytest.raises(DataError, match="cannot be read"):
        read_tfrecord(path, bad)


def test_ready_features_may_hold_the_share_that_is_evaluated(data: Path, tmp_path: Path) -> None:
    config = config_of(data, tmp_path, data_dir="", train_file=data / "train.tsv", train_data_file_path="a.mindrecord")
    with pytest.raises(ConfigError, match="development share of train_file") as error:
        CustomExamples(config)
    assert (error.value.key, error.value.value) == ("dev_file", "")


def test_ready_features_are_those_of_this_model(data: Path, run: Path, tmp_path: Path) -> None:
    """Vocabulary, length and labels must agree; the same rows give the same figures."""
    manifest = next(one for one in (data / "features").glob("*.facts.json") if read(one)["rows"] == 45)
    name = manifest.name.removesuffix(".facts.json")
    for file in manifest.parent.glob(f"{name}*"):
        shutil.copy(file, tmp_path)
    ready, manifest = tmp_path / f"{name}.mindrecord", tmp_path / manifest.name

    def evaluate(**changes: Any) -> None:
        settings = {"do_train": False, "load_finetune_checkpoint_path": run, "output_path": tmp_path / "out"}
        run_classifier.main(config_of(data, None, eval_data_file_path=ready, **settings | changes))

    evaluate()
    assert read(tmp_path / "out/eval_results.json")["accuracy"] == read(run / "eval_results.json")["accuracy"]
    with pytest.raises(ConfigError, match=r"max_eval_samples is 3, .* ready features in eval_data_file_path"):
        evaluate(max_eval_samples=3)
    whole = {key: value for key, value in read(manifest).items() if key != "checksum"}
    for key, value in (("vocab_sha256", "0" * 64), ("max_seq_length", 512), ("labels", ["good", "bad"])):
        manifest.write_text(json.dumps(whole | {key: value}))
        with pytest.raises(DataError, match=f"were made with {key} "):
            evaluate()


def test_token_ids_of_ready_features_are_those_of_this_model(data: Path, run: Path, tmp_path: Path) -> None:
    """google's TFRecords do not say which vocabulary made them."""
    known, large = tf_row([2, 5, 3], 3, label_ids=1), tf_row([2, 30_000, 3], 3, label_ids=1)
    rows = write_tfrecord(tmp_path / "rows.tfrecord", [known, large])
    settings = {"do_train": False, "load_finetune_checkpoint_path": run, "output_path": tmp_path / "out"}
    with pytest.raises(DataError, match=r"rows\.tfrecord has the token id 30000, but the model's vocabulary \d+"):
        run_classifier.main(config_of(data, None, eval_data_file_path=rows, **settings))


@pytest.mark.parametrize(("labels", "found"), [([0, 2, 1], "2"), ([-1], "-1"), ([0.5], "0.5")])
def test_labels_of_ready_features_are_those_of_the_task(data: Path, labels: list[float], found: str) -> None:
    config = config_of(data, None, do_train=False, load_finetune_checkpoint_path=data)
    task = ClassifierTask(config.replace(label_list=("bad", "good")), find_tokenizer(config))
    dtype = np.float32 if isinstance(labels[0], float) else np.int32
    records = SimpleNamespace(columns=["label_ids"], lengths=np.array([9]), array=lambda _: np.array(labels, dtype))
    with pytest.raises(DataError, match=rf"rows.tfrecord holds the label {found}, allowed are .* from 0 to 1"):
        task.check_ready(records, Path("rows.tfrecord"))


def test_ready_features_without_labels_and_labels_for_scores_are_refused(data: Path) -> None:
    config = config_of(data, None, do_train=False, load_finetune_checkpoint_path=data)
    classes = ClassifierTask(config.replace(label_list=("bad", "good")), find_tokenizer(config))
    with pytest.raises(DataError, match=r"rows\.mindrecord holds no labels, which training and evaluation need"):
        classes.check_ready(SimpleNamespace(columns=["input_ids"]), Path("rows.mindrecord"))
    long = SimpleNamespace(columns=["label_ids"], lengths=np.array([9, 512]))
    with pytest.raises(DataError, match="rows of 512 tokens, max_seq_length is "):
        classes.check_ready(long, Path("rows.tfrecord"))
    scores = ClassifierTask(config.replace(num_class=1), find_tokenizer(config))
    records = SimpleNamespace(columns=["label_ids"], lengths=np.array([9]), manifest={"labels": ["bad", "good"]})
    with pytest.raises(DataError, match="holds the labels bad, good, but num_class is 1"):
        scores.check_ready(records, Path("rows.mindrecord"))


def test_ready_scores_are_no_labels(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of classes is in num_class."""
    monkeypatch.setattr("src.tasks.classification.read_manifest", lambda _: {"labels": None})
    config = config_of(data, None, train_data_file_path="scores.mindrecord")
    with pytest.raises(ConfigError, match=r"scores\.mindrecord holds scores, not labels: give --num_class 1"):
        ClassifierTask(config, find_tokenizer(config))
