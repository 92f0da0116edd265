"""transformers' AlbertForPreTraining with random weights: same loss, gradients and updates here."""

from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from src.albert_config import AlbertConfig
from src.albert_for_pre_training import AlbertForPreTraining
from src.conversion.weight_names import hugging_face_names
from src.training.optimizer import OptimizerSettings, build_optimizer
from src.training.run_plan import LossScale
from src.training.train_step import TrainStep, normalise_weights
from tests.helpers import google_figures as google
from tests.helpers.tiny_model import outputs_and_gradients

pytestmark = pytest.mark.oracles
ROWS, LENGTH, PREDICTIONS = 3, 14, 4
SIZES = {
    "vocab_size": 61,
    "embedding_size": 8,
    "hidden_size": 24,
    "num_attention_heads": 3,
    "intermediate_size": 40,
    "max_position_embeddings": 20,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "classifier_dropout_prob": 0.0,
}
GROUPED = {"num_hidden_layers": 4, "num_hidden_groups": 2, "inner_group_num": 2}


def random_oracle(torch: ModuleType, transformers: ModuleType, **settings: Any) -> Any:
    """transformers' network with every weight drawn anew: biases and LayerNorms, too, must not stay at 0 and 1."""
    oracle = transformers.AlbertForPreTraining(transformers.AlbertConfig(**SIZES | settings))
    generator = np.random.default_rng(2)
    with torch.no_grad():
        for name, parameter in oracle.named_parameters():
            middle = 1.0 if name.endswith(("LayerNorm.weight", "layer_norm.weight")) else 0.0
            value = middle + 0.2 * generator.standard_normal(tuple(parameter.shape), np.float32)
            parameter.copy_(torch.from_numpy(value.astype(np.float32)))
    return oracle


def architecture(oracle: Any, folder: Path) -> AlbertConfig:
    """The architecture as this project reads it from the config.json that transformers writes."""
    oracle.config.save_pretrained(folder)
    return AlbertConfig.from_json(folder / "config.json")


def under_our_names(oracle: Any, values: dict[str, Any]) -> dict[str, np.ndarray]:
    """torch tensors under Hugging Face's names -> numpy arrays under this project's."""
    names = hugging_face_names(oracle.config.num_hidden_groups, oracle.config.inner_group_num)
    assert set(names.values()) == values.keys()
    return {name: values[their_name].detach().numpy().copy() for name, their_name in names.items()}


def weights(oracle: Any) -> dict[str, np.ndarray]:
    """The oracle's present weights under this project's names."""
    return under_our_names(oracle, dict(oracle.named_parameters()))


def batch() -> dict[str, np.ndarray]:
    """Random pre-training columns with padding and one unused prediction; weights not normalised."""
    generator = np.random.default_rng(5)
    mask = (np.arange(LENGTH) < np.array([[LENGTH], [9], [LENGTH - 3]])).astype(np.int32)
    prediction_weights = np.ones((ROWS, PREDICTIONS), np.float32)
    prediction_weights[1, -1] = 0.0
    return {
        "input_ids": generator.integers(1, SIZES["vocab_size"], (ROWS, LENGTH)).astype(np.int32) * mask,
        "input_mask": mask,
        "segment_ids": (np.arange(LENGTH) >= 5).astype(np.int32) * mask,
        "masked_lm_positions": np.array([[1, 4, 6, 13], [2, 3, 8, 0], [1, 5, 7, 10]], np.int32),
        "masked_lm_ids": generator.integers(1, SIZES["vocab_size"], (ROWS, PREDICTIONS)).astype(np.int32),
        "masked_lm_weights": prediction_weights,
        "next_sentence_labels": np.array([0, 1, 1], np.int32),
        "sequence_weights": np.ones(ROWS, np.float32),
        "sop_loss_weights": np.ones(ROWS, np.float32),
    }


def oracle_inputs(torch: ModuleType, columns: dict[str, np.ndarray]) -> dict[str, Any]:
    """Return the batch in the oracle's form: labels at their positions, -100 elsewhere."""
    labels = np.full((ROWS, LENGTH), -100, np.int64)
    rows, predictions = np.nonzero(columns["masked_lm_weights"])
    labels[rows, columns["masked_lm_positions"][rows, predictions]] = columns["masked_lm_ids"][rows, predictions]
    arrays = {
        "input_ids": columns["input_ids"],
        "attention_mask": columns["input_mask"],
        "token_type_ids": columns["segment_ids"],
        "labels": labels,
        "sentence_order_label": columns["next_sentence_labels"],
    }
    return {name: torch.from_numpy(array.astype(np.int64)) for name, array in arrays.items()}


def test_loss_and_gradients(torch: ModuleType, transformers: ModuleType, tmp_path: Path) -> None:
    oracle = random_oracle(torch, transformers, **GROUPED).train()
    network = AlbertForPreTraining(architecture(oracle, tmp_path)).set_train(True)
    google.set_parameters(network, weights(oracle))
    columns = normalise_weights([batch()], network.weight_columns)[0]
    (found, *_), gradients = outputs_and_gradients(network, columns)
    loss = oracle(**oracle_inputs(torch, columns)).loss
    loss.backward()
    np.testing.assert_allclose(found, loss.item(), rtol=2e-6)
    expected = under_our_names(oracle, {name: weight.grad for name, weight in oracle.named_parameters()})
    # A key bias moves all scores of a query alike, which softmax cancels: its gradient is rounding noise around 0.
    largest = max(np.abs(value).max() for value in expected.values())
    for name, gradient in gradients.items():
        tolerance = max(1e-4 * np.abs(expected[name]).max(), 1e-6 * largest)
        np.testing.assert_allclose(gradient, expected[name], atol=tolerance, rtol=0, err_msg=name)


def test_three_updates_of_adam(torch: ModuleType, transformers: ModuleType, tmp_path: Path) -> None:
    """torch adds epsilon to the corrected root, as Adam here does; AdamWeightDecay is compared in test_optimizer.py."""
    oracle = random_oracle(torch, transformers, num_hidden_layers=2).train()
    network = AlbertForPreTraining(architecture(oracle, tmp_path))
    google.set_parameters(network, weights(oracle))
    rate, epsilon = 1e-3, 1e-4  # large enough for its place to matter
    settings = OptimizerSettings(
        name="Adam", learning_rate=rate, end_learning_rate=rate, warmup_steps=0, eps=epsilon, weight_decay=0.0
    )
    # Unclipped, because google's global norm, used here, counts the segment table differently from torch's.
    step = TrainStep(network, build_optimizer(network.trainable_params(), settings, 10), LossScale(), clip_norm=0.0)
    adam = torch.optim.Adam(oracle.parameters(), lr=rate, betas=(0.9, 0.999), eps=epsilon)
    columns = batch()
    for _ in range(3):
        adam.zero_grad()
        loss = oracle(**oracle_inputs(torch, columns)).loss
        loss.backward()
        adam.step()
        np.testing.assert_allclose(float(step.train([columns])["loss"]), loss.item(), rtol=1e-5)
    expected = weights(oracle)
    for name, value in google.get_parameters(network).items():
        if not name.endswith("key.bias"):  # Adam makes steps of full length of the rounding noise in its gradient
            np.testing.assert_allclose(value, expected[name], atol=0.02 * rate, rtol=0, err_msg=name)
