"""Script that compares the predictions of two fine-tuned runs on the same rows: python -m src.compare_runs --help."""

import itertools
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from model_utils.config import run_main
from model_utils.errors import DataError
from model_utils.files import write_text
from model_utils.schema import Config, option
from src.tasks.prediction_table import table_text
from src.text.text_tables import read_table

logger = logging.getLogger(__name__)
RESAMPLINGS = 10_000
COLUMNS = ("file", "line", "label", "prediction")


class RowPrediction(NamedTuple):
    """Location FILE:LINE of a row, which words of a sentence may share, its gold label and its prediction."""

    location: str
    label: str
    prediction: str

    @property
    def is_correct(self) -> bool:
        return self.label == self.prediction


class CompareConfig(Config):
    """Compare the predictions of two fine-tuned runs: python -m src.compare_runs."""

    first: str = option("", "save_finetune_checkpoint_path of one run", required=True)
    second: str = option("", "save_finetune_checkpoint_path of the other run", required=True)
    split: str = option("dev", "the split whose predictions_SPLIT.tsv are compared")
    output_file: str = option("", "table (.tsv) of the rows that only one run has right; empty: none")


def read_predictions(folder: Path, split: str) -> list[RowPrediction]:
    """Return the predictions of a run in the order of its table.

    Raises:
        DataError: there is no table of predictions with gold labels.
    """
    path = folder / f"predictions_{split}.tsv"
    if not path.is_file():
        others = ", ".join(sorted(file.name for file in folder.glob("predictions_*.tsv")))
        remedy = f"name the split of {others}" if others else "do_eval writes it, of a test file do_predict"
        raise DataError(f"{folder} has no {path.name}: {remedy}")
    table = read_table(path)
    if missing := [column for column in COLUMNS if not table.has(column)]:
        raise DataError(f"{path} has no column {missing[0]}: compared are classes and tags with gold labels")
    return [RowPrediction(f"{file}:{line}", *answers) for _, (file, line, *answers) in table.select(COLUMNS)]


def compare(first: Sequence[RowPrediction], second: Sequence[RowPrediction]) -> dict[str, Any]:
    """Return how two runs differ on the same rows.

    Returns:
        rows; first and second: accuracy of each run; difference: second - first; low and high: its 95 % interval by a
        paired bootstrap over rows; only_first_right and only_second_right: rows; p_value: of McNemar's exact test that
        both are equally good.

    Raises:
        DataError: the runs have other rows or gold labels, or no prediction equals its label, as that of a score.
    """
    from scipy.stats import binomtest

    for row, other in itertools.zip_longest(first, second):
        if row is None or other is None or row[:2] != other[:2]:
            raise DataError(f"the runs have different rows: {row} and {other}")
    count = len(first)
    is_correct = np.array([[row.is_correct for row in rows] for rows in (first, second)])
    only_first = int((is_correct[0] & ~is_correct[1]).sum())
    only_second = int((is_correct[1] & ~is_correct[0]).sum())
    if not is_correct.any():
        raise DataError("no prediction equals its gold label; compared are classes and tags, not scores")
    # A bootstrap of the rows: how many of those drawn only the first, only the second, or both or neither has right.
    shares = [only_first / count, only_second / count, 1 - (only_first + only_second) / count]
    draws = np.random.default_rng(0).multinomial(count, shares, RESAMPLINGS)
    low, high = np.percentile((draws[:, 1] - draws[:, 0]) / count, [2.5, 97.5])
    differing = only_first + only_second
    return {
        "rows": count,
        "first": int(is_correct[0].sum()) / count,
        "second": int(is_correct[1].sum()) / count,
        "difference": (only_second - only_first) / count,
        "low": float(low),
        "high": float(high),
        "only_first_right": only_first,
        "only_second_right": only_second,
        "p_value": float(binomtest(only_second, differing).pvalue) if differing else 1.0,
    }


def main(config: CompareConfig) -> None:
    """Log the comparison; write the rows that only one run has right."""
    first = read_predictions(Path(config.first), config.split)
    second = read_predictions(Path(config.second), config.split)
    logger.info(
        "accuracy on {rows:,} rows: {first:.4f} and {second:.4f}, difference {difference:+.4f} (95 % of resamplings: "
        "{low:+.4f} to {high:+.4f}); {only_first_right:,} rows are right in the first run alone, {only_second_right:,} "
        "in the second alone; McNemar's exact test: p = {p_value:.3g}".format(**compare(first, second))
    )
    if config.output_file:
        pairs = [(row, other) for row, other in zip(first, second, strict=True) if row.is_correct != other.is_correct]
        columns = {
            "place": [row.location for row, _ in pairs],
            "label": [row.label for row, _ in pairs],
            "first": [row.prediction for row, _ in pairs],
            "second": [other.prediction for _, other in pairs],
        }
        write_text(Path(config.output_file), table_text(columns))


if __name__ == "__main__":
    run_main(main, CompareConfig)
