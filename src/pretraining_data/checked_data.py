"""Pre-training examples and what they say about themselves, checked against the model that is to read them."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from model_utils.errors import DataError
from src.albert_config import AlbertConfig
from src.data.batches import FeatureDataset, check_ids
from src.pretraining_data.tfrecord_batches import TFRecordDataset
from src.tokenization import FullTokenizer, build_tokenizer, open_tokenizer

logger = logging.getLogger(__name__)
PAIRS = "random_next_sentence"  # of the settings, what a label of two segments says
IDENTITY = ("task", "max_seq_length", "max_predictions_per_seq", "vocab_sha256", "vocab_size", "rows", "files")


def vocabulary_facts(tokenizer: FullTokenizer | None) -> dict[str, Any]:
    """What the facts of files say of the vocabulary that made them, of a tokenizer; nothing of none."""
    return {"vocab_sha256": tokenizer.sha256, "do_lower_case": tokenizer.do_lower_case} if tokenizer else {}


class PretrainingData:
    """Pre-training examples of one rank, which can be checked against the model that is to read them.

    Args:
        sop_loss_weight: of every row's sentence-order loss.

    Attributes:
        facts: what made the files. batches_per_epoch: batches of this rank. rows_at_once: rows of the batches of all
            ranks together.
        token_counts: (V,) how often each token is the answer at a masked position or, where masks are drawn when the
            examples are read, may be; None where the files do not say.
    """

    def __init__(self, dataset: FeatureDataset | TFRecordDataset, data_dir: str, sop_loss_weight: float = 1.0) -> None:
        self.dataset, self.data_dir, self.sop_loss_weight = dataset, data_dir, sop_loss_weight
        self.facts, self.rows_at_once = dataset.facts, dataset.rows_at_once
        self.batches_per_epoch = dataset.batches_per_epoch
        counted = isinstance(dataset, FeatureDataset)
        self.token_counts: np.ndarray | None = dataset.records.array("unigram") if counted else None
        self._vocab_size: int | None = None

    @property
    def identity(self) -> dict[str, Any]:
        """The facts by which a run knows its data again."""
        return {key: self.facts[key] for key in IDENTITY if key in self.facts}

    def tokenizer(self, vocab_file: str = "", spm_model_file: str = "") -> FullTokenizer | None:
        """The tokenizer that made the files; None where its own file is neither given nor beside them."""
        lower = self.facts.get("do_lower_case", True)
        if vocab_file or spm_model_file:
            tokenizer = build_tokenizer(vocab_file, spm_model_file, lower)
        else:
            folder = Path(self.data_dir)
            file = (folder if folder.is_dir() else folder.parent) / self.facts.get("vocab_file", "")
            if not file.is_file():
                logger.info(
                    f"the vocabulary {self.facts.get('vocab_file', '')} does not lie beside the data and is not copied "
                    "beside the checkpoints; name it in spm_model_file or vocab_file to have it there"
                )
                return None
            tokenizer = open_tokenizer(file, lower)
        made_with = self.facts.get("vocab_sha256", tokenizer.sha256)
        if tokenizer.sha256 != made_with:
            raise DataError(
                f"the vocabulary {tokenizer.file} (sha256 {tokenizer.sha256}) is not the one that made "
                f"{self.data_dir}: {self.facts['vocab_file']} (sha256 {made_with})"
            )
        return tokenizer

    def check_vocabulary(self, others: dict[str, Any], owner: object) -> None:
        """Raise a DataError if what other facts say of the vocabulary or of pairs differs from what made the files."""
        for key, name in (("vocab_sha256", "sha256"), ("do_lower_case", "do_lower_case")):
            own = self.facts.get(key)
            other = others.get(key, own)
            if own is not None and own != other:
                raise DataError(
                    f"{self.data_dir} was made with the vocabulary {self.facts['vocab_file']} ({name} {own}), {owner} "
                    f"with another one ({name} {other}): make both with the same"
                )
        pairs, others_pairs = (facts.get("settings", {}).get(PAIRS) for facts in (self.facts, others))
        if None not in (pairs, others_pairs) and pairs != others_pairs:
            raise DataError(
                f"{self.data_dir} was made with {PAIRS} {pairs}, {owner} with {others_pairs}: its pairs mean something "
                "else, make both with the same"
            )

    def check_fits(self, architecture: AlbertConfig) -> None:
        """Raise a DataError if the examples are longer than the model's positions, or have more segments."""
        length, positions = self.facts["max_seq_length"], architecture.max_position_embeddings
        if length > positions and not architecture.use_relative_positions:
            raise DataError(
                f"{self.data_dir}: the examples have max_seq_length {length}, the model has max_position_embeddings "
                f"{positions}"
            )
        if architecture.type_vocab_size < 2:
            raise DataError(
                f"{self.data_dir}: the examples are pairs of texts, whose second is segment 1, but the model has "
                "type_vocab_size 1: needed is 2"
            )
        self._vocab_size = architecture.vocab_size

    def width_shares(self) -> list[tuple[int, float]]:
        return self.dataset.width_shares()

    def batches(self, epoch: int, start: int = 0) -> Iterator[dict[str, np.ndarray]]:
        """The batches of an epoch from number `start` on; a DataError where one has an id that the model lacks."""
        for batch in self.dataset.batches(epoch, start):
            if self._vocab_size:
                check_ids(batch, self._vocab_size, self.data_dir)
            weights = np.full(len(batch["input_ids"]), self.sop_loss_weight, np.float32)
            yield batch | {"sop_loss_weights": weights}
