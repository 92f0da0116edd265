"""Writer of predictions_SPLIT.tsv: row, gold label, prediction, probability and texts of every prediction."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from model_utils.files import write_text

_ESCAPES = str.maketrans({"\\": r"\\", "\t": r"\t", "\n": r"\n", "\r": r"\r"})


def write_prediction_table(folder: Path, split: str, columns: Mapping[str, Iterable[Any]]) -> None:
    """Write predictions_SPLIT.tsv with these columns; see table_text."""
    write_text(folder / f"predictions_{split}.tsv", table_text(columns))


def table_text(columns: Mapping[str, Iterable[Any]]) -> str:
    r"""Return columns of equal length as a tab-separated table with a header.

    Tabs, line ends and backslashes in a field become \t, \n, \r and \\. Numbers are written with the fewest digits
    that round-trip in their type (float32 or float64), so that metrics can be computed from the file.
    """
    rows = zip(*columns.values(), strict=True)
    return "".join("\t".join(str(cell).translate(_ESCAPES) for cell in row) + "\n" for row in (tuple(columns), *rows))
