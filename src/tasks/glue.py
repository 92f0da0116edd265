"""The tasks of GLUE by name: their files, columns, labels, official metrics and submission files.

Labels are in the order of google-research/albert's classifier_utils, so that the classifiers of converted checkpoints
agree. google takes columns by number; here the header names them, so that files with more columns are read, too.
"""

import logging
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from model_utils.errors import DataError
from model_utils.files import write_text
from src.create_finetune_data import Example, TextColumns, read_examples, score_of

logger = logging.getLogger(__name__)
HIGHEST_SCORE = 5.0  # of STS-B; the lowest is 0
_ENTAILMENT = ("entailment", "not_entailment")
_NLI = ("contradiction", "entailment", "neutral")


@dataclass(frozen=True)
class GlueTask:
    """One task.

    folder: its name in GLUE's download. files: its files, by split. columns: of all of them; test files have no labels.
    labels: by id; none: regression.
    metric: the official one, of src/assessment_method.py.
    submissions: files for GLUE's server, by split.
    skip_broken_rows: leave out, and count, rows of train and dev that lack columns or a label; empty texts stay.
    """

    folder: str
    columns: TextColumns
    labels: tuple[str, ...]
    submissions: dict[str, str]
    metric: str = "accuracy"
    files: dict[str, str] = field(default_factory=lambda: {split: f"{split}.tsv" for split in ("train", "dev", "test")})
    skip_broken_rows: bool = False

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


def read_glue(task_name: str, data_dir: Path, split: str) -> list[Example]:
    """The examples of one split; data_dir: GLUE's folder, or the task's own.

    Raises:
        DataError: the task has no such split; its file is missing or not as published (src/create_finetune_data.py).
    """
    task = GLUE_TASKS[task_name]
    if split not in task.files:
        raise DataError(f"the GLUE task {task_name} has no {split} split, it has {', '.join(task.files)}")
    inner = data_dir / task.folder
    path = (inner if inner.is_dir() else data_dir) / task.files[split]
    labelled = split not in task.test_splits
    skipped: list[str] | None = [] if task.skip_broken_rows and labelled else None
    examples = read_examples(path, task.columns, labelled, skipped)
    if skipped:
        total = len(examples) + len(skipped)
        logger.info(f"left out {len(skipped)} broken row(s) of {total:,}; the first one: {skipped[0]}")
    for example in () if task.labels or not labelled else examples:
        if not 0 <= score_of(example) <= HIGHEST_SCORE:
            raise DataError(f"{example.place} has the score {example.label}, allowed are 0 to {HIGHEST_SCORE:g}")
    return examples


def write_submission(folder: Path, task_name: str, split: str, predictions: np.ndarray) -> Path:
    """Write what GLUE's server takes: index, the row of the test file from 0, and prediction, a label or a score.

    predictions: (rows,) label ids; or scores, which are cut to 0 ... 5.
    """
    task = GLUE_TASKS[task_name]
    if task.labels:
        answers = [task.labels[label] for label in predictions]
    else:
        answers = [f"{score:.3f}" for score in np.clip(predictions, 0, HIGHEST_SCORE)]
    lines = ["index\tprediction", *(f"{index}\t{answer}" for index, answer in enumerate(answers))]
    path = folder / task.submissions[split]
    write_text(path, "\n".join(lines) + "\n")
    return path
