"""Whether pre-training pays: fine-tuning from pre-trained weights and from none: python -m benchmarks.transfer --help.

For each task and each start the best of several learning rates is chosen on the development set, with one seed; at that
rate follow the other seeds. Within a run the best epoch is chosen on the development set, too. The figure is that of
the test set where it has labels (CoNLL-2003, resume-ner, RACE), elsewhere that of the development set, on which it was
chosen: every start has the same number of choices. The logistic regression beside them has three, of its penalty. A
cold start has the architecture (initializer_range too) and the vocabulary of a warm one and no weights.

The data folder has the tasks' published files: glue/{SST-2,MRPC,RTE,QNLI}, ner/{conll2003,resume_zh}, squad_v1,
race/RACE.tar.gz, zh/ChnSentiCorp. QNLI's development file alone is used: a fifth of its questions, by their hash, is
its development set. squad-all adds squadshifts_new_wiki_v1.0.json to train.json.

Each fine-tuning is the project's own command in a process of its own; its figures are kept in the output folder, and
the same command again goes on with those that are missing.
"""

import json
import logging
import shutil
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from benchmarks.commands import add_results, read_result, run_command, write_result
from benchmarks.machine import machine_facts
from benchmarks.transfer_tasks import ENGLISH, TRANSFER_TASKS
from model_utils.config import EPOCHS, check_output_folder, run_main
from model_utils.cpu_threads import threads
from model_utils.errors import ConfigError
from model_utils.json_files import read_object
from model_utils.schema import Config, option
from src.albert_config import COMPUTE_TYPES, AlbertConfig, AlbertOverrides
from src.model_folder import ModelFolder
from src.tasks.finetune_config import SAMPLES, FinetuneConfig
from src.tokenization import FullTokenizer

logger = logging.getLogger(__name__)
RESULTS_FILE = "results.json"
BETA2 = 0.98  # the rates of a cold start are high for 0.999 without bias correction
UTILISATION, START_SECONDS = 0.5, 40.0  # of a run, for the first estimate


class TransferConfig(Config):
    """Fine-tune from pre-trained weights and from none, on several tasks: python -m benchmarks.transfer."""

    warm: tuple[str, ...] = option((), "pre-trained weights to start from, each as NAME=FOLDER")
    cold: bool = option(True, "fine-tune from no weights, too")
    tasks: tuple[str, ...] = option(ENGLISH, f"any of {', '.join(TRANSFER_TASKS)}")
    data: str = option("", "folder with the tasks' files, glue/ and others", required=True)
    output: str = option("", "folder for the figures of all runs and results.json", required=True)
    rates: tuple[str, ...] = option(("1e-4", "3e-4", "1e-3"), "learning rates, of which the best one is chosen")
    seeds: int = option(5, "runs at the chosen rate", minimum=1, maximum=1000)
    epochs: int = option(0, "of every task; 0: as each task has it", minimum=0, maximum=EPOCHS)
    max_train_samples: int = option(
        0, "examples trained on at most; 0: as each task has it", minimum=0, maximum=SAMPLES
    )
    compute_type: str = option("", "as the tasks' commands have it", choices=("", *COMPUTE_TYPES))
    jobs: int = option(1, "fine-tunings of a task at a time: on a GPU as many as pay", minimum=1, maximum=64)
    dry_run: bool = option(False, "estimate the time, and run nothing")

    def validate(self) -> None:
        unknown = [name for name in self.tasks if name not in TRANSFER_TASKS]
        if unknown:
            raise ConfigError(f"tasks names {unknown[0]}, allowed are {', '.join(TRANSFER_TASKS)}")
        if not all("=" in each.strip("=") for each in self.warm):
            raise ConfigError(f"warm is {','.join(self.warm)}, allowed is NAME=FOLDER, or several with commas between")
        names = [each.partition("=")[0] for each in self.warm]
        if len(set(names)) < len(names) or any("/" in name for name in names):
            raise ConfigError(f"warm has the names {', '.join(names)}, allowed are different ones without /")
        for rate in self.rates:
            try:
                at_rate(FinetuneConfig(do_eval=False), rate)
            except ConfigError as error:
                raise ConfigError(f"rates holds {rate}: {error}") from None

    def check_required(self) -> None:
        super().check_required()
        if not self.warm:
            raise ConfigError("--warm is needed: NAME=FOLDER of a pre-trained model")
        if not self.rates or not self.tasks:
            raise ConfigError("tasks and rates must each name one at least")


def at_rate(config: FinetuneConfig, rate: str) -> FinetuneConfig:
    """A fine-tuning with this learning rate."""
    return config.replace(optimizer_cfg={"AdamWeightDecay": {"learning_rate": rate, "beta2": BETA2}})


@dataclass(frozen=True)
class Start:
    """What fine-tuning starts from; keys: of the command's configuration."""

    name: str
    architecture: AlbertConfig
    tokenizer: FullTokenizer
    keys: dict[str, Any]


def find_starts(warm: tuple[str, ...], with_cold: bool = True) -> list[Start]:
    """The warm starts, each with a cold one before it unless an earlier one has its architecture and vocabulary."""
    starts: list[Start] = []
    for name, _, place in (each.partition("=") for each in warm):
        model = ModelFolder.load(place)
        architecture, tokenizer = model.architecture, model.tokenizer
        if tokenizer is None:
            raise ConfigError(f"warm names {place}, where no vocabulary lies beside the weights")
        reads = architecture, tokenizer.sha256, tokenizer.do_lower_case
        known = [(start.architecture, start.tokenizer.sha256, start.tokenizer.do_lower_case) for start in starts]
        if with_cold and reads not in known:
            sizes = architecture.to_dict()
            vocabulary = "spm_model_file" if tokenizer.is_sentencepiece else "vocab_file_path"
            cold = {
                "albert_cfg": {key: sizes[key] for key in sizes.keys() & AlbertOverrides.model_fields.keys()},
                vocabulary: tokenizer.file,
                "do_lower_case": tokenizer.do_lower_case,
            }
            starts.append(Start(f"cold-{name}", architecture, tokenizer, cold))
        # The very checkpoint: a run that goes on must not change the start of half of the seeds.
        warm_keys = {"load_pretrain_checkpoint_path": model.checkpoint.path}
        starts.append(Start(name, architecture, tokenizer, warm_keys))
    return starts


@dataclass
class Estimate:
    """How long the rest takes: by operations, corrected by what has been measured since.

    flops_per_second: of one run. at_once: runs that do not slow each other down.
    """

    flops_per_second: float
    at_once: int = 1
    planned: dict[tuple[str, str], float] = field(default_factory=dict)  # seconds of one run, by task and start
    left: dict[tuple[str, str], int] = field(default_factory=dict)  # runs
    measured: float = 0.0
    expected: float = 0.0  # of the measured runs, as planned

    def plan(self, task: str, start: str, flops: float, runs: int) -> None:
        """Add runs of so many operations each."""
        self.planned[task, start] = START_SECONDS + flops / (UTILISATION * self.flops_per_second)
        self.left[task, start] = runs

    def done(self, task: str, start: str, seconds: float) -> None:
        """A run has ended, in this attempt (seconds) or before."""
        self.left[task, start] -= 1
        self.measured += seconds
        self.expected += self.planned[task, start]

    def rest(self, task: str = "") -> str:
        """What is left of a task, or of all."""
        pace = self.measured / self.expected if self.expected else 1.0 / self.at_once
        left = {key: runs for key, runs in self.left.items() if task in ("", key[0])}
        seconds = pace * sum(self.planned[key] * runs for key, runs in left.items())
        return f"{sum(left.values())} runs, about {timedelta(seconds=round(seconds))}"


class Transfer:
    """All runs, in one output folder."""

    def __init__(self, config: TransferConfig) -> None:
        self.config, self.output = config, Path(config.output)
        self.starts = find_starts(config.warm, config.cold)
        made = self.output / "data"
        made.mkdir(parents=True, exist_ok=True)
        self.tasks = {
            name: TRANSFER_TASKS[name](Path(config.data), made).scaled(config.max_train_samples, config.epochs)
            for name in config.tasks
        }
        self.machine = machine_facts(config.compute_type or "float32")
        at_once = max(1, min(config.jobs, self.machine["cores"] // threads()))
        self.estimate = Estimate(self.machine["matrix_product_gflops"] * 1e9, at_once)
        for name, task in self.tasks.items():
            for start in self.starts:
                flops = task.flops(start.tokenizer, start.architecture)
                self.estimate.plan(name, start.name, flops, len(config.rates) + config.seeds - 1)

    def run(self, name: str, start: Start, rate: str, seed: int) -> dict[str, Any]:
        """Fine-tune once: `dev`, by which the rate is chosen; `figure`; `baseline` of the same; and some more."""
        task, folder = self.tasks[name], self.output / "runs" / name / start.name
        run = "-".join(filter(None, (rate, str(seed), self.config.compute_type)))
        file, scratch = folder / f"{run}.json", folder / run
        config = at_rate(task.config, rate).replace(
            seed=seed,
            compute_type=self.config.compute_type,
            save_finetune_checkpoint_path=scratch,
            feature_dir=self.output / "features",
            **start.keys,
        )
        result = read_result(file, config)
        if result is None:
            folder.mkdir(parents=True, exist_ok=True)
            logger.info(f"{name}, {start.name}, rate {rate}, seed {seed}; left are {self.estimate.rest()}")
            began = time.monotonic()
            run_command(task.module, config, folder / f"{run}.log")
            ended = read_object(scratch / "eval_results.json")
            figures = {
                "dev": ended[task.metric],
                "figure": ended[task.figure],
                "baseline": ended["baselines"][task.figure],
                "seconds": time.monotonic() - began,
            }
            result = write_result(file, config, **figures, machine=self.machine)
            shutil.rmtree(scratch)  # some 50 MB of checkpoints
        return result

    def run_all(self, name: str, start: Start, trials: Sequence[tuple[str, int]]) -> list[dict[str, Any]]:
        """Fine-tune with each rate and seed, `jobs` at a time."""
        results = []
        with ThreadPoolExecutor(self.config.jobs) as pool:
            for result in pool.map(lambda trial: self.run(name, start, *trial), trials):
                self.estimate.done(name, start.name, result["seconds"] / self.config.jobs)
                results.append(result)
        return results

    def compare(self, name: str, start: Start) -> dict[str, Any]:
        """Choose the rate, run all seeds: what one task comes to from one start. One rate waits for no choice."""
        first, rates = self.tasks[name].config.seed, self.config.rates
        others = range(first + 1, first + self.config.seeds)
        early = [(rate, first) for rate in rates] + [(rates[0], seed) for seed in others if len(rates) == 1]
        results = self.run_all(name, start, early)
        trials = dict(zip(rates, results, strict=False))
        rate = max(trials, key=lambda rate: trials[rate]["dev"])
        runs = [trials[rate], *results[len(rates) :]]
        runs += self.run_all(name, start, [(rate, seed) for seed in others if len(rates) > 1])
        figures = [run["figure"] for run in runs]
        return {
            "dev_by_rate": {rate: trial["dev"] for rate, trial in trials.items()},
            "rate": rate,
            "figures": figures,
            "mean": mean(figures),
            "standard_deviation": stdev(figures) if len(figures) > 1 else 0.0,
            "baseline": runs[0]["baseline"],
            "epochs": self.tasks[name].config.epoch_num,
            "max_train_samples": self.tasks[name].config.max_train_samples,
            "compute_type": self.config.compute_type,
            "machine": runs[0]["machine"],
            "seconds_per_run": mean(run["seconds"] for run in runs),
        }


def table(results: dict[str, dict[str, Any]], starts: list[str]) -> str:
    """The figures of all tasks in markdown: mean ± standard deviation over the seeds, and the chosen rate."""
    lines = [
        f"| task | figure | baseline | without a network | {' | '.join(starts)} |",
        "|---" * (4 + len(starts)) + "|",
    ]
    for name, result in results.items():
        one = next(iter(result["starts"].values()))
        words = ", ".join(f"{method} {figure:.3f}" for method, figure in result["without_network"].items())
        cells = [name, result["figure"], f"{one['baseline']:.3f}", words]
        for start in starts:
            one = result["starts"][start]
            cells.append(f"{one['mean']:.3f} ± {one['standard_deviation']:.3f} ({one['rate']})")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main(config: TransferConfig) -> None:
    """Compare all starts on all tasks and print the table; results.json has each start of a task once it is done."""
    check_output_folder(Path(config.output), "output")
    transfer = Transfer(config)
    for name in transfer.tasks:
        logger.info(f"{name}: {transfer.estimate.rest(name)}")
    logger.info(f"together {transfer.estimate.rest()}, those of earlier attempts included")
    if config.dry_run:
        return
    starts = [start.name for start in transfer.starts]
    results: dict[str, dict[str, Any]] = {}
    for name, task in transfer.tasks.items():
        without = task.without_network(transfer.starts[0].tokenizer)
        results[name] = {"figure": f"{task.evaluated} {task.metric}", "without_network": without, "starts": {}}
        for start in transfer.starts:
            results[name]["starts"][start.name] = transfer.compare(name, start)
            add_results(
                transfer.output / RESULTS_FILE,
                {name: results[name]},
                lambda earlier, now: {**now, "starts": earlier["starts"] | now["starts"]},
            )
        print(table({name: results[name]}, starts).splitlines()[-1])
    print(json.dumps(transfer.machine))
    print(table(results, starts))


if __name__ == "__main__":
    run_main(main, TransferConfig)
