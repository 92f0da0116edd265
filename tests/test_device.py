"""Devices: what is chosen, what is refused with which advice, and that the one in use computes right."""

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from model_utils import nvidia
from model_utils.device import (
    LOCAL_SIZE,
    Device,
    bfloat16_obstacle,
    check_product,
    choose_target,
    default_compute_type,
    setup_device,
)
from model_utils.errors import DeviceError
from model_utils.nvidia import CUDA_LIBRARIES, gpu_obstacle

ROOT = Path(__file__).resolve().parents[1]
GPU = "Test GPU"


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch):
    """A machine on which everything for a GPU is there; the returned function takes parts away."""

    def change(**parts: object) -> None:
        for name, value in parts.items():
            monkeypatch.setattr(nvidia, name, lambda *_, value=value: value)

    change(
        _cuda_driver=object(),
        nvidia_gpus=(GPU,),
        gpu_plugin=Path("libmindspore_gpu.so.11.6"),
        missing_libraries=[],
        _nvcc_release="11.6",
    )
    monkeypatch.setattr(nvidia, "plugin_error", lambda target: "" if target == "GPU" else "no Ascend")
    return change


@pytest.mark.parametrize(("code", "works"), [(0, True), (100, True), (999, False)])
def test_a_driver_that_hides_its_gpus_works(monkeypatch: pytest.MonkeyPatch, code: int, works: bool) -> None:
    """CUDA_VISIBLE_DEVICES= makes cuInit give 100, CUDA_ERROR_NO_DEVICE."""
    driver = SimpleNamespace(cuInit=lambda _: code)
    monkeypatch.setattr(nvidia.ctypes, "CDLL", lambda name: driver)
    nvidia._cuda_driver.cache_clear()
    try:
        assert (nvidia._cuda_driver() is driver) == works
    finally:
        nvidia._cuda_driver.cache_clear()


def test_auto_takes_the_best_device_that_works(machine, monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose_target("auto") == choose_target("GPU") == "GPU"
    assert choose_target("CPU") == "CPU"
    machine(plugin_error="")
    assert choose_target("auto") == "Ascend"
    machine(plugin_error="broken")
    assert choose_target("auto") == "CPU"


@pytest.mark.parametrize(
    ("parts", "sentence"),
    [
        ({"_cuda_driver": None, "nvidia_gpus": ()}, r"no working NVIDIA driver \(libcuda.so.1\)"),
        ({"nvidia_gpus": ()}, "offers no GPU: check nvidia-smi and CUDA_VISIBLE_DEVICES"),
        ({"gpu_plugin": None}, "has no GPU plugin: install requirements.txt"),
        (
            {"missing_libraries": ["libcudnn.so.8"]},
            "libcudnn.so.8 cannot be loaded: .*pip install -r requirements-gpu.txt",
        ),
        ({"_nvcc_release": ""}, "nvcc .* release 11.6.*gpu_env.sh"),
        ({"_nvcc_release": "11.1"}, "nvcc .* release 11.6.*gpu_env.sh"),
        ({"plugin_error": "no such symbol"}, "GPU plugin does not load: no such symbol"),
    ],
)
def test_a_gpu_that_cannot_be_used_is_refused_with_advice(machine, parts: dict[str, object], sentence: str) -> None:
    machine(**parts)
    with pytest.raises(DeviceError, match=f"device_target is GPU, but .*{sentence}"):
        choose_target("GPU")


def test_auto_says_why_it_leaves_a_gpu_alone(machine, capsys: pytest.CaptureFixture) -> None:
    machine(missing_libraries=["libcudnn.so.8"])
    assert choose_target("auto") == "CPU"
    assert capsys.readouterr().out.startswith(
        "device: CPU, although there is a Test GPU: libcudnn.so.8 cannot be loaded"
    )
    machine(nvidia_gpus=())
    assert choose_target("auto") == "CPU"
    assert capsys.readouterr().out == ""


def test_a_device_number_that_is_not_there_is_refused(machine) -> None:
    with pytest.raises(DeviceError, match=r"device_id is 1, but GPU has 1 device\(s\): allowed is 0"):
        setup_device("GPU", device_id=1)
    machine(nvidia_gpus=(GPU, GPU))
    with pytest.raises(DeviceError, match=r"device_id is 2, but GPU has 2 device\(s\): allowed is 0 to 1"):
        setup_device("GPU", device_id=2)
    with pytest.raises(DeviceError, match="device_id is 1, but CPU has 1 device"):
        setup_device("CPU", device_id=1)
    cores = len(os.sched_getaffinity(0))
    with pytest.raises(DeviceError, match=rf"threads is 4096, .* {cores} core\(s\): allowed is 0 to {cores}"):
        setup_device("CPU", threads=4096)


def test_distribute_without_its_launcher_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(LOCAL_SIZE, raising=False)
    with pytest.raises(DeviceError, match="this process has no launcher: use scripts/"):
        setup_device("CPU", distribute=True, device_num=2)


def test_the_cpu_is_set_to_graph_mode_and_computes_right() -> None:
    import mindspore as ms

    assert setup_device("CPU", seed=3) == Device("CPU", "float32", 0, rank=0, rank_size=1)
    assert ms.get_context("mode") == ms.GRAPH_MODE
    assert ms.get_context("device_target") == "CPU"
    assert ms.get_seed() == 3
    assert check_product("float32") < 1e-5


def test_a_wrong_product_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    from mindspore import ops

    setup_device("CPU")
    right = ops.matmul
    monkeypatch.setattr(ops, "matmul", lambda a, b: right(a, b) * 1.0001)
    with pytest.raises(DeviceError, match="float32 matrix product on the device differs from numpy's by"):
        check_product("float32")


def test_compute_types() -> None:
    assert [default_compute_type(target) for target in ("CPU", "GPU", "Ascend")] == ["float32", "float16", "float16"]


def run_module(*words: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "model_utils.device", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_the_command_prints_what_is_there() -> None:
    done = run_module("--device_target", "CPU")
    assert done.returncode == 0, done.stderr
    rows = dict(re.split(r"\s{2,}|(?<=product) ", line, maxsplit=1) for line in done.stdout.splitlines())
    assert rows["target"] == "CPU, device 0"
    assert "mindspore 2.10.0" in rows["software"]
    assert rows["CUDA libraries"].startswith(f"{len(CUDA_LIBRARIES)} needed, missing: ")
    assert rows["float32 product"].endswith(": right") and rows["float16 product"].endswith(": right")
    assert rows["GPU"] == (gpu_obstacle() or "ready")
    assert rows["bfloat16"] == (bfloat16_obstacle("CPU") or "ready")


def test_the_command_ends_with_one_sentence_where_the_device_is_missing() -> None:
    if not gpu_obstacle():
        pytest.skip("this machine has a GPU that works")
    done = run_module("--device_target", "GPU")
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("error: device_target is GPU, but ") and done.stderr.count("\n") == 1


@pytest.mark.gpu
def test_the_gpu_computes_right() -> None:
    if obstacle := gpu_obstacle():
        pytest.skip(obstacle)
    done = run_module("--device_target", "GPU")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("target           GPU") and done.stdout.count(": right") == 2


# --- scripts/gpu_env.sh ---


def source_gpu_env(folder: Path) -> subprocess.CompletedProcess:
    program = f'. "{ROOT}/scripts/gpu_env.sh" && "$CUDA_HOME/bin/nvcc" --version && printf "%s" "$LD_LIBRARY_PATH"'
    environment = {**os.environ, "VIRTUAL_ENV": str(folder), "LD_LIBRARY_PATH": "/first"}
    return subprocess.run(["bash", "-c", program], env=environment, capture_output=True, text=True, check=False)


def test_gpu_env_puts_the_wheels_libraries_on_the_loaders_path(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path], check=True)
    missing = source_gpu_env(tmp_path)
    assert missing.returncode == 1 and "pip install -r requirements-gpu.txt" in missing.stderr
    site = next(tmp_path.glob("lib/python3*/site-packages"))
    for part in ("cudnn", "cublas"):
        (site / "nvidia" / part / "lib").mkdir(parents=True)
    (site / "nvidia/cudnn/lib/libcudnn.so.8").touch()
    done = source_gpu_env(tmp_path)
    assert done.returncode == 0, done.stderr
    compiler, path = done.stdout.splitlines()
    assert "release 11.6," in compiler
    wanted = {str(site / part) for part in ("nvidia/cudnn/lib", "nvidia/cublas/lib", "mindspore/lib/plugin/gpu11.6")}
    assert set(path.split(":")) == wanted | {"/first"}


def test_no_compiled_graph_is_kept_for_another_network_whatever_the_shell_says(tmp_path: Path) -> None:
    script = (
        "from model_utils.device import setup_device; setup_device('CPU')\n"
        "from mindspore import Tensor, nn; import numpy as np\n"
        "class Twice(nn.Cell):\n"
        "    def construct(self, x): return x + x\n"
        "print(Twice()(Tensor(np.ones(3, np.float32))).asnumpy().tolist())"
    )
    (tmp_path / "network.py").write_text(script)  # MindSpore compiles what lies in a file
    environment = os.environ | {"MS_COMPILER_CACHE_ENABLE": "1", "MS_COMPILER_CACHE_PATH": str(tmp_path / "cache")}
    environment["PYTHONPATH"] = str(ROOT)
    command = [sys.executable, str(tmp_path / "network.py")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "[2.0, 2.0, 2.0]\n" and not (tmp_path / "cache").exists()


def test_a_compiler_of_cuda_that_does_not_answer_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def wait(command: list[str], timeout: float, **_: object) -> None:
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(nvidia.subprocess, "run", wait)
    assert nvidia._nvcc_release() == ""
