"""The training step: accumulation, loss scale, clipping, sentence order learnt alone."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor

from model_utils.backend import Backend
from model_utils.config import UPDATES
from model_utils.device import setup_device
from src.albert_for_pre_training import AlbertForPreTraining
from src.nn.layers import RowSquareSum
from src.training.optimizer import Optimizer, build_optimizer
from src.training.ranks import ALONE, Ranks
from src.training.run_plan import LossScale
from src.training.train_step import TrainStep, default_learning_rate, normalise_weights
from tests.helpers.tiny_model import OPTIMIZER_SETTINGS, TINY, batch


class GradientDescent(Optimizer):
    """p -= rate * g: unlike Adam it shows a gradient of the wrong size."""

    def update(self, i: int, rate: Tensor, gradient: Tensor, beta1: Tensor, beta2: Tensor) -> None:
        ms.ops.assign_sub(self.parameters[i], rate * gradient)


def weights_after(step: TrainStep) -> dict[str, np.ndarray]:
    return {parameter.name: parameter.asnumpy().copy() for parameter in step.weights}


def slices(columns: dict[str, np.ndarray], pieces: int) -> list[dict[str, np.ndarray]]:
    size = len(columns["input_ids"]) // pieces
    return [{name: value[i * size : (i + 1) * size] for name, value in columns.items()} for i in range(pieces)]


@pytest.mark.parametrize(
    ("hidden_size", "rate"), [(128, 1e-3), (256, 4.5e-4), (384, 2e-4), (768, 5e-5), (2048, 1e-5), (4096, 1e-5)]
)
def test_learning_rate_of_fine_tuning_by_width(hidden_size: int, rate: float) -> None:
    assert default_learning_rate(hidden_size, 5e-5) == pytest.approx(rate)


def test_micro_batches_equal_one_batch() -> None:
    """Six rows at once or three times two, with unequal numbers of masked tokens: the same losses and weights."""
    columns = batch(rows=6)
    assert len({float(piece["masked_lm_weights"].sum()) for piece in slices(columns, 3)}) > 1
    results = []
    for pieces in (1, 3):
        network = AlbertForPreTraining(TINY, seed=1)
        optimizer = GradientDescent(network.trainable_params(), OPTIMIZER_SETTINGS.replace(learning_rate=1.0), 100)
        step = TrainStep(network, optimizer, LossScale(), accumulate=pieces > 1)
        losses = [float(step.train(slices(columns, pieces))["loss"]) for _ in range(3)]
        results.append((losses, weights_after(step)))
    (losses, weights), (micro_losses, micro_weights) = results
    assert losses[2] < losses[0] - 0.4
    np.testing.assert_allclose(losses, micro_losses, rtol=1e-6)
    for name, value in weights.items():
        np.testing.assert_allclose(value, micro_weights[name], atol=1e-6, err_msg=name)


def test_the_order_loss_counts_as_much_as_its_weight_says() -> None:
    """Weights of the sums may change from update to update; with 0 neither the order head nor the pooler learns."""
    network = AlbertForPreTraining(TINY, seed=1)
    optimizer = GradientDescent(network.trainable_params(), OPTIMIZER_SETTINGS.replace(learning_rate=1.0), 100)
    step = TrainStep(network, optimizer, LossScale())
    before = weights_after(step)
    for weight in (0.0, 0.25):
        columns = batch() | {"sop_loss_weights": np.full(3, weight, np.float32)}
        losses = {name: float(value) for name, value in step.train([columns]).items()}
        assert losses["sop_loss"] > 0.1
        assert losses["loss"] == pytest.approx(losses["mlm_loss"] + weight * losses["sop_loss"], rel=1e-6)
        after = weights_after(step)
        learnt = {name for name in after if not np.array_equal(before[name], after[name])}
        of_order = {"sop.weight", "sop.bias", "albert.pooler.weight", "albert.pooler.bias"}
        assert after.keys() - learnt == (set() if weight else of_order)


def test_the_number_of_micro_batches_may_change_without_compiling_anew() -> None:
    """Copies of one batch, three, one or two of them, train as that batch alone does; two graphs serve any number."""
    losses, steps = [], []
    for accumulate, copies in ((False, (1, 1, 1, 1)), (True, (3, 1, 2, 1))):
        network = AlbertForPreTraining(TINY.replace(num_hidden_layers=1), seed=1)
        settings = OPTIMIZER_SETTINGS.replace(learning_rate=1.0)
        optimizer = GradientDescent(network.trainable_params(), settings, 100)
        # Unclipped, because google's global norm counts looked-up rows, of which copies have more.
        steps.append(TrainStep(network, optimizer, LossScale(), accumulate, clip_norm=0.0))
        losses.append([float(steps[-1].train([batch()] * number)["loss"]) for number in copies])
    assert [len(step.compile_cache) for step in steps] == [1, 2]
    np.testing.assert_allclose(*losses, rtol=1e-5)
    assert min(np.abs(np.diff(losses[0]))) > 0.01


@pytest.mark.slow
def test_a_model_of_many_tensors_compiles() -> None:
    """albert_base has as many tensors with share_parameters none."""
    setup_device("CPU")
    network = AlbertForPreTraining(TINY.replace(num_hidden_layers=12, share_parameters="none"))
    optimizer = build_optimizer(network.trainable_params(), OPTIMIZER_SETTINGS, 10)
    assert len(optimizer.parameters) > 200
    assert np.isfinite(float(TrainStep(network, optimizer, LossScale()).train([batch()])["loss"]))


def test_wrong_number_of_micro_batches() -> None:
    network = AlbertForPreTraining(TINY)
    step = TrainStep(network, build_optimizer(network.trainable_params(), OPTIMIZER_SETTINGS, 10), LossScale())
    with pytest.raises(ValueError, match="2 micro-batches"):
        step.train([batch(), batch()])


def test_normalised_weights_sum_to_one_over_all_micro_batches() -> None:
    pieces = [{"w": np.array([1, 1, 0], np.float32)}, {"w": np.array([1, 0, 0], np.float32)}]
    first, second = normalise_weights(pieces, ["w"])
    np.testing.assert_allclose(np.concatenate([first["w"], second["w"]]), np.array([1, 1, 0, 1, 0, 0]) / 3, rtol=1e-6)
    assert not normalise_weights([{"w": np.zeros(3, np.float32)}], ["w"])[0]["w"].any()


class Explosive(ms.nn.Cell):
    """A loss whose gradient is what the input column says, inf and nan included."""

    input_columns = ("slope",)
    weight_columns = ()
    metric_names = ("loss",)
    recompute_layers = False
    backend = Backend.AUTO
    segment_table_and_squares = property(lambda self: (self.table, self.rows.row_square_sum))

    def __init__(self) -> None:
        super().__init__()
        self.table = Parameter(Tensor(np.ones((2, 1), np.float32)), name="table")
        self.rows = RowSquareSum()
        self.weight = Parameter(Tensor([1.0, 2.0]), name="weight")

    def inputs(self, batch: dict[str, np.ndarray]) -> list[Tensor]:
        return [Tensor(batch["slope"])]

    def construct(self, slope: Tensor, dropout_key: Tensor) -> tuple[Tensor]:
        return (ms.ops.reduce_sum(self.weight * slope) + ms.ops.reduce_sum(self.rows(self.table)) * 0.0,)


def explosive_step(
    loss_scale: LossScale,
    accumulate: bool = False,
    clip_norm: float = 0.0,
    train_steps: int = 1000,
    ranks: Ranks = ALONE,
    seed: int = 3,
) -> TrainStep:
    network = Explosive()
    settings = OPTIMIZER_SETTINGS.replace(learning_rate=0.5)
    optimizer = GradientDescent(network.trainable_params(), settings, train_steps)
    return TrainStep(network, optimizer, loss_scale, accumulate, clip_norm, ranks, seed)


def test_no_rank_has_the_masks_of_another_in_the_longest_run() -> None:
    """Every update's masks are a hash of the seed plus the updates before it."""
    seeds = sorted(explosive_step(LossScale(), ranks=Ranks(rank)).seed for rank in range(16))
    assert min(np.diff([*seeds, seeds[0] + 2**31])) > UPDATES


def test_runs_of_seeds_in_a_row_have_no_masks_in_common() -> None:
    """In 20 million updates, whether a run began with its seed or another one's step was taken over."""
    step = explosive_step(LossScale(), seed=1)
    seeds = [step.seed]
    for seed in range(2, 21):
        step.restart(seed)
        seeds.append(step.seed)
    assert explosive_step(LossScale(), seed=20).seed == seeds[-1]
    seeds.sort()
    assert min(np.diff([*seeds, seeds[0] + 2**31])) > 20_000_000


def test_dynamic_loss_scale_skips_shrinks_grows_and_has_a_floor() -> None:
    step = explosive_step(LossScale("dynamic", 8.0, factor=2.0, window=2, minimum=2.0), train_steps=10)
    scales, finite, rates = [], [], []
    for slope in (1.0, np.inf, np.nan, np.inf, np.inf, 1.0, 1.0, 1.0):
        before = step.network.weight.asnumpy().copy()
        result = step.train([{"slope": np.array([slope, 0.5], np.float32)}])
        scales.append(float(result["loss_scale"]))
        finite.append(bool(result["finite"]))
        rates.append(float(result["learning_rate"]))
        assert np.array_equal(before, step.network.weight.asnumpy()) != finite[-1]
    assert finite == [True, False, False, False, False, True, True, True]
    assert scales == [8.0, 8.0, 4.0, 2.0, 2.0, 2.0, 2.0, 4.0]
    np.testing.assert_allclose(rates, [0.45, 0, 0, 0, 0, 0.2, 0.15, 0.1], rtol=1e-6)  # skipped updates count
    assert int(step.skipped_steps.value()) == 4 and int(step.optimizer.global_step.value()) == 4
    step.train([{"slope": np.array([1.0, 0.5], np.float32)}])
    step.restart_scaling()
    assert float(step.loss_scale.value()) == 8.0 and int(step.good_steps.value()) == 0


@pytest.mark.parametrize("mode", ["off", "static"])
def test_fixed_loss_scale(mode: str) -> None:
    step = explosive_step(LossScale(mode, 1024.0))
    for slope in (1.0, np.inf, 1.0):
        result = step.train([{"slope": np.array([slope, 0.5], np.float32)}])
        assert float(result["loss_scale"]) == (1024.0 if mode == "static" else 1.0)
    assert int(step.skipped_steps.value()) == 1
    # Two updates of 0.5 * slope each, at rates 0.5 * (1 - 1/1000) and 0.5 * (1 - 3/1000).
    np.testing.assert_allclose(step.network.weight.asnumpy(), [1 - 0.998, 2 - 0.499], atol=1e-6)


def test_nothing_of_a_skipped_update_is_in_the_next_one() -> None:
    step = explosive_step(LossScale(), accumulate=True)
    for slopes in ((np.inf, 1.0), (1.0, np.nan), (1.0, 2.0)):
        result = step.train([{"slope": np.array([slope, 0.5], np.float32)} for slope in slopes])
        assert bool(result["finite"]) == bool(np.isfinite(slopes).all())
    assert float(result["loss"]) == 5.0
    np.testing.assert_allclose(step.network.weight.asnumpy(), [1 - 0.4985 * 3, 2 - 0.4985], atol=1e-6)


def test_gradients_are_clipped_to_the_global_norm() -> None:
    step = explosive_step(LossScale(), clip_norm=1.0)
    result = step.train([{"slope": np.array([3.0, 4.0], np.float32)}])
    assert float(result["grad_norm"]) == pytest.approx(5.0)
    np.testing.assert_allclose(step.network.weight.asnumpy(), [1 - 0.4995 * 0.6, 2 - 0.4995 * 0.8], rtol=1e-5)


def test_sentence_order_alone_can_be_learnt() -> None:
    """64 pairs of segments in order or swapped, random tokens, no masked token: accuracy 1.0."""
    generator = np.random.default_rng(0)
    rows, half = 64, 6
    labels = np.arange(rows) % 2
    pairs = generator.integers(5, 50, (rows // 2, 2, half))
    ids = np.stack([pair[::-1] if label else pair for pair in pairs for label in (0, 1)]).reshape(rows, 2 * half)
    columns = {
        "input_ids": ids.astype(np.int32),
        "input_mask": np.ones_like(ids, np.int32),
        "segment_ids": np.tile(np.repeat([0, 1], half), (rows, 1)).astype(np.int32),
        "masked_lm_positions": np.zeros((rows, 1), np.int32),
        "masked_lm_ids": np.zeros((rows, 1), np.int32),
        "masked_lm_weights": np.zeros((rows, 1), np.float32),
        "next_sentence_labels": labels.astype(np.int32),
        "sequence_weights": np.ones(rows, np.float32),
        "sop_loss_weights": np.ones(rows, np.float32),
    }
    sizes = {"hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 128, "embedding_size": 32}
    config = TINY.replace(num_hidden_layers=4, **sizes)
    network = AlbertForPreTraining(config, seed=1)
    settings = OPTIMIZER_SETTINGS.replace(learning_rate=2e-3, warmup_steps=20)
    step = TrainStep(network, build_optimizer(network.trainable_params(), settings, 300), LossScale())
    best = 0.0
    for _ in range(300):
        best = max(best, float(step.train([columns])["sop_accuracy"]))
        if best == 1.0:
            break
    assert best == 1.0
