"""Time forward passes, from a checkpoint or a MINDIR, and those of peers: python -m benchmarks.forward --help."""

import os
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import numpy as np

from benchmarks.commands import WITHOUT_PEERS, need_libraries
from benchmarks.contest import ContestConfig, run_contest
from benchmarks.pretraining import SEED, mindspore_gpu_memory, project_facts, random_batch
from benchmarks.torch_device import TorchDevice
from model_utils.backend import Backend
from model_utils.config import run_main
from model_utils.cpu_threads import threads
from model_utils.device import setup_device
from model_utils.errors import ConfigError
from model_utils.schema import option
from src.albert_config import OWN_KEYS, AlbertConfig
from src.conversion.weight_names import hugging_face_names
from src.data.packing import Packing
from src.training.flops import forward_flops

TOLERANCE = 1e-4  # by which outputs may differ, as a share of the largest
FLOAT16_TOLERANCE = 2e-2
WAYS = ("eager", "compile", "onnxruntime")
COMPARED = 64  # entries of the sequence output that are compared, beside the pooled output


class ForwardConfig(ContestConfig):
    """Time forward passes of the encoder: python -m benchmarks.forward."""

    peers: tuple[str, ...] = option(
        WAYS, "transformers: eager, compile (torch.compile); onnxruntime: what torch exports of it; '': none"
    )
    KNOWN_PEERS: ClassVar[tuple[str, ...]] = WAYS
    source: str = option("checkpoint", "what this project computes with", choices=("checkpoint", "mindir"))

    def check_together(self) -> None:
        super().check_together()
        if self.device_target == "GPU" and "onnxruntime" in self.peers:
            raise ConfigError("onnxruntime is measured on CPU: on GPU allowed are eager and compile")


class ProjectForward:
    """Network as a Predictor of this project runs it."""

    def __init__(
        self, config: AlbertConfig, columns: dict[str, np.ndarray], device_target: str, fused_layers: str, source: str
    ) -> None:
        self.device = setup_device(device_target, compute_type=config.compute_type, fused_layers=fused_layers)
        import mindspore as ms
        from mindspore import Tensor

        from src.albert_model import initialise_weights
        from src.finetune_eval_model import AnsweringNetwork, EncoderOutputs, PackedNetwork, packed_where_possible
        from src.inference.exported_model import fused_network, load_mindir
        from src.nn.native_operations import is_fused
        from src.tasks.task_info import TaskInfo

        from_mindir = source == "mindir"
        self.fused = is_fused(self.device.backend)
        if from_mindir and not self.fused and config.compute_type != "float32":
            raise ConfigError("without C++ layers a MINDIR computes in float32 only: give --compute_type float32")
        config = config.replace(backend=self.device.backend)
        exported = config.replace(compute_type="float32", backend=Backend.COMPOSED)
        scores = EncoderOutputs(exported if from_mindir else config)
        initialise_weights(scores, config.initializer_range, SEED)
        self.initial_weights = {parameter.name: parameter.asnumpy() for parameter in scores.trainable_params()}
        self.network = AnsweringNetwork(scores, from_mindir)
        if from_mindir:
            with tempfile.TemporaryDirectory() as folder:
                file = Path(folder) / "forward.mindir"
                ms.export(
                    self.network, *self.network.any_inputs(), file_name=str(file.with_suffix("")), file_format="MINDIR"
                )
                self.network = load_mindir(file)
                if self.fused:
                    self.network = fused_network(self.network, config, TaskInfo(task="embeddings"))
        else:
            self.network = packed_where_possible(self.network)
        if isinstance(self.network, PackedNetwork):
            rows, length = columns["input_ids"].shape
            columns = Packing(1, length).pack(columns, np.ones(rows, bool), rows * length)
        self.inputs = [Tensor(columns[name]) for name in self.network.input_columns]

    def weights(self) -> dict[str, np.ndarray]:
        """Return the weights by name."""
        return self.initial_weights

    def outputs(self) -> list[float]:
        """Return the pooled output and the beginning of the sequence output."""
        sequence, pooled = self.network(*self.inputs)
        return compared(sequence.asnumpy(), pooled.asnumpy())

    def work(self, times: int) -> float:
        """Make passes one after the other; return their seconds."""
        start = time.perf_counter()
        for _ in range(times):
            self.network(*self.inputs)[1].asnumpy()
        return time.perf_counter() - start

    def facts(self) -> dict[str, str]:
        """Return device and software."""
        return project_facts(self.device, self.fused)

    def device_memory(self) -> int:
        """Return the peak of the GPU's memory in bytes."""
        return mindspore_gpu_memory()


class TransformersForward:
    """AlbertModel of transformers without gradients, eager, by torch.compile, or exported by torch to onnxruntime.

    In float16, which is for GPUs, with torch's autocast.
    """

    def __init__(
        self,
        config: AlbertConfig,
        columns: dict[str, np.ndarray],
        way: str,
        target: str,
        weights: dict[str, np.ndarray],
    ) -> None:
        need_libraries("torch", "transformers", alternative=WITHOUT_PEERS)
        if way == "onnxruntime":
            need_libraries("onnx", "onnxruntime", alternative=WITHOUT_PEERS)
        os.environ.setdefault("HF_HUB_OFFLINE", "1")  # download nothing
        import transformers

        self.device = TorchDevice(target, config.compute_type)
        torch = self.torch = self.device.torch
        self.way = way
        sizes = {key: value for key, value in config.to_dict().items() if key not in OWN_KEYS}
        model = transformers.AlbertModel(transformers.AlbertConfig(**sizes)).eval()
        names = hugging_face_names(config.num_hidden_groups, config.inner_group_num)
        state = {names[name].removeprefix("albert."): torch.from_numpy(value) for name, value in weights.items()}
        model.load_state_dict(state)
        model.to(self.device.name)
        inputs = {
            "input_ids": columns["input_ids"],
            "attention_mask": columns["input_mask"],
            "token_type_ids": columns["segment_ids"],
        }
        self.inputs = {}
        for name, value in inputs.items():
            self.inputs[name] = torch.from_numpy(value.astype(np.int64)).to(self.device.name)
        self.model = torch.compile(model) if way == "compile" else model
        self.attention = model.config._attn_implementation
        if way == "onnxruntime":
            self.session = export_to_onnxruntime(torch, model, self.inputs)
            self.arrays = {name: value.numpy() for name, value in self.inputs.items()}

    def _run(self) -> tuple[Any, Any]:
        """Return the sequence and pooled outputs, as arrays or torch's tensors."""
        if self.way == "onnxruntime":
            return tuple(self.session.run(None, self.arrays))
        with self.torch.inference_mode(), self.device.autocast():
            outputs = self.model(**self.inputs)
        return outputs.last_hidden_state, outputs.pooler_output

    def _as_array(self, output: Any) -> np.ndarray:
        return output if self.way == "onnxruntime" else output.float().cpu().numpy()

    def outputs(self) -> list[float]:
        """Return the pooled output and the beginning of the sequence output."""
        sequence, pooled = self._run()
        return compared(self._as_array(sequence), self._as_array(pooled))

    def work(self, times: int) -> float:
        """Make passes one after the other; return their seconds."""
        start = time.perf_counter()
        for _ in range(times):
            self._as_array(self._run()[1])
        return time.perf_counter() - start

    def device_memory(self) -> int:
        """Return the peak of the GPU's memory in bytes."""
        return self.device.peak_memory()

    def facts(self) -> dict[str, str]:
        """Return device and software."""
        library = f"onnxruntime {version('onnxruntime')}" if self.way == "onnxruntime" else f"torch {version('torch')}"
        software = f"{library}, transformers {version('transformers')}, attention {self.attention}"
        name, use = self.device.describe()
        return {"device": name, "software": f"{software}, {use}"}


def export_to_onnxruntime(torch: ModuleType, model: object, inputs: dict[str, object]) -> Any:
    """Return a session of onnxruntime of a model that torch exports."""
    import onnxruntime

    with tempfile.TemporaryDirectory() as folder:
        file = str(Path(folder) / "model.onnx")
        torch.onnx.export(model, (), file, kwargs=inputs, input_names=list(inputs), dynamo=False)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads()
        return onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])


def compared(sequence: np.ndarray, pooled: np.ndarray) -> list[float]:
    """Return the numbers that are compared of the outputs (B, L, H) and (B, H)."""
    return [*pooled.ravel().tolist(), *sequence.ravel()[:COMPARED].tolist()]


def main(config: ForwardConfig) -> int:
    """Measure and print; return 1 if the sides do not compute the same."""
    architecture = config.architecture()
    columns = random_batch(architecture, config.batch_size, config.length)
    target = config.device_target
    peers = {f"transformers, {way}": (TransformersForward, architecture, columns, way, target) for way in config.peers}
    operations = forward_flops(architecture, config.batch_size, config.length)
    project = (ProjectForward, architecture, columns, target, config.fused_layers, config.source)
    tolerance = FLOAT16_TOLERANCE if architecture.compute_type == "float16" else TOLERANCE
    return run_contest(config, architecture, project, peers, operations, tolerance)


if __name__ == "__main__":
    run_main(main, ForwardConfig)
