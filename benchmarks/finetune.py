"""Time fine-tuning from raw text to metrics, and compare the metrics: python -m benchmarks.finetune --help.

Both sides start from the same weights, as whole commands in turn, each round with another seed; this project makes its
features anew each time. Trained weights (--model) show whether both reach the same scores, random ones only the time.
"""

import shutil
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

from benchmarks.commands import PROJECT, CommandsConfig, measure_in_turns, run_command
from benchmarks.random_model import write_random_models
from benchmarks.transformers_finetuning import LABELS, NER, SQUAD, TEXTS, TransformersConfig
from model_utils.config import run_main
from model_utils.convert_ckpt import ConvertConfig
from model_utils.errors import ConfigError
from model_utils.json_files import read_object
from model_utils.schema import option
from src.albert_config import PRESETS
from src.tasks.classification_examples import ClassifierConfig
from src.tasks.finetune_config import FinetuneConfig
from src.tasks.question_answering import SquadConfig
from src.tasks.token_classification import NerConfig

LAST_STEP = 10**6  # beyond the end of all runs here
PADDINGS = ("longest", "max_length")  # of transformers


class FinetuneBenchmarkConfig(CommandsConfig):
    """Time whole fine-tuning commands: python -m benchmarks.finetune."""

    spm_model_file: str = option("", "vocabulary of random weights")
    model: str = option("", "trained weights that transformers reads; empty: random ones")
    paddings: tuple[str, ...] = option(PADDINGS, "how transformers pads rows")
    epoch_num: int = option(1, "epochs", minimum=1)
    learning_rate: float = option(5e-5, "at the beginning; it falls to 0", above=0)
    task: str = option("sst-2", "fine-tuned for", choices=(*TEXTS, NER, SQUAD))
    train: str = option("", "GLUE's table, CoNLL's columns of words and tags, or SQuAD's json", required=True)
    dev: str = option("", "likewise", required=True)
    max_length: int = option(128, "tokens of a row", minimum=8)
    batch_size: int = option(32, "rows of a batch", minimum=1)

    def check_required(self) -> None:
        super().check_required()
        if bool(self.model) == bool(self.spm_model_file):
            raise ConfigError("give --model for trained weights, or --spm_model_file for random ones")


class Sides:
    """Commands of all sides, in a folder."""

    def __init__(self, config: FinetuneBenchmarkConfig, folder: Path) -> None:
        self.config = config
        self.folder = folder
        self.run = folder / "run"
        self.features = folder / "features"
        self.peer_results = folder / "results.json"
        self.metric = "f1" if config.task in (NER, SQUAD) else "accuracy"
        if config.model:
            self.model = folder / "model"
            self.peer_model = Path(config.model)
            convert = ConvertConfig(source="hf", target="mindspore", input=config.model, output=str(self.model))
            run_command("model_utils.convert_ckpt", convert, folder / "convert.log")
        else:
            self.model, self.peer_model = write_random_models(
                PRESETS[config.albert_network], "fill_mask", config.spm_model_file, config.max_length, folder
            )

    def run_project(self, seed: int) -> tuple[float, float]:
        """Return seconds and metric of this project's command."""
        for made in (self.run, self.features):
            shutil.rmtree(made, ignore_errors=True)
        seconds = run_command(*self.project_command(seed), self.folder / "project.log")
        return seconds, read_object(self.run / "eval_results.json")[self.metric]

    def project_command(self, seed: int) -> tuple[str, FinetuneConfig]:
        """Return this project's entry script and its configuration."""
        config = self.config
        optimizer = {  # the peer's: torch's AdamW
            "learning_rate": config.learning_rate,
            "warmup_steps": 0,
            "beta2": 0.999,
            "eps": 1e-8,
            "decay_filter": (),
            "bias_correction": True,
        }
        common: dict[str, Any] = {
            "device_target": "CPU",
            "load_pretrain_checkpoint_path": str(self.model),
            "save_finetune_checkpoint_path": str(self.run),
            "feature_dir": str(self.features),
            "max_seq_length": config.max_length,
            "train_batch_size": config.batch_size,
            "epoch_num": config.epoch_num,
            "seed": seed,
            "eval_steps": LAST_STEP,  # the last weights are evaluated, as the peer's are
            "warmup_ratio": 0.0,  # as the peer
            "optimizer_cfg": {"AdamWeightDecay": optimizer},
        }
        if config.task == SQUAD:
            return "run_squad_v1", SquadConfig(train_json_path=config.train, eval_json_path=config.dev, **common)
        if config.task == NER:
            return "run_ner", NerConfig(data_format="columns", train_file=config.train, dev_file=config.dev, **common)
        text_a, text_b = (*TEXTS[config.task], "")[:2]  # "": single texts
        return "run_classifier", ClassifierConfig(
            task_name="custom",
            train_file=config.train,
            dev_file=config.dev,
            text_a_column=text_a,
            text_b_column=text_b,
            label_column=LABELS[config.task],
            **common,
        )

    def run_peer(self, padding: str, seed: int) -> tuple[float, float]:
        """Return seconds and metric of transformers."""
        seconds = run_command(*self.peer_command(padding, seed), self.folder / f"{padding}.log")
        return seconds, read_object(self.peer_results)[self.metric]

    def peer_command(self, padding: str, seed: int) -> tuple[str, TransformersConfig]:
        """Return the script of transformers and its configuration."""
        return "benchmarks.transformers_finetuning", TransformersConfig(
            model=str(self.peer_model),
            task=self.config.task,
            train=self.config.train,
            dev=self.config.dev,
            results=str(self.peer_results),
            padding=padding,
            max_length=self.config.max_length,
            batch_size=self.config.batch_size,
            epoch_num=self.config.epoch_num,
            learning_rate=self.config.learning_rate,
            seed=seed,
        )


def compare(config: FinetuneBenchmarkConfig, folder: Path) -> dict[str, Any]:
    """Return seconds and metrics of all sides, by turn."""
    sides = Sides(config, folder)
    names = (PROJECT, *config.paddings)
    figures: dict[str, dict[str, list[float]]] = {
        "seconds": {name: [] for name in names},
        "metrics": {name: [] for name in names},
    }
    for seed in range(1, config.rounds + 1):
        for name in names:
            seconds, metric = sides.run_project(seed) if name == PROJECT else sides.run_peer(name, seed)
            figures["seconds"][name].append(seconds)
            figures["metrics"][name].append(metric)
    return figures


def report(figures: dict[str, Any]) -> str:
    """Return the figures as lines."""
    project_median = median(figures["seconds"][PROJECT])
    lines = []
    for name, seconds in figures["seconds"].items():
        side = name if name == PROJECT else f"transformers, padding {name}"
        line = f"{side}: median {median(seconds):.1f} s, minimum {min(seconds):.1f} s"
        if name != PROJECT:
            line += f", {median(seconds) / project_median:.3f} times as long"
        metrics = figures["metrics"][name]
        deviation = f" ± {stdev(metrics):.4f}" if len(metrics) > 1 else ""
        lines.append(f"{line}; metric {mean(metrics):.4f}{deviation}")
    return "\n".join(lines)


def main(config: FinetuneBenchmarkConfig) -> None:
    """Measure, print, write."""
    measure_in_turns(config, compare, report)


if __name__ == "__main__":
    run_main(main, FinetuneBenchmarkConfig)
