"""Splits of a task as feature files and batches, the same on every rank."""

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from model_utils.errors import ConfigError, DataError
from src.albert_networks import ScoresNetwork
from src.data.batches import FeatureDataset, Loading
from src.data.feature_cache import TRAIN, Features, cached_features
from src.data.feature_files import RecordSet, open_records
from src.data.features import MARKED, mark_shared_tokens
from src.data.length_buckets import (
    COMPILATION,
    COMPILATION_ON_GPU,
    WIDTH_STEP,
    choose_boundaries,
    paying_boundaries,
)
from src.data.packing import SIZE_STEP, Packing
from src.data.ready_features import ReadySplit
from src.pretraining_data.diagnostics import VocabularyFit
from src.tasks.finetune_config import FinetuneConfig, is_tfrecord
from src.tasks.spec import PreparedSplit, Task
from src.training.network_outputs import rows_in_memory
from src.training.ranks import Ranks

MAX_EPOCHS, ROWS_LOOKED_AT = 32, 1_000_000  # limits of the sample from which packed batch sizes are chosen
# Entries of a manifest that may differ while the examples are the same.
NOT_IDENTITY = ("format_version", "source", "columns", "record_files", "files", "num_choices")


class TaskData:
    """Splits that a task is trained and evaluated on; rows are the same for all seeds.

    Attributes:
        packed: whether batches are packed (src/data/packing.py).

    Args:
        scores: a network like those that are trained and evaluated.
    """

    def __init__(self, config: FinetuneConfig, task: Task, scores: ScoresNetwork, ranks: Ranks) -> None:
        self.config = config
        self.task = task
        self.ranks = ranks
        self.architecture = scores.config
        self.reads_tokens = scores.reads_tokens
        self.packed = scores.albert.packs and not config.length_buckets
        self._prepared: dict[str, PreparedSplit] = {}

    @property
    def evaluated_splits(self) -> tuple[str, ...]:
        """Names of the splits for do_eval and do_predict."""
        splits: tuple[str, ...] = ()
        if self.config.do_eval:
            splits += self.task.dev_splits
        if self.config.do_predict:
            splits += self.task.test_splits
        return splits

    def prepared(self, name: str) -> PreparedSplit:
        """Return a split and its feature files. Collective: every rank calls it.

        Raises:
            DataError: examples or ready features are wrong.
            UserError: they differ between ranks.
        """
        if name not in self._prepared:
            prepared = self._prepare(name)
            self.ranks.must_agree(prepared.records.manifest["files"], f"the files of the {name} split")
            self._prepared[name] = prepared
        return self._prepared[name]

    def _prepare(self, name: str) -> PreparedSplit:
        ready = self.task.ready_file(name)
        max_samples = self.config.max_samples(name)
        if ready and not self.task.needs_examples and max_samples:
            stage = "train" if name == TRAIN else "eval"
            problem = f"all rows of the ready features in {stage}_data_file_path are used"
            hint = "remove one of the two"
            raise ConfigError(key=f"max_{stage}_samples", value=max_samples, problem=problem, hint=hint)
        if not ready or is_tfrecord(ready):
            split = self.task.split(name)
            records = self._cached_features(split)
            if isinstance(split, ReadySplit):
                self.task.check_ready(records, split.path)
            if name == TRAIN and not self.task.needs_examples:  # so that it does not keep the examples
                split = ReadySplit(name, Path(records.files[0]))
            return PreparedSplit(split, records)
        if not self.task.needs_examples:
            records = open_records(ready, self.task.feature_format, self.task.expected_manifest())
            self.task.check_ready(records, Path(ready))
            self._check_marks(records, ready)
            return PreparedSplit(ReadySplit(name, Path(ready)), records)
        split = self.task.split(name)
        records = open_records(ready, self.task.feature_format, **split.manifest() | {"source": None})
        self._check_marks(records, ready)
        return PreparedSplit(split, records)

    def _check_marks(self, records: RecordSet, path: str) -> None:
        found, needed = records.manifest.get(MARKED, False), self.task.task_info.mark_shared
        if found != needed:
            raise DataError(f"{path}: the features were made with {MARKED} {found}, needed is {needed}")

    def _cached_features(self, split: Any) -> RecordSet:
        """Return the features of a split; rank 0 writes missing ones while the other ranks wait. Collective."""
        manifest = split.manifest()
        if self.task.task_info.mark_shared:
            manifest[MARKED] = True
        barrier_name = f"the features of the {split.name} split"
        self.ranks.must_agree(manifest, f"the examples of the {split.name} split")
        if not self.ranks.is_writer:
            self.ranks.wait(barrier_name)
        records = cached_features(
            Path(self.config.feature_dir), self.task.feature_format, manifest, lambda: self.make(split)
        )
        if self.ranks.is_writer:
            self.ranks.wait(barrier_name)
        return records

    def make(self, split: Any) -> Features:
        """Return the features of a split; warn if the vocabulary does not fit the training text."""
        features = split.features()
        tokenizer = self.task.tokenizer
        if self.task.task_info.mark_shared:
            features = mark_shared_tokens(features, self.task.spec.texts_per_row, tokenizer)
        if split.name == TRAIN:
            is_token = features.values["input_mask"].values == 1
            ids = features.values["input_ids"].values[is_token]
            VocabularyFit.of(ids, tokenizer.unk_id).warn(tokenizer.file.name)
        return features

    def baseline(self, name: str) -> dict[str, float]:
        """Return the baseline's metrics on a labelled split; {} if it is not evaluated or nothing is trained."""
        if not self.config.do_train or name not in self.evaluated_splits:
            return {}
        return self.task.baseline(self.prepared(TRAIN), self.prepared(name))

    def dataset(self, name: str, weight_columns: tuple[str, ...] = (), seed: int = 0) -> FeatureDataset:
        """Return batches of a split, packed or bucketed by length.

        All evaluated splits get the same batch sizes, so that one compiled network serves them.
        """
        config = self.config
        is_training = name == TRAIN
        texts = self.task.spec.texts_per_row
        task_info = self.task.task_info
        sized_splits = (TRAIN,) if is_training else dict.fromkeys((name, *self.evaluated_splits))
        records = {split: self.prepared(split).records for split in sized_splits}
        lengths = np.concatenate([split_records.lengths for split_records in records.values()])
        max_rows = rows_in_memory(self.architecture, int(lengths.max()) // texts, task_info.searched_starts)
        loading = Loading(
            config.train_batch_size if is_training else min(config.eval_batch_size, max(1, max_rows // texts)),
            seed,
            config.train_data_shuffle if is_training else config.eval_data_shuffle,
            evaluation=not is_training,
            rank=self.ranks.rank,
            rank_size=self.ranks.size,
        )
        if self.packed:
            loading = replace(loading, packing=self._packing(records.values(), loading))
        else:
            min_width = task_info.shortest_row * texts
            max_width = config.max_seq_length * texts
            widths = {max(min_width, min(width, max_width)) for width in self._widths(lengths, is_training)}
            loading = replace(loading, bucket_boundaries=tuple(sorted(widths)))
        row_weights = self.task.row_weights(records[name]) if is_training else None
        return FeatureDataset(records[name], loading, weight_columns, self.architecture.vocab_size, row_weights)

    def _number_of_batches(self, rows: int, is_training: bool) -> float:
        """Return the number of batches that one rank computes from the rows in the whole run."""
        config = self.config
        if is_training and config.train_steps > 0:
            return config.train_steps * config.accumulation_steps
        batch_size = config.train_batch_size if is_training else config.eval_batch_size
        return config.epoch_num * rows / batch_size / self.ranks.size

    def _widths(self, lengths: np.ndarray, is_training: bool) -> tuple[int, ...]:
        """Return the batch widths for rows of lengths (rows,), in tokens."""
        step = WIDTH_STEP * self.task.spec.texts_per_row
        if self.config.length_buckets:
            return choose_boundaries(lengths, self.config.length_buckets, step)
        compilation = COMPILATION if self.architecture.backend.is_for_cpu else COMPILATION_ON_GPU
        return paying_boundaries(lengths, self._number_of_batches(len(lengths), is_training), step, compilation)

    def _packing(self, records: Collection[RecordSet], loading: Loading) -> Packing:
        """Return a packing of these splits with few batch sizes, chosen over many epochs to suit all seeds."""
        texts = self.task.spec.texts_per_row
        longest = max(split_records.lengths.max() for split_records in records)
        longest = max(self.task.task_info.shortest_row * texts, int(longest))
        packing = Packing(texts, -(-longest // texts) if self.reads_tokens else 1)
        rows = sum(split_records.num_rows for split_records in records)
        sample_loading = replace(loading, packing=packing, seed=self.config.seed)
        epochs = 1 if loading.evaluation else min(MAX_EPOCHS, max(1, ROWS_LOOKED_AT // rows))
        datasets = [FeatureDataset(split_records, sample_loading) for split_records in records]
        sizes = [dataset.widths(epoch) for dataset in datasets for epoch in range(epochs)]
        batch_sizes = np.concatenate(sizes)
        if not len(batch_sizes):
            return packing
        batches = self._number_of_batches(rows, not loading.evaluation)
        return replace(packing, sizes=paying_boundaries(batch_sizes, batches, SIZE_STEP))

    def identity(self) -> dict[str, Any]:
        """Return the fingerprint of the training and development examples, which must match for a run to resume."""
        splits = (TRAIN, self.task.dev_splits[0]) if self.config.do_eval else (TRAIN,)
        fingerprint = {}
        for name in splits:
            for key, value in self.prepared(name).records.manifest.items():
                if key not in NOT_IDENTITY:
                    fingerprint[f"{name} {key}"] = value
        return fingerprint
