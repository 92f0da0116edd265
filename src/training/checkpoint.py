"""A run's checkpoints: its whole state restored, the best one marked, older ones deleted."""

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
    set_parameters,
    state_of,
)


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
    """Set every parameter of `cell` exactly as saved; CheckpointError where a name, shape or type differs."""
    parameters = state_of(cell)
    missing = sorted(parameters.keys() - contents.values.keys())
    unexpected = sorted(contents.values.keys() - parameters)
    refused = f"{contents.path} does not hold this run's state"
    if missing or unexpected:
        raise CheckpointError(f"{refused}: missing {abbreviated(missing)}, unexpected {abbreviated(unexpected)}")
    if differing := differing_shapes(parameters, contents.values, parameters):
        raise CheckpointError(f"{refused}: {abbreviated(list(differing.values()))}")
    set_parameters(parameters, contents.values)


def copy_parameters(source: nn.Cell, target: nn.Cell) -> None:
    """Give every parameter of `target` the value of the one with the same name in `source`."""
    values = source.parameters_dict()
    for name, parameter in target.parameters_dict().items():
        ops.assign(parameter, values[name])
