"""Reader of the weights of a Hugging Face folder as float32: safetensors, or PyTorch's files if torch is installed."""

import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import safetensors

from model_utils.errors import CheckpointError, first_few, shorten
from model_utils.json_files import FileName, Schema, read_file, read_json
from model_utils.optional import require
from src.checkpoints.foreign_weights import PYTORCH, SAFETENSORS

POINTER, POINTER_BYTES = b"version https://git-lfs", 1000


def read_weights(folder: Path) -> dict[str, np.ndarray]:
    """Return all tensors of the folder by name; float16 and bfloat16 become float32, which is exact.

    Integers keep their type. Weights in several files are joined by their index.

    Raises:
        CheckpointError: the folder has no weights, or they are damaged, incomplete or of another type.
        UserError: they need torch and it is not installed.
    """
    for name, read in ((SAFETENSORS, _read_safetensors), (PYTORCH, _read_pytorch)):
        if (folder / name).is_file():
            return read(folder / name)
        if (folder / f"{name}.index.json").is_file():
            return _read_shards(folder / f"{name}.index.json", read)
    raise CheckpointError(f"{folder} holds neither {SAFETENSORS} nor {PYTORCH}, whole or in shards")


def refuse_pointer(file: Path) -> None:
    """Raise CheckpointError if a file is a pointer, as `git clone` without git-lfs writes for a large file."""
    if file.is_file() and file.stat().st_size < POINTER_BYTES and file.read_bytes().startswith(POINTER):
        raise CheckpointError(f"{file} is git-lfs's pointer to the file: run `git lfs pull` in its folder")


class IndexSchema(Schema):
    """File of each weight, by its name, if a model has several files."""

    weight_map: dict[str, FileName]


def _read_shards(index: Path, read: Callable[[Path], dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    weight_files = read_json(index, IndexSchema, CheckpointError).weight_map
    shards = {name: read(index.parent / name) for name in sorted(set(weight_files.values()))}
    if missing := [name for name, file in weight_files.items() if name not in shards[file]]:
        raise CheckpointError(f"{index} names weights that its files do not hold: {first_few(missing, 10)}")
    return {name: shards[file][name] for name, file in weight_files.items()}


def _read_safetensors(file: Path) -> dict[str, np.ndarray]:
    refuse_pointer(file)
    try:
        entries = safetensors.deserialize(read_file(file, CheckpointError))
    except safetensors.SafetensorError as error:
        raise CheckpointError(f"{file} is damaged or truncated: {shorten(str(error))}") from error
    return {name: _to_array(entry, f"{file}: {shorten(name)}") for name, entry in entries}


def _to_array(entry: dict[str, Any], origin: str) -> np.ndarray:
    data = entry["data"]
    shape = entry["shape"]
    if entry["dtype"] == "BF16":  # the upper half of a float32
        return (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32).reshape(shape)
    dtypes = {"F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4"}
    if entry["dtype"] not in dtypes:
        raise CheckpointError(f"{origin} is {shorten(entry['dtype'])}, allowed are F32, F16 and BF16")
    value = np.frombuffer(data, dtypes[entry["dtype"]]).reshape(shape)
    return value.astype(np.float32) if entry["dtype"] == "F16" else value


def _read_pytorch(file: Path) -> dict[str, np.ndarray]:
    refuse_pointer(file)
    torch = require("torch", "requirements-dev.txt", file)
    damaged = f"{file} is damaged, or holds more than weights"
    try:
        with warnings.catch_warnings(action="ignore"):  # of a damaged file's protocol
            tensors = torch.load(file, map_location="cpu", weights_only=True)
        if wide := [name for name, tensor in tensors.items() if tensor.dtype == torch.float64]:
            raise CheckpointError(f"{file}: {shorten(wide[0])} is float64, allowed are float32, float16 and bfloat16")
        return {
            str(name): (tensor.float() if tensor.is_floating_point() else tensor).detach().numpy()
            for name, tensor in tensors.items()
        }
    except CheckpointError:
        raise
    except OSError as error:
        raise CheckpointError(f"{file} cannot be read: {error.strerror}") from error
    except pickle.UnpicklingError as error:  # torch's own message advises to load it without its safeguard
        raise CheckpointError(f"{damaged}, which is not loaded") from error
    except Exception as error:  # torch's reader may raise any error for a damaged file
        reason = shorten(error.args[0]) if error.args else type(error).__name__
        raise CheckpointError(f"{damaged}: {reason}") from error
