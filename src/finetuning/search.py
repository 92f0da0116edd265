"""Trials of a search: the table of their results, and which of them is the best.

search.json   the results so far; a trial in it is not run again
search.tsv    the same as a table
"""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from model_utils.errors import UserError
from model_utils.files import write_text
from model_utils.json_files import Schema, read_json, write_checked
from model_utils.option_values import show
from src.finetuning.runs import SEARCH_FILE, Trial
from src.tasks.prediction_table import table_text

logger = logging.getLogger(__name__)


class Result(Schema):
    """Result of a trial; `metric` is None if it diverged, `model` the folder of its weights in that of the search."""

    trial: str
    settings: dict[str, Any]
    model: str
    metric: float | None
    seconds: float


class SearchSchema(Schema):
    """Content of search.json: name of the metric, seeds of a trial, folder of the best model, results."""

    metric: str
    seeds: int
    best: str
    trials: tuple[Result, ...]


def run_trials(
    folder: Path, trials: Sequence[Trial], metric: str, seeds: int, run_trial: Callable[[Trial, Result | None], Result]
) -> Path:
    """Run the trials of a search and return the folder of the best model, the first of equal ones.

    Args:
        metric: name of the development metric; larger is better.
        seeds: runs of each trial.
        run_trial: called with a trial and the result that it already has.

    Raises:
        UserError: all trials diverged.
    """
    earlier: dict[str, Result] = {}
    if (folder / SEARCH_FILE).exists():
        stored = read_json(folder / SEARCH_FILE, SearchSchema)
        if (stored.metric, stored.seeds) == (metric, seeds):
            earlier = {result.trial: result for result in stored.trials if (folder / result.model).is_dir()}
    known: dict[str, Result] = {}
    for trial in trials:
        result = earlier.get(trial.name)
        if result is not None and result.metric is not None and result.settings == trial.settings:
            known[trial.name] = result
    for trial in trials:
        logger.info(f"{trial.name} of {len(trials)}: {trial.settings}")
        known[trial.name] = run_trial(trial, known.get(trial.name))
        results = [known[trial.name] for trial in trials if trial.name in known]
        best = max(results, key=lambda result: float("-inf") if result.metric is None else result.metric)
        rows = [result.model_dump() for result in results]
        content = {"metric": metric, "seeds": seeds, "best": best.model, "trials": rows}
        write_checked(folder / SEARCH_FILE, content)
        write_text(folder / "search.tsv", table_text(columns_of(results, metric)))
    columns = [[name, *texts] for name, texts in columns_of(results, metric).items()]
    widths = [max(map(len, texts)) for texts in columns]
    for row in zip(*columns, strict=True):
        logger.info("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())
    if best.metric is None:
        raise UserError(f"all trials of {folder} diverged: lower the learning rates, or lengthen the warm-up")
    logger.info(f"best {metric}: {best.trial}")
    return folder / best.model


def columns_of(results: Sequence[Result], metric: str) -> dict[str, list[str]]:
    """Return the results as columns of text: trial, settings, metric, seconds."""
    columns = {"trial": [result.trial for result in results]}
    for key in results[0].settings:
        values = [result.settings[key] for result in results]
        columns[key] = [show(tuple(value) if isinstance(value, list) else value) for value in values]
    columns[metric] = ["diverged" if result.metric is None else f"{result.metric:.4f}" for result in results]
    columns["seconds"] = [f"{result.seconds:.0f}" for result in results]
    return columns
