"""What each choice of a pre-training recipe gives: python -m benchmarks.pretraining_recipes --help.

Every rung of the ladder (benchmarks/rungs/*.yaml) trains on the same text for as many updates as a quiet machine makes
in the same time, and is evaluated on the same held-out text, one after the other, each in a process of its own. How
many updates that is, is measured first (--measure true, on a machine that nothing else uses) and kept in a file; the
runs themselves need no quiet machine then, and come to the same on a slower one. Held-out examples have 64 tokens, 15 %
of them hidden, single words, always the same masks: so rungs that mask in another way or train on longer examples
compare. They differ only with the vocabulary, and between vocabularies nats per character are what to look at.

In the output folder lie vocabularies, examples and runs, each made once; the same command again takes up where it was
stopped, and a finished rung is not run again. The figures are added to a file that other machines' runs may have begun.
"""

import json
import logging
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from benchmarks.commands import CONFIG, add_results, read_result, run_command, write_result
from benchmarks.machine import machine_facts
from benchmarks.rung import Rung, find_rungs
from benchmarks.timed_training import TimedTraining
from benchmarks.turns import Contender
from model_utils.config import MINUTES, check_output_folder, run_main
from model_utils.errors import ConfigError
from model_utils.json_files import checksum_of, read_object
from model_utils.schema import Config, option
from src.albert_config import COMPUTE_TYPES
from src.create_pretraining_data import CreateDataConfig
from src.data.feature_files import open_records
from src.pretraining_data.diagnostics import OWN_UNIGRAM
from src.pretraining_data.examples import SPECIAL_TOKENS, TASK
from src.text.corpus import expand_glob
from src.train_vocabulary import TrainVocabularyConfig
from src.training.training_config import PretrainConfig, PretrainEvalConfig

logger = logging.getLogger(__name__)
HELD_OUT = CreateDataConfig(
    max_seq_length=64,
    max_predictions_per_seq=10,
    masked_lm_prob=0.15,
    ngram=1,
    dupe_factor=1,
    masking="static",
    segment_packing="cut",
)
LONG = 1_000_000  # updates, of a run of which few are made
TO_COME = "to come"  # a path that is named by the digest of the other settings
EVAL_BATCH = 64
COLUMNS = {  # of the table: heading and format of each figure
    "updates": ("updates", ",.0f"),
    "tokens": ("tokens", ",.0f"),
    "hidden_mlm_loss": ("nats a token at [MASK]", ".3f"),
    "unigram": ("unigram", ".3f"),
    "below_unigram": ("below unigram", ".3f"),
    "hidden_nats_per_character": ("nats a character", ".3f"),
    "unigram_per_character": ("unigram", ".3f"),
    "hidden_mlm_accuracy": ("accuracy at [MASK]", ".3f"),
    "sop_accuracy": ("order accuracy", ".3f"),
}


class RecipesConfig(Config):
    """Train every rung of a ladder of recipes with the same budget: python -m benchmarks.pretraining_recipes."""

    rungs: tuple[str, ...] = option(("benchmarks/rungs",), "yaml files of rungs, and folders of them")
    text: str = option("", "text to train on: names or glob patterns with commas between them", required=True)
    held_out: str = option("", "text to evaluate on, likewise", required=True)
    spm_model_file: str = option("", "vocabulary of the rungs that have none of their own", required=True)
    output: str = option("", "folder for vocabularies, examples and runs", required=True)
    updates: str = option("benchmarks/rungs/updates.json", "file with the updates that each rung has time for")
    results: str = option("benchmarks/rungs/results.json", "file to which the figures of each rung are added")
    measure: bool = option(False, "write the file of updates, for the rungs named, instead of training them")
    minutes: float = option(
        15.0, "of training on a quiet machine, for each rung", above=0, maximum=MINUTES, needs=("measure", True)
    )
    rounds: int = option(
        3,
        "times that each rung is measured, one rung after the other; the fastest counts",
        minimum=1,
        needs=("measure", True),
    )
    repeat: int = option(
        1, "runs of each rung, with other seeds, to see how much chance there is", minimum=1, needs=("measure", False)
    )
    compute_type: str = option(
        "",
        "of the runs' matrix products; empty: as the rungs have it, float32 where they do not say",
        choices=("", *COMPUTE_TYPES),
        needs=("measure", False),
    )
    dry_run: bool = option(
        False, "read all rungs, say how long they take together, and run none", needs=("measure", False)
    )


class Ladder:
    """The folder of a ladder, and what its rungs share."""

    def __init__(self, config: RecipesConfig, machine: dict[str, Any]) -> None:
        self.config, self.machine, self.output = config, machine, Path(config.output)
        self.logs = self.output / "logs"
        self.logs.mkdir(parents=True, exist_ok=True)

    def vocabulary(self, size: int) -> Path:
        """The SentencePiece model of this size, trained on the ladder's text at its first use."""
        if not size:
            return Path(self.config.spm_model_file)
        settings = TrainVocabularyConfig(input_file=self.config.text, output_prefix=TO_COME, vocab_size=size)
        prefix = self.output / "vocabularies" / f"{size}-{digest(settings)}"
        model = prefix.with_suffix(".model")
        if not model.exists():
            logger.info(f"training a vocabulary of {size:,} pieces")
            run_command(
                "src.train_vocabulary", settings.replace(output_prefix=prefix), self.logs / f"{prefix.name}.log"
            )
        return model

    def examples(self, settings: CreateDataConfig, text: str, vocabulary: Path) -> Path:
        """The folder with examples of a text, made at its first use; what is made already is verified."""
        settings = settings.replace(input_file=text, spm_model_file=vocabulary, output_file=TO_COME)
        folder = self.output / "examples" / digest(settings)
        settings = settings.replace(output_file=folder / "examples.mindrecord")
        run_command("src.create_pretraining_data", settings, self.logs / f"examples-{folder.name}.log")
        return folder

    def training(self, name: str, rung: Rung, updates: int, seed: int) -> PretrainConfig:
        """The configuration that trains a rung; its vocabulary and examples are made."""
        vocabulary = self.vocabulary(rung.vocab_size)
        folders = {name: self.examples(data, self.config.text, vocabulary) for name, data in rung.all_data.items()}
        run = self.output / "runs" / self.run_name(name, seed)
        training = rung.training(folders, run, updates, seed)
        return training.replace(compute_type=self.config.compute_type or training.compute_type or "float32")

    def run_name(self, name: str, seed: int) -> str:
        """Of the files of a run: those in a type of their own have it in their names."""
        return "-".join(filter(None, (name, str(seed), self.config.compute_type)))

    def measure(self, name: str, rung: Rung) -> int:
        """Updates of a rung that this machine makes in the time."""
        training = self.training(name, rung, LONG, PretrainConfig().seed)
        with Contender(TimedTraining, training) as timed:
            return round(60 * self.config.minutes / timed.call("seconds"))

    def run(self, name: str, rung: Rung, updates: int, seed: int) -> dict[str, Any]:
        """Train a rung, or go on with it, and evaluate it: its figures, by the names of COLUMNS and some more."""
        log = self.logs / f"{self.run_name(name, seed)}.log"
        training = self.training(name, rung, updates, seed)
        held_out = self.examples(HELD_OUT, self.config.held_out, self.vocabulary(rung.vocab_size))
        file = self.output / "figures" / f"{self.run_name(name, seed)}.json"
        if result := read_result(file, training):
            return result
        run_command("run_pretrain", training, log)
        evaluation = PretrainEvalConfig(
            load_checkpoint_path=training.save_checkpoint_path, data_dir=held_out, batch_size=EVAL_BATCH
        )
        run_command("pretrain_eval", evaluation, log.with_stem(f"{log.stem}-evaluation"))
        figures = figures_of(training)
        return write_result(file, training, **figures, machine=self.machine)


def digest(settings: Config) -> str:
    """A short name for what a command with these settings makes."""
    return checksum_of(settings.resume_fingerprint())[:12]


def tokens_of(data_dir: Path) -> int:
    """Tokens of all examples in a folder, special ones included."""
    records = open_records(data_dir, TASK)
    special = SPECIAL_TOKENS if records.facts["settings"]["masking"] == "dynamic" else 0  # which are not stored
    return int(records.lengths.sum()) + special * records.num_rows


def figures_of(training: PretrainConfig) -> dict[str, float]:
    """What a finished and evaluated run came to, from the files in its folder and those of its examples.

    tokens: without padding. Losses in nats a token and a character, at tokens shown as [MASK]; unigram: what the
    frequencies of the held-out tokens themselves give there, the same for all rungs of a vocabulary.
    """
    run, phases = Path(training.save_checkpoint_path), training.all_phases()
    results = read_object(run / "eval_results.json")
    log = [json.loads(line) for line in (run / "train_log.jsonl").read_text(encoding="utf-8").splitlines()]
    epochs = {phases[record.get("phase", 1) - 1].data_dir: record["epoch"] for record in log}  # the last of each folder
    tokens = sum(passes * tokens_of(Path(folder)) for folder, passes in epochs.items())
    loss, baselines = results["hidden_mlm_loss"], results["baselines"]
    unigram = baselines["hidden_mlm_loss"][OWN_UNIGRAM]
    return {
        "updates": log[-1]["step"],
        "tokens": tokens,
        "hidden_mlm_loss": loss,
        "unigram": unigram,
        "below_unigram": unigram - loss,
        "hidden_nats_per_character": results["hidden_nats_per_character"],
        "unigram_per_character": baselines["hidden_nats_per_character"][OWN_UNIGRAM],
        "hidden_mlm_accuracy": results["hidden_mlm_accuracy"],
        "sop_accuracy": results["sop_accuracy"],
    }


def joined(earlier: list[dict[str, Any]], runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Runs of a rung with those of earlier ones that compare: as many updates, the same held-out tokens, another seed
    or compute_type."""
    made = {(run["seed"], run["compute_type"]) for run in runs}
    alike = [run for run in earlier if all(run[key] == runs[0][key] for key in ("updates", "unigram"))]
    kept = [run for run in alike if (run["seed"], run["compute_type"]) not in made]
    return sorted([*kept, *runs], key=lambda run: (run["compute_type"] != "float32", run["seed"]))


def table_of(results: dict[str, Any]) -> str:
    """The table of a file of results: a row for each rung and type."""
    rows: dict[str, list[dict[str, Any]]] = {}
    for name, result in sorted(results.items()):
        for run in result["runs"]:
            of_type = "" if run["compute_type"] == "float32" else f", {run['compute_type']}"
            rows.setdefault(name + of_type, []).append(run)
    return table(rows)


def table(results: dict[str, list[dict[str, Any]]]) -> str:
    """The figures of all rungs in markdown; of several runs, mean and standard deviation."""
    lines = ["| rung | " + " | ".join(heading for heading, _ in COLUMNS.values()) + " |"]
    lines.append("|---" * (len(COLUMNS) + 1) + "|")
    for name, runs in results.items():
        cells = [_cell([run[figure] for run in runs], form) for figure, (_, form) in COLUMNS.items()]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(values: Sequence[float], form: str) -> str:
    spread = f" ± {stdev(values):{form}}" if len(set(values)) > 1 else ""
    return f"{mean(values):{form}}{spread}"


def check_texts(config: RecipesConfig) -> None:
    """Raise ConfigError where a text of the ladder is also held out, and where there is none."""
    shared = {file.resolve() for file in expand_glob(config.text)} & {
        file.resolve() for file in expand_glob(config.held_out)
    }
    if shared:
        raise ConfigError(f"text and held_out both name {min(shared)}: what is trained on says nothing held out")


def budgets_of(config: RecipesConfig, names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """The updates and minutes of each rung, as measured; ConfigError where one has not been."""
    budgets = read_object(Path(config.updates)) if Path(config.updates).is_file() else {}
    if missing := [name for name in names if name not in budgets]:
        raise ConfigError(
            f"{config.updates} does not say how many updates {missing[0]} has time for: --measure true writes it"
        )
    return budgets


def measure_rungs(config: RecipesConfig, rungs: dict[str, Rung]) -> None:
    """Write how many updates each rung has time for, after every round.

    Machines that others use, too, are slow for minutes at a time: of several rounds one finds a rung at its fastest.
    """
    ladder = Ladder(config, machine_facts())
    most = dict.fromkeys(rungs, 0)
    for _ in range(config.rounds):
        for name, rung in rungs.items():
            updates = ladder.measure(name, rung)
            most[name] = max(most[name], updates)
            logger.info(f"{name}: {updates:,} updates in {config.minutes:g} minutes")
        measured = {"minutes": config.minutes, "machine": ladder.machine}
        add_results(Path(config.updates), {name: {"updates": updates} | measured for name, updates in most.items()})


def main(config: RecipesConfig) -> None:
    """Run the rungs and print the table of all that have been; the results have every rung as soon as it is done."""
    rungs = find_rungs(config.rungs)
    check_texts(config)
    check_output_folder(Path(config.output), "output")
    written = "updates" if config.measure else "results"
    check_output_folder(Path(getattr(config, written)).parent, written)
    for name, rung in rungs.items():
        logger.info(f"{name}: {rung.question}")
    if config.measure:
        measure_rungs(config, rungs)
        return
    budgets = budgets_of(config, rungs)
    hours = config.repeat * sum(budgets[name]["minutes"] for name in rungs) / 60
    logger.info(f"{len(rungs)} rungs x {config.repeat}: {hours:.1f} hours of training on a quiet machine")
    if config.dry_run:
        return
    ladder = Ladder(config, machine_facts())
    first = PretrainConfig().seed
    file = Path(config.results)
    for name, rung in rungs.items():
        runs = []
        for seed in range(first, first + config.repeat):
            logger.info(f"{name}, seed {seed}: {budgets[name]['updates']:,} updates")
            figures = ladder.run(name, rung, budgets[name]["updates"], seed)
            kept = {key: figures[key] for key in (*COLUMNS, "machine")}
            runs.append({"seed": seed, "compute_type": figures[CONFIG]["compute_type"]} | kept)
        facts = {"question": rung.question, "minutes": budgets[name]["minutes"]}
        add_results(
            file,
            {name: {**facts, "runs": runs}},
            lambda earlier, now: {**now, "runs": joined(earlier["runs"], now["runs"])},
        )
        logger.info(table({name: runs}).splitlines()[-1])
    print(table_of(read_object(file)))


if __name__ == "__main__":
    run_main(main, RecipesConfig)
