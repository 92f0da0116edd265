"""Schedules of the rate, the optimizers' formulas, decay groups."""

import functools
import math
from types import ModuleType
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor

from model_utils.errors import ConfigError
from src.albert_for_pre_training import AlbertForPreTraining
from src.training.optimizer import LearningRate, Optimizer, OptimizerSettings, build_optimizer, describe_decay_groups
from src.training.training_config import SCHEDULES
from tests.helpers.tiny_model import OPTIMIZER_SETTINGS, TINY


def rate_at(rate: LearningRate, step: int, elapsed: float = 0.0) -> float:
    return float(rate(Tensor(step, ms.int32), Tensor(elapsed, ms.float32)))


def with_changes(**changes: Any) -> OptimizerSettings:
    return OPTIMIZER_SETTINGS.replace(**changes)


def test_learning_rate_schedule() -> None:
    rate = LearningRate(with_changes(warmup_steps=4, end_learning_rate=0.001, power=2.0), 10)
    values = [rate_at(rate, step) for step in range(13)]
    np.testing.assert_allclose(values[:4], [0, 0.0025, 0.005, 0.0075], rtol=1e-6)
    np.testing.assert_allclose(values[4:11], [0.001 + 0.009 * (1 - s / 10) ** 2 for s in range(4, 11)], rtol=1e-5)
    np.testing.assert_allclose(values[11:], 0.001, rtol=1e-6)


FORMULAS = {  # of progress and the warm-up's share of the run
    "polynomial": lambda progress, share: 1 - progress,
    "cosine": lambda progress, share: (1 + math.cos(math.pi * (progress - share) / (1 - share))) / 2,
    "trapezoid": lambda progress, share: min(1.0, (1 - progress) / 0.25),
    "constant": lambda progress, share: 1.0,
}
OWN_KEYS = {"trapezoid": {"decay_share": 0.25}, "constant": {"end_learning_rate": 0.0}}  # with which FORMULAS hold


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("warmup", [{"warmup_steps": 4}, {"warmup_ratio": 0.2}])
def test_schedules_by_updates_and_by_time(schedule: str, warmup: dict[str, float]) -> None:
    """A warm-up given as warmup_ratio follows the time, too; one given as warmup_steps does not."""
    settings = {"schedule": schedule, "end_learning_rate": 0.001} | OWN_KEYS.get(schedule, {}) | warmup
    end = settings["end_learning_rate"]
    rate = LearningRate(with_changes(**settings), 20)
    for step, elapsed in [*((step, 0.0) for step in range(22)), (2, 0.15), (2, 0.6), (5, 0.1), (5, 0.9), (6, 1.0)]:
        progress = max(min(step / 20, 1.0), elapsed)
        warmup_done = step / 4 if "warmup_steps" in warmup else progress / 0.2
        expected = 0.01 * warmup_done if warmup_done < 1 else end + (0.01 - end) * FORMULAS[schedule](progress, 0.2)
        assert rate_at(rate, step, elapsed) == pytest.approx(expected, rel=1e-5, abs=1e-9), (step, elapsed)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"warmup_steps": 10}, "warmup_steps is 10"),
        ({"warmup_ratio": 0.96}, r"warmup_ratio is 0\.96"),
        ({"schedule": "trapezoid", "decay_share": 0.5, "warmup_steps": 6}, "warmup_steps is 6"),
    ],
)
def test_a_warm_up_that_leaves_no_room_is_refused(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=rf"{named}.* 10 updates"):
        LearningRate(with_changes(**changes), 10)


CORRECTED = with_changes(
    learning_rate=0.5,
    schedule="constant",
    beta1=1 - 2**-3,  # these two are exact in float32, 0.999 is not: 1 - 0.999 would be off by 1e-5
    beta2=1 - 2**-7,
    eps=1e-2,
    weight_decay=0.1,
    bias_correction=True,
)
VALUES = np.array([1.0, -2.0, 3.0])
GRADIENTS = [np.array([0.1, -0.3, 2.0]) * t for t in range(1, 5)]


def moment(step: int, rate_factor: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
    """Return step, elapsed share and rate factor for an optimizer."""
    return Tensor(step, ms.int32), Tensor(0.0, ms.float32), Tensor(rate_factor, ms.float32)


@functools.cache
def updated(settings: OptimizerSettings, rate_factor: float = 1.0, unwanted: int = 0) -> dict[str, np.ndarray]:
    """Weights, moments and count after four updates, before each so many unwanted ones; `bias` has no decay."""
    parameters = [Parameter(Tensor(VALUES, ms.float32), name=name) for name in ("weight", "bias")]
    optimizer = build_optimizer(parameters, settings, 100)
    nothing = Tensor(np.zeros(3), ms.float32)
    for t, gradient in enumerate(GRADIENTS, 1):
        for _ in range(unwanted):
            assert float(optimizer((nothing, nothing), Tensor(False), *moment(t, rate_factor))) == 0.0
        optimizer((Tensor(gradient, ms.float32),) * 2, Tensor(True), *moment(t, rate_factor))
    return {parameter.name: parameter.asnumpy() for parameter in optimizer.get_parameters()}


def by_formula(settings: OptimizerSettings) -> dict[str, np.ndarray]:
    weights = {}
    for name, decay in (("weight", settings.weight_decay), ("bias", 0.0)):
        value, m, v = VALUES, 0.0, 0.0
        for t, gradient in enumerate(GRADIENTS, 1):
            m = settings.beta1 * m + (1 - settings.beta1) * gradient
            v = settings.beta2 * v + (1 - settings.beta2) * gradient**2
            corrected = settings.bias_correction or settings.name == "Adam"
            first, second = (1 - settings.beta1**t, 1 - settings.beta2**t) if corrected else (1.0, 1.0)
            step = m / first / (np.sqrt(v / second) + settings.eps) + decay * value
            adapted = settings.name == "Lamb" and name == "weight"
            trust = np.linalg.norm(value) / np.linalg.norm(step) if adapted else 1.0
            value = value - settings.learning_rate * trust * step
        weights[name] = value
    return weights


@pytest.mark.parametrize("bias_correction", [False, True])
@pytest.mark.parametrize(("name", "decay"), [("AdamWeightDecay", 0.1), ("Lamb", 0.1), ("Lamb", 0.0), ("Adam", 0.0)])
def test_updates_equal_their_formulas(name: str, decay: float, bias_correction: bool) -> None:
    settings = CORRECTED.replace(name=name, weight_decay=decay, bias_correction=bias_correction)
    ours, theirs = updated(settings), by_formula(settings)
    for parameter in theirs:
        np.testing.assert_allclose(ours[parameter], theirs[parameter], rtol=0, atol=2e-6, err_msg=parameter)


@pytest.mark.parametrize("bias_correction", [False, True])
@pytest.mark.parametrize("name", ["AdamWeightDecay", "Lamb", "Adam"])
def test_an_unwanted_update_changes_nothing(name: str, bias_correction: bool) -> None:
    settings = CORRECTED.replace(name=name, weight_decay=0.1, bias_correction=bias_correction)
    found, expected = updated(settings, unwanted=2), updated(settings)
    assert found.keys() == expected.keys() >= {"weight", "adam_m.weight", "adam_v.bias", "global_step"}
    np.testing.assert_equal(found, expected)


def test_lamb_moves_weights_that_are_zero() -> None:
    parameter = Parameter(Tensor([0.0, 0.0], ms.float32), name="weight")
    optimizer = build_optimizer([parameter], with_changes(name="Lamb", schedule="constant"), 100)
    optimizer((Tensor([1.0, -1.0], ms.float32),), Tensor(True), *moment(1))
    assert parameter.asnumpy()[0] < 0 < parameter.asnumpy()[1]


def test_lamb_does_not_scale_the_transitions_of_a_crf() -> None:
    steps = []
    for size in (0.5, 5.0):
        transitions = Parameter(Tensor([size, -size], ms.float32), name="crf.transitions")
        settings = with_changes(name="Lamb", weight_decay=0.0, schedule="constant")
        before = transitions.asnumpy().copy()
        build_optimizer([transitions], settings, 100)((Tensor([1.0, 2.0], ms.float32),), Tensor(True), *moment(1))
        steps.append(before - transitions.asnumpy())
    np.testing.assert_allclose(*steps, rtol=1e-5)


def test_lamb_leaves_alone_what_no_loss_depends_on() -> None:
    """Weight decay alone, scaled to the weights' own size, would take 10 % of them at every update."""
    used, unused = (Parameter(Tensor([3.0, 4.0], ms.float32), name=f"{name}.weight") for name in ("used", "unused"))
    settings = with_changes(name="Lamb", learning_rate=0.1, schedule="constant")
    optimizer = build_optimizer([used, unused], settings, 100)
    for step, of_unused in enumerate((1.0, 0.0, 0.0), start=1):
        before = unused.asnumpy().copy()
        gradients = (Tensor([1.0, 0.0], ms.float32), Tensor([0.0, of_unused], ms.float32))
        optimizer(gradients, Tensor(True), *moment(step))
        assert np.array_equal(before, unused.asnumpy()) == (of_unused == 0.0)
    assert used.asnumpy()[0] < 2.5


def test_the_rate_is_multiplied_by_a_factor() -> None:
    ours, theirs = updated(CORRECTED, 0.25), by_formula(CORRECTED.replace(learning_rate=0.125))
    np.testing.assert_allclose(ours["weight"], theirs["weight"], rtol=0, atol=2e-6)


@pytest.mark.oracles
def test_adam_weight_decay_with_bias_correction_equals_torch(torch: ModuleType) -> None:
    weight = torch.tensor(VALUES, dtype=torch.float32, requires_grad=True)
    adam = torch.optim.AdamW(
        [weight], lr=0.5, betas=(CORRECTED.beta1, CORRECTED.beta2), eps=CORRECTED.eps, weight_decay=0.1
    )
    for gradient in GRADIENTS:
        weight.grad = torch.tensor(gradient, dtype=torch.float32)
        adam.step()
    np.testing.assert_allclose(updated(CORRECTED)["weight"], weight.detach().numpy(), rtol=0, atol=2e-6)


MUON = CORRECTED.replace(name="Muon", learning_rate=0.05)
MATRICES = {"albert.encoder.wide.weight": (3, 5), "albert.encoder.tall.weight": (6, 2), "albert.pooler.weight": (3, 3)}


def muon() -> Optimizer:
    draw = np.random.default_rng(0)
    parameters = [Parameter(Tensor(draw.normal(size=shape), ms.float32), name=name) for name, shape in MATRICES.items()]
    return build_optimizer(parameters, MUON, 100)


def updated_by_muon(unwanted: int = 0, restarts: bool = False) -> dict[str, np.ndarray]:
    """Weights, moments and count after four updates, before each so many unwanted ones, or restarted."""
    optimizer = muon()
    nothing = tuple(Tensor(np.zeros(shape), ms.float32) for shape in MATRICES.values())
    for step in range(1, 5):
        if restarts:
            saved = optimizer.parameters_dict()
            optimizer = muon()
            for name, parameter in optimizer.parameters_dict().items():
                parameter.set_data(Tensor(saved[name].asnumpy()))
        for _ in range(unwanted):
            optimizer(nothing, Tensor(False), *moment(step))
        optimizer(tuple(Tensor(g, ms.float32) for g in matrix_gradients(step)), Tensor(True), *moment(step))
    return {parameter.name: parameter.asnumpy() for parameter in optimizer.get_parameters()}


def matrix_gradients(step: int) -> list[np.ndarray]:
    draw = np.random.default_rng(step)
    return [draw.normal(size=shape).astype(np.float32) for shape in MATRICES.values()]


@pytest.mark.parametrize("changes", [{"unwanted": 2}, {"restarts": True}])
def test_an_unwanted_update_of_muon_or_a_restart_changes_nothing(changes: dict[str, Any]) -> None:
    found, expected = updated_by_muon(**changes), updated_by_muon()
    assert {name for name, value in expected.items() if name.startswith("adam_v.") and value.shape} == {
        "adam_v.albert.pooler.weight"
    }
    np.testing.assert_equal(found, expected)


@pytest.mark.parametrize("shape", [(3, 5), (6, 2)])
def test_steps_of_muon_have_equal_singular_values(shape: tuple[int, int]) -> None:
    weight = Parameter(Tensor(np.zeros(shape), ms.float32), name="albert.encoder.weight")
    optimizer = build_optimizer([weight], MUON, 100)
    gradient = np.random.default_rng(0).normal(size=shape)
    optimizer((Tensor(gradient, ms.float32),), Tensor(True), *moment(1))
    step = -weight.asnumpy() / (MUON.learning_rate * 0.2 * math.sqrt(max(shape)))
    singular_values = np.linalg.svd(step, compute_uv=False)
    assert 0.65 < singular_values.min() <= singular_values.max() < 1.25
    assert (step * gradient).sum() > 0


@pytest.mark.oracles
def test_muon_equals_torch(torch: ModuleType) -> None:
    """torch orthogonalises in bfloat16, which rounds steps by up to 1 %; four of them move a weight by about 0.1."""
    draw = np.random.default_rng(0)
    weights = [torch.tensor(draw.normal(size=s), dtype=torch.float32, requires_grad=True) for s in MATRICES.values()]
    settings = {"lr": MUON.learning_rate, "weight_decay": MUON.weight_decay}
    betas = (MUON.beta1, MUON.beta2)
    optimizers = [
        torch.optim.Muon(weights[:2], momentum=MUON.beta1, adjust_lr_fn="match_rms_adamw", **settings),
        torch.optim.AdamW(weights[2:], betas=betas, eps=MUON.eps, **settings),
    ]
    for step in range(1, 5):
        for weight, gradient in zip(weights, matrix_gradients(step), strict=True):
            weight.grad = torch.tensor(gradient)
        for optimizer in optimizers:
            optimizer.step()
    found = updated_by_muon()
    for name, weight in zip(MATRICES, weights, strict=True):
        tolerance = 3e-3 if "encoder" in name else 2e-6
        np.testing.assert_allclose(found[name], weight.detach().numpy(), rtol=0, atol=tolerance, err_msg=name)


def test_decay_groups() -> None:
    network = AlbertForPreTraining(TINY)
    optimizer = build_optimizer(network.trainable_params(), OPTIMIZER_SETTINGS, 10)
    names = {p.name for p, decayed in zip(optimizer.parameters, optimizer.decayed, strict=True) if decayed}
    assert all(name.endswith("weight") or name.endswith("embeddings") for name in names)
    assert "mlm.bias" not in names and "sop.weight" in names and len(names) == 13
    assert describe_decay_groups(optimizer).startswith("AdamWeightDecay: 13 tensors")
