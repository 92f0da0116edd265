"""Records of the log: means over a window of updates, speed, utilisation, and warnings that they call for."""

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any

from src.pretraining_data.diagnostics import LEARNT_BY, LearningCheck
from src.training.loop_state import LoopState
from src.training.meters import Speed, Stopwatch
from src.training.pending_updates import Update
from src.training.phases import Batch, Phases
from src.training.progress import Progress
from src.training.run_folder import RunFolder
from src.training.run_log import EVAL_PREFIX, Baselines, RunLog
from src.training.trackers import Trackers
from src.training.utilisation import Utilisation

logger = logging.getLogger(__name__)
EARLY_STEPS = (1, 2, 5, 10)  # logged as well where log_steps is larger, so that the first lines come soon


@dataclass(frozen=True)
class Reporting:
    """Baselines that the log of a run is compared with.

    Attributes:
        baselines: reference lines of the metrics.
        utilisation: computes the log's mfu; None: the log has none.
        learning: warns where the run learns nothing; None: no warning.
    """

    baselines: Baselines = field(default_factory=dict)
    utilisation: Utilisation | None = None
    learning: LearningCheck | None = None


class Recorder:
    """Writer of the records of one run; on ranks other than 0 it counts and writes nothing."""

    def __init__(
        self,
        reporting: Reporting,
        folder: RunFolder,
        metric_names: tuple[str, ...],
        phases: Phases,
        progress: Progress,
        clock: Stopwatch,
    ) -> None:
        self.baselines = reporting.baselines
        self.utilisation = reporting.utilisation
        self.learning = reporting.learning
        self.folder = folder
        self.metric_names = metric_names
        self.phases = phases
        self.progress = progress
        self.clock = clock
        self.log: RunLog | None = None  # of the rank that writes
        self.has_checked_learning = False
        self.restart_speed()

    def restart_speed(self) -> None:
        """Forget the speed so far, as where a phase begins."""
        self.recent = Speed()
        self.since_phase_start = Speed()

    def measure_device(self) -> None:
        """Measure the speed that utilisation is a share of."""
        if self.utilisation and self.folder.ranks.is_writer:
            self.utilisation.measure_device()

    @contextmanager
    def open(self, state: LoopState) -> Iterator[None]:
        """Keep the log open, without records after the state's step."""
        if not self.folder.ranks.is_writer:
            yield
            return
        # An evaluation that was stopped is made again, and writes the record of its step.
        last_step = state.step - 1 if state.evaluating else state.step
        steps = None if self.progress.plan.max_seconds else self.progress.plan.train_steps
        config = self.folder.config
        with self.clock.paused():
            trackers = Trackers(self.folder.path, config.report_to, config.to_dict())
        settings = (self.metric_names, steps, last_step, self.baselines, trackers)
        with trackers, closing(RunLog(self.folder.path, *settings)) as self.log:
            yield

    def due(self, step: int) -> bool:
        """Return whether this step has a record by the configuration."""
        every = self.folder.config.log_steps
        return step % every == 0 or (step < every and step in EARLY_STEPS)

    def flops(self, micro_batches: Sequence[Batch]) -> float:
        """Return the operations of an update; 0 if the log has no utilisation."""
        return sum(map(self.utilisation.flops, micro_batches)) if self.utilisation else 0.0

    def count(self, update: Update, seconds: float | None) -> None:
        """Count one update for the speed; seconds None: its time was not measured."""
        if self.log:
            self.log.advance(update.step)
        if seconds is not None:
            for speed in (self.recent, self.since_phase_start):
                speed.add(update.examples, update.tokens, update.flops, seconds)

    def record(self, state: LoopState, step: int, evaluation: Mapping[str, float] | None = None) -> None:
        """Close the window with a record of this step."""
        means = state.close_window()
        recent = self.recent
        self.recent = Speed()
        if not self.log:
            return
        rate = self.since_phase_start.per_second(self.since_phase_start.updates)
        rank_count = self.folder.ranks.size
        record = {
            "step": step,
            "epoch": self.phases.epochs(step),
            **({"phase": self.phases.number} if self.phases.several else {}),
            **means,
            **state.latest,
            "skipped_steps": state.skipped_steps,
            "examples_per_s": recent.per_second(recent.examples * rank_count),
            "tokens_per_s": recent.per_second(recent.tokens * rank_count),
            "mfu": self.mfu(recent.per_second(recent.flops)),
            "eta_s": rate and self.progress.seconds_left(step, rate),
        }
        for name, value in (evaluation or {}).items():
            is_finite = math.isfinite(value)
            record[EVAL_PREFIX + name] = value if is_finite else None
            if not is_finite:
                logger.warning(f"evaluation after step {step}: {name} is {value}, which the log leaves out")
        self.log.write(record)
        self.check_learning(record)

    def sync(self) -> None:
        """Put the log on the disk."""
        if self.log:
            self.log.sync()

    def draw_curves(self) -> None:
        """Draw curves.png from the records so far."""
        if self.log:
            self.log.draw_curves()

    def mfu(self, flops_per_second: float | None) -> float | None:
        """Return the utilisation; None before anything was measured."""
        if not self.utilisation or not flops_per_second:
            return None
        with self.clock.paused():  # the device may be measured again
            return self.utilisation.mfu(flops_per_second)

    def check_learning(self, record: Mapping[str, Any]) -> None:
        """Log a warning if the first record with the metric, from LEARNT_BY of the run on, shows nothing learnt."""
        share = self.progress.share
        if self.learning and LEARNT_BY <= share < 1 and not self.has_checked_learning:
            self.has_checked_learning = record.get(self.learning.metric) is not None
            if warning := self.learning.warning(record, share):
                logger.warning(warning)

    def last_record(self) -> dict[str, Any]:
        """Return the last record of a run that has ended; {} on ranks that do not write.

        If learning is checked, a warning is logged and stands in the record's list `remarks`.
        """
        if not self.log or not self.log.records:
            return {}
        record = self.log.records[-1]
        if not self.learning:
            return record
        remarks = []
        if warning := self.learning.warning(record, 1.0):
            logger.warning(warning)
            remarks.append(warning)
        return record | {"remarks": remarks}
