"""Reader and writer of this project's model folders: albert-<step>.ckpt, albert_config.json, vocabulary, task.json."""

import logging
from dataclasses import replace
from pathlib import Path

from src.albert_model import POOLER, initial_pooler
from src.conversion.checks import check_weights, crf_shapes, match_names, resolve_task, weight_shapes
from src.model_folder import TASK_FILE, ModelFolder

logger = logging.getLogger(__name__)


def write_own(model: ModelFolder, path: Path) -> None:
    """Write a folder for load_checkpoint_path and the tasks' load_..._checkpoint_path keys."""
    if not any(name.startswith(POOLER) for name in model.weights):
        logger.info("the source has no pooler: it gets initial weights, which are useful only to a task that trains it")
        dtype = next(iter(model.weights.values())).dtype
        pooler = {name: value.astype(dtype) for name, value in initial_pooler(model.architecture).items()}
        model = model.with_weights(model.weights | pooler)
    model.save(path)
    if model.tokenizer is None:
        logger.info("no vocabulary: name it in spm_model_file or vocab_file when the model is used")


def read_own(path: Path, task: str = "", labels: tuple[str, ...] = ()) -> ModelFolder:
    """Return the model of a checkpoint, or of the best or newest one in a folder, with all weights checked."""
    model = ModelFolder.load(path)
    origin = model.loaded.path
    match_names({name: name for name in weight_shapes(model.architecture) | crf_shapes()}, model.weights, 0, origin)
    check_weights(model.weights, model.architecture, origin)
    stated = model.task_info.explicit_values() if model.task_info else {}
    file = origin.with_name(TASK_FILE)
    return replace(model, task_info=resolve_task(model.weights, stated, task, labels, origin, file))
