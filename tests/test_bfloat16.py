"""compute_type bfloat16: in processes of their own, because oneDNN chooses how it multiplies once in a process."""

import subprocess
import sys
from pathlib import Path

import pytest

from model_utils import device
from model_utils.device import BFLOAT16_FLAGS, Device, bfloat16_obstacle, setup_device
from model_utils.errors import DeviceError
from src.albert_config import AlbertConfig
from src.checkpoint_files import find_checkpoint
from src.training.run_plan import LossScale, Precision, plan_precision
from src.training.training_config import PretrainConfig
from tests.conftest import ROOT
from tests.helpers.pretraining_run import flags_of, log, write_pretraining_data

on_cpus_that_have_it = pytest.mark.skipif(bool(bfloat16_obstacle("CPU")), reason=bfloat16_obstacle("CPU"))


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
    monkeypatch.setattr(device, "cpu_flags", lambda: frozenset({"avx2", "avx512f"}))
    with pytest.raises(
        DeviceError, match=r"compute_type is bfloat16, but this CPU has neither of amx_bf16 and avx512_"
    ):
        setup_device("CPU", compute_type="bfloat16")
    monkeypatch.setattr(device, "choose_target", lambda device_target: device_target)
    with pytest.raises(DeviceError, match="but that is for CPUs; on GPU allowed are float16 and float32"):
        setup_device("GPU", compute_type="bfloat16")
    for flag in BFLOAT16_FLAGS:
        monkeypatch.setattr(device, "cpu_flags", lambda flag=flag: frozenset({flag}))
        assert bfloat16_obstacle("CPU") == ""


def test_bfloat16_needs_no_loss_scale() -> None:
    config = PretrainConfig(data_dir="data", save_checkpoint_path="run")
    assert config.enable_lossscale
    assert plan_precision(config, Device("CPU", "bfloat16")) == Precision("CPU", "bfloat16", LossScale("off"))
