"""Convert published weights to this project's and this project's to Hugging Face's.

python -m model_utils.convert_ckpt --source tf|hf|mindspore --target mindspore|hf --input PATH --output PATH

The architecture is read from the file beside the weights. Every weight is accounted for: what is missing, left over or
of another size ends the conversion, and then nothing is written.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from model_utils.config import run_main
from model_utils.errors import CheckpointError, ConfigError
from model_utils.files import sync_to_disk, temporary_name
from model_utils.schema import Config, option
from src.albert_config import AlbertConfig
from src.conversion.google_checkpoint import read_google
from src.conversion.hugging_face_folder import read_hugging_face, write_hugging_face
from src.conversion.own_checkpoint import read_own, write_own
from src.tasks import FINE_TUNED

READERS = {"tf": read_google, "hf": read_hugging_face, "mindspore": read_own}
WRITERS = {"mindspore": write_own, "hf": write_hugging_face}
# The group that a layer belongs to. Whole numbers here, rounded quotients there: some uneven divisions differ.
GROUP_OF = {
    "tf": lambda layer, layers, groups: int(layer / layers * groups),
    "hf": lambda layer, layers, groups: int(layer / (layers / groups)),
    "mindspore": lambda layer, layers, groups: layer * groups // layers,
}


class ConvertConfig(Config):
    """Convert weights: python -m model_utils.convert_ckpt."""

    source: str = option(
        "",
        "format of the input: google's TensorFlow checkpoint, a Hugging Face folder, or this project's",
        choices=("", *READERS),
        required=True,
    )
    target: str = option("", "format of the output", choices=("", *WRITERS), required=True)
    input: str = option("", "folder of the model, or a checkpoint in it (tf: its prefix)", required=True)
    output: str = option("", "folder that is made, new or empty", required=True)
    task: str = option("", "what a fine-tuned head is for, where the input does not say", choices=("", *FINE_TUNED))
    labels: tuple[str, ...] = option((), "names of a classifier's outputs in order, where the input gives none")

    def validate(self) -> None:
        if self.source and self.source == self.target:
            raise ConfigError(f"source and target are both {self.source}: there is nothing to convert")


def check_output(path: Path) -> None:
    """Raise ConfigError if the output exists and is not an empty folder."""
    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
        raise ConfigError(f"the output {path} exists and is not an empty folder; name a new one")


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A temporary folder that becomes `path` when everything in it is on the disk; after an error nothing is left."""
    path = path.resolve()
    temporary = temporary_name(path)
    temporary.mkdir(parents=True)
    try:
        yield temporary
        for file in temporary.iterdir():
            sync_to_disk(file)
        temporary.replace(path)
        sync_to_disk(path.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def check_groups(config: AlbertConfig, source: str, target: str) -> None:
    """Raise CheckpointError if a layer belongs to another group in the target than in the source."""
    layers, groups = config.num_hidden_layers, config.num_hidden_groups
    for layer in range(layers):
        theirs, ours = (GROUP_OF[kind](layer, layers, groups) for kind in (source, target))
        if theirs != ours and config.share_parameters != "none":
            raise CheckpointError(
                f"{layers} layers in {groups} groups: layer {layer} is in group {theirs} for {source} and in {ours} "
                f"for {target}; such a division cannot be converted"
            )


def main(config: ConvertConfig) -> None:
    """Read the input, check it, write the output.

    Raises:
        ConfigError, CheckpointError, DataError: something is missing, damaged or contradictory; nothing is written.
    """
    try:
        check_output(Path(config.output))
        model = READERS[config.source](Path(config.input), config.task, config.labels)
        check_groups(model.config, config.source, config.target)
        with new_folder(Path(config.output)) as folder:
            WRITERS[config.target](model, folder)
    except OSError as error:
        raise CheckpointError(f"{error.filename or config.output}: {error.strerror}") from error
    task = f" for {model.task.task}" if model.task else ""
    print(f"wrote {config.output}: {sum(value.size for value in model.values.values()):,} parameters{task}")


if __name__ == "__main__":
    run_main(main, ConvertConfig)
