"""The loop of every task: updates, log, checkpoints, evaluation, signals, and an end when training diverges.

A step is an attempted optimizer update; one that is skipped for a non-finite gradient counts. Micro-batches come in an
endless sequence of epochs (src/training/phases.py), in which the step determines the position.
"""

import logging
import math
import zlib
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from typing import Any, NoReturn

from model_utils.errors import DivergedError, UserError
from model_utils.flat_dicts import flatten
from src.checkpoints.checkpoint_files import state_of
from src.data.batches import describe_size
from src.data.read_ahead import read_ahead
from src.training.checkpoint import RunCheckpoints, restore
from src.training.evaluation import Evaluation
from src.training.loop_state import LoopState
from src.training.meters import Stopwatch
from src.training.pending_updates import PendingUpdates, Update, read_values
from src.training.phases import Batch, Phases
from src.training.progress import Progress
from src.training.recorder import Recorder, Reporting
from src.training.run_folder import RunFolder
from src.training.run_plan import RunIdentity, RunPlan
from src.training.stop_signals import StopSignals
from src.training.train_step import TrainStep

logger = logging.getLogger(__name__)
SYNC_SECONDS = 0.1  # between two exchanges of stop signals; one takes about 1 ms, so that they take 1 % of the time
MAX_UPDATES_PER_SYNC = 20  # so that a stop is obeyed soon where updates become slower
AHEAD = 4  # updates whose micro-batches are made while a GPU or Ascend computes; a CPU has no cores to spare


class Trainer:
    """Training loop: from the newest good checkpoint in the run's folder until the plan is fulfilled.

    Args:
        step: all its Parameters are saved.
        phases: with the micro-batches of this rank.
        folder: open, with the run's configuration and ranks.
        identity: what a resumed run must match; kept in every checkpoint.
        initialise: sets the weights that the run starts with; called where there is no checkpoint to resume from.
        evaluation: where there is one, its metrics join the log, and its selection marks the best checkpoint and may
            end the run.
        reporting: what the log is compared with.
    """

    def __init__(
        self,
        step: TrainStep,
        phases: Phases,
        plan: RunPlan,
        folder: RunFolder,
        identity: RunIdentity,
        initialise: Callable[[], object] = lambda: None,
        evaluation: Evaluation | None = None,
        reporting: Reporting | None = None,
    ) -> None:
        self.step = step
        self.phases = phases
        self.plan = plan
        self.folder = folder
        self.config = folder.config
        self.ranks = folder.ranks
        self.identity = identity
        self.initialise = initialise
        self.evaluation = evaluation
        self.selection = evaluation.selection if evaluation else None
        self.metric_names = tuple(step.network.metric_names)
        self.state = LoopState(**identity.to_save(), config=self.config.to_dict())
        self.progress = Progress(plan, self.state)
        self.clock = Stopwatch()
        self.pending = PendingUpdates(self.clock)
        self.checkpoints = RunCheckpoints(step, folder, keeps_best=self.selection is not None)
        self.recorder = Recorder(reporting or Reporting(), folder, self.metric_names, phases, self.progress, self.clock)
        self.signals = StopSignals()
        self.stop_signal = 0
        self.synced_step = 0
        self.updates_per_sync = 1

    def fit(self) -> dict[str, Any]:
        """Train to the end, finish the folder and return the last record of the log ({} on ranks that do not write).

        Raises:
            SystemExit: after SIGTERM, SIGINT or SIGHUP, the state saved; code 143, 130 or 129.
            UserError: training diverged, the disk is full, another rank ended, or the ranks do not agree on data,
                configuration and checkpoint. The last good checkpoint remains.
            CheckpointError, ConfigError: the folder's checkpoint belongs to other data, architecture or precision.
        """
        self.resume()
        self.recorder.measure_device()  # while the other ranks wait in check_ranks
        self.check_ranks()
        with self.signals, self.open_run(), closing(self.micro_batches()) as micro_batches:
            self.pending.begin()
            while self.state.evaluating or not self.is_over:
                if not self.state.evaluating:
                    self.start(next(micro_batches))
                step = self.state.step
                if step - self.synced_step >= self.updates_per_sync or self.state.evaluating:
                    self.sync_ranks()
                evaluates = self.evaluation_due(step)
                save_due = self.is_over or self.checkpoints.due(step)  # asked once, or uncounted updates may be saved
                if evaluates or save_due or self.stop_signal or self.reading_due(step):
                    self.read()
                if evaluates:
                    self.evaluate(step)
                    self.sync_ranks()
                elif self.state.evaluating:  # resumed in an evaluation that the new eval_steps does not ask for
                    self.state.evaluating = False
                    self.record_if_due(step)
                is_new_best = self.state.best.step == step
                if save_due or is_new_best or self.is_over or self.stop_signal:  # an evaluation may have ended the run
                    self.save()
                if self.stop_signal and not self.is_over:
                    self.stop()
            results = self.finish()
        if self.stop_signal:
            logger.info(f"stopped after step {self.state.step}, the last one: the run is finished")
            self.ranks.wait("the end of the stopped run")
            raise SystemExit(128 + self.stop_signal)
        return results

    def resume(self) -> None:
        """Restore weights, moments and the loop's state from the newest good checkpoint, or start anew."""
        contents = self.checkpoints.newest()
        if contents is None:
            self.initialise()
        else:
            saved = contents.loop_state
            self.identity.check(saved, contents.path)
            compute_type_is_set = bool(self.config.compute_type)
            changes = self.identity.precision.changes_since(saved["precision"], contents.path, compute_type_is_set)
            restore(self.step, contents)
            if "loss_scale_mode" in changes:
                self.step.restart_scaling()
            self.state.restore(saved)
            self.checkpoints.tidy(self.state)  # a kill may have come before, or the best one is damaged
            changed = f"; from here {', '.join(changes.values())}" if changes else ""
            logger.info(f"resuming after step {self.state.step} from {contents.path}{changed}")
        self.phases.starts = self.state.phase_starts
        self.synced_step = self.state.step
        self.progress.start()

    def check_ranks(self) -> None:
        """Raise UserError where another rank has what would make them train apart without an error."""
        if self.ranks.size == 1:
            return
        weights = 0
        for parameter in state_of(self.step).values():
            weights = zlib.crc32(parameter.asnumpy().tobytes(), weights)
        entries = {
            "data": self.identity.data,
            **self.config.to_dict(),
            **self.identity.precision.to_dict(),
            "step": self.state.step,
            "checksum of the weights": weights,
        }
        self.ranks.must_agree(flatten(entries), "what they train on")

    @contextmanager
    def open_run(self) -> Iterator[None]:
        """Bind the folder to the run and keep its log open while the updates are made; raises as fit."""
        self.folder.begin(self.checkpoints.bytes_needed(self.state))
        try:
            with self.recorder.open(self.state):
                yield
        except OSError as error:
            remaining = self.checkpoints.remaining(self.state)
            raise UserError(f"training stopped after {self.state.step} updates: {error}; {remaining}") from error
        except SystemExit:
            self.ranks.wait("the end of the stopped run")  # which may still be writing on rank 0
            raise

    def micro_batches(self) -> Generator[list[Batch]]:
        """Yield the micro-batches of each further update, phase after phase, without end."""
        ahead = 0 if self.identity.precision.device_target == "CPU" else AHEAD
        while True:
            self.phases.begin(self.state.step, self.progress.share)
            if self.phases.several:
                logger.info(f"phase {self.phases.number} of {len(self.phases.all)}: {self.phases.current.description}")
            self.recorder.restart_speed()
            with read_ahead(self.phases.micro_batches(self.state.step), ahead) as updates:
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
        self.state.step += 1
        examples = sum(len(batch["input_mask"]) for batch in micro_batches)
        tokens = sum(int(batch["input_mask"].sum()) for batch in micro_batches)
        flops = self.recorder.flops(micro_batches)
        self.pending.add(Update(self.state.step, outputs, examples, tokens, flops, compiled=compiles))

    def sync_ranks(self) -> None:
        """Synchronise stop signal and elapsed time. Collective: every rank calls it at the same points.

        Ranks do so after as many updates as take SYNC_SECONDS by the clock of rank 0, a process alone after each.
        """
        local_state = (self.signals.received, self.progress.measured_seconds())
        states = self.ranks.gather(local_state, "the exchange of stop signals")
        self.stop_signal = max(signal for signal, _ in states)
        _, seconds = states[0]
        updates = self.state.step - self.synced_step
        if updates and self.ranks.size > 1:
            wanted = SYNC_SECONDS * updates / max(seconds - self.state.seconds, 1e-6)
            self.updates_per_sync = min(MAX_UPDATES_PER_SYNC, 1 + int(wanted))
        self.synced_step = self.state.step
        self.state.seconds = seconds

    @property
    def is_over(self) -> bool:
        """True if the last update was made."""
        return self.progress.share >= 1 or self.is_out_of_patience

    @property
    def is_out_of_patience(self) -> bool:
        """True if evaluations end the run."""
        return self.selection is not None and self.selection.is_out_of_patience(self.state.best)

    def ends_run_or_phase(self, step: int) -> bool:
        """Return whether the run or a phase ends with this update; a record never spans two phases."""
        return step == self.state.step and (self.is_over or self.phases.next_is_due(self.progress.share))

    def evaluation_due(self, step: int) -> bool:
        """Return whether this step is evaluated."""
        is_last = step == self.state.step and self.is_over
        return self.evaluation is not None and (step % self.evaluation.steps == 0 or is_last)

    def reading_due(self, step: int) -> bool:
        """Return whether pending updates are read at this step even if nothing else needs them."""
        every = self.config.data_sink_steps if self.config.enable_data_sink else 1
        return step % every == 0 or self.pending.has_compiled or self.ends_run_or_phase(step)

    def read(self) -> None:
        """Wait for pending updates, count each in turn, and log those that are due."""
        for update, values, seconds in self.pending.read():
            self.recorder.count(update, seconds)
            self.state.count(values, (*self.metric_names, "grad_norm"))
            self.stop_if_diverged(update.step, values)
            if not self.evaluation_due(update.step):  # else the evaluation joins the record
                self.record_if_due(update.step)

    def record_if_due(self, step: int) -> None:
        """Write the record of a step without an evaluation, if it has one."""
        if self.recorder.due(step) or self.ends_run_or_phase(step):
            self.recorder.record(self.state, step)

    def stop_if_diverged(self, step: int, values: dict[str, float]) -> None:
        """Raise DivergedError at a skipped update; with loss scaling after max_skipped_steps, dynamic at the lowest."""
        skipped = self.state.skipped_in_a_row
        scaling = self.step.scaling
        can_go_on = scaling.mode != "off" and (
            skipped < self.config.max_skipped_steps
            or (scaling.mode == "dynamic" and values["loss_scale"] > scaling.minimum)
        )
        if not skipped or can_go_on:
            return
        advice = "lower the learning rate or lengthen the warm-up, in another folder"
        if scaling.mode == "static" and math.isfinite(values["loss"]):
            advice = f"lower loss_scale_value ({scaling.value:g}), or set loss_scale_mode to dynamic"
        raise DivergedError(
            f"training diverged: at step {step} the loss is {values['loss']} and the gradient's norm "
            f"{values['grad_norm']}, {skipped} updates in a row skipped, loss scale {values['loss_scale']:g} "
            f"({scaling.mode}); {advice}. Checkpoints written before are kept"
        )

    def evaluate(self, step: int) -> None:
        """Evaluate the network after this step, and write the step's record."""
        assert self.evaluation
        self.state.evaluating = True
        with self.clock.paused():
            metrics = self.evaluation(step, self.state.best, self.stop_if_asked)
        self.state.evaluating = False
        self.recorder.record(self.state, step, metrics)

    def stop_if_asked(self) -> None:
        """Save and exit if a stop was requested; an evaluation calls this before each batch."""
        self.sync_ranks()
        if self.stop_signal:
            self.save()
            self.stop()

    def save(self) -> None:
        """Write the log and a checkpoint."""
        with self.clock.paused():
            self.recorder.sync()
            self.state.epoch, self.state.batch = self.phases.position(self.state.step)
            self.checkpoints.save(self.state, self.progress.seconds_to_save())
            self.recorder.draw_curves()

    def stop(self) -> NoReturn:
        """Exit for the signal that was received; the state is saved."""
        moment = "in the evaluation after" if self.state.evaluating else "after"
        is_saved = self.config.enable_save_ckpt
        outcome = "saved; the same command resumes it" if is_saved else "not saved: enable_save_ckpt is false"
        logger.info(f"stopped {moment} step {self.state.step}, {outcome}")
        raise SystemExit(128 + self.stop_signal)

    def finish(self) -> dict[str, Any]:
        """Mark the run as finished and return its last record."""
        step = self.state.step
        if self.progress.elapsed >= 1 and step < self.plan.train_steps and not self.is_out_of_patience:
            logger.info(f"max_train_hours {self.config.max_train_hours:g} are over after step {step}")
        settings = self.config.optimizer_settings()
        if not settings["warmup_ratio"] and step < settings["warmup_steps"]:
            warmup = f"its warm-up of {settings['warmup_steps']} updates"
            logger.warning(f"the run ended within {warmup}: lower warmup_steps, or give warmup_ratio")
        results = self.recorder.last_record()
        self.folder.finish(results)
        self.sync_ranks()  # a signal may have come with the end
        return results
