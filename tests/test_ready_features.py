"""Features that are ready in files: which are read, and what is refused."""

import json

import numpy as np
import pytest

from model_utils.errors import DataError
from src.data.ready_features import read_tfrecord
from tests.helpers.feature_rows import split_rows
from tests.helpers.tfrecord_files import tf_example, tf_row, write_tfrecord

CLS, SEP, A, B = 2, 3, 5, 6


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
    with pytest.raises(DataError, match=r"b\.tfrecord: record 2 has no token, its input_mask is 0 throughout"):
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
