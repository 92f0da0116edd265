"""Training of a fine-tuning, once per seed, whatever the tasks: build, resume, train, summarise."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any, cast

from mindspore import nn

from model_utils.device import Device
from model_utils.files import write_json
from src.albert_config import check_memory
from src.albert_networks import TrainingNetwork
from src.checkpoints.checkpoint_files import ARCHITECTURE, find_checkpoint, list_checkpoints, load_backbone
from src.data.batches import FeatureDataset
from src.data.mixed_batches import MixedDataset
from src.finetuning.marked_segments import with_marked_segments
from src.finetuning.results import EVAL_FILE, summarise
from src.finetuning.runs import runs_of
from src.model_folder import ModelFolder
from src.tasks.finetune_config import FinetuneConfig
from src.tokenization import FullTokenizer
from src.training.dry_run import dry_run
from src.training.evaluation import Evaluation
from src.training.phases import Phase, Phases
from src.training.ranks import ranks_of
from src.training.recorder import Reporting
from src.training.run_folder import RunFolder
from src.training.run_log import EVAL_PREFIX
from src.training.run_plan import RunIdentity, plan_precision, plan_run, teacher_identity
from src.training.train_step import TrainStep, build_step
from src.training.trainer import Trainer
from src.training.utilisation import Utilisation

logger = logging.getLogger(__name__)


class Training(ABC):
    """Training on one device, once per seed; rows and architecture are the same for all seeds.

    Attributes:
        selection: development metric that selects the best checkpoint; larger is better.
        artifacts: files beside the checkpoints.
        utilisation: computes the log's mfu.
    """

    selection: str
    artifacts: ModelFolder
    utilisation: Utilisation

    def __init__(self, config: FinetuneConfig, device: Device, tokenizer: FullTokenizer) -> None:
        self.config = config
        self.device = device
        self.tokenizer = tokenizer
        self.ranks = ranks_of(device)
        self.precision = plan_precision(config, device)
        self.architecture = config.albert_config(
            tokenizer.vocab_size, device.compute_type, config.load_checkpoint_path, device.backend
        )
        self.step: TrainStep | None = None  # compiled once for all seeds
        weights = config.load_pretrain_checkpoint_path
        self.start = Path(weights) if weights else None

    @abstractmethod
    def batches(self, config: FinetuneConfig) -> FeatureDataset | MixedDataset:
        """Return the training batches of one seed."""

    @abstractmethod
    def training_network(self, config: FinetuneConfig) -> TrainingNetwork:
        """Return the network to train, drawn by the seed."""

    @abstractmethod
    def identity(self) -> dict[str, Any]:
        """Return the fingerprint of the data, as TaskData.identity."""

    @abstractmethod
    def baseline(self) -> dict[str, float]:
        """Return the baseline of the metrics of `evaluation`."""

    @abstractmethod
    def evaluation(self, training: nn.Cell, steps: int) -> Evaluation:
        """Return the evaluation of a training network on development splits, every `steps` updates."""

    @abstractmethod
    def finish(
        self, path: Path, output: Path, config: FinetuneConfig, results: Mapping[int, Any], splits: Sequence[str]
    ) -> dict[str, float]:
        """Evaluate the trained run in `path`, store fitted settings and the model card there, and return the metrics.

        Args:
            results: Evaluation.kept.
        """

    def build(self, folder: RunFolder) -> Trainer:
        """Return the trainer of one seed, with the compiled step of earlier seeds."""
        config = cast(FinetuneConfig, folder.config)
        data = self.batches(config)
        batches = data.batches_per_epoch
        plan = plan_run(config, config.epoch_num, data.rows_at_once, batches)
        rows_per_update = config.accumulation_steps * data.rows_at_once
        epochs = config.accumulation_steps * plan.train_steps / batches
        logger.info(f"{plan.train_steps:,} updates of {rows_per_update:,} rows: {epochs:.2f} epochs")
        check_memory(self.architecture, data.most_tokens)
        phases = Phases([Phase(data, config.accumulation_steps)])
        if self.step is None:
            network = self.training_network(config)
            self.step = build_step(config, network, plan, self.precision, self.ranks, phases.accumulate)
        else:
            self.step.network.draw_weights(config.seed)
            self.step.restart(config.seed)
        network = self.step.network
        folder.artifacts = self.artifacts
        baselines = {EVAL_PREFIX + name: {"baseline": value} for name, value in self.baseline().items()}
        eval_steps = config.eval_steps or max(1, batches // config.accumulation_steps)
        return Trainer(
            self.step,
            phases,
            plan,
            folder,
            self.run_identity(),
            lambda: self.initialise(network),
            self.evaluation(network, eval_steps) if config.do_eval else None,
            Reporting(baselines, self.utilisation),
        )

    def run_identity(self) -> RunIdentity:
        """Return what must match for a run to be resumed, or evaluated once finished."""
        identity = self.identity() | teacher_identity(self.config.teacher)
        return RunIdentity(identity, self.precision, self.architecture.saved_dict())

    def estimate(self, root: Path, config: FinetuneConfig, runs: int) -> None:
        """Log what the first of so many runs takes in time, memory and disk (dry_run)."""
        name, run_config = next(iter(runs_of(config).items()))
        trainer = self.build(RunFolder(root / name, run_config, self.ranks))
        logger.info(dry_run(trainer, kept=f" but features in {config.feature_dir}"))
        if runs > 1:
            logger.info(f"this is the first of {runs} runs; others of the same length take about as much")

    def check_same_data(self, path: Path) -> None:
        """Raise CheckpointError if a finished run was trained on other data or another network, in any precision."""
        if list_checkpoints(path):
            contents = find_checkpoint(path)
            if "identity" in contents.loop_state:
                self.run_identity().check({ARCHITECTURE: {}} | contents.loop_state, contents.path)

    def initialise(self, network: nn.Cell) -> None:
        """Load the pre-trained weights, if any; all seeds load the same, even if newer ones have been written since."""
        if self.start is not None:
            contents = find_checkpoint(self.start)
            self.start = contents.path  # pins the checkpoint that a run's folder resolved to
            if self.config.mark_shared:
                contents = with_marked_segments(contents, self.architecture.type_vocab_size)
            load_backbone(network, contents)
        else:
            logger.info("cold start: no pre-trained weights (load_pretrain_checkpoint_path)")

    def run(self, root: Path, output: Path, splits: Sequence[str] = ()) -> tuple[float | None, Path]:
        """Train and evaluate these splits once per seed; return the mean selection metric, if any, and best folder."""
        results: dict[str, dict[str, float]] = {}
        for name, run_config in runs_of(self.config).items():
            evaluation = self.train(root / name, run_config)
            kept = evaluation.kept if evaluation else {}
            results[name] = self.finish(root / name, output / name, run_config, kept, splits)
        if self.config.num_seeds > 1 and self.ranks.is_writer and any(results.values()):
            summary = summarise(list(results.values()))
            by_seed = {name.removeprefix("seed-"): metrics for name, metrics in results.items()}
            write_json(output / EVAL_FILE, {"seeds": by_seed, **summary})
        values = {name: metrics[self.selection] for name, metrics in results.items() if self.selection in metrics}
        return (mean(values.values()), root / max(values, key=lambda name: values[name])) if values else (None, root)

    def train(self, path: Path, config: FinetuneConfig) -> Evaluation | None:
        """Fine-tune with one seed, or resume its run; return its evaluation, None if there is none or it had finished.

        Collective: every rank calls it.
        """
        evaluation = None
        with RunFolder(path, config, self.ranks) as folder:
            if folder.finished:
                self.check_same_data(path)
                logger.info(f"{path} holds this run, already finished: nothing to train")
            else:
                self.measure_start()
                trainer = self.build(folder)
                trainer.fit()
                evaluation = trainer.evaluation
        self.ranks.wait("the last checkpoint")
        return evaluation

    def measure_start(self) -> None:  # noqa: B027
        """Measure the starting weights where a baseline needs it. Collective."""
