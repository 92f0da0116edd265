"""compute_type bfloat16: in processes of their own, because oneDNN chooses how it multiplies once in a process."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, ops

from model_utils import device
from model_utils.device import FPMATH_MODE, Device, bfloat16_obstacle, setup_device
from model_utils.errors import DeviceError
from src.albert_config import AlbertConfig
from src.albert_for_pre_training import AlbertForPreTraining
from src.checkpoint_files import find_checkpoint
from src.dropout import Dropout
from src.training.run_plan import LossScale, Precision, plan_precision
from src.training.training_config import PretrainConfig
from tests.conftest import ROOT
from tests.helpers.pretraining_run import flags_of, log, write_pretraining_data
from tests.helpers.tiny_model import KEY, TINY, batch

on_cpus_that_have_it = pytest.mark.skipif(bool(bfloat16_obstacle("CPU")), reason=bfloat16_obstacle("CPU"))
FINE = 1 + 2**-10  # bfloat16 has 1 and 1 + 2**-7 next to each other


def in_new_process(function: Callable[..., None], *words: object, **environment: str) -> str:
    """What a function of this module prints there."""
    program = f"import sys; from tests.{Path(__file__).stem} import *; {function.__name__}(*sys.argv[1:])"
    command = [sys.executable, "-c", program, *map(str, words)]
    changed = {**os.environ, **environment}
    done = subprocess.run(command, cwd=ROOT, env=changed, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def print_products(compute_type: str) -> None:
    """Entries of products with the identity (small ones are not rounded), and what a second choice of the type says."""
    assert setup_device("CPU", compute_type=compute_type).compute_type == compute_type
    matrix, identity = np.full((512, 512), FINE, np.float32), np.eye(512, dtype=np.float32)
    plain = ops.MatMul(transpose_b=True)(Tensor(matrix), Tensor(identity))
    batched = ms.jit(ops.BatchMatMul())(Tensor(matrix[None].repeat(3, 0)), Tensor(identity[None].repeat(3, 0)))
    print(np.unique(plain.asnumpy()).tolist() + np.unique(batched.asnumpy()).tolist())
    setup_device("CPU", compute_type=compute_type)
    try:
        setup_device("CPU", compute_type="float32" if compute_type == "bfloat16" else "bfloat16")
    except DeviceError as error:
        print(error)


@on_cpus_that_have_it
@pytest.mark.parametrize(
    ("compute_type", "inherited", "entry", "refusal"),
    [
        ("bfloat16", "STRICT", 1.0, "a float32 matrix product on the device differs from numpy's by"),
        ("float32", "BF16", FINE, "so it runs in float32: either this process has computed in float32 before"),
    ],
)
def test_operands_are_rounded_where_that_is_asked_for(
    compute_type: str, inherited: str, entry: float, refusal: str
) -> None:
    """Whatever the user's shell says, and the same for all of a process."""
    environment = dict.fromkeys((FPMATH_MODE, "DNNL_DEFAULT_FPMATH_MODE"), inherited)
    entries, said = in_new_process(print_products, compute_type, **environment).splitlines()
    assert entries == str([entry, entry])
    assert refusal in said


WIDE = TINY.replace(hidden_size=256, num_hidden_layers=1, intermediate_size=512)  # small products are not rounded


def step_figures(compute_type: str) -> dict[str, np.ndarray]:
    """A mask of dropout, and loss and gradients of a network."""
    mask = Dropout(0.1, site=3).set_train(True)(Tensor(np.ones((1024, 312), np.float32)), KEY).asnumpy()
    columns = batch(WIDE, rows=32)
    network = AlbertForPreTraining(WIDE.replace(compute_type=compute_type), seed=1).set_train(True)
    inputs = [Tensor(columns[name]) for name in network.input_columns]
    parameters = ms.ParameterTuple(network.trainable_params())
    outputs, gradients = ops.value_and_grad(network, None, parameters, has_aux=True)(*inputs, KEY)
    named = {parameter.name: gradient.asnumpy() for parameter, gradient in zip(parameters, gradients, strict=True)}
    return {"mask": mask, "loss": outputs[0].asnumpy(), **named}


def save_figures(file: str) -> None:
    setup_device("CPU", compute_type="bfloat16")
    np.savez(file, **step_figures("bfloat16"))


@on_cpus_that_have_it
def test_bfloat16_stays_near_float32_and_draws_the_same_masks(tmp_path: Path) -> None:
    in_new_process(save_figures, tmp_path / "figures.npz")
    rounded, exact = np.load(tmp_path / "figures.npz"), step_figures("float32")
    np.testing.assert_array_equal(rounded["mask"], exact["mask"])
    assert rounded["loss"] == pytest.approx(exact["loss"], rel=1e-2)
    for name in ("albert.encoder.feed_forwards.0.output.weight", "albert.encoder.attentions.0.query.weight"):
        assert rounded[name].dtype == np.float32 and not np.array_equal(rounded[name], exact[name])
        np.testing.assert_allclose(rounded[name], exact[name], atol=0.05 * np.abs(exact[name]).max())


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


def test_bfloat16_is_refused_where_it_would_not_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "cpu_flags", lambda: frozenset({"avx2", "avx512_bf16"}))
    with pytest.raises(
        DeviceError, match=r"compute_type is bfloat16, but this CPU has no amx_bf16 .*allowed is float32"
    ):
        setup_device("CPU", compute_type="bfloat16")
    monkeypatch.setattr(device, "choose_target", lambda device_target: device_target)
    with pytest.raises(DeviceError, match="but that is for CPUs; on GPU allowed are float16 and float32"):
        setup_device("GPU", compute_type="bfloat16")
    monkeypatch.setattr(device, "cpu_flags", lambda: frozenset({"avx2", "amx_bf16"}))
    assert bfloat16_obstacle("CPU") == ""


def test_bfloat16_needs_no_loss_scale() -> None:
    config = PretrainConfig(data_dir="data", save_checkpoint_path="run")
    assert config.enable_lossscale
    assert plan_precision(config, Device("CPU", "bfloat16")) == Precision("CPU", "bfloat16", LossScale("off"))
