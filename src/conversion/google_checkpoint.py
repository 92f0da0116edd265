"""Read google-research/albert's checkpoints: unpacked archives, prefixes, and TF-Hub modules. Needs TensorFlow."""

import logging
import os
from pathlib import Path

import numpy as np

from model_utils.errors import CheckpointError, DataError, shorten
from model_utils.optional import require
from src.albert_config import AlbertConfig, find_config_file
from src.checkpoints.checkpoint_files import Checkpoint
from src.conversion.checks import check_weights, match_names, resolve_task
from src.conversion.weight_names import MAPPING, from_google, google_names, is_training_state
from src.model_folder import ModelFolder
from src.tokenization import FullTokenizer, open_tokenizer

logger = logging.getLogger(__name__)
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "2", "TF_ENABLE_ONEDNN_OPTS": "0"}  # no messages about the processor at its start
HUB_SCOPE = "module/"  # prefix of every name if a TF-Hub module was saved again


def read_google(path: Path, task: str = "", labels: tuple[str, ...] = (), do_lower_case: bool = True) -> ModelFolder:
    """Return the model in a checkpoint; its other files lie beside it, in assets/ or one folder above.

    Args:
        path: a folder with one checkpoint, a TF-Hub module's folder, or a prefix such as DIR/model.ckpt-best.
        do_lower_case: whether its text is lower-cased, which google's files do not say.
    """
    prefix = find_prefix(path)
    config_file = _find_config(prefix)
    config = AlbertConfig.from_json(config_file)
    variables, skipped = read_variables(prefix)
    names = google_names(config.num_hidden_groups, config.inner_group_num)
    size = config.hidden_size
    identity = {f"{MAPPING}.weight": np.eye(size, dtype=np.float32), f"{MAPPING}.bias": np.zeros(size, np.float32)}
    is_absent = not any(names[name] in variables for name in identity)  # google's code leaves out one of equal sizes
    implied = identity if is_absent and config.embedding_size == size else {}
    matched = match_names({name: names[name] for name in names if name not in implied}, variables, skipped, prefix)
    values = implied | {name: from_google(variable, variables[variable]) for name, variable in matched.items()}
    check_weights(values, config, prefix)
    is_classifier = len(values.get("classifier.bias", ())) > 1  # of one output: regression or RACE
    stated = {"task": "classification"} if is_classifier else {}
    task_info = resolve_task(values, stated, task, labels, prefix, prefix)
    tokenizer = _find_vocabulary(config_file.parent, config.vocab_size, do_lower_case)
    return ModelFolder(config, tokenizer, task_info, checkpoint=Checkpoint(prefix, values, {}))


def find_prefix(path: Path) -> Path:
    """Return the prefix that the names of the checkpoint's files share; raise CheckpointError unless there is one."""
    if not path.is_dir() and (path.suffix in (".index", ".meta") or ".data-" in path.name):
        path = Path(str(path).rpartition(".")[0])
    if Path(f"{path}.index").is_file():
        return path
    if not path.is_dir():
        raise CheckpointError(f"{path} is no folder, and {path}.index does not exist: unpack an archive first")
    indices = sorted([*path.glob("*.index"), *path.glob("variables/*.index")])
    if len(indices) != 1:
        names = ", ".join(index.stem for index in indices) or "none"
        raise CheckpointError(f"{path} must hold one checkpoint (a file NAME.index), or name one; it holds {names}")
    return indices[0].with_suffix("")


def _find_config(prefix: Path) -> Path:
    for above in prefix.absolute().parents[:2]:
        for folder in (above, above / "assets"):
            candidates = sorted(folder.glob("albert_config*.json"))  # Chinese: albert_config_small_google.json
            if file := find_config_file(folder) or (candidates[0] if len(candidates) == 1 else None):
                logger.info(f"architecture: {file}")
                return file
    raise CheckpointError(f"no albert_config.json lies beside {prefix}, in assets/ or in the folder above")


def _find_vocabulary(folder: Path, vocab_size: int, do_lower_case: bool) -> FullTokenizer | None:
    """Return the tokenizer of the folder's SentencePiece model or, for Chinese, WordPiece vocabulary."""
    models = sorted(folder.glob("*.model"))
    files = models or sorted(folder.glob("vocab*.txt"))
    if len(files) > 1:
        raise CheckpointError(f"{folder} must hold one vocabulary, it holds {', '.join(file.name for file in files)}")
    if not files:
        return None
    case = "lower-cased text (do_lower_case), as all published ones" if do_lower_case else "text with capitals"
    logger.info(f"vocabulary: {files[0]}, for {case}")
    tokenizer = open_tokenizer(files[0], do_lower_case, is_sentencepiece=bool(models))
    if tokenizer.vocab_size != vocab_size:
        raise DataError(
            f"{files[0]} has {tokenizer.vocab_size} entries and vocab_size of the weights says {vocab_size}"
        )
    return tokenizer


def read_variables(prefix: Path) -> tuple[dict[str, np.ndarray], int]:
    """Return the model's variables, without TF-Hub's scope, and the number of others: optimizer and counters."""
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    tensorflow = require("tensorflow", "requirements-convert.txt", "google's checkpoint")
    try:
        reader = tensorflow.train.load_checkpoint(str(prefix))
        names = sorted(reader.get_variable_to_shape_map())
        model = [name for name in names if not is_training_state(name)]
        values = {name.removeprefix(HUB_SCOPE): reader.get_tensor(name) for name in model}
    except (tensorflow.errors.OpError, RuntimeError, ValueError, IndexError) as error:
        raise CheckpointError(f"{prefix} is damaged or incomplete: {shorten(str(error))}") from error
    for name, value in values.items():
        if value.dtype != np.float32:
            raise CheckpointError(f"{prefix}: {name} is {value.dtype}, only float32 is converted")
    return values, len(names) - len(model)
