"""Kills of trainings in this process."""

from typing import Any

import pytest

from src.training.trainer import Trainer


def kill_at(monkeypatch: pytest.MonkeyPatch, *steps: int, folder: str = "") -> None:
    """End a training with KeyboardInterrupt after each of these steps in turn, once.

    Nothing is saved at this moment, as after kill -9.

    Args:
        folder: name of the folder of the run; "": any.
    """
    start = Trainer.start
    left = list(steps)

    def start_or_die(trainer: Trainer, micro_batches: Any) -> None:
        if left and trainer.state.step == left[0] and folder in ("", trainer.folder.path.name):
            left.pop(0)
            raise KeyboardInterrupt
        start(trainer, micro_batches)

    monkeypatch.setattr(Trainer, "start", start_or_die)
