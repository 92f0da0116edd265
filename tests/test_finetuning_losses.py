"""Weights that are not trained keep their values, label smoothing equals torch's, and a CRF's loss is the exact one."""

import itertools

import mindspore as ms
import numpy as np
import pytest
from mindspore import ParameterTuple, Tensor, ops
from scipy.special import logsumexp

from src.albert_config import AlbertConfig
from src.albert_for_finetune import AlbertForCrf, AlbertForSequenceClassification, AlbertForTokenClassification
from src.finetune_eval_model import CrfScores, SequenceClassificationScores, TokenClassificationScores
from src.tasks.finetune_config import FROZEN
from src.training.optimizer import build_optimizer
from src.training.run_plan import LossScale
from src.training.train_step import TrainStep
from tests.helpers.tiny_model import OPTIMIZER_SETTINGS, TINY, assert_same_gradients, batch, metrics_and_gradients

CONFIG = TINY.replace(initializer_range=0.2)


def columns() -> dict[str, np.ndarray]:
    return batch(rows=4) | {"label_ids": np.array([0, 1, 1, 0], np.int32)}


def step_of(config: AlbertConfig, freeze: str, accumulate: bool = False) -> TrainStep:
    network = AlbertForSequenceClassification(SequenceClassificationScores(config, 2), seed=1)
    network.frozen = FROZEN[freeze]
    optimizer = build_optimizer(network.weights_to_train(), OPTIMIZER_SETTINGS, 10)
    return TrainStep(network, optimizer, LossScale(), accumulate)


def weights_of(step: TrainStep) -> dict[str, np.ndarray]:
    return {weight.name: weight.asnumpy().copy() for weight in step.network.trainable_params()}


@pytest.mark.parametrize(
    ("freeze", "micro_batches", "recompute"),
    [("embeddings", 1, True), ("embeddings", 2, False), ("encoder", 1, False), ("encoder", 2, True)],
)
def test_frozen_weights_stay_bit_for_bit_and_the_others_are_trained(
    freeze: str, micro_batches: int, recompute: bool
) -> None:
    step = step_of(CONFIG.replace(recompute=recompute), freeze, micro_batches > 1)
    before = weights_of(step)
    for _ in range(3):
        norm = step.train([columns()] * micro_batches)["grad_norm"].asnumpy()
    assert np.isfinite(norm) and norm > 0
    after = weights_of(step)
    kept = {name for name in before if np.array_equal(before[name], after[name])}
    assert kept == {name for name in before if name.startswith(FROZEN[freeze])} and kept
    moments = {name for name in step.parameters_dict() if name.startswith("adam_")}
    assert not [name for name in moments if name.partition(".")[2].startswith(FROZEN[freeze])] and moments


def test_the_gradients_of_the_other_weights_are_those_without_freezing() -> None:
    gradients = {}
    for freeze in ("", "embeddings", "encoder"):
        step = step_of(CONFIG, freeze)
        inputs = tuple(Tensor(columns()[name]) for name in step.network.input_columns)
        _, values = step.value_and_grad(inputs, Tensor(5, ms.int32), Tensor(1.0, ms.float32))
        names = [parameter.name for parameter in step.differentiated]
        gradients[freeze] = dict(zip(names, values, strict=True))
    every = gradients.pop("")
    for trained in gradients.values():
        assert trained.keys() < every.keys()
        for name, value in trained.items():
            np.testing.assert_allclose(value.asnumpy(), every[name].asnumpy(), rtol=1e-5, atol=1e-7, err_msg=name)


class LogitsGiven(AlbertForSequenceClassification):
    """The losses of logits that stand in place of the backbone's outputs."""

    def logits_of(self, outputs: tuple, texts: tuple, further: tuple) -> tuple:
        return ((outputs[0], further[1]),)


@pytest.mark.oracles
@pytest.mark.parametrize(("share", "class_weights"), [(0.1, [1.0, 1.0, 1.0]), (0.7, [0.3, 2.0, 1.0])])
def test_label_smoothing_is_that_of_torch(torch, share: float, class_weights: list[float]) -> None:
    """Loss and gradient, with the weights of classes."""
    by_label = np.float32(class_weights)
    generator = np.random.default_rng(0)
    logits = (3 * generator.standard_normal((7, 3))).astype(np.float32)
    labels = generator.integers(0, 3, 7).astype(np.int32)
    network = LogitsGiven(SequenceClassificationScores(CONFIG, 3))
    network.smooth_labels(share, by_label)
    rows = by_label[labels] / by_label[labels].sum()  # as normalise_weights makes them
    further = Tensor(labels), Tensor(rows), Tensor(0, ms.int32)

    def loss_of(given: Tensor) -> Tensor:
        return network.label_losses((given,), (), further)[0]

    loss, gradient = ops.value_and_grad(loss_of)(Tensor(logits))
    torch_logits = torch.tensor(logits, requires_grad=True)
    criterion = torch.nn.CrossEntropyLoss(torch.tensor(by_label), label_smoothing=share)
    expected = criterion(torch_logits, torch.tensor(labels).long())
    expected.backward()
    assert float(loss) == pytest.approx(expected.item(), rel=1e-6)
    np.testing.assert_allclose(gradient.asnumpy(), torch_logits.grad.numpy(), rtol=1e-4, atol=2e-6)


IS_WORD = np.float32([[0, 1, 1, 0, 1, 1, 0], [0, 1, 0, 0, 0, 0, 0], [0, 0, 0, 1, 1, 1, 1], [0, 0, 0, 0, 0, 0, 0]])


def loss_of_all_paths(labels: np.ndarray, logits: np.ndarray, *weights: np.ndarray) -> float:
    """The negative log-likelihood of a CRF by its definition; weights: transitions, first, last."""
    transitions, first, last = weights
    loss = 0.0
    for row, words in enumerate(map(np.flatnonzero, IS_WORD[:-1])):  # the last row has no words
        paths = np.array([*itertools.product(range(logits.shape[2]), repeat=len(words)), labels[row, words]])
        scores = logits[row, words, paths].sum(1) + transitions[paths[:, :-1], paths[:, 1:]].sum(1)
        scores += first[paths[:, 0]] + last[paths[:, -1]]
        loss += logsumexp(scores[:-1]) - scores[-1]
    return loss


@pytest.mark.parametrize("size", [1.0, 30.0])
def test_loss_and_gradients_of_a_crf_are_those_of_all_paths_whatever_the_padding(size: float) -> None:
    random = np.random.default_rng(0)
    labels = random.integers(0, 3, IS_WORD.shape)
    network = AlbertForCrf(CrfScores(CONFIG, 3))
    weights = ParameterTuple([network.scores.transitions, network.scores.first, network.scores.last])
    values = [random.normal(0, size, (*IS_WORD.shape, 3)), *(random.normal(0, 2, weight.shape) for weight in weights)]
    for weight, value in zip(weights, values[1:], strict=True):
        weight.set_data(Tensor(value, ms.float32))
    expected = [np.zeros(value.shape) for value in values]
    for value, gradient in zip(values, expected, strict=True):
        for index in np.ndindex(value.shape):
            for step in (1e-4, -1e-4):
                value[index] += step
                gradient[index] += loss_of_all_paths(labels, *values) / (2 * step)
                value[index] -= step

    def loss_of(logits: Tensor, labels: Tensor, is_word: Tensor) -> Tensor:
        return ops.reduce_sum(network.sentence_losses(logits, labels, is_word))

    for padding in (0, 5):
        padded = [np.pad(x, ((0, 0), (0, padding), (0, 0))[: x.ndim]) for x in (values[0], labels, IS_WORD)]
        inputs = map(Tensor, padded, (ms.float32, ms.int32, ms.float32))
        loss, (of_logits, of_weights) = ops.value_and_grad(loss_of, 0, weights)(*inputs)
        assert float(loss) == pytest.approx(loss_of_all_paths(labels, *values), rel=2e-5)
        expected[0] = np.pad(expected[0], ((0, 0), (0, padding), (0, 0)))
        for gradient, right in zip((of_logits, *of_weights), expected, strict=True):
            np.testing.assert_allclose(gradient.asnumpy(), right, atol=2e-5)


def test_a_crf_without_transitions_is_the_classifier_of_words() -> None:
    """Loss, accuracy and gradients, also by layers; its own weights do not decay."""
    columns = batch(rows=4)
    is_word = columns["input_mask"] * (np.arange(12) % 3 > 0)
    columns |= {"label_ids": columns["input_ids"] % 5, "label_weights": (is_word / is_word.sum()).astype(np.float32)}
    classifier = AlbertForTokenClassification(TokenClassificationScores(CONFIG, 5), seed=1)
    ((expected, expected_gradients),) = metrics_and_gradients(classifier, columns)
    for recompute in (False, True):
        network = AlbertForCrf(CrfScores(CONFIG.replace(recompute=recompute), 5), seed=1)
        ((metrics, gradients),) = metrics_and_gradients(network, columns)
        np.testing.assert_allclose(metrics, expected, rtol=1e-5)
        assert all(gradients.pop(weight.name).any() for weight in network.weights_to_train() if "crf" in weight.name)
        assert_same_gradients(gradients, expected_gradients, 1e-4)
    optimizer = build_optimizer(network.weights_to_train(), OPTIMIZER_SETTINGS, 10)
    own_weights = [p.name.startswith("crf.") for p in optimizer.parameters]
    assert sum(own_weights) == 3 and list(optimizer.is_crf) == own_weights
    assert not any(itertools.compress(optimizer.decayed, own_weights))
