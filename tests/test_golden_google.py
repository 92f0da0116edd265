"""google-research/albert's own figures: losses to 2e-6, gradients to 1e-4 of the largest entry, updates to 5e-4.

Outputs are in test_convert_google.py, with weights that were converted.
"""

from pathlib import Path

import numpy as np
import pytest

from src.albert_config import AlbertConfig
from src.albert_for_pre_training import AlbertForPreTraining
from src.training.optimizer import OptimizerSettings, build_optimizer
from src.training.run_plan import LossScale
from src.training.train_step import TrainStep, normalise_weights
from tests.helpers import google_figures as google
from tests.helpers.tiny_model import outputs_and_gradients


def pre_training_network(folder: Path) -> tuple[AlbertForPreTraining, dict, dict]:
    """The network with google's starting weights, google's figures by group, and the input columns."""
    figures = google.load(folder)
    config = AlbertConfig.from_json(folder.parent / "albert_config.json")
    network = AlbertForPreTraining(config)
    google.set_parameters(network, figures["param0"])
    ones = np.ones(len(figures["in"]["input_ids"]), np.float32)
    columns = figures["in"] | {"sequence_weights": ones, "sop_loss_weights": ones}
    return network, figures, columns


def test_pre_training_losses_and_gradients() -> None:
    network, figures, columns = pre_training_network(google.PRETRAINING)
    batch = normalise_weights([columns], network.weight_columns)[0]
    outputs, gradients = outputs_and_gradients(network, batch)
    for name, value in zip(("loss", "mlm_loss", "sop_loss"), outputs, strict=False):
        np.testing.assert_allclose(value, figures["out"][name], rtol=2e-6)
    # A key bias moves all scores of a query alike, which softmax cancels: its gradient is rounding noise around 0.
    largest = max(np.abs(value).max() for value in figures["grad"].values())
    for name, gradient in gradients.items():
        expected = figures["grad"][name]
        tolerance = max(1e-4 * np.abs(expected).max(), 1e-7 * largest)
        found = google.leading_block(gradient, expected)
        np.testing.assert_allclose(found, expected, atol=tolerance, rtol=0, err_msg=name)


@pytest.mark.parametrize(("optimizer", "folder"), [("AdamWeightDecay", "optim_adamw"), ("Lamb", "optim_lamb")])
def test_four_updates(shared: Path, optimizer: str, folder: str) -> None:
    """Loss scaling is on: it must not change a float32 run."""
    network, figures, columns = pre_training_network(shared / "golden/google" / folder)
    given = figures[""]
    settings = OptimizerSettings(
        name=optimizer,
        learning_rate=float(given["learning_rate"]),
        warmup_steps=int(given["warmup_steps"]),
        weight_decay=float(given["weight_decay"]),
        beta1=float(given["beta1"]),
        beta2=float(given["beta2"]),
        eps=float(given["eps"]),
    )
    updates = build_optimizer(network.trainable_params(), settings, int(given["train_steps"]))
    step = TrainStep(network, updates, LossScale("dynamic", 1024.0), clip_norm=float(given["clip_norm"]))
    losses = [float(step.train([columns])["loss"]) for _ in range(4)]
    np.testing.assert_allclose(losses, given["losses"][:4], rtol=1e-5)
    for name, value in google.get_parameters(network).items():
        expected, first = figures["param"][name], figures["param0"][name]
        np.testing.assert_allclose(value, expected, atol=1e-4 * np.abs(expected).max(), rtol=0, err_msg=name)
        # What four updates change is small beside a weight. A key's bias has no gradient but rounding noise.
        if not name.endswith("key.bias"):
            change = expected - first
            np.testing.assert_allclose(value - first, change, atol=5e-4 * np.abs(change).max(), rtol=0, err_msg=name)
