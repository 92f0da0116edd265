"""Recompute: the same updates, in less memory; and training's memory does not grow."""

from collections.abc import Callable

import numpy as np
import pytest

from benchmarks.soak import SoakConfig, measure
from model_utils.backend import Backend
from src import albert_model
from src.albert_config import AlbertConfig
from src.albert_for_finetune import AlbertForMultipleChoice, AlbertForSequenceClassification, AlbertForSpanSearch
from src.albert_for_pre_training import AlbertForPreTraining
from src.albert_networks import TrainingNetwork
from src.finetune_eval_model import MultipleChoiceScores, SequenceClassificationScores, SpanSearchScores
from tests.helpers.tiny_model import TINY, assert_same_gradients, batch, metrics_and_gradients

SMALL = TINY.replace(
    hidden_dropout_prob=0.2,
    attention_probs_dropout_prob=0.1,
    classifier_dropout_prob=0.1,
    initializer_range=0.2,
)


CASES: dict[str, tuple[dict, Callable[[AlbertConfig], TrainingNetwork]]] = {
    "groups of two inner layers": (
        {"num_hidden_layers": 3, "num_hidden_groups": 2, "inner_group_num": 2},
        AlbertForPreTraining,
    ),
    "relative positions, shared attention": (
        {
            "num_hidden_layers": 3,
            "use_relative_positions": True,
            "max_relative_position": 4,
            "share_parameters": "attention",
        },
        AlbertForPreTraining,
    ),
    "multiple choice": (
        {"share_parameters": "none"},
        lambda config: AlbertForMultipleChoice(MultipleChoiceScores(config, 2)),
    ),
    "composed layers": ({"backend": Backend.COMPOSED}, AlbertForPreTraining),
    "layers for a GPU, float16": ({"compute_type": "float16", "backend": Backend.ACCELERATOR}, AlbertForPreTraining),
    "shared feed-forward, float16, span search": (
        {"share_parameters": "ffn", "compute_type": "float16"},
        lambda config: AlbertForSpanSearch(SpanSearchScores(config, 2, 2)),
    ),
}


def columns() -> dict[str, np.ndarray]:
    """`batch` with what the heads of fine-tuning need; four examples of 12 tokens."""
    labels = np.array([0, 1, 1, 0], np.int32)
    positions = {"start_positions": 3 + labels, "end_positions": 5 - labels, "is_impossible": labels}
    given = batch(rows=4)
    return given | positions | {"label_ids": labels, "p_mask": 1 - given["input_mask"]}


def assert_same(found: tuple[np.ndarray, dict], expected: tuple[np.ndarray, dict]) -> None:
    (metrics, gradients), (right_metrics, right_gradients) = found, expected
    np.testing.assert_allclose(metrics, right_metrics, rtol=1e-6)
    assert_same_gradients(gradients, right_gradients, 1e-6)


@pytest.mark.parametrize("case", CASES)
def test_recompute_changes_no_gradient(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The plain form has boundaries between all layers that may have one; recompute adds gradients up by itself."""
    monkeypatch.setattr(albert_model, "MAX_PENDING_GRADIENT_BYTES", 1.0)
    changes, make = CASES[case]
    networks = [make(SMALL.replace(recompute=recompute, **changes)) for recompute in (False, True)]
    plain, again = (metrics_and_gradients(network, columns(), scale=8.0)[0] for network in networks)
    assert_same(again, plain)


def test_rows_that_no_head_reads_change_no_gradient() -> None:
    """A classifier has all rows behind the last layer's attention, or first tokens' alone, with recompute too."""
    of_all, of_read, recomputed = (
        SequenceClassificationScores(TINY.replace(initializer_range=0.2, recompute=recompute), 2)
        for recompute in (False, False, True)
    )
    of_all.reads_tokens = True
    networks = [AlbertForSequenceClassification(scores) for scores in (of_all, of_read, recomputed)]
    expected, *found = (metrics_and_gradients(network, columns())[0] for network in networks)
    for one in found:
        assert_same(one, expected)


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
    config = SoakConfig(updates=250, warm_up=100, batch_size=2, length=8, hidden_size=16, layers=2)
    assert measure(config, recompute)["growth_mb"] < 1.5
