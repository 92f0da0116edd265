"""Time from the command to the first update, and to one answer: python -m benchmarks.start --help.

Fine-tuning on GLUE's SST-2 as benchmarks/finetune.py does it, ended at its first update; and predict.py on one record,
to its end. Texts are tokenized in every turn; what libraries cache in the first turn is there in the others.
"""

import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import finetune, predict
from benchmarks.commands import PROJECT, TRANSFORMERS, CommandsConfig, config_words, measure_in_turns, start_process
from benchmarks.transformers_finetuning import FIRST_UPDATE
from model_utils.config import run_main
from model_utils.errors import UserError
from model_utils.schema import Config, option


class StartConfig(CommandsConfig):
    """Time how commands start: python -m benchmarks.start."""

    train: str = option("", "GLUE's train.tsv of SST-2", required=True)
    dev: str = option("", "its dev.tsv", required=True)


def seconds_to_line(line_start: str, module: str, config: Config, log: Path) -> float:
    """Return the seconds until a command prints a line with this start, and end it then.

    Raises:
        UserError: the command ends before.
    """
    words = config_words(module, config, log)
    start = time.monotonic()
    with (
        log.open("w") as messages,
        start_process(words, stdout=subprocess.PIPE, stderr=messages, text=True) as process,
    ):
        assert process.stdout is not None  # a pipe
        for line in process.stdout:
            if line.startswith(line_start):
                seconds = time.monotonic() - start
                process.kill()
                return seconds
    raise UserError(f"{module} ends without a line {line_start!r}: {log.read_text()[-500:]}")


def compare(config: StartConfig, folder: Path) -> dict[str, Any]:
    """Return the seconds of both sides by milestone."""
    for name in ("training", "answers"):
        (folder / name).mkdir()
    training_config = finetune.FinetuneBenchmarkConfig(
        train=config.train, dev=config.dev, albert_network=config.albert_network, spm_model_file=config.spm_model_file
    )
    training = finetune.Sides(training_config, folder / "training")
    answers_config = predict.PredictionConfig(
        text=config.dev, records=1, albert_network=config.albert_network, spm_model_file=config.spm_model_file
    )
    answers = predict.Sides(answers_config, folder / "answers")

    def project_update() -> float:
        for made in (training.run, training.features):
            shutil.rmtree(made, ignore_errors=True)
        return seconds_to_line("step 1/", *training.project_command(seed=1), folder / "project.log")

    def peer_update() -> float:
        return seconds_to_line(FIRST_UPDATE, *training.peer_command("longest", seed=1), folder / "peer.log")

    milestones: dict[str, dict[str, Callable[[], float]]] = {
        "first update": {PROJECT: project_update, TRANSFORMERS: peer_update},
        "first answer": {PROJECT: answers.run_project, TRANSFORMERS: lambda: answers.run_peer(1)},
    }
    seconds: dict[str, dict[str, list[float]]] = {}
    for milestone, sides in milestones.items():
        seconds[milestone] = {name: [] for name in sides}
    for turn in range(config.rounds + 1):
        for milestone, sides in milestones.items():
            for name, measure in sides.items():
                turn_seconds = measure()
                if turn:
                    seconds[milestone][name].append(turn_seconds)
    return {"seconds": seconds}


def report(figures: dict[str, Any]) -> str:
    """Return the figures as lines."""
    lines = []
    for milestone, sides in figures["seconds"].items():
        project = sides[PROJECT]
        peer = sides[TRANSFORMERS]
        lines.append(
            f"{milestone}: {PROJECT} {median(project):.2f} s, {TRANSFORMERS} {median(peer):.2f} s, "
            f"{median(peer) / median(project):.3f} times as long (minimum {min(peer) / min(project):.3f})"
        )
    return "\n".join(lines)


def main(config: StartConfig) -> None:
    """Measure, print, write."""
    measure_in_turns(config, compare, report)


if __name__ == "__main__":
    run_main(main, StartConfig)
