"""Detection of weights of other programs, which must be converted first."""

import os
import shlex
from pathlib import Path

from model_utils.errors import CheckpointError

SAFETENSORS, PYTORCH = "model.safetensors", "pytorch_model.bin"
_HUGGING_FACE = {f"{name}{ending}" for name in (SAFETENSORS, PYTORCH) for ending in ("", ".index.json")}
_GOOGLE = ("*.index", "variables/*.index")  # TensorFlow's checkpoints, alone and in a TF-Hub module


def refuse_foreign(path: Path) -> None:
    """Raise CheckpointError, with the conversion command, if `path` holds google's or Hugging Face's weights.

    Args:
        path: a folder, a file in it, or the prefix of a TensorFlow checkpoint's files.
    """
    conversion = _find_conversion(path)
    if conversion is None:
        return
    source, program, input_path = conversion
    command = (
        f"python -m model_utils.convert_ckpt --source {source} --target mindspore --input {input_path} --output DIR"
    )
    raise CheckpointError(f"{path} holds weights of {program}; convert them first: {command}; then give DIR")


def _find_conversion(path: Path) -> tuple[str, str, str] | None:
    """Return (--source, name of the program, --input) of the conversion, or None."""
    folder = path if path.is_dir() else path.parent
    if path.name in _HUGGING_FACE or (path.is_dir() and any((path / name).is_file() for name in _HUGGING_FACE)):
        return "hf", "Hugging Face's transformers", shlex.quote(str(folder))
    is_prefix = os.path.isfile(f"{path}.index")  # noqa: PTH113 - False for a name that is too long
    if is_prefix or path.suffix == ".index" or (path.is_dir() and any(any(path.glob(name)) for name in _GOOGLE)):
        return "tf", "TensorFlow", shlex.quote(str(path))
    return None
