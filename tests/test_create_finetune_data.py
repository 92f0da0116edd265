"""Texts with labels: what is read, chosen and encoded, and what is refused with its line."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from model_utils.errors import DataError
from model_utils.schema import load_config
from src.create_finetune_data import (
    ClassificationSplit,
    Example,
    TextColumns,
    find_splits,
    read_examples,
    read_polarity_files,
)
from src.data.features import sample, split_off
from src.data.text_rows import encode_windows
from src.tasks.class_labels import drop_labels, find_labels
from src.tasks.classification_examples import ClassifierConfig, CustomExamples
from src.tokenization import FullTokenizer
from tests.helpers.feature_rows import split_rows

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = list("abcdefghij")
PAD, UNK, CLS, SEP, MASK = range(5)
A, B, C = 5, 6, 7
CHINESE = TextColumns("text_a", label="label", names=("text_a", "label"))


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory) -> FullTokenizer:
    path = tmp_path_factory.mktemp("vocabulary") / "vocab.txt"
    path.write_text("\n".join(SPECIALS + WORDS))
    return FullTokenizer(path)


def write(path, text):
    path.write_bytes(text.encode())
    return path


def example(text_a, text_b="", label=None, line=1):
    return Example(text_a, text_b, label, Path("f.tsv"), line)


def brief(examples):
    return [(each.line, each.text_a, each.text_b, each.label) for each in examples]


# --- reading ---


def test_one_configuration_reads_files_with_and_without_header(tmp_path):
    train = write(tmp_path / "train.tsv", "很好。\tpositive\r\n\r\n 不好 \tnegative\r\n")
    test = write(tmp_path / "test.tsv", "qid\ttext_a\n0\t还行\n1\t \n")
    assert brief(read_examples(train, CHINESE)) == [(1, "很好。", "", "positive"), (3, "不好", "", "negative")]
    assert brief(read_examples(test, CHINESE, labelled=False)) == [(2, "还行", "", None), (3, "", "", None)]


def test_columns_by_number_and_pairs(tmp_path):
    path = write(tmp_path / "a.csv", "y,second,first\n1,b,a\n0,d,c\n")
    assert brief(read_examples(path, TextColumns("3", "2", "1"))) == [(2, "a", "b", "1"), (3, "c", "d", "0")]


@pytest.mark.parametrize(("name", "told"), [("a.csv", True), ("a.jsonl", False)])
def test_columns_by_number_say_what_is_taken_for_the_header(tmp_path, caplog, name, told):
    text = {"a.csv": "one,x\ntwo,y\n", "a.jsonl": '{"a": "one", "b": "x"}\n'}[name]
    (tmp_path / name).write_text(text)
    with caplog.at_level("INFO"):
        read_examples(tmp_path / name, TextColumns("1", "", "2"))
    assert ("header (one, x)" in caplog.text) == told


def test_labels_of_a_test_set_are_read_where_there_are_any(tmp_path):
    path = write(tmp_path / "a.jsonl", '{"text": "a", "label": "x"}\n{"text": "b", "label": null}\n')
    assert brief(read_examples(path, TextColumns("text"), labelled=False)) == [(1, "a", "", "x"), (2, "b", "", None)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("text_a\tlabel\na\t1\n\t0\n", r"a\.tsv: line 3 is empty in column 'text_a'"),
        ("text_a\tlabel\na\t1\nb\t \n", "line 3 is empty in column 'label'"),
        ("text_a\tlabel\na\t1\nb\n", r"line 3 has 1 column\(s\), expected are 2"),
        ("text_a\tlabel\n", "holds no examples"),
        ("text_a\nb\n", "has no column 'label'"),
    ],
)
def test_training_rows_need_text_and_label(tmp_path, text, message):
    with pytest.raises(DataError, match=message):
        read_examples(write(tmp_path / "a.tsv", text), CHINESE)


def test_rows_may_be_skipped_with_a_reason(tmp_path):
    skipped = []
    path = write(tmp_path / "a.tsv", "text_a\tlabel\na\t1\n\t0\nb\nc\t\nd\t0\n")
    assert [each.line for each in read_examples(path, CHINESE, skipped=skipped)] == [2, 3, 6]
    told = ["line 4 has 1 column", "line 5 is empty in column 'label'"]
    assert all(part in sentence for part, sentence in zip(told, skipped, strict=True))


def test_files_of_positive_and_negative_texts(tmp_path):
    good = write(tmp_path / "good.txt", '\ufeffa "b"\tc\r\n\r\n d\n')
    bad = write(tmp_path / "bad.txt", "e")
    examples = read_polarity_files(good, bad)
    assert brief(examples) == [(1, 'a "b"\tc', "", "positive"), (3, "d", "", "positive"), (1, "e", "", "negative")]
    assert find_labels(examples) == ["negative", "positive"]
    with pytest.raises(DataError, match=r"empty\.txt holds no text"):
        read_polarity_files(good, write(tmp_path / "empty.txt", "\n\n"))


def test_splits_of_a_folder(tmp_path):
    files = {name: write(tmp_path / name, "a\n") for name in ("train.csv", "valid.jsonl", "labels.txt")}
    assert find_splits(str(tmp_path), {}) == {"train": files["train.csv"], "dev": files["valid.jsonl"]}
    write(tmp_path / "dev.tsv", "a\n")
    several = find_splits(str(tmp_path), {"dev": "", "test": "x.tsv"})
    assert several["train"] == files["train.csv"] and "dev" in several
    with pytest.raises(DataError, match=r"several dev files: dev\.tsv, valid\.jsonl; name one with --dev_file"):
        several["dev"]
    named = {"dev": str(tmp_path / "dev.tsv"), "test": ""}
    assert find_splits(str(tmp_path), named) == {"train": files["train.csv"], "dev": tmp_path / "dev.tsv"}
    assert find_splits("", named) == {"dev": tmp_path / "dev.tsv"}


def test_folders_without_splits(tmp_path):
    with pytest.raises(DataError, match=r"holds no file named train, dev or test, as train\.tsv, [^;]*$"):
        find_splits(str(tmp_path), {})
    write(tmp_path / "reviews.csv", "a\n")
    with pytest.raises(DataError, match=r"; name files with --train_file, --dev_file, --test_file: reviews\.csv$"):
        find_splits(str(tmp_path), {})
    with pytest.raises(DataError, match="is not a folder"):
        find_splits(str(tmp_path / "nowhere"), {})


def test_labels_are_told_and_many_numbers_are_taken_for_scores(caplog):
    caplog.set_level("INFO")
    find_labels([example("x", label=label) for label in "aabc"], 1)
    assert "4 examples, 1 of them for development; 3 labels: a (2), b (1), c (1)" in caplog.text
    assert "num_class" not in caplog.text
    find_labels([example("x", label=f"{label / 10}") for label in range(30)])
    assert "30 labels: 0.0 (1)" in caplog.text and " and 20 more" in caplog.text
    assert "all 30 labels are numbers" in caplog.text and "--num_class 1" in caplog.text


@pytest.mark.parametrize("labelled", [True, False])
def test_rows_without_a_label_may_be_left_out(tmp_path, labelled):
    path = write(tmp_path / "train.csv", "text_a,label\ngood,pos\nodd,\nodd,n/a\nbad,neg\n")
    read = read_examples(path, TextColumns(optional_label=True), labelled)
    assert [example.line for example in drop_labels(read, {"", "n/a"}, labelled)] == [2, 5]
    with pytest.raises(DataError, match="line 3 is empty in column 'label'"):
        read_examples(path, TextColumns())
    write(path, "text_a,label\ngood,\nbad,\n")
    unlabelled = read_examples(path, TextColumns(), labelled=False)
    assert drop_labels(unlabelled, {""}, labelled=False) == drop_labels(unlabelled, set(), labelled=False) == unlabelled
    write(path, "text_a,label\ngood,-1\nbad,\n")
    marked = read_examples(path, TextColumns(), labelled=False)
    assert [example.label for example in drop_labels(marked, set(), labelled=False)] == [None, None]


def test_the_option_leaves_out_rows_without_a_label(tmp_path):
    write(tmp_path / "train.csv", "text_a,label\ngood,pos\nodd,\nodd,n/a\nbad,neg\n")
    write(tmp_path / "dev.csv", "text_a,label\ngood,pos\nbad,neg\n")
    words = ["--data_dir", str(tmp_path), "--skip_labels", '["", "n/a"]', "--vocab_file_path", "v"]
    config = load_config(ClassifierConfig, [*words, "--save_finetune_checkpoint_path", "r"])
    assert [example.line for example in CustomExamples(config).read("train")] == [2, 5]


def test_labels_are_sorted_and_at_least_two():
    assert find_labels([example("x", label=label) for label in "bacab"]) == ["a", "b", "c"]
    with pytest.raises(DataError, match=r"f\.tsv has 1 label\(s\) \(a\), needed are at least two"):
        find_labels([example("x", label="a")] * 3)


def test_real_chinese_files(shared):
    folder = shared / "data" / "zh" / "ChnSentiCorp"
    splits = find_splits(str(folder), {})
    sizes = {split: len(read_examples(path, CHINESE, split != "test")) for split, path in splits.items()}
    assert sizes == {"train": 9600, "dev": 1200, "test": 1200}
    assert find_labels(read_examples(splits["train"], CHINESE)) == ["negative", "positive"]


# --- choosing ---


@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 3))
def test_smaller_samples_are_parts_of_larger_ones(size, most, seed):
    items = list(range(size))
    smaller, larger = sample(items, most, seed), sample(items, most + 1, seed)
    assert len(smaller) == min(size, most)
    assert smaller == sorted(smaller) == sample(items, most, seed)
    assert set(smaller) <= set(larger)


def test_samples_are_not_the_first_rows():
    items = list(range(1000))
    assert sample(items, 100, 1) not in (items[:100], sample(items, 100, 2))
    assert sample(items, 0, 1) == items


@given(st.integers(2, 50), st.floats(0.1, 0.9), st.integers(0, 3))
def test_two_parts_hold_every_item_once(size, ratio, seed):
    items = list(range(size))
    if not 0 < round(ratio * size) < size:
        return
    rest, part = split_off(items, ratio, seed)
    assert sorted(rest + part) == items
    assert len(part) == round(ratio * size)
    assert (rest, part) == (sorted(rest), sorted(part)) == split_off(items, ratio, seed)


@given(st.lists(st.integers(0, 3), min_size=10, max_size=60), st.floats(0.1, 0.5), st.integers(0, 3))
def test_each_class_has_its_share_of_both_parts(classes, ratio, seed):
    labels = list(map(str, classes))
    items = list(enumerate(labels))
    counts = Counter(labels)
    assume(round(ratio * len(items)) <= len(items) - len(counts))
    rest, part = split_off(items, ratio, seed, labels)
    assert sorted(rest + part) == items
    assert len(part) == round(ratio * len(items))
    assert (rest, part) == (sorted(rest), sorted(part)) == split_off(items, ratio, seed, labels)
    assert {label for _, label in rest} == set(labels)
    chosen = Counter(label for _, label in part)
    share = len(part) / (len(items) - len(counts))
    for label, count in counts.items():
        assert abs(chosen[label] - share * (count - 1)) < 1


def test_too_many_classes_are_split_as_without_them():
    items = list(range(20))
    labels = list(map(str, items))
    assert split_off(items, 0.1, 3, labels) == split_off(items, 0.1, 3)


def test_too_few_examples_for_two_parts():
    with pytest.raises(DataError, match=r"4 examples cannot be split into two parts with 0\.1 .*\(dev_file\)"):
        split_off([1, 2, 3, 4], 0.1, 0)


# --- features ---


def test_rows_of_one_and_two_texts(tokenizer):
    values, truncated, _ = encode_windows(["a b", "c", "z", ""], ["c", "", "  ", "b"], tokenizer, 16)
    assert split_rows(values["input_ids"]) == [
        [CLS, A, B, SEP, C, SEP],
        [CLS, C, SEP],
        [CLS, UNK, SEP],
        [CLS, SEP, B, SEP],
    ]
    assert split_rows(values["segment_ids"]) == [[0, 0, 0, 0, 1, 1], [0] * 3, [0] * 3, [0, 0, 1, 1]]
    assert values["input_mask"].values.tolist() == [1] * 16
    assert {ragged.values.dtype for ragged in values.values()} == {np.dtype(np.int32)}
    assert not truncated.any()


def shortened(a, b, most):
    """google's _truncate_seq_pair, as it describes itself: the longer one loses its last token, one at a time."""
    a, b = list(a), list(b)
    while len(a) + len(b) > most:
        (a if len(a) > len(b) else b).pop()
    return a, b


@given(st.text("abcdefghij", max_size=12), st.text("abcdefghij", min_size=1, max_size=12), st.integers(3, 20))
def test_pairs_are_cut_as_googles(tokenizer, a, b, width):
    values, truncated, _ = encode_windows([" ".join(a)], [" ".join(b)], tokenizer, width)
    kept_a, kept_b = shortened(tokenizer.encode(" ".join(a)), tokenizer.encode(" ".join(b)), width - 3)
    assert values["input_ids"].values.tolist() == [CLS, *kept_a, SEP, *kept_b, SEP]
    assert values["segment_ids"].values.tolist() == [0] * (len(kept_a) + 2) + [1] * (len(kept_b) + 1)
    assert truncated.tolist() == [len(a) + len(b) > width - 3]


def test_single_texts_are_cut_at_their_end(tokenizer):
    values, truncated, _ = encode_windows(["a b c", "a b"], ["", ""], tokenizer, 4)
    assert split_rows(values["input_ids"]) == [[CLS, A, B, SEP]] * 2
    assert truncated.tolist() == [True, False]


def test_classification_rows(tokenizer, capsys):
    examples = [example("a b c", label="y"), example("b", label="x"), example("c", label="y")]
    features = ClassificationSplit("train", examples, ["x", "y"], tokenizer, 4).features()
    assert capsys.readouterr().out == "f.tsv: 1 of 3 examples have more than 4 tokens and are cut\n"
    assert features.values["label_ids"].values.tolist() == features.arrays["labels"].tolist() == [1, 0, 1]
    assert features.values["label_ids"].counts.tolist() == [1, 1, 1]
    assert features.columns["label_ids"].dtype == str(features.values["label_ids"].values.dtype) == "int32"
    assert {features.columns[name].width for name in ("input_ids", "input_mask", "segment_ids")} == {4}
    assert features.columns["label_ids"].width == 0


def test_regression_rows(tokenizer):
    features = ClassificationSplit(
        "train", [example("a", label="4.75"), example("b", label="0")], None, tokenizer, 8
    ).features()
    assert features.columns["label_ids"].dtype == "float32"
    assert features.arrays["labels"].tolist() == [4.75, 0.0]


def test_unlabelled_rows(tokenizer):
    features = ClassificationSplit("test", [example("a"), example("")], ["x", "y"], tokenizer, 8).features()
    assert set(features.columns) == set(features.values) == {"input_ids", "input_mask", "segment_ids"}
    assert not features.arrays


@pytest.mark.parametrize(
    ("examples", "labels", "message"),
    [
        ([], ["x"], "there are no examples"),
        ([example("a", label="x"), example("b", label="z", line=7)], ["x", "y"], r"f\.tsv: line 7 has the label 'z'"),
        ([example("a", label="x"), example("b", line=7)], ["x"], r"f\.tsv: line 7 has no label"),
        ([example("a", label="good", line=7)], None, r"f\.tsv: line 7 has the label 'good', allowed are numbers"),
        ([example("a", label="inf")], None, "allowed are numbers"),
        ([example("a", label="1e300")], None, r"has the label '1e300', allowed are numbers from -1e\+06 to 1e\+06"),
    ],
)
def test_labels_that_are_refused(tokenizer, examples, labels, message):
    with pytest.raises(DataError, match=message):
        ClassificationSplit("train", examples, labels, tokenizer, 8).features()


def test_manifests_tell_everything_that_decides(tokenizer, tmp_path):
    base = ([example("a", "b", "x"), example("c", "d", "y")], ["x", "y"], tokenizer, 8)
    manifest = ClassificationSplit("train", *base).manifest()
    assert json.loads(json.dumps(manifest)) == manifest == ClassificationSplit("dev", *base).manifest()
    other = FullTokenizer(write(tmp_path / "vocab.txt", "\n".join([*SPECIALS, *WORDS, "k"])))
    changed = [
        (base[0][:1], *base[1:]),
        ([example("a", "b", "x"), example("c", "d", "x")], *base[1:]),
        ([example("a", "bc", "x"), example("", "d", "y")], *base[1:]),
        (base[0], ["y", "x"], *base[2:]),
        (base[0], None, *base[2:]),
        (base[0], base[1], other, 8),
        (base[0], base[1], FullTokenizer(tokenizer.file, do_lower_case=False), 8),
        (*base[:3], 9),
    ]
    assert all(ClassificationSplit("train", *arguments).manifest() != manifest for arguments in changed)
