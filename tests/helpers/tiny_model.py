"""A model small enough to be trained in a test, settings of its optimizer, a batch for it, and its gradients."""

import mindspore as ms
import numpy as np
from mindspore import Tensor, ops

from src.albert_config import PRESETS, AlbertConfig
from src.albert_networks import TrainingNetwork
from src.training.layerwise_gradient import LayerwiseGradient
from src.training.optimizer import OptimizerSettings, build_optimizer
from src.training.run_plan import LossScale
from src.training.train_step import TrainStep

KEY = Tensor(5, ms.int32)
TINY = PRESETS["albert_base"].replace(
    vocab_size=50,
    embedding_size=8,
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=24,
    max_position_embeddings=16,
)
OPTIMIZER_SETTINGS = OptimizerSettings(learning_rate=0.01, warmup_steps=0)


def batch(config: AlbertConfig = TINY, rows: int = 3, length: int = 12) -> dict[str, np.ndarray]:
    """Random pre-training columns with some padding and unused predictions; weights not normalised."""
    generator = np.random.default_rng(3)
    real = generator.integers(length // 2, length + 1, rows)
    mask = (np.arange(length) < real[:, None]).astype(np.int32)
    return {
        "input_ids": generator.integers(0, config.vocab_size, (rows, length)).astype(np.int32),
        "input_mask": mask,
        "segment_ids": (np.arange(length) >= length // 3).astype(np.int32) * mask,
        "masked_lm_positions": generator.integers(1, length // 2, (rows, 4)).astype(np.int32),
        "masked_lm_ids": generator.integers(0, config.vocab_size, (rows, 4)).astype(np.int32),
        "masked_lm_weights": (generator.random((rows, 4)) < 0.8).astype(np.float32),
        "next_sentence_labels": generator.integers(0, 2, rows).astype(np.int32),
        "sequence_weights": np.ones(rows, np.float32),
        "sop_loss_weights": np.ones(rows, np.float32),
    }


def outputs_and_gradients(
    network: TrainingNetwork, columns: dict[str, np.ndarray]
) -> tuple[list[float], dict[str, np.ndarray]]:
    """Losses and figures of a batch, and the loss's gradients by parameter, without a training step."""
    inputs = [Tensor(columns[name]) for name in network.input_columns]
    weights = ms.ParameterTuple(network.trainable_params())
    outputs, gradients = ops.value_and_grad(network, None, weights, has_aux=True)(*inputs, KEY)
    by_name = {weight.name: gradient.asnumpy() for weight, gradient in zip(weights, gradients, strict=True)}
    return [float(output) for output in outputs], by_name


def metrics_and_gradients(
    network: TrainingNetwork, *batches: dict[str, np.ndarray], scale: float = 1.0
) -> list[tuple[np.ndarray, dict[str, np.ndarray]]]:
    """Return metrics and gradients by parameter of each batch, in the form that the configuration asks for."""
    step = TrainStep(network, build_optimizer(network.trainable_params(), OPTIMIZER_SETTINGS, 10), LossScale())
    assert isinstance(step.value_and_grad, LayerwiseGradient) == network.recompute_layers
    names = [parameter.name for parameter in step.differentiated]
    results = []
    for columns in batches:
        inputs = tuple(Tensor(columns[name]) for name in network.input_columns)
        (_, metrics), gradients = step.value_and_grad(inputs, KEY, Tensor(scale, ms.float32))
        results.append((metrics.asnumpy(), dict(zip(names, map(Tensor.asnumpy, gradients), strict=True))))
    return results


def assert_same_gradients(
    found: dict[str, np.ndarray], expected: dict[str, np.ndarray], tolerance: float, rounding: float = 3e-7
) -> None:
    """Each parameter's to `tolerance` of its own largest entry.

    Those of biases that move all scores alike, which softmax cancels (keys', spans'), are rounding noise around 0, of
    at most `rounding` of the largest gradient.
    """
    assert found.keys() == expected.keys()
    noise = rounding * max(np.abs(value).max() for value in expected.values())
    for name, value in expected.items():
        largest = np.abs(value).max()
        of_backbone = "encoder" in name or "embeddings" in name
        assert largest > 100 * noise or name.endswith("bias") or not of_backbone, f"{name}: as small as rounding noise"
        np.testing.assert_allclose(found[name], value, atol=max(noise, tolerance * largest), rtol=0, err_msg=name)
