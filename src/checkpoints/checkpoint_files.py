"""Checkpoint files: writing, verifying, finding and reading, and setting a network's parameters from them.

`albert-<step>.ckpt` is MindSpore's format with its checksum, written by ms.save_checkpoint. It is read here, because
ms.load_checkpoint accepts a file that was cut with its checksum and refuses a file larger than the unused memory, and
load_param_into_net guesses name prefixes. Here parameters are set by exact name only.
"""

import binascii
import errno
import hashlib
import json
import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import mindspore as ms
import numpy as np
from google.protobuf.message import DecodeError
from google.protobuf.proto import parse_length_prefixed
from mindspore import Parameter, Tensor, nn, ops
from mindspore.train.checkpoint_pb2 import Checkpoint as CheckpointProto
from pydantic import Field

from model_utils.errors import CheckpointError, first_few, shorten
from model_utils.files import open_file, write_atomically
from model_utils.json_files import Schema, matching, parse_json, read_json
from src.albert_config import TRAINING_KEYS, AlbertConfig, find_config_file
from src.checkpoints.foreign_weights import refuse_foreign
from src.nn.layers import RowSquareSum

logger = logging.getLogger(__name__)
BACKBONE = "albert."
LOOP_STATE = "loop_state"
ARCHITECTURE = "architecture"  # key of the loop's state, with AlbertConfig.saved_dict() of the weights
BEST_FILE = "best_checkpoint.json"
_NAME = re.compile(r"albert-([0-9]+)\.ckpt")
_TRAINING_STATE = re.compile(
    r"(adam_[mv]|lamb_[mv]|moment[12]?|moments|teacher_projections)\..*|loss_scale|scale_sense|good_steps|"
    r"skipped_steps|head_steps\..*|global_step|learning_rate|beta[12]_power|epoch_num|step_num|loop_state"
)  # names of this project and of MindSpore
_ZERO_BETWEEN_UPDATES = re.compile(rf"accumulated(\..*|_metrics)|(.*\.)?{RowSquareSum.parameter_name}")
_TRAILER = 17  # bytes: "crc_num" and the checksum in 10 bytes, big-endian
_BLOCK = 1 << 24
_MAX_ENTRIES = 20_000  # ten times those of the largest model with its optimizer; each takes 25 microseconds
_ENTRY_TAG = b"\n"  # protobuf's field 1 of a type with a length
# Names in a file are free text to numpy, which would also take "f4,f4" and objects for types.
_TENSOR_TYPES = {"bool", "float16", "float32", "float64", "int8", "int16", "int32", "int64"}
_TENSOR_TYPES |= {"uint8", "uint16", "uint32", "uint64"}


class BestSchema(Schema):
    """Contents of best_checkpoint.json, without its metrics."""

    checkpoint: Annotated[str, matching(_NAME.pattern, "albert-<step>.ckpt")]
    step: int = Field(ge=0)


@dataclass(frozen=True)
class Checkpoint:
    """Contents of a checkpoint: numpy arrays by parameter name, and the training loop's state, or {}."""

    path: Path
    values: dict[str, np.ndarray]
    loop_state: dict[str, Any]

    def sha256(self) -> str:
        """Return a hash of the values, the same for two runs that trained alike; their files hold times, too."""
        digest = hashlib.sha256()
        for name, value in sorted(self.values.items()):
            digest.update(name.encode() + value.tobytes())
        return digest.hexdigest()


def checkpoint_path(folder: Path, step: int) -> Path:
    """Return the path of the checkpoint after `step` updates."""
    return folder / f"albert-{step}.ckpt"


def list_checkpoints(folder: Path) -> list[tuple[int, Path]]:
    """Return (step, path) of every checkpoint in the folder, newest first."""
    steps = [(int(match[1]), path) for path in folder.iterdir() if (match := _NAME.fullmatch(path.name))]
    return sorted(steps, reverse=True)


def folder_of(weights: Path) -> Path:
    """Return the folder of a checkpoint, or `weights` itself if it is a folder."""
    return weights if weights.is_dir() else weights.parent


def state_of(cell: nn.Cell) -> dict[str, Parameter]:
    """Return the Parameters that carry state, by name: all but those that are zero between updates."""
    parameters = cell.parameters_dict().items()
    return {name: parameter for name, parameter in parameters if not _ZERO_BETWEEN_UPDATES.fullmatch(name)}


def save_checkpoint(cell: nn.Cell, folder: Path, step: int, loop_state: dict[str, Any]) -> Path:
    """Write the state of `cell` and the loop's state to a new checkpoint, as write_checkpoint does. Return its path."""
    path = checkpoint_path(folder, step)
    write_checkpoint(path, state_of(cell), loop_state)
    return path


def write_checkpoint(path: Path, values: Mapping[str, Tensor], loop_state: dict[str, Any]) -> None:
    """Write tensors by name and the loop's state; raise CheckpointError if that fails.

    The file is renamed to `path` after it is complete, on disk, and verified against its checksum.
    """
    text_entry = {LOOP_STATE: json.dumps(loop_state, allow_nan=False)}
    entries = [{"name": name, "data": value} for name, value in values.items()]

    def write(temporary: Path) -> None:
        ms.save_checkpoint(entries, str(temporary), crc_check=True, append_dict=text_entry)
        if not verify(temporary):
            raise OSError(errno.EIO, "its end with the checksum is missing", str(temporary))

    try:
        write_atomically(path, write)
    except (OSError, RuntimeError) as error:
        raise CheckpointError(
            f"{path} could not be written: {error}; older checkpoints in {path.parent} are intact"
        ) from error


def best_checkpoint(folder: Path) -> Path | None:
    """Return the path of the checkpoint that mark_best chose, or None."""
    if not os.path.lexists(folder / BEST_FILE):
        return None
    return folder / read_json(folder / BEST_FILE, BestSchema, CheckpointError).checkpoint


def verify(path: Path) -> bool:
    """Return True if the contents match the checksum, False if there is none; else raise CheckpointError."""
    try:
        with open_file(path) as file:
            end = os.fstat(file.fileno()).st_size - _TRAILER
            file.seek(max(end, 0))
            trailer = file.read()
            if end < 0 or not trailer.startswith(b"crc_num"):
                return False
            file.seek(0)
            checksum = 0
            for position in range(0, end, _BLOCK):
                checksum = binascii.crc32(file.read(min(_BLOCK, end - position)), checksum)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
    if checksum != int.from_bytes(trailer[7:], "big"):
        raise CheckpointError(f"{path} is damaged: its contents do not match its checksum")
    return True


def _entries(path: Path, end: int) -> Iterator[tuple[str, Any]]:
    """Yield (name, TensorProto) of every entry. The file is a sequence of protobuf fields 1: tag, length, bytes."""
    with path.open("rb") as file:
        for _ in range(_MAX_ENTRIES):
            if file.tell() == end:
                return
            entry = None
            if file.read(1) == _ENTRY_TAG:
                entry = parse_length_prefixed(CheckpointProto.Value, file)
            if entry is None or not entry.tag or not entry.HasField("tensor") or file.tell() > end:
                raise ValueError(f"there is no tensor before byte {file.tell()}")
            yield entry.tag, entry.tensor
    raise ValueError(f"it has more than {_MAX_ENTRIES:,} entries")


def read_checkpoint(path: Path, only_weights: bool = False, has_checksum: bool = False) -> Checkpoint:
    """Read a checkpoint after verifying its checksum; raise CheckpointError if it is missing, damaged or not one.

    Args:
        only_weights: leave out the optimizer's state.
        has_checksum: it was written with a checksum, so that a file without one is damaged.
    """
    slices: dict[str, list[bytes]] = {}
    shapes_and_types: dict[str, tuple[tuple[int, ...], str]] = {}
    verified = verify(path)
    if has_checksum and not verified:
        raise CheckpointError(f"{path} is damaged: its end with the checksum is missing")
    try:
        end = path.stat().st_size - (_TRAILER if verified else 0)
        for name, tensor in _entries(path, end):
            if only_weights and name != LOOP_STATE and _TRAINING_STATE.fullmatch(name):
                continue
            slices.setdefault(name, []).append(tensor.tensor_content)  # large tensors take several entries
            shapes_and_types[name] = tuple(tensor.dims), tensor.tensor_type
        text = b"".join(slices.pop(LOOP_STATE, [])).decode("utf-32-le")  # MindSpore stores text as numpy's "U"
        values = {name: _to_array(b"".join(slices[name]), *shapes_and_types[name]) for name in slices}
        loop_state = parse_json(text) if text else {}
        if not isinstance(loop_state, dict) or not isinstance(loop_state.get(ARCHITECTURE, {}), dict):
            raise ValueError(f"its {LOOP_STATE} or the {ARCHITECTURE} in it is not a JSON object")
        if not values:
            raise ValueError("it holds no tensor")
    except OSError as error:  # a run may have removed it meanwhile
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
    except (DecodeError, ValueError, TypeError, MemoryError, OverflowError) as error:
        raise CheckpointError(f"{path} is damaged or not a MindSpore checkpoint: {shorten(str(error))}") from error
    return Checkpoint(path, values, loop_state)


def _to_array(content: bytes, shape: tuple[int, ...], tensor_type: str) -> np.ndarray:
    if tensor_type == "str":
        return np.array(content.decode("utf-32-le"))
    if tensor_type.lower() not in _TENSOR_TYPES:
        raise ValueError(f"a tensor has the type {shorten(tensor_type)}")
    return np.frombuffer(content, np.dtype(tensor_type.lower())).reshape(shape)


def newest_checkpoint(folder: Path) -> Checkpoint | None:
    """Return the newest intact checkpoint, or None; damaged ones are logged and skipped."""
    return _first_intact([path for _, path in list_checkpoints(folder)])


def _first_intact(paths: Iterable[Path], only_weights: bool = False) -> Checkpoint | None:
    for path in paths:
        try:
            return read_checkpoint(path, only_weights, has_checksum=True)
        except CheckpointError as error:
            logger.info(f"{error}; skipped")
    return None


def find_checkpoint(path: Path) -> Checkpoint:
    """Return the weights of a file, or of a folder's best checkpoint if one was chosen, else of its newest intact one.

    Raises:
        CheckpointError: there is no intact one, the albert_config.json beside it contradicts the architecture that was
            trained, or the weights are those of another program.
    """
    refuse_foreign(path)
    contents = _best_or_newest(path) if path.is_dir() else read_checkpoint(path, only_weights=True)
    file = find_config_file(path)
    # Wrong values often fit the weights' shapes, so the file is compared with what the checkpoint was trained with.
    stored = AlbertConfig.from_json(file).saved_dict() if file else {}
    for key, trained in contents.loop_state.get(ARCHITECTURE, {}).items():
        if key in stored and stored[key] != trained:
            raise CheckpointError(
                f"{file}: {key} is {stored[key]!r}, but {contents.path.name} was trained with {shorten(trained)}; "
                f"restore that, or pass another value to a training script as --albert_cfg.{key}"
            )
    return contents


def check_network(contents: Checkpoint, architecture: AlbertConfig) -> None:
    """Raise CheckpointError if a network to be evaluated differs from the one that was trained."""
    for key, value in architecture.saved_dict().items():
        trained = contents.loop_state.get(ARCHITECTURE, {}).get(key, value)
        if trained != value and key not in TRAINING_KEYS:
            raise CheckpointError(
                f"{contents.path} was trained with {key} {shorten(trained)}: leave out albert_cfg.{key}"
            )


def _best_or_newest(folder: Path) -> Checkpoint:
    best = best_checkpoint(folder)
    files = [file for _, file in list_checkpoints(folder)]
    if best:
        files = [best, *(file for file in files if file != best)]
    contents = _first_intact(files, only_weights=True)
    if contents is None:
        raise no_checkpoint(folder)
    if best and contents.path != best:
        logger.info(f"{contents.path} replaces {best.name}, which was chosen as the best one")
    return contents


def no_checkpoint(folder: Path) -> CheckpointError:
    """Return the error of a folder without checkpoints, which points to the folders of seeds if there are any."""
    first_seed = min(filter(Path.is_dir, folder.glob("seed-*")), default=None)
    advice = f"; each seed has its own: give {first_seed}" if first_seed else ""
    return CheckpointError(f"{folder} holds no readable checkpoint; expected albert-<step>.ckpt{advice}")


def load_backbone(network: nn.Cell, contents: Checkpoint, needed: tuple[str, ...] = (BACKBONE,)) -> None:
    """Set the parameters that the checkpoint has, by exact name, and log what matched.

    The backbone must be complete. A head that is missing or has another shape (another number of labels) keeps its
    initial values, unless it is needed as well.

    Args:
        needed: prefixes of the names that must be in the checkpoint; ("",) for all parameters of the network.

    Raises:
        CheckpointError: a needed parameter is missing or has another shape, or the network has none; or a value is
            not finite.
    """
    parameters = state_of(network)
    values = contents.values
    matched = [name for name in parameters if name in values]
    missing = [name for name in parameters if name not in values]
    unexpected = [name for name in values if name not in parameters and not _TRAINING_STATE.fullmatch(name)]
    differing = differing_shapes(parameters, values)
    logger.info(
        f"{contents.path}: {len(matched)} matched; {len(missing)} missing: {abbreviated(missing)}; "
        f"{len(unexpected)} unexpected: {abbreviated(unexpected)}; "
        f"{len(differing)} of other shape: {abbreviated(differing.values())}"
    )
    needed_names = [name for name in parameters if name.startswith(needed)]
    needed_missing = [name for name in missing if name.startswith(needed)]
    if not needed_names or needed_missing:
        raise CheckpointError(
            f"{contents.path}: {len(needed_missing)} of {len(needed_names)} needed parameters are missing: "
            f"{abbreviated(needed_missing)}; the checkpoint has {abbreviated(sorted(values))}"
        )
    if needed_differing := [differing[name] for name in needed_names if name in differing]:
        raise CheckpointError(
            f"{contents.path} has another architecture: {abbreviated(needed_differing)}; use the albert_config.json "
            "that belongs to it"
        )
    loaded = {name: values[name] for name in matched if name not in differing}
    if broken := [name for name, value in loaded.items() if not np.isfinite(value).all()]:
        raise CheckpointError(f"{contents.path} holds weights that are not finite: {abbreviated(broken)}")
    set_parameters(parameters, loaded)


def differing_shapes(parameters: dict, values: dict[str, np.ndarray]) -> dict[str, str]:
    """Return {name: sentence} for the parameters whose value has another shape."""
    return {
        name: f"{name} is {values[name].shape} in the checkpoint and {tuple(parameter.shape)} in the network"
        for name, parameter in parameters.items()
        if name in values and values[name].shape != tuple(parameter.shape)
    }


def set_parameters(parameters: dict, values: dict[str, np.ndarray]) -> None:
    """Assign the values by name, cast to the parameters' types; set_data would not reach a compiled graph."""
    for name, value in values.items():
        dtype = np.dtype(str(parameters[name].dtype).lower())
        ops.assign(parameters[name], Tensor(np.array(value, dtype=dtype)))


def abbreviated(names: Iterable[str]) -> str:
    """Return the first ten names, or "none"."""
    return first_few(names, 10) or "none"
