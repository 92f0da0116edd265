"""Convert published weights to this project's and this project's to Hugging Face's.

python -m model_utils.convert_ckpt --source tf|hf|mindspore --target mindspore|hf --input PATH --output PATH

The architecture is read from the file beside the weights. Every weight is accounted for: what is missing, left over or
of another size ends the conversion, and then nothing is written.
"""

from pathlib import Path

from model_utils.config import run_main
from model_utils.errors import ConfigError
from model_utils.schema import Config, option
from src.conversion.convert import READERS, WRITERS, convert
from src.tasks import FINE_TUNED


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
    do_lower_case: bool = option(
        True,
        "tf: use its vocabulary for lower-cased text, as all published ones are",
        needs=("source", "tf"),
    )
    labels: tuple[str, ...] = option((), "names of a classifier's outputs in order, where the input gives none")

    def validate(self) -> None:
        if self.source and self.source == self.target:
            raise ConfigError(f"source and target are both {self.source}: there is nothing to convert")


def main(config: ConvertConfig) -> None:
    """Read the input, check it, write the output."""
    of_source = {"do_lower_case": config.do_lower_case} if config.source == "tf" else {}
    places = config.source, Path(config.input), config.target, Path(config.output)
    convert(*places, config.task, config.labels, **of_source)


if __name__ == "__main__":
    run_main(main, ConvertConfig)
