"""The loop of every task: updates, log, checkpoints, evaluation, signals, and an end when training diverges.

A step is an attempted optimizer update; one that is skipped for a non-finite gradient counts. Micro-batches come in an
endless sequence of epochs (src/training/phases.py), in which the step determines the position.
"""

import logging
import math
import time
import zlib
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from typing import Any, NoReturn

from model_utils.errors import CheckpointError, UserError
from model_utils.facts import flatten
from src.checkpoints.checkpoint_files import (
    list_checkpoints,
    newest_checkpoint,
    save_checkpoint,
    state_of,
)
from src.data.batches import describe_size
from src.data.read_ahead import read_ahead
from src.nn.layer_form import on_cpu
from src.training.checkpoint import prune_checkpoints, restore
from src.training.evaluation import BestTracker, Evaluation
from src.training.learning_check import LearningCheck
from src.training.meters import Speed, Stopwatch, Window
from src.training.pending_updates import PendingUpdates, ReadUpdate, Update, read_values
from src.training.phases import Batch, Phases
from src.training.progress import Progress
from src.training.ranks import ALONE, Ranks
from src.training.run_folder import RunFolder
from src.training.run_log import EVAL_PREFIX, Baselines, RunLog
from src.training.run_plan import RunFacts, RunPlan, incomplete_run_warnings
from src.training.stop_signals import StopSignals
from src.training.train_step import TrainStep
from src.training.utilisation import Utilisation

logger = logging.getLogger(__name__)
AHEAD = 4  # updates whose micro-batches are made while a GPU or Ascend computes; a CPU has no cores to spare
EARLY_STEPS = (1, 2, 5, 10)  # logged as well where log_steps is larger, so that the first lines come soon


class Trainer:
    """Training loop: from the newest good checkpoint in the run's folder until the plan is fulfilled.

    Args:
        step: all its Parameters are saved.
        phases: with the micro-batches of this rank.
        config: a TrainingConfig.
        folder: open.
        facts: what a resumed run must match; kept in every checkpoint.
        initialise: sets the weights that the run starts with; called where there is no checkpoint to resume from.
        evaluation: where there is one, its metrics join the log, and its selection marks the best checkpoint
            (src/training/checkpoint.py) and may end the run.
        baselines: reference lines of the metrics.
        utilisation: computes the log's mfu; None: the log has none.
        learning: warns where the run learns nothing; None: no warning.
    """

    def __init__(
        self,
        step: TrainStep,
        phases: Phases,
        plan: RunPlan,
        config: Any,
        folder: RunFolder,
        facts: RunFacts,
        ranks: Ranks = ALONE,
        initialise: Callable[[], object] | None = None,
        evaluation: Evaluation | None = None,
        baselines: Baselines | None = None,
        utilisation: Utilisation | None = None,
        learning: LearningCheck | None = None,
    ) -> None:
        self.step, self.phases, self.plan, self.config, self.folder = step, phases, plan, config, folder
        self.facts, self.ranks, self.initialise, self.evaluation = facts, ranks, initialise, evaluation
        self.baselines, self.utilisation, self.learning = baselines or {}, utilisation, learning
        self.best = BestTracker(evaluation.selection if evaluation else None)
        self.progress = Progress(plan)
        self.signals, self.stop_signal = StopSignals(), 0
        self.metric_names = tuple(step.network.metric_names)
        self.log: RunLog | None = None  # of the rank that writes
        self.clock = Stopwatch()
        self.pending = PendingUpdates(self.clock)
        self.recent, self.since_start = Speed(), Speed()
        self.window = Window()
        self.latest = {"learning_rate": 0.0, "loss_scale": 1.0}
        self.skipped_steps = self.skipped_in_a_row = 0
        self.evaluating = False  # saved with the state: a run that was stopped in an evaluation goes on with it
        self.written: list[int] = []
        self.saved_time = time.monotonic()

    def fit(self) -> dict[str, Any]:
        """Train to the end and finish the run's folder.

        Returns:
            The last record of the log; empty on ranks that do not write.

        Raises:
            SystemExit: after SIGTERM or SIGINT, the state saved; code 143 or 130. A signal that comes with the last
                update or its checkpoint takes effect when the run is finished.
            UserError: training diverged, the disk is full, another rank ended, or the ranks do not agree on data,
                configuration and checkpoint. The last good checkpoint remains.
            CheckpointError: the folder's checkpoint belongs to other data or another architecture.
            ConfigError: it was trained in another precision, and the configuration does not ask for this one.
        """
        self.resume()
        if self.utilisation and self.ranks.writer:
            self.utilisation.measure_device()  # while the others wait in check_ranks
        self.check_ranks()
        with self.signals, self.work(), closing(self.micro_batches()) as micro_batches:
            self.pending.begin()
            while self.evaluating or not self.over:
                if not self.evaluating:
                    self.start(next(micro_batches))
                self.sync_ranks()
                step = self.progress.step
                saving = self.save_due(step)  # asked once: what is saved must have been read
                if self.evaluation_due(step) or saving or self.stop_signal or self.reading_due(step):
                    self.read()
                if self.evaluation_due(step):
                    self.evaluate(step)
                    self.sync_ranks()
                elif self.evaluating:
                    self.drop_evaluation(step)
                if saving or self.over or self.stop_signal or self.best.step == step:
                    self.save()
                if self.stop_signal and not self.over:
                    self.stop()
            return self.finish()

    def resume(self) -> None:
        """Restore weights, moments, counters and the log's window from the newest good checkpoint, or start anew."""
        contents = newest_checkpoint(self.folder.path) if self.folder.path.exists() else None
        if contents is None:
            if self.folder.path.exists() and list_checkpoints(self.folder.path):
                raise CheckpointError(
                    f"{self.folder.path} holds checkpoints, and none of them can be read, for the reasons above: put a "
                    "good one back, or choose another folder to begin anew"
                )
            if self.initialise:
                self.initialise()
            self.progress.start()
            return
        state = contents.loop_state
        if missing := sorted(self.state().keys() - state):
            raise CheckpointError(
                f"{contents.path} holds weights but no whole state of a run: {', '.join(missing)} are missing; move it "
                "out of this folder"
            )
        self.facts.check(state, contents.path)
        named = bool(self.config.compute_type)
        changes = self.facts.precision.changes_since(state["precision"], contents.path, named)
        restore(self.step, contents)
        if "loss_scale_mode" in changes:
            self.step.restart_scaling()
        self.progress.start(state["step"], state["seconds"])
        self.written, self.latest, self.best.state = state["written"], state["latest"], state["best"]
        self.phases.starts = state["phase_starts"]
        self.skipped_steps, self.skipped_in_a_row = state["skipped_steps"], state["skipped_in_a_row"]
        self.evaluating = state["evaluating"]
        self.window = Window(state["window"])
        if self.ranks.writer:  # a kill may have come before, or the checkpoint with the mark is damaged
            self.tidy()
        changed = f"; from here {', '.join(changes.values())}" if changes else ""
        logger.info(f"resuming after step {state['step']} from {contents.path}{changed}")

    def check_ranks(self) -> None:
        """Raise UserError where another rank has what would make them train apart without an error."""
        if self.ranks.size == 1:
            return
        weights = 0
        for parameter in state_of(self.step).values():
            weights = zlib.crc32(parameter.asnumpy().tobytes(), weights)
        settled = {**self.config.to_dict(), **self.facts.precision.facts(), "step": self.progress.step}
        facts = {"data": self.facts.identity, **settled, "checksum of the weights": weights}
        self.ranks.must_agree(flatten(facts), "what they train on")

    @contextmanager
    def work(self) -> Iterator[None]:
        """Bind the folder to the run and keep its log open while the updates are made; raises as fit."""
        self.folder.begin(self.bytes_needed())
        if self.ranks.writer:
            # An evaluation that was stopped is made again, and writes the record of its step.
            kept = self.progress.step - self.evaluating
            steps = None if self.plan.max_seconds else self.plan.train_steps
            self.log = RunLog(self.folder.path, self.metric_names, steps, kept, self.baselines)
        try:
            with closing(self.log) if self.log else nullcontext():
                yield
        except OSError as error:
            raise UserError(
                f"training stopped after {self.progress.step} updates: {error}; {self.what_remains()}"
            ) from error
        except SystemExit:
            self.ranks.wait("the end of the stopped run")  # which may still be writing on rank 0
            raise

    def what_remains(self) -> str:
        """Return the clause of an error message that says which checkpoint is left."""
        folder = self.folder.path
        whole = [step for step, _ in list_checkpoints(folder) if step in self.written]  # not one that was passed over
        if not whole:
            return f"{folder} holds no checkpoint yet, so that the same command begins anew"
        return f"the checkpoint after step {whole[0]} in {folder} is whole and the same command resumes from it"

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint holds beside the Parameters."""
        step = self.progress.step
        epoch, batch = self.phases.position(step)
        return {
            "step": step,
            "epoch": epoch,
            "batch": batch,
            "phase_starts": self.phases.starts,
            "seconds": self.progress.to_save(),
            "skipped_steps": self.skipped_steps,
            "skipped_in_a_row": self.skipped_in_a_row,
            "latest": self.latest,
            "best": self.best.state,
            "evaluating": self.evaluating,
            "window": self.window.sums,
            "written": self.written,
            **self.facts.to_save(),
            "config": self.config.to_dict(),
        }

    def bytes_needed(self) -> int:
        """Return the free disk space that further checkpoints take, one more while it is written."""
        if not self.config.enable_save_ckpt:
            return 0
        size = sum(parameter.nbytes for parameter in state_of(self.step).values())
        return size * max(1, self.most_checkpoints - len(self.written))

    @property
    def most_checkpoints(self) -> int:
        """Largest number of checkpoints in the folder: those that are kept, the best one, and one being written."""
        return self.config.save_checkpoint_num + bool(self.best.selection) + 1

    def micro_batches(self) -> Generator[list[Batch]]:
        """Yield the micro-batches of each further update, phase after phase, without end."""
        while True:
            self.phases.begin(self.progress.step, self.progress.share)
            if self.phases.several:
                logger.info(f"phase {self.phases.number} of {len(self.phases.all)}: {self.phases.current.description}")
            self.recent, self.since_start = Speed(), Speed()
            with read_ahead(self.phases.micro_batches(self.progress.step), 0 if on_cpu() else AHEAD) as updates:
                while not self.phases.next_is_due(self.progress.share):
                    yield next(updates)

    def start(self, micro_batches: Sequence[Batch]) -> None:
        """Start one update. Wait for one that compiles a graph, so that its time can be left out."""
        compiles = self.step.compiles(micro_batches)
        if compiles:
            self.read()
            logger.info(f"compiling for batches of {', '.join(dict.fromkeys(map(describe_size, micro_batches)))}")
        with self.clock.paused() if compiles else nullcontext():
            outputs = self.step.train(micro_batches, self.progress.elapsed, self.phases.current.rate_factor)
            if compiles:
                read_values(outputs)
        self.progress.step += 1
        examples = sum(len(batch["input_mask"]) for batch in micro_batches)
        tokens = sum(int(batch["input_mask"].sum()) for batch in micro_batches)
        flops = sum(map(self.utilisation.flops, micro_batches)) if self.utilisation else 0.0
        self.pending.add(Update(self.progress.step, outputs, examples, tokens, flops, compiled=compiles))

    def sync_ranks(self) -> None:
        """Synchronise stop signal and elapsed time. Collective: every rank calls it at the same points."""
        states = self.ranks.gather((self.signals.received, self.progress.measured()), "the question whether to stop")
        self.stop_signal = max(signal for signal, _ in states)
        _, self.progress.seconds = states[0]

    @property
    def over(self) -> bool:
        """True if the last update was made."""
        return self.progress.share >= 1 or self.best.out_of_patience

    def is_last(self, step: int) -> bool:
        """Return whether the run ends with this update."""
        return step == self.progress.step and self.over

    def ends_phase(self, step: int) -> bool:
        """Return whether a phase ends with this update; a record never spans two phases."""
        return step == self.progress.step and self.phases.next_is_due(self.progress.share)

    def evaluation_due(self, step: int) -> bool:
        """Return whether this step is evaluated."""
        return bool(self.evaluation) and (step % self.evaluation.steps == 0 or self.is_last(step))

    def save_due(self, step: int) -> bool:
        """Return whether a checkpoint is due at this step, whatever its evaluation says."""
        config = self.config
        minutes = (time.monotonic() - self.saved_time) / 60
        by_steps = config.save_checkpoint_steps > 0 and step % config.save_checkpoint_steps == 0
        return self.is_last(step) or by_steps or 0 < config.save_checkpoint_minutes <= minutes

    def reading_due(self, step: int) -> bool:
        """Return whether pending updates are read at this step even if nothing else needs them."""
        every = self.config.data_sink_steps if self.config.enable_data_sink else 1
        return step % every == 0 or self.pending.has_compiled or self.ends_phase(step)

    def record_due(self, step: int) -> bool:
        """Return whether this step has a record in the log, evaluated or not."""
        every = self.config.log_steps
        early = step < every and step in EARLY_STEPS
        return step % every == 0 or early or self.is_last(step) or self.ends_phase(step)

    def read(self) -> None:
        """Wait for pending updates, account for each in turn, and log those that are due."""
        for update in self.pending.read():
            self.account(update)
            step = update.update.step
            if self.record_due(step) and not self.evaluation_due(step):
                self.record(step)

    def account(self, read: ReadUpdate) -> None:
        """Add one update to the counts, the speeds and the window."""
        update, values, seconds = read
        if self.log:
            self.log.advance(update.step)
        if seconds is not None:
            for speed in (self.recent, self.since_start):
                speed.add(update.examples, update.tokens, update.flops, seconds)
        self.latest["loss_scale"] = values["loss_scale"]
        if values["finite"] and math.isfinite(values["loss"]):
            self.skipped_in_a_row = 0
            self.latest["learning_rate"] = values["learning_rate"]
        else:
            self.skipped_steps += 1
            self.skipped_in_a_row += 1
            self.stop_if_diverged(update.step, values)
        self.window.add({name: values[name] for name in (*self.metric_names, "grad_norm")})

    def stop_if_diverged(self, step: int, values: dict[str, float]) -> None:
        """Raise UserError when skipping updates cannot help any more; the last good checkpoint stays.

        Without loss scaling that is at once; with it, after max_skipped_steps in a row, a dynamic scale being at its
        minimum.
        """
        scaling = self.step.scaling
        if scaling.mode != "off":
            at_floor = scaling.mode == "static" or values["loss_scale"] <= scaling.minimum
            if not at_floor or self.skipped_in_a_row < self.config.max_skipped_steps:
                return
        scale = f"loss scale {values['loss_scale']:g}" if scaling.mode != "off" else "no loss scaling"
        advice = "lower the learning rate or lengthen the warm-up"
        if scaling.mode == "static" and math.isfinite(values["loss"]):
            advice = f"lower loss_scale_value ({scaling.value:g}), or set loss_scale_mode to dynamic"
        raise UserError(
            f"training diverged: at step {step} the loss is {values['loss']} and the gradient's norm "
            f"{values['grad_norm']}, {self.skipped_in_a_row} updates in a row skipped, {scale}; {advice}. "
            "Checkpoints written before are kept"
        )

    def evaluate(self, step: int) -> None:
        """Evaluate the network after this step, and write the step's record."""
        self.evaluating = True
        with self.clock.paused():
            metrics = self.evaluation(self.stop_if_asked)
        self.evaluating = False
        if self.best.update(step, metrics):
            self.evaluation.keep(step)
        self.record(step, metrics)

    def drop_evaluation(self, step: int) -> None:
        """Log a step whose evaluation was interrupted and is no longer due, because eval_steps has changed."""
        self.evaluating = False
        if self.record_due(step):
            self.record(step)

    def stop_if_asked(self) -> None:
        """Save and exit if a stop was requested; an evaluation calls this before each batch."""
        self.sync_ranks()
        if self.stop_signal:
            self.save()
            self.stop()

    def record(self, step: int, evaluation: Mapping[str, float] | None = None) -> None:
        """Close the window with a line of the log."""
        means = self.window.means()
        recent = self.recent
        self.window = Window()
        self.recent = Speed()
        if not self.log:
            return
        examples = recent.per_second(recent.examples)
        tokens = recent.per_second(recent.tokens)
        flops = recent.per_second(recent.flops)
        rate = self.since_start.per_second(self.since_start.updates)
        with self.clock.paused():  # the device may be measured again
            mfu = self.utilisation.mfu(flops) if self.utilisation and flops else None
        record = {
            "step": step,
            "epoch": self.phases.epochs(step),
            **({"phase": self.phases.number} if self.phases.several else {}),
            **means,
            **self.latest,
            "skipped_steps": self.skipped_steps,
            "examples_per_s": examples and examples * self.ranks.size,
            "tokens_per_s": tokens and tokens * self.ranks.size,
            "mfu": mfu,
            "eta_s": rate and self.progress.seconds_left(step, rate),
        }
        for name, value in (evaluation or {}).items():
            finite = math.isfinite(value)
            record[EVAL_PREFIX + name] = value if finite else None
            if not finite:
                logger.warning(f"evaluation after step {step}: {name} is {value}, which the log leaves out")
        self.log.write(record)
        if self.learning:
            self.learning.watch(record, self.progress.share)

    def save(self) -> None:
        """Write the log and a checkpoint; only rank 0 does."""
        self.saved_time = time.monotonic()
        if not self.log:
            return
        with self.clock.paused():
            self.log.sync()
            if self.config.enable_save_ckpt:
                self.written = [*self.written, self.progress.step]
                save_checkpoint(self.step, self.folder.path, self.progress.step, self.state())
                self.tidy()

    def tidy(self) -> None:
        """Mark the best checkpoint, and delete older ones of this run."""
        self.best.mark(self.folder.path)
        if self.config.enable_save_ckpt:
            self.written = prune_checkpoints(self.folder.path, self.written, self.config.save_checkpoint_num)

    def stop(self) -> NoReturn:
        """Exit for the signal that was received; the state is saved."""
        place = "in the evaluation after" if self.evaluating else "after"
        saved = self.config.enable_save_ckpt
        outcome = "saved; the same command resumes it" if saved else "not saved: enable_save_ckpt is false"
        logger.info(f"stopped {place} step {self.progress.step}, {outcome}")
        raise SystemExit(128 + self.stop_signal)

    def finish(self) -> dict[str, Any]:
        """Mark the run as finished, log warnings about it, and obey a signal that came with its end."""
        step = self.progress.step
        results = self.log.records[-1] if self.log and self.log.records else {}
        if self.progress.elapsed >= 1 and step < self.plan.train_steps and not self.best.out_of_patience:
            logger.info(f"max_train_hours {self.config.max_train_hours:g} are over after step {step}")
        elif 0 < self.progress.elapsed < 1 and step == self.plan.train_steps:
            hours = f"{self.progress.elapsed:.0%} of max_train_hours {self.config.max_train_hours:g}"
            logger.info(f"train_steps {step} took {hours}: more of them would use the rest")
        phases = 0 if self.best.out_of_patience else len(self.phases.all)
        for warning in incomplete_run_warnings(self.config.optimizer_settings(), step, self.phases.starts, phases):
            logger.warning(warning)
        if self.learning and results:
            results = results | {"remarks": self.learning.final_warnings(results)}
        self.folder.finish(results)
        self.sync_ranks()
        if self.stop_signal:
            logger.info(f"stopped after step {step}, the last one: the run is finished")
            raise SystemExit(128 + self.stop_signal)
        return results
