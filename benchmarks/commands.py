"""Whole commands as benchmarks time them: each in a process of its own, the sides in turn, figures as JSON."""

import ctypes
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.machine import machine_facts
from benchmarks.turns import PR_SET_PDEATHSIG, OtherPrograms, describe_others
from model_utils.errors import UserError
from model_utils.files import write_json
from model_utils.schema import Config, option, write_config
from src.albert_config import PRESETS

PROJECT = "this project"
TRANSFORMERS = "transformers"
MIN_AGREEMENT = 0.95  # of the answers of two sides; random weights leave close calls
WITHOUT_PEERS = ", or give --peers ''"
LAST_LINES = 5  # of a log, quoted when a command fails


class CommandsConfig(Config):
    """Keys of all benchmarks of whole commands."""

    albert_network: str = option("albert_base", "preset of sizes", choices=tuple(PRESETS))
    spm_model_file: str = option("", "vocabulary", required=True)
    rounds: int = option(7, "turns of each side", minimum=1)
    output: str = option("", "JSON file for the figures; empty: none")


def start_process(words: list[str], end_signal: int = signal.SIGTERM, **settings: Any) -> subprocess.Popen:
    """Start `python -m words` in this working directory.

    Args:
        end_signal: sent to the process when this one ends; a stopped process only heeds SIGKILL.
        settings: keyword arguments of Popen.
    """
    return subprocess.Popen(
        [sys.executable, "-m", *words],
        preexec_fn=partial(_set_death_signal, end_signal),
        env=dict(os.environ),  # without the OMP_NUM_THREADS that MindSpore puts into this process, unseen by Python
        **settings,
    )


def _set_death_signal(end_signal: int) -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, end_signal)


def config_words(module: str, config: Config, log: Path) -> list[str]:
    """Write the configuration beside the log, as .yaml; return the words that run the module with it."""
    settings = log.with_suffix(".yaml")
    write_config(config, settings)
    return [module, "--config_path", str(settings)]


def run_command(module: str, config: Config, log: Path) -> float:
    """Run `python -m module` with a configuration, appending its output to the log; return its seconds.

    Raises:
        UserError: the command failed; the message ends with its last lines.
    """
    words = config_words(module, config, log)
    start = time.monotonic()
    with log.open("a", encoding="utf-8") as output:
        process = start_process(words, stdout=output, stderr=subprocess.STDOUT)
        try:
            code = process.wait()
        except KeyboardInterrupt:  # a training answers it by saving
            process.wait()
            raise
    seconds = time.monotonic() - start
    if code:
        last_lines = " | ".join(log.read_text(encoding="utf-8").splitlines()[-LAST_LINES:])
        raise UserError(f"{module} ended with code {code}; the end of {log}: {last_lines}")
    return seconds


def print_and_write(report: str, figures: dict[str, Any], output: str) -> None:
    """Print the report; write the figures and the machine's facts to a JSON file, if one is named."""
    print(report)
    if output:
        write_json(Path(output), figures | {"machine": machine_facts()})


def need_libraries(*libraries: str, alternative: str = "") -> None:
    """Raise UserError that says what to install, and the alternative, if a library is missing."""
    for library in libraries:
        if find_spec(library) is None:
            raise UserError(f"{library} is not installed: pip install -r requirements-dev.txt{alternative}")


def measure_in_turns(
    config: Any, compare: Callable[[Any, Path], dict[str, Any]], report: Callable[[dict[str, Any]], str]
) -> None:
    """Call `compare` with an empty folder; print and write its figures.

    Raises:
        UserError: a library is missing, or the sides' answers ("agreement" of the figures, if there) differ.
    """
    need_libraries("torch", "transformers")
    with OtherPrograms() as others, tempfile.TemporaryDirectory() as folder:
        figures = compare(config, Path(folder))
    facts = {"config": config.to_dict(), "disturbance": others.share}
    print_and_write(f"{report(figures)}\n{describe_others(others.share)}", figures | facts, config.output)
    agreement = figures.get("agreement", 1.0)
    if agreement < MIN_AGREEMENT:
        raise UserError(
            f"the sides agree in {agreement:.1%} of the answers, needed are {MIN_AGREEMENT:.0%}: they do not do the "
            "same work, and their times cannot be compared"
        )
