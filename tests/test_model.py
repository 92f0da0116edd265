"""The backbone: sizes as published, sharing modes, groups, relative positions, mixed precision."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, ops
from scipy.special import erf, log_softmax, softmax

from model_utils.backend import Backend
from src.albert_config import PRESETS
from src.albert_for_pre_training import AlbertForPreTraining, PreTrainingScores, initialise_output_bias
from src.albert_model import AlbertModel, initialise_weights, sharing_plan
from src.finetune_eval_model import SequenceClassificationScores
from src.nn import layers
from src.nn.attention import relative_position_table
from src.nn.dropout import Dropout, mix_bits
from src.nn.layers import GeluErf, GeluTanh, LayerNorm, sigmoid_tanh
from src.nn.losses import cross_entropy
from tests.helpers.layer_inputs import Attend, attention_inputs
from tests.helpers.tiny_model import KEY, TINY, batch


@pytest.mark.parametrize(
    ("name", "millions"),
    [("albert_base", 11.8), ("albert_large", 17.7), ("albert_xlarge", 58.7), ("albert_xxlarge", 222.6)],
)
def test_parameter_counts_are_the_published_ones(name: str, millions: float) -> None:
    """Encoder, embeddings and pooler, as the paper's table 1 and the published checkpoints count them."""
    network = AlbertModel(PRESETS[name])
    count = sum(int(np.prod(parameter.shape)) for parameter in network.trainable_params())
    assert round(count / 1e6, 1) == pytest.approx(millions, abs=0.11)


def test_initial_weights_follow_the_seed() -> None:
    first, again, other = (
        {p.name: p.asnumpy() for p in AlbertForPreTraining(TINY, seed).trainable_params()} for seed in (1, 1, 2)
    )
    name = "albert.encoder.attentions.0.query.weight"
    assert all(np.array_equal(first[key], again[key]) for key in first)
    assert not np.array_equal(first[name], other[name])
    assert np.abs(first[name]).max() <= 2 * TINY.initializer_range
    assert np.all(first["albert.embeddings.layer_norm.gamma"] == 1) and np.all(first["mlm.bias"] == 0)


def test_truncated_normal_has_the_width_asked_for() -> None:
    network = ms.nn.Dense(400, 300)
    initialise_weights(network, 0.02, seed=0)
    # A normal distribution cut off at two standard deviations keeps 0.8796 of its standard deviation.
    assert network.weight.asnumpy().std() == pytest.approx(0.02 * 0.8796, rel=0.01)


@pytest.mark.parametrize(
    ("share", "groups", "layers"),
    [
        ("all", 1, [(0, 0)] * 4),
        ("all", 2, [(0, 0), (0, 0), (1, 1), (1, 1)]),
        ("all", 3, [(0, 0), (0, 0), (1, 1), (2, 2)]),
        ("attention", 1, [(0, 0), (0, 1), (0, 2), (0, 3)]),
        ("ffn", 1, [(0, 0), (1, 0), (2, 0), (3, 0)]),
        ("none", 1, [(0, 0), (1, 1), (2, 2), (3, 3)]),
    ],
)
def test_sharing_plan(share: str, groups: int, layers: list[tuple[int, int]]) -> None:
    assert sharing_plan(TINY.replace(num_hidden_layers=4, share_parameters=share, num_hidden_groups=groups)) == layers


class CheckedSoftmax(ms.nn.Cell):
    """The stock one, of one type alone."""

    allowed = ms.float32

    stock = ops.Softmax

    def __init__(self, axis: int) -> None:
        super().__init__()
        self.softmax = self.stock(axis)

    def construct(self, x: Tensor) -> Tensor:
        assert x.dtype == self.allowed
        return self.softmax(x)


@pytest.mark.parametrize("backend", [Backend.COMPOSED, Backend.ACCELERATOR])
def test_float16_is_what_products_multiply_alone(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """LayerNorm and the residual stream stay float32: the sums here are too large for float16. So does a CPU's softmax.

    A GPU's takes and gives float16, and computes in float32.
    """
    monkeypatch.setattr(CheckedSoftmax, "allowed", ms.float32 if backend.is_for_cpu else ms.float16)
    monkeypatch.setattr(ops, "Softmax", CheckedSoftmax)
    network = AlbertModel(TINY.replace(num_hidden_layers=1, compute_type="float16", backend=backend))
    parameters = {each.name: each for each in network.trainable_params()}
    summand = np.linspace(-40000, 40000, 16).astype(np.float16).astype(np.float32)
    for name in ("embedding_hidden_mapping", "attentions.0.output"):  # all weights are 0
        parameters[f"encoder.{name}.bias"].set_data(Tensor(summand))
    sequence, _ = network(*(Tensor(batch()[name]) for name in ("input_ids", "input_mask", "segment_ids")), KEY)
    assert sequence.dtype == ms.float32
    expected = np.broadcast_to(summand / summand.std(), sequence.shape)
    np.testing.assert_allclose(sequence.asnumpy(), expected, rtol=1e-6)


def test_padding_is_not_seen() -> None:
    """Other tokens behind the mask change neither the real positions' outputs nor the pooled one."""
    network = AlbertModel(TINY)
    initialise_weights(network, 0.3, seed=2)
    columns = batch()
    mask = columns["input_mask"]
    outputs = []
    for filler in (0, 7):
        ids = np.where(mask == 1, columns["input_ids"], filler).astype(np.int32)
        sequence, pooled = network(Tensor(ids), Tensor(mask), Tensor(columns["segment_ids"]), KEY)
        outputs.append((sequence.asnumpy()[mask == 1], pooled.asnumpy()))
    np.testing.assert_array_equal(outputs[0][0], outputs[1][0])
    np.testing.assert_array_equal(outputs[0][1], outputs[1][1])


@pytest.mark.parametrize("blocks", [1, 2])
@pytest.mark.parametrize("places", [None, [[3, 5], [4, 4], [0, 9]]])
def test_heads_get_the_states_that_they_read(blocks: int, places: list[list[int]] | None) -> None:
    """Only the states of first tokens and masked ones are made, and they are those of the whole last layer."""

    class Encoding(ms.nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            config = TINY.replace(inner_group_num=blocks)
            self.scores = PreTrainingScores(config) if places else SequenceClassificationScores(config, 2)
            initialise_weights(self, 0.2, seed=2)

        def construct(self, *inputs: Tensor) -> tuple[Tensor, ...]:
            return self.scores.encode(inputs[:3], inputs[3:])

    network = Encoding().set_train(False)
    texts = [Tensor(batch()[name]) for name in ("input_ids", "input_mask", "segment_ids")]
    positions = np.array(places or [[], [], []], np.int32)
    further = [Tensor(positions)] if places else []
    sequence, pooled = (each.asnumpy() for each in network(*texts, *further, KEY))
    whole, of_all = (each.asnumpy() for each in network.scores.albert(*texts, KEY))
    read = np.concatenate([np.zeros((3, 1), np.int32), positions], 1)
    assert sequence.shape == (3, read.shape[1], 16)
    np.testing.assert_allclose(sequence, np.take_along_axis(whole, read[:, :, None], 1), atol=1e-6)
    np.testing.assert_allclose(pooled, of_all, atol=1e-6)


@pytest.mark.parametrize("backend", [Backend.COMPOSED, Backend.AUTO])
def test_relative_positions_are_part_of_keys_and_values(backend: Backend) -> None:
    """NEZHA (Wei et al. 2019, section 3.1): e_ij = q_i (k_j + a_ij) / sqrt(D), z_i = sum_j P_ij (v_j + a_ij)."""
    inputs = attention_inputs(2, 12, 48)
    attend = Attend(use_relative_positions=True, max_relative_position=5, backend=backend)
    x, *weights_and_biases, mask = (value.astype(np.float64) for value in inputs)
    query, key, value = (
        (x @ weight.T + bias).reshape(2, 12, 4, 12).swapaxes(1, 2)  # B, A, L, D
        for weight, bias in zip(weights_and_biases[:3], weights_and_biases[3:], strict=True)
    )
    places = np.arange(12)
    distances = np.clip(places[None, :] - places[:, None], -5, 5)  # from query i to key j
    of_pairs = relative_position_table(5, 12)[distances + 5].astype(np.float64)  # L, L, D
    scores = query @ key.swapaxes(2, 3) + np.einsum("baid,ijd->baij", query, of_pairs)
    shares = softmax(scores / np.sqrt(12) + mask, -1)
    expected = shares @ value + np.einsum("baij,ijd->baid", shares, of_pairs)
    found = attend(*map(Tensor, inputs)).asnumpy()
    np.testing.assert_allclose(found, expected.swapaxes(1, 2).reshape(24, 48), atol=2e-6 * np.abs(expected).max())


def test_relative_positions_see_distance_alone() -> None:
    """Without absolute positions and with equal neighbours, shifting a sequence shifts its outputs."""
    config = TINY.replace(use_relative_positions=True, max_relative_position=16)
    network = AlbertModel(config)
    assert not any("position_embeddings" in each.name for each in network.get_parameters())
    initialise_weights(network, 0.3, seed=2)
    ids = np.zeros((1, 12), np.int32)
    shifted = ids.copy()
    ids[0, 2:7], shifted[0, 4:9] = range(1, 6), range(1, 6)
    masks = [np.zeros((1, 12), np.int32) for _ in range(2)]
    masks[0][0, 2:7], masks[1][0, 4:9] = 1, 1
    zeros = Tensor(np.zeros((1, 12), np.int32))
    first, second = (
        network(Tensor(i), Tensor(m), zeros, KEY)[0].asnumpy() for i, m in zip((ids, shifted), masks, strict=True)
    )
    np.testing.assert_allclose(first[2:7], second[4:9], atol=1e-5)
    table = relative_position_table(3, 4)
    assert table.shape == (7, 4) and table[0].tolist() == [0, 1, 0, 1]
    np.testing.assert_allclose(table[2], [np.sin(2), np.cos(2), np.sin(0.02), np.cos(0.02)], rtol=1e-6)


def numeric_gradient(function, x: np.ndarray) -> np.ndarray:
    """Central differences in float64 of sum(function(x))."""
    step, gradient = 1e-6, np.zeros_like(x)
    for index in np.ndindex(*x.shape):
        up, down = x.copy(), x.copy()
        up[index] += step
        down[index] -= step
        gradient[index] = (function(up).sum() - function(down).sum()) / (2 * step)
    return gradient


class WeightedSum(ms.nn.Cell):
    """sum(weight * cell(*inputs)): a scalar whose gradient shows the cell's own."""

    def __init__(self, cell: ms.nn.Cell, weight: np.ndarray) -> None:
        super().__init__()
        self.cell = cell
        self.weight = Tensor(weight, ms.float32)

    def construct(self, *inputs: Tensor) -> Tensor:
        return ops.reduce_sum(self.weight * self.cell(*inputs))


def reference_cases() -> list:
    """(cell, the same function in float64, further inputs)."""
    labels = np.array([1, 4, 0], np.int32)
    return [
        (GeluTanh(), lambda v: 0.5 * v * (1 + np.tanh(np.sqrt(2 / np.pi) * (v + 0.044715 * v**3))), ()),
        (GeluErf(), lambda v: 0.5 * v * (1 + erf(v / np.sqrt(2))), ()),
        (
            LayerNorm(5, backend=Backend.COMPOSED),
            lambda v: (v - v.mean(-1, keepdims=True)) / v.std(-1, keepdims=True),
            (),
        ),
        (layers.Softmax(Backend.COMPOSED), lambda v: softmax(v, -1), ()),
        (cross_entropy(Backend.COMPOSED).losses, lambda v: -log_softmax(v, -1)[range(3), labels], (Tensor(labels),)),
    ]


@pytest.mark.parametrize("case", reference_cases(), ids=lambda case: type(case[0]).__name__)
def test_own_gradients_against_central_differences(case: tuple) -> None:
    cell, reference, further = case
    generator = np.random.default_rng(0)
    x = generator.normal(size=(3, 5)) * 2
    weight = generator.normal(size=reference(x).shape)
    value, gradient = ops.value_and_grad(WeightedSum(cell, weight))(Tensor(x, ms.float32), *further)
    assert float(value) == pytest.approx((reference(x) * weight).sum(), rel=1e-5, abs=1e-5)
    expected = numeric_gradient(lambda v: reference(v) * weight, x)
    np.testing.assert_allclose(gradient.asnumpy(), expected, atol=2e-5)


def test_tanh_is_exact_where_the_stock_one_is_not() -> None:
    x = np.linspace(-9, 9, 2001, dtype=np.float32)
    np.testing.assert_allclose(sigmoid_tanh(Tensor(x)).asnumpy(), np.tanh(x.astype(np.float64)), atol=2e-6)


def test_dropout_masks() -> None:
    dropout = Dropout(0.1, site=3).set_train(True)
    x = Tensor(np.ones((2000, 312), np.float32))
    first, again, other = (dropout(x, Tensor(key, ms.int32)).asnumpy() for key in (7, 7, 8))
    np.testing.assert_array_equal(first, again)
    assert sorted(np.unique(first).tolist()) == [0.0, pytest.approx(1 / 0.9)]
    dropped = first == 0
    assert dropped.mean() == pytest.approx(0.1, abs=0.002)
    # Rows and columns vary as independent draws do, and two keys, two rows, two columns are uncorrelated.
    assert dropped.mean(0).std() == pytest.approx(np.sqrt(0.09 / 2000), rel=0.15)
    assert dropped.mean(1).std() == pytest.approx(np.sqrt(0.09 / 312), rel=0.15)
    for a, b in ((dropped, other == 0), (dropped[1:], dropped[:-1]), (dropped[:, 1:], dropped[:, :-1])):
        assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 0.006
    np.testing.assert_array_equal(dropout.set_train(False)(x, KEY).asnumpy(), x.asnumpy())


def test_dropout_masks_are_the_same_on_every_machine() -> None:
    """Whole numbers that float32 holds exactly: the formula in integers gives the same mask, whatever adds it up."""
    dropout = Dropout(0.3, site=5).set_train(True)
    kept = dropout(Tensor(np.ones((40, 33), np.float32)), Tensor(9, ms.int32)).asnumpy() > 0
    mixed = mix_bits(mix_bits(Tensor(9 + 5, ms.int32)) + Tensor(np.arange(16, dtype=np.int32))).asnumpy().astype(int)
    rows, columns = (
        np.random.default_rng([20200209, axis]).integers(0, high, (places, 16))
        for axis, high, places in ((0, 128, 40), (1, 256, 33))
    )
    total = (rows * ((mixed & 63) * 2 + 1) % 2048) @ columns.T
    np.testing.assert_array_equal(kept, total % 2**14 / 2**14 >= np.float32(0.3))


def test_output_bias_starts_at_the_unigram_distribution() -> None:
    network = PreTrainingScores(TINY)
    counts = np.arange(TINY.vocab_size)
    initialise_output_bias(network, counts)
    bias = next(p for p in network.get_parameters() if p.name == "mlm.bias").asnumpy()
    np.testing.assert_allclose(np.exp(bias), (counts + 1) / (counts + 1).sum(), rtol=1e-5)
    with pytest.raises(ValueError, match="the vocabulary of the model is 50 tokens"):
        initialise_output_bias(network, counts[1:])
