"""predictions_SPLIT.tsv: for every prediction which row it belongs to, what is right, how sure it is, and the texts."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from model_utils.files import write_text

_ESCAPES = str.maketrans({"\\": r"\\", "\t": r"\t", "\n": r"\n", "\r": r"\r"})


def write_prediction_table(folder: Path, split: str, columns: Mapping[str, Iterable[Any]]) -> None:
    r"""Write the columns, all of the same length, under their names, tabs between them.

    Tabs, line ends and backslashes in a field become \t, \n, \r and \\. A number is the shortest text that gives
    the same number of its type (float32 or float64) again, so that figures can be computed from the file.
    """
    rows = zip(*columns.values(), strict=True)
    text = "".join("\t".join(map(_field, row)) + "\n" for row in (tuple(columns), *rows))
    file = folder / f"predictions_{split}.tsv"
    write_text(file, text)


def _field(value: Any) -> str:
    return str(value).translate(_ESCAPES)
