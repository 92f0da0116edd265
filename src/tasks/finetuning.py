"""Fine-tuning of every task: train, choose the best checkpoint on the development set, measure, predict.

What differs between tasks lies behind src.tasks.spec.Task; the entry scripts name one and this module does the rest.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from mindspore import nn

from model_utils.config import check_output_folder
from model_utils.device import Device, setup_device
from model_utils.errors import CheckpointError, ConfigError
from model_utils.files import write_json
from src.albert_config import check_memory
from src.checkpoint_files import Contents, find_checkpoint, folder_of, load_backbone
from src.data.batches import FeatureDataset, Loading
from src.data.feature_cache import cached_features
from src.data.feature_files import SUFFIX, RecordSet, open_records
from src.data.length_buckets import WIDTH_STEP, choose_boundaries
from src.model_folder import TASK_FILE, ModelFolder, calibrate, load_tokenizer, read_task_info
from src.tasks.finetune_config import FinetuneConfig
from src.tasks.spec import TRAIN, Judgement, Task
from src.tasks.task_info import TaskInfo
from src.tokenization import FullTokenizer, build_tokenizer
from src.training.dry_run import dry_run
from src.training.evaluation import Evaluation, Selection
from src.training.network_outputs import predict_rows, rows_in_memory
from src.training.ranks import ranks_of
from src.training.run_folder import RunFolder, check_run_folder
from src.training.run_plan import RunFacts, plan_precision, plan_run
from src.training.train_step import build_step
from src.training.trainer import Trainer

EVAL_FILE = "eval_results.json"
STORAGE_FACTS = ("format_version", "source", "columns", "record_files", "files")  # names of files, and what follows


@dataclass(frozen=True)
class Measured:
    """Metrics of all splits by name, and the calibration of a Judgement."""

    results: dict[str, float]
    calibration: dict[str, Any]


MakeTask = Callable[[FinetuneConfig, FullTokenizer, TaskInfo | None], Task]


def finetune(config: FinetuneConfig, make_task: MakeTask) -> None:
    """Do what do_train, do_eval and do_predict ask for, once for each seed."""
    check_outputs(config)
    device = setup_device(config.device_target, config.device_id, config.distribute, config.device_num, config.seed)
    tokenizer = find_tokenizer(config)
    known = None if config.do_train else read_task_info(Path(config.load_finetune_checkpoint_path))
    task = make_task(config, tokenizer, known)
    work = Finetuning(config, device, tokenizer, task)
    if not config.do_train:
        if config.dry_run:
            raise ConfigError("dry_run is true, which means nothing while do_train is false")
        weights = Path(config.load_finetune_checkpoint_path)
        work.measure(weights, Path(config.output_path or folder_of(weights)))
        return
    for split in work.measured_splits:  # what is missing is missed before the training, not after it
        work.records(split)
    if config.dry_run:
        work.dry_run()
        return
    root = Path(config.save_finetune_checkpoint_path)
    output = Path(config.output_path) if config.output_path else root
    results: dict[str, dict[str, float]] = {}
    for seed in range(config.seed, config.seed + config.num_seeds):
        several = f"seed-{seed}" if config.num_seeds > 1 else ""
        evaluation = work.train(root / several, seed)
        if config.do_eval or config.do_predict:
            results[str(seed)] = work.conclude(root / several, output / several, evaluation)
    if config.num_seeds > 1 and work.ranks.writer and any(results.values()):
        write_json(output / EVAL_FILE, {"seeds": results, **summarise(list(results.values()), work.say)})


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
    if config.load_checkpoint_path:
        return load_tokenizer(Path(config.load_checkpoint_path), config.vocab_file_path, config.spm_model_file)
    return build_tokenizer(config.vocab_file_path, config.spm_model_file, config.do_lower_case)


def summarise(results: list[dict[str, float]], say: Callable[[str], object]) -> dict[str, dict[str, float]]:
    """Mean and standard deviation of every metric over the seeds."""
    names = results[0]
    means = {name: mean(result[name] for result in results) for name in names}
    deviations = {name: stdev(result[name] for result in results) for name in names}
    for name in names:
        say(f"{name}: {means[name]:.4f} ± {deviations[name]:.4f} over {len(results)} seeds")
    return {"mean": means, "standard_deviation": deviations}


class Finetuning:
    """One task on one device; rows and architecture are the same for all seeds.

    Raises:
        ConfigError, DataError: weights, texts and lengths do not fit each other.
    """

    def __init__(self, config: FinetuneConfig, device: Device, tokenizer: FullTokenizer, task: Task) -> None:
        self.config, self.device, self.tokenizer, self.task = config, device, tokenizer, task
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
        self._records: dict[str, RecordSet] = {}

    def say(self, sentence: str) -> None:
        """A line for the reader, from one rank."""
        if self.ranks.writer:
            print(sentence, flush=True)

    @property
    def measured_splits(self) -> tuple[str, ...]:
        """What is evaluated and predicted, as asked for."""
        return self.task.dev_splits * self.config.do_eval + self.task.test_splits * self.config.do_predict

    def records(self, split: str) -> RecordSet:
        """The feature files of a split, the same ones on every rank.

        Raises:
            DataError: the texts or the files are missing or wrong.
            UserError: the ranks have other ones.
        """
        if split not in self._records:
            records = self._open_records(split)
            self.ranks.must_agree(records.facts["files"], f"the files of the {split} split")
            self._records[split] = records
        return self._records[split]

    def _open_records(self, split: str) -> RecordSet:
        """Rank 0 makes what is not there yet, the others wait."""
        config = self.config
        ready = {TRAIN: config.train_data_file_path, self.task.dev_splits[0]: config.eval_data_file_path}
        if (path := ready.get(split, "")) and path.endswith(SUFFIX):
            facts = self.task.source(split).facts if self.task.scores_texts else {}
            return open_records(path, self.task.kind, **facts)
        source, folder = self.task.source(split), Path(config.feature_dir)
        self.ranks.must_agree(dict(source.facts), f"the texts of the {split} split")
        made = f"the features of the {split} split"
        if not self.ranks.writer:
            self.ranks.wait(made)
        records = cached_features(folder, self.task.kind, source.facts, source.make)
        if self.ranks.writer:
            self.ranks.wait(made)
        return records

    def baselines(self, split: str) -> dict[str, float]:
        """The trivial answer's metrics, where the labels are known."""
        if not self.config.do_train or split not in self.task.dev_splits or not self.config.do_eval:
            return {}
        return self.task.baselines(self.records(TRAIN), self.records(split))

    def dataset(self, split: str, weight_columns: tuple[str, ...] = (), seed: int = 0) -> FeatureDataset:
        """Batches of a split, bucketed by length."""
        config, records, training = self.config, self.records(split), split == TRAIN
        texts, task_info = self.task.spec.texts_per_row, self.task.task_info
        widths = choose_boundaries(records.lengths, config.length_buckets, WIDTH_STEP * texts)
        rows = rows_in_memory(self.architecture, int(widths[-1]) // texts, task_info.searched_starts)
        most = max(1, rows // texts)
        loading = Loading(
            config.train_batch_size if training else min(config.eval_batch_size, most),
            seed,
            config.train_data_shuffle if training else config.eval_data_shuffle,
            evaluation=not training,
            rank=self.ranks.rank,
            rank_size=self.ranks.size,
            bucket_boundaries=tuple(min(width, config.max_seq_length * texts) for width in widths),
        )
        return FeatureDataset(records, loading, weight_columns)

    def build(self, folder: RunFolder, config: FinetuneConfig) -> Trainer:
        """Data, model, optimizer, step and loop of one seed."""
        task, ranks = self.task, self.ranks
        network = task.spec.losses(task.spec.scores(self.architecture, task.task_info), config.seed)
        data = self.dataset(TRAIN, network.weight_columns, config.seed)
        check_memory(self.architecture, config.train_batch_size * data.boundaries[-1])
        batches = data.batches_per_epoch
        plan = plan_run(config, config.epoch_num, config.train_batch_size, batches)
        step = build_step(config, network, plan, self.precision, ranks)
        folder.companions = ModelFolder(self.architecture, self.tokenizer, task.task_info)
        eval_steps = config.eval_steps or max(1, batches // config.accumulation_steps)
        return Trainer(
            step,
            data,
            plan,
            config,
            folder,
            self.run_facts(),
            ranks,
            initialise=lambda: self.initialise(network),
            evaluation=self.evaluation(network, eval_steps) if config.do_eval else None,
            baselines={name: {"trivial": value} for name, value in self.baselines(task.dev_splits[0]).items()},
        )

    def evaluation(self, training: nn.Cell, steps: int) -> Evaluation:
        """Of a network in training on the first development split, every `steps` updates."""
        split = self.task.dev_splits[0]
        data = self.dataset(split)

        def measure(network: nn.Cell, before_batch: Callable[[], object]) -> Judgement:
            outputs = predict_rows(network, data, self.ranks, before_batch)
            return self.task.judge(split, data.records, outputs, self.task.task_info)

        network = self.task.spec.scores(self.architecture, self.task.task_info)
        return Evaluation(training, network, measure, steps, Selection(self.task.selection, self.config.early_stopping))

    def run_facts(self) -> RunFacts:
        """What a run is known by; its texts, wherever their features lie, are those that it learns from and those that
        choose its best checkpoint.
        """
        splits = (TRAIN, self.task.dev_splits[0]) if self.config.do_eval else (TRAIN,)
        facts = {split: self.records(split).facts for split in splits}
        identity = {
            f"{split} {key}": each[key] for split, each in facts.items() for key in each if key not in STORAGE_FACTS
        }
        earlier_identity = {key: facts[TRAIN][key] for key in ("task", "rows", "files")}
        return RunFacts(identity, self.precision, self.architecture.facts(), earlier_identity)

    def initialise(self, network: nn.Cell) -> None:
        """The warm start, if there is one."""
        weights = self.config.load_pretrain_checkpoint_path
        if weights:
            load_backbone(network, find_checkpoint(Path(weights)))
        else:
            self.say("cold start: no pre-trained weights (load_pretrain_checkpoint_path)")

    def dry_run(self) -> None:
        """One update, with estimates; nothing is kept but feature files."""
        folder = RunFolder(self.config.save_finetune_checkpoint_path, self.config, writer=self.ranks.writer)
        check_run_folder(folder.path, self.config)
        dry_run(self.build(folder, self.config))

    def train(self, path: Path, seed: int) -> Evaluation | None:
        """Fine-tune with one seed, or go on where an earlier attempt stopped; what was measured on the way."""
        config = self.config.replace(seed=seed, num_seeds=1)
        evaluation = None
        with RunFolder(path, config, writer=self.ranks.writer) as folder:
            if folder.finished:
                self.say(f"{path} holds this run and it is finished: nothing to train")
            else:
                trainer = self.build(folder, config)
                trainer.fit()
                evaluation = trainer.evaluation
        self.ranks.wait("the last checkpoint")
        return evaluation

    def conclude(self, run: Path, output: Path, evaluation: Evaluation | None) -> dict[str, float]:
        """Measure what was trained; the only place where what is found out so goes into the folder of the weights."""
        measured = self.measure(run, output, evaluation)
        if measured.calibration and self.ranks.writer:
            calibrate(run, measured.calibration)
        return measured.results

    def measure(self, weights: Path, output: Path, evaluation: Evaluation | None = None) -> Measured:
        """Evaluate the development splits and predict the test splits, as asked for; write into `output` alone.

        Args:
            evaluation: of the training that ended with these weights; what it found for them is not measured again.
        """
        task_info = self.check_task(weights)
        contents = find_checkpoint(weights)
        self.ranks.must_agree({"checkpoint": contents.path.name}, "what they measure")
        step = contents.loop_state.get("step")
        ours = task_info.stated() == self.task.task_info.stated()
        known = evaluation.kept.get(step) if evaluation and ours else None
        network: nn.Cell | None = None
        results: dict[str, float] = {}
        baselines: dict[str, float] = {}
        calibration: dict[str, Any] = {}
        remarks: list[str] = []
        for split in self.measured_splits:
            if known and split == self.task.dev_splits[0]:
                judgement = known
            else:
                network = network or self.scores_of(contents)
                outputs = predict_rows(network, self.dataset(split), self.ranks)
                judgement = self.task.judge(split, self.records(split), outputs, task_info)
            calibration |= judgement.calibration
            task_info = task_info.model_copy(update=judgement.calibration)
            remarks += [f"{split}: {remark}" for remark in judgement.remarks]
            prefix = "" if split == self.task.dev_splits[0] else f"{split}_"
            results |= {prefix + name: value for name, value in judgement.metrics.items()}
            baselines |= {prefix + name: value for name, value in self.baselines(split).items()}
            if self.ranks.writer:
                output.mkdir(parents=True, exist_ok=True)
                judgement.write(output)
        for name, value in results.items():
            beside = f" (trivial {baselines[name]:.4f})" if name in baselines else ""
            self.say(f"{name}: {value:.4f}{beside}")
        for remark in remarks:
            self.say(remark)
        if self.ranks.writer:
            described = {"checkpoint": contents.path.name, "step": step}
            write_json(output / EVAL_FILE, {**described, **results, "baselines": baselines, "remarks": remarks})
            self.say(f"results and predictions are in {output}")
        return Measured(results, calibration)

    def scores_of(self, contents: Contents) -> nn.Cell:
        """The task's network without losses, with these weights."""
        network = self.task.spec.scores(self.architecture, self.task.task_info)
        load_backbone(network, contents, needed=("",))
        return network

    def check_task(self, weights: Path) -> TaskInfo:
        """task.json of weights, whose task and labels must be those at hand; what else differs is said.

        Raises:
            CheckpointError: they differ, or the weights are of no task.
        """
        found = read_task_info(weights)
        if found is None:
            raise CheckpointError(f"{weights} holds no fine-tuned weights: no {TASK_FILE} lies there")
        theirs = found.stated()
        for key, value in self.task.task_info.stated().items():
            if theirs.get(key, value) == value:
                continue
            if key in ("task", "labels"):
                raise CheckpointError(
                    f"{weights} was fine-tuned for another head: {key} is {theirs[key]}, needed is {value}"
                )
            self.say(f"{key} is {value} here, and {theirs[key]} in the {TASK_FILE} of {weights}")
        return found
