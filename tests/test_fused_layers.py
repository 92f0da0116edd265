"""Layers in C++ compute what the composed ones do, and are only used where they can be."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn, ops

from model_utils.native_code import find_compiler, left_out
from src.albert_for_pre_training import AlbertForPreTraining
from src.nn import fused_layers, fused_products, layers
from src.nn.dropout import Dropout, random_features
from src.nn.layer_form import made_for
from src.nn.losses import cross_entropy
from tests.helpers.gradients import Gradients
from tests.helpers.layer_inputs import RANDOM, Attend, attention_inputs, normal
from tests.helpers.products import Multiply
from tests.helpers.threads import helpers
from tests.helpers.tiny_model import KEY, TINY, assert_same_gradients, batch, outputs_and_gradients

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler is installed")
LABELS = RANDOM.integers(0, 300, 170).astype(np.int32)
Form = Callable[[], contextlib.AbstractContextManager]
FORMS = (left_out, contextlib.nullcontext)  # composed, fused
RELATIVE = {"use_relative_positions": True, "max_relative_position": 5}


class Add(nn.Cell):
    """LayerNorm.of_sum with weights other than 1 and 0."""

    def __init__(self, probability: float = 0.0) -> None:
        super().__init__()
        self.norm = layers.LayerNorm(48, probability=probability)
        self.dropout = Dropout(probability, site=1).set_train(True)
        self.norm.gamma.set_data(Tensor(np.linspace(-1, 2, 48, dtype=np.float32)))
        self.norm.beta.set_data(Tensor(np.linspace(1, 3, 48, dtype=np.float32)))

    def construct(self, x: Tensor, bias: Tensor, residual: Tensor) -> Tensor:
        return self.norm.of_sum(x, bias, residual, self.dropout.factors(*x.shape, Tensor(5, ms.int32)))


class Drop(nn.Cell):
    """Dropout with a key."""

    def __init__(self) -> None:
        super().__init__()
        self.dropout = Dropout(0.3, site=1).set_train(True)

    def construct(self, x: Tensor) -> Tensor:
        return self.dropout(x, Tensor(5, ms.int32))


class Losses(nn.Cell):
    """Losses of rows."""

    def __init__(self) -> None:
        super().__init__()
        self.cross_entropy = cross_entropy()

    def construct(self, logits: Tensor, labels: Tensor) -> Tensor:
        return self.cross_entropy(logits, labels)[0]


def multiply(*sizes: int, shared: bool = False) -> tuple[Callable[[], nn.Cell], tuple[np.ndarray, ...]]:
    """A cell and inputs: products of (sizes[0], sizes[1]) and weights of (size, sizes[1]) for the other sizes."""
    rows, inner, *widths = sizes
    return lambda: Multiply(len(widths), shared), (normal(rows, inner), *(normal(width, inner) for width in widths))


def attend(texts: int, length: int, **changes: float) -> tuple[Callable[[], nn.Cell], tuple[np.ndarray, ...]]:
    return lambda: Attend(**changes), attention_inputs(texts, length, 48)


# What makes the cell, its inputs; several sizes, so that rows are dealt out to the threads or not.
CASES: dict[str, tuple[Callable[[], nn.Cell], tuple[np.ndarray, ...]]] = {
    "product": multiply(70, 33, 301),
    "product, tall": multiply(999, 64, 96),
    "product, a row": multiply(1, 64, 2),
    "three products": multiply(999, 48, 48, 96, 7),
    "prepacked": multiply(70, 33, 301, shared=True),
    "prepacked, parts": multiply(170, 33, 1301, shared=True),
    "prepacked, fewer parts than threads": multiply(500, 33, 600, shared=True),
    "prepacked, parts, tall": multiply(1999, 33, 1301, shared=True),
    "prepacked, a row": multiply(1, 64, 2, shared=True),
    "three products, prepacked": multiply(999, 48, 48, 96, 7, shared=True),
    "bias_gelu": (lambda: layers.bias_activation("gelu_new"), (normal(517, 96), normal(96))),
    "bias_gelu, far out": (lambda: layers.bias_activation("gelu_new"), (50 * normal(3, 7), normal(7))),
    "layer_norm": (lambda: layers.LayerNorm(48), (normal(700, 48),)),
    "of_sum": (Add, (normal(701, 48), normal(48), normal(701, 48))),
    "of_sum, dropout": (lambda: Add(0.3), (normal(1033, 48), normal(48), normal(1033, 48))),
    "attention": attend(3, 33),
    "attention, long": attend(2, 300),
    "attention, one token": attend(2, 1),
    "relative": attend(3, 33, use_relative_positions=True, max_relative_position=64),
    "relative, far": attend(2, 300, **RELATIVE),
    "attention, dropout": attend(2, 33, attention_probs_dropout_prob=0.2),
    "relative, far, dropout": attend(2, 150, **RELATIVE, attention_probs_dropout_prob=0.2),
    "dropout": (Drop, (normal(999, 77),)),
    "cross_entropy": (Losses, (10 * normal(170, 300), LABELS)),
}
KEYS_BIAS, MASK = 5, 7  # inputs of attention without a gradient: the bias is the same for all keys of a query


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_are_those_of_the_composed_operations(name: str) -> None:
    make, inputs = CASES[name]
    results = []
    for form in FORMS:
        with form():
            cell = make()
        tensors = [Tensor(value) for value in inputs]
        dout = Tensor(np.random.default_rng(1).standard_normal(cell(*tensors).shape).astype(np.float32))
        value, (by_input, by_weight) = Gradients(cell)(dout, *tensors)
        by_input = [gradient.asnumpy() for gradient in by_input]
        if name.startswith(("attention", "relative")):
            assert np.abs(by_input[KEYS_BIAS]).max() <= 1e-5 * np.abs(by_input[4]).max()
            by_input[KEYS_BIAS] = by_input[MASK] = np.zeros(1)
        results.append([value.asnumpy(), *by_input, *(gradient.asnumpy() for gradient in by_weight)])
    for composed, fused in zip(*results, strict=True):
        np.testing.assert_allclose(fused, composed, rtol=2e-6, atol=2e-6 * max(1, np.abs(composed).max()))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"use_relative_positions": True, "max_relative_position": 4},
        {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1},
        {"hidden_act": "gelu", "share_parameters": "none"},
    ],
    ids=str,
)
def test_a_network_trains_as_without_them(changes: dict) -> None:
    config = TINY.replace(initializer_range=0.2, **changes)
    results = []
    for form in FORMS:
        with form():
            network = AlbertForPreTraining(config, seed=1).set_train(True)
        results.append(outputs_and_gradients(network, batch(config)))
    ((loss, *_), gradients), ((fused_loss, *_), fused_gradients) = results
    assert fused_loss == pytest.approx(loss, rel=1e-6)
    assert_same_gradients(fused_gradients, gradients, 5e-6)


@pytest.mark.parametrize(
    ("changes", "weights"),
    [({}, 6), ({"share_parameters": "ffn"}, 2), ({"share_parameters": "none"}, 0), ({"num_hidden_groups": 2}, 12)],
    ids=str,
)
def test_weights_of_several_layers_are_prepacked_once(changes: dict, weights: int) -> None:
    """However many layers have them."""
    config = TINY.replace(**changes)
    network = AlbertForPreTraining(config).set_train(True)
    inputs = [Tensor(batch(config)[name]) for name in network.input_columns]
    train = ops.value_and_grad(network, None, ms.ParameterTuple(network.trainable_params()), has_aux=True)
    for _ in range(2):
        before = fused_products.prepackings()
        train(*inputs, KEY)[0][0].asnumpy()
        assert fused_products.prepackings() - before == weights


def test_weights_that_stay_are_prepacked_once_for_all() -> None:
    """When the network is made, not in a pass, of whichever shape; the results are the same bits."""
    usual, keeping = (Multiply(3, shared=True) for _ in range(2))
    weights = [Parameter(Tensor(normal(width, 33)), name=f"w{width}") for width in (301, 7, 48)]
    before = fused_products.prepackings()
    keeping.products.keep_prepacked(*weights)
    assert fused_products.prepackings() - before == 3
    for rows in (1, 70):
        x = Tensor(normal(rows, 33))
        expected = usual(x, *weights).asnumpy()
        before = fused_products.prepackings()
        np.testing.assert_array_equal(keeping(x, *weights).asnumpy(), expected)
        assert fused_products.prepackings() == before


def test_sums_of_squares_and_scaled_tensors() -> None:
    tensors = [normal(300, 999), normal(7), normal(2, 3, 4)]
    inputs = tuple(Tensor(each) for each in tensors)
    total = float(layers.square_sum()(inputs))
    assert total == pytest.approx(sum(np.sum(np.square(each.astype(np.float64))) for each in tensors), rel=1e-6)
    for scaled, each in zip(layers.scale_all(3)(inputs, Tensor(0.25, ms.float32)), tensors, strict=True):
        np.testing.assert_array_equal(scaled.asnumpy(), each * np.float32(0.25))


@pytest.mark.parametrize("form", FORMS)
def test_scaled_by_nothing_is_0_even_of_what_is_not_finite(form: Form) -> None:
    with form():
        scale = layers.scale_all(2)
    damaged = Tensor([np.nan, np.inf, -np.inf, 1.0], ms.float32)
    for scaled in scale((damaged, damaged), Tensor(0.0, ms.float32)):
        np.testing.assert_array_equal(scaled.asnumpy(), np.zeros(4))


@pytest.mark.parametrize("form", FORMS)
def test_a_hit_is_the_first_of_the_largest(form: Form) -> None:
    with form():
        cell = cross_entropy()
    logits = Tensor([[1, 3, 3, 2], [1, 3, 3, 2], [0, -1, -2, 5], [7, 7, 7, 7]], ms.float32)
    _, hits = cell(logits, Tensor([1, 2, 3, 0], ms.int32))
    np.testing.assert_array_equal(hits.asnumpy(), [1, 0, 1, 1])


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_not_a_number_and_infinity_are_passed_on(bad: float) -> None:
    """The loss scale is lowered by what overflows, and must see it."""
    x = normal(4, 8)
    x[2, 3] = bad
    assert not np.isfinite(layers.bias_activation("gelu_new")(Tensor(x), Tensor(normal(8))).asnumpy()[2, 3])
    assert not np.isfinite(layers.LayerNorm(8)(Tensor(x)).asnumpy()[2]).any()
    assert not np.isfinite(cross_entropy()(Tensor(x), Tensor(LABELS[:4] % 8))[0].asnumpy()[2])
    query = normal(4, 48)
    query[2, 3] = bad
    key, *_, query_bias, key_bias, value_bias, mask = map(Tensor, attention_inputs(1, 4, 48))
    biases = query_bias, key_bias, value_bias
    context = fused_layers.Attention(4, None, 0.0)(Tensor(query), key, key, biases, mask).asnumpy()
    assert not np.isfinite(context[2, :12]).any()
    assert np.isfinite(context[1]).all()


@pytest.mark.parametrize("relative", [False, True])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_texts_of_any_lengths_are_attended_to_each_by_itself(relative: bool, dropout: float) -> None:
    """Contexts and gradients; the masks of dropout follow from the row."""
    heads, begins, ends = 4, [0, 7, 8, 8], [7, 8, 8, 98]
    operands, biases = [normal(100, 48) for _ in range(3)], [Tensor(normal(48)) for _ in range(3)]
    factors = [each.asnumpy() for each in Dropout(dropout, 1).set_train(True).factors(heads * 100, 100, KEY)]
    attention = fused_layers.Attention(heads, Tensor(normal(7, 12)) if relative else None, dropout)
    weights = normal(100, 48)

    def results(begin: int, end: int, texts: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
        """Context and the gradients of its weighted sum, of some rows."""
        own = [Tensor(each[begin:end]) for each in operands]
        of_rows = [factors[0][heads * begin : heads * end], factors[1][: end - begin]] if dropout else []

        def weighted_sum(query: Tensor, key: Tensor, value: Tensor, *biases: Tensor) -> tuple[Tensor, Tensor]:
            context = attention(query, key, value, biases, Tensor(texts), tuple(map(Tensor, of_rows)))
            return ops.reduce_sum(context * Tensor(weights[begin:end])), context

        differentiate = ops.value_and_grad(weighted_sum, (0, 1, 2, 3, 4, 5), has_aux=True)
        (_, context), gradients = differentiate(*own, *biases)
        return context.asnumpy(), [gradient.asnumpy() for gradient in gradients]

    context, gradients = results(0, 100, np.array([*begins, 98], np.int32))
    of_biases = [0.0] * 3
    for begin, end in zip(begins, ends, strict=True):
        if begin < end:
            alone, of_rows = results(begin, end, np.zeros((1, 1, 1, end - begin), np.float32))
            for packed, expected in zip((context, *gradients[:3]), (alone, *of_rows[:3]), strict=True):
                np.testing.assert_allclose(packed[begin:end], expected, atol=2e-6 * np.abs(expected).max())
            of_biases = [total + gradient for total, gradient in zip(of_biases, of_rows[3:], strict=True)]
    for gradient, expected in zip(gradients[3:], of_biases, strict=True):
        np.testing.assert_allclose(gradient, expected, atol=1e-5 * np.abs(gradients[5]).max())
    assert all((each[98:] == 0).all() for each in (context, *gradients[:3]))


@pytest.fixture
def without_graphs() -> Iterator[None]:
    """Operations one by one: after an error in a graph MindSpore waits for three seconds."""
    ms.set_context(mode=ms.PYNATIVE_MODE)
    yield
    ms.set_context(mode=ms.GRAPH_MODE)


@pytest.mark.usefixtures("without_graphs")
def test_what_does_not_fit_is_refused() -> None:
    """Instead of reading and writing beside the operands: every operation looks at them itself."""

    def refused(operation: str) -> contextlib.AbstractContextManager:
        return pytest.raises(RuntimeError, match=rf"function\({operation}\) is 1\.")

    logits, weight = Tensor(normal(4, 5)), Tensor(normal(6, 4))
    with refused("cross_entropy"):
        cross_entropy()(logits, Tensor([0, 1, 5, 2], ms.int32))[0].asnumpy()
    with refused("project_float32"):
        layers.dense_product(ms.float32)(logits, weight).asnumpy()
    with refused("project_prepacked_float32"):
        fused_products.Product(shared=True).value_prepacked(logits, Tensor(normal(6, 5)), Tensor(normal(29))).asnumpy()
    x, *_, mask = (Tensor(each) for each in attention_inputs(2, 5, 48))
    biases = (Tensor(normal(48)),) * 3
    for heads, table, rows in ((5, None, 10), (4, Tensor(normal(9, 11)), 10), (4, None, 9)):
        with refused("attention"):
            fused_layers.Attention(heads, table, 0.0)(x[:rows], x, x, biases, mask).asnumpy()
    for begins in ([0, 6, 4], [1, 4, 10], [0, 4, 11], [0, -1, 4]):
        with refused("attention"):
            fused_layers.Attention(4, None, 0.0)(x, x, x, biases, Tensor(np.array(begins, np.int32))).asnumpy()
    for rows, columns in ((39, 5), (40, 4)):
        factors = Tensor(normal(rows, 32)), Tensor(normal(columns, 32))
        with refused("attention"):
            fused_layers.Attention(4, None, 0.1)(x, x, x, biases, mask, factors).asnumpy()
    for factors in ((normal(9, 32), normal(48, 32)), (normal(10, 32), normal(47, 32)), (normal(10, 9), normal(48, 32))):
        operands = x, biases[0], x, *biases[1:], tuple(map(Tensor, factors))
        with refused("drop_add_norm"):
            fused_layers.AddNormalise(1e-12, 0.1)(*operands).asnumpy()
        with refused("dropout"):
            fused_layers.ApplyMask(0.1)(x, *operands[-1]).asnumpy()


def test_results_are_the_same_every_time_although_several_operations_run_at_once() -> None:
    gradients = Gradients(layers.bias_activation("gelu_new"))
    inputs = [Tensor(value) for value in (normal(40000, 64), normal(40000, 64), normal(64))]
    first = gradients(*inputs)[1][0][1].asnumpy()
    for _ in range(20):
        np.testing.assert_array_equal(gradients(*inputs)[1][0][1].asnumpy(), first)
    assert helpers() == 2  # beside the thread that calls


def test_as_many_threads_as_the_user_says_or_one_a_core() -> None:
    script = (
        "import os, sys; os.sched_setaffinity(0, range(os.cpu_count()))  # whatever core the tests have\n"
        "from model_utils.device import setup_device; setup_device('CPU', threads=int(sys.argv[1]))\n"
        "from mindspore import Tensor; from src.nn import layers; import numpy as np\n"
        "cell = layers.bias_activation('gelu_new')\n"
        "cell(Tensor(np.ones((999, 99), np.float32)), Tensor(np.ones(99, np.float32))).asnumpy()\n"
        "from tests.helpers.threads import helpers; print(helpers(), len(os.sched_getaffinity(0)))"
    )
    without = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    for wanted in (0, 1):
        command = [sys.executable, "-c", script, str(wanted)]
        done = subprocess.run(command, env=without, capture_output=True, text=True, check=True)
        found, cores = map(int, done.stdout.split())
        assert found == (wanted or cores) - 1  # beside the thread that calls


def test_the_number_of_threads_changes_the_last_digits_at_most(tmp_path: Path) -> None:
    script = (
        "import sys, numpy as np; from mindspore import Tensor, float32\n"
        "from model_utils.device import setup_device; setup_device('CPU')\n"
        "from model_utils import cpu_threads; cpu_threads._threads[0] = int(sys.argv[2])  # more than cores, too\n"
        "from src.nn import layers; from tests.helpers.gradients import Gradients\n"
        "from tests.helpers.layer_inputs import Attend, attention_inputs, normal\n"
        "dout, inputs = normal(900, 48), [Tensor(each) for each in attention_inputs(3, 300, 48)]\n"
        "total = layers.square_sum()((Tensor(dout), Tensor(normal(999, 300)))).asnumpy().reshape(1)\n"
        "made, product = [total], [Tensor(normal(900, 48)), Tensor(normal(1301, 48))]\n"
        "cells = layers.LayerNorm(48), Attend(), layers.dense_product(float32, True)\n"
        "for cell, given in zip(cells, (inputs[:1], inputs, product)):\n"
        "    weights = dout if cell(*given).shape == dout.shape else normal(900, 1301)\n"
        "    value, (by_input, by_weight) = Gradients(cell)(Tensor(weights), *given)\n"
        "    made += [each.asnumpy().ravel() for each in (value, *by_input[:5], *by_weight)]\n"
        "np.save(sys.argv[1], np.concatenate(made))\n"
        "from tests.helpers.threads import helpers; print(helpers())"
    )
    results = []
    for threads in (1, 5):
        file = tmp_path / f"{threads}.npy"
        command = [sys.executable, "-c", script, str(file), str(threads)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        assert int(done.stdout) == threads - 1  # beside the one that calls
        results.append(np.load(file))
    one, several = results
    assert one[0] == several[0]  # the sum of squares is the same to the last
    np.testing.assert_allclose(one[1:], several[1:], rtol=1e-5, atol=2e-6 * np.abs(several[1:]).max())


def test_networks_for_other_devices_have_none_of_them() -> None:
    with made_for("GPU"):
        network = AlbertForPreTraining(TINY, seed=1)
    cells = {type(cell).__module__ for _, cell in network.cells_and_names()}
    own = {"src.nn.fused_layers", "src.nn.fused_products"}
    assert "src.nn.layers" in cells and not own & cells
    assert own <= {type(cell).__module__ for _, cell in AlbertForPreTraining(TINY, 1).cells_and_names()}


def test_masks_are_the_same_in_both_forms() -> None:
    """Bit for bit, whatever the key: a run may go on where there is no compiler."""
    numbers = random_features(2100, 0)
    keys = [*RANDOM.integers(-(2**31), 2**31, 50).tolist(), 0, -1, 2**31 - 1, -(2**31)]
    with left_out():
        composed = Dropout(0.1, 1)
    forms = Dropout(0.1, 1), composed
    for key in keys:
        np.testing.assert_array_equal(*(form.by_row(numbers, Tensor(key, ms.int32)).asnumpy() for form in forms))


@pytest.mark.parametrize("probability", [0.1, 0.5, 2.0**-14])
def test_what_is_dropped_is_the_same_in_both_forms(probability: float) -> None:
    """In blocks of columns that are whole and in the last one, of rows of any length."""
    with left_out():
        composed = Dropout(probability, 3).set_train(True)
    fused, x = Dropout(probability, 3).set_train(True), Tensor(np.ones((2100, 150), np.float32))
    for key in (5, -7):
        dropped, expected = (form(x, Tensor(key, ms.int32)).asnumpy() == 0.0 for form in (fused, composed))
        np.testing.assert_array_equal(dropped, expected)
        assert abs(dropped.mean() - probability) < 6 * (probability / dropped.size) ** 0.5
