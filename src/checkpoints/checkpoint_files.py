"""Checkpoint files: written, verified, found and read; and a network's parameters set from them.

`albert-<step>.ckpt` is MindSpore's format with its checksum. Written by ms.save_checkpoint; read here, because
ms.load_checkpoint accepts a file that lost its end together with the checksum, refuses a file larger than the memory
that happens to be unused, and load_param_into_net guesses name prefixes. Parameters are set by exact name only.
"""

import binascii
import errno
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
from mindspore import Parameter, Tensor, nn, ops
from mindspore.train.checkpoint_pb2 import Checkpoint as CheckpointProto
from pydantic import Field

from model_utils.errors import CheckpointError
from model_utils.files import open_file, write_atomically
from model_utils.json_files import Schema, matching, parse_json, read_json
from src.albert_config import TRAINING_KEYS, AlbertConfig, find_config_file
from src.checkpoints.foreign_weights import refuse_foreign
from src.nn.layers import RowSquareSum

logger = logging.getLogger(__name__)
BACKBONE = "albert."
LOOP_STATE = "loop_state"
ARCHITECTURE = "architecture"  # key of the loop's state: AlbertConfig.facts() of the weights
BEST_FILE = "best_checkpoint.json"
_NAME = re.compile(r"albert-([0-9]+)\.ckpt")
_TRAINING_STATE = re.compile(
    r"(adam_[mv]|lamb_[mv]|moment[12]?|moments)\..*|loss_scale|scale_sense|good_steps|"
    r"skipped_steps|global_step|learning_rate|beta[12]_power|epoch_num|step_num|loop_state"
)  # this project's and MindSpore's own names
_SCRATCH = re.compile(rf"accumulated(\..*|_metrics)|(.*\.)?{RowSquareSum.parameter_name}")
_TRAILER = 17  # "crc_num" and the sum as 10 bytes, big end first
_BLOCK = 1 << 24


class BestSchema(Schema):
    """What best_checkpoint.json says, beside its metrics."""

    checkpoint: Annotated[str, matching(_NAME.pattern, "albert-<step>.ckpt")]
    step: int = Field(ge=0)


@dataclass(frozen=True)
class Checkpoint:
    """What a checkpoint holds: numpy arrays by parameter name, and the loop's state (empty if it has none)."""

    path: Path
    values: dict[str, np.ndarray]
    loop_state: dict[str, Any]


def checkpoint_path(folder: Path, step: int) -> Path:
    """Name of the checkpoint after `step` updates."""
    return folder / f"albert-{step}.ckpt"


def list_checkpoints(folder: Path) -> list[tuple[int, Path]]:
    """(step, path) of every checkpoint in the folder by name, the newest first."""
    matches = ((_NAME.fullmatch(path.name), path) for path in folder.iterdir())
    return sorted(((int(match[1]), path) for match, path in matches if match), reverse=True)


def folder_of(weights: Path) -> Path:
    """The folder that a checkpoint lies in, or the folder itself."""
    return weights if weights.is_dir() else weights.parent


def state_of(cell: nn.Cell) -> dict[str, Parameter]:
    """The Parameters that carry state, by name: all but those that are zero between updates."""
    names = cell.parameters_dict().items()
    return {name: parameter for name, parameter in names if not _SCRATCH.fullmatch(name)}


def save_checkpoint(cell: nn.Cell, folder: Path, step: int, loop_state: dict[str, Any]) -> Path:
    """Write the state of `cell` and the loop's state, as write_checkpoint; older checkpoints stay untouched."""
    path = checkpoint_path(folder, step)
    write_checkpoint(path, state_of(cell), loop_state)
    return path


def write_checkpoint(path: Path, values: Mapping[str, Tensor], loop_state: dict[str, Any]) -> None:
    """Write tensors by name and the loop's state; CheckpointError if it cannot, for instance because the disk is full.

    The file gets its name after it is complete, on the disk, and read back against its checksum.
    """
    folder, text = path.parent, {LOOP_STATE: json.dumps(loop_state)}
    entries = [{"name": name, "data": value} for name, value in values.items()]

    def write(temporary: Path) -> None:
        ms.save_checkpoint(entries, str(temporary), crc_check=True, append_dict=text)
        if not verify(temporary):
            raise OSError(errno.EIO, "its end with the checksum is missing", str(temporary))

    try:
        write_atomically(path, write)
    except (OSError, RuntimeError) as error:
        raise CheckpointError(
            f"{path} could not be written: {error}; older checkpoints in {folder}, if there are any, are whole"
        ) from error


def best_checkpoint(folder: Path) -> Path | None:
    """The checkpoint that mark_best chose, or None where none was chosen."""
    if not os.path.lexists(folder / BEST_FILE):
        return None
    return folder / read_json(folder / BEST_FILE, BestSchema, CheckpointError).checkpoint


def verify(path: Path) -> bool:
    """Whether a checkpoint carries a checksum; CheckpointError if the contents do not match it or cannot be read."""
    try:
        with open_file(path) as file:
            size = os.fstat(file.fileno()).st_size
            if size == 0:
                raise CheckpointError(f"{path} is empty")
            file.seek(max(size - _TRAILER, 0))
            trailer = file.read()
            if not trailer.startswith(b"crc_num") or len(trailer) != _TRAILER:
                return False
            file.seek(0)
            found, left = 0, size - _TRAILER
            while left > 0:
                block = file.read(min(_BLOCK, left))
                found, left = binascii.crc32(block, found), left - len(block)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
    if found != int.from_bytes(trailer[7:], "big"):
        raise CheckpointError(f"{path} is damaged: its contents do not match its checksum")
    return True


def _entries(path: Path, end: int) -> Iterator[tuple[str, Any]]:
    """(name, TensorProto) of every entry; the file is a row of protobuf fields number 1, each tag, length, bytes."""
    with path.open("rb") as file:
        while file.tell() < end:
            tag, length, shift = file.read(1), 0, 0
            while True:
                byte = file.read(1)[0]
                length, shift = length | (byte & 127) << shift, shift + 7
                if byte < 128:
                    break
            if tag != b"\n" or file.tell() + length > end:
                raise CheckpointError(
                    f"{path} is damaged or no MindSpore checkpoint: byte {file.tell()} starts no entry"
                )
            entry = CheckpointProto.Value.FromString(file.read(length))
            if not entry.HasField("tensor"):
                raise CheckpointError(f"{path}: entry {entry.tag!r} is no tensor")
            yield entry.tag, entry.tensor


def read_checkpoint(path: Path, only_weights: bool = False, has_checksum: bool = False) -> Checkpoint:
    """Read a checkpoint after comparing it with its checksum; CheckpointError if it is missing, damaged or none.

    Args:
        only_weights: the optimizer's state is left out.
        has_checksum: it was written with one, so that one without it has lost its end.
    """
    if not path.exists():
        raise CheckpointError(f"{path} does not exist")
    parts: dict[str, list[bytes]] = {}
    kinds: dict[str, tuple[tuple[int, ...], str]] = {}
    try:
        verified = verify(path)
        if has_checksum and not verified:
            raise CheckpointError(f"{path} is damaged: its end with the checksum is missing")
        end = path.stat().st_size - (_TRAILER if verified else 0)
        for name, tensor in _entries(path, end):
            if only_weights and name != LOOP_STATE and _TRAINING_STATE.fullmatch(name):
                continue
            parts.setdefault(name, []).append(tensor.tensor_content)  # large tensors come in several entries
            kinds[name] = tuple(tensor.dims), tensor.tensor_type
        text = b"".join(parts.pop(LOOP_STATE, [])).decode("utf-32-le")  # MindSpore stores text as numpy's "U"
        values = {name: _to_array(b"".join(part), *kinds[name]) for name, part in parts.items()}
        loop_state = parse_json(text) if text else {}
        if not isinstance(loop_state, dict):
            raise ValueError(f"its {LOOP_STATE} is no object")
    except CheckpointError:
        raise
    except OSError as error:  # a run has removed it since
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
    except (DecodeError, IndexError, ValueError, TypeError) as error:
        raise CheckpointError(f"{path} is damaged or no MindSpore checkpoint: {error}") from error
    return Checkpoint(path, values, loop_state)


def _to_array(content: bytes, shape: tuple[int, ...], kind: str) -> np.ndarray:
    if kind == "str":
        return np.array(content.decode("utf-32-le"))
    return np.frombuffer(content, np.dtype(kind.lower())).reshape(shape)


def newest_checkpoint(folder: Path) -> Checkpoint | None:
    """The newest checkpoint that is whole, or None; damaged ones are logged and passed over."""
    return _first_whole([path for _, path in list_checkpoints(folder)])


def _first_whole(paths: Iterable[Path], only_weights: bool = False) -> Checkpoint | None:
    for path in paths:
        try:
            return read_checkpoint(path, only_weights, has_checksum=True)
        except CheckpointError as error:
            logger.info(f"{error}; passed over")
    return None


def find_checkpoint(path: Path) -> Checkpoint:
    """The weights of a file, or of a folder: of its best checkpoint where one was chosen, else of its newest good one.

    Raises:
        CheckpointError: there is none that is whole, the albert_config.json beside them is not the one that they were
            trained with, or they are another program's.
    """
    contents, file = _find(path), find_config_file(path)
    # Many a wrong value fits the weights' shapes: a checkpoint says what it was trained as.
    stored = AlbertConfig.from_json(file).facts() if file else {}
    for key, trained in contents.loop_state.get(ARCHITECTURE, {}).items():
        if key in stored and stored[key] != trained:
            raise CheckpointError(
                f"{file}: {key} is {stored[key]!r}, but {contents.path.name} was trained with {trained!r}; put that "
                f"back; to train on with another value give it on purpose, as --albert_cfg.{key} of a training script"
            )
    return contents


def check_network(contents: Checkpoint, architecture: AlbertConfig) -> None:
    """Raise CheckpointError if a network to be evaluated computes otherwise than the one that was trained."""
    for key, value in architecture.facts().items():
        trained = contents.loop_state.get(ARCHITECTURE, {}).get(key, value)
        if trained != value and key not in TRAINING_KEYS:
            raise CheckpointError(
                f"{contents.path} was trained with {key} {trained!r}, here it is {value!r}: leave out albert_cfg.{key}"
            )


def _find(path: Path) -> Checkpoint:
    refuse_foreign(path)
    if not path.is_dir():
        return read_checkpoint(path, only_weights=True)
    best, newest = best_checkpoint(path), [file for _, file in list_checkpoints(path)]
    contents = _first_whole(dict.fromkeys([best, *newest] if best else newest), only_weights=True)
    if contents is None:
        raise no_checkpoint(path)
    if best and contents.path != best:
        logger.info(f"{contents.path} stands in for {best.name}, which was chosen as the best one")
    return contents


def no_checkpoint(folder: Path) -> CheckpointError:
    """That a folder holds none, and where there are some."""
    of_seeds = sorted(each.name for each in folder.glob("seed-*") if each.is_dir())
    advice = f"; each seed has its own: name {folder / of_seeds[0]}" if of_seeds else ""
    return CheckpointError(f"{folder} holds no readable checkpoint; expected albert-<step>.ckpt{advice}")


def load_backbone(network: nn.Cell, contents: Checkpoint, needed: tuple[str, ...] = (BACKBONE,)) -> None:
    """Warm start: set the parameters that the checkpoint has, by exact name, and log what matched.

    The backbone must be there completely; a head that is missing or has another shape (another number of labels)
    keeps its initial values, unless it is needed as well.

    Args:
        needed: beginnings of the names that must be there; ("",) for all that the network has.

    Raises:
        CheckpointError: a needed parameter is missing or has another shape, or the network has none.
    """
    parameters = state_of(network)
    matched = [name for name in parameters if name in contents.values]
    missing = [name for name in parameters if name not in contents.values]
    unexpected = [name for name in contents.values if name not in parameters and not _TRAINING_STATE.fullmatch(name)]
    differing = differing_shapes(parameters, contents.values, matched)
    logger.info(
        f"{contents.path}: {len(matched)} matched; {len(missing)} missing: {abbreviated(missing)}; "
        f"{len(unexpected)} unexpected: {abbreviated(unexpected)}; "
        f"{len(differing)} of other shape: {abbreviated(list(differing.values()))}"
    )
    wanted = [name for name in parameters if name.startswith(needed)]
    lost = [name for name in wanted if name in missing]
    if not wanted or lost:
        raise CheckpointError(
            f"{contents.path}: the weights do not load: {len(lost)} of {len(wanted)} needed parameters are "
            f"missing: {abbreviated(lost)}; the checkpoint's own names are {abbreviated(sorted(contents.values))}"
        )
    foreign = [differing[name] for name in wanted if name in differing]
    if foreign:
        raise CheckpointError(
            f"{contents.path} was made for another architecture: {abbreviated(foreign)}; the albert_config.json that "
            "belongs to it names the right one"
        )
    set_parameters(parameters, {name: contents.values[name] for name in matched if name not in differing})


def differing_shapes(parameters: dict, values: dict[str, np.ndarray], names: Iterable[str]) -> dict[str, str]:
    """Name -> sentence, for those whose value has another shape than the parameter."""
    return {
        name: f"{name} is {values[name].shape} in the checkpoint and {tuple(parameters[name].shape)} in the network"
        for name in names
        if values[name].shape != tuple(parameters[name].shape)
    }


def set_parameters(parameters: dict, values: dict[str, np.ndarray]) -> None:
    """Assign the values by name, each in its parameter's type; set_data would not reach a graph compiled already."""
    for name, value in values.items():
        kind = np.dtype(str(parameters[name].dtype).lower())
        ops.assign(parameters[name], Tensor(np.array(value, dtype=kind)))


def abbreviated(names: list[str]) -> str:
    """Up to ten names and the number of the others; a log line, not a page."""
    rest = f" and {len(names) - 10} more" if len(names) > 10 else ""
    return (", ".join(names[:10]) or "none") + rest
