"""Time, memory and disk of a run, estimated from an update of each phase and width (--dry_run)."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import mindspore as ms

from model_utils.memory import peak_memory
from src.data.batches import describe_size
from src.training.pending_updates import read_values
from src.training.phases import Batch, Phase
from src.training.trainer import Trainer


def dry_run(trainer: Trainer, kept: str = "") -> str:
    """Train two updates of each phase and width; return a text with the run's estimated time, memory and disk.

    kept: clause of the text that names what was made before and stays; nothing else does.
    """
    config = trainer.config
    steps = trainer.plan.train_steps
    trainer.initialise()
    phases = []
    for number, phase in enumerate(trainer.phases.all, 1):
        phases.append(measure_phase(trainer, phase, f"of phase {number} " if trainer.phases.several else ""))
    compilation = sum(phase.compilation for phase in phases)
    seconds = sum(phase.share * phase.update for phase in phases)
    size = trainer.checkpoints.bytes_of_one()
    copies = trainer.checkpoints.max_files if config.enable_save_ckpt else 0
    memory = f"Host memory at its peak: {peak_memory() / 1e9:.2f} GB"
    if trainer.identity.precision.device_target != "CPU":
        memory += f", the device's: {ms.runtime.max_memory_allocated() / 1e9:.2f} GB"
    takes = f"{steps} updates take about {timedelta(seconds=round(compilation + seconds * steps))}"
    if config.max_train_hours:  # a phase then takes its share of the time
        per_second = sum(phase.share / phase.update for phase in phases)
        fit = min(steps, max(0, int((trainer.plan.max_seconds - compilation) * per_second)))
        takes += f", about {fit} of them fit into max_train_hours {config.max_train_hours:g}"
    takes += " (without evaluations)" if trainer.evaluation else ""
    return (
        f"dry run: one update {', '.join(phase.description for phase in phases)}; {takes}. "
        f"{memory}. "
        f"A checkpoint takes {size / 1e6:.1f} MB, at most {copies} at a time: {copies * size / 1e6:.1f} MB. "
        f"Nothing was kept{kept}."
    )


@dataclass(frozen=True)
class MeasuredPhase:
    """Phase of a run with its share, and in seconds its first update of each width together and its mean update."""

    share: float
    description: str
    compilation: float
    update: float


def measure_phase(trainer: Trainer, phase: Phase, name: str) -> MeasuredPhase:
    """Train two updates of each width of a phase; `name` begins their descriptions."""
    descriptions = []
    compilation = 0.0
    update = 0.0
    for start, share in phase.data.width_shares():
        batch = next(phase.data.batches(0, start))
        first, usual = (timed_update(trainer, [batch] * phase.accumulation_steps) for _ in range(2))
        taken = f"takes {usual:.2f} s (the first {first:.1f} s, with compilation)"
        descriptions.append(f"{name}with {describe_size(batch)} {taken}")
        compilation += first
        update += share * usual
    return MeasuredPhase(phase.share, ", ".join(descriptions), compilation, update)


def timed_update(trainer: Trainer, micro_batches: Sequence[Batch]) -> float:
    """Return the seconds that one update takes."""
    start = time.monotonic()
    read_values(trainer.step.train(micro_batches))
    return time.monotonic() - start
