"""Raw text to answers, loading and compilation counted, here and with transformers: python -m benchmarks.predict.

Both sides answer the same file with the same weights, which are random, as whole commands in turn. Beside them stands
what the matrix products of all records alone would take at the speed of large square ones.
"""

import json
import logging
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.commands import measure_in_turns, run_command
from benchmarks.machine import MatrixProducts
from benchmarks.random_model import random_models
from benchmarks.transformers_answers import TASKS, AnswersConfig
from benchmarks.turns import Contender
from model_utils.config import run_main
from model_utils.errors import ConfigError
from model_utils.schema import Config, option
from src.albert_config import PRESETS
from src.inference.deploy_config import ANSWERS_IN, ExportConfig, PredictConfig
from src.text.text_tables import read_table
from src.utils import read_json_text

logger = logging.getLogger(__name__)
ANSWER = {"classification": "label", "squad_v1": "answer"}  # the key of what both sides should agree on
LENGTH = {"classification": 128, "squad_v1": 384}
OURS, THEIRS = "this project", "transformers"


class PredictionConfig(Config):
    """Time whole prediction commands: python -m benchmarks.predict."""

    albert_network: str = option("albert_base", "preset of sizes", choices=tuple(PRESETS))
    task: str = option("classification", "what is answered", choices=TASKS)
    text: str = option("", "a table with a column sentence (GLUE's SST-2), or SQuAD's json", required=True)
    records: int = option(2000, "records that are answered, the first ones", minimum=1)
    spm_model_file: str = option("", "vocabulary", required=True)
    source: str = option("checkpoint", "what this project answers with", choices=("checkpoint", "mindir"))
    compute_type: str = option("float32", "of this project; the others compute in float32", choices=ANSWERS_IN)
    batch_sizes: tuple[str, ...] = option(("1", "8", "32"), "of transformers, of which the fastest is chosen first")
    rounds: int = option(7, "turns of each side", minimum=1)
    output: str = option("", "JSON file for the figures; empty: none")

    def validate(self) -> None:
        if wrong := [size for size in self.batch_sizes or ("",) if not size.isdecimal() or int(size) < 1]:
            raise ConfigError(f"batch_sizes holds {wrong[0]!r}, allowed are whole numbers from 1, at least one of them")


def records_of(config: PredictionConfig) -> Iterator[dict[str, str]]:
    """Records as predict.py reads them."""
    if config.task == "classification":
        table = read_table(Path(config.text))
        place = table.place("sentence")
        yield from ({"text_a": row[place]} for _, row in table.rows)
        return
    for article in read_json_text(Path(config.text))["data"]:
        for paragraph in article["paragraphs"]:
            for question in paragraph["qas"]:
                yield {"question": question["question"], "context": paragraph["context"]}


class RecordProducts(MatrixProducts):
    """Of a folder's network, too."""

    def tokens_and_operations(self, model: Path, records: Path) -> tuple[int, float]:
        """Tokens of the records' rows without padding, and the floating-point operations of products with them."""
        from src.model_folder import ModelFolder
        from src.tasks import TASKS as SPECS
        from src.training.flops import forward_flops

        folder = ModelFolder.load(model)
        answerer = SPECS[folder.task_info.task].answerer(folder.task_info, folder.tokenizer, ("", ""))
        items = [answerer.read(json.loads(line)) for line in records.open(encoding="utf-8")]
        lengths = answerer.features(items).values["input_ids"].counts.tolist()
        scores = SPECS[folder.task_info.task].scores(folder.architecture, folder.task_info)
        operations = [forward_flops(folder.architecture, 1, each, reads_tokens=scores.reads_tokens) for each in lengths]
        return sum(lengths), sum(operations)


class Sides:
    """The commands of both sides on one file in a folder."""

    def __init__(self, config: PredictionConfig, folder: Path) -> None:
        self.config, self.folder = config, folder
        self.input = folder / "records.jsonl"
        lines = [json.dumps(record) + "\n" for record in islice(records_of(config), config.records)]
        self.input.write_text("".join(lines), encoding="utf-8")
        self.number = len(lines)
        architecture = PRESETS[config.albert_network]
        of_model = architecture, config.task, config.spm_model_file, LENGTH[config.task], folder
        self.model, self.theirs_model = random_models(*of_model)
        self.checkpoint = self.model
        if config.source == "mindir":
            export = ExportConfig(export_ckpt_file=self.model, export_file_name=folder / "model")
            run_command("export", export, folder / "export.log")
            self.model = folder / "model.mindir"

    def ours(self) -> float:
        """Seconds of predict.py."""
        answers = PredictConfig(
            device_target="CPU",
            compute_type=self.config.compute_type,
            model=self.model,
            input=self.input,
            output=self.folder / f"{OURS}.jsonl",
        )
        return run_command("predict", answers, self.folder / "ours.log")

    def theirs(self, batch_size: int) -> float:
        """Seconds of transformers with this batch size."""
        answers = AnswersConfig(
            model=self.theirs_model,
            task=self.config.task,
            input=self.input,
            output=self.folder / f"{THEIRS}.jsonl",
            batch_size=batch_size,
            max_seq_length=LENGTH[self.config.task],
        )
        return run_command("benchmarks.transformers_answers", answers, self.folder / "theirs.log")

    def agreement(self) -> float:
        """Share of the records that both answered alike."""
        ours, theirs = (
            [json.loads(line)[ANSWER[self.config.task]] for line in (self.folder / f"{name}.jsonl").open("rb")]
            for name in (OURS, THEIRS)
        )
        return sum(one == other for one, other in zip(ours, theirs, strict=True)) / self.number


def compare(config: PredictionConfig, folder: Path) -> dict[str, Any]:
    """The figures of both sides."""
    sides = Sides(config, folder)
    trials = {size: sides.theirs(int(size)) for size in config.batch_sizes}
    best = min(trials, key=trials.__getitem__)
    logger.info(f"seconds of transformers by batch size: {trials}")
    seconds: dict[str, list[float]] = {OURS: [], THEIRS: []}
    speeds = []
    with Contender(RecordProducts, config.compute_type) as products:
        tokens, operations = products.call("tokens_and_operations", sides.checkpoint, sides.input)
        for _ in range(config.rounds):
            seconds[OURS].append(sides.ours())
            seconds[THEIRS].append(sides.theirs(int(best)))
            speeds.append(products.call("flops_per_second"))
    return {
        "records": sides.number,
        "tokens": tokens,
        "operations": operations,
        "products": speeds,
        "seconds": seconds,
        "batch_size": int(best),
        "seconds_by_batch_size": trials,
        "agreement": sides.agreement(),
    }


def report(figures: dict[str, Any]) -> str:
    """The figures as lines."""
    lines = [
        f"{name}: median {median(each):.1f} s, minimum {min(each):.1f} s, "
        f"{figures['records'] / median(each):.1f} records/s"
        for name, each in figures["seconds"].items()
    ]
    speed = median(figures["products"])
    lines.append(
        f"the matrix products of {figures['tokens']:,} tokens, {figures['operations'] / 1e9:,.0f} GFLOP: "
        f"{figures['operations'] / speed:.1f} s at the {speed / 1e9:.0f} GFLOP/s of large square ones"
    )
    ours, theirs = figures["seconds"].values()
    lines.append(
        f"transformers, with its fastest batch size {figures['batch_size']}, takes {median(theirs) / median(ours):.3f} "
        f"times as long (minimum {min(theirs) / min(ours):.3f}); {figures['agreement']:.1%} of the answers are the same"
    )
    return "\n".join(lines)


def main(config: PredictionConfig) -> None:
    """Measure, print, write."""
    measure_in_turns(config, compare, report)


if __name__ == "__main__":
    run_main(main, PredictionConfig)
