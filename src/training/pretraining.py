"""What pre-training and its evaluation are built of: data checked against the model, first weights, evaluation."""

import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from model_utils.errors import ConfigError, DataError
from model_utils.facts import flatten
from src.albert_config import PRESETS, RUN_KEYS, AlbertConfig, find_config_file
from src.albert_for_pre_training import AlbertForPreTraining, initialise_output_bias
from src.checkpoint_files import Checkpoint, find_checkpoint, load_backbone
from src.data.batches import FeatureDataset, TFRecordDataset
from src.tokenization import FullTokenizer, build_tokenizer
from src.training.evaluation import Evaluation
from src.training.pretraining_evaluation import (
    HeldOut,
    chance,
    evaluate,
    merge_baselines,
    unigram_baselines,
)
from src.training.ranks import Ranks
from src.training.training_config import PretrainConfig, PretrainEvalConfig

logger = logging.getLogger(__name__)
Say = Callable[[str], object]
IDENTITY = ("task", "max_seq_length", "max_predictions_per_seq", "vocab_sha256", "vocab_size", "rows", "files")


class PretrainingData:
    """Pre-training examples of one rank, which can be checked against the model that is to read them.

    Args:
        dataset: from dataset.create_pretrain_dataset. data_dir: where it lies, for errors.

    Attributes:
        facts: what made the files. batches_per_epoch: batches of this rank.
        token_counts: (V,) how often each token is the answer at a masked position; None where the files do not say.
    """

    def __init__(self, dataset: FeatureDataset | TFRecordDataset, data_dir: str) -> None:
        self.dataset, self.data_dir = dataset, data_dir
        self.facts = self.dataset.facts
        self.batches_per_epoch = self.dataset.batches_per_epoch
        self.token_counts: np.ndarray | None = None
        if isinstance(self.dataset, FeatureDataset):
            self.token_counts = self.dataset.records.array("unigram")
        self._vocab_size: int | None = None

    @property
    def identity(self) -> dict[str, Any]:
        """The facts by which a run knows its data again."""
        return {key: self.facts[key] for key in IDENTITY if key in self.facts}

    def check_vocabulary(self, others: dict[str, Any], owner: object) -> None:
        """Compare the vocabulary that made the files with that of other facts, if both are known.

        Raises:
            DataError: they differ.
        """
        own, other = self.facts.get("vocab_sha256"), others.get("vocab_sha256")
        if own and other and own != other:
            raise DataError(
                f"{self.data_dir} was made with the vocabulary {self.facts['vocab_file']} (sha256 {own}), {owner} with "
                f"another one (sha256 {other}): make both with the same"
            )

    def check_fits(self, architecture: AlbertConfig) -> None:
        """Compare lengths and vocabulary with the model's; ids of TFRecords are looked at when they are read.

        Raises:
            DataError: the examples are longer than the model's positions, or have more segments.
        """
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
        """As FeatureDataset.width_shares."""
        return self.dataset.width_shares()

    def batches(self, epoch: int, start: int = 0) -> Iterator[dict[str, np.ndarray]]:
        """The batches of an epoch from number `start` on.

        Raises:
            DataError: a TFRecord has an id outside the model's vocabulary.
        """
        for batch in self.dataset.batches(epoch, start):
            if isinstance(self.dataset, TFRecordDataset) and self._vocab_size:
                largest = max(int(batch["input_ids"].max()), int(batch["masked_lm_ids"].max()))
                if largest >= self._vocab_size:
                    raise DataError(
                        f"{self.data_dir} has the token id {largest}, but the model's vocabulary {self._vocab_size} "
                        "tokens: these files were made with another vocabulary"
                    )
            yield batch


def build_architecture(
    config: PretrainConfig | PretrainEvalConfig,
    data: PretrainingData,
    tokenizer: FullTokenizer | None,
    compute_type: str,
    weights: str,
    say: Say,
) -> AlbertConfig:
    """The model's sizes: json beside the weights, or preset; overrides; vocabulary size from the data. Checked.

    Args:
        tokenizer: of the data, if its file is at hand.
        weights: the checkpoint or run's folder that will be loaded, or "".

    Raises:
        ConfigError, DataError: the sizes contradict each other or the data.
    """
    architecture = config.albert_config(_vocab_size(config, data, tokenizer, weights), compute_type, weights)
    data.check_fits(architecture)
    file = find_config_file(weights) if weights else None
    preset, found = PRESETS[config.albert_network].to_dict(), architecture.to_dict()
    keys = [key for key in found if found[key] != preset[key] and key not in RUN_KEYS | {"vocab_size"}]
    if file and keys:
        differing = ", ".join(f"{key} {found[key]} instead of {preset[key]}" for key in keys)
        say(f"{file} wins over the preset {config.albert_network}: {differing}")
    return architecture


def _vocab_size(config: Any, data: PretrainingData, tokenizer: FullTokenizer | None, weights: str) -> int:
    file = find_config_file(weights) if weights else None
    if "vocab_size" in data.facts:
        return data.facts["vocab_size"]
    if tokenizer:
        return tokenizer.vocab_size
    if config.albert_cfg.vocab_size:
        return config.albert_cfg.vocab_size
    if file:
        return AlbertConfig.from_json(file).vocab_size
    raise ConfigError(
        f"{data.data_dir}: google's TFRecord files do not say which vocabulary made them: name it in spm_model_file or "
        "vocab_file, or give its size as albert_cfg.vocab_size"
    )


def tokenizer_of_data(
    data_dir: str | Path, facts: dict[str, Any], vocab_file: str = "", spm_model_file: str = ""
) -> FullTokenizer | None:
    """The tokenizer that feature files were made with, or None where its file is not at hand.

    Args:
        data_dir: where the file lies if it is not given.
        facts: of the feature files.

    Raises:
        DataError: the vocabulary is not the one that made the files, or is damaged.
    """
    if not vocab_file and not spm_model_file:
        data_dir = Path(data_dir)
        beside = (data_dir if data_dir.is_dir() else data_dir.parent) / facts.get("vocab_file", "")
        if not beside.is_file():
            logger.info(
                f"the vocabulary {facts.get('vocab_file', '')} does not lie beside the data and is not copied beside "
                "the checkpoints; name it in spm_model_file or vocab_file to have it there"
            )
            return None
        vocab_file, spm_model_file = ("", str(beside)) if beside.suffix == ".model" else (str(beside), "")
    tokenizer = build_tokenizer(vocab_file, spm_model_file, facts.get("do_lower_case", True))
    made_with = facts.get("vocab_sha256", tokenizer.sha256)
    if tokenizer.sha256 != made_with:
        raise DataError(
            f"the vocabulary {tokenizer.file} (sha256 {tokenizer.sha256}) is not the one that made {data_dir}: "
            f"{facts['vocab_file']} (sha256 {made_with})"
        )
    return tokenizer


def initialise(network: AlbertForPreTraining, data: PretrainingData, weights: str) -> None:
    """First weights of a run: those of a checkpoint, else an output bias of the data's token frequencies.

    Raises:
        CheckpointError: the backbone does not load.
        DataError: the checkpoint was trained with another vocabulary.
    """
    if weights:
        contents = find_checkpoint(Path(weights))
        data.check_vocabulary(trained_on(contents), contents.path)
        load_backbone(network, contents)
    elif data.token_counts is not None:
        initialise_output_bias(network, data.token_counts)


def trained_on(contents: Checkpoint) -> dict[str, Any]:
    """Facts of the data that a checkpoint of this project was trained on; empty for others."""
    return contents.loop_state.get("identity", {})


def held_out_evaluation(
    network: AlbertForPreTraining,
    architecture: AlbertConfig,
    held_out: PretrainingData,
    data: PretrainingData,
    config: PretrainConfig,
    ranks: Ranks,
) -> Evaluation:
    """Evaluation of a network in training on held-out data.

    Every rank measures its share; whatever their number, the same examples are measured.

    Args:
        data: what the network is trained on.

    Raises:
        UserError: the ranks have other held-out data.
        DataError: the held-out data does not fit the model or was made with another vocabulary than the training data.
    """
    ranks.must_agree(flatten(held_out.identity), "what they evaluate on")
    held_out.check_vocabulary(data.facts, data.data_dir)
    held_out.check_fits(architecture)

    def measure(network: AlbertForPreTraining, before_batch: Callable[[], object]) -> HeldOut:
        batches = share_of_rank(held_out, config.eval_batches, network.weight_columns, ranks)
        return evaluate(network, batches, architecture.vocab_size, ranks, before_batch)

    return Evaluation(network, AlbertForPreTraining(architecture), measure, config.eval_steps)


def share_of_rank(
    held_out: PretrainingData, most: int, weight_columns: Sequence[str], ranks: Ranks
) -> Iterator[dict[str, np.ndarray]]:
    """This rank's batches, as many as every other rank has; of those beyond `most` (0: all) all weights are 0."""
    for number, batch in enumerate(held_out.batches(0)):
        first = number * ranks.size  # of the batches that all ranks measure at once
        if first >= most > 0:
            return
        real = not most or first + ranks.rank < most
        yield batch | {name: batch[name] * np.float32(real) for name in weight_columns}


def reference_lines(
    vocab_size: int, data: PretrainingData, held_out: PretrainingData | None
) -> dict[str, dict[str, float]]:
    """Reference lines of a run's log: chance, and the unigram baseline on the held-out data or, without it, its own."""
    counts = held_out.token_counts if held_out else data.token_counts
    if counts is None or data.token_counts is None:
        return chance(vocab_size)
    lines = unigram_baselines(counts, data.token_counts)
    unigram = {metric: {"unigram": values["unigram"]} for metric, values in lines.items()}
    return merge_baselines(chance(vocab_size), unigram)
