"""GLUE and CLUE tasks by name: files, columns, labels, official metrics and submission files.

Labels are in the order of google-research/albert's classifier_utils, so that classifiers of converted checkpoints
agree. google finds columns by number; here the header names them, so that files with additional columns work. CLUE's
tasks of text classification (https://www.cluebenchmarks.com) are JSON lines.
"""

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from model_utils.errors import DataError
from model_utils.files import write_text
from src.create_finetune_data import Example, TextColumns, read_examples, score_of
from src.text.text_tables import read_table

logger = logging.getLogger(__name__)
HIGHEST_SCORE = 5.0  # STS-B scores range from 0 to this
_ENTAILMENT = ("entailment", "not_entailment")
_NLI = ("contradiction", "entailment", "neutral")


@dataclass(frozen=True)
class GlueTask:
    """Definition of a GLUE or CLUE task.

    Attributes:
        folder: folder name in the download.
        columns: columns of all files; test files have no labels.
        labels: labels by id; empty: regression.
        submissions: submission files for the benchmark's server, by split.
        metric: official metric, a name in src/assessment_method.py.
        files: files by split.
        skip_broken_rows: leave out, and count, rows of train and dev without all columns or label; empty texts stay.
        submitted_labels: names of the labels in submissions; empty: labels.
    """

    folder: str
    columns: TextColumns
    labels: tuple[str, ...]
    submissions: dict[str, str]
    metric: str = "accuracy"
    files: dict[str, str] = field(default_factory=lambda: {split: f"{split}.tsv" for split in ("train", "dev", "test")})
    skip_broken_rows: bool = False
    submitted_labels: Sequence[str] = ()

    @property
    def dev_splits(self) -> tuple[str, ...]:
        return tuple(split for split in self.files if split.startswith("dev"))

    @property
    def test_splits(self) -> tuple[str, ...]:
        return tuple(split for split in self.files if split.startswith("test"))


_PAIR = TextColumns("sentence1", "sentence2")
_MNLI_SPLITS = ("train", "dev_matched", "dev_mismatched", "test_matched", "test_mismatched")

GLUE_TASKS = {
    "cola": GlueTask(
        "CoLA",
        # Only test.tsv has a header: index, sentence.
        TextColumns("sentence", names=("source", "label", "star", "sentence")),
        ("0", "1"),
        {"test": "CoLA.tsv"},
        "mcc",
    ),
    "sst-2": GlueTask("SST-2", TextColumns("sentence"), ("0", "1"), {"test": "SST-2.tsv"}),
    "mrpc": GlueTask("MRPC", TextColumns("#1 String", "#2 String", "Quality"), ("0", "1"), {"test": "MRPC.tsv"}, "f1"),
    # The published train.tsv has rows that are broken in two, which google leaves out, too, and empty questions, which
    # it keeps.
    "qqp": GlueTask(
        "QQP",
        TextColumns("question1", "question2", "is_duplicate"),
        ("0", "1"),
        {"test": "QQP.tsv"},
        "f1",
        skip_broken_rows=True,
    ),
    "sts-b": GlueTask(
        "STS-B", TextColumns("sentence1", "sentence2", "score"), (), {"test": "STS-B.tsv"}, "spearman_correlation"
    ),
    "mnli": GlueTask(
        "MNLI",
        TextColumns("sentence1", "sentence2", "gold_label"),
        _NLI,
        {"test_matched": "MNLI-m.tsv", "test_mismatched": "MNLI-mm.tsv"},
        files={split: f"{split}.tsv" for split in _MNLI_SPLITS},
    ),
    "qnli": GlueTask("QNLI", TextColumns("question", "sentence"), _ENTAILMENT, {"test": "QNLI.tsv"}),
    "rte": GlueTask("RTE", _PAIR, _ENTAILMENT, {"test": "RTE.tsv"}),
    "wnli": GlueTask("WNLI", _PAIR, ("0", "1"), {"test": "WNLI.tsv"}),
    # GLUE's diagnostic set, to be predicted with a model of MNLI.
    "ax": GlueTask("diagnostic", _PAIR, _NLI, {"test": "AX.tsv"}, "mcc", files={"test": "diagnostic.tsv"}),
}


_NEWS = "story culture entertainment sports finance house car edu tech military travel world stock agriculture game"
_NEWS_CODES = "100 101 102 103 104 106 107 108 109 110 112 113 114 115 116"


def _clue(
    name: str, columns: TextColumns, labels: Sequence[str], submission: str = "", train: str = "train.json"
) -> GlueTask:
    submissions = {"test": submission or f"{name}_predict.json"}
    files = {"train": train, "dev": "dev.json", "test": "test.json"}
    codes = _NEWS_CODES.split() if name == "tnews" else ()
    return GlueTask(f"{name}_public", columns, tuple(labels), submissions, files=files, submitted_labels=codes)


_TOPICS = TextColumns("sentence", label="label_desc")
CLUE_TASKS = {
    # tnews's test.json is the test set of CLUE 1.1.
    "tnews": _clue("tnews", _TOPICS, [f"news_{topic}" for topic in _NEWS.split()], "tnews11_predict.json"),
    "iflytek": _clue("iflytek", TextColumns("sentence"), [str(label) for label in range(119)]),
    "afqmc": _clue("afqmc", _PAIR, ("0", "1")),
    "cmnli": _clue("cmnli", _PAIR, _NLI),
    "ocnli": _clue("ocnli", _PAIR, _NLI, "ocnli_50k_predict.json", "train.50k.json"),
    "csl": _clue("csl", TextColumns("keyword", "abst", list_text="keyword"), ("0", "1")),
}
PUBLISHED_TASKS = GLUE_TASKS | CLUE_TASKS


def read_glue(task_name: str, data_dir: Path, split: str) -> list[Example]:
    """Return the examples of one split.

    Args:
        data_dir: folder of the benchmark, or of the task.

    Raises:
        DataError: the task has no such split; its file is missing or not as published (src/create_finetune_data.py).
    """
    task = PUBLISHED_TASKS[task_name]
    if split not in task.files:
        raise DataError(f"the task {task_name} has no {split} split, but {', '.join(task.files)}")
    task_folder = data_dir / task.folder
    path = (task_folder if task_folder.is_dir() else data_dir) / task.files[split]
    if not path.exists():
        raise DataError(f"{path} cannot be read: it is missing; read your own files with --task_name custom")
    labelled = split not in task.test_splits
    skipped: list[str] | None = [] if task.skip_broken_rows and labelled else None
    examples = read_examples(path, task.columns, labelled, skipped)
    if skipped:
        total = len(examples) + len(skipped)
        logger.info(f"left out {len(skipped)} broken row(s) of {total:,}; the first one: {skipped[0]}")
    if labelled and not task.labels:
        for example in examples:
            if not 0 <= score_of(example) <= HIGHEST_SCORE:
                raise DataError(f"{example.location} has the score {example.label}, allowed are 0 to {HIGHEST_SCORE:g}")
    return examples


def write_submission(folder: Path, task_name: str, split: str, predictions: np.ndarray, file: Path) -> Path:
    """Write a submission for the benchmark's server; return its path.

    GLUE's has the row of the test file from 0 and the prediction; CLUE's are JSON lines with the id in the test file.

    Args:
        predictions: (rows,) label ids; or scores, which are clipped to 0 ... 5.
        file: test file.
    """
    task = PUBLISHED_TASKS[task_name]
    path = folder / task.submissions[split]
    if task.labels:
        names = task.submitted_labels or task.labels
        answers = [names[label_id] for label_id in predictions]
    else:
        answers = [f"{score:.3f}" for score in np.clip(predictions, 0, HIGHEST_SCORE)]
    lines = ["index\tprediction", *(f"{index}\t{answer}" for index, answer in enumerate(answers))]
    if path.suffix == ".json":
        table = read_table(file)
        texts = [text for _, [text] in table.select(["id"])] if table.has("id") else map(str, range(len(answers)))
        ids = [int(text) if text.isdecimal() and str(int(text)) == text else text for text in texts]
        lines = [json.dumps({"id": row_id, "label": answer}) for row_id, answer in zip(ids, answers, strict=True)]
    write_text(path, "\n".join(lines) + "\n")
    return path
