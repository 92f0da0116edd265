"""Time raw text to answers, loading and compilation included: python -m benchmarks.predict --help.

Both sides answer the same file with the same random weights, as whole commands in turn. Beside them stands the time
that the matrix products of all records alone would take at the speed of large square ones.
"""

import json
import logging
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.commands import PROJECT, TRANSFORMERS, CommandsConfig, measure_in_turns, run_command
from benchmarks.machine import MatrixProducts
from benchmarks.random_model import write_random_models
from benchmarks.transformers_answers import TASKS, AnswersConfig
from benchmarks.turns import Contender
from model_utils.config import run_main
from model_utils.errors import ConfigError
from model_utils.schema import option
from src.albert_config import PRESETS
from src.inference.deploy_config import COMPUTE_TYPES, ExportConfig, PredictConfig
from src.text.text_tables import read_table
from src.utils import read_json_text

logger = logging.getLogger(__name__)
ANSWER_KEY = {"classification": "label", "squad_v1": "answer"}  # compared between the sides
LENGTH = {"classification": 128, "squad_v1": 384}


class PredictionConfig(CommandsConfig):
    """Time whole prediction commands: python -m benchmarks.predict."""

    task: str = option("classification", "task of the model", choices=TASKS)
    text: str = option("", "a table with a column sentence (GLUE's SST-2), or SQuAD's json", required=True)
    records: int = option(2000, "records that are answered, the first ones", minimum=1)
    source: str = option("checkpoint", "what this project answers with", choices=("checkpoint", "mindir"))
    compute_type: str = option("float32", "of this project; the others compute in float32", choices=COMPUTE_TYPES)
    batch_sizes: tuple[str, ...] = option(("1", "8", "32"), "of transformers, of which the fastest is chosen first")

    def check_together(self) -> None:
        for size in self.batch_sizes or ("",):
            if not size.isdecimal() or int(size) < 1:
                raise ConfigError(f"batch_sizes holds {size!r}, allowed are whole numbers from 1, at least one of them")


def read_records(config: PredictionConfig) -> Iterator[dict[str, str]]:
    """Yield records as predict.py reads them."""
    if config.task == "classification":
        table = read_table(Path(config.text))
        for _, (text,) in table.select(["sentence"]):
            yield {"text_a": text}
        return
    for article in read_json_text(Path(config.text))["data"]:
        for paragraph in article["paragraphs"]:
            for question in paragraph["qas"]:
                yield {"question": question["question"], "context": paragraph["context"]}


class RecordProducts(MatrixProducts):
    """Meter of the CPU's speed that also counts the products of a model on records."""

    def count(self, model: Path, records: Path) -> tuple[int, float]:
        """Return tokens of the records' rows without padding, and floating-point operations of products with them."""
        from src.model_folder import ModelFolder
        from src.tasks import TASKS as TASK_SPECS
        from src.training.flops import forward_flops

        folder = ModelFolder.load(model)
        assert folder.task_info is not None and folder.tokenizer is not None  # RandomModel saves both
        spec = TASK_SPECS[folder.task_info.task]
        processor = spec.processor(folder.task_info, folder.tokenizer, ("", ""))
        items = [processor.parse(json.loads(line)) for line in records.open(encoding="utf-8")]
        lengths = processor.encode(items).values["input_ids"].counts.tolist()
        reads_tokens = spec.scores(folder.architecture, folder.task_info).reads_tokens
        operations = [forward_flops(folder.architecture, 1, length, reads_tokens=reads_tokens) for length in lengths]
        return sum(lengths), sum(operations)


class Sides:
    """Commands of both sides on one file, in a folder."""

    def __init__(self, config: PredictionConfig, folder: Path) -> None:
        self.config = config
        self.folder = folder
        self.input = folder / "records.jsonl"
        lines = [json.dumps(record) + "\n" for record in islice(read_records(config), config.records)]
        self.input.write_text("".join(lines), encoding="utf-8")
        self.num_records = len(lines)
        self.checkpoint, self.peer_model = write_random_models(
            PRESETS[config.albert_network], config.task, config.spm_model_file, LENGTH[config.task], folder
        )
        self.model = self.checkpoint
        if config.source == "mindir":
            export = ExportConfig(export_ckpt_file=str(self.checkpoint), export_file_name=str(folder / "model"))
            run_command("export", export, folder / "export.log")
            self.model = folder / "model.mindir"

    def _answers_file(self, side: str) -> Path:
        return self.folder / f"{side}.jsonl"

    def run_project(self) -> float:
        """Return the seconds of predict.py."""
        answers = PredictConfig(
            device_target="CPU",
            compute_type=self.config.compute_type,
            model=str(self.model),
            input=str(self.input),
            output=str(self._answers_file(PROJECT)),
        )
        return run_command("predict", answers, self.folder / "project.log")

    def run_peer(self, batch_size: int) -> float:
        """Return the seconds of transformers with this batch size."""
        answers = AnswersConfig(
            model=str(self.peer_model),
            task=self.config.task,
            input=str(self.input),
            output=str(self._answers_file(TRANSFORMERS)),
            batch_size=batch_size,
            max_seq_length=LENGTH[self.config.task],
        )
        return run_command("benchmarks.transformers_answers", answers, self.folder / "peer.log")

    def agreement(self) -> float:
        """Return the share of the records that both answer alike."""
        answers = []
        for side in (PROJECT, TRANSFORMERS):
            with self._answers_file(side).open("rb") as lines:
                answers.append([json.loads(line)[ANSWER_KEY[self.config.task]] for line in lines])
        return sum(first == second for first, second in zip(*answers, strict=True)) / self.num_records


def compare(config: PredictionConfig, folder: Path) -> dict[str, Any]:
    """Return the figures of both sides."""
    sides = Sides(config, folder)
    trials = {size: sides.run_peer(int(size)) for size in config.batch_sizes}
    best_size = int(min(trials, key=trials.__getitem__))
    logger.info(f"seconds of transformers by batch size: {trials}")
    seconds: dict[str, list[float]] = {PROJECT: [], TRANSFORMERS: []}
    speeds = []
    with Contender(RecordProducts, config.compute_type) as products:
        tokens, operations = products.call("count", sides.checkpoint, sides.input)
        for _ in range(config.rounds):
            seconds[PROJECT].append(sides.run_project())
            seconds[TRANSFORMERS].append(sides.run_peer(best_size))
            speeds.append(products.call("flops_per_second"))
    return {
        "records": sides.num_records,
        "tokens": tokens,
        "operations": operations,
        "products": speeds,
        "seconds": seconds,
        "batch_size": best_size,
        "seconds_by_batch_size": trials,
        "agreement": sides.agreement(),
    }


def report(figures: dict[str, Any]) -> str:
    """Return the figures as lines."""
    lines = []
    for side, seconds in figures["seconds"].items():
        rate = figures["records"] / median(seconds)
        lines.append(f"{side}: median {median(seconds):.1f} s, minimum {min(seconds):.1f} s, {rate:.1f} records/s")
    speed = median(figures["products"])
    lines.append(
        f"the matrix products of {figures['tokens']:,} tokens, {figures['operations'] / 1e9:,.0f} GFLOP: "
        f"{figures['operations'] / speed:.1f} s at the {speed / 1e9:.0f} GFLOP/s of large square ones"
    )
    project, peer = figures["seconds"].values()
    lines.append(
        f"transformers, with its fastest batch size {figures['batch_size']}, takes "
        f"{median(peer) / median(project):.3f} times as long (minimum {min(peer) / min(project):.3f}); "
        f"{figures['agreement']:.1%} of the answers are the same"
    )
    return "\n".join(lines)


def main(config: PredictionConfig) -> None:
    """Measure, print, write."""
    measure_in_turns(config, compare, report)


if __name__ == "__main__":
    run_main(main, PredictionConfig)
