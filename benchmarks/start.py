"""From the command to the first update, and to one answer, here and with transformers: python -m benchmarks.start.

Fine-tuning on GLUE's SST-2 as benchmarks/finetune.py does it, ended at its first update; and predict.py on one record,
to its end. Texts are tokenized in every turn; what libraries keep from the first one is there in the others.
"""

import logging
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import finetune, predict
from benchmarks.commands import end_with_parent, measure_in_turns
from benchmarks.transformers_finetuning import FIRST_UPDATE
from model_utils.config import run_main
from model_utils.errors import UserError
from model_utils.schema import Config, option, write_config
from src.albert_config import PRESETS

logger = logging.getLogger(__name__)
OURS, THEIRS = "this project", "transformers"


class StartConfig(Config):
    """Time how commands start: python -m benchmarks.start."""

    albert_network: str = option("albert_base", "preset of sizes", choices=tuple(PRESETS))
    train: str = option("", "GLUE's train.tsv of SST-2", required=True)
    dev: str = option("", "its dev.tsv", required=True)
    spm_model_file: str = option("", "vocabulary", required=True)
    rounds: int = option(7, "turns of each side, after a first one that is not counted", minimum=1)
    output: str = option("", "JSON file for the figures; empty: none")


def seconds_to(line_start: str, module: str, config: Config, log: Path) -> float:
    """Seconds until a command prints a line that begins so; it is ended then.

    Raises:
        UserError: the command ends before.
    """
    settings = log.with_suffix(".yaml")
    write_config(config, settings)
    command = [sys.executable, "-m", module, "--config_path", str(settings)]
    start = time.monotonic()
    with (
        log.open("w") as messages,
        subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=messages,
            text=True,
            preexec_fn=end_with_parent,
            env=dict(os.environ),
        ) as process,
    ):
        for line in process.stdout:
            if line.startswith(line_start):
                seconds = time.monotonic() - start
                process.kill()
                return seconds
    raise UserError(f"{module} ends without a line {line_start!r}: {log.read_text()[-500:]}")


def compare(config: StartConfig, folder: Path) -> dict[str, Any]:
    """The figures of both sides."""
    common = {"albert_network": config.albert_network, "spm_model_file": config.spm_model_file}
    for name in ("training", "answers"):
        (folder / name).mkdir()
    training = finetune.Sides(
        finetune.FinetuneBenchmarkConfig(train=config.train, dev=config.dev, **common), folder / "training"
    )
    answers = predict.Sides(predict.PredictionConfig(text=config.dev, records=1, **common), folder / "answers")
    ways = {
        "first update": {
            OURS: lambda: seconds_to("step 1/", *training.our_command(), folder / "ours.log"),
            THEIRS: lambda: seconds_to(FIRST_UPDATE, *training.their_command("longest"), folder / "theirs.log"),
        },
        "first answer": {OURS: answers.ours, THEIRS: lambda: answers.theirs(1)},
    }
    seconds: dict[str, dict[str, list[float]]] = {what: {name: [] for name in sides} for what, sides in ways.items()}
    for turn in range(config.rounds + 1):
        for what, sides in ways.items():
            for name, work in sides.items():
                for made in (training.run, training.features):
                    shutil.rmtree(made, ignore_errors=True)
                spent = work()
                if turn:
                    seconds[what][name].append(spent)
    return {"seconds": seconds}


def report(figures: dict[str, Any]) -> str:
    """The figures as lines."""
    lines = []
    for what, sides in figures["seconds"].items():
        ours, theirs = sides[OURS], sides[THEIRS]
        lines.append(
            f"{what}: {OURS} {median(ours):.2f} s, {THEIRS} {median(theirs):.2f} s, "
            f"{median(theirs) / median(ours):.3f} times as long (minimum {min(theirs) / min(ours):.3f})"
        )
    return "\n".join(lines)


def main(config: StartConfig) -> None:
    """Measure, print, write."""
    measure_in_turns(config, compare, report)


if __name__ == "__main__":
    run_main(main, StartConfig)
