"""Recompute: the same updates, in less memory; and training's memory does not grow."""

from collections.abc import Callable
from contextlib import AbstractContextManager

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor

from benchmarks.soak import SoakConfig, measure
from model_utils.native_code import left_out
from src import albert_model
from src.albert_config import AlbertConfig
from src.albert_for_finetune import AlbertForMultipleChoice, AlbertForSpanSearch
from src.albert_for_pre_training import AlbertForPreTraining
from src.albert_model import TrainingNetwork
from src.finetune_eval_model import MultipleChoiceScores, SpanSearchScores
from src.layer_form import made_for
from src.training.layerwise_gradient import LayerwiseGradient
from src.training.optimizer import build_optimizer
from src.training.run_plan import LossScale
from src.training.train_step import TrainStep
from tests.helpers.tiny_model import KEY, OPTIMIZER_SETTINGS, TINY, batch

SMALL = TINY.replace(
    num_hidden_layers=3, hidden_dropout_prob=0.2, attention_probs_dropout_prob=0.1, classifier_dropout_prob=0.1
)


def in_form(form: AbstractContextManager, config: AlbertConfig) -> TrainingNetwork:
    with form:
        return AlbertForPreTraining(config)


CASES: dict[str, tuple[dict, Callable[[AlbertConfig], TrainingNetwork]]] = {
    "groups of two inner layers": (
        {"num_hidden_layers": 4, "num_hidden_groups": 2, "inner_group_num": 2},
        AlbertForPreTraining,
    ),
    "relative positions, shared attention": (
        {"use_relative_positions": True, "max_relative_position": 4, "share_parameters": "attention"},
        AlbertForPreTraining,
    ),
    "shared feed-forward, float16": ({"share_parameters": "ffn", "compute_type": "float16"}, AlbertForPreTraining),
    "multiple choice": (
        {"share_parameters": "none"},
        lambda config: AlbertForMultipleChoice(MultipleChoiceScores(config, 2)),
    ),
    "composed layers": ({}, lambda config: in_form(left_out(), config)),
    "layers for a GPU, float16": ({"compute_type": "float16"}, lambda config: in_form(made_for("GPU"), config)),
    "span search": ({}, lambda config: AlbertForSpanSearch(SpanSearchScores(config, 2, 2))),
}


def columns() -> dict[str, np.ndarray]:
    """`batch` with what the heads of fine-tuning need; four examples of 12 tokens."""
    labels = np.array([0, 1, 1, 0], np.int32)
    positions = {"start_positions": 3 + labels, "end_positions": 5 - labels, "is_impossible": labels}
    given = batch(rows=4)
    return given | positions | {"label_ids": labels, "p_mask": 1 - given["input_mask"]}


@pytest.mark.parametrize("case", CASES)
def test_recompute_changes_no_gradient(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The plain form has boundaries between all layers that may have one; recompute adds gradients up by itself."""
    monkeypatch.setattr(albert_model, "KEPT_GRADIENTS", 1.0)
    changes, make = CASES[case]
    results = []
    for recompute in (False, True):
        network = make(SMALL.replace(recompute=recompute, **changes))
        step = TrainStep(network, build_optimizer(network.trainable_params(), OPTIMIZER_SETTINGS, 10), LossScale())
        inputs = tuple(Tensor(columns()[name]) for name in network.input_columns)
        (_, metrics), gradients = step.value_and_grad(inputs, KEY, Tensor(8.0, ms.float32))
        names = [parameter.name for parameter in step.differentiated]
        assert isinstance(step.value_and_grad, LayerwiseGradient) == recompute
        results.append((metrics.asnumpy(), dict(zip(names, map(Tensor.asnumpy, gradients), strict=True))))
    (metrics, gradients), (metrics_again, gradients_again) = results
    np.testing.assert_allclose(metrics_again, metrics, rtol=1e-6)
    for name, gradient in gradients.items():
        tolerance = 1e-6 * max(1.0, np.abs(gradient).max())
        np.testing.assert_allclose(gradients_again[name], gradient, atol=tolerance, err_msg=name)
    assert all(gradients[name].any() for name in gradients if "encoder" in name or "embeddings" in name)


def test_recompute_halves_memory() -> None:
    """Peak of two updates above what the process had before them, compilation included, where activations dominate."""
    config = SoakConfig(updates=2, warm_up=1, batch_size=128, length=128, hidden_size=64, layers=12)
    plain, again = (measure(config, recompute) for recompute in (False, True))
    taken, taken_again = (figures["peak_mb"] - figures["before_mb"] for figures in (plain, again))
    assert taken_again <= 0.5 * taken, f"{taken_again:.0f} MB with recompute, {taken:.0f} MB without"


def test_gradients_of_shared_layers_are_not_kept() -> None:
    """A layer's are 50 MB, added up every two layers; kept to the end, twelve more layers would take 600 MB more."""
    few, many = (
        measure(SoakConfig(updates=2, warm_up=1, batch_size=1, length=8, hidden_size=1024, layers=layers), False)
        for layers in (2, 14)
    )
    assert many["peak_mb"] - few["peak_mb"] <= 250


@pytest.mark.parametrize("recompute", [False, True])
def test_memory_does_not_grow(recompute: bool) -> None:
    config = SoakConfig(updates=250, warm_up=100, batch_size=2, length=8, hidden_size=16)
    assert measure(config, recompute)["growth_mb"] < 1.5
