"""Comparison of two runs on the same rows, beside scipy's and a plain bootstrap's figures."""

from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binomtest

from model_utils.errors import DataError
from src.compare_runs import CompareConfig, RowPrediction, compare, main, read_predictions
from src.tasks.prediction_table import write_prediction_table


def predictions(right: np.ndarray) -> list[RowPrediction]:
    """Return rows of which two at a time have the same place, like words of a sentence."""
    return [
        RowPrediction(f"dev.tsv:{index // 2}", "yes", "yes" if is_right else "no")
        for index, is_right in enumerate(right)
    ]


def write_run(folder: Path, right: np.ndarray, split: str = "dev") -> Path:
    rows = predictions(right)
    columns = {
        "index": range(len(rows)),
        "file": [row.location.partition(":")[0] for row in rows],
        "line": [row.location.partition(":")[2] for row in rows],
        "label": [row.label for row in rows],
        "prediction": [row.prediction for row in rows],
        "text_a": ['a "quoted\ttext'] * len(rows),
    }
    folder.mkdir()
    write_prediction_table(folder, split, columns)
    return folder


def test_figures_are_scipys_and_the_bootstraps() -> None:
    random = np.random.default_rng(1)
    first = random.random(400) < 0.8
    second = np.where(random.random(400) < 0.2, random.random(400) < 0.9, first)
    figures = compare(predictions(first), predictions(second))
    assert figures["first"] == first.mean() and figures["second"] == pytest.approx(second.mean())
    only_first, only_second = int((first & ~second).sum()), int((second & ~first).sum())
    assert (figures["only_first_right"], figures["only_second_right"]) == (only_first, only_second)
    assert figures["p_value"] == binomtest(only_first, only_first + only_second).pvalue
    rows = random.integers(0, 400, (10_000, 400))
    differences = second[rows].mean(1) - first[rows].mean(1)
    np.testing.assert_allclose([figures["low"], figures["high"]], np.percentile(differences, [2.5, 97.5]), atol=0.004)


def test_equal_runs_have_no_difference() -> None:
    rows = predictions(np.ones(5, bool))
    figures = compare(rows, rows)
    assert (figures["difference"], figures["low"], figures["high"], figures["p_value"]) == (0, 0, 0, 1)


def test_the_command_reads_what_runs_write(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first = np.array([True, True, False, False])
    second = np.array([True, False, True, True])
    folders = [write_run(tmp_path / name, right) for name, right in (("a", first), ("b", second))]
    output = tmp_path / "rows.tsv"
    main(CompareConfig(first=str(folders[0]), second=str(folders[1]), output_file=str(output)))
    assert "0.5000 and 0.7500" in caplog.text
    rows = [line.split("\t") for line in output.read_text().splitlines()]
    assert rows[0] == ["place", "label", "first", "second"]
    assert [row[0] for row in rows[1:]] == ["dev.tsv:0", "dev.tsv:1", "dev.tsv:1"]
    assert [row[1:] for row in rows[1:]] == [["yes", "yes", "no"], ["yes", "no", "yes"], ["yes", "no", "yes"]]


def test_splits_are_those_that_were_predicted(tmp_path: Path) -> None:
    run = str(write_run(tmp_path / "run", np.ones(3, bool), "dev_matched"))
    main(CompareConfig(first=run, second=run, split="dev_matched"))
    with pytest.raises(DataError, match=r"has no predictions_dev\.tsv: name the split of predictions_dev_matched\.tsv"):
        main(CompareConfig(first=run, second=run))


def test_runs_on_other_rows_or_labels_or_with_scores_are_refused(tmp_path: Path) -> None:
    rows = predictions(np.ones(3, bool))
    with pytest.raises(DataError, match="None"):
        compare(rows, predictions(np.ones(4, bool)))
    with pytest.raises(DataError, match=r"dev\.tsv:1.*yes.*dev\.tsv:1.*no"):
        compare(rows, [*rows[:2], RowPrediction("dev.tsv:1", "no", "no")])
    scores = predictions(np.zeros(3, bool))
    with pytest.raises(DataError, match="scores"):
        compare(scores, scores)
    with pytest.raises(DataError, match="predictions_dev"):
        read_predictions(tmp_path, "dev")
    write_prediction_table(tmp_path, "dev", {"index": [0], "prediction": ["a"]})
    with pytest.raises(DataError, match="file"):
        read_predictions(tmp_path, "dev")
