"""Read and write a model as this project keeps it: albert-<step>.ckpt, albert_config.json, vocabulary, task.json."""

import logging
from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn

from model_utils.errors import CheckpointError
from src.albert_config import AlbertConfig, find_config_file
from src.albert_model import initialise_weights
from src.checkpoint_files import ARCHITECTURE, find_checkpoint, save_checkpoint
from src.conversion.portable_model import PortableModel, Vocabulary, account, check_shapes, settle_task, weight_shapes
from src.layers import Dense
from src.saved_tokenizer import TOKENIZER_FILE, load_tokenizer, save_tokenizer
from src.task_file import read_task, write_task

logger = logging.getLogger(__name__)
POOLER = "albert.pooler."


class _Weights(nn.Cell):
    """Parameters without a network, for what saves the parameters of one."""

    def __init__(self, values: dict[str, np.ndarray]) -> None:
        super().__init__(auto_prefix=False)
        self.weights = ms.ParameterTuple([Parameter(Tensor(value), name=name) for name, value in values.items()])


def initial_pooler(config: AlbertConfig) -> dict[str, np.ndarray]:
    """The pooler as a new model has it, always the same one: for sources without a pooler, which a checkpoint needs."""
    pooler = Dense(config.hidden_size, config.hidden_size)
    initialise_weights(pooler, config.initializer_range, seed=0)
    return {POOLER + weight.name: weight.asnumpy() for weight in pooler.trainable_params()}


def has_initial_pooler(model: PortableModel) -> bool:
    """Whether the pooler is the one that write_own made up."""
    return all(np.array_equal(model.values.get(name), value) for name, value in initial_pooler(model.config).items())


def write_own(model: PortableModel, folder: Path) -> None:
    """Write a folder that load_checkpoint_path and the tasks' load_..._checkpoint_path keys take.

    Raises:
        CheckpointError: the checkpoint cannot be written.
        DataError: the vocabulary does not fit the model.
    """
    values = model.values
    if not any(name.startswith(POOLER) for name in values):
        logger.info(
            "the source has no pooler: it gets initial weights; nothing but a task that trains it should use it"
        )
        values = values | initial_pooler(model.config)
    save_checkpoint(_Weights(values), folder, 0, {ARCHITECTURE: model.config.facts()})
    model.config.to_json(folder / "albert_config.json")
    if model.task is not None:
        write_task(folder, model.task)
    if model.vocabulary is None:
        logger.info("no vocabulary: name it in spm_model_file or vocab_file when the model is used")
        return
    save_tokenizer(folder, model.vocabulary.write(folder / model.vocabulary.name, model.config.vocab_size))


def read_own(path: Path, task: str = "", labels: tuple[str, ...] = ()) -> PortableModel:
    """The model in a checkpoint, or in a folder's best or newest one.

    Args:
        task, labels: what a fine-tuned head is for, where no task.json says it.

    Raises:
        CheckpointError: a file is missing, damaged, or does not fit the others.
        DataError: task.json or the vocabulary is damaged.
        ConfigError: task or labels do not fit.
    """
    contents = find_checkpoint(path)
    config_file = find_config_file(path)
    if config_file is None:
        raise CheckpointError(
            f"no albert_config.json lies beside {contents.path}: it says what the weights are, and no preset is taken "
            "for it"
        )
    config = AlbertConfig.from_json(config_file)
    names = {name: name for name in weight_shapes(config)}
    values = {name: contents.values[name] for name in account(names, contents.values, 0, contents.path)}
    check_shapes(values, config, contents.path)
    settled = settle_task(values, read_task(path), task, labels, contents.path)
    return PortableModel(config, values, settled, _read_vocabulary(path))


def _read_vocabulary(path: Path) -> Vocabulary | None:
    folder = path if path.is_dir() else path.parent
    if not (folder / TOKENIZER_FILE).is_file():
        return None
    tokenizer = load_tokenizer(folder)
    content, name = tokenizer.file.read_bytes(), tokenizer.file.name
    return Vocabulary(content, name, tokenizer.is_sentencepiece, tokenizer.do_lower_case)
