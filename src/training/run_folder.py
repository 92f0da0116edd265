"""A run's folder: one configuration, one live process, resumed until finished.

config.yaml        the merged configuration; written when work starts, compared when the command is given again
albert-<step>.ckpt the whole state (src/checkpoints/checkpoint_files.py); albert_config.json and vocabulary beside it
train_log.jsonl, curves.png, tensorboard/   the log (src/training/run_log.py)
trackers.json      the ids of its runs in experiment trackers (src/training/trackers.py)
train_results.json written after the last update: the run is trained; what is evaluated afterwards can be made again
.lock              held by the live process; the system releases it when the process ends, however it ends
"""

import contextlib
import os
import shutil
from pathlib import Path
from typing import Any, Self

from model_utils.config import check_output_folder
from model_utils.errors import CheckpointError, ConfigError, UserError
from model_utils.files import remove_leftovers, try_lock, write_json
from model_utils.flat_dicts import first_difference
from model_utils.schema import load_config, write_config
from src.checkpoints.checkpoint_files import list_checkpoints
from src.training.ranks import ALONE, Ranks
from src.training.run_log import LOG_FILE
from src.training.training_config import TrainingConfig

CONFIG_FILE = "config.yaml"
RESULTS_FILE = "train_results.json"


class RunFolder:
    """The folder of one run, locked while this object is open. Use as a context manager.

    Attributes:
        artifacts: object whose save_artifacts(folder) writes architecture, tokenizer and task description when work
            starts; whoever builds the training sets it.
        begun: a run of this configuration has worked here before.
        finished: it is complete.

    Raises:
        ConfigError, CheckpointError: the folder holds a run of another configuration, or checkpoints without one.
        UserError: another process is running in it, or it cannot be locked.
    """

    def __init__(self, path: str | Path, config: TrainingConfig, ranks: Ranks = ALONE) -> None:
        self.path = Path(path)
        self.config = config
        self.ranks = ranks
        self.artifacts: Any = None
        self.begun = False
        self.finished = False

    def __enter__(self) -> Self:
        check_run_folder(self.path, self.config)
        with contextlib.ExitStack() as at_end:
            if self.ranks.is_writer:
                self._lock(at_end)
                check_run_folder(self.path, self.config)  # another run may have begun before the lock was ours
            self.begun = (self.path / CONFIG_FILE).exists()
            self.finished = self.begun and (self.path / RESULTS_FILE).exists()
            self._at_end = at_end.pop_all()
        return self

    def _lock(self, at_end: contextlib.ExitStack) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        lock = at_end.enter_context((self.path / ".lock").open("a+"))
        try:
            is_ours = try_lock(lock.fileno(), inherited=False)  # worker processes cannot outlive this run with it
        except OSError as error:
            sentence = f"{lock.name} cannot be locked: {error.strerror}; choose a folder on a local disk"
            raise UserError(sentence) from error
        lock.seek(0)
        if not is_ours:
            holder = lock.read(32).strip() or "unknown"
            raise UserError(f"{self.path} holds a run that is live: process {holder}; choose another folder")
        lock.truncate()
        lock.write(f"{os.getpid()}\n")
        lock.flush()

    def __exit__(self, *_: object) -> None:
        self._at_end.close()

    def begin(self, needed_bytes: int) -> None:
        """Bind the folder to the configuration when work starts; raise UserError if the disk has too few bytes."""
        if not self.ranks.is_writer:
            return
        remove_leftovers(self.path)  # they may take the bytes that are needed
        free = shutil.disk_usage(self.path).free
        if free < needed_bytes:
            needed = f"the checkpoints of this run need {needed_bytes / 1e6:,.0f} MB (save_checkpoint_num)"
            raise UserError(f"the disk of {self.path} has {free / 1e6:,.0f} MB free, {needed}")
        if self.artifacts:
            self.artifacts.save_artifacts(self.path)
        write_config(self.config.from_anywhere(), self.path / CONFIG_FILE)  # last: where it is, the artifacts are

    def finish(self, results: dict[str, Any]) -> None:
        """Write train_results.json: the run is complete."""
        if self.ranks.is_writer:
            write_json(self.path / RESULTS_FILE, results)


def check_run_folder(path: Path, config: TrainingConfig) -> None:
    """Raise as RunFolder if a run of this configuration may not start or resume in the folder; write nothing."""
    check_output_folder(path, "the run's folder")
    if not path.exists():
        return
    file = path / CONFIG_FILE
    if not file.exists():
        if list_checkpoints(path) or (path / LOG_FILE).exists():
            found = f"{path} holds checkpoints or a log but no {CONFIG_FILE}, so that no run can be resumed here"
            raise CheckpointError(f"{found}: choose an empty folder, and this one as load_checkpoint_path")
        return
    try:
        saved_fingerprint = load_config(type(config), ["--config_path", str(file)]).resume_fingerprint()
    except ConfigError as error:
        raise ConfigError(f"{path} holds a run that cannot be resumed here: {error}; choose another folder") from error
    fingerprint = config.resume_fingerprint()
    if "train_steps" in fingerprint:  # first, because a derived warm-up differs with it
        fingerprint = {"train_steps": fingerprint["train_steps"]} | fingerprint
    if difference := first_difference(fingerprint, saved_fingerprint):
        key, value, saved_value = difference
        values = f"{key} is {saved_value!r} there and {value!r} here"
        raise ConfigError(f"{path} holds a run of another configuration: {values}; choose another folder")
