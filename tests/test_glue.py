"""Tasks of GLUE and CLUE: files in their published form, label order, metrics, submissions."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from model_utils.errors import DataError
from src.assessment_method import METHODS
from src.tasks.glue import CLUE_TASKS, GLUE_TASKS, read_glue, write_submission

NLI_HEADER = "index\tpromptID\tpairID\tgenre\tsentence1_binary_parse\tsentence2_binary_parse"
NLI_HEADER += "\tsentence1_parse\tsentence2_parse\tsentence1\tsentence2"
NLI_ROW = "0\t1\t1n\ttravel\t( a )\t( b )\t(R a)\t(R b)\ta\tb"
STSB_HEADER = "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2"
STSB_ROW = "0\tcaptions\tvid\t2012\t0024\tnone\tnone\tA man.\tA boy."
MRPC_HEADER = "#1 ID\t#2 ID\t#1 String\t#2 String"
QUOTED = '\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\r\n1\t10\t20\tHe said, "No.\t"No," he said.\r\n'
FIVE_LABELS = "\tlabel1\tlabel2\tlabel3\tlabel4\tlabel5\tgold_label"
FIVE_ANSWERS = "\tneutral\tneutral\tneutral\tneutral\tentailment\tneutral"
PAIR_HEADER = "index\tsentence1\tsentence2"
QQP_HEADER = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate"
# File and contents in the published form, and what is read: line, texts, label.
PUBLISHED = [
    ("CoLA/train", "gj04\t1\t\tOne.\ngj04\t0\t*\tTwo.\n", [(1, "One.", "", "1"), (2, "Two.", "", "0")]),
    ("CoLA/test", "index\tsentence\n0\tBill whistled.\n", [(2, "Bill whistled.", "", None)]),
    ("SST-2/train", 'sentence\tlabel\nan "art film \t1\n', [(2, 'an "art film', "", "1")]),
    ("SST-2/test", "index\tsentence\n0\t\n1\tuneasy\n", [(2, "", "", None), (3, "uneasy", "", None)]),
    ("MRPC/dev", QUOTED, [(2, 'He said, "No.', '"No," he said.', "1")]),
    ("MRPC/test", f"index\t{MRPC_HEADER}\n0\t10\t20\tOne.\tTwo.\n", [(2, "One.", "Two.", None)]),
    ("MRPC/test", f"Quality\t{MRPC_HEADER}\n0\t10\t20\tOne.\tTwo.\n", [(2, "One.", "Two.", "0")]),
    ("QQP/dev", f"{QQP_HEADER}\n201\t3\t4\tWhy?\tWhy not?\t0\n", [(2, "Why?", "Why not?", "0")]),
    ("QQP/test", "id\tquestion1\tquestion2\n0\tWhy?\t\n", [(2, "Why?", "", None)]),
    ("STS-B/dev", f"{STSB_HEADER}\tscore\n{STSB_ROW}\t4.750\n", [(2, "A man.", "A boy.", "4.750")]),
    ("STS-B/test", f"{STSB_HEADER}\n{STSB_ROW}\n", [(2, "A man.", "A boy.", None)]),
    ("MNLI/train", f"{NLI_HEADER}\tlabel1\tgold_label\n{NLI_ROW}\tentailment\tneutral\n", [(2, "a", "b", "neutral")]),
    ("MNLI/dev_mismatched", f"{NLI_HEADER}{FIVE_LABELS}\n{NLI_ROW}{FIVE_ANSWERS}\n", [(2, "a", "b", "neutral")]),
    ("MNLI/test_matched", f"{NLI_HEADER}\n{NLI_ROW}\n", [(2, "a", "b", None)]),
    ("QNLI/train", "index\tquestion\tsentence\tlabel\n0\tWho?\tHe.\tyes\n", [(2, "Who?", "He.", "yes")]),
    ("RTE/test", f"{PAIR_HEADER}\n0\tA.\tB.\n", [(2, "A.", "B.", None)]),
    ("WNLI/dev", f"{PAIR_HEADER}\tlabel\n0\tIt fell.\tA cup.\t1\n", [(2, "It fell.", "A cup.", "1")]),
    ("diagnostic/diagnostic", f"{PAIR_HEADER}\n0\tThe cat.\tNo.\n", [(2, "The cat.", "No.", None)]),
]

# The same for CLUE: folder and file, rows as published, and what is read.
CLUE_PUBLISHED = [
    (
        "tnews_public/train.json",
        [{"label": "108", "label_desc": "news_edu", "sentence": "上课时学生手机响个不停", "keywords": ""}],
        [("上课时学生手机响个不停", "", "news_edu")],
    ),
    ("tnews_public/test.json", [{"id": 0, "sentence": "为什么", "keywords": "a,b"}], [("为什么", "", None)]),
    (
        "iflytek_public/dev.json",
        [{"label": "110", "label_des": "社区超市", "sentence": "朴朴快送超市"}],
        [("朴朴快送超市", "", "110")],
    ),
    ("iflytek_public/test.json", [{"id": 0, "sentence": "应用"}], [("应用", "", None)]),
    (
        "afqmc_public/train.json",
        [{"sentence1": "双十一花呗提额在哪", "sentence2": "里可以提花呗额度", "label": "0"}],
        [("双十一花呗提额在哪", "里可以提花呗额度", "0")],
    ),
    ("afqmc_public/test.json", [{"id": 0, "sentence1": "甲", "sentence2": "乙"}], [("甲", "乙", None)]),
    (
        "cmnli_public/train.json",
        [{"sentence1": "新的权利", "sentence2": "每个人", "label": "neutral"}],
        [("新的权利", "每个人", "neutral")],
    ),
    ("cmnli_public/test.json", [{"id": 0, "sentence1": "甲", "sentence2": "乙"}], [("甲", "乙", None)]),
    (
        "ocnli_public/train.50k.json",
        [
            {
                **{"level": "medium", "sentence1": "身上裹一件工厂发的棉大衣", "sentence2": "身上至少一件衣服"},
                **{"label": "entailment", "label0": "entailment", "genre": "lit", "prem_id": "lit_635", "id": 0},
            }
        ],
        [("身上裹一件工厂发的棉大衣", "身上至少一件衣服", "entailment")],
    ),
    (
        "ocnli_public/test.json",
        [{"level": "easy", "sentence1": "甲", "sentence2": "乙", "genre": "lit", "prem_id": "lit_1", "id": 0}],
        [("甲", "乙", None)],
    ),
    (
        "csl_public/train.json",
        [{"id": 1, "abst": "为解决传统均匀FFT", "keyword": ["水声 通信", "FFT", "波束形成"], "label": "1"}],
        [("水声 通信 FFT 波束形成", "为解决传统均匀FFT", "1")],
    ),
    ("csl_public/test.json", [{"id": 2415, "abst": "乙", "keyword": ["甲"]}], [("甲", "乙", None)]),
]


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode())


@pytest.mark.parametrize(("name", "text", "expected"), PUBLISHED)
def test_published_files(tmp_path, name, text, expected):
    write(tmp_path / f"{name}.tsv", text)
    folder, split = name.split("/")
    task, split = ("ax", "test") if folder == "diagnostic" else (folder.lower(), split)
    for place in (tmp_path, tmp_path / folder):
        examples = read_glue(task, place, split)
        assert [(each.line, each.text_a, each.text_b, each.label) for each in examples] == expected
        assert {each.file for each in examples} == {tmp_path / f"{name}.tsv"}


@pytest.mark.parametrize(("file", "rows", "expected"), CLUE_PUBLISHED)
def test_published_files_of_clue(tmp_path, file, rows, expected):
    write(tmp_path / file, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    folder, name = file.split("/")
    for place in (tmp_path, tmp_path / folder):
        examples = read_glue(folder.removesuffix("_public"), place, name.split(".")[0])
        assert [(one.text_a, one.text_b, one.label) for one in examples] == expected


@pytest.mark.parametrize(
    ("name", "count", "some"),
    [
        ("tnews", 15, {"news_story", "news_agriculture", "news_game"}),
        ("iflytek", 119, {"0", "118"}),
        ("cmnli", 3, {"contradiction", "entailment", "neutral"}),
        ("ocnli", 3, {"contradiction", "entailment", "neutral"}),
        ("afqmc", 2, {"0", "1"}),
        ("csl", 2, {"0", "1"}),
    ],
)
def test_labels_and_metrics_of_clue(name, count, some):
    task = CLUE_TASKS[name]
    assert len(set(task.labels)) == count and some <= set(task.labels)
    assert task.metric == "accuracy"


@pytest.mark.parametrize(
    ("names", "labels", "metrics"),
    [
        ("cola", ("0", "1"), {"mcc"}),
        ("sst-2 wnli", ("0", "1"), {"accuracy"}),
        ("mrpc qqp", ("0", "1"), {"f1", "accuracy"}),
        ("mnli", ("contradiction", "entailment", "neutral"), {"accuracy"}),
        ("qnli rte", ("entailment", "not_entailment"), {"accuracy"}),
        ("sts-b", (), {"spearman_correlation", "pearson_correlation"}),
    ],
)
def test_labels_are_in_googles_order_and_metrics_official(names, labels, metrics):
    for name in names.split():
        task = GLUE_TASKS[name]
        assert task.labels == labels
        assert metrics <= set(METHODS[task.metric])
    assert GLUE_TASKS["ax"].labels == GLUE_TASKS["mnli"].labels


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
    """google does the same; empty questions stay."""
    rows = ["1\t3\t4\tWhy?\tWhy not?\t0", "2\t5\t6\tHow does one", "do this?\tHow?\t1", "3\t7\t8\tWho?\t\t0"]
    write(tmp_path / f"QQP/{split}.tsv", "\n".join([QQP_HEADER, *rows, "4\t9\t10\tWhen?\tWhen is it?\t1"]) + "\n")
    examples = read_glue("qqp", tmp_path, split)
    assert [(one.line, one.text_a, one.text_b, one.label) for one in examples] == [
        (2, "Why?", "Why not?", "0"),
        (5, "Who?", "", "0"),
        (6, "When?", "When is it?", "1"),
    ]
    assert re.search(r"2 broken row\(s\) of 5; .*line 3 has 4 column\(s\), .* 6", capsys.readouterr().out)


@pytest.mark.parametrize(
    ("task", "file", "text", "named"),
    [
        ("sst-2", "SST-2/train.tsv", "sentence\tlabel\ngood\t1\nbad\n", r"train\.tsv: line 3 has 1 column"),
        ("sst-2", "SST-2/train.tsv", "sentence\tlabel\n  \t1\n", "line 2 .* 'sentence'"),
        ("sst-2", "SST-2/train.tsv", "sentence\tlabel\ngood\t\n", "line 2 .* 'label'"),
        ("sst-2", "SST-2/train.tsv", "sentence\tlabel\n", "no examples"),
        ("rte", "RTE/train.tsv", "index\tsentence1\tsentence2\n0\ta\tb\n", "no column 'label'"),
        ("cola", "CoLA/train.tsv", "gj04\t1\t\tOne.\ngj04\t1\tOne.\n", "line 2 has 3 column"),
        ("sts-b", "STS-B/train.tsv", "sentence1\tsentence2\tscore\na\tb\t5.2\n", r"line 2 .* 5\.2"),
        ("sts-b", "STS-B/train.tsv", "sentence1\tsentence2\tscore\na\tb\tnan\n", "'nan'"),
        ("qqp", "QQP/test.tsv", "id\tquestion1\tquestion2\n0\tWhy?\n", r"test\.tsv: line 2 has 2 column"),
        ("rte", "RTE/other.tsv", "", r"train\.tsv cannot be read"),
        ("rte", "RTE/train.csv", "", r"train\.tsv cannot be read: .*--task_name custom"),
        ("ax", "diagnostic/train.tsv", "", "ax has no train split, but test"),
    ],
)
def test_faults_are_named(tmp_path, task, file, text, named):
    """No row of a test set is left out."""
    write(tmp_path / file, text)
    with pytest.raises(DataError, match=named):
        read_glue(task, tmp_path, "test" if task == "qqp" else "train")


# --- submissions ---


def test_submission_files_have_the_servers_names():
    names = {name for task in GLUE_TASKS.values() for name in task.submissions.values()}
    assert names == {f"{name}.tsv" for name in "CoLA SST-2 MRPC QQP STS-B MNLI-m MNLI-mm QNLI RTE WNLI AX".split()}
    assert all(set(task.submissions) == set(task.test_splits) for task in GLUE_TASKS.values())


def test_submissions_hold_labels_by_row(tmp_path):
    path = write_submission(tmp_path, "mnli", "test_mismatched", np.array([2, 0, 1]), Path("unread.tsv"))
    assert path == tmp_path / "MNLI-mm.tsv"
    assert path.read_text() == "index\tprediction\n0\tneutral\n1\tcontradiction\n2\tentailment\n"


def test_submitted_scores_are_those_of_the_scale(tmp_path):
    path = write_submission(tmp_path, "sts-b", "test", np.array([-0.1, 2.34567, 5.2], np.float32), Path("unread.tsv"))
    assert path.read_text() == "index\tprediction\n0\t0.000\n1\t2.346\n2\t5.000\n"


def test_submission_files_of_clue_have_the_servers_names():
    names = {task.submissions["test"] for task in CLUE_TASKS.values()}
    assert names == {f"{name}_predict.json" for name in "tnews11 iflytek afqmc cmnli ocnli_50k csl".split()}


@pytest.mark.parametrize(
    ("name", "labels"),
    [("tnews", {0: "100", 5: "106", 14: "116"}), ("iflytek", {118: "118"}), ("ocnli", {2: "neutral"})],
)
@pytest.mark.parametrize("with_ids", [True, False])
def test_submissions_of_clue_hold_ids_and_labels(tmp_path, name, labels, with_ids):
    ids = [7 * index for index in range(len(labels))] if with_ids else list(range(len(labels)))
    rows = [{"sentence": "a", "sentence1": "a"} | ({"id": row_id} if with_ids else {}) for row_id in ids]
    write(tmp_path / "test.json", "\n".join(map(json.dumps, rows)))
    path = write_submission(tmp_path, name, "test", np.array([*labels]), tmp_path / "test.json")
    written = [json.loads(line) for line in path.read_text().splitlines()]
    assert written == [{"id": row_id, "label": label} for row_id, label in zip(ids, labels.values(), strict=True)]


@pytest.mark.parametrize(
    "row", ['{"sentence": 1}', '{"label_desc": "x"}', '{"keyword": [["a"]], "abst": "b", "label": 1}']
)
@pytest.mark.parametrize("name", ["tnews", "csl"])
def test_faults_of_clue_are_named(tmp_path, name, row):
    write(tmp_path / "train.json", row)
    with pytest.raises(DataError, match=r"train\.json"):
        read_glue(name, tmp_path, "train")
