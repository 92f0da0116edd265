"""GLUE's tasks: files in their published form, label order, metrics, submissions."""

import numpy as np
import pytest

from model_utils.errors import DataError
from src.assessment_method import METHODS
from src.tasks.glue import GLUE_TASKS, read_glue, write_submission

NLI_HEADER = (
    "index\tpromptID\tpairID\tgenre\tsentence1_binary_parse\tsentence2_binary_parse\tsentence1_parse\tsentence2_parse"
    "\tsentence1\tsentence2"
)
STSB_HEADER = "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2"
# Task, split, file and contents in the published form, and what is read: line, texts, label.
PUBLISHED = [
    (
        "cola",
        "train",
        "CoLA/train.tsv",
        "gj04\t1\t\tOne more.\ngj04\t0\t*\tMore one.\n",
        [(1, "One more.", "", "1"), (2, "More one.", "", "0")],
    ),
    ("cola", "test", "CoLA/test.tsv", "index\tsentence\n0\tBill whistled.\n", [(2, "Bill whistled.", "", None)]),
    (
        "sst-2",
        "train",
        "SST-2/train.tsv",
        'sentence\tlabel\nan "art film \t1\n',
        [(2, 'an "art film', "", "1")],
    ),
    (
        "sst-2",
        "test",
        "SST-2/test.tsv",
        "index\tsentence\n0\t\n1\tuneasy\n",
        [(2, "", "", None), (3, "uneasy", "", None)],
    ),
    (
        "mrpc",
        "dev",
        "MRPC/dev.tsv",
        '\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\r\n1\t10\t20\tHe said, "No.\t"No," he said.\r\n',
        [(2, 'He said, "No.', '"No," he said.', "1")],
    ),
    (
        "mrpc",
        "test",
        "MRPC/test.tsv",
        "index\t#1 ID\t#2 ID\t#1 String\t#2 String\n0\t10\t20\tOne.\tTwo.\n",
        [(2, "One.", "Two.", None)],
    ),
    (
        "mrpc",
        "test",
        "MRPC/test.tsv",
        "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n0\t10\t20\tOne.\tTwo.\n",
        [(2, "One.", "Two.", "0")],
    ),
    (
        "qqp",
        "dev",
        "QQP/dev.tsv",
        "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n201\t3\t4\tWhy?\tWhy not?\t0\n",
        [(2, "Why?", "Why not?", "0")],
    ),
    ("qqp", "test", "QQP/test.tsv", "id\tquestion1\tquestion2\n0\tWhy?\t\n", [(2, "Why?", "", None)]),
    (
        "sts-b",
        "dev",
        "STS-B/dev.tsv",
        f"{STSB_HEADER}\tscore\n0\tcaptions\tvid\t2012\t0024\tnone\tnone\tA man.\tA boy.\t4.750\n",
        [(2, "A man.", "A boy.", "4.750")],
    ),
    (
        "sts-b",
        "test",
        "STS-B/test.tsv",
        f"{STSB_HEADER}\n0\tcaptions\tvid\t2012\t0024\tnone\tnone\tA man.\tA boy.\n",
        [(2, "A man.", "A boy.", None)],
    ),
    (
        "mnli",
        "train",
        "MNLI/train.tsv",
        f"{NLI_HEADER}\tlabel1\tgold_label\n0\t1\t1n\ttravel\t( a )\t( b )\t(R a)\t(R b)\ta\tb\tentailment\tneutral\n",
        [(2, "a", "b", "neutral")],
    ),
    (
        "mnli",
        "dev_mismatched",
        "MNLI/dev_mismatched.tsv",
        f"{NLI_HEADER}\tlabel1\tlabel2\tlabel3\tlabel4\tlabel5\tgold_label\n"
        "0\t1\t1n\ttravel\t( a )\t( b )\t(R a)\t(R b)\ta\tb\tneutral\tneutral\tneutral\tneutral\tentailment\tneutral\n",
        [(2, "a", "b", "neutral")],
    ),
    (
        "mnli",
        "test_matched",
        "MNLI/test_matched.tsv",
        f"{NLI_HEADER}\n0\t1\t1n\ttravel\t( a )\t( b )\t(R a)\t(R b)\ta\tb\n",
        [(2, "a", "b", None)],
    ),
    (
        "qnli",
        "train",
        "QNLI/train.tsv",
        "index\tquestion\tsentence\tlabel\n0\tWho?\tHe.\tnot_entailment\n",
        [(2, "Who?", "He.", "not_entailment")],
    ),
    (
        "rte",
        "test",
        "RTE/test.tsv",
        "index\tsentence1\tsentence2\n0\tA.\tB.\n",
        [(2, "A.", "B.", None)],
    ),
    (
        "wnli",
        "dev",
        "WNLI/dev.tsv",
        "index\tsentence1\tsentence2\tlabel\n0\tIt fell.\tThe cup fell.\t1\n",
        [(2, "It fell.", "The cup fell.", "1")],
    ),
    (
        "ax",
        "test",
        "diagnostic/diagnostic.tsv",
        "index\tsentence1\tsentence2\n0\tThe cat sat.\tThe cat did not sit.\n",
        [(2, "The cat sat.", "The cat did not sit.", None)],
    ),
]


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode())


@pytest.mark.parametrize(("task", "split", "file", "text", "expected"), PUBLISHED)
def test_published_files(tmp_path, task, split, file, text, expected):
    write(tmp_path / file, text)
    for folder in (tmp_path, (tmp_path / file).parent):
        examples = read_glue(task, folder, split)
        assert [(each.line, each.text_a, each.text_b, each.label) for each in examples] == expected
        assert {each.file for each in examples} == {tmp_path / file}


def test_labels_are_in_googles_order():
    nli = ("contradiction", "entailment", "neutral")
    entailment = ("entailment", "not_entailment")
    expected = {
        **dict.fromkeys(("cola", "sst-2", "mrpc", "qqp", "wnli"), ("0", "1")),
        **dict.fromkeys(("mnli", "ax"), nli),
        **dict.fromkeys(("qnli", "rte"), entailment),
        "sts-b": (),
    }
    assert {name: task.labels for name, task in GLUE_TASKS.items()} == expected


def test_official_metrics():
    metrics = {name: METHODS[task.metric] for name, task in GLUE_TASKS.items()}
    assert metrics["cola"][0] == "mcc"
    assert metrics["sts-b"] == ("spearman_correlation", "pearson_correlation")
    assert metrics["mrpc"] == metrics["qqp"] == ("f1", "accuracy")
    assert {metrics[name] for name in ("sst-2", "mnli", "qnli", "rte", "wnli")} == {("accuracy",)}


def test_mnli_has_two_development_sets():
    assert GLUE_TASKS["mnli"].dev_splits == ("dev_matched", "dev_mismatched")
    assert GLUE_TASKS["mnli"].test_splits == ("test_matched", "test_mismatched")
    assert GLUE_TASKS["rte"].dev_splits == ("dev",)


@pytest.mark.parametrize(
    ("task", "split", "texts", "labels"),
    [
        ("sst-2", "train", 67349, {"0": 29780, "1": 37569}),
        ("sst-2", "dev", 872, {"0": 428, "1": 444}),
        ("mrpc", "train", 4076, {"0": 1323, "1": 2753}),
        ("mrpc", "dev", 1725, {"0": 578, "1": 1147}),
        ("rte", "train", 2490, {"entailment": 1249, "not_entailment": 1241}),
        ("rte", "dev", 277, {"entailment": 146, "not_entailment": 131}),
        ("rte", "test", 3000, {None: 3000}),
        ("qnli", "dev", 5463, {"entailment": 2702, "not_entailment": 2761}),
    ],
)
def test_real_files(shared, task, split, texts, labels):
    examples = read_glue(task, shared / "data" / "glue", split)
    counts = {label: sum(each.label == label for each in examples) for label in {each.label for each in examples}}
    assert (len(examples), counts) == (texts, labels)


# --- what is wrong ---


@pytest.mark.parametrize("split", ["train", "dev"])
def test_broken_rows_of_qqp_are_left_out_and_counted(tmp_path, capsys, split):
    """As google does; empty questions stay."""
    rows = [
        "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate",
        "1\t3\t4\tWhy?\tWhy not?\t0",
        "2\t5\t6\tHow does one",
        "do this?\tHow?\t1",
        "3\t7\t8\tWho?\t\t0",
        "4\t9\t10\tWhen?\tWhen is it?\t1",
    ]
    write(tmp_path / f"QQP/{split}.tsv", "\n".join(rows) + "\n")
    examples = read_glue("qqp", tmp_path, split)
    assert [(one.line, one.text_a, one.text_b, one.label) for one in examples] == [
        (2, "Why?", "Why not?", "0"),
        (5, "Who?", "", "0"),
        (6, "When?", "When is it?", "1"),
    ]
    (sentence,) = capsys.readouterr().out.splitlines()
    assert sentence.startswith("left out 2 broken row(s) of 5; the first one: ")
    assert "line 3 has 4 column(s), expected are 6" in sentence


def test_no_row_of_a_test_set_is_left_out(tmp_path):
    write(tmp_path / "QQP/test.tsv", "id\tquestion1\tquestion2\n0\tWhy?\n")
    with pytest.raises(DataError, match=r"test\.tsv: line 2 has 2 column"):
        read_glue("qqp", tmp_path, "test")


@pytest.mark.parametrize(
    ("task", "file", "text", "message"),
    [
        ("sst-2", "SST-2/train.tsv", "sentence\tlabel\ngood\t1\nbad\n", r"train\.tsv: line 3 has 1 column"),
        ("sst-2", "SST-2/train.tsv", "sentence\tlabel\n  \t1\n", "line 2 is empty in column 'sentence'"),
        ("sst-2", "SST-2/train.tsv", "sentence\tlabel\ngood\t\n", "line 2 is empty in column 'label'"),
        ("sst-2", "SST-2/train.tsv", "sentence\tlabel\n", "holds no examples"),
        ("rte", "RTE/train.tsv", "index\tsentence1\tsentence2\n0\ta\tb\n", "has no column 'label'"),
        ("cola", "CoLA/train.tsv", "gj04\t1\t\tOne.\ngj04\t1\tOne.\n", "line 2 has 3 column"),
        ("sts-b", "STS-B/train.tsv", "sentence1\tsentence2\tscore\na\tb\t5.2\n", "line 2 has the score 5.2"),
        ("sts-b", "STS-B/train.tsv", "sentence1\tsentence2\tscore\na\tb\tnan\n", "label 'nan', allowed are numbers"),
        ("rte", "RTE/other.tsv", "", r"train\.tsv cannot be read: No such file"),
        ("ax", "diagnostic/train.tsv", "", "ax has no train split, but test"),
    ],
)
def test_faults(tmp_path, task, file, text, message):
    write(tmp_path / file, text)
    with pytest.raises(DataError, match=message):
        read_glue(task, tmp_path, "train")


# --- submissions ---


def test_submission_files_have_the_servers_names():
    names = {name for task in GLUE_TASKS.values() for name in task.submissions.values()}
    assert names == {f"{name}.tsv" for name in "CoLA SST-2 MRPC QQP STS-B MNLI-m MNLI-mm QNLI RTE WNLI AX".split()}
    assert all(set(task.submissions) == set(task.test_splits) for task in GLUE_TASKS.values())


def test_submissions_hold_labels_by_row(tmp_path):
    path = write_submission(tmp_path, "mnli", "test_mismatched", np.array([2, 0, 1]))
    assert path == tmp_path / "MNLI-mm.tsv"
    assert path.read_text() == "index\tprediction\n0\tneutral\n1\tcontradiction\n2\tentailment\n"


def test_submitted_scores_are_those_of_the_scale(tmp_path):
    path = write_submission(tmp_path, "sts-b", "test", np.array([-0.1, 2.34567, 5.2], np.float32))
    assert path.read_text() == "index\tprediction\n0\t0.000\n1\t2.346\n2\t5.000\n"
