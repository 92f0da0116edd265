"""Read and write a model as this project keeps it: albert-<step>.ckpt, albert_config.json, vocabulary, task.json."""

import logging
from dataclasses import replace
from pathlib import Path

import numpy as np

from src.albert_config import AlbertConfig
from src.albert_model import initialise_weights
from src.conversion.checks import account, check_shapes, settle_task, weight_shapes
from src.layers import Dense
from src.model_folder import TASK_FILE, ModelFolder

logger = logging.getLogger(__name__)
POOLER = "albert.pooler."


def initial_pooler(architecture: AlbertConfig) -> dict[str, np.ndarray]:
    """The pooler as a new model has it, always the same one: for sources without a pooler, which a checkpoint needs."""
    pooler = Dense(architecture.hidden_size, architecture.hidden_size)
    initialise_weights(pooler, architecture.initializer_range, seed=0)
    return {POOLER + weight.name: weight.asnumpy() for weight in pooler.trainable_params()}


def has_initial_pooler(model: ModelFolder) -> bool:
    """Whether the pooler is the one that write_own made up."""
    pooler = initial_pooler(model.architecture)
    return all(np.array_equal(model.weights.get(name), value) for name, value in pooler.items())


def write_own(model: ModelFolder, path: Path) -> None:
    """Make a folder that load_checkpoint_path and the tasks' load_..._checkpoint_path keys take."""
    if not any(name.startswith(POOLER) for name in model.weights):
        logger.info(
            "the source has no pooler: it gets initial weights; nothing but a task that trains it should use it"
        )
        model = model.with_weights(model.weights | initial_pooler(model.architecture))
    model.save(path)
    if model.tokenizer is None:
        logger.info("no vocabulary: name it in spm_model_file or vocab_file when the model is used")


def read_own(path: Path, task: str = "", labels: tuple[str, ...] = ()) -> ModelFolder:
    """The model in a checkpoint, or in a folder's best or newest one, all of its weights accounted for."""
    model = ModelFolder.load(path)
    origin, names = model.checkpoint.path, {name: name for name in weight_shapes(model.architecture)}
    account(names, model.weights, 0, origin)
    check_shapes(model.weights, model.architecture, origin)
    stated = model.task_info.stated() if model.task_info else {}
    file = origin.with_name(TASK_FILE)
    return replace(model, task_info=settle_task(model.weights, stated, task, labels, origin, file))
