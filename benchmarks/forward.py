"""How long a forward pass takes here, from a checkpoint or a MINDIR, and elsewhere: python -m benchmarks.forward."""

import logging
import os
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from benchmarks.commands import WITHOUT_PEERS, need_libraries
from benchmarks.contest import ContestConfig, conclude, facts_of, hold
from benchmarks.pretraining import SEED, described_software, gpu_memory, random_batch
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

logger = logging.getLogger(__name__)
TOLERANCE = 1e-4  # by which outputs may differ, as a share of the largest
ROUNDED = 2e-2  # the same where products are of float16
WAYS = ("eager", "compile", "onnxruntime")
SHOWN = 64  # entries of the sequence output that are compared, beside the pooled output


class ForwardConfig(ContestConfig):
    """Time forward passes of the encoder: python -m benchmarks.forward."""

    peers: tuple[str, ...] = option(
        WAYS, "transformers: eager, compile (torch.compile); onnxruntime: what torch exports of it; '': none"
    )
    KNOWN_PEERS: ClassVar[tuple[str, ...]] = WAYS
    source: str = option("checkpoint", "what this project computes with", choices=("checkpoint", "mindir"))

    def validate(self) -> None:
        super().validate()
        if self.device_target == "GPU" and "onnxruntime" in self.peers:
            raise ConfigError("onnxruntime is measured on CPU: on GPU allowed are eager and compile")


class OurForward:
    """The network of a Predictor."""

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

        portable = source == "mindir"  # whose weights the layers of this machine then read, as predict.py has it
        self.fused = is_fused(self.device.backend)
        if portable and not self.fused and config.compute_type != "float32":
            raise ConfigError("here a MINDIR's own graph computes, which is float32: give --compute_type float32")
        config = config.replace(backend=self.device.backend)
        exported = config.replace(compute_type="float32", backend=Backend.COMPOSED)
        scores = EncoderOutputs(exported if portable else config)
        initialise_weights(scores, config.initializer_range, SEED)
        self.own_weights = {parameter.name: parameter.asnumpy() for parameter in scores.trainable_params()}
        self.network = AnsweringNetwork(scores, portable)
        if portable:
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
        """Name -> value of every weight."""
        return self.own_weights

    def outputs(self) -> list[float]:
        """The pooled output and the beginning of the sequence's."""
        sequence, pooled = (output.asnumpy() for output in self.network(*self.inputs))
        return shown(sequence, pooled)

    def work(self, times: int) -> float:
        """Seconds for so many passes."""
        start = time.perf_counter()
        for _ in range(times):
            self.network(*self.inputs)[1].asnumpy()
        return time.perf_counter() - start

    def facts(self) -> dict[str, str]:
        """Where and with what it computes."""
        return described_software(self.device, self.fused)

    def device_memory(self) -> int:
        """Bytes of the GPU's memory."""
        return gpu_memory()


class TransformersForward:
    """transformers' AlbertModel without gradients, eager, by torch.compile, or exported by torch to onnxruntime.

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
        libraries = "torch", "transformers", *(("onnx", "onnxruntime") if way == "onnxruntime" else ())
        need_libraries(*libraries, otherwise=WITHOUT_PEERS)
        os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing is to be downloaded
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
        to = self.device.name
        self.inputs = {name: torch.from_numpy(value.astype(np.int64)).to(to) for name, value in inputs.items()}
        self.model = torch.compile(model) if way == "compile" else model
        self.attention = model.config._attn_implementation
        if way == "onnxruntime":
            self.session = _session(torch, model, self.inputs)
            self.arrays = {name: value.numpy() for name, value in self.inputs.items()}

    def _run(self) -> tuple[Any, Any]:
        """The sequence's and the pooled output, as arrays or as torch's tensors."""
        if self.way == "onnxruntime":
            return tuple(self.session.run(None, self.arrays))
        with self.torch.inference_mode(), self.device.rounding():
            outputs = self.model(**self.inputs)
        return outputs.last_hidden_state, outputs.pooler_output

    def _as_array(self, output: Any) -> np.ndarray:
        return output if self.way == "onnxruntime" else output.float().cpu().numpy()

    def outputs(self) -> list[float]:
        """As OurForward.outputs."""
        return shown(*map(self._as_array, self._run()))

    def work(self, times: int) -> float:
        """Seconds for so many passes."""
        start = time.perf_counter()
        for _ in range(times):
            self._as_array(self._run()[1])
        return time.perf_counter() - start

    def device_memory(self) -> int:
        """Bytes of the GPU's memory."""
        return self.device.peak_memory()

    def facts(self) -> dict[str, str]:
        """Where and with what it computes."""
        library = f"onnxruntime {version('onnxruntime')}" if self.way == "onnxruntime" else f"torch {version('torch')}"
        software = f"{library}, transformers {version('transformers')}, attention {self.attention}"
        name, use = self.device.describe()
        return {"device": name, "software": f"{software}, {use}"}


def _session(torch: object, model: object, inputs: dict[str, object]) -> object:
    """onnxruntime's session of a model that torch exports."""
    import onnxruntime

    with tempfile.TemporaryDirectory() as folder:
        file = str(Path(folder) / "model.onnx")
        torch.onnx.export(model, (), file, kwargs=inputs, input_names=list(inputs), dynamo=False)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads()
        return onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])


def shown(sequence: np.ndarray, pooled: np.ndarray) -> list[float]:
    """What is compared of the outputs (B, L, H) and (B, H)."""
    return [*pooled.ravel().tolist(), *sequence.ravel()[:SHOWN].tolist()]


def main(config: ForwardConfig) -> int:
    """Measure and print; code 1 if the sides do not compute the same."""
    architecture = config.architecture()
    logger.info(facts_of(architecture, config))
    columns = random_batch(architecture, config.batch_size, config.length)
    target = config.device_target
    peers = {f"transformers, {way}": (TransformersForward, architecture, columns, way, target) for way in config.peers}
    operations = forward_flops(architecture, config.batch_size, config.length)
    ours = (OurForward, architecture, columns, target, config.fused_layers, config.source)
    tolerance = ROUNDED if architecture.compute_type == "float16" else TOLERANCE
    return conclude(config, hold(config, ours, peers, operations, tolerance), tolerance)


if __name__ == "__main__":
    run_main(main, ForwardConfig)
