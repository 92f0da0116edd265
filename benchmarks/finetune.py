"""One epoch of fine-tuning from raw text to metrics, here and with transformers: python -m benchmarks.finetune.

Both sides start from the same weights, which are random, as whole commands in turn; this project makes its features
anew each time. Seven turns take hours: each is kept in `--output` as soon as it is done, and the same command again
goes on with those that are missing.
"""

import logging
import shutil
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.commands import measure_in_turns, read_result, run_command, write_result
from benchmarks.machine import machine_facts
from benchmarks.random_model import random_models
from benchmarks.transformers_finetuning import LABELS, SQUAD, TEXTS, TransformersConfig
from model_utils.config import run_main
from model_utils.errors import ConfigError
from model_utils.json_files import read_object
from model_utils.schema import ANY, Config, option
from src.albert_config import PRESETS
from src.tasks.classification_examples import ClassifierConfig
from src.tasks.finetune_config import FinetuneConfig
from src.tasks.question_answering import SquadConfig

logger = logging.getLogger(__name__)
OURS = "this project"
PADDINGS = ("longest", "max_length")  # of transformers
METRIC = {SQUAD: "f1"}  # else accuracy
RATE = 5e-5
SAME_MACHINE = ("cpu", "cores", "omp_num_threads")  # facts that all turns of a file share


class FinetuneBenchmarkConfig(Config):
    """Time whole fine-tuning commands: python -m benchmarks.finetune."""

    albert_network: str = option("albert_base", "preset of sizes", choices=tuple(PRESETS))
    task: str = option("sst-2", "what is learnt", choices=(*TEXTS, SQUAD))
    train: str = option("", "GLUE's table, or SQuAD's json", required=True)
    dev: str = option("", "likewise", required=True)
    spm_model_file: str = option("", "vocabulary", required=True)
    max_length: int = option(128, "tokens of a row", minimum=8)
    batch_size: int = option(32, "rows of a batch", minimum=1)
    rounds: int = option(7, "turns of each side", minimum=1, on_resume=ANY)
    output: str = option("", "JSON file for the figures, those of earlier turns among them; empty: none", on_resume=ANY)


class Sides:
    """The commands of all sides, in a folder."""

    def __init__(self, config: FinetuneBenchmarkConfig, folder: Path) -> None:
        self.config, self.folder = config, folder
        self.run, self.features, self.results = folder / "run", folder / "features", folder / "results.json"
        sizes = PRESETS[config.albert_network], "fill_mask", config.spm_model_file, config.max_length
        self.model, self.theirs_model = random_models(*sizes, folder)

    def ours(self) -> tuple[float, float]:
        """Seconds and the metric of this project's command."""
        for made in (self.run, self.features):
            shutil.rmtree(made, ignore_errors=True)
        seconds = run_command(*self.our_command(), self.folder / "ours.log")
        return seconds, read_object(self.run / "eval_results.json")[METRIC.get(self.config.task, "accuracy")]

    def our_command(self) -> tuple[str, FinetuneConfig]:
        """The entry script and its configuration."""
        config = self.config
        common = {
            "device_target": "CPU",
            "load_pretrain_checkpoint_path": self.model,
            "save_finetune_checkpoint_path": self.run,
            "feature_dir": self.features,
            "max_seq_length": config.max_length,
            "train_batch_size": config.batch_size,
            "epoch_num": 1,
            "warmup_ratio": 0.0,  # as transformers' side
            "optimizer_cfg": {"AdamWeightDecay": {"learning_rate": RATE, "warmup_steps": 0}},
        }
        if config.task == SQUAD:
            return "run_squad_v1", SquadConfig(train_json_path=config.train, eval_json_path=config.dev, **common)
        return "run_classifier", ClassifierConfig(
            task_name="custom",
            train_file=config.train,
            dev_file=config.dev,
            **dict(zip(("text_a_column", "text_b_column"), TEXTS[config.task], strict=False)),
            label_column=LABELS[config.task],
            **common,
        )

    def theirs(self, padding: str) -> tuple[float, float]:
        """Seconds and the metric of transformers."""
        seconds = run_command(*self.their_command(padding), self.folder / f"{padding}.log")
        return seconds, read_object(self.results)[METRIC.get(self.config.task, "accuracy")]

    def their_command(self, padding: str) -> tuple[str, TransformersConfig]:
        """The script and its configuration."""
        return "benchmarks.transformers_finetuning", TransformersConfig(
            model=self.theirs_model,
            task=self.config.task,
            train=self.config.train,
            dev=self.config.dev,
            results=self.results,
            padding=padding,
            max_length=self.config.max_length,
            batch_size=self.config.batch_size,
            learning_rate=RATE,
        )


def compare(config: FinetuneBenchmarkConfig, folder: Path) -> dict[str, Any]:
    """The figures of all sides."""
    sides, machine = Sides(config, folder), machine_facts()
    turns = kept_turns(config, machine) if config.output else []
    while len(turns) < config.rounds:
        turns.append({OURS: sides.ours(), **{padding: sides.theirs(padding) for padding in PADDINGS}})
        if config.output:
            write_result(Path(config.output), config, turns=turns, machine=machine)
    return {
        "turns": turns,
        "seconds": {name: [turn[name][0] for turn in turns] for name in turns[0]},
        "metrics": {name: [turn[name][1] for turn in turns] for name in turns[0]},
    }


def kept_turns(config: FinetuneBenchmarkConfig, machine: dict[str, Any]) -> list[dict[str, tuple[float, float]]]:
    """Seconds and metrics by side, of each turn that an earlier attempt has kept in `output`.

    Raises:
        ConfigError: it had another configuration, machine, or version of this benchmark.
    """
    kept = read_result(Path(config.output), config)
    if kept is None:
        return []
    if "turns" not in kept:
        raise ConfigError(f"{config.output} has figures without turns, of an earlier version; choose another --output")
    for fact in SAME_MACHINE:
        if (there := kept["machine"][fact]) != (here := machine[fact]):
            raise ConfigError(
                f"{config.output} has turns of another machine: {fact} is {there!r} there and {here!r} here; choose "
                "another --output"
            )
    return kept["turns"]


def report(figures: dict[str, Any]) -> str:
    """The figures as lines."""
    ours, lines = figures["seconds"][OURS], []
    for name, seconds in figures["seconds"].items():
        side = name if name == OURS else f"transformers, padding {name}"
        ratio = "" if name == OURS else f", {median(seconds) / median(ours):.3f} times as long"
        metric = median(figures["metrics"][name])
        lines.append(
            f"{side}: median {median(seconds):.1f} s, minimum {min(seconds):.1f} s{ratio}; metric {metric:.4g}"
        )
    return "\n".join(lines)


def main(config: FinetuneBenchmarkConfig) -> None:
    """Measure, print, write."""
    measure_in_turns(config, compare, report)


if __name__ == "__main__":
    run_main(main, FinetuneBenchmarkConfig)
