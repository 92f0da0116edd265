"""The loop of every task: updates, log, checkpoints, evaluation, signals, and an end when training diverges.

A step is an optimizer update tried; an update skipped for a non-finite gradient counts. Micro-batches come from one
endless row of epochs and step s ends at number s * accumulation_steps of it, so the step restores the data position.
"""

import math
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

import numpy as np
from mindspore import Tensor

from model_utils.errors import CheckpointError, UserError
from model_utils.facts import flatten
from src.checkpoint_files import ARCHITECTURE, newest_checkpoint, save_checkpoint, state_of
from src.training.checkpoint import mark_best, prune_checkpoints, restore
from src.training.evaluation import Evaluation
from src.training.meters import Speed, Stopwatch, Window
from src.training.ranks import ALONE, Ranks
from src.training.run_folder import RunFolder
from src.training.run_log import EVAL_PREFIX, Baselines, RunLog
from src.training.run_plan import RunFacts, RunPlan
from src.training.stop_signals import StopSignals
from src.training.train_step import TrainStep

Batch = dict[str, np.ndarray]
# What checkpoints did not say before it was needed; 0.1.0 knew nothing of them.
UNTIL_KNOWN = {"evaluating": False, "precision": {}, ARCHITECTURE: {}}
EARLY_STEPS = (1, 2, 5, 10)  # logged as well where log_steps is larger, so that the first lines come soon


class Batches(Protocol):
    """What the loop needs of a data set."""

    def batches(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """The micro-batches of one epoch from number `start` on, the same ones every time."""

    def width_shares(self) -> list[tuple[int, float]]:
        """For each width of micro-batches the number of one in epoch 0, and the share of those that have it."""


@dataclass
class Update:
    """One update under way; its metrics may still be computing on the device."""

    step: int
    outputs: dict[str, Tensor]
    examples: int
    tokens: int
    measured: bool  # False when a graph was compiled for it


class Trainer:
    """Trains until the plan is fulfilled, from the newest good checkpoint in the run's folder.

    Args:
        step: the training step; all its Parameters are saved.
        data: micro-batches of this rank.
        plan: from src.training.run_plan.plan_run.
        config: the keys of PretrainConfig that concern the loop.
        folder: the open run folder.
        facts: by what the run is known again; kept in every checkpoint.
        ranks: the processes that train together; rank 0 writes.
        initialise: sets the weights that the run starts with; called where there is no checkpoint to resume from.
        evaluation: where there is one, its metrics join the log, and its selection marks the best checkpoint
            (src/training/checkpoint.py) and may end the run.
        baselines: reference lines of the metrics.
    """

    def __init__(
        self,
        step: TrainStep,
        data: Batches,
        plan: RunPlan,
        config: Any,
        folder: RunFolder,
        facts: RunFacts,
        ranks: Ranks = ALONE,
        initialise: Callable[[], object] | None = None,
        evaluation: Evaluation | None = None,
        baselines: Baselines | None = None,
    ) -> None:
        self.step, self.data, self.plan, self.config, self.folder = step, data, plan, config, folder
        self.facts, self.ranks = facts, ranks
        self.writer = self.ranks.writer
        self.initialise = initialise
        self.evaluation, self.selection = evaluation, evaluation and evaluation.selection
        self.best: dict[str, Any] = {"step": 0, "metrics": {}, "worse_since": 0}
        self.baselines = baselines or {}
        self.metric_names = tuple(step.network.metric_names)
        self.log: RunLog | None = None
        self.done = 0  # updates whose metrics were read
        self.skipped_steps = self.skipped_in_a_row = 0
        self.evaluating = False  # saved with the state: a run that was stopped in an evaluation begins with it
        self.signals = StopSignals()
        self.window = Window()
        self.latest = {"learning_rate": 0.0, "loss_scale": 1.0}
        self.written: list[int] = []
        self.pending: list[Update] = []
        self.compiled: set[tuple] = set()
        self.clock = Stopwatch()
        self.read_at = self.clock.seconds()
        self.recent, self.session = Speed(), Speed()
        self.saved_time = time.monotonic()

    def fit(self) -> dict[str, Any]:
        """Train to the end and finish the run's folder; the last record of the log (empty on ranks that do not write).

        Raises:
            SystemExit: after SIGTERM or SIGINT, the state saved; code 143 or 130. One that comes with the last update
                or its checkpoint is obeyed when the run is finished.
            UserError: training diverged, the disk is full, or another rank ended; the last good checkpoint is what
                remains. Or the ranks do not agree on data, configuration and checkpoint.
            CheckpointError: the folder's checkpoint belongs to other data or another architecture.
            ConfigError: it was trained in another precision, and the configuration does not ask for this one.
        """
        self.resume()
        self.check_ranks()
        with self.signals:
            self.folder.begin(self.bytes_needed())
            if self.writer:
                # An evaluation that was stopped is made again, and writes the record of its step.
                kept = self.done - self.evaluating
                self.log = RunLog(self.folder.path, self.metric_names, self.plan.train_steps, kept, self.baselines)
            return self.finish_updates()

    def finish_updates(self) -> dict[str, Any]:
        """All updates that are left, and the end of the run; returns and raises what fit does."""
        try:
            with closing(self.log) if self.log else nullcontext():
                if self.evaluating:
                    self.record_if_due(self.done)
                    self.after_update(self.done)
                for step, micro_batches in self.updates():
                    self.train(step, micro_batches)
                    self.after_update(step)
                    if self.out_of_patience:
                        break
                results = self.log.records[-1] if self.log and self.log.records else {}
                self.folder.finish(results)
                if number := self.asked_to_stop():
                    self.say(f"stopped after step {self.done}, the last one: the run is finished")
                    raise SystemExit(128 + number)
                return results
        except OSError as error:
            raise UserError(
                f"training stopped after {self.done} updates: {error}; the last checkpoint in {self.folder.path} is "
                "whole and the same command resumes from it"
            ) from error
        except SystemExit:
            self.ranks.wait("the end of the stopped run")  # which may still be writing on rank 0
            raise

    def say(self, sentence: str) -> None:
        """A line for the reader, from the rank that writes."""
        if self.log:
            self.log.say(sentence)
        elif self.writer:
            print(sentence, flush=True)

    def resume(self) -> None:
        """Restore weights, moments, counters and the log's window from the newest good checkpoint, or start anew."""
        contents = newest_checkpoint(self.folder.path) if self.folder.path.exists() else None
        if contents is None:
            if self.initialise:
                self.initialise()
            return
        state = UNTIL_KNOWN | contents.loop_state
        if missing := sorted(self.state().keys() - state):
            raise CheckpointError(
                f"{contents.path} holds weights but no whole state of a run: {', '.join(missing)} are missing; move it "
                "out of this folder"
            )
        for key, value in self.facts.identity_like(state["identity"]).items():
            if state["identity"].get(key) != value:
                raise CheckpointError(
                    f"{contents.path} was trained on other data: {key} was {state['identity'].get(key)!r} and is now "
                    f"{value!r}; choose another folder, or name this one in load_checkpoint_path to start from it"
                )
        for key, value in self.facts.architecture.items():
            trained = state[ARCHITECTURE].get(key, value)
            if trained != value:
                raise CheckpointError(
                    f"{contents.path} was trained as another model: {key} was {trained!r} and is now {value!r}; put "
                    f"that back (albert_config.json, --albert_cfg.{key}), or choose another folder"
                )
        before = state["precision"] or self.facts.precision.facts()
        changes = self.facts.precision.changes_since(before, contents.path, named=bool(self.config.compute_type))
        restore(self.step, contents)
        if "loss_scale_mode" in changes:
            self.step.restart_scaling()
        self.done, self.written, self.latest = state["step"], state["written"], state["latest"]
        self.skipped_steps, self.skipped_in_a_row = state["skipped_steps"], state["skipped_in_a_row"]
        self.best, self.evaluating = state["best"], state["evaluating"]
        self.window = Window(state["window"])
        self.mark_best()  # a kill may have come between the checkpoint and the mark
        changed = f"; from here {', '.join(changes.values())}" if changes else ""
        self.say(f"resuming after step {self.done} from {contents.path}{changed}")

    def check_ranks(self) -> None:
        """Compare with the other ranks what would make them train apart without an error.

        Raises:
            UserError: they differ; names the first thing that does.
        """
        if self.ranks.size == 1:
            return
        weights = 0
        for parameter in state_of(self.step).values():
            weights = zlib.crc32(parameter.asnumpy().tobytes(), weights)
        settled = {**self.config.to_dict(), **self.facts.precision.facts(), "step": self.done}
        facts = {"data": self.facts.identity, **settled, "checksum of the weights": weights}
        self.ranks.must_agree(flatten(facts), "what they train on")

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds beside the Parameters."""
        epoch, batch = divmod(self.done * self.config.accumulation_steps, self.plan.batches_per_epoch)
        return {
            "step": self.done,
            "epoch": epoch,
            "batch": batch,
            "skipped_steps": self.skipped_steps,
            "skipped_in_a_row": self.skipped_in_a_row,
            "latest": self.latest,
            "best": self.best,
            "evaluating": self.evaluating,
            "window": self.window.sums,
            "written": self.written,
            "identity": dict(self.facts.identity),
            "precision": self.facts.precision.facts(),
            ARCHITECTURE: dict(self.facts.architecture),
            "config": self.config.to_dict(),
        }

    def bytes_needed(self) -> int:
        """Free disk space that the checkpoints still to be kept will take, one more while it is written."""
        if not self.config.enable_save_ckpt:
            return 0
        size = sum(parameter.nbytes for parameter in state_of(self.step).values())
        return size * max(1, self.most_checkpoints - len(self.written))

    @property
    def most_checkpoints(self) -> int:
        """How many lie in the folder at a time: those that are kept, the best one, and one that is being written."""
        return self.config.save_checkpoint_num + bool(self.selection) + 1

    def updates(self) -> Iterator[tuple[int, list[Batch]]]:
        """(step, its micro-batches) for every update that is left."""
        position = self.done * self.config.accumulation_steps
        epoch, start = divmod(position, self.plan.batches_per_epoch)
        micro_batches: list[Batch] = []
        step = self.done
        while step < self.plan.train_steps and not self.out_of_patience:
            for batch in self.data.batches(epoch, start):
                micro_batches.append(batch)
                if len(micro_batches) == self.config.accumulation_steps:
                    step += 1
                    yield step, micro_batches
                    micro_batches = []
                    if step == self.plan.train_steps:
                        return
            epoch, start = epoch + 1, 0

    def train(self, step: int, micro_batches: Sequence[Batch]) -> None:
        """Start one update; one that compiles a graph is waited for, so that its time can be left out."""
        shapes = {
            (i + 1 == len(micro_batches), *(c.shape for c in batch.values())) for i, batch in enumerate(micro_batches)
        }
        new = not shapes <= self.compiled
        if new:
            self.read()
            sizes = sorted({batch["input_mask"].shape for batch in micro_batches})
            self.say(f"compiling for batches of {', '.join(f'{rows} x {width}' for rows, width in sizes)}")
        with self.clock.paused() if new else nullcontext():
            outputs = self.step.train(micro_batches)
            examples = sum(len(batch["input_mask"]) for batch in micro_batches)
            tokens = sum(int(batch["input_mask"].sum()) for batch in micro_batches)
            self.pending.append(Update(step, outputs, examples, tokens, measured=not new))
            if new:
                self.compiled |= shapes
                self.read()

    def after_update(self, step: int) -> None:
        """Read, evaluate, save and stop where this step is due for it."""
        config = self.config
        every = config.data_sink_steps if config.enable_data_sink else 1
        if self.evaluation_due(step):
            self.read()
        stop = self.asked_to_stop()
        last = step == self.plan.train_steps or self.out_of_patience
        if stop and not last:
            self.read()
            self.stop(stop)
        minutes = (time.monotonic() - self.saved_time) / 60
        save = last or (config.save_checkpoint_steps > 0 and step % config.save_checkpoint_steps == 0)
        save = save or 0 < config.save_checkpoint_minutes <= minutes or self.best["step"] == step
        if save or step % every == 0:
            self.read()
        if save:
            self.save()

    def asked_to_stop(self) -> int:
        """The signal to stop for, 0 for none; all ranks must ask at the same place, and get the same answer."""
        return max(self.ranks.gather(self.signals.received, "the question whether to stop"))

    def stop(self, number: int) -> NoReturn:
        """Save and exit after the signal of this number."""
        self.save()
        place = "in the evaluation after" if self.evaluating else "after"
        saved = self.config.enable_save_ckpt
        kept = "saved; the same command resumes it" if saved else "not saved: enable_save_ckpt is false"
        self.say(f"stopped {place} step {self.done}, {kept}")
        raise SystemExit(128 + number)

    def stop_if_asked(self) -> None:
        """What an evaluation calls before each of its batches."""
        if number := self.asked_to_stop():
            self.stop(number)

    def read(self) -> None:
        """Wait for the updates under way and account for each in turn."""
        measured = sum(update.measured for update in self.pending)
        pending, self.pending = self.pending, []
        values = [self.read_values(update.outputs) for update in pending]
        now = self.clock.seconds()
        share = (now - self.read_at) / measured if measured else 0.0
        self.read_at = now
        for update, each in zip(pending, values, strict=True):
            if update.measured:
                self.recent.add(update.examples, update.tokens, share)
                self.session.add(update.examples, update.tokens, share)
            self.account(update.step, each)

    def read_values(self, outputs: dict[str, Tensor]) -> dict[str, float]:
        """Numbers of one update's metrics; waits for the device."""
        return {name: float(tensor.asnumpy()) for name, tensor in outputs.items()}

    def account(self, step: int, values: dict[str, float]) -> None:
        """Add one update to the window; write the record and evaluate where this step is due."""
        self.done = step
        if self.log:
            self.log.advance(step)
        finite = bool(values["finite"]) and math.isfinite(values["loss"])
        self.latest["loss_scale"] = values["loss_scale"]
        if finite:
            self.skipped_in_a_row = 0
            self.latest["learning_rate"] = values["learning_rate"]
        else:
            self.skipped_steps += 1
            self.skipped_in_a_row += 1
            self.stop_if_diverged(step, values)
        self.window.add({name: values[name] for name in (*self.metric_names, "grad_norm")})
        self.record_if_due(step)

    def stop_if_diverged(self, step: int, values: dict[str, float]) -> None:
        """End the run when skipping updates cannot help any more; nothing is saved over the last good checkpoint.

        Raises:
            UserError: without loss scaling at the first non-finite update; with it after max_skipped_steps in a row,
                a dynamic scale being at its minimum.
        """
        scaling = self.step.scaling
        if scaling.mode != "off":
            at_floor = scaling.mode == "static" or values["loss_scale"] <= scaling.minimum
            if not at_floor or self.skipped_in_a_row < self.config.max_skipped_steps:
                return
        scale = f"loss scale {values['loss_scale']:g}" if scaling.mode != "off" else "no loss scaling"
        raise UserError(
            f"training diverged: at step {step} the loss is {values['loss']} and the gradient's norm "
            f"{values['grad_norm']}, {self.skipped_in_a_row} updates in a row skipped, {scale}; lower the learning "
            f"rate or lengthen the warm-up. Checkpoints written before stay in {self.folder.path}"
        )

    def evaluation_due(self, step: int) -> bool:
        """Whether development metrics belong to this step's record."""
        return bool(self.evaluation) and (step % self.evaluation.steps == 0 or step == self.plan.train_steps)

    @property
    def out_of_patience(self) -> bool:
        """Whether the development metric has not improved for too long."""
        return bool(self.selection and 0 < self.selection.patience <= self.best["worse_since"])

    def judge(self, step: int, metrics: dict[str, float]) -> None:
        """Remember the step with the best development metric; of equal ones the first."""
        if not self.selection:
            return
        name = self.selection.metric
        if metrics[name] > self.best["metrics"].get(name, -math.inf):
            self.best = {"step": step, "metrics": metrics, "worse_since": 0}
            self.evaluation.keep(step)
        else:
            self.best["worse_since"] += 1

    def record_if_due(self, step: int) -> None:
        """Evaluate, close the window and write a line of the log, where this step is due for it."""
        self.evaluating = self.evaluation_due(step)
        every = self.config.log_steps
        early = step < every and step in EARLY_STEPS
        if not (self.evaluating or early or step % every == 0 or step == self.plan.train_steps):
            return
        development: dict[str, float] = {}
        if self.evaluating:
            with self.clock.paused():
                development = self.evaluation(self.stop_if_asked)
            self.judge(step, development)
            self.evaluating = False
        means, self.window = self.window.means(), Window()
        recent, self.recent = self.recent, Speed()
        if not self.log:
            return
        left = self.plan.train_steps - step
        rate = self.session.per_second(self.session.updates)
        examples, tokens = recent.per_second(recent.examples), recent.per_second(recent.tokens)
        record = {
            "step": step,
            "epoch": step * self.config.accumulation_steps / self.plan.batches_per_epoch,
            **means,
            **self.latest,
            "skipped_steps": self.skipped_steps,
            "examples_per_s": examples and examples * self.ranks.size,
            "tokens_per_s": tokens and tokens * self.ranks.size,
            "eta_s": rate and left / rate,
        }
        self.log.write(record | {EVAL_PREFIX + name: value for name, value in development.items()})

    def mark_best(self) -> None:
        """Mark the checkpoint just written, or resumed from, if it is the best."""
        if self.folder.writer and self.best["step"] == self.done > 0:
            mark_best(self.folder.path, self.done, self.best["metrics"])

    def save(self) -> None:
        """Write a checkpoint and prune older ones of this run; only rank 0 does."""
        self.saved_time = time.monotonic()
        if not self.log:
            return
        with self.clock.paused():
            self.log.sync()
            if self.config.enable_save_ckpt:
                self.written = [*self.written, self.done]
                save_checkpoint(self.step, self.folder.path, self.done, self.state())
                self.mark_best()
                self.written = prune_checkpoints(self.folder.path, self.written, self.config.save_checkpoint_num)
