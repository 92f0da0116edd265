"""Experiment trackers (mlflow, swanlab, wandb), to which the metrics of a run's log are sent.

Environment variables of each library choose server, project and offline mode. trackers.json in the run's folder keeps
the ids of the trackers' runs, which a resumed run continues.
"""

import importlib
import logging
import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from model_utils.errors import ConfigError, shorten_text
from model_utils.files import write_json
from model_utils.flat_dicts import flatten
from model_utils.json_files import read_object

logger = logging.getLogger(__name__)
TENSORBOARD = "tensorboard"  # its events are written by RunLog
TRACKERS = (TENSORBOARD, "mlflow", "swanlab", "wandb")
# Defaults that bound for how long a silent server holds up training.
PATIENCE = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2", "MLFLOW_HTTP_REQUEST_TIMEOUT": "20", "WANDB_FINISH_TIMEOUT": "120"}


class TrackerRun(NamedTuple):
    """Run of a tracker: id, log(metrics, step), and finish(succeeded)."""

    id: str
    log: Callable[[Mapping[str, float], int], object]
    finish: Callable[[bool], object]


def load_library(name: str) -> Any:
    """Return a tracker's library; raise ConfigError if it is missing or broken."""
    try:
        return importlib.import_module(name)
    except Exception as error:  # a wrong environment variable raises ValueError
        install = f"pip install {name} && pip install -r requirements.txt"
        raise ConfigError(f"report_to: {name} cannot be imported ({error}): {install}", key="report_to") from None


def start_run(name: str, folder: Path, config: dict[str, Any], run_id: str | None) -> TrackerRun:
    """Start a run named after the folder, or continue the one with this id."""
    os.environ.update({**PATIENCE, **os.environ})
    library = load_library(name)
    if name == "mlflow":
        run = library.start_run(run_id=run_id, run_name=folder.name)
        try:
            if run_id is None:  # parameters cannot change later
                library.log_params(config)
        except Exception:
            library.end_run("FAILED")  # else no other run of this process starts
            raise
        status = {True: "FINISHED", False: "FAILED"}
        return TrackerRun(run.info.run_id, library.log_metrics, lambda succeeded: library.end_run(status[succeeded]))
    settings = {"name": folder.name, "config": config, "id": run_id, "resume": "allow"}
    if name == "wandb":
        run = library.init(dir=os.environ.get("WANDB_DIR", f"{folder}"), allow_val_change=True, **settings)
        return TrackerRun(run.id, run.log, lambda succeeded: run.finish(exit_code=int(not succeeded)))
    run = library.init(log_dir=os.environ.get("SWANLAB_LOG_DIR", f"{folder}/swanlog"), **settings)
    return TrackerRun(run.id, run.log, lambda succeeded: run.finish("success" if succeeded else "aborted"))


class Trackers(AbstractContextManager[Any]):
    """Runs of trackers, finished on exit. One that fails is left out from then on, with one warning."""

    def __init__(self, folder: Path, names: Sequence[str], config: Mapping[str, Any]) -> None:
        self.has_events = TENSORBOARD in names
        self.runs: dict[str, TrackerRun] = {}
        file = folder / "trackers.json"
        for name in sorted({*names} - {TENSORBOARD}):
            with self._guard(name):
                handler = signal.getsignal(signal.SIGINT)
                ids = read_object(file) if file.exists() else {}
                try:
                    self.runs[name] = start_run(name, folder.resolve(), flatten(config), ids.get(name))
                finally:
                    if signal.getsignal(signal.SIGINT) != signal.SIG_DFL:  # no stop was asked for meanwhile
                        signal.signal(signal.SIGINT, handler)  # swanlab's own finishes its run too early
                write_json(file, ids | {name: self.runs[name].id})

    @contextmanager
    def _guard(self, name: str) -> Iterator[None]:
        try:
            yield
        except (Exception, SystemExit) as error:  # a tracker never ends training
            reason = shorten_text(" ".join(str(error).split()), 300)
            logger.warning(f"{name} gets no more metrics of this run: {reason or type(error).__name__}")
            if run := self.runs.pop(name, None):
                with suppress(Exception, SystemExit):
                    run.finish(False)  # mlflow starts no other run of this process before

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Send the metrics of a step."""
        for name, run in [*self.runs.items()]:
            with self._guard(name):
                run.log(metrics, step)

    def __exit__(self, error_class: type[BaseException] | None, *_: object) -> None:
        for name, run in [*self.runs.items()]:
            with self._guard(name):
                del self.runs[name]
                run.finish(error_class is None)
