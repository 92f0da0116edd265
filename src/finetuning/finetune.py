"""Fine-tuning of every task: train, choose the best checkpoint on the development set, evaluate, predict.

Tasks differ only behind the interface src.tasks.spec.Task; an entry script names its task and calls `finetune`.
"""

import gc
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from mindspore import nn

from model_utils.config import check_output_folder
from model_utils.device import Device, setup_device
from model_utils.errors import CheckpointError, ConfigError, DivergedError
from model_utils.files import write_json
from model_utils.json_files import read_object
from src.albert_model import initialise_weights
from src.albert_networks import TrainingNetwork
from src.checkpoints.checkpoint_files import (
    check_network,
    find_checkpoint,
    folder_of,
    load_backbone,
    newest_checkpoint,
)
from src.data.batches import FeatureDataset
from src.data.feature_cache import TRAIN
from src.finetune_eval_model import AnsweringNetwork, PackedNetwork
from src.finetuning.finetuned_teacher import FinetunedTeacher
from src.finetuning.report_files import write_report
from src.finetuning.results import EVAL_FILE, Report
from src.finetuning.runs import Trial, check_runs, config_of_run, runs_of, trials_of
from src.finetuning.search import Result, run_trials
from src.finetuning.task_data import TaskData
from src.finetuning.training import Training
from src.model_card import write_training_card
from src.model_folder import TASK_FILE, ModelFolder, load_tokenizer, read_task_info, store_calibration
from src.tasks import TASKS
from src.tasks.finetune_config import FROZEN, FinetuneConfig
from src.tasks.spec import EvaluationResult, Task
from src.tasks.task_info import TaskInfo
from src.tokenization import FullTokenizer, build_tokenizer
from src.training.evaluation import Evaluation, Selection
from src.training.network_outputs import are_finite, predict_rows
from src.training.utilisation import Utilisation

logger = logging.getLogger(__name__)
MakeTask = Callable[[Any, FullTokenizer, TaskInfo | None], Task]


def finetune(config: FinetuneConfig, make_task: MakeTask) -> None:
    """Train, evaluate and predict as configured, once per seed.

    The trials of a search evaluate development splits alone; the best model is evaluated and predicts as configured.
    """
    check_outputs(config)
    trials = trials_of(config)
    device = setup_device(**config.device_settings())
    tokenizer = find_tokenizer(config)
    trained_info = None if config.do_train else evaluated_task(config)
    task = make_task(config, tokenizer, trained_info)
    if not task.pairs:
        config.refuse(["mark_shared"], "this task does not read two texts together")
    finetuning = Finetuning(config, device, tokenizer, task)
    if not config.do_train:
        config.refuse(["dry_run"], "do_train is false")
        weights = Path(config.load_finetune_checkpoint_path)
        finetuning.evaluate(weights, Path(config.output_path or folder_of(weights)))
        return
    for split in finetuning.data.evaluated_splits:  # missing files must fail before the training, not after it
        finetuning.data.prepared(split)
    root = Path(config.save_finetune_checkpoint_path)
    check_runs(root, config, trials)
    if config.dry_run:
        if trials:
            config = trials[0].config
            finetuning = Finetuning(config, device, tokenizer, make_task(config, tokenizer, None))
        finetuning.estimate(root, config, config.num_seeds * max(1, len(trials)))
        return
    output = Path(config.output_path) if config.output_path else root
    if not trials:
        finetuning.run(root, output, finetuning.data.evaluated_splits)
        return
    best = search_settings(finetuning, trials, make_task, root, output)
    ModelFolder.load(best).write_files(root)
    finetuning.config = config_of_run(best, root, trials)
    report = finetuning.evaluate(root, output)
    finetuning.write_card(root, report, finetuning.config, finetuning.data.evaluated_splits)


def search_settings(
    finetuning: "Finetuning", trials: list[Trial], make_task: MakeTask, root: Path, output: Path
) -> Path:
    """Run the trials of a search; return the folder of the best model.

    Every trial has a Finetuning of its own, because settings are constants of compiled graphs.
    """
    of_task = type(finetuning.config).model_fields.keys() - FinetuneConfig.model_fields.keys()
    for trial in trials:
        if of_task & trial.settings.keys():
            make_task(trial.config, finetuning.tokenizer, None)  # so that what it refuses fails before the training

    def run_trial(trial: Trial, earlier: Result | None) -> Result:
        gc.collect()  # frees the graphs of the trial before
        task = make_task(trial.config, finetuning.tokenizer, None)
        trained = Finetuning(trial.config, finetuning.device, finetuning.tokenizer, task)
        if earlier:
            trained.check_same_data(root / earlier.model)
            return earlier
        try:
            metric, model = trained.run(root / trial.name, output / trial.name, task.dev_splits)
        except DivergedError as error:
            logger.warning(f"{trial.name}: {error}")
            metric, model = None, root / trial.name
        folders = [root / trial.name / name for name in runs_of(trial.config)]
        checkpoints = [newest_checkpoint(folder) for folder in folders if folder.is_dir()]
        seconds = sum(contents.loop_state["seconds"] for contents in checkpoints if contents)
        folder = model.relative_to(root).as_posix()
        return Result(trial=trial.name, settings=trial.settings, model=folder, metric=metric, seconds=seconds)

    return run_trials(root, trials, finetuning.task.selection, finetuning.config.num_seeds, run_trial)


def check_outputs(config: FinetuneConfig) -> None:
    """Raise ConfigError if a folder for the results cannot be written."""
    if config.do_train:
        check_output_folder(Path(config.save_finetune_checkpoint_path), "save_finetune_checkpoint_path")
    if config.output_path:
        check_output_folder(Path(config.output_path), "output_path")
    elif not config.do_train:
        weights = Path(config.load_finetune_checkpoint_path)
        check_output_folder(folder_of(weights), "without output_path the results' folder")


def find_tokenizer(config: FinetuneConfig) -> FullTokenizer:
    """Return the tokenizer of the weights or, without weights, of the configured vocabulary."""
    vocabulary = config.vocab_file_path, config.spm_model_file, config.do_lower_case
    if config.load_checkpoint_path:
        return load_tokenizer(Path(config.load_checkpoint_path), *vocabulary)
    if not any(vocabulary[:2]):
        raise ConfigError(
            "weights and vocabulary are missing: set load_pretrain_checkpoint_path or, for a cold start, "
            "spm_model_file or vocab_file_path"
        )
    return build_tokenizer(*vocabulary)


def evaluated_task(config: FinetuneConfig) -> TaskInfo:
    """Return task.json of the weights to evaluate; raise CheckpointError if their task is not of this script."""
    weights = Path(config.load_finetune_checkpoint_path)
    trained_info = task_info_of(weights)
    allowed = [name for name, spec in TASKS.items() if spec.config is type(config)]
    if trained_info.task not in allowed:
        raise head_mismatch(weights, "task", trained_info.task, " or ".join(allowed))
    return trained_info


def task_info_of(weights: Path) -> TaskInfo:
    """Return task.json of fine-tuned weights; raise CheckpointError if it is missing."""
    task_info = read_task_info(weights)
    if task_info is None:
        raise CheckpointError(f"{weights} holds no fine-tuned weights: {TASK_FILE} is missing")
    return task_info


def head_mismatch(weights: Path, key: str, trained: Any, needed: Any) -> CheckpointError:
    """Return the error for weights whose task.json has the value `trained` instead of `needed`."""
    return CheckpointError(f"{weights} was fine-tuned for another head: {key} is {trained}, but {needed} is needed")


class Finetuning(Training):
    """Fine-tuning of one task."""

    def __init__(self, config: FinetuneConfig, device: Device, tokenizer: FullTokenizer, task: Task) -> None:
        super().__init__(config, device, tokenizer)
        self.task = task
        self.selection = task.selection
        positions = self.architecture.max_position_embeddings
        if config.max_seq_length > positions and not self.architecture.use_relative_positions:
            raise config.error_of("max_seq_length", f"the model has max_position_embeddings {positions}")
        if task.pairs and self.architecture.type_vocab_size < 2 * (1 + task.task_info.mark_shared):
            expected = "at least 2 for pairs of texts, 4 with mark_shared"
            raise ConfigError(
                key="albert_cfg.type_vocab_size", value=self.architecture.type_vocab_size, expected=expected
            )
        task.check_architecture(self.architecture)
        # All evaluations and predictions share this network; each loads its weights into it.
        self.scores = task.spec.scores(self.architecture, task.task_info)
        self.data = TaskData(config, task, self.scores, self.ranks)
        self.network = (PackedNetwork if self.data.packed else AnsweringNetwork)(self.scores)
        self.artifacts = ModelFolder(self.architecture, self.tokenizer, task.task_info)
        self.utilisation = Utilisation(self.architecture, task.spec.texts_per_row, self.data.reads_tokens)

    @property
    def losses(self) -> type[TrainingNetwork]:
        assert self.task.spec.losses, "a task that is trained has losses"
        return self.task.spec.losses

    def batches(self, config: FinetuneConfig) -> FeatureDataset:
        return self.data.dataset(TRAIN, self.losses.weight_columns, config.seed)

    def training_network(self, config: FinetuneConfig) -> TrainingNetwork:
        task = self.task
        network = self.losses(task.spec.scores(self.architecture, task.task_info), config.seed, self.data.packed)
        network.frozen = FROZEN[config.freeze]
        task.set_up_losses(network, self.data.prepared(TRAIN).records)
        if config.teacher:
            teacher = FinetunedTeacher(config, task, self.architecture, self.data.packed)
            network.teach(teacher, config.teacher_loss_weight, config.temperature)
        return network

    def identity(self) -> dict[str, Any]:
        return self.data.identity()

    def baseline(self) -> dict[str, float]:
        return self.data.baseline(self.task.dev_splits[0])

    def evaluation(self, training: nn.Cell, steps: int) -> Evaluation:
        selection = Selection(self.selection, self.config.early_stopping)
        return Evaluation(training, self.network, self.evaluator(), steps, selection)

    def evaluator(self) -> Callable[[nn.Cell, Callable[[], object]], EvaluationResult]:
        """Return Evaluation.evaluate for the first development split."""
        split = self.task.dev_splits[0]
        prepared = self.data.prepared(split)
        data = self.data.dataset(split)

        def evaluate(network: nn.Cell, before_batch: Callable[[], object]) -> EvaluationResult:
            outputs = predict_rows(network, data, self.ranks, before_batch)
            if not are_finite(outputs):  # may recover in float16, where updates that overflow are skipped
                return EvaluationResult({self.selection: math.nan}, write=lambda _: None)
            return self.task.evaluate(prepared, outputs, self.task.task_info)

        return evaluate

    def finish(
        self, path: Path, output: Path, config: FinetuneConfig, results: Mapping[int, Any], splits: Sequence[str]
    ) -> dict[str, float]:
        report = Report()
        if splits:
            report = self.evaluate(path, output, results, splits, config)
            if report.calibration and self.ranks.is_writer:
                store_calibration(path, report.calibration)
        self.write_card(path, report, config, splits)
        return report.metrics

    def measure_start(self) -> None:
        """Fill the task's start_metrics if it has any. Collective."""
        if not self.config.do_train or self.task.start_metrics != {}:
            return
        logger.info("evaluating the starting weights")
        initialise_weights(self.scores, self.architecture.initializer_range, self.config.seed)
        self.initialise(self.scores)
        for split in self.data.evaluated_splits:
            outputs = predict_rows(self.network, self.data.dataset(split), self.ranks)
            result = self.task.evaluate(self.data.prepared(split), outputs, self.task.task_info)
            self.task.start_metrics[split] = result.metrics

    def evaluate(
        self,
        weights: Path,
        output: Path,
        results: Mapping[int, EvaluationResult] = MappingProxyType({}),
        splits: Sequence[str] = (),
        config: FinetuneConfig | None = None,
    ) -> Report:
        """Evaluate development splits and predict test splits as configured; write into `output` only.

        Args:
            results: results of the first development split in the training, by step; that of the weights is reused.
            splits: (): those for do_eval and do_predict.
            config: configuration of the run, which reports show; None: that of all seeds.
        """
        splits = splits or self.data.evaluated_splits
        self.measure_start()
        task_info = self.check_task(weights)
        contents = find_checkpoint(weights)
        check_network(contents, self.architecture)
        self.ranks.must_agree({"checkpoint": contents.path.name}, "what they evaluate")
        step = contents.loop_state.get("step", -1)
        is_same_task_info = task_info.explicit_values() == self.task.task_info.explicit_values()
        training_result = results.get(step) if is_same_task_info else None
        selection_split = self.task.dev_splits[0]
        if not training_result or set(splits) - {selection_split}:
            load_backbone(self.scores, contents, needed=("",))
        report = Report({"checkpoint": contents.path.name, "sha256": contents.sha256(), "step": step})
        for split in splits:
            if training_result and split == selection_split:
                result = training_result
            else:
                result = self._evaluate_split(split, task_info, contents.path)
            task_info = task_info.model_copy(update=result.calibration)
            prefix = "" if split == selection_split else f"{split}_"
            is_labelled = bool(result.metrics)
            baselines = self.data.baseline(split) if is_labelled else {}
            report.add(split, prefix, result, baselines)
            if self.ranks.is_writer:
                output.mkdir(parents=True, exist_ok=True)
                result.write(output)
                if result.report and is_labelled:
                    records = self.data.prepared(split).records
                    write_report(output, split, result, baselines, records, contents.path, config or self.config)
        report.log()
        if self.ranks.is_writer:
            self._write_results(output, report, splits)
        return report

    def _evaluate_split(self, split: str, task_info: TaskInfo, checkpoint: Path) -> EvaluationResult:
        """Return the result of the loaded weights on a split; raise DivergedError if outputs are not finite."""
        outputs = predict_rows(self.network, self.data.dataset(split), self.ranks)
        if not are_finite(outputs):
            raise DivergedError(
                f"{checkpoint} gives outputs for the {split} split that are not finite: train with a lower learning "
                "rate or a longer warm-up, or set compute_type to float32 if it is float16"
            )
        return self.task.evaluate(self.data.prepared(split), outputs, task_info)

    def _write_results(self, output: Path, report: Report, splits: Sequence[str]) -> None:
        """Write eval_results.json; results of the same weights on other splits stay, without new metrics all."""
        file = output / EVAL_FILE
        exists = file.exists()
        if exists and report.metrics:
            all_splits = (*self.task.dev_splits, *self.task.test_splits)
            report = report.with_earlier(read_object(file), all_splits, splits)
        if report.metrics or not exists:
            write_json(file, report.content())
        logger.info(f"results and predictions are in {output}")

    def write_card(self, path: Path, report: Report, config: FinetuneConfig, splits: Sequence[str]) -> None:
        """Write the model card of a finished run, which was evaluated on `splits`, into its folder. Collective."""
        records = {name: self.data.prepared(name).records for name in (TRAIN, *splits)}
        if self.ranks.is_writer:
            write_training_card(path, config, task_info_of(path), records, report.content())

    def check_task(self, weights: Path) -> TaskInfo:
        """Return task.json of the weights; log where its settings differ from the configured ones.

        Raises:
            CheckpointError: task or labels differ.
        """
        trained_info = task_info_of(weights)
        trained = trained_info.explicit_values()
        for key, value in self.task.task_info.explicit_values().items():
            if trained.get(key, value) == value:
                continue
            if key in ("task", "labels"):
                raise head_mismatch(weights, key, trained[key], value)
            if key == "task_name" and value == "ax":  # ax has no training set and is predicted with models of MNLI
                continue
            logger.warning(f"{key} is {value}, but {trained[key]} in the {TASK_FILE} of {weights}")
        return trained_info
