"""NVIDIA's GPUs: what the driver offers, and what keeps MindSpore from using them."""

import contextlib
import ctypes
import functools
import os
import re
import subprocess
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

# What MindSpore's GPU plugin links, by the names that it asks the loader for; pip has them (requirements-gpu.txt).
CUDA_LIBRARIES = (
    "libcudart.so.11.0",
    "libcublas.so.11",
    "libcudnn.so.8",
    "libcurand.so.10",
    "libcusolver.so.11",
    "libcufft.so.10",
    "libcusparse.so.11",
    "libnvrtc.so.11.2",
    "libnccl.so.2",
)
GPU_SETUP = "install it with `pip install -r requirements-gpu.txt` and run `. scripts/gpu_env.sh` before Python"


@dataclass(frozen=True)
class Gpu:
    """An NVIDIA GPU as the driver describes it; capability as in `sm_90`."""

    name: str
    capability: str
    memory_gib: float


@functools.cache
def _cuda_driver() -> ctypes.CDLL | None:
    with contextlib.suppress(OSError):
        driver = ctypes.CDLL("libcuda.so.1")
        if driver.cuInit(0) in (0, 100):  # 100, CUDA_ERROR_NO_DEVICE: CUDA_VISIBLE_DEVICES hides all, or none is there
            return driver
    return None


@functools.cache
def nvidia_gpus() -> tuple[Gpu, ...]:
    """The GPUs that NVIDIA's driver offers this process; none without a driver."""
    driver = _cuda_driver()
    if driver is None:
        return ()
    count = ctypes.c_int()
    driver.cuDeviceGetCount(ctypes.byref(count))
    return tuple(_describe_gpu(driver, index) for index in range(count.value))


def _describe_gpu(driver: ctypes.CDLL, index: int) -> Gpu:
    device, name, memory = ctypes.c_int(), ctypes.create_string_buffer(128), ctypes.c_size_t()
    driver.cuDeviceGet(ctypes.byref(device), index)
    driver.cuDeviceGetName(name, len(name), device)
    driver.cuDeviceTotalMem_v2(ctypes.byref(memory), device)
    digits = []
    for attribute in (75, 76):  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR
        value = ctypes.c_int()
        driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, device)
        digits.append(str(value.value))
    return Gpu(name.value.decode(), "sm_" + "".join(digits), memory.value / 2**30)


def nvidia_driver_version() -> str:
    """The kernel driver's version and the CUDA version that it serves, for instance `550.54 (CUDA 12.4)`."""
    driver, cuda = _cuda_driver(), ctypes.c_int()
    if driver is None:
        return "none"
    driver.cuDriverGetVersion(ctypes.byref(cuda))
    release = "unknown"
    with contextlib.suppress(OSError):
        found = re.search(r"Kernel Module.*?(\d+\.[\d.]+)", Path("/proc/driver/nvidia/version").read_text())
        release = found.group(1) if found else release
    return f"{release} (CUDA {cuda.value // 1000}.{cuda.value % 1000 // 10})"


def gpu_plugin() -> Path | None:
    """MindSpore's GPU plugin, or None if the installed wheel has none."""
    package = find_spec("mindspore")
    locations = package.submodule_search_locations if package else None
    path = Path(next(iter(locations or [""]))) / "lib/plugin/libmindspore_gpu.so.11.6"
    return path if path.is_file() else None


def missing_libraries() -> list[str]:
    """Those of CUDA_LIBRARIES that the loader does not find."""
    missing = []
    for name in CUDA_LIBRARIES:
        try:
            ctypes.CDLL(name)
        except OSError:
            missing.append(name)
    return missing


def _nvcc_release() -> str:
    """What `$CUDA_HOME/bin/nvcc --version` says: MindSpore chooses its plugin by it."""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        nvcc = Path(os.environ.get("CUDA_HOME", "/nowhere")) / "bin/nvcc"
        answer = subprocess.run([nvcc, "--version"], capture_output=True, text=True, timeout=10, check=False).stdout
        found = re.search(r"release (\d+\.\d+)", answer)
        return found.group(1) if found else ""
    return ""


def plugin_error(target: str) -> str:
    """Why MindSpore did not load the plugin of a target when it was imported; "" if it did."""
    # The public mindspore.hal.is_available says the same, but prints a page of warnings while it does.
    from mindspore._c_expression import MSContext

    context = MSContext.get_instance()
    if context.is_pkg_support_device(target):
        return ""
    lines = [line for line in context.load_plugin_error().splitlines() if target.lower() in line.lower()]
    return lines[0].rstrip(".") if lines else "MindSpore gives no reason"


def gpu_obstacle() -> str:
    """What keeps MindSpore from using a GPU here and how to fix it, as a sentence; "" if nothing does."""
    if _cuda_driver() is None:
        return (
            "there is no working NVIDIA driver (libcuda.so.1): install the driver, 450.80 or newer, and see nvidia-smi"
        )
    if not nvidia_gpus():
        return "NVIDIA's driver works but offers no GPU: check nvidia-smi and CUDA_VISIBLE_DEVICES"
    if gpu_plugin() is None:
        return "this mindspore has no GPU plugin: install requirements.txt on Linux x86_64"
    if missing := missing_libraries():
        return f"{', '.join(missing)} cannot be loaded: {GPU_SETUP}"
    if _nvcc_release() != "11.6":
        return f"$CUDA_HOME/bin/nvcc does not say release 11.6, by which MindSpore finds its plugin: {GPU_SETUP}"
    reason = plugin_error("GPU")
    return f"MindSpore's GPU plugin does not load: {reason}" if reason else ""
