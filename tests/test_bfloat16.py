"""compute_type bfloat16: what dense layers multiply is rounded, and nothing else."""

import os
import subprocess
import sys
from pathlib import Path

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn, ops

from model_utils import device, native_code
from model_utils.backend import Backend
from model_utils.device import FPMATH_MODE, Device, bfloat16_obstacle, setup_device
from model_utils.errors import DeviceError
from src.albert_config import AlbertConfig
from src.albert_for_pre_training import AlbertForPreTraining
from src.checkpoints.checkpoint_files import find_checkpoint
from src.nn import layers
from src.nn.dropout import Dropout
from src.nn.losses import linear_cross_entropy
from src.training.pretrain_config import PretrainConfig
from src.training.run_plan import LossScale, Precision, plan_precision
from tests.conftest import ROOT
from tests.helpers.gradients import Gradients
from tests.helpers.layer_inputs import RANDOM, normal
from tests.helpers.pretraining_run import flags_of, log, write_pretraining_data
from tests.helpers.products import Multiply
from tests.helpers.tiny_model import KEY, TINY, batch, outputs_and_gradients

on_cpus_that_have_it = pytest.mark.skipif(bool(bfloat16_obstacle("CPU")), reason=bfloat16_obstacle("CPU"))
FINE = 1 + 2**-10  # bfloat16 has 1 and 1 + 2**-7 next to each other


def rounded(x: np.ndarray) -> np.ndarray:
    """The nearest bfloat16 of each entry, as float64; of two as near the one whose last bit is 0."""
    bits = x.view(np.uint32).astype(np.uint64)
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16 << 16
    return bits.astype(np.uint32).view(np.float32).astype(np.float64)


@on_cpus_that_have_it
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(
    ("rows", "size", "widths"),
    [(170, 33, (1301,)), (999, 64, (96,)), (1, 64, (2,)), (999, 48, (48, 96, 7))],
)
def test_operands_are_rounded_and_sums_are_not(shared: bool, rows: int, size: int, widths: tuple[int, ...]) -> None:
    x, dy = normal(rows, size), normal(rows, sum(widths))
    weights = [normal(width, size) for width in widths]
    value, (gradients, _) = Gradients(Multiply(len(widths), shared, ms.bfloat16))(
        Tensor(dy), Tensor(x), *map(Tensor, weights)
    )
    joined, of_value = rounded(np.concatenate(weights)), rounded(dy)
    by_weights = np.split(of_value.T @ rounded(x), np.cumsum(widths)[:-1])
    expected = [rounded(x) @ joined.T, of_value @ joined, *by_weights]
    for found, exact in zip((value, *gradients), expected, strict=True):
        np.testing.assert_allclose(found.asnumpy(), exact, rtol=1e-5, atol=1e-6 * np.abs(exact).max())


class Losses(nn.Cell):
    """Losses of rows whose logits are products."""

    def __init__(self) -> None:
        super().__init__()
        self.linear_cross_entropy = linear_cross_entropy(ms.bfloat16)

    def construct(self, x: Tensor, weight: Tensor, bias: Tensor, labels: Tensor) -> Tensor:
        return self.linear_cross_entropy(x, weight, bias, labels)[0]


@on_cpus_that_have_it
def test_losses_of_products_and_their_gradients() -> None:
    """Losses are exact for the rounded operands; gradients are as fine, near certainty as well."""
    x, weight, dlosses = normal(1100, 48), normal(803, 48) / 4, normal(1100)
    bias = np.repeat([0, 38, 42, 42], 201)[:803].astype(np.float32)  # more than exponentials can grow by
    logits = rounded(x) @ rounded(weight).T + bias
    labels = np.where(np.arange(1100) % 2, logits.argmax(1), RANDOM.integers(0, 803, 1100))
    logarithms = np.log(np.exp(logits).sum(1))
    by_logits = np.exp(logits - logarithms[:, None])
    likely = by_logits[range(1100), labels]
    by_logits[range(1100), labels] -= 1
    by_logits *= dlosses[:, None]
    inputs = map(Tensor, (x, weight, bias, labels.astype(np.int32)))
    value, ((by_x, by_weight, by_bias, _), _) = Gradients(Losses())(Tensor(dlosses), *inputs)
    np.testing.assert_allclose(value.asnumpy(), logarithms - logits[range(1100), labels], rtol=1e-5, atol=1e-5)
    exact = by_logits @ rounded(weight)
    errors = np.linalg.norm(by_x.asnumpy() - exact, axis=1) / np.linalg.norm(exact, axis=1)
    measured = likely < 0.9999  # above it float32's own rounding shows
    assert likely[measured].max() > 0.999 and errors[measured].max() < 0.01
    for found, exact in ((by_weight, by_logits.T @ x), (by_bias, by_logits.sum(0))):
        assert np.abs(found.asnumpy() - exact).max() < 2**-7 * np.abs(exact).max()


@on_cpus_that_have_it
def test_rounding_keeps_what_is_no_number() -> None:
    """The smallest not a number has bits that rounding would make infinity of, the largest ones that it would lose."""
    for bits, check in ((0x7F800001, np.isnan), (0x7FFFFFFF, np.isnan), (0xFFFFFFFF, np.isnan), (0x7F800000, np.isinf)):
        x = np.array([[bits]], np.uint32).view(np.float32)
        product = layers.dense_product(ms.bfloat16)(Tensor(x), Tensor(np.ones((1, 1), np.float32)))
        assert check(product.asnumpy()).all()


def print_product(compute_type: str) -> None:
    """Entries of a product with the identity, by MindSpore."""
    setup_device("CPU", compute_type=compute_type)
    matrix, identity = np.full((512, 512), FINE, np.float32), np.eye(512, dtype=np.float32)
    print(np.unique(ops.MatMul(transpose_b=True)(Tensor(matrix), Tensor(identity)).asnumpy()).tolist())


def in_new_process(program: str, **environment: str) -> subprocess.CompletedProcess:
    """A call of a function of this module there, because oneDNN chooses once in a process how it multiplies."""
    command = [sys.executable, "-c", f"from tests.{Path(__file__).stem} import *; {program}"]
    return subprocess.run(
        command, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )


@on_cpus_that_have_it
def test_other_products_are_exact_whatever_the_shell_says() -> None:
    for compute_type in ("float32", "bfloat16"):
        environment = dict.fromkeys((FPMATH_MODE, "DNNL_DEFAULT_FPMATH_MODE"), "BF16")
        done = in_new_process(f"print_product('{compute_type}')", **environment)
        assert done.stdout == f"[{FINE}]\n", done.stderr


def step_figures(compute_type: str) -> dict[str, np.ndarray]:
    """A mask of dropout, and loss and gradients of a network."""
    mask = Dropout(0.1, site=3).set_train(True)(Tensor(np.ones((1024, 312), np.float32)), KEY).asnumpy()
    config = TINY.replace(compute_type=compute_type, initializer_range=0.2)
    network = AlbertForPreTraining(config, seed=1).set_train(True)
    (loss, *_), gradients = outputs_and_gradients(network, batch(config, rows=8))
    return {"mask": mask, "loss": np.float32(loss), **gradients}


@on_cpus_that_have_it
def test_bfloat16_stays_near_float32_and_draws_the_same_masks() -> None:
    rounding, exact = step_figures("bfloat16"), step_figures("float32")
    np.testing.assert_array_equal(rounding.pop("mask"), exact.pop("mask"))
    assert rounding.pop("loss") == pytest.approx(exact.pop("loss"), rel=1e-3)
    for name, gradient in rounding.items():
        if name.endswith("key.bias"):  # whose gradient is 0, but for rounding
            continue
        assert gradient.dtype == np.float32 and not np.array_equal(gradient, exact[name])
        np.testing.assert_allclose(gradient, exact[name], atol=0.05 * np.abs(exact[name]).max(), err_msg=name)


@on_cpus_that_have_it
def test_a_run_learns_in_bfloat16_and_its_model_answers_in_float32(tmp_path: Path) -> None:
    data, run = write_pretraining_data(tmp_path), tmp_path / "run"
    flags = flags_of(data, run, compute_type="bfloat16", train_steps=100)
    command = [sys.executable, "run_pretrain.py", *flags]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    losses = [record["loss"] for record in log(run) if "loss" in record]
    assert losses[-1] < losses[0] - 0.05
    kept = find_checkpoint(run).loop_state["precision"]
    assert kept == {"device_target": "CPU", "compute_type": "bfloat16", "loss_scale_mode": "off"}
    assert AlbertConfig.from_json(run / "albert_config.json").compute_type == "float32"


def make_product() -> None:
    """Make the product that a network computes with."""
    setup_device("CPU", compute_type="bfloat16")
    layers.dense_product(ms.bfloat16)


@on_cpus_that_have_it
def test_what_one_dnn_would_emulate_is_refused() -> None:
    done = in_new_process("make_product()", ONEDNN_MAX_CPU_ISA="AVX512_CORE_VNNI")
    assert done.returncode != 0
    assert "DeviceError: compute_type is bfloat16, which oneDNN does not multiply here" in done.stderr


def test_bfloat16_is_refused_where_it_would_not_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_code, "find_compiler", lambda: ["c++"])
    monkeypatch.setattr(device, "cpu_flags", lambda: frozenset({"avx2", "avx512f"}))
    with pytest.raises(DeviceError, match=r"but this CPU has neither amx_bf16 nor avx512_bf16 .*allowed is float32"):
        setup_device("CPU", compute_type="bfloat16")
    for flag in ("avx512_bf16", "amx_bf16"):
        monkeypatch.setattr(device, "cpu_flags", lambda flag=flag: frozenset({"avx2", flag}))
        assert bfloat16_obstacle("CPU") == ""
    with pytest.raises(DeviceError, match=r"bfloat16.*fused_layers is never"):
        setup_device("CPU", compute_type="bfloat16", fused_layers="never")
    with pytest.raises(DeviceError, match="and they cannot be made here: allowed is float32"):
        layers.dense_product(ms.bfloat16, backend=Backend.COMPOSED)
    monkeypatch.setattr(native_code, "find_compiler", lambda: None)
    with pytest.raises(DeviceError, match=r"compute_type is bfloat16.*compiler"):
        setup_device("CPU", compute_type="bfloat16")
    monkeypatch.setattr(device, "choose_target", lambda device_target: device_target)
    with pytest.raises(DeviceError, match="but that is for CPUs; on GPU allowed are float16 and float32"):
        setup_device("GPU", compute_type="bfloat16")


def test_bfloat16_needs_no_loss_scale() -> None:
    config = PretrainConfig(data_dir="data", save_checkpoint_path="run")
    assert config.enable_lossscale
    assert plan_precision(config, Device("CPU", "bfloat16")) == Precision("CPU", "bfloat16", LossScale("off"))
