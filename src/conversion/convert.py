"""Conversion of weights: readers and writers by the name of their format, and checks of all conversions."""

import logging
from collections.abc import Callable
from pathlib import Path

import numpy as np

from model_utils.config import check_not_home
from model_utils.errors import CheckpointError, first_few
from model_utils.schema import Config, option
from src.conversion.google_checkpoint import read_google
from src.conversion.hugging_face_folder import read_hugging_face, write_hugging_face
from src.conversion.own_folder import read_own, write_own
from src.model_folder import ModelFolder
from src.tasks import HEADS

logger = logging.getLogger(__name__)
READERS: dict[str, Callable[..., ModelFolder]] = {"tf": read_google, "hf": read_hugging_face, "mindspore": read_own}
WRITERS = {"mindspore": write_own, "hf": write_hugging_face}


def cast_weights(weights: dict[str, np.ndarray], dtype: str) -> dict[str, np.ndarray]:
    """Return the weights in a type; raise CheckpointError if one is not finite, or too large for it."""
    with np.errstate(over="ignore"):
        values = {name: value.astype(dtype, copy=False) for name, value in weights.items()}
    if not_finite := [name for name, value in values.items() if not np.isfinite(value).all()]:
        raise CheckpointError(f"weights that are not finite in {dtype}: {first_few(not_finite)}")
    return values


class ConvertConfig(Config):
    """Convert weights: python -m model_utils.convert_ckpt."""

    source: str = option(
        "",
        "format of the input; google's TensorFlow checkpoint, a Hugging Face folder, or this project's",
        choices=("", *READERS),
        required=True,
    )
    target: str = option("", "format of the output", choices=("", *WRITERS), required=True)
    input: str = option("", "folder of the model; or a checkpoint in it (tf: its prefix)", required=True)
    output: str = option("", "folder that is made; new or empty", required=True)
    task: str = option("", "task of a fine-tuned head; where the input does not say", choices=("", *HEADS))
    do_lower_case: bool = option(
        True, "lower-case the text; tf only; as all published vocabularies need", needs=("source", "tf")
    )
    dtype: str = option(
        "float32", "type of the weights in the output; float16 halves the file", choices=("float32", "float16")
    )
    labels: tuple[str, ...] = option((), "a classifier's labels in order; where the input gives none")

    def check_together(self) -> None:
        if self.source and self.source == self.target and "dtype" not in self.model_fields_set:
            raise self.error_of("target", "source is the same", hint="give another one, or a dtype")


def main(config: ConvertConfig) -> None:
    """Convert the model `input` to the folder `output`.

    Raises:
        CheckpointError: a file is missing, damaged, or does not fit the others, or the target has no such model.
        DataError: the vocabulary or the settings of the task are missing, damaged or do not fit.
        ConfigError: task or labels do not fit or are missing.
        UserError: the library that reads the files is not installed.
        OSError: the output cannot be written.
    """
    output = Path(config.output)
    check_not_home(output, "output")
    options = {"do_lower_case": config.do_lower_case} if config.source == "tf" else {}
    is_empty_folder = output.is_dir() and not any(output.iterdir())
    if output.exists() and not is_empty_folder:
        raise config.error_of("output", "it exists and is not an empty folder", hint="name a new one")
    model = READERS[config.source](Path(config.input), config.task, config.labels, **options)
    layers = model.architecture.num_hidden_layers
    groups = model.architecture.num_hidden_groups
    if layers % groups and config.source != config.target:  # each format rounds in its own way
        raise CheckpointError(f"{layers} layers in {groups} groups cannot be converted: groups must have equal sizes")
    model = model.with_weights(cast_weights(model.weights, config.dtype))
    WRITERS[config.target](model, output)
    count = sum(value.size for value in model.weights.values())
    purpose = f" for {model.task_info.task}" if model.task_info else ""
    logger.info(f"wrote {output}: {count:,} parameters{purpose}")
