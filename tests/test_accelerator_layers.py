"""The layers that GPUs and Ascend have, run by the CPU's kernels: they compute the same, in few operations."""

from collections.abc import Callable

import numpy as np
import pytest
from mindspore import Tensor

from benchmarks.operations import FinalGraph, OperationsConfig
from benchmarks.turns import Contender
from model_utils.native_code import left_out
from src.albert_for_pre_training import AlbertForPreTraining
from src.albert_model import initialise_weights
from src.albert_networks import ScoresNetwork
from src.finetune_eval_model import (
    AnsweringNetwork,
    SequenceClassificationScores,
    SpanSearchScores,
    TokenClassificationScores,
)
from src.nn.layer_form import made_for
from tests.helpers.tiny_model import TINY, assert_same_gradients, batch, outputs_and_gradients


@pytest.mark.parametrize(
    ("changes", "tolerance", "rounding"),
    [
        ({}, 5e-6, 3e-7),
        ({"use_relative_positions": True, "max_relative_position": 4, "hidden_act": "gelu"}, 5e-6, 3e-7),
        ({"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}, 5e-6, 3e-7),
        ({"compute_type": "float16"}, 5e-3, 3e-5),
    ],
    ids=str,
)
def test_losses_and_gradients_are_those_on_a_cpu(changes: dict, tolerance: float, rounding: float) -> None:
    config = TINY.replace(initializer_range=0.2, **changes)
    results = []
    for target in ("CPU", "GPU"):
        with left_out(), made_for(target):
            network = AlbertForPreTraining(config, seed=1).set_train(True)
        results.append(outputs_and_gradients(network, batch(config)))
    (losses, gradients), (found, found_gradients) = results
    np.testing.assert_allclose(found, losses, rtol=tolerance)
    assert_same_gradients(found_gradients, gradients, tolerance, rounding)


@pytest.mark.parametrize(
    "make",
    [
        lambda: SequenceClassificationScores(TINY, 3),
        lambda: TokenClassificationScores(TINY, 3),
        lambda: SpanSearchScores(TINY, 3, 2),
    ],
    ids=("sequences", "tokens", "spans"),
)
def test_answers_are_those_on_a_cpu(make: Callable[[], ScoresNetwork]) -> None:
    columns = batch() | {"p_mask": np.zeros((3, 12), np.int32)}
    found = []
    for target in ("CPU", "GPU"):
        with left_out(), made_for(target):
            scores = make()
        initialise_weights(scores, 0.3, 1)
        network = AnsweringNetwork(scores)
        outputs = network(*(Tensor(columns[name]) for name in network.input_columns))
        found.append([each.asnumpy() for each in (outputs if isinstance(outputs, tuple) else (outputs,))])
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def operations_of_a_layer(dropout: float) -> dict[str, int]:
    """By name, forward and backward."""
    counts = []
    for number in (2, 3):
        config = OperationsConfig(albert_network="albert_tiny", dropout=dropout)
        with Contender(FinalGraph, config, number, 2) as graph:
            counts.append(graph.call("operations"))
    return {name: each - counts[0].get(name, 0) for name, each in counts[1].items()}


def test_a_layer_has_few_operations() -> None:
    """More would be a step back: at 96 x 128 each is a kernel that reads and writes memory."""
    added = operations_of_a_layer(0.0)
    assert sum(added.values()) <= 82
    assert added["LayerNorm"] == added["LayerNormGrad"] == 2 and added["GeLU"] == added["Softmax"] == 1
    assert added["MatMul"] == 3 * 6 + 6 + 1  # of six dense layers, their biases' gradients, and softmax's
    slow = {"BiasAddGrad", "Stack", "Concat", "Unstack", "ReduceSum", "BroadcastTo"}  # of an H100's kernels
    assert not {name for name in slow if added.get(name)}


def test_dropout_has_few_operations_and_spreads_numbers_once_for_all_layers() -> None:
    added = operations_of_a_layer(0.1)
    assert sum(added.values()) <= 173
    assert added["BroadcastTo"] == 3  # the key's 16 numbers, for each of three masks
    assert added["Floor"] == 6 and added["Select"] == 3 and not added.get("Concat")
