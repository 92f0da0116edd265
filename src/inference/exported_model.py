"""Read what export.py wrote: NAME.json, the vocabulary and NAME.mindir, and answer records with them."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import mindspore as ms
from mindspore import Tensor, nn

from model_utils.device import ensure_device
from model_utils.errors import ConfigError, DataError
from model_utils.files import open_file
from model_utils.json_files import FileName, Schema, Sha256, read_validated, validated
from src.albert_config import AlbertConfig
from src.data.feature_files import sha256_of
from src.finetune_eval_model import AnsweringNetwork, packed_where_possible
from src.inference.predictor import Predictor
from src.nn.native_operations import used
from src.tasks import TASKS, parse_task_info
from src.tasks.task_info import TaskInfo
from src.tokenization import build_tokenizer

FORMAT_VERSION = 1
MINDIR_SUFFIX = ".mindir"
KEY_BYTES = (16, 24, 32)
ENCRYPTION = "AES-GCM"


class InputSchema(Schema):
    """A column that the graph takes."""

    name: str
    shape: tuple[int | str, ...] = ()


class OutputSchema(Schema):
    """An output of the graph, and whether it has a value for each token."""

    name: str
    per_token: bool


class VocabularySchema(Schema):
    """The vocabulary beside the graph."""

    file: FileName
    sha256: Sha256


class DescriptionSchema(Schema):
    """What NAME.json says of the files and the graph, beside what task.json says."""

    format_version: Literal[FORMAT_VERSION]
    sha256: Sha256
    encrypted: bool
    inputs: tuple[InputSchema, ...]
    outputs: tuple[OutputSchema, ...]
    vocabulary: VocabularySchema
    do_lower_case: bool
    architecture: dict[str, Any]


def load_exported(file: Path, key: bytes | None = None, compute_type: str = "float32", **settings: Any) -> Predictor:
    """What answers records with NAME.mindir and the files beside it; settings: as of ModelFolder.predictor.

    Where nobody has set up the device, that is done as by ModelFolder.network.

    Raises:
        DataError, CheckpointError: a file is missing, damaged, or does not belong to the others.
        ConfigError: a key is missing or not needed, the settings mean nothing for the task, or the graph itself
            computes, in float32, where bfloat16 is wanted.
        DeviceError: the device cannot be set up.
    """
    ensure_device()
    described, task_info = read_description(file)
    if described.encrypted != (key is not None):
        needed = "not encrypted: no key is needed" if key else "encrypted: encrypt_key_file is needed"
        raise ConfigError(f"{file} is {needed}")
    vocabulary = file.with_name(described.vocabulary.file)
    kind = (str(vocabulary), "") if vocabulary.suffix == ".txt" else ("", str(vocabulary))
    tokenizer = build_tokenizer(*kind, described.do_lower_case)
    if tokenizer.sha256 != described.vocabulary.sha256:
        raise DataError(f"{vocabulary} is not the vocabulary that {file.name} was exported with")
    if compute_type != "float32" and not used():
        raise ConfigError(
            f"compute_type is {compute_type}, which only the layers in C++ multiply, and here the graph of {file} "
            "itself computes: allowed is float32"
        )
    architecture = AlbertConfig.from_values(described.architecture, file.with_suffix(".json"))
    architecture, task_info = architecture.replace(compute_type=compute_type), task_info.fitted(architecture)
    graph = load_mindir(file, key)
    network = fused_network(graph, architecture, task_info) if used() else ExportedNetwork(graph, described)
    return Predictor(task_info, tokenizer, network, architecture, **settings)


def fused_network(graph: nn.Cell, architecture: AlbertConfig, task_info: TaskInfo) -> nn.Cell:
    """The weights of a MINDIR's graph in layers that are faster on this machine, and in float32 compute the same."""
    scores = TASKS[task_info.task].scores(architecture, task_info)
    try:
        missing, _ = ms.load_param_into_net(scores, graph.parameters_dict(), strict_load=True)
    except (RuntimeError, ValueError, TypeError) as error:
        raise DataError(f"the MINDIR's weights are not those that its description asks for: {error}") from error
    if missing:
        raise DataError(f"the MINDIR has no weight {missing[0]}, which its description asks for")
    return packed_where_possible(AnsweringNetwork(scores))


def read_key(file: str) -> bytes | None:
    """The key in a file, or None for no file; ConfigError if it cannot be read or has another length."""
    if not file:
        return None
    try:
        with open_file(Path(file)) as stream:
            key = stream.read(max(KEY_BYTES) + 1)
    except OSError as error:
        raise ConfigError(f"encrypt_key_file {file} cannot be read: {error.strerror}") from error
    if len(key) not in KEY_BYTES:
        raise ConfigError(f"encrypt_key_file {file} has {len(key)} bytes, allowed are 16, 24 or 32 (no end of line)")
    return key


def read_description(file: Path) -> tuple[DescriptionSchema, TaskInfo]:
    """NAME.json beside NAME.mindir; DataError if it is missing, damaged, or does not belong to the file."""
    path = file.with_suffix(".json")
    if not os.path.lexists(path):
        raise DataError(f"{path} is missing: it says what {file.name} computes, and was written beside it")

    def parse(content: Any) -> tuple[DescriptionSchema, TaskInfo]:
        return validated(content, DescriptionSchema, str(path)), parse_task_info(content, str(path), TASKS)

    described, task_info = read_validated(path, parse)
    if missing := task_info.settings() - task_info.model_fields_set:
        raise DataError(f"{path}: {min(missing)} is missing")
    if not file.is_file():
        raise DataError(f"{file} is missing")
    if sha256_of(file) != described.sha256:
        raise DataError(f"{file} is damaged, or does not belong to {path.name}: its sha256 is another one")
    return described, task_info


def load_mindir(file: Path, key: bytes | None = None) -> nn.Cell:
    """The graph in a MINDIR, to be called with tensors; DataError if it is damaged or encrypted with another key."""
    decryption = {"dec_key": key, "dec_mode": ENCRYPTION} if key else {}
    try:
        return nn.GraphCell(ms.load(str(file), **decryption))
    except (RuntimeError, ValueError) as error:
        hint = "its key may be another one" if key else "it may be damaged, or encrypted (encrypt_key_file)"
        raise DataError(f"{file} cannot be loaded: {hint}") from error


class ExportedNetwork:
    """The graph of a MINDIR, with the names of its columns as src.finetune_eval_model.AnsweringNetwork has them."""

    portable = True

    def __init__(self, graph: Callable[..., Any], described: DescriptionSchema) -> None:
        if "4 * length" in described.inputs[0].shape:
            raise DataError("the MINDIR takes four options only: export the model again with this version")
        self.graph = graph
        self.input_columns = tuple(each.name for each in described.inputs)
        self.output_names = tuple(each.name for each in described.outputs)
        self.per_token_outputs = tuple(each.name for each in described.outputs if each.per_token)

    def __call__(self, *inputs: Tensor) -> Any:
        return self.graph(*inputs)
