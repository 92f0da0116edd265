"""The log of a run: a progress bar or plain lines, train_log.jsonl, TensorBoard events, trackers and curves.png."""

import json
import logging
import os
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from pydantic import Field
from tqdm import tqdm

from model_utils.errors import DataError
from model_utils.files import naming_in_errors, write_atomically, write_text
from model_utils.json_files import Schema, parse_json, read_file, validated
from src.training.event_file import EventFile
from src.training.trackers import Trackers

logger = logging.getLogger(__name__)
LOG_FILE = "train_log.jsonl"
CURVES_FILE = "curves.png"
EVAL_PREFIX = "eval_"

Baselines = Mapping[str, dict[str, float]]  # metric -> name of a reference line -> its height


class RecordSchema(Schema):
    """A line of train_log.jsonl: numbers by name, null where there was nothing to report."""

    __pydantic_extra__: dict[str, float | None] = Field(init=False)
    step: int


def read_log(folder: Path, last_step: int) -> list[dict[str, Any]]:
    """Return the records of train_log.jsonl up to last_step, without those after the last checkpoint.

    Skip damaged lines with a warning; a kill may come in the middle of one.
    """
    records = []
    file = folder / LOG_FILE
    for number, line in enumerate(read_file(file).splitlines() if os.path.lexists(file) else (), 1):
        try:
            record = parse_json(line)
            validated(record, RecordSchema, f"{file}: line {number}")
        except DataError as error:
            logger.warning(f"{error}; passed over")
        except ValueError as error:
            logger.warning(f"{file}: line {number} is damaged or not JSON: {error}; passed over")
        else:
            if record["step"] <= last_step:
                records.append(record)
    return records


class RunLog:
    """Records of one run, continued after `start_step`.

    Args:
        metric_names: the training metrics, the total loss first.
        train_steps: updates of the whole run; None if its length is also limited in hours.
        start_step: updates already done; later records of an earlier attempt are removed.
        baselines: what each metric is to be compared with, for instance chance; under a name with EVAL_PREFIX in
            evaluations alone.
        trackers: get the metrics of TensorBoard, which they may exclude; None: TensorBoard alone.
    """

    def __init__(
        self,
        folder: Path,
        metric_names: Sequence[str],
        train_steps: int | None,
        start_step: int,
        baselines: Baselines,
        trackers: Trackers | None = None,
    ) -> None:
        self.folder = folder
        self.metric_names = tuple(metric_names)
        self.train_steps = train_steps
        self.baselines = baselines
        self.records = read_log(folder, start_step)
        text = "".join(json.dumps(record) + "\n" for record in self.records)
        write_text(folder / LOG_FILE, text)
        self.file = (folder / LOG_FILE).open("a", encoding="utf-8")
        has_events = trackers is None or trackers.has_events
        self.board = EventFile(folder / "tensorboard", start_step + 1) if has_events else None
        self.trackers = trackers
        # disable=None: only on a terminal
        self.bar = tqdm(total=train_steps, initial=start_step, unit="step", dynamic_ncols=True, disable=None)

    def advance(self, step: int) -> None:
        """Move the progress bar to `step`."""
        self.bar.update(step - self.bar.n)

    def write(self, record: dict[str, Any]) -> None:
        """Add the record of one step everywhere; values are numbers, or None where there is nothing to report."""
        self.records.append(record)
        with naming_in_errors(self.folder / LOG_FILE):
            self.file.write(json.dumps(record, allow_nan=False) + "\n")
            self.file.flush()
        metrics = {}
        for name, value in record.items():
            if name != "step" and value is not None:
                group = "eval" if name.startswith(EVAL_PREFIX) else "train"
                tag = f"{group}/{name.removeprefix(EVAL_PREFIX)}"
                metrics[tag] = value
                if self.board:
                    self.board.add_scalar(tag, value, record["step"])
        if self.trackers:
            self.trackers.log(metrics, record["step"])
        logger.info(self.sentence(record))

    def sentence(self, record: dict[str, Any]) -> str:
        """Return a record as text: metrics beside their baselines, speed, time left; evaluation on its own line."""
        total = f"/{self.train_steps}" if self.train_steps else ""
        parts = [f"step {record['step']}{total}", f"epoch {record['epoch']:.2f}"]
        parts += [f"phase {record['phase']}"] if "phase" in record else []
        parts += [self._metric(name, record[name]) for name in self.metric_names]
        parts.append(f"lr {record['learning_rate']:.3g}")
        if record["skipped_steps"]:
            parts.append(f"loss scale {record['loss_scale']:g}, {record['skipped_steps']} skipped")
        parts.append(f"{_number(record['examples_per_s'], '.1f')} examples/s")
        parts.append(f"{_number(record['tokens_per_s'], ',.0f')} tokens/s")
        if record["mfu"] is not None:
            parts.append(f"mfu {record['mfu']:.2f}")
        if record["eta_s"] is not None:
            parts.append(f"eta {timedelta(seconds=round(record['eta_s']))}")
        evaluated = [self._metric(name, record[name]) for name in record if name.startswith(EVAL_PREFIX)]
        text = "  ".join(parts)
        if evaluated:
            text += f"\n    evaluation  {'  '.join(evaluated)}"
        return text

    def _metric(self, name: str, value: float | None) -> str:
        lines = ", ".join(f"{label} {height:.3f}" for label, height in self._baselines_of(name).items())
        return f"{name.removeprefix(EVAL_PREFIX)} {_number(value, '.4f')}" + (f" ({lines})" if lines else "")

    def _baselines_of(self, name: str) -> Mapping[str, float]:
        return self.baselines.get(name, {}) | self.baselines.get(name.removeprefix(EVAL_PREFIX), {})

    def sync(self) -> None:
        """Put the log on the disk; called before every checkpoint."""
        os.fsync(self.file.fileno())
        if self.board:
            self.board.flush()

    def draw_curves(self) -> None:
        """Draw the curves of all records."""
        if self.records:
            write_atomically(self.folder / CURVES_FILE, self._draw)

    def close(self) -> None:
        """End the bar and close the files."""
        self.bar.close()
        self.file.close()
        if self.board:
            self.board.close()

    def _draw(self, path: Path) -> None:
        from matplotlib.figure import Figure  # takes half a second to import, and only ranks that write draw

        evaluated = {
            key.removeprefix(EVAL_PREFIX) for record in self.records for key in record if key.startswith(EVAL_PREFIX)
        }
        trained = self.metric_names[1:] or self.metric_names  # a sum of losses says less than its parts
        panels = [*trained, *sorted(evaluated - set(self.metric_names))]
        last_steps = {record["phase"]: record["step"] for record in self.records if "phase" in record}
        borders = sorted(last_steps.values())[:-1]  # between phases, since each ends with a record
        columns = min(2, len(panels))
        rows = -(-len(panels) // columns)
        figure = Figure(figsize=(6 * columns, 3.6 * rows), layout="constrained")
        axes = list(figure.subplots(rows, columns, squeeze=False).flat)
        for axis, name in zip(axes, panels, strict=False):
            for key, style in ((name, "-"), (EVAL_PREFIX + name, "o-")):
                points = [(r["step"], r[key]) for r in self.records if r.get(key) is not None]
                if points:
                    axis.plot(*zip(*points, strict=True), style, markersize=3, linewidth=1.2, label=key)
            for index, (label, height) in enumerate(self._baselines_of(EVAL_PREFIX + name).items()):
                axis.axhline(
                    height, color="grey", linestyle=("--", ":", "-.")[index % 3], label=f"{label} {height:.3f}"
                )
            for step in borders:
                axis.axvline(step, color="grey", linewidth=0.6, zorder=0)
            axis.set(title=name, xlabel="updates")
            if axis.get_legend_handles_labels()[0]:  # a task of several may have no value yet
                axis.legend(fontsize=8)
        for axis in axes[len(panels) :]:
            axis.set_visible(False)
        figure.savefig(path, dpi=110)


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
