"""Training of one backbone on several tasks: batches of all, an evaluation of each, and a model folder for each."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any, cast

from mindspore import nn

from model_utils.device import Device, setup_device
from model_utils.errors import ConfigError, UserError
from model_utils.files import write_json
from src.albert_networks import JointNetwork, TrainingNetwork, head_prefix
from src.checkpoints.checkpoint_files import BACKBONE, Checkpoint, find_checkpoint, list_checkpoints
from src.data.feature_cache import TRAIN
from src.data.mixed_batches import MixedDataset
from src.finetuning.finetune import Finetuning, check_outputs, find_tokenizer
from src.finetuning.results import EVAL_FILE
from src.finetuning.runs import check_runs, runs_of
from src.finetuning.training import Training
from src.model_folder import ModelFolder
from src.tasks.finetune_config import FROZEN, FinetuneConfig
from src.tasks.multitask_config import MultitaskConfig
from src.tasks.spec import EvaluationResult
from src.tokenization import FullTokenizer
from src.training.checkpoint import copy_parameters
from src.training.evaluation import Evaluation, Selection
from src.training.run_folder import CONFIG_FILE
from src.training.utilisation import Utilisation

logger = logging.getLogger(__name__)
MEAN = "mean"  # the selection metric: the mean of those of the tasks


def finetune_together(config: MultitaskConfig) -> None:
    """Train one backbone on all tasks, once per seed; evaluate and predict each task."""
    check_outputs(config)
    device = setup_device(**config.device_settings())
    training = MultitaskTraining(config, device, find_tokenizer(config))
    root = Path(config.save_finetune_checkpoint_path)
    check_runs(root, config)
    check_task_folders(root, config)
    if config.dry_run:
        training.estimate(root, config, config.num_seeds)
        return
    training.run(root, Path(config.output_path) if config.output_path else root)


def check_task_folders(root: Path, config: MultitaskConfig) -> None:
    """Raise ConfigError if the folder of a task holds a model of another run, which that of the task would replace."""
    for run in runs_of(config):
        for task in config.tasks:
            folder = root / run / task
            is_new = not (root / run / CONFIG_FILE).exists()
            if (folder / CONFIG_FILE).exists() or (is_new and folder.is_dir() and list_checkpoints(folder)):
                raise ConfigError(
                    f"{folder} holds another model, which that of {task} would replace: use another folder"
                )


@contextmanager
def naming(task: str) -> Iterator[None]:
    """Name the task in errors about its keys and files."""
    try:
        yield
    except UserError as error:
        raise ConfigError(f"tasks.{task}: {error}", key=f"tasks.{task}") from error


@dataclass(frozen=True)
class JointResult:
    """Results of the tasks by name, and their metrics as TASK_METRIC, with the mean of the selection metrics."""

    results: dict[str, EvaluationResult]
    metrics: dict[str, float]


class MultitaskTraining(Training):
    """Training of several tasks, `parts`, on one backbone. The parts share the backbone of their evaluation, too.

    The run's checkpoints hold all heads. A finished run has a model folder for each task, with the backbone and the
    head of one checkpoint, the best by the mean of the selection metrics.

    Raises:
        ConfigError: a task is not valid, or lacks examples; names the task.
    """

    selection = MEAN
    config: MultitaskConfig

    def __init__(self, config: MultitaskConfig, device: Device, tokenizer: FullTokenizer) -> None:
        super().__init__(config, device, tokenizer)
        if self.architecture.recompute:
            problem = "training several tasks does not support it"
            raise ConfigError(key="albert_cfg.recompute", value=True, problem=problem, hint="set it to false")
        self.parts: dict[str, Finetuning] = {}
        for name in config.tasks:
            with naming(name):
                task = config.make_task(name, tokenizer)
                self.parts[name] = Finetuning(config.config_of(name), device, tokenizer, task)
                if not task.ready_file(TRAIN):
                    task.split(TRAIN)  # missing examples must fail before the features of other tasks are made
        for name, part in self.parts.items():
            with naming(name):
                for split in (TRAIN, *part.data.evaluated_splits):
                    part.data.prepared(split)
                rows = part.data.prepared(TRAIN).records.num_rows
                at_once = config.train_batch_size * self.ranks.size
                if rows < at_once:
                    raise ConfigError(f"{rows} training rows, fewer than a batch of {at_once}: lower train_batch_size")
        if not any(part.task.pairs for part in self.parts.values()):
            config.refuse(["mark_shared"], "no task reads two texts together")
        self.backbone = next(iter(self.parts.values())).scores.albert
        for part in self.parts.values():
            part.scores.insert_child_to_cell("albert", self.backbone)
        self.artifacts = ModelFolder(self.architecture, self.tokenizer)
        reads_tokens = any(part.data.reads_tokens for part in self.parts.values())
        self.utilisation = Utilisation(self.architecture, reads_tokens=reads_tokens)

    def batches(self, config: FinetuneConfig) -> MixedDataset:
        config = cast(MultitaskConfig, config)
        datasets = {name: part.batches(config) for name, part in self.parts.items()}
        mixed = MixedDataset(list(datasets.values()), config.alpha, config.seed, config.accumulation_steps)
        for (name, data), share in zip(datasets.items(), mixed.shares, strict=True):
            logger.info(f"{name}: {data.num_rows:,} training rows, {share:.1%} of the updates")
        return mixed

    def training_network(self, config: FinetuneConfig) -> TrainingNetwork:
        network = JointNetwork({name: part.training_network(config) for name, part in self.parts.items()}, config.seed)
        network.frozen = FROZEN[config.freeze]
        return network

    def identity(self) -> dict[str, Any]:
        return by_task({name: part.identity() for name, part in self.parts.items()}, " ")

    def baseline(self) -> dict[str, float]:
        baselines = {name: part.baseline() for name, part in self.parts.items()}
        return self.joined(baselines) if all(baselines.values()) else {}

    def joined(self, metrics: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
        """Return the metrics of the tasks in one dict, the mean of the selection metrics first."""
        selected = [metrics[name][part.selection] for name, part in self.parts.items()]
        return {MEAN: mean(selected), **by_task(metrics)}

    def evaluation(self, training: nn.Cell, steps: int) -> Evaluation:
        evaluators = {name: part.evaluator() for name, part in self.parts.items()}

        def evaluate(_: nn.Cell, before_batch: Callable[[], object]) -> JointResult:
            results = {}
            for name, part in self.parts.items():
                copy_parameters(training, part.scores, head_prefix(name))
                results[name] = evaluators[name](part.network, before_batch)
            return JointResult(results, self.joined({name: result.metrics for name, result in results.items()}))

        return Evaluation(training, self.backbone, evaluate, steps, Selection(MEAN, self.config.early_stopping))

    def finish(
        self, path: Path, output: Path, config: FinetuneConfig, results: Mapping[int, Any], splits: Sequence[str] = ()
    ) -> dict[str, float]:
        contents = find_checkpoint(path)
        self.ranks.must_agree({"checkpoint": contents.path.name}, "what they evaluate")
        metrics = {}
        for name, part in self.parts.items():
            if self.ranks.is_writer:
                (path / name).mkdir(exist_ok=True)
                self.model_of(name, contents).write_files(path / name)
            self.ranks.wait(f"the folder of {name}")
            logger.info(f"task {name}:")
            kept = {step: result.results[name] for step, result in results.items()}
            part_config = part.config.replace(seed=config.seed, num_seeds=1)
            metrics[name] = part.finish(path / name, output / name, part_config, kept, part.data.evaluated_splits)
        if not self.config.do_eval:
            return by_task(metrics)
        joined = self.joined(metrics)
        names = ", ".join(f"{name}_{part.selection}" for name, part in self.parts.items())
        logger.info(f"mean of {names}: {joined[MEAN]:.4f}")
        if self.ranks.is_writer:
            step = contents.loop_state["step"]
            write_json(output / EVAL_FILE, {"checkpoint": contents.path.name, "step": step, **joined})
        return joined

    def model_of(self, name: str, contents: Checkpoint) -> ModelFolder:
        """Return the model of one task from a checkpoint of the run."""
        part = self.parts[name]
        prefix = head_prefix(name)
        weights = {
            weight.removeprefix(prefix): value
            for weight, value in contents.values.items()
            if weight.startswith((BACKBONE, prefix))
        }
        state = {"step": contents.loop_state["step"], "identity": part.identity()}
        checkpoint = Checkpoint(contents.path, weights, state)
        return ModelFolder(self.architecture, self.tokenizer, part.task.task_info, checkpoint=checkpoint)


def by_task(values: Mapping[str, Mapping[str, Any]], separator: str = "_") -> dict[str, Any]:
    """Return the values of all tasks in one dict, under TASK and key joined by the separator."""
    return {f"{name}{separator}{key}": value for name, of_task in values.items() for key, value in of_task.items()}
