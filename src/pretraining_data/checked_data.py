"""Pre-training examples and their manifest, checked against the model that reads them."""

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from model_utils.errors import ConfigError, DataError
from model_utils.flat_dicts import flatten
from src.albert_config import AlbertConfig
from src.data.batches import FeatureDataset, check_ids
from src.pretraining_data.tfrecord_batches import TFRecordDataset
from src.tokenization import FullTokenizer, build_tokenizer, open_tokenizer

logger = logging.getLogger(__name__)
SHARED_KEYS = ("vocab_sha256", "do_lower_case", "settings.random_next_sentence")  # what data of one model has in common
IDENTITY_KEYS = ("task", "max_seq_length", "max_predictions_per_seq", "vocab_sha256", "vocab_size", "rows", "files")


def vocabulary_entries(tokenizer: FullTokenizer | None) -> dict[str, Any]:
    """Return the manifest entries about the vocabulary of a tokenizer; an empty dict for None."""
    return {"vocab_sha256": tokenizer.sha256, "do_lower_case": tokenizer.do_lower_case} if tokenizer else {}


class PretrainingData:
    """Pre-training examples of one rank, with checks against the model that reads them.

    Args:
        sop_loss_weight: weight of every row's sentence-order loss.

    Raises:
        ConfigError: the rows fill no batch, or no update of global_batch_size.

    Attributes:
        manifest: entries of NAME.facts.json, or of TFRecords what their rows tell.
        token_counts: (V,) how often each token is a masked token or, with dynamic masks, a candidate for masking; None
            if the files do not have these counts.
    """

    def __init__(self, dataset: FeatureDataset | TFRecordDataset, data_dir: str, sop_loss_weight: float = 1.0) -> None:
        self.dataset = dataset
        self.data_dir = data_dir
        self.sop_loss_weight = sop_loss_weight
        self.manifest = dataset.manifest
        self.rows_at_once = dataset.rows_at_once
        self.batches_per_epoch = dataset.batches_per_epoch
        if self.batches_per_epoch < 1:
            needed = dataset.loading.rows_per_update or dataset.rows_at_once
            key = "global_batch_size" if dataset.loading.rows_per_update else "batch_size"
            raise ConfigError(f"{data_dir} has fewer rows than one batch of {needed}: lower {key}, or give more data")
        self.token_counts: np.ndarray | None = None
        if isinstance(dataset, FeatureDataset):
            self.token_counts = dataset.records.array("unigram")
        self._vocab_size: int | None = None

    @property
    def identity(self) -> dict[str, Any]:
        """Manifest entries that must match when a run resumes."""
        entries = flatten(self.manifest)
        shared = {key: entries[key] for key in SHARED_KEYS if key in entries}
        return shared | {key: self.manifest[key] for key in IDENTITY_KEYS if key in self.manifest}

    def tokenizer(self, vocab_file: str = "", spm_model_file: str = "") -> FullTokenizer | None:
        """Return the tokenizer that made the files; None if its file is neither given nor beside them."""
        lower_case = self.manifest.get("do_lower_case", True)
        if vocab_file or spm_model_file:
            tokenizer = build_tokenizer(vocab_file, spm_model_file, lower_case)
        else:
            folder = Path(self.data_dir)
            file = (folder if folder.is_dir() else folder.parent) / self.manifest.get("vocab_file", "")
            if not file.is_file():
                logger.info(f"{folder} has no vocabulary: weights are kept without, hidden tokens are not measured")
                return None
            tokenizer = open_tokenizer(file, lower_case)
        made_with = self.manifest.get("vocab_sha256", tokenizer.sha256)
        if tokenizer.sha256 != made_with:
            raise DataError(
                f"{self.data_dir} was not made with {tokenizer.file}; give its {self.manifest['vocab_file']}"
            )
        return tokenizer

    def check_vocabulary(
        self, other_manifest: dict[str, Any], owner: object, given: Mapping[str, Any] = MappingProxyType({})
    ) -> None:
        """Raise DataError if another manifest, of `owner`, has a different vocabulary or kind of sentence pairs.

        Args:
            given: vocabulary_entries of the files, in case their manifest has none, as that of TFRecords.
        """
        own_entries = flatten({**given, **self.manifest})
        other_entries = flatten(other_manifest)
        for key in SHARED_KEYS:
            value = own_entries.get(key)
            other_value = other_entries.get(key, value)
            if value is not None and value != other_value:
                raise DataError(
                    f"{self.data_dir} was made with {key} {value}, {owner} with {other_value}: make both with the same "
                    f"settings and vocabulary ({self.manifest.get('vocab_file', 'the one that was given')})"
                )

    def check_fits(self, architecture: AlbertConfig) -> None:
        """Raise DataError if the examples have more positions or segments than the model.

        Batches may then have the token ids that all models checked so far have.
        """
        length = self.manifest["max_seq_length"]
        positions = architecture.max_position_embeddings
        if length > positions and not architecture.use_relative_positions:
            raise DataError(f"{self.data_dir}: max_seq_length is {length}, max_position_embeddings only {positions}")
        if architecture.type_vocab_size < 2:
            raise DataError(f"{self.data_dir} holds pairs of texts: the model's type_vocab_size is 1, needed is 2")
        self._vocab_size = min(self._vocab_size or architecture.vocab_size, architecture.vocab_size)

    def width_shares(self) -> list[tuple[int, float]]:
        return self.dataset.width_shares()

    def batches(self, epoch: int, start: int = 0) -> Iterator[dict[str, np.ndarray]]:
        """Yield the batches of an epoch from index `start` on; raise DataError if a token id exceeds the vocabulary."""
        for batch in self.dataset.batches(epoch, start):
            if self._vocab_size:
                check_ids(batch, self._vocab_size, self.data_dir)
            weights = np.full(len(batch["input_ids"]), self.sop_loss_weight, np.float32)
            yield batch | {"sop_loss_weights": weights}
