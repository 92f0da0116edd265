"""The project's commands, each in a process of its own, and what they ended with, kept so that none is run again."""

import ctypes
import fcntl
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.machine import machine_facts
from benchmarks.turns import PR_SET_PDEATHSIG, Others, describe_others
from model_utils.errors import ConfigError, UserError
from model_utils.facts import first_difference
from model_utils.files import write_json
from model_utils.json_files import read_object
from model_utils.schema import Config, write_config

CONFIG = "config"  # key of a result: the configuration of the command that it comes from
LEAST_AGREEMENT = 0.95  # of the answers of two sides; random weights leave close calls
WITHOUT_PEERS = ", or give --peers ''"  # what contests do otherwise where a library is missing
LAST_LINES = 5  # of a log, in the sentence about a command that failed


def run_command(module: str, config: Config, log: Path) -> float:
    """Run `python -m module` with a configuration, in this working directory; seconds that it took.

    Args:
        log: what the command prints is added to it; the configuration is written beside it, as .yaml.

    Raises:
        UserError: the command failed; the sentence ends with what it printed last.
    """
    settings = log.with_suffix(".yaml")
    write_config(config, settings)
    start = time.monotonic()
    with log.open("a", encoding="utf-8") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", module, "--config_path", str(settings)],
            stdout=output,
            stderr=subprocess.STDOUT,
            preexec_fn=end_with_parent,
            env=dict(os.environ),  # without the OMP_NUM_THREADS that MindSpore puts into this process, unseen by Python
        )
        try:
            code = process.wait()
        except KeyboardInterrupt:  # which a training answers by saving
            process.wait()
            raise
    if code:
        last = " | ".join(log.read_text(encoding="utf-8").splitlines()[-LAST_LINES:])
        raise UserError(f"{module} ended with code {code}; the end of {log}: {last}")
    return time.monotonic() - start


def end_with_parent(number: int = signal.SIGTERM) -> None:
    """For Popen's preexec_fn: the process gets this signal when this one ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)


def read_result(file: Path, config: Config) -> dict[str, Any] | None:
    """What write_result kept of a command with this configuration; None where it has not been run.

    Raises:
        ConfigError: the result is one of another configuration; names the key.
    """
    if not file.exists():
        return None
    result = read_object(file)
    theirs = type(config)(**result[CONFIG])
    if difference := first_difference(config.resume_fingerprint(), theirs.resume_fingerprint()):
        key, ours, there = difference
        raise ConfigError(
            f"{file} is the result of another configuration: {key} is {there!r} there and {ours!r} here; choose "
            "another --output or give the same value"
        )
    return result


def write_result(file: Path, config: Config, **figures: Any) -> dict[str, Any]:
    """Keep the figures that a command ended with, its configuration beside them; what read_result gives."""
    file.parent.mkdir(parents=True, exist_ok=True)
    result = {**figures, CONFIG: config.from_anywhere().to_dict()}
    write_json(file, result)
    return result


def add_results(
    file: Path, results: dict[str, Any], join: Callable[[Any, Any], Any] = lambda earlier, now: now
) -> None:
    """Write results by name into a JSON file; the others stay. Processes that write into one file take turns.

    Args:
        join: what stands under a name of which there is an earlier result.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    folder = os.open(file.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        there = read_object(file) if file.exists() else {}
        write_json(
            file, there | {name: join(there[name], now) if name in there else now for name, now in results.items()}
        )
    finally:
        os.close(folder)


def tell(report: str, figures: dict[str, Any], output: str) -> None:
    """Print what a benchmark came to, and write its figures and the machine's facts to a JSON file, if one is named."""
    print(report)
    if output:
        write_json(Path(output), figures | {"machine": machine_facts()})


def need_libraries(*libraries: str, otherwise: str = "") -> None:
    """Raise a UserError that says what to install, or what to do `otherwise`, where one of them is missing."""
    for library in libraries:
        if find_spec(library) is None:
            raise UserError(f"{library} is not installed: pip install -r requirements-dev.txt{otherwise}")


def measure_in_turns(
    config: Any, compare: Callable[[Any, Path], dict[str, Any]], report: Callable[[dict[str, Any]], str]
) -> None:
    """Let `compare` measure in an empty folder, and `tell` what `report` makes of its figures.

    Raises:
        UserError: what is compared with is not installed, or its answers (agreement, where there are any) are others.
    """
    need_libraries("torch", "transformers")
    with Others() as others, tempfile.TemporaryDirectory() as folder:
        figures = compare(config, Path(folder))
    facts = {"config": config.to_dict(), "disturbance": others.share}
    tell(f"{report(figures)}\n{describe_others(others.share)}", figures | facts, config.output)
    if (agreement := figures.get("agreement", 1.0)) < LEAST_AGREEMENT:
        raise UserError(
            f"both sides agree in {agreement:.1%} of the answers, needed are {LEAST_AGREEMENT:.0%}: they do not do the "
            "same work, and the figures compare nothing"
        )
