"""Fine-tuning of every task: train, choose the best checkpoint on the development set, evaluate, predict.

What differs between tasks lies behind src.tasks.spec.Task; the entry scripts name one and this module does the rest.
"""

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from mindspore import nn

from model_utils.config import check_output_folder
from model_utils.device import Device, setup_device
from model_utils.errors import CheckpointError, ConfigError, UserError
from model_utils.files import write_json
from model_utils.json_files import read_object
from src.albert_config import AlbertConfig, check_memory
from src.checkpoints.checkpoint_files import (
    ARCHITECTURE,
    check_network,
    find_checkpoint,
    folder_of,
    list_checkpoints,
    load_backbone,
)
from src.data.feature_cache import TRAIN
from src.finetune_eval_model import AnsweringNetwork, PackedNetwork
from src.finetuning.task_data import TaskData
from src.model_folder import TASK_FILE, ModelFolder, calibrate, load_tokenizer, read_task_info
from src.tasks import TASKS
from src.tasks.finetune_config import FinetuneConfig
from src.tasks.spec import EvaluationResult, Task
from src.tasks.task_info import TaskInfo
from src.tokenization import FullTokenizer, build_tokenizer
from src.training.dry_run import dry_run
from src.training.evaluation import Evaluation, Selection
from src.training.network_outputs import are_finite, predict_rows
from src.training.phases import Phase, Phases
from src.training.ranks import ranks_of
from src.training.run_folder import CONFIG_FILE, RunFolder, check_run_folder
from src.training.run_log import EVAL_PREFIX
from src.training.run_plan import RunFacts, plan_precision, plan_run
from src.training.train_step import TrainStep, build_step
from src.training.trainer import Trainer
from src.training.utilisation import Utilisation

logger = logging.getLogger(__name__)
EVAL_FILE = "eval_results.json"
COLD_RATE, COLD_BETA2 = 3e-4, 0.98  # of AdamWeightDecay, without pre-trained weights or from those of a narrow model
PUBLISHED_HIDDEN = 768  # of the narrowest weights that google published in English
# initializer_range of cold starts: 312 wide, 0.03 does best, 384 wide, 0.02 (docs/experiments).
WIDE, NARROW_START, WIDE_START = 384, 0.03, 0.02
MakeTask = Callable[[FinetuneConfig, FullTokenizer, TaskInfo | None], Task]


def finetune(config: FinetuneConfig, make_task: MakeTask) -> None:
    """Do what do_train, do_eval and do_predict ask for, once for each seed."""
    check_outputs(config)
    device = setup_device(**config.device_settings())
    tokenizer = find_tokenizer(config)
    known = None if config.do_train else evaluated_task(config)
    work = Finetuning(config, device, tokenizer, make_task(config, tokenizer, known))
    if not config.do_train:
        if config.dry_run:
            raise ConfigError("dry_run is true, which means nothing while do_train is false")
        weights = Path(config.load_finetune_checkpoint_path)
        work.evaluate(weights, Path(config.output_path or folder_of(weights)))
        return
    for split in work.data.evaluated_splits:  # what is missing is missed before the training, not after it
        work.data.prepared(split)
    root = Path(config.save_finetune_checkpoint_path)
    runs = runs_of(config)
    check_runs(root, runs)
    if config.dry_run:
        name, first = next(iter(runs.items()))
        trainer = work.build(RunFolder(root / name, first, writer=work.ranks.writer), first)
        logger.info(dry_run(trainer, kept=f" but features in {config.feature_dir}"))
        if len(runs) > 1:
            logger.info(f"each of {len(runs)} seeds takes that time and that much of the disk")
        return
    output = Path(config.output_path) if config.output_path else root
    results: dict[str, dict[str, float]] = {}
    collapsed: list[int] = []
    for name, one in runs.items():
        evaluation = work.train(root / name, one)
        if config.do_eval or config.do_predict:
            report = work.evaluate(root / name, output / name, evaluation)
            results[str(one.seed)] = report.metrics
            collapsed += [one.seed] * report.collapsed
            if report.calibration and work.ranks.writer:
                calibrate(root / name, report.calibration)
    if config.num_seeds > 1 and work.ranks.writer and any(results.values()):
        if collapsed:
            logger.warning(f"collapsed: {len(collapsed)} of {config.num_seeds} seeds: {', '.join(map(str, collapsed))}")
        summary = summarise(list(results.values()))
        write_json(output / EVAL_FILE, {"seeds": results, "collapsed_seeds": collapsed, **summary})


def runs_of(config: FinetuneConfig) -> dict[str, FinetuneConfig]:
    """The configuration of each seed by its folder's name below that of all: "" where there is one."""
    seeds = range(config.seed, config.seed + config.num_seeds)
    return {f"seed-{seed}" if len(seeds) > 1 else "": config.replace(seed=seed, num_seeds=1) for seed in seeds}


def check_runs(root: Path, runs: Mapping[str, FinetuneConfig]) -> None:
    """Before any seed is trained: raise where one may not start or go on in its folder, or other runs lie there."""
    there, needed = ("a single run", "several seeds") if len(runs) > 1 else ("runs of several seeds", "a single run")
    if any(root.glob(CONFIG_FILE if len(runs) > 1 else f"seed-*/{CONFIG_FILE}")):
        raise ConfigError(f"{root} holds {there}, and figures of {needed} would replace theirs: choose another folder")
    for name, config in runs.items():
        check_run_folder(root / name, config)


def check_outputs(config: FinetuneConfig) -> None:
    """Raise ConfigError if what the work would end with could not be written."""
    if config.do_train:
        check_output_folder(Path(config.save_finetune_checkpoint_path), "save_finetune_checkpoint_path")
    if config.output_path:
        check_output_folder(Path(config.output_path), "output_path")
    elif not config.do_train:
        weights = Path(config.load_finetune_checkpoint_path)
        check_output_folder(folder_of(weights), "without output_path the results' folder")


def find_tokenizer(config: FinetuneConfig) -> FullTokenizer:
    """The vocabulary beside the weights, or the one that is named."""
    vocabulary = config.vocab_file_path, config.spm_model_file, config.do_lower_case
    if config.load_checkpoint_path:
        return load_tokenizer(Path(config.load_checkpoint_path), *vocabulary)
    if not any(vocabulary[:2]):
        raise ConfigError(
            "no weights and no vocabulary are given: set load_pretrain_checkpoint_path or, for a cold start, "
            "spm_model_file or vocab_file_path"
        )
    return build_tokenizer(*vocabulary)


def evaluated_task(config: FinetuneConfig) -> TaskInfo:
    """What task.json of the weights to evaluate says; a CheckpointError where they are of no task of this script."""
    weights = Path(config.load_finetune_checkpoint_path)
    known = task_info_of(weights)
    needed = [name for name, spec in TASKS.items() if spec.config is type(config)]
    if known.task not in needed:
        raise another_head(weights, "task", known.task, " or ".join(needed))
    return known


def task_info_of(weights: Path) -> TaskInfo:
    """What task.json of fine-tuned weights says; a CheckpointError where there is none."""
    found = read_task_info(weights)
    if found is None:
        raise CheckpointError(f"{weights} holds no fine-tuned weights: no {TASK_FILE} lies there")
    return found


def another_head(weights: Path, key: str, theirs: Any, needed: Any) -> CheckpointError:
    """The error of weights whose task.json has another value of `key` than the one that is needed."""
    return CheckpointError(f"{weights} was fine-tuned for another head: {key} is {theirs}, needed is {needed}")


def summarise(results: list[dict[str, float]]) -> dict[str, dict[str, float]]:
    """Mean and standard deviation of every metric over the seeds."""
    names = results[0]
    means = {name: mean(result[name] for result in results) for name in names}
    deviations = {name: stdev(result[name] for result in results) for name in names}
    for name in names:
        logger.info(f"{name}: {means[name]:.4f} ± {deviations[name]:.4f} over {len(results)} seeds")
    return {"mean": means, "standard_deviation": deviations}


@dataclass
class Report:
    """What all splits come to, by metric; before those of any but the first split stands its name."""

    metrics: dict[str, float] = field(default_factory=dict)
    baselines: dict[str, float] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)
    calibration: dict[str, Any] = field(default_factory=dict)
    collapsed: bool = False

    def add(self, split: str, prefix: str, result: EvaluationResult, baseline: dict[str, float]) -> None:
        """The result of one more split."""
        self.metrics |= {prefix + name: value for name, value in result.metrics.items()}
        self.baselines |= {prefix + name: value for name, value in baseline.items()}
        self.remarks += [f"{split}: {remark}" for remark in result.remarks]
        self.calibration |= result.calibration

    def keep(self, before: Mapping[str, Any]) -> None:
        """Put the content of an earlier eval_results.json before this one's."""
        told = "baselines", "remarks", "collapsed"
        self.metrics = {name: value for name, value in before.items() if name not in told} | self.metrics
        self.baselines = before.get("baselines", {}) | self.baselines
        self.remarks = list(dict.fromkeys([*before.get("remarks", []), *self.remarks]))
        self.collapsed |= before.get("collapsed", False)

    def write(self, output: Path, **facts: Any) -> None:
        """Write eval_results.json, facts first."""
        told = {"collapsed": self.collapsed, "baselines": self.baselines, "remarks": self.remarks}
        write_json(output / EVAL_FILE, {**facts, **self.metrics, **told})

    def log(self) -> None:
        """Log it."""
        for name, value in self.metrics.items():
            compared = f" (baseline {self.baselines[name]:.4f})" if name in self.baselines else ""
            logger.info(f"{name}: {value:.4f}{compared}")
        for remark in self.remarks:
            logger.info(remark)


def describe_collapse(collapse: str, config: FinetuneConfig, architecture: AlbertConfig) -> str:
    """What to try where a fine-tuning ends with the same answer for every row (Mosbach et al. 2021, section 5).

    Without pre-trained weights (docs/fine-tuning.md), or from those of a narrow model (docs/pretraining.md), the usual
    settings, which suit published weights, are the likely cause.
    """
    found = f"collapsed: on the development set {collapse}, as without reading"
    if not config.do_train:
        return found
    settings = config.optimizer_settings()
    name, rate, beta2 = (settings[key] for key in ("name", "learning_rate", "beta2"))
    cold = not config.load_pretrain_checkpoint_path
    low = rate < COLD_RATE or (cold and beta2 > COLD_BETA2)
    hidden_size, start = architecture.hidden_size, architecture.initializer_range
    wide = hidden_size >= WIDE
    usual = WIDE_START if wide else NARROW_START
    unfit = cold and (start > usual if wide else start < usual)
    other_start = f"albert_cfg.initializer_range {usual:g} (here {start:g})"
    if name == "AdamWeightDecay" and low and (cold or hidden_size < PUBLISHED_HIDDEN):
        where = "without load_pretrain_checkpoint_path" if cold else f"from weights of hidden_size {hidden_size}"
        return (
            f"{found}; {where} try learning_rate {COLD_RATE:g} and beta2 {COLD_BETA2:g} (here {rate:g} and {beta2:g})"
            + f", and {other_start}" * unfit
        )
    quarter = f"a quarter of the learning rate ({rate:g} -> {rate / 4:g})"
    smaller = f"{other_start}, " * (unfit and wide)
    return f"{found}; try {smaller}{quarter}, a warm-up twice as long, or another seed"


class Finetuning:
    """One task on one device; rows and architecture are the same for all seeds."""

    def __init__(self, config: FinetuneConfig, device: Device, tokenizer: FullTokenizer, task: Task) -> None:
        self.config, self.tokenizer, self.task = config, tokenizer, task
        self.ranks = ranks_of(device)
        self.precision = plan_precision(config, device)
        self.architecture = config.albert_config(
            tokenizer.vocab_size, self.precision.compute_type, config.load_checkpoint_path
        )
        positions = self.architecture.max_position_embeddings
        if config.max_seq_length > positions and not self.architecture.use_relative_positions:
            raise ConfigError(
                f"max_seq_length is {config.max_seq_length}, allowed is at most the model's max_position_embeddings "
                f"({positions})"
            )
        if task.pairs and self.architecture.type_vocab_size < 2:
            raise ConfigError(
                "type_vocab_size is 1, but the rows of this task are pairs of texts, whose second is segment 1: needed "
                "is a model with type_vocab_size 2"
            )
        # Of all evaluations and predictions; its weights change.
        self.scores = task.spec.scores(self.architecture, task.task_info)
        self.data = TaskData(config, task, self.scores, self.ranks)
        self.network = (PackedNetwork if self.data.packed else AnsweringNetwork)(self.scores)
        self.step: TrainStep | None = None  # of all seeds
        weights = config.load_pretrain_checkpoint_path
        self.start = Path(weights) if weights else None

    def build(self, folder: RunFolder, config: FinetuneConfig) -> Trainer:
        """Data, model, optimizer, step and loop of one seed; what earlier seeds have compiled is used again."""
        task, ranks = self.task, self.ranks
        data = self.data.dataset(TRAIN, task.spec.losses.weight_columns, config.seed)
        batches = data.batches_per_epoch
        plan = plan_run(config, config.epoch_num, data.rows_at_once, batches)
        rows, epochs = (config.accumulation_steps * each for each in (data.rows_at_once, plan.train_steps / batches))
        logger.info(f"{plan.train_steps:,} updates of {rows:,} rows: {epochs:.2f} epochs")
        check_memory(self.architecture, data.most_tokens)
        phases = Phases([Phase(data, config.accumulation_steps)])
        if self.step is None:
            scores = task.spec.scores(self.architecture, task.task_info)
            network = task.spec.losses(scores, config.seed, self.data.packed)
            self.step = build_step(config, network, plan, self.precision, ranks, phases.accumulate)
        else:
            self.step.network.draw_weights(config.seed)
            self.step.restart(config.seed)
        step, network = self.step, self.step.network
        folder.artifacts = ModelFolder(self.architecture, self.tokenizer, task.task_info)
        eval_steps = config.eval_steps or max(1, batches // config.accumulation_steps)
        return Trainer(
            step,
            phases,
            plan,
            config,
            folder,
            self.facts(),
            ranks,
            initialise=lambda: self.initialise(network),
            evaluation=self.evaluation(network, eval_steps) if config.do_eval else None,
            baselines={
                EVAL_PREFIX + name: {"baseline": value}
                for name, value in self.data.baseline(task.dev_splits[0]).items()
            },
            utilisation=Utilisation(self.architecture, task.spec.texts_per_row, self.data.reads_tokens),
        )

    def facts(self) -> RunFacts:
        """What a run must match that goes on, or is evaluated without being trained again."""
        return RunFacts(self.data.identity(), self.precision, self.architecture.facts())

    def check_finished(self, path: Path) -> None:
        """Raise CheckpointError where a finished run was trained on other data, whose figures these would not be."""
        if list_checkpoints(path):
            contents = find_checkpoint(path)
            if "identity" in contents.loop_state:
                self.facts().check({ARCHITECTURE: {}} | contents.loop_state, contents.path)

    def evaluation(self, training: nn.Cell, steps: int) -> Evaluation:
        """Of a network in training on the first development split, every `steps` updates."""
        split = self.task.dev_splits[0]
        prepared, data = self.data.prepared(split), self.data.dataset(split)

        def evaluate(network: nn.Cell, before_batch: Callable[[], object]) -> EvaluationResult:
            outputs = predict_rows(network, data, self.ranks, before_batch)
            if not are_finite(outputs):  # in float16, where updates that overflow are left out: the next one may be
                return EvaluationResult({self.task.selection: math.nan}, write=lambda _: None)
            return self.task.evaluate(prepared, outputs, self.task.task_info)

        selection = Selection(self.task.selection, self.config.early_stopping)
        return Evaluation(training, self.network, evaluate, steps, selection)

    def initialise(self, network: nn.Cell) -> None:
        """The warm start, if there is one: of all seeds the same, also while a pre-training writes newer weights."""
        if self.start is not None:
            contents = find_checkpoint(self.start)
            self.start = contents.path
            load_backbone(network, contents)
        else:
            logger.info("cold start: no pre-trained weights (load_pretrain_checkpoint_path)")

    def train(self, path: Path, config: FinetuneConfig) -> Evaluation | None:
        """Fine-tune with one seed, or go on where an earlier attempt stopped; its evaluation, if any."""
        evaluation = None
        with RunFolder(path, config, writer=self.ranks.writer) as folder:
            if folder.finished:
                self.check_finished(path)
                logger.info(f"{path} holds this run and it is finished: nothing to train")
            else:
                trainer = self.build(folder, config)
                trainer.fit()
                evaluation = trainer.evaluation
        self.ranks.wait("the last checkpoint")
        return evaluation

    def evaluate(self, weights: Path, output: Path, evaluation: Evaluation | None = None) -> Report:
        """Evaluate the development splits and predict the test splits, as asked for; write into `output` alone.

        What `evaluation`, of the training that ended with these weights, found for them is not evaluated again.
        """
        task_info = self.check_task(weights)
        contents = find_checkpoint(weights)
        check_network(contents, self.architecture)
        self.data.warn_of_other_examples(contents.loop_state.get("identity", {}))
        self.ranks.must_agree({"checkpoint": contents.path.name}, "what they evaluate")
        step = contents.loop_state.get("step")
        ours = task_info.stated() == self.task.task_info.stated()
        known = evaluation.kept.get(step) if evaluation and ours else None
        loaded = False
        report = Report()
        for split in self.data.evaluated_splits:
            if known and split == self.task.dev_splits[0]:
                result = known
            else:
                if not loaded:
                    load_backbone(self.scores, contents, needed=("",))
                    loaded = True
                outputs = predict_rows(self.network, self.data.dataset(split), self.ranks)
                if not are_finite(outputs):
                    raise UserError(
                        f"{contents.path} gives outputs for the {split} split that are not finite: the training "
                        "diverged (a lower learning rate, a longer warm-up), the weights are damaged, or float16 is "
                        "too narrow for them (compute_type float32)"
                    )
                result = self.task.evaluate(self.data.prepared(split), outputs, task_info)
            task_info = task_info.model_copy(update=result.calibration)
            prefix = "" if split == self.task.dev_splits[0] else f"{split}_"
            labelled = bool(result.metrics)
            report.add(split, prefix, result, self.data.baseline(split) if labelled else {})
            if result.collapse and split == self.task.dev_splits[0]:
                report.collapsed = True
                report.remarks.append(describe_collapse(result.collapse, self.config, self.architecture))
            if self.ranks.writer:
                output.mkdir(parents=True, exist_ok=True)
                result.write(output)
        report.log()
        if self.ranks.writer:
            facts, written = {"checkpoint": contents.path.name, "step": step}, (output / EVAL_FILE).exists()
            if written and report.metrics and not self.config.do_eval:  # the same weights' on the development set stay
                before = read_object(output / EVAL_FILE)
                if all(before.pop(key, None) == value for key, value in facts.items()):
                    report.keep(before)
            if report.metrics or not written:  # figures of before stay where there are none now
                report.write(output, **facts)
            logger.info(f"results and predictions are in {output}")
        return report

    def check_task(self, weights: Path) -> TaskInfo:
        """task.json of weights, whose task and labels must be ours (CheckpointError); what else differs is logged."""
        found = task_info_of(weights)
        theirs = found.stated()
        for key, value in self.task.task_info.stated().items():
            if theirs.get(key, value) == value:
                continue
            if key in ("task", "labels"):
                raise another_head(weights, key, theirs[key], value)
            if key == "task_name" and value == "ax":  # which has MNLI's labels, and no training set
                continue
            logger.warning(f"{key} is {value} here, and {theirs[key]} in the {TASK_FILE} of {weights}")
        return found
