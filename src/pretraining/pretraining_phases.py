"""Phases of pre-training from its configuration: their data, checked, and its fingerprint in checkpoints."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from src.albert_config import AlbertConfig, check_memory
from src.data.batches import Loading
from src.pretraining_data.checked_data import PretrainingData, vocabulary_entries
from src.pretraining_data.masking import MaskingOverrides
from src.tokenization import FullTokenizer
from src.training.phases import Phase, Phases
from src.training.pretrain_config import PhaseConfig, PretrainConfig


def data_of_phases(config: PretrainConfig, loading: Loading) -> list[dict[str, Any]]:
    """Return the arguments of create_pretrain_dataset for each phase; its batch sizes replace those of `loading`."""
    return [
        {
            "data_dir": phase.data_dir,
            "loading": replace(loading, batch_size=phase.batch_size or 0, rows_per_update=phase.global_batch_size or 0),
            "schema_dir": phase.schema_dir,
            "sop_loss_weight": phase.sop_loss_weight,
            "masking": _overrides(phase),
        }
        for phase in config.all_phases()
    ]


def plan_phases(
    config: PretrainConfig,
    datasets: Sequence[PretrainingData],
    architecture: AlbertConfig,
    tokenizer: FullTokenizer | None = None,
) -> Phases:
    """Return the phases of a run, each with its data.

    Args:
        tokenizer: of the first phase's data, if its file is at hand.

    Raises:
        ConfigError, DataError: the data of a phase does not fit model, memory or first phase.
    """
    learning_rate = config.optimizer_settings()["learning_rate"]
    first = datasets[0]
    phases = []
    made_with = vocabulary_entries(tokenizer) | first.manifest
    for phase, data in zip(config.all_phases(), datasets, strict=True):
        data.check_vocabulary(made_with, first.data_dir)
        data.check_fits(architecture)
        check_memory(architecture, phase.batch_size * data.manifest["max_seq_length"])
        phases.append(
            Phase(
                data,
                phase.accumulation_steps or 0,
                phase.share,
                phase.learning_rate / learning_rate,
                source=json.dumps(data.manifest["files"], sort_keys=True),  # independent of their folder's name
                description=describe(phase, data.manifest),
                shuffled=config.do_shuffle,
            )
        )
    return Phases(phases)


def describe(phase: PhaseConfig, manifest: dict[str, Any]) -> str:
    """Return a description of a phase for the log, with the masking settings that are known."""
    masks = {key: value for key, value in manifest.get("settings", {}).items() if key in vars(MaskingOverrides())}
    masks |= {key: value for key, value in vars(_overrides(phase)).items() if value}
    values = {"learning_rate": phase.learning_rate, **masks, "sop_loss_weight": phase.sop_loss_weight}
    settings = ", ".join(f"{key} {value:g}" for key, value in values.items())
    return (
        f"{phase.share:g} of the run, {phase.data_dir}, length {manifest['max_seq_length']}, "
        f"batch {phase.batch_size} x {phase.accumulation_steps}, {settings}"
    )


def identity_of(datasets: Sequence[PretrainingData]) -> dict[str, Any]:
    """Return the fingerprint of a run's data: all entries of the first phase, and the differing ones of the others."""
    first, *others = (data.identity for data in datasets)
    later_phases = {
        f"{key} of phase {number}": value
        for number, identity in enumerate(others, 2)
        for key, value in identity.items()
        if first.get(key) != value
    }
    return first | later_phases


def _overrides(phase: PhaseConfig) -> MaskingOverrides:
    return MaskingOverrides(phase.masked_lm_prob or 0.0, phase.ngram or 0)
