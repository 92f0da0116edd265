"""Writer of predictions_SPLIT.tsv: row, gold label, prediction, probability and texts of every prediction."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from model_utils.files import write_text

_ESCAPES = str.maketrans({"\\": r"\\", "\t": r"\t", "\n": r"\n", "\r": r"\r"})


def write_prediction_table(folder: Path, split: str, columns: Mapping[str, Iterable[Any]]) -> None:
    r"""Write columns of equal length as a tab-separated table with a header.

    Tabs, line ends and backslashes in a field become \t, \n, \r and \\. Numbers are written with the fewest digits
    that round-trip in their type (float32 or float64), so that metrics can be computed from the file.
    """
    rows = zip(*columns.values(), strict=True)
    text = "".join("\t".join(map(_field, row)) + "\n" for row in (tuple(columns), *rows))
    write_text(folder / f"predictions_{split}.tsv", text)


def _field(value: Any) -> str:
    return str(value).translate(_ESCAPES)
