"""Pre-training updates by this project and by transformers: same weights, same batch, same work.

Each class imports its library in its constructor, so that each process of a benchmark loads one library.
"""

import os
import sys
import time
from functools import partial
from importlib.metadata import version
from typing import Any

import numpy as np

from benchmarks.commands import WITHOUT_PEERS, need_libraries
from benchmarks.torch_device import TorchDevice
from model_utils.device import Device, setup_device
from model_utils.nvidia import nvidia_gpus
from src.albert_config import OWN_KEYS, AlbertConfig
from src.conversion.weight_names import TIED_COPIES, hugging_face_names

LEARNING_RATE = 1e-4
WEIGHT_DECAY = 0.01
BETAS = (0.9, 0.999)
EPSILON = 1e-6
CLIP_NORM = 1.0
WITHOUT_DECAY = ("gamma", "beta", "bias")
SEED = 1
WAYS = ("eager", "compile", "checkpointing")  # of transformers


def num_predictions(length: int) -> int:
    """Return the number of masked tokens of an example: 15 % of its tokens, 20 of 128."""
    return int(0.15 * length) + 1


def random_batch(config: AlbertConfig, batch_size: int, length: int) -> dict[str, np.ndarray]:
    """Return pre-training columns of examples with random tokens and no padding."""
    generator = np.random.default_rng(SEED)
    predictions = num_predictions(length)
    order = np.argsort(generator.random((batch_size, length)), axis=1)
    return {
        "input_ids": generator.integers(5, config.vocab_size, (batch_size, length)).astype(np.int32),
        "input_mask": np.ones((batch_size, length), np.int32),
        "segment_ids": np.tile(np.arange(length) >= length // 2, (batch_size, 1)).astype(np.int32),
        "masked_lm_positions": np.sort(order[:, :predictions], axis=1).astype(np.int32),
        "masked_lm_ids": generator.integers(5, config.vocab_size, (batch_size, predictions)).astype(np.int32),
        "masked_lm_weights": np.ones((batch_size, predictions), np.float32),
        "next_sentence_labels": (np.arange(batch_size) % 2).astype(np.int32),
        "sequence_weights": np.ones(batch_size, np.float32),
        "sop_loss_weights": np.ones(batch_size, np.float32),
    }


def project_facts(device: Device, fused: bool) -> dict[str, str]:
    """Return the device's name and the versions that this project computes with."""
    gpu = nvidia_gpus()[device.device_id] if device.target == "GPU" else ""
    software = f"mindspore {version('mindspore')}, numpy {version('numpy')}, Python {sys.version.split()[0]}"
    if fused:
        software += ", layers fused"
    return {"device": gpu or device.target, "software": software}


def mindspore_gpu_memory() -> int:
    """Return the bytes of the GPU's memory that MindSpore's tensors have held at most in this process."""
    import mindspore as ms

    return ms.runtime.max_memory_allocated()


class ProjectUpdates:
    """Whole training step of this project, as run_pretrain.py builds it."""

    def __init__(
        self, config: AlbertConfig, columns: dict[str, np.ndarray], device_target: str, fused_layers: str = "auto"
    ) -> None:
        self.device = setup_device(device_target, compute_type=config.compute_type, fused_layers=fused_layers)
        from src.albert_for_pre_training import AlbertForPreTraining
        from src.nn.native_operations import is_fused
        from src.training.optimizer import OptimizerSettings, build_optimizer
        from src.training.run_plan import LossScale
        from src.training.train_step import TrainStep

        self.columns = columns
        self.fused = is_fused(self.device.backend)
        self.network = AlbertForPreTraining(config.replace(backend=self.device.backend), seed=SEED)
        settings = OptimizerSettings(
            learning_rate=LEARNING_RATE,
            end_learning_rate=LEARNING_RATE,
            warmup_steps=0,
            weight_decay=WEIGHT_DECAY,
            beta1=BETAS[0],
            beta2=BETAS[1],
            eps=EPSILON,
            decay_filter=WITHOUT_DECAY,
        )
        optimizer = build_optimizer(self.network.trainable_params(), settings, train_steps=1_000_000)
        self.step = TrainStep(self.network, optimizer, LossScale("dynamic"), clip_norm=CLIP_NORM)

    def weights(self) -> dict[str, np.ndarray]:
        """Return the weights by name."""
        return {parameter.name: parameter.asnumpy() for parameter in self.network.trainable_params()}

    def outputs(self) -> list[float]:
        """Return the loss without dropout."""
        from mindspore import Tensor

        from src.training.train_step import normalise_weights

        columns = normalise_weights([self.columns], self.network.weight_columns)[0]
        inputs = [Tensor(columns[name]) for name in self.network.input_columns]
        loss = float(self.network.set_train(False)(*inputs, Tensor(np.int32(0)))[0])
        self.network.set_train(True)
        return [loss]

    def work(self, updates: int) -> float:
        """Make updates one after the other; return their seconds."""
        start = time.perf_counter()
        for _ in range(updates):
            outputs = self.step.train([self.columns])
        outputs["loss"].asnumpy()
        # The loss is known before the weights are written.
        self.step.optimizer.global_step.asnumpy()
        return time.perf_counter() - start

    def facts(self) -> dict[str, str]:
        """Return device and software."""
        return project_facts(self.device, self.fused)

    def device_memory(self) -> int:
        """Return the peak of the GPU's memory in bytes."""
        return mindspore_gpu_memory()


class TransformersUpdates:
    """AlbertForPreTraining of transformers with torch's AdamW and clip_grad_norm_, as its users write it.

    In float16, which is for GPUs, with torch's autocast and GradScaler.

    Args:
        way: one of WAYS. target: CPU or GPU. weights: under this project's names.

    Raises:
        UserError: torch or transformers is not installed.
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
        os.environ.setdefault("HF_HUB_OFFLINE", "1")  # download nothing
        import transformers

        self.device = TorchDevice(target, config.compute_type)
        torch = self.torch = self.device.torch
        sizes = {key: value for key, value in config.to_dict().items() if key not in OWN_KEYS}
        self.model = transformers.AlbertForPreTraining(transformers.AlbertConfig(**sizes)).train()
        names = hugging_face_names(config.num_hidden_groups, config.inner_group_num)
        state = {names[name]: torch.from_numpy(value) for name, value in weights.items()}
        missing, unexpected = self.model.load_state_dict(state, strict=False)
        if unexpected or not set(missing) <= TIED_COPIES.keys():
            raise RuntimeError(f"weights do not fit transformers' model: missing {missing}, unexpected {unexpected}")
        self.model.to(self.device.name)
        self.forward = torch.compile(self.model) if way == "compile" else self.model
        if way == "checkpointing":  # transformers has none for ALBERT: torch's, around each layer
            from torch.utils.checkpoint import checkpoint

            for group in self.model.albert.encoder.albert_layer_groups:
                group.forward = partial(checkpoint, group.forward, use_reentrant=False)
        self.parameters = list(self.model.parameters())
        undecayed = {peer_name for name, peer_name in names.items() if name.endswith(WITHOUT_DECAY)}
        groups: dict[bool, list[Any]] = {True: [], False: []}
        for name, parameter in self.model.named_parameters():
            groups[name not in undecayed].append(parameter)
        self.optimizer = torch.optim.AdamW(
            [{"params": groups[True], "weight_decay": WEIGHT_DECAY}, {"params": groups[False], "weight_decay": 0.0}],
            lr=LEARNING_RATE,
            betas=BETAS,
            eps=EPSILON,
        )
        self.scaler = torch.amp.GradScaler(self.device.name, enabled=self.device.float16)
        inputs = self._inputs(columns)
        self.inputs = {name: torch.from_numpy(array).to(self.device.name) for name, array in inputs.items()}

    @staticmethod
    def _inputs(columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the batch with labels at every position, -100 where nothing is masked."""
        labels = np.full(columns["input_ids"].shape, -100, np.int64)
        np.put_along_axis(labels, columns["masked_lm_positions"].astype(np.int64), columns["masked_lm_ids"], 1)
        renamed = {
            "input_ids": columns["input_ids"],
            "attention_mask": columns["input_mask"],
            "token_type_ids": columns["segment_ids"],
            "sentence_order_label": columns["next_sentence_labels"],
        }
        return {name: array.astype(np.int64) for name, array in renamed.items()} | {"labels": labels}

    def outputs(self) -> list[float]:
        """Return the loss without dropout."""
        with self.torch.no_grad(), self.device.autocast():
            loss = self.model.eval()(**self.inputs).loss.item()
        self.model.train()
        return [loss]

    def work(self, updates: int) -> float:
        """Make updates one after the other; return their seconds."""
        start = time.perf_counter()
        for _ in range(updates):
            self.optimizer.zero_grad()
            with self.device.autocast():
                loss = self.forward(**self.inputs).loss
            self.scaler.scale(loss).backward()
            self.scaler.unscale_(self.optimizer)
            self.torch.nn.utils.clip_grad_norm_(self.parameters, CLIP_NORM)
            self.scaler.step(self.optimizer)
            self.scaler.update()
        self.device.wait()
        return time.perf_counter() - start

    def facts(self) -> dict[str, str]:
        """Return device and software."""
        attention = self.model.config._attn_implementation
        software = f"torch {version('torch')}, transformers {version('transformers')}, attention {attention}"
        name, use = self.device.describe()
        return {"device": name, "software": f"{software}, {use}"}

    def device_memory(self) -> int:
        """Return the peak of the GPU's memory in bytes."""
        return self.device.peak_memory()
