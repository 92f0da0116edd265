"""A run's checkpoints: when one is due, which are kept, and the whole state restored."""

import time
from dataclasses import asdict, replace
from pathlib import Path

from mindspore import nn, ops

from model_utils.errors import CheckpointError
from model_utils.json_files import write_checked
from src.checkpoints.checkpoint_files import (
    BEST_FILE,
    Checkpoint,
    abbreviated,
    best_checkpoint,
    checkpoint_path,
    differing_shapes,
    list_checkpoints,
    newest_checkpoint,
    save_checkpoint,
    set_parameters,
    state_of,
)
from src.training.loop_state import LoopState, check_whole
from src.training.run_folder import RunFolder


class RunCheckpoints:
    """Checkpoints of one run, of all Parameters of `cell`; if keeps_best, the best one is marked and kept, too."""

    def __init__(self, cell: nn.Cell, folder: RunFolder, keeps_best: bool) -> None:
        self.cell = cell
        self.folder = folder.path
        self.config = folder.config
        self.ranks = folder.ranks
        self.saved_time = time.monotonic()
        # Those that are kept, the best one, and one that is being written.
        self.max_files = self.config.save_checkpoint_num + keeps_best + 1

    def due(self, step: int) -> bool:
        """Return whether a checkpoint is due at this step by the configuration."""
        config = self.config
        minutes = (time.monotonic() - self.saved_time) / 60
        by_steps = config.save_checkpoint_steps > 0 and step % config.save_checkpoint_steps == 0
        return by_steps or 0 < config.save_checkpoint_minutes <= minutes

    def bytes_needed(self, state: LoopState) -> int:
        """Return the free disk space that further checkpoints take."""
        if not self.config.enable_save_ckpt:
            return 0
        return self.bytes_of_one() * max(1, self.max_files - len(state.written))

    def bytes_of_one(self) -> int:
        """Return the size of a checkpoint, but for some kilobytes of its loop state."""
        return sum(parameter.nbytes for parameter in state_of(self.cell).values())

    def newest(self) -> Checkpoint | None:
        """Return the newest good checkpoint, None if there is none; raise CheckpointError if all are damaged."""
        if not self.folder.exists():
            return None
        contents = newest_checkpoint(self.folder)
        if contents is not None:
            check_whole(contents.loop_state, contents.path)
        elif list_checkpoints(self.folder):
            raise CheckpointError(f"{self.folder} holds no checkpoint that can be read: choose another folder")
        return contents

    def save(self, state: LoopState, seconds: float) -> None:
        """Write a checkpoint after `seconds` of training and delete older ones; only rank 0 does, if wanted."""
        self.saved_time = time.monotonic()
        if self.ranks.is_writer and self.config.enable_save_ckpt:
            state.written = [*state.written, state.step]
            save_checkpoint(self.cell, self.folder, state.step, asdict(replace(state, seconds=seconds)))
            self.tidy(state)

    def tidy(self, state: LoopState) -> None:
        """Mark the best checkpoint, and delete all but this and the newest ones of the run; only rank 0 does."""
        if not self.ranks.is_writer:
            return
        if state.best.step > 0 and checkpoint_path(self.folder, state.best.step).exists():
            mark_best(self.folder, state.best.step, state.best.metrics)
        if self.config.enable_save_ckpt:
            state.written = prune_checkpoints(self.folder, state.written, self.config.save_checkpoint_num)

    def remaining(self, state: LoopState) -> str:
        """Return the clause of an error message that says which checkpoint is left."""
        whole = [step for step, _ in list_checkpoints(self.folder) if step in state.written]
        if not whole:
            return f"{self.folder} holds no checkpoint yet, so that the same command begins anew"
        return f"the checkpoint after step {whole[0]} in {self.folder} is whole and the same command resumes from it"


def prune_checkpoints(folder: Path, written: list[int], keep: int) -> list[int]:
    """Delete all but the newest `keep` and the best of this run's checkpoints `written`; return the steps left."""
    best = best_checkpoint(folder)
    ordered = sorted(set(written))
    for step in ordered[:-keep]:
        if checkpoint_path(folder, step) != best:
            checkpoint_path(folder, step).unlink(missing_ok=True)
    return [step for step in ordered if checkpoint_path(folder, step).exists()]


def mark_best(folder: Path, step: int, metrics: dict[str, float]) -> None:
    """Record that the checkpoint of `step` had the best development metrics."""
    write_checked(folder / BEST_FILE, {"checkpoint": checkpoint_path(folder, step).name, "step": step, **metrics})


def restore(cell: nn.Cell, contents: Checkpoint) -> None:
    """Set every parameter of `cell` as saved, cast to its type; raise CheckpointError if a name or shape differs."""
    parameters = state_of(cell)
    missing = sorted(parameters.keys() - contents.values.keys())
    unexpected = sorted(contents.values.keys() - parameters)
    refused = f"{contents.path} does not hold this run's state"
    if missing or unexpected:
        raise CheckpointError(f"{refused}: missing {abbreviated(missing)}, unexpected {abbreviated(unexpected)}")
    if differing := differing_shapes(parameters, contents.values):
        raise CheckpointError(f"{refused}: {abbreviated(differing.values())}")
    set_parameters(parameters, contents.values)


def copy_parameters(source: nn.Cell, target: nn.Cell, prefix: str = "") -> None:
    """Give every parameter of `target` the value of the one with the same name, or prefix and name, in `source`."""
    values = source.parameters_dict()
    for name, parameter in target.parameters_dict().items():
        ops.assign(parameter, values[prefix + name if prefix + name in values else name])
