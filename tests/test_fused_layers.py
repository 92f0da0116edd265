"""Layers in C++ compute what the composed ones do, and are only used where they can be."""

import contextlib
import ctypes
import errno
import fcntl
import logging
import os
import re
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn, ops

from model_utils import device, native_code
from model_utils.backend import FUSED_LAYERS_CHOICES, Backend
from model_utils.device import setup_device
from model_utils.errors import DeviceError
from model_utils.native_code import build_library, find_compiler, library_for
from src.albert_for_pre_training import AlbertForPreTraining
from src.nn import fused_layers, fused_products, layers, native_operations
from src.nn.dropout import Dropout, random_features
from src.nn.losses import cross_entropy, linear_cross_entropy
from tests.conftest import ROOT
from tests.helpers.gradients import Gradients
from tests.helpers.layer_inputs import RANDOM, Attend, attention_inputs, normal
from tests.helpers.products import Multiply
from tests.helpers.threads import helpers
from tests.helpers.tiny_model import KEY, TINY, batch

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler is installed")
LABELS = RANDOM.integers(0, 300, 170).astype(np.int32)


class Add(nn.Cell):
    """LayerNorm.of_sum with weights other than 1 and 0."""

    def __init__(self, probability: float = 0.0, backend: Backend = Backend.AUTO) -> None:
        super().__init__()
        self.norm = layers.LayerNorm(48, probability=probability, backend=backend)
        self.dropout = Dropout(probability, 1, backend).set_train(True)
        self.norm.gamma.set_data(Tensor(np.linspace(-1, 2, 48, dtype=np.float32)))
        self.norm.beta.set_data(Tensor(np.linspace(1, 3, 48, dtype=np.float32)))

    def construct(self, x: Tensor, bias: Tensor, residual: Tensor) -> Tensor:
        return self.norm.of_sum(x, bias, residual, self.dropout.factors(*x.shape, Tensor(5, ms.int32)))


class Drop(nn.Cell):
    """Dropout with a key."""

    def __init__(self, backend: Backend) -> None:
        super().__init__()
        self.dropout = Dropout(0.3, 1, backend).set_train(True)

    def construct(self, x: Tensor) -> Tensor:
        return self.dropout(x, Tensor(5, ms.int32))


class Losses(nn.Cell):
    """Losses of rows."""

    def __init__(self, backend: Backend) -> None:
        super().__init__()
        self.cross_entropy = cross_entropy(backend)

    def construct(self, logits: Tensor, labels: Tensor) -> Tensor:
        return self.cross_entropy(logits, labels)[0]


class LinearLosses(nn.Cell):
    """Losses of rows whose logits are products."""

    def __init__(self, backend: Backend) -> None:
        super().__init__()
        self.linear_cross_entropy = linear_cross_entropy(ms.float32, backend)

    def construct(self, x: Tensor, weight: Tensor, bias: Tensor, labels: Tensor) -> Tensor:
        return self.linear_cross_entropy(x, weight, bias, labels)[0]


def linear_losses(rows: int, *biases: float) -> tuple[np.ndarray, ...]:
    """x (rows, 24), weight (V, 24), bias (V,) with each value for 251 columns, and labels (rows,)."""
    bias = np.repeat(biases, 251).astype(np.float32)
    return normal(rows, 24), normal(len(bias), 24) / 16, bias, RANDOM.integers(0, len(bias), rows).astype(np.int32)


# What makes the cell, its inputs; several sizes, so that rows are dealt out to the threads or not.
CASES: dict[str, tuple[Callable[..., nn.Cell], tuple[np.ndarray, ...]]] = {
    "product": (Multiply, (normal(70, 33), normal(301, 33))),
    "product, tall": (Multiply, (normal(999, 64), normal(96, 64))),
    "product, a row": (Multiply, (normal(1, 64), normal(2, 64))),
    "three products": (
        lambda backend: Multiply(3, backend=backend),
        (normal(999, 48), normal(48, 48), normal(96, 48), normal(7, 48)),
    ),
    "prepacked": (lambda backend: Multiply(shared=True, backend=backend), (normal(70, 33), normal(301, 33))),
    "prepacked, parts": (lambda backend: Multiply(shared=True, backend=backend), (normal(170, 33), normal(1301, 33))),
    "prepacked, fewer parts than threads": (
        lambda backend: Multiply(shared=True, backend=backend),
        (normal(500, 33), normal(600, 33)),
    ),
    "prepacked, parts, tall": (
        lambda backend: Multiply(shared=True, backend=backend),
        (normal(1999, 33), normal(1301, 33)),
    ),
    "prepacked, a row": (lambda backend: Multiply(shared=True, backend=backend), (normal(1, 64), normal(2, 64))),
    "three products, prepacked": (
        lambda backend: Multiply(3, shared=True, backend=backend),
        (normal(999, 48), normal(48, 48), normal(96, 48), normal(7, 48)),
    ),
    "bias_gelu": (lambda backend: layers.bias_activation("gelu_new", backend), (normal(517, 96), normal(96))),
    "bias_gelu, far out": (lambda backend: layers.bias_activation("gelu_new", backend), (50 * normal(3, 7), normal(7))),
    "bias_gelu_erf": (lambda backend: layers.bias_activation("gelu", backend), (normal(517, 96), normal(96))),
    "bias_gelu_erf, far out": (lambda backend: layers.bias_activation("gelu", backend), (50 * normal(3, 7), normal(7))),
    "layer_norm": (lambda backend: layers.LayerNorm(48, backend=backend), (normal(700, 48),)),
    "of_sum": (Add, (normal(701, 48), normal(48), normal(701, 48))),
    "of_sum, dropout": (lambda backend: Add(0.3, backend=backend), (normal(1033, 48), normal(48), normal(1033, 48))),
    "attention": (lambda backend: Attend(backend=backend), attention_inputs(3, 33, 48)),
    "attention, long": (lambda backend: Attend(backend=backend), attention_inputs(2, 300, 48)),
    "attention, one token": (lambda backend: Attend(backend=backend), attention_inputs(2, 1, 48)),
    "relative": (
        lambda backend: Attend(use_relative_positions=True, max_relative_position=64, backend=backend),
        attention_inputs(3, 33, 48),
    ),
    "relative, far": (
        lambda backend: Attend(use_relative_positions=True, max_relative_position=5, backend=backend),
        attention_inputs(2, 300, 48),
    ),
    "attention, dropout": (
        lambda backend: Attend(attention_probs_dropout_prob=0.2, backend=backend),
        attention_inputs(2, 33, 48),
    ),
    "relative, far, dropout": (
        lambda backend: Attend(
            use_relative_positions=True, max_relative_position=5, attention_probs_dropout_prob=0.2, backend=backend
        ),
        attention_inputs(2, 150, 48),
    ),
    "dropout": (Drop, (normal(999, 77),)),
    "cross_entropy": (Losses, (10 * normal(170, 300), LABELS)),
    "cross_entropy, linear": (LinearLosses, linear_losses(1300, 0.0, 1.0)),
    "cross_entropy, linear, growing": (LinearLosses, linear_losses(70, 0.0, 37.0, 41.0, 42.0)),
    "cross_entropy, linear, far apart": (LinearLosses, linear_losses(70, -300.0, 300.0, -300.0)),
}

# The mask, and the keys' bias, which is the same for all keys of a query: its gradient is rounding errors.
WITHOUT_GRADIENT = {(name, i) for name in CASES if name.startswith(("attention", "relative")) for i in (5, 7)}


def output_shape(name: str, x: np.ndarray, *others: np.ndarray) -> tuple[int, ...]:
    """Return the shape of a case's result without compiling it."""
    if "product" in name or "prepacked" in name:
        return len(x), sum(map(len, others))
    return x.shape[:1] if name.startswith("cross_entropy") else x.shape


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_are_those_of_the_composed_operations(name: str) -> None:
    make, inputs = CASES[name]
    tensors = [Tensor(value) for value in inputs]
    dout = Tensor(np.random.default_rng(1).standard_normal(output_shape(name, *inputs)).astype(np.float32))
    found, expected = [], []
    for backend, results in ((Backend.FUSED, found), (Backend.COMPOSED, expected)):
        cell = make(backend=backend)
        value, (by_input, by_weight) = Gradients(cell)(dout, *tensors)
        needed = [each for i, each in enumerate(by_input) if (name, i) not in WITHOUT_GRADIENT]
        if len(needed) < len(by_input):
            assert np.abs(by_input[5].asnumpy()).max() <= 1e-5 * np.abs(by_input[4].asnumpy()).max()
        results += [value.asnumpy(), *(each.asnumpy() for each in (*needed, *by_weight))]
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-6, atol=2e-6 * max(1, np.abs(other).max()))


@pytest.mark.parametrize(
    ("changes", "weights"),
    [
        ({}, 6),
        ({"share_parameters": "ffn"}, 2),
        ({"share_parameters": "none"}, 0),
        ({"num_hidden_layers": 4, "num_hidden_groups": 2}, 12),
    ],
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
    keeping.products.prepack_weights(*weights)
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


def test_scaled_by_nothing_is_0_even_of_what_is_not_finite() -> None:
    damaged = Tensor([np.nan, np.inf, -np.inf, 1.0], ms.float32)
    for backend in (Backend.COMPOSED, Backend.FUSED):
        scale = layers.scale_all(2, backend)
        for scaled in scale((damaged, damaged), Tensor(0.0, ms.float32)):
            np.testing.assert_array_equal(scaled.asnumpy(), np.zeros(4))


def test_a_hit_is_the_first_of_the_largest() -> None:
    logits = np.array([[1, 3, 3, 2], [1, 3, 3, 2], [0, -1, -2, 5], [7, 7, 7, 7]], np.float32)
    for backend in (Backend.COMPOSED, Backend.FUSED):
        cell = cross_entropy(backend)
        labels = Tensor([1, 2, 3, 0], ms.int32)
        np.testing.assert_array_equal(cell(Tensor(logits), labels)[1].asnumpy(), [1, 0, 1, 1])
        operands = np.eye(4, dtype=np.float32), np.ascontiguousarray(logits.T), np.zeros(4, np.float32)
        hits = linear_cross_entropy(ms.float32, backend)(*map(Tensor, operands), labels)[1]
        np.testing.assert_array_equal(hits.asnumpy(), [1, 0, 1, 1])


def test_not_a_number_and_infinity_are_passed_on() -> None:
    """The loss scale is lowered by what overflows, and must see it."""
    for bad in (np.nan, np.inf):
        x = normal(4, 8)
        x[2, 3] = bad
        for name in fused_layers.GELUS:
            assert not np.isfinite(layers.bias_activation(name)(Tensor(x), Tensor(normal(8))).asnumpy()[2, 3])
        assert not np.isfinite(layers.LayerNorm(8)(Tensor(x)).asnumpy()[2]).any()
        assert not np.isfinite(cross_entropy()(Tensor(x), Tensor(LABELS[:4] % 8))[0].asnumpy()[2])
        rows, *others = linear_losses(4, 0.0)
        rows[2, 3] = bad
        losses = linear_cross_entropy(ms.float32)(*map(Tensor, (rows, *others)))[0].asnumpy()
        np.testing.assert_array_equal(np.isfinite(losses), [True, True, False, True])
        inputs = [Tensor(each) for each in attention_inputs(1, 4, 48)]
        query = normal(4, 48)
        query[2, 3] = bad
        context = fused_layers.Attention(4, None, 0.0)(Tensor(query), *inputs[:1] * 2, tuple(inputs[4:7]), inputs[7])
        assert not np.isfinite(context.asnumpy()[2, :12]).any() and np.isfinite(context.asnumpy()[1]).all()


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
    for width, label in ((5, 6), (4, 0)):  # of six columns; x has five
        operands = normal(4, 5), normal(6, width), normal(6), np.full(4, label, np.int32)
        with refused("linear_cross_entropy_float32"):
            linear_cross_entropy(ms.float32)(*map(Tensor, operands))[0].asnumpy()
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


def test_without_a_compiler_layers_are_composed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    native_code._usable_library.cache_clear()
    try:
        with caplog.at_level(logging.WARNING):
            assert not native_operations.is_fused(Backend.AUTO)
            assert not native_operations.is_fused(Backend.AUTO)
        assert [record.getMessage() for record in caplog.records] == [
            "layers are not fused, so that networks compute more slowly: no C++ compiler is installed "
            "(looked for no-such-compiler, which CXX names)"
        ]
        for ask in (
            lambda: layers.LayerNorm(8, backend=Backend.FUSED),
            lambda: setup_device("CPU", fused_layers="always"),
        ):
            with pytest.raises(DeviceError, match=r"fused_layers is always, but no C\+\+ compiler"):
                ask()
    finally:
        native_code._usable_library.cache_clear()


def test_a_compilation_that_takes_too_long_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = tmp_path / "compiler"
    compiler.write_text('#!/bin/sh\n[ "$1" = --version ] && exit\nexec sleep 600\n')
    compiler.chmod(0o700)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(native_code, "SECONDS", 2)
    with pytest.raises(DeviceError, match=r"compiler has not compiled .*operations.cc in 2 s"):
        build_library(native_operations.SOURCE)


def test_a_compiler_that_waits_instead_of_saying_its_version_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = tmp_path / "compiler"
    compiler.write_text("#!/bin/sh\nexec sleep 600\n")
    compiler.chmod(0o700)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setattr(native_code, "SECONDS", 0.5)
    with pytest.raises(DeviceError, match=r"compiler --version` has not ended in 0.5 s"):
        build_library(native_operations.SOURCE)


def test_the_configuration_says_whether_they_are_used() -> None:
    for choice in FUSED_LAYERS_CHOICES:
        chosen = setup_device("CPU", fused_layers=choice)
        assert native_operations.is_fused(chosen.backend) == (choice != "never")
    assert Backend.of("GPU", "auto") is Backend.ACCELERATOR
    with pytest.raises(DeviceError, match=r"fused_layers is always.*Ascend"):
        device._check_settings("Ascend", 0, "float32", "always", 0)
    with pytest.raises(DeviceError, match=r"threads is 4.*Ascend"):
        device._check_settings("Ascend", 0, "float32", "auto", 4)


USABLE = 'const char *obstacle() { return ""; }'


def write_source(folder: Path, *functions: str) -> Path:
    """Write the source of a library with these functions, by default of one that can be used."""
    source = folder / "library.cc"
    visible = 'extern "C" __attribute__((visibility("default"))) '
    source.write_text("".join(f"{visible}{function}\n" for function in functions or (USABLE,)))
    return source


def test_a_library_is_compiled_once_and_is_there_whole_or_not_at_all(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    source = write_source(tmp_path, "int one() { return 1; }")
    library = build_library(source)
    assert library.parent == tmp_path / "albert-mindspore" and library.parent.stat().st_mode & 0o777 == 0o700
    made = library.stat().st_mtime_ns
    assert build_library(source) == library and library.stat().st_mtime_ns == made
    source.write_text('extern "C" int one() { return 2; }')
    second = build_library(source)
    assert second != library
    (tmp_path / "used.h").write_text("// what it includes")
    assert build_library(source) not in (library, second)
    source.write_text("no C++")
    with pytest.raises(DeviceError, match=r"cannot compile .*library\.cc: "):
        build_library(source)
    assert sorted(path.suffix for path in library.parent.iterdir()) == [".so", ".so", ".so"]


def test_a_compiler_may_be_named_with_arguments(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    source = write_source(tmp_path, "int one() { return ONE; }")
    monkeypatch.setenv("CXX", f"{find_compiler()[0]} -DONE=7")
    assert ctypes.CDLL(str(build_library(source))).one() == 7


@pytest.mark.parametrize("content", [b"", b"no library", b"\x7fELF"])
def test_a_library_that_cannot_be_loaded_is_compiled_elsewhere(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes
) -> None:
    """A damaged one, or where machines share a home, one of another system, which stays."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    source = write_source(tmp_path)
    foreign = build_library(source)
    foreign.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        library = library_for(source)
    assert library is not None and library.parent.name.startswith("albert-mindspore-")
    assert foreign.read_bytes() == content and str(library.parent) in caplog.text and str(foreign) in caplog.text


@pytest.mark.parametrize(
    ("cache", "allowed", "sentence"),
    [
        ("a:b", None, "has a colon in its path"),
        (".", "others", "MS_CUSTOM_AOT_WHITE_LIST allows operations from .*others alone, not from"),
    ],
)
def test_what_mindspore_would_not_call_is_not_used(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    cache: str,
    allowed: str | None,
    sentence: str,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / cache))
    if allowed:
        monkeypatch.setenv("MS_CUSTOM_AOT_WHITE_LIST", str(tmp_path / allowed))
    source = write_source(tmp_path)
    with caplog.at_level(logging.WARNING):
        assert library_for(source) is None
    assert re.search(sentence, caplog.text)


def test_a_library_s_path_has_no_links(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """MindSpore loads what a path leads to: another name of it would be another library, with threads of its own."""
    (tmp_path / "home").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "home")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "link"))
    source = write_source(tmp_path, "int one() { return 1; }")
    assert build_library(source).parent == tmp_path / "home" / "albert-mindspore"


TEAM = """#include "team.h"
#include <cstdio>
#include <new>

int main() {
  albert::Team::threads = 3;
  for (int64_t failing = 0; failing < 12; ++failing) {
    std::atomic<int64_t> done{0};
    try {
      albert::Team::get().run(12, [&](int64_t part) {
        if (part == failing) throw std::bad_alloc();
        ++done;
      });
      return std::puts("nothing thrown"), 1;
    } catch (const std::bad_alloc &) {
    }
    if (done != 11) return std::puts("parts still to do"), 1;
    albert::Team::get().run(12, [&](int64_t) { ++done; });
    if (done != 23) return std::puts("the next operation is not whole"), 1;
  }
}
"""


def test_a_part_that_fails_ends_its_operation_and_no_other(tmp_path: Path) -> None:
    (tmp_path / "team.cc").write_text(TEAM)
    program = tmp_path / "team"
    flags = ["-std=c++17", "-O1", "-pthread", f"-I{native_operations.SOURCE.parent}"]
    subprocess.run([*find_compiler(), *flags, str(tmp_path / "team.cc"), "-o", str(program)], check=True)
    done = subprocess.run([str(program)], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_a_cache_that_takes_no_locks_keeps_the_library(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Some network drives have no locks, and homes may lie there."""

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(fcntl, "flock", refuse)
    source = write_source(tmp_path)
    with caplog.at_level(logging.WARNING):
        library = library_for(source)
    assert list((tmp_path / "albert-mindspore").iterdir()) == [library] and not caplog.messages


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
        "from model_utils import cpu_threads; cpu_threads._chosen_threads = int(sys.argv[2])  # more than cores, too\n"
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
    network = AlbertForPreTraining(TINY.replace(backend=Backend.ACCELERATOR), seed=1)
    cells = {type(cell).__module__ for _, cell in network.cells_and_names()}
    own = {"src.nn.fused_layers", "src.nn.fused_products"}
    assert "src.nn.layers" in cells and not own & cells
    assert own <= {type(cell).__module__ for _, cell in AlbertForPreTraining(TINY, 1).cells_and_names()}


def test_a_library_says_what_keeps_it_from_being_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = write_source(tmp_path, 'const char *obstacle() { return "no luck"; }')
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with caplog.at_level(logging.WARNING):
        assert library_for(source) is None
    assert caplog.messages == ["layers are not fused, so that networks compute more slowly: no luck"]
    with pytest.raises(DeviceError, match="fused_layers is always, but no luck"):
        library_for(source, is_needed=True)


@pytest.mark.parametrize("cache", ["file", "loop"])
def test_without_a_cache_every_process_compiles(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture, cache: str
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    (elsewhere := tmp_path / "tmp").mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / cache))
    monkeypatch.setattr(tempfile, "tempdir", str(elsewhere))
    with caplog.at_level(logging.WARNING):
        library = library_for(write_source(tmp_path))
    assert library.parent.parent == elsewhere and "every process compiles the C++ layers again" in caplog.text
    assert stat.S_IMODE(library.parent.stat().st_mode) == 0o700 and str(tmp_path / cache) in caplog.text
    script = "import sys; from model_utils.native_code import _temporary_folder; print(_temporary_folder('').is_dir())"
    environment = os.environ | {"TMPDIR": str(elsewhere)}
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "True\n" and list(elsewhere.iterdir()) == [library.parent]  # its own is gone


def test_masks_are_the_same_in_both_forms() -> None:
    """Bit for bit, whatever the key: a run may go on where there is no compiler."""
    numbers = random_features(2100, 0)
    keys = [*RANDOM.integers(-(2**31), 2**31, 50).tolist(), 0, -1, 2**31 - 1, -(2**31)]
    forms = [Dropout(0.1, 1, backend) for backend in (Backend.FUSED, Backend.COMPOSED)]
    for key in keys:
        np.testing.assert_array_equal(*(form.by_row(numbers, Tensor(key, ms.int32)).asnumpy() for form in forms))


@pytest.mark.parametrize("probability", [0.1, 0.5, 2.0**-14])
def test_what_is_dropped_is_the_same_in_both_forms(probability: float) -> None:
    """In blocks of columns that are whole and in the last one, of rows of any length."""
    fused, composed = (Dropout(probability, 3, b).set_train(True) for b in (Backend.FUSED, Backend.COMPOSED))
    x = Tensor(np.ones((2100, 150), np.float32))
    for key in (5, -7):
        dropped, expected = (form(x, Tensor(key, ms.int32)).asnumpy() == 0.0 for form in (fused, composed))
        np.testing.assert_array_equal(dropped, expected)
        assert abs(dropped.mean() - probability) < 6 * (probability / dropped.size) ** 0.5
