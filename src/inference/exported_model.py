"""Loading of an exported model: NAME.mindir or NAME.onnx, NAME.json and the vocabulary that export.py wrote."""

import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import mindspore as ms
from mindspore import Tensor, nn
from mindspore.nn.utils import no_init_parameters

from model_utils import cpu_threads
from model_utils.backend import Backend
from model_utils.device import ensure_device
from model_utils.errors import ConfigError, DataError, first_line, shorten
from model_utils.json_files import FileName, Schema, Sha256, read_validated, validated
from model_utils.optional import require
from src.albert_config import AlbertConfig
from src.albert_networks import ScoresNetwork
from src.data.feature_files import sha256_of
from src.finetune_eval_model import AnsweringNetwork, packed_where_possible
from src.inference.predictor import AnswerSettings, Predictor
from src.nn.native_operations import is_fused
from src.tasks import TASKS, parse_task_info
from src.tasks.task_info import TaskInfo
from src.tokenization import build_tokenizer

FORMAT_VERSION = 1
ONNX_SUFFIX = ".onnx"
SUFFIXES = (".mindir", ONNX_SUFFIX)


class InputSchema(Schema):
    """Input column of the graph."""

    name: str
    shape: tuple[int | str, ...] = ()


class OutputSchema(Schema):
    """Output of the graph; per_token: it has a value for each token."""

    name: str
    per_token: bool


class VocabularySchema(Schema):
    """Vocabulary file beside the graph."""

    file: FileName
    sha256: Sha256


class DescriptionSchema(Schema):
    """Contents of NAME.json beyond those of task.json: the files and the graph."""

    format_version: Literal[1]  # FORMAT_VERSION
    sha256: Sha256
    inputs: tuple[InputSchema, ...]
    outputs: tuple[OutputSchema, ...]
    vocabulary: VocabularySchema
    do_lower_case: bool
    architecture: dict[str, Any]


def load_exported(
    file: Path, compute_type: str = "float32", backend: Backend = Backend.AUTO, **settings: Any
) -> Predictor:
    """Return a Predictor for NAME.mindir or NAME.onnx and the files beside it; onnxruntime computes ONNX on the CPU.

    Sets up the device as ModelFolder.network does, unless that is done already.

    Args:
        backend: FUSED, or AUTO with a compiler on a CPU: the C++ layers compute with a MINDIR's weights.
        settings: those of ModelFolder.predictor.

    Raises:
        DataError, CheckpointError: a file is missing, damaged, or does not belong to the others.
        UserError: onnxruntime is not installed.
        ConfigError: the settings do not apply to the task, or bfloat16 is asked for and the graph itself, which is
            float32, has to run.
        DeviceError: the device cannot be set up.
    """
    ensure_device()
    described, task_info = read_description(file)
    vocabulary = file.with_name(described.vocabulary.file)
    vocabulary_paths = (str(vocabulary), "") if vocabulary.suffix == ".txt" else ("", str(vocabulary))
    tokenizer = build_tokenizer(*vocabulary_paths, described.do_lower_case)
    if tokenizer.sha256 != described.vocabulary.sha256:
        raise DataError(f"{vocabulary} is not the vocabulary that {file.name} was exported with")
    is_onnx = file.suffix == ONNX_SUFFIX
    fused = not is_onnx and is_fused(backend)
    if compute_type != "float32" and not fused:
        problem = f"it needs the C++ layers, which are not in use for {file}"
        raise ConfigError(key="compute_type", value=compute_type, problem=problem, hint="use float32")
    architecture = AlbertConfig.from_values(described.architecture, file.with_suffix(".json"))
    architecture = architecture.replace(compute_type=compute_type, backend=backend)
    task_info = task_info.clipped_to(architecture)
    graph: Any = OnnxSession(file) if is_onnx else load_mindir(file)
    if fused:
        network = fused_network(graph, architecture, task_info)
    else:
        with no_init_parameters():
            scores = TASKS[task_info.task].scores(architecture, task_info)
        network = ExportedNetwork(graph, described, scores)
    predictor = Predictor(task_info, tokenizer, network, architecture, AnswerSettings(**settings))
    predictor.file = file
    return predictor


def fused_network(graph: nn.Cell, architecture: AlbertConfig, task_info: TaskInfo) -> nn.Cell:
    """Return the task's network in this machine's faster layers, with the weights of a MINDIR's graph."""
    scores = TASKS[task_info.task].scores(architecture, task_info)
    try:
        missing, _ = ms.load_param_into_net(scores, graph.parameters_dict(), strict_load=True)
    except (RuntimeError, ValueError, TypeError) as error:
        raise DataError(f"the MINDIR's weights do not match its description: {error}") from error
    if missing:
        raise DataError(f"the MINDIR has no weight {missing[0]}, which its description requires")
    return packed_where_possible(AnsweringNetwork(scores))


def read_description(file: Path) -> tuple[DescriptionSchema, TaskInfo]:
    """Return the contents of NAME.json; DataError if it or the graph's file is missing or damaged, or no match."""
    path = file.with_suffix(".json")
    if not os.path.lexists(path):
        raise DataError(f"{path} is missing: copy it from the folder that {file.name} was exported to")

    def parse(content: Any) -> tuple[DescriptionSchema, TaskInfo]:
        return validated(content, DescriptionSchema, str(path)), parse_task_info(content, str(path), TASKS)

    described, task_info = read_validated(path, parse)
    if missing := task_info.setting_keys() - task_info.model_fields_set:
        raise DataError(f"{path}: {min(missing)} is missing")
    if not file.is_file():
        raise DataError(f"{file} is missing")
    if sha256_of(file) != described.sha256:
        raise DataError(f"{file} is damaged or does not belong to {path.name}: the sha256 differs")
    return described, task_info


def load_mindir(file: Path) -> nn.Cell:
    """Return the graph in a MINDIR as a Cell; DataError if it is damaged."""
    try:
        return nn.GraphCell(ms.load(str(file)))
    except (RuntimeError, ValueError) as error:
        raise DataError(f"{file} cannot be loaded: it may be damaged") from error


def load_onnxruntime() -> ModuleType:
    """Return the package onnxruntime; UserError if it is not installed."""
    return require("onnxruntime", "requirements-onnx.txt", "an ONNX file")


class OnnxSession:
    """Graph of an ONNX file, a function of int32 tensors; onnxruntime computes it.

    Attributes:
        inputs, outputs: their names.

    Raises:
        UserError: onnxruntime is not installed, or does not load the file.
    """

    def __init__(self, file: Path) -> None:
        self.session = _onnx_session(file)
        self.inputs = tuple(column.name for column in self.session.get_inputs())
        self.outputs = tuple(output.name for output in self.session.get_outputs())

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        columns = dict(zip(self.inputs, map(Tensor.asnumpy, inputs), strict=True))
        return tuple(map(Tensor, self.session.run(None, columns)))


def _onnx_session(file: Path) -> Any:
    onnxruntime = load_onnxruntime()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = cpu_threads.threads()
    try:
        return onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's errors have no other base
        reason = first_line(error)
        raise DataError(f"{file} cannot be loaded by onnxruntime {onnxruntime.__version__}: {reason}") from error


class ExportedNetwork:
    """Exported graph with the interface of src.finetune_eval_model.AnsweringNetwork."""

    portable = True

    def __init__(self, graph: Callable[..., Any], described: DescriptionSchema, scores: ScoresNetwork) -> None:
        self.graph = graph
        self.input_columns = scores.input_columns
        self.output_names = scores.output_names
        self.per_token_outputs = scores.per_token_outputs
        for key, names in (("inputs", self.input_columns), ("outputs", self.output_names)):
            for found in (tuple(column.name for column in getattr(described, key)), getattr(graph, key, names)):
                if found != names:
                    raise DataError(f"the exported file has the {key} {shorten(found)}, its task needs {names}")
        shape = described.inputs[0].shape
        if shape not in ((), ("batch", "length")):
            raise DataError(f"the file takes inputs of shape {shape} only: export the model again with this version")

    def __call__(self, *inputs: Tensor) -> Any:
        return self.graph(*inputs)
