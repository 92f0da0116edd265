"""Building blocks of pre-training and its evaluation: architecture, initial weights, held-out evaluation."""

import logging
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from model_utils.device import Device
from model_utils.errors import ConfigError, DataError
from model_utils.flat_dicts import flatten
from model_utils.option_values import show
from src.albert_config import PRESETS, RUN_KEYS, AlbertConfig, find_config_file
from src.albert_for_pre_training import AlbertForPreTraining, PreTrainingEvaluation, initialise_output_bias
from src.checkpoints.checkpoint_files import Checkpoint, find_checkpoint, folder_of, load_backbone
from src.model_folder import TOKENIZER_FILE, load_tokenizer
from src.pretraining.pretraining_evaluation import AnswerCounts, HeldOut, baselines, count_answers, evaluate
from src.pretraining_data.checked_data import PretrainingData, vocabulary_entries
from src.pretraining_data.diagnostics import OWN_UNIGRAM, UNIGRAM, LearningCheck, loss_without_context
from src.tokenization import FullTokenizer
from src.training.evaluation import Evaluation
from src.training.pretrain_config import PretrainConfig, PretrainEvalConfig
from src.training.ranks import Ranks
from src.training.run_log import EVAL_PREFIX, Baselines

logger = logging.getLogger(__name__)
FILES = re.compile(r"files( of phase \d+)?$")  # keys of pretraining_phases.identity_of


def build_architecture(
    config: PretrainConfig | PretrainEvalConfig,
    data: PretrainingData,
    tokenizer: FullTokenizer | None,
    device: Device,
    weights: str,
) -> AlbertConfig:
    """Return the architecture: of the json beside the weights or the preset, with overrides and the data's vocab_size.

    Args:
        tokenizer: of the data, if its file is at hand.
        weights: checkpoint or run's folder that will be loaded, or "".

    Raises:
        ConfigError, DataError: the sizes contradict each other or the data, or the data has another vocabulary.
    """
    stored_tokenizer = tokenizer_beside(Path(weights), data, tokenizer) if weights else None
    file = find_config_file(weights) if weights else None
    vocab_size = _vocab_size(config, data, tokenizer or stored_tokenizer, file)
    architecture = config.albert_config(vocab_size, device.compute_type, weights, device.backend)
    data.check_fits(architecture)
    preset = PRESETS[config.albert_network].to_dict()
    stored = AlbertConfig.from_json(file).to_dict() if file else {}
    if keys := [key for key in stored if stored[key] != preset[key] and key not in RUN_KEYS | {"vocab_size"}]:
        logger.info(f"{file} overrides the preset {config.albert_network}: {', '.join(keys)}")
    return architecture


def tokenizer_beside(weights: Path, data: PretrainingData, given: FullTokenizer | None = None) -> FullTokenizer | None:
    """Return the tokenizer in the weights' folder, or None; raise DataError if the data was made with another one.

    given: the data's tokenizer, in case its manifest does not name one.
    """
    if not (folder_of(weights) / TOKENIZER_FILE).exists():
        return None
    tokenizer = load_tokenizer(weights)
    weights_entries = vocabulary_entries(tokenizer)
    merged = weights_entries | vocabulary_entries(given) | data.manifest
    data_entries = {key: merged[key] for key in weights_entries}
    if data_entries != weights_entries:
        option = "spm_model_file" if tokenizer.is_sentencepiece else "vocab_file"
        flags = f"--{option} {tokenizer.file} --do_lower_case {show(tokenizer.do_lower_case)}"
        raise DataError(
            f"{data.data_dir} was made with another vocabulary than the weights in {folder_of(weights)}: make it "
            f"again, python -m src.create_pretraining_data {flags}"
        )
    return tokenizer


def _vocab_size(config: Any, data: PretrainingData, tokenizer: FullTokenizer | None, file: Path | None) -> int:
    if "vocab_size" in data.manifest:
        return data.manifest["vocab_size"]
    if tokenizer:
        return tokenizer.vocab_size
    if config.albert_cfg.vocab_size:
        return config.albert_cfg.vocab_size
    if file:
        return AlbertConfig.from_json(file).vocab_size
    hint = f"set it, because google's TFRecord files in {data.data_dir} do not name their vocabulary"
    raise ConfigError(key="albert_cfg.vocab_size", value=0, hint=hint)


def initialise(network: AlbertForPreTraining, data: PretrainingData, weights: str) -> None:
    """Set a run's initial weights: the output bias from the data's token frequencies, then those of a checkpoint."""
    if data.token_counts is not None:
        initialise_output_bias(network, data.token_counts)
    if weights:
        contents = find_checkpoint(Path(weights))
        data.check_vocabulary(trained_on(contents), contents.path)
        load_backbone(network, contents)


def trained_on(contents: Checkpoint) -> dict[str, Any]:
    """Return the identity of the data that a checkpoint of this project was trained on; {} for other checkpoints."""
    return contents.loop_state.get("identity", {})


def is_trained_on(contents: Checkpoint, data: PretrainingData) -> bool:
    """Return True if a checkpoint of this project was trained on exactly these files, in any phase."""
    files = data.identity.get("files")
    return files is not None and files in [value for key, value in trained_on(contents).items() if FILES.match(key)]


def held_out_evaluation(
    network: AlbertForPreTraining,
    architecture: AlbertConfig,
    held_out: PretrainingData,
    data: PretrainingData,
    tokenizer: FullTokenizer | None,
    config: PretrainConfig,
    ranks: Ranks,
) -> Evaluation:
    """Return the held-out evaluation of a network that is trained on `data`; same examples on any number of ranks.

    Args:
        tokenizer: of both, if its file is at hand.

    Raises:
        UserError: the ranks have different held-out data, or it does not fit the model or the training data.
    """
    ranks.must_agree(flatten(held_out.identity), "what they evaluate on")
    held_out.check_vocabulary(vocabulary_entries(tokenizer) | data.manifest, data.data_dir)
    held_out.check_fits(architecture)
    if held_out.identity.get("files", "") == data.identity.get("files"):
        logger.warning(f"{config.eval_data_dir}: the run trains on these examples, so they are not held out")

    def evaluate_held_out(network: PreTrainingEvaluation, before_batch: Callable[[], object]) -> HeldOut:
        batches = share_of_rank(held_out, config.eval_batches, ranks)
        return evaluate(network, batches, architecture.vocab_size, tokenizer, ranks, before_batch)

    return Evaluation(network, PreTrainingEvaluation(architecture), evaluate_held_out, config.eval_steps)


def share_of_rank(held_out: PretrainingData, max_batches: int, ranks: Ranks) -> Iterator[dict[str, np.ndarray]]:
    """Yield this rank's batches, as many as on other ranks; those beyond max_batches (0: all) have weights of 0."""
    for number, batch in enumerate(held_out.batches(0)):
        first_index = number * ranks.size  # that of rank 0
        if max_batches and first_index >= max_batches:
            return
        is_real = not max_batches or first_index + ranks.rank < max_batches
        yield batch | {name: batch[name] * np.float32(is_real) for name in AlbertForPreTraining.weight_columns}


def reference_lines(
    architecture: AlbertConfig,
    data: PretrainingData,
    held_out: PretrainingData | None,
    tokenizer: FullTokenizer | None,
    config: PretrainConfig,
    ranks: Ranks,
) -> Baselines:
    """Return the baselines of a run's log: chance, and the unigrams of the held-out data, else of the training data."""
    size = architecture.vocab_size
    counts = None
    if held_out and data.token_counts is not None:
        counts = count_answers(share_of_rank(held_out, config.eval_batches, ranks), size, tokenizer, ranks)
    elif data.token_counts is not None:
        counts = AnswerCounts(data.token_counts, np.zeros(size))
    lines = baselines(counts, data.token_counts, size, tokenizer)
    return {
        metric: {name: value for name, value in values.items() if name != OWN_UNIGRAM}
        for metric, values in lines.items()
    }


def learning_check(config: PretrainConfig, lines: Baselines, data: PretrainingData) -> LearningCheck | None:
    """Return the check whether a run on this data learns; None, which is logged, if there are no token counts."""
    if data.token_counts is None:
        logger.info("whether the run learns is not checked: its examples have no token counts")
        return None
    name = "hidden_mlm_loss" if config.eval_steps and "hidden_mlm_loss" in lines else "mlm_loss"
    unigram = lines[name][UNIGRAM]
    permuted = data.manifest.get("settings", {}).get("do_permutation")  # visible tokens are then rarely labels
    can_copy = name == "mlm_loss" and not permuted
    context_free = loss_without_context(unigram, data.token_counts) if can_copy else unigram
    metric = EVAL_PREFIX + name if config.eval_steps else name
    return LearningCheck(metric, unigram, context_free)
