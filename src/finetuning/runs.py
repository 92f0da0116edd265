"""Runs of a fine-tuning: one, one for each seed, or those of each trial of a search.

A seed has the subfolder seed-SEED, a trial trial-NNN. The folder of a search itself becomes that of the best model.
"""

import functools
import json
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from model_utils.command_line import nest
from model_utils.errors import ConfigError
from model_utils.option_values import leaves_of, unknown_key
from model_utils.schema import merge
from src.checkpoints.checkpoint_files import list_checkpoints
from src.tasks.finetune_config import MAX_TRIALS, FinetuneConfig
from src.training.run_folder import CONFIG_FILE, check_run_folder

SEARCH_FILE = "search.json"
LAYOUTS = {"a single run": "", "runs of several seeds": "seed-*/", "a search": "trial-*/**/"}  # of a run's folder


@dataclass(frozen=True)
class Trial:
    """Combination of settings by key, the name of its folder, and its configuration."""

    name: str
    settings: dict[str, Any]
    config: FinetuneConfig


def runs_of(config: FinetuneConfig) -> dict[str, FinetuneConfig]:
    """Return the configuration of each seed by the name of its subfolder, "" for a single seed."""
    if config.num_seeds == 1:
        return {"": config.replace(seed=config.seed, num_seeds=1)}
    seeds = range(config.seed, config.seed + config.num_seeds)
    return {f"seed-{seed}": config.replace(seed=seed, num_seeds=1) for seed in seeds}


def check_runs(root: Path, config: FinetuneConfig, trials: Sequence[Trial] = ()) -> None:
    """Raise ConfigError if a run can neither start nor resume in its folder, or runs of another type lie in root."""
    runs = runs_of(config)
    layout = "a search" if trials else "runs of several seeds" if len(runs) > 1 else "a single run"
    for other, pattern in LAYOUTS.items():
        if other != layout and any(root.glob(f"{pattern}{CONFIG_FILE}")):
            raise ConfigError(f"{root} holds {other}, whose results {layout} would replace: use another folder")
    if trials and root.is_dir() and list_checkpoints(root) and not (root / SEARCH_FILE).exists():
        raise ConfigError(f"{root} holds weights, which the best model of the search would replace: use another folder")
    for trial in trials:
        check_runs(root / trial.name, trial.config)
    if not trials:
        for name, run_config in runs.items():
            check_run_folder(root / name, run_config)


def trials_of(config: FinetuneConfig) -> list[Trial]:
    """Return the combinations of a search, the last key varying first; [] without a search.

    Raises:
        ConfigError: a key cannot be searched, a value is wrong, or the combinations are too many or not distinct.
    """
    if not config.search:
        return []
    lists = {_full_name(key, config): values for key, values in config.search.items()}
    if len(lists) < len(config.search):
        raise ConfigError(f"search has a key by both of its names: {', '.join(config.search)}", key="search")
    total = math.prod(map(len, lists.values()))
    trials = []
    fingerprints: dict[str, str] = {}
    for trial_number, index in enumerate(_indices(total, config), 1):
        name = f"trial-{trial_number:03}"
        values = {}
        for key in reversed(lists):
            index, value_index = divmod(index, len(lists[key]))
            values[key] = lists[key][value_index]
        trial_config = _with_values(config, values)
        fingerprint = json.dumps(trial_config.resume_fingerprint(), sort_keys=True)
        other = fingerprints.setdefault(fingerprint, name)
        if other != name:
            raise ConfigError(
                f"search: {other} and {name} are the same run: give each value once, and keys that have an effect",
                key="search",
            )
        settings = {key: functools.reduce(getattr, key.split("."), trial_config) for key in lists}
        trials.append(Trial(name, json.loads(json.dumps(settings)), trial_config))
    return trials


def config_of_run(folder: Path, root: Path, trials: Sequence[Trial]) -> FinetuneConfig:
    """Return the configuration of the run, of one seed of a trial, whose folder this is in that of the search."""
    runs = ((root / trial.name / name, config) for trial in trials for name, config in runs_of(trial.config).items())
    return next(config for path, config in runs if path == folder)


def _full_name(key: str, config: FinetuneConfig) -> str:
    """Return the key of the option that has this name; raise ConfigError if none has or it cannot be searched."""
    fields = dict(leaves_of(type(config)))
    aliases = {field.validation_alias: name for name, field in fields.items()}
    key = aliases.get(key, key)
    if key in fields and not key.startswith(config.searchable):
        allowed = f"optimizer_cfg.NAME.KEY, {', '.join(config.searchable[1:])}"
        raise ConfigError(f"search has {key}, which all trials share; allowed are {allowed}", key=key)
    if key not in fields:
        raise unknown_key(key, [name for name in fields if name.startswith(config.searchable)]).at("search")
    return key


def _indices(total: int, config: FinetuneConfig) -> list[int]:
    """Return the numbers of the combinations to try, ascending: all, or search_trials of them drawn by the seed."""
    if config.search_trials > total:
        raise config.error_of("search_trials", expected=f"at most {total}, the number of combinations")
    if total > MAX_TRIALS and not config.search_trials:
        expected = f"at most {MAX_TRIALS}: shorten the lists, or draw some with search_trials"
        raise ConfigError(f"search makes {total} combinations, allowed are {expected}", key="search")
    generator = random.Random(config.seed)
    drawn = set() if config.search_trials else set(range(total))
    while len(drawn) < config.search_trials:
        drawn.add(generator.randrange(total))
    return sorted(drawn)


def _with_values(config: FinetuneConfig, values: dict[str, Any]) -> FinetuneConfig:
    """Return the configuration of a trial; raise ConfigError if a value is wrong."""
    changes = ({"accumulation_steps": 1} if config.global_batch_size else {}) | nest(values)  # 1: derived anew
    try:
        return type(config)(**merge(config.to_dict(), changes) | {"search": {}, "search_trials": 0})
    except ConfigError as error:
        raise error.at("search") from None
