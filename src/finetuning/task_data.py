"""The splits of a task as feature files and batches, the same on every rank."""

import logging
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from model_utils.errors import ConfigError
from src.albert_networks import ScoresNetwork
from src.data.batches import FeatureDataset, Loading
from src.data.feature_cache import TRAIN, Features, cached_features
from src.data.feature_files import RecordSet, open_records
from src.data.length_buckets import (
    COMPILATION,
    COMPILATION_ON_GPU,
    WIDTH_STEP,
    choose_boundaries,
    paying_boundaries,
)
from src.data.packing import SIZE_STEP, Packing
from src.data.ready_features import ReadySplit
from src.nn.layer_form import on_cpu
from src.pretraining_data.vocabulary_fit import LetterTable, VocabularyFit
from src.tasks.finetune_config import FinetuneConfig, is_tfrecord
from src.tasks.spec import PreparedSplit, Task
from src.training.network_outputs import rows_in_memory
from src.training.ranks import Ranks

logger = logging.getLogger(__name__)
MOST_EPOCHS, ROWS_LOOKED_AT = 32, 1_000_000  # to find out which sizes batches have
STORAGE_FACTS = ("format_version", "source", "columns", "record_files", "files")  # names of files, and what follows


class TaskData:
    """The splits that a task is trained and evaluated on; rows are the same for all seeds.

    packed: whether batches are packed (src/data/packing.py).

    Args:
        scores: a network as those that are trained and evaluated.
    """

    def __init__(self, config: FinetuneConfig, task: Task, scores: ScoresNetwork, ranks: Ranks) -> None:
        self.config, self.task, self.ranks = config, task, ranks
        self.architecture, self.reads_tokens = scores.config, scores.reads_tokens
        self.packed = scores.albert.packs and not config.length_buckets
        self._prepared: dict[str, PreparedSplit] = {}

    @property
    def evaluated_splits(self) -> tuple[str, ...]:
        """The splits that do_eval and do_predict ask for."""
        return self.task.dev_splits * self.config.do_eval + self.task.test_splits * self.config.do_predict

    def prepared(self, name: str) -> PreparedSplit:
        """A split and its feature files; DataError where they are wrong, UserError where the ranks differ."""
        if name not in self._prepared:
            prepared = self._prepare(name)
            self.ranks.must_agree(prepared.records.facts["files"], f"the files of the {name} split")
            self._prepared[name] = prepared
        return self._prepared[name]

    def _prepare(self, name: str) -> PreparedSplit:
        config, kind, ready = self.config, self.task.kind, self.task.ready_file(name)
        if ready and not self.task.needs_examples and config.most_samples(name):
            which = "train" if name == TRAIN else "eval"
            raise ConfigError(
                f"max_{which}_samples is {config.most_samples(name)}, but {which}_data_file_path names ready features, "
                "whose rows are all used"
            )
        if not ready or is_tfrecord(ready):
            split = self.task.split(name)
            records = self._cached_features(split)
            if isinstance(split, ReadySplit):
                self.task.check_ready(records, split.path)
            if name == TRAIN and not self.task.needs_examples:  # examples need not be kept in memory while training
                split = ReadySplit(name, Path(records.files[0]))
            return PreparedSplit(split, records)
        if not self.task.needs_examples:
            records = open_records(ready, kind, self.task.ready_facts())
            self.task.check_ready(records, Path(ready))
            return PreparedSplit(ReadySplit(name, Path(ready)), records)
        split = self.task.split(name)
        return PreparedSplit(split, open_records(ready, kind, **split.facts()))

    def _cached_features(self, split: Any) -> RecordSet:
        """Rank 0 makes what is not there yet, the others wait."""
        facts, made = split.facts(), f"the features of the {split.name} split"
        self.ranks.must_agree(facts, f"the examples of the {split.name} split")
        if not self.ranks.writer:
            self.ranks.wait(made)
        records = cached_features(Path(self.config.feature_dir), self.task.kind, facts, lambda: self.make(split))
        if self.ranks.writer:
            self.ranks.wait(made)
        return records

    def make(self, split: Any) -> Features:
        """Features, with a warning where the vocabulary does not fit what is trained on."""
        features, tokenizer = split.features(), self.task.tokenizer
        if split.name == TRAIN:
            columns = (features.values[name].values for name in ("input_ids", "input_mask"))
            ids, mask = (column.reshape(-1, self.task.spec.texts_per_row).T for column in columns)  # text by text
            fit = VocabularyFit.of(ids[mask == 1], LetterTable(tokenizer))
            if warning := fit.warning(tokenizer.file.name):
                logger.warning(f"{warning} ({fit})")
        return features

    def baseline(self, name: str) -> dict[str, float]:
        """The baseline's metrics on a split with labels; none where it is not evaluated, or nothing is trained on."""
        if not self.config.do_train or name not in self.evaluated_splits:
            return {}
        return self.task.baseline(self.prepared(TRAIN), self.prepared(name))

    def dataset(self, name: str, weight_columns: tuple[str, ...] = (), seed: int = 0) -> FeatureDataset:
        """Batches of a split, packed or bucketed by length; evaluated splits have the same sizes, for one network."""
        config, training = self.config, name == TRAIN
        texts, task_info = self.task.spec.texts_per_row, self.task.task_info
        together = (TRAIN,) if training else dict.fromkeys((name, *self.evaluated_splits))
        records = {one: self.prepared(one).records for one in together}
        lengths = np.concatenate([each.lengths for each in records.values()])
        rows = rows_in_memory(self.architecture, int(lengths.max()) // texts, task_info.searched_starts)
        loading = Loading(
            config.train_batch_size if training else min(config.eval_batch_size, max(1, rows // texts)),
            seed,
            config.train_data_shuffle if training else config.eval_data_shuffle,
            evaluation=not training,
            rank=self.ranks.rank,
            rank_size=self.ranks.size,
        )
        if self.packed:
            loading = replace(loading, packing=self._packing(records.values(), loading))
        else:
            least, most = task_info.shortest_row * texts, config.max_seq_length * texts
            widths = {max(least, min(width, most)) for width in self._widths(lengths, training)}
            loading = replace(loading, bucket_boundaries=tuple(sorted(widths)))
        return FeatureDataset(records[name], loading, weight_columns, self.architecture.vocab_size)

    def _number_of_batches(self, rows: int, training: bool) -> float:
        """That one rank computes of so many rows, in all passes through them."""
        config = self.config
        if training and config.train_steps > 0:
            return config.train_steps * config.accumulation_steps
        size = config.train_batch_size if training else config.eval_batch_size
        return config.epoch_num * rows / size / self.ranks.size

    def _widths(self, lengths: np.ndarray, training: bool) -> tuple[int, ...]:
        """Widths of the batches of rows, (rows,) tokens."""
        config, step = self.config, WIDTH_STEP * self.task.spec.texts_per_row
        if config.length_buckets:
            return choose_boundaries(lengths, config.length_buckets, step)
        compilation = COMPILATION if on_cpu() else COMPILATION_ON_GPU
        return paying_boundaries(lengths, self._number_of_batches(len(lengths), training), step, compilation)

    def _packing(self, records: Collection[RecordSet], loading: Loading) -> Packing:
        """How batches of these splits are packed, in few sizes: those of many epochs, so that they suit every seed."""
        texts = self.task.spec.texts_per_row
        longest = max(self.task.task_info.shortest_row * texts, *(int(each.lengths.max()) for each in records))
        packing = Packing(texts, -(-longest // texts) if self.reads_tokens else 1)
        rows = sum(each.num_rows for each in records)
        looked_at = replace(loading, packing=packing, seed=self.config.seed)
        epochs = 1 if loading.evaluation else min(MOST_EPOCHS, max(1, ROWS_LOOKED_AT // rows))
        plans = [FeatureDataset(each, looked_at).plan(epoch) for each in records for epoch in range(epochs)]
        sizes = np.concatenate([plan.widths for plan in plans])
        if not len(sizes):
            return packing
        number = self._number_of_batches(rows, not loading.evaluation)
        return replace(packing, sizes=paying_boundaries(sizes, number, SIZE_STEP))

    def identity(self) -> dict[str, Any]:
        """Facts of the training and development examples, which a resumed run must find unchanged."""
        splits = (TRAIN, self.task.dev_splits[0]) if self.config.do_eval else (TRAIN,)
        facts = {name: self.prepared(name).records.facts for name in splits}
        return {f"{name} {key}": each[key] for name, each in facts.items() for key in each if key not in STORAGE_FACTS}

    def warn_of_other_examples(self, trained: Mapping[str, Any]) -> None:
        """Where max_eval_samples chooses other development examples than in training, whose identity is `trained`."""
        config, name = self.config, self.task.dev_splits[0]
        if not (config.do_eval and config.max_eval_samples):
            return
        here = self.prepared(name).records.facts.get("texts_sha256")
        if trained.get(f"{name} texts_sha256", here) != here:
            logger.warning(
                f"the development examples are others than those that the weights were chosen by: max_eval_samples is "
                f"{config.max_eval_samples}, and seed {config.seed} chooses them; in a training with several seeds the "
                "first one does"
            )
