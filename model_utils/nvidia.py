"""NVIDIA GPUs: what the driver reports, and why MindSpore cannot use them."""

import contextlib
import ctypes
import functools
import os
import re
import subprocess
from importlib.util import find_spec
from pathlib import Path

# Libraries that MindSpore's GPU plugin links, by their sonames; requirements-gpu.txt installs them.
CUDA_LIBRARIES = """libcudart.so.11.0 libcublas.so.11 libcudnn.so.8 libcurand.so.10 libcusolver.so.11 libcufft.so.10
    libcusparse.so.11 libnvrtc.so.11.2 libnccl.so.2""".split()
GPU_SETUP = "install it with `pip install -r requirements-gpu.txt` and run `. scripts/gpu_env.sh` before Python"


@functools.cache
def _cuda_driver() -> ctypes.CDLL | None:
    """Return NVIDIA's driver library if it can be initialised, else None."""
    with contextlib.suppress(OSError):
        driver = ctypes.CDLL("libcuda.so.1")
        if driver.cuInit(0) in (0, 100):  # 100, CUDA_ERROR_NO_DEVICE: CUDA_VISIBLE_DEVICES hides all, or none is there
            return driver
    return None


@functools.cache
def nvidia_gpus() -> tuple[str, ...]:
    """Return the names of the GPUs that NVIDIA's driver offers this process; () without a driver."""
    driver = _cuda_driver()
    if driver is None:
        return ()
    count = ctypes.c_int()
    driver.cuDeviceGetCount(ctypes.byref(count))
    names = []
    for index in range(count.value):
        device = ctypes.c_int()
        name = ctypes.create_string_buffer(128)
        driver.cuDeviceGet(ctypes.byref(device), index)
        driver.cuDeviceGetName(name, len(name), device)
        names.append(name.value.decode())
    return tuple(names)


def describe_driver() -> str:
    """Return the highest CUDA version that the driver supports, as in `CUDA 12.4`, or "none"."""
    driver = _cuda_driver()
    if driver is None:
        return "none"
    cuda = ctypes.c_int()
    driver.cuDriverGetVersion(ctypes.byref(cuda))
    return f"CUDA {cuda.value // 1000}.{cuda.value % 1000 // 10}"


def gpu_plugin() -> Path | None:
    """Return the path of MindSpore's GPU plugin, or None if the installed wheel has none."""
    package = find_spec("mindspore")
    if package is None or not package.submodule_search_locations:
        return None
    path = Path(package.submodule_search_locations[0]) / "lib/plugin/libmindspore_gpu.so.11.6"
    return path if path.is_file() else None


def missing_libraries() -> list[str]:
    """Return the CUDA_LIBRARIES that the loader cannot load."""
    missing = []
    for name in CUDA_LIBRARIES:
        try:
            ctypes.CDLL(name)
        except OSError:
            missing.append(name)
    return missing


def _nvcc_release() -> str:
    """Return the release in `$CUDA_HOME/bin/nvcc --version`, by which MindSpore chooses its plugin; "" if none."""
    nvcc = Path(os.environ.get("CUDA_HOME", "/nowhere")) / "bin/nvcc"
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        output = subprocess.run([nvcc, "--version"], capture_output=True, text=True, timeout=10, check=False).stdout
        match = re.search(r"release (\d+\.\d+)", output)
        return match.group(1) if match else ""
    return ""


def plugin_error(target: str) -> str:
    """Return why MindSpore did not load the plugin of a target when it was imported; "" if it did."""
    # The public mindspore.hal.is_available gives the same answer, but prints a page of warnings.
    from mindspore._c_expression import MSContext

    context = MSContext.get_instance()
    if context.is_pkg_support_device(target):
        return ""
    lines = [line for line in context.load_plugin_error().splitlines() if target.lower() in line.lower()]
    return lines[0].rstrip(".") if lines else "MindSpore gives no reason"


def gpu_obstacle() -> str:
    """Return why MindSpore cannot use a GPU here and how to fix it, as a sentence; "" if it can."""
    if _cuda_driver() is None:
        return "there is no working NVIDIA driver (libcuda.so.1): install version 450.80 or newer and check nvidia-smi"
    if not nvidia_gpus():
        return "NVIDIA's driver works but offers no GPU: check nvidia-smi and CUDA_VISIBLE_DEVICES"
    if gpu_plugin() is None:
        return "this mindspore has no GPU plugin: install requirements.txt on Linux x86_64"
    if missing := missing_libraries():
        return f"{', '.join(missing)} cannot be loaded: {GPU_SETUP}"
    if _nvcc_release() != "11.6":
        return f"$CUDA_HOME/bin/nvcc does not report release 11.6, which MindSpore's plugin needs: {GPU_SETUP}"
    reason = plugin_error("GPU")
    return f"MindSpore's GPU plugin does not load: {reason}" if reason else ""
