"""Networks of all backends compute the same; the layers of GPUs and Ascend, by the CPU's kernels, in few operations."""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from mindspore import Tensor

from benchmarks.turns import Contender
from model_utils.backend import Backend
from src.albert_config import AlbertConfig
from src.albert_for_pre_training import AlbertForPreTraining
from src.albert_model import initialise_weights
from src.albert_networks import ScoresNetwork
from src.finetune_eval_model import (
    AnsweringNetwork,
    SequenceClassificationScores,
    SpanSearchScores,
    TokenClassificationScores,
)
from tests.helpers.final_graph import FinalGraphs
from tests.helpers.tiny_model import TINY, assert_same_gradients, batch, outputs_and_gradients

CHANGES: dict[str, dict[str, Any]] = {
    "plain": {},
    "relative": {
        "use_relative_positions": True,
        "max_relative_position": 4,
        "hidden_act": "gelu",
        "share_parameters": "none",
    },
    "dropout": {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1},
}


@functools.cache
def losses_and_gradients(
    changes: str, backend: Backend, compute_type: str = "float32"
) -> tuple[list[float], dict[str, np.ndarray]]:
    config = TINY.replace(initializer_range=0.2, backend=backend, compute_type=compute_type, **CHANGES[changes])
    return outputs_and_gradients(AlbertForPreTraining(config, seed=1).set_train(True), batch(config))


@pytest.mark.parametrize("backend", [Backend.AUTO, Backend.ACCELERATOR])
@pytest.mark.parametrize("changes", CHANGES)
def test_losses_and_gradients_are_those_of_composed_layers(changes: str, backend: Backend) -> None:
    losses, gradients = losses_and_gradients(changes, Backend.COMPOSED)
    found, found_gradients = losses_and_gradients(changes, backend)
    np.testing.assert_allclose(found, losses, rtol=5e-6)
    if backend is Backend.AUTO:
        assert found[0] == pytest.approx(losses[0], rel=1e-6)
    assert_same_gradients(found_gradients, gradients, 5e-6)


def test_float16_is_near_float32_and_the_same_on_an_accelerator() -> None:
    loss, gradients = losses_and_gradients("plain", Backend.AUTO)
    half_losses, half_gradients = losses_and_gradients("plain", Backend.AUTO, "float16")
    assert half_losses[0] == pytest.approx(loss[0], rel=5e-4)
    assert half_losses[0] != loss[0]
    assert {gradient.dtype for gradient in half_gradients.values()} == {np.dtype(np.float32)}
    assert_same_gradients(half_gradients, gradients, 0.01, rounding=3e-5)
    found, found_gradients = losses_and_gradients("plain", Backend.ACCELERATOR, "float16")
    np.testing.assert_allclose(found, half_losses, rtol=5e-3)
    assert_same_gradients(found_gradients, half_gradients, 5e-3, rounding=3e-5)


@pytest.mark.parametrize(
    "make",
    [
        lambda config: SequenceClassificationScores(config, 3),
        lambda config: TokenClassificationScores(config, 3),
        lambda config: SpanSearchScores(config, 3, 2),
    ],
    ids=("sequences", "tokens", "spans"),
)
def test_answers_are_those_on_a_cpu(make: Callable[[AlbertConfig], ScoresNetwork]) -> None:
    columns = batch() | {"p_mask": np.zeros((3, 12), np.int32)}
    found = []
    for backend in (Backend.COMPOSED, Backend.ACCELERATOR):
        scores = make(TINY.replace(backend=backend))
        initialise_weights(scores, 0.3, 1)
        network = AnsweringNetwork(scores)
        outputs = network(*(Tensor(columns[name]) for name in network.input_columns))
        found.append([each.asnumpy() for each in (outputs if isinstance(outputs, tuple) else (outputs,))])
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


@pytest.fixture(scope="module")
def graphs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Contender]:
    with Contender(FinalGraphs, tmp_path_factory.mktemp("graphs")) as graphs:
        yield graphs


def operations_of_a_layer(graphs: Contender, dropout: float) -> dict[str, int]:
    """Return what a third layer adds, forward and backward: the number of operations by name."""
    counts = [graphs.call("operations", layers, dropout) for layers in (2, 3)]
    return {name: number - counts[0].get(name, 0) for name, number in counts[1].items()}


def test_a_layer_has_few_operations(graphs: Contender) -> None:
    """More would be a step back: at 96 x 128 each is a kernel that reads and writes memory."""
    added = operations_of_a_layer(graphs, 0.0)
    assert sum(added.values()) <= 82
    assert added["LayerNorm"] == added["LayerNormGrad"] == 2 and added["GeLU"] == added["Softmax"] == 1
    assert added["MatMul"] == 3 * 6 + 6 + 1  # of six dense layers, their biases' gradients, and softmax's
    slow = {"BiasAddGrad", "Stack", "Concat", "Unstack", "ReduceSum", "BroadcastTo"}  # of an H100's kernels
    assert not {name for name in slow if added.get(name)}


def test_dropout_has_few_operations_and_spreads_numbers_once_for_all_layers(graphs: Contender) -> None:
    added = operations_of_a_layer(graphs, 0.1)
    assert sum(added.values()) <= 173
    assert added["BroadcastTo"] == 3  # the key's 16 numbers, for each of three masks
    assert added["Floor"] == 6 and added["Select"] == 3 and not added.get("Concat")
