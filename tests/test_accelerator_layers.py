"""The layers that GPUs and Ascend have, run by the CPU's kernels: they compute the same, in few operations."""

from collections.abc import Callable, Iterator

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, ops

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
from tests.helpers.tiny_model import KEY, TINY, assert_same_gradients, batch


def losses_and_gradients(config: AlbertConfig, backend: Backend) -> tuple[list[float], dict[str, np.ndarray]]:
    network = AlbertForPreTraining(config.replace(backend=backend), seed=1).set_train(True)
    inputs = [Tensor(batch(config)[name]) for name in network.input_columns]
    weights = ms.ParameterTuple(network.trainable_params())
    values, gradients = ops.value_and_grad(network, None, weights, has_aux=True)(*inputs, KEY)
    named = {weight.name: gradient.asnumpy() for weight, gradient in zip(weights, gradients, strict=True)}
    return [float(value) for value in values], named


@pytest.mark.parametrize(
    ("changes", "tolerance", "rounding"),
    [
        ({}, 5e-6, 3e-7),
        ({"use_relative_positions": True, "max_relative_position": 4, "hidden_act": "gelu"}, 5e-6, 3e-7),
        ({"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}, 5e-6, 3e-7),
        ({"num_hidden_layers": 4, "compute_type": "float16"}, 5e-3, 3e-5),
    ],
    ids=str,
)
def test_losses_and_gradients_are_those_on_a_cpu(changes: dict, tolerance: float, rounding: float) -> None:
    config = TINY.replace(**{"num_hidden_layers": 2, "initializer_range": 0.2} | changes)
    losses, gradients = losses_and_gradients(config, Backend.COMPOSED)
    found, found_gradients = losses_and_gradients(config, Backend.ACCELERATOR)
    np.testing.assert_allclose(found, losses, rtol=tolerance)
    assert_same_gradients(found_gradients, gradients, tolerance, rounding)


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
        scores = make(TINY.replace(num_hidden_layers=2, backend=backend))
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
