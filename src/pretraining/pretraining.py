"""What pre-training and its evaluation are built of: data checked against the model, first weights, evaluation."""

import logging
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from model_utils.errors import ConfigError, DataError
from model_utils.facts import flatten
from model_utils.option_values import show
from src.albert_config import PRESETS, RUN_KEYS, AlbertConfig, find_config_file
from src.albert_for_pre_training import AlbertForPreTraining, PreTrainingEvaluation, initialise_output_bias
from src.checkpoints.checkpoint_files import Checkpoint, find_checkpoint, folder_of, load_backbone
from src.model_folder import TOKENIZER_FILE, load_tokenizer
from src.pretraining.pretraining_evaluation import AnswerCounts, HeldOut, baselines, count_answers, evaluate
from src.pretraining_data.checked_data import PretrainingData, vocabulary_facts
from src.tokenization import FullTokenizer
from src.training.evaluation import Evaluation
from src.training.ranks import Ranks
from src.training.run_log import OWN_UNIGRAM, Baselines
from src.training.training_config import PretrainConfig, PretrainEvalConfig

logger = logging.getLogger(__name__)
FILES = re.compile(r"files( of phase \d+)?$")  # among the facts of a run's data: pretraining_phases.identity_of
WEIGHT_COLUMNS = AlbertForPreTraining.weight_columns


def build_architecture(
    config: PretrainConfig | PretrainEvalConfig,
    data: PretrainingData,
    tokenizer: FullTokenizer | None,
    compute_type: str,
    weights: str,
) -> AlbertConfig:
    """The model's sizes: json beside the weights, or preset; overrides; vocabulary size from the data.

    Args:
        tokenizer: of the data, if its file is at hand.
        weights: the checkpoint or run's folder that will be loaded, or "".

    Raises:
        ConfigError, DataError: the sizes contradict each other or the data, or this has another vocabulary.
    """
    beside = tokenizer_beside(Path(weights), data, tokenizer) if weights else None
    file = find_config_file(weights) if weights else None
    architecture = config.albert_config(_vocab_size(config, data, tokenizer or beside, file), compute_type, weights)
    data.check_fits(architecture)
    preset, found = PRESETS[config.albert_network].to_dict(), AlbertConfig.from_json(file).to_dict() if file else {}
    keys = [key for key in found if found[key] != preset[key] and key not in RUN_KEYS | {"vocab_size"}]
    if keys:
        differing = ", ".join(f"{key} {found[key]} instead of {preset[key]}" for key in keys)
        logger.info(f"{file} wins over the preset {config.albert_network}: {differing}")
    return architecture


def tokenizer_beside(weights: Path, data: PretrainingData, given: FullTokenizer | None = None) -> FullTokenizer | None:
    """The tokenizer of weights, if it lies beside them; a DataError where the data was made with another one.

    Args:
        given: the data's tokenizer, where its files may not say which one it was.
    """
    if not (folder_of(weights) / TOKENIZER_FILE).exists():
        return None
    tokenizer = load_tokenizer(weights)
    made_with = vocabulary_facts(tokenizer)
    known = made_with | vocabulary_facts(given) | data.facts
    theirs = {key: known[key] for key in made_with}
    if theirs != made_with:
        kind = "spm_model_file" if tokenizer.is_sentencepiece else "vocab_file"
        raise DataError(
            f"{data.data_dir} was made with another vocabulary than the weights in {folder_of(weights)}: "
            f"{data.facts.get('vocab_file') or given.file} (sha256 {theirs['vocab_sha256']}), do_lower_case "
            f"{show(theirs['do_lower_case'])}; make the data with that of the weights, all else alike: python -m "
            f"src.create_pretraining_data --{kind} {tokenizer.file} --do_lower_case {show(tokenizer.do_lower_case)}"
        )
    return tokenizer


def _vocab_size(config: Any, data: PretrainingData, tokenizer: FullTokenizer | None, file: Path | None) -> int:
    if "vocab_size" in data.facts:
        return data.facts["vocab_size"]
    if tokenizer:
        return tokenizer.vocab_size
    if config.albert_cfg.vocab_size:
        return config.albert_cfg.vocab_size
    if file:
        return AlbertConfig.from_json(file).vocab_size
    name_it = "name it in spm_model_file or vocab_file, or " if hasattr(config, "vocab_file") else ""
    raise ConfigError(
        f"{data.data_dir}: google's TFRecord files do not say which vocabulary made them: {name_it}give its size as "
        "albert_cfg.vocab_size"
    )


def initialise(network: AlbertForPreTraining, data: PretrainingData, weights: str) -> None:
    """First weights of a run: an output bias of the data's token frequencies, and what a checkpoint has."""
    if data.token_counts is not None:
        initialise_output_bias(network, data.token_counts)
    if weights:
        contents = find_checkpoint(Path(weights))
        data.check_vocabulary(trained_on(contents), contents.path)
        load_backbone(network, contents)


def trained_on(contents: Checkpoint) -> dict[str, Any]:
    """Facts of the data that a checkpoint of this project was trained on; empty for others."""
    return contents.loop_state.get("identity", {})


def is_trained_on(contents: Checkpoint, data: PretrainingData) -> bool:
    """Whether a checkpoint of this project was trained on these very files, in any of its phases."""
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
    """Evaluation on held-out data of a network that is trained on `data`; the same examples on any number of ranks.

    Args:
        tokenizer: of both, if its file is at hand.

    Raises:
        UserError: the ranks have other held-out data.
        DataError: the held-out data does not fit the model or was made with another vocabulary than the training data.
    """
    ranks.must_agree(flatten(held_out.identity), "what they evaluate on")
    held_out.check_vocabulary(vocabulary_facts(tokenizer) | data.facts, data.data_dir)
    held_out.check_fits(architecture)

    def evaluate_held_out(network: PreTrainingEvaluation, before_batch: Callable[[], object]) -> HeldOut:
        batches = share_of_rank(held_out, config.eval_batches, ranks)
        return evaluate(network, batches, architecture.vocab_size, tokenizer, ranks, before_batch)

    return Evaluation(network, PreTrainingEvaluation(architecture), evaluate_held_out, config.eval_steps)


def share_of_rank(held_out: PretrainingData, most: int, ranks: Ranks) -> Iterator[dict[str, np.ndarray]]:
    """This rank's batches, as many as every other rank has; of those beyond `most` (0: all) all weights are 0."""
    for number, batch in enumerate(held_out.batches(0)):
        first = number * ranks.size  # of the batches that all ranks evaluate at once
        if first >= most > 0:
            return
        real = not most or first + ranks.rank < most
        yield batch | {name: batch[name] * np.float32(real) for name in WEIGHT_COLUMNS}


def reference_lines(
    architecture: AlbertConfig,
    data: PretrainingData,
    held_out: PretrainingData | None,
    tokenizer: FullTokenizer | None,
    config: PretrainConfig,
    ranks: Ranks,
) -> Baselines:
    """Reference lines of a run's log: chance, and the unigram baseline on what is evaluated of the held-out data or,
    without it, on the training data itself.
    """
    size, counts = architecture.vocab_size, None
    if held_out and data.token_counts is not None:
        counts = count_answers(share_of_rank(held_out, config.eval_batches, ranks), size, tokenizer, ranks)
    elif data.token_counts is not None:
        counts = AnswerCounts(data.token_counts, np.zeros(size))
    lines = baselines(counts, data.token_counts, size, tokenizer)
    return {
        metric: {name: height for name, height in heights.items() if name != OWN_UNIGRAM}
        for metric, heights in lines.items()
    }
