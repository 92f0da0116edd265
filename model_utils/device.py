"""The device that a command computes on: found, checked, and set for MindSpore.

`python -m model_utils.device` prints what is there, or a sentence on what is missing.
"""

import contextlib
import ctypes
import functools
import logging
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from model_utils import cpu_threads, native_code
from model_utils.config import OneDeviceConfig, run_main
from model_utils.cpu import cpu_flags
from model_utils.errors import DeviceError
from model_utils.messages import set_level

logger = logging.getLogger(__name__)

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
RANKS_FOLDER = "ALBERT_RANKS_FOLDER"  # in the environment of a process that scripts/launch.py started as one of several
COMPILER_CACHE = "MS_COMPILER_CACHE_ENABLE"  # read by MindSpore when it compiles
FPMATH_MODE = "ONEDNN_DEFAULT_FPMATH_MODE"  # read by oneDNN, which has MindSpore's products on CPUs, at its first one
BFLOAT16_FLAGS = ("amx_bf16", "avx512_bf16")  # the kernel's names of what multiplies it; elsewhere oneDNN emulates
CALL_DEPTH = 10_000  # of graphs: a loop over all tensors nests several calls a tensor, beyond MindSpore's 1,000 at 200
_set_up = [False]  # whether setup_device has been called
GPU_SETUP = "install it with `pip install -r requirements-gpu.txt` and run `. scripts/gpu_env.sh` before Python"


@dataclass(frozen=True)
class Device:
    """Where a command computes, and in which type its matrix products.

    rank counts this process among the rank_size that train together.
    """

    target: str
    compute_type: str
    device_id: int = 0
    rank: int = 0
    rank_size: int = 1


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


def _plugin_error(target: str) -> str:
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
    if _nvcc_release() not in ("11.1", "11.6"):
        return f"$CUDA_HOME/bin/nvcc does not say release 11.6, by which MindSpore finds its plugin: {GPU_SETUP}"
    reason = _plugin_error("GPU")
    return f"MindSpore's GPU plugin does not load: {reason}" if reason else ""


def ascend_obstacle() -> str:
    """What keeps MindSpore from using an Ascend device here, as a sentence; "" if nothing does."""
    reason = _plugin_error("Ascend")
    advice = "install CANN for MindSpore 2.10 and source its set_env.sh before Python"
    return f"MindSpore's Ascend plugin does not load ({reason}): {advice}" if reason else ""


def choose_target(device_target: str) -> str:
    """CPU, GPU or Ascend; for auto the first of Ascend, GPU, CPU that works; DeviceError says what is missing."""
    obstacles = {"Ascend": ascend_obstacle, "GPU": gpu_obstacle}
    if device_target in obstacles:
        if obstacle := obstacles[device_target]():
            raise DeviceError(f"device_target is {device_target}, but {obstacle}")
        return device_target
    if device_target == "CPU":
        return "CPU"
    if not ascend_obstacle():
        return "Ascend"
    obstacle = gpu_obstacle()
    if obstacle and nvidia_gpus():
        logger.warning(f"device: CPU, although there is a {nvidia_gpus()[0].name}: {obstacle}")
    return "CPU" if obstacle else "GPU"


def bfloat16_obstacle(target: str) -> str:
    """What keeps matrix products from running in bfloat16, as a sentence; "" if nothing does."""
    if target != "CPU":
        return f"that is for CPUs; on {target} allowed are float16 and float32"
    if not cpu_flags().intersection(BFLOAT16_FLAGS):
        return f"this CPU has neither {' nor '.join(BFLOAT16_FLAGS)} (flags in /proc/cpuinfo): allowed is float32"
    if native_code.find_compiler() is None:
        return "only the layers in C++ multiply it, and there is no C++ compiler: allowed is float32"
    return ""


def default_compute_type(target: str) -> str:
    """The type of matrix products that suits a target."""
    return "float32" if target == "CPU" else "float16"


def setup_device(
    device_target: str = "auto",
    device_id: int = 0,
    distribute: bool = False,
    device_num: int = 1,
    seed: int | None = 0,
    compute_type: str = "",
    fused_layers: str = "auto",
    threads: int = 0,
) -> Device:
    """Choose the device and set MindSpore to it: graph mode, ranks, seed of its generators, type of products, layers.

    No inherited setting of oneDNN rounds what float32 products multiply, and a product on the CPU is checked at once.
    MindSpore's cache of compiled graphs is off, whatever the shell says: it takes one network's graph for another's.

    Args:
        device_id: number of the device, counted from 0; in distributed runs each process takes its own.
        distribute: whether scripts/launch.py started this process as one of device_num.
        seed: None: MindSpore's and numpy's generators stay as they are.
        compute_type: of matrix products, float32, float16 or bfloat16; "": what suits the device.
        fused_layers: whether networks made from now on have the layers in C++ (src/fused_layers.py): auto, where they
            can; always; never.
        threads: that compute on a CPU; 0: OMP_NUM_THREADS, or this process's share of the cores that it may use.

    Raises:
        DeviceError: the device is not there or does not compute in this type, the processes are not as many as
            device_num, there is no compiler for layers that shall be in C++, or this process may not use as many cores.
    """
    import mindspore as ms

    target = choose_target(device_target)
    compute_type = compute_type or default_compute_type(target)
    _check_compute_type(compute_type, fused_layers, target)
    os.environ[FPMATH_MODE] = "STRICT"
    os.environ[COMPILER_CACHE] = "0"
    if distribute:
        if RANKS_FOLDER not in os.environ:
            raise DeviceError(
                "distribute is true, but this process was not started as one of several: use scripts/*_distribute.sh"
            )
        device_id = int(os.environ.get("DEVICE_ID", "0")) if target != "CPU" else 0
    available = {"GPU": len(nvidia_gpus()), "CPU": 1}.get(target)
    if available is not None and device_id >= available:
        allowed = "0" if available == 1 else f"0 to {available - 1}"
        raise DeviceError(f"device_id is {device_id}, but {target} has {available} device(s): allowed is {allowed}")
    native_code.choose(_fused_layers(fused_layers, target))
    _set_target(target, device_id, _threads(threads, target, device_num if distribute else 1))
    if seed is not None:
        ms.set_seed(seed)
    rank, rank_size = _join_ranks(device_num) if distribute else (0, 1)
    if target == "CPU":
        check_product("float16" if compute_type == "float16" else "float32")
    _set_up[0] = True
    return Device(target, compute_type, device_id, rank, rank_size)


def ensure_device() -> None:
    """Set up the device that MindSpore is set to, for programs that use the project as a library.

    Nothing is done where setup_device was called, or MindSpore was set to graph mode, before.

    Raises:
        DeviceError: as setup_device.
    """
    import mindspore as ms

    if not _set_up[0] and ms.get_context("mode") != ms.GRAPH_MODE:
        setup_device(ms.get_context("device_target"), ms.get_context("device_id"), seed=None)


def _check_compute_type(compute_type: str, fused_layers: str, target: str) -> None:
    """Raise DeviceError where products of this type cannot be computed there, with the layers that shall be used."""
    if compute_type == "bfloat16" and (obstacle := bfloat16_obstacle(target)):
        raise DeviceError(f"compute_type is bfloat16, but {obstacle}")
    if compute_type == "bfloat16" and fused_layers == "never":
        raise DeviceError(
            "compute_type is bfloat16, which only the layers in C++ multiply, but fused_layers is never: allowed is "
            "auto or always, or compute_type float32"
        )
    if compute_type == "float16" and fused_layers == "always" and target == "CPU":
        raise DeviceError(
            "fused_layers is always, but compute_type is float16, whose products and attention the layers in C++ have "
            "not: allowed are auto and never, or compute_type float32 or bfloat16"
        )


def _set_target(target: str, device_id: int, threads: int) -> None:
    """Let MindSpore run whole graphs on this device, and a CPU's operations in so many threads."""
    import mindspore as ms

    if target == "CPU":
        with contextlib.suppress(RuntimeError):  # set before, and to the same number
            ms.device_context.cpu.op_tuning.threads_num(threads)
    ms.set_context(mode=ms.GRAPH_MODE)
    ms.set_recursion_limit(CALL_DEPTH)
    in_use = ms.get_context("device_target"), ms.get_context("device_id")
    try:
        ms.set_device(target, device_id)
    except RuntimeError as error:  # this process has computed already, so the choice is made
        if in_use != (target, device_id):
            raise DeviceError(
                f"this process computes on {in_use[0]} {in_use[1]} already and cannot change to {target} {device_id}"
            ) from error


def _fused_layers(wanted: str, target: str) -> str:
    """What is wanted, where it can be had."""
    if target != "CPU" and wanted == "always":
        raise DeviceError(f"fused_layers is always, but these are for CPUs: here is {target}")
    if wanted == "always":
        try:
            native_code.check_compiler()
        except DeviceError as error:
            raise DeviceError(f"fused_layers is always, but {error}") from error
    return wanted if target == "CPU" else "never"


def _threads(wanted: int, target: str, processes: int) -> int:
    """How many compute in this process, one of several; outside a CPU their number cannot be chosen."""
    if target != "CPU" and wanted:
        raise DeviceError(f"threads is {wanted}, but these are for CPUs: here is {target}")
    return cpu_threads.choose_threads(wanted, processes)


def _join_ranks(device_num: int) -> tuple[int, int]:
    from mindspore import communication

    communication.init()
    rank, rank_size = communication.get_rank(), communication.get_group_size()
    if rank_size != device_num:
        raise DeviceError(f"device_num is {device_num}, but {rank_size} processes were started")
    if rank > 0:
        set_level(logging.WARNING)
    return rank, rank_size


class DeviceConfig(OneDeviceConfig):
    """Print the device that commands would use, and check it: python -m model_utils.device."""


def check_product(compute_type: str) -> float:
    """Largest difference of a (512, 512) product on the device from numpy's in float64, relative to its largest entry.

    Raises:
        DeviceError: it is larger than the type's rounding explains.
    """
    import mindspore as ms
    import numpy as np
    from mindspore import ops

    generator = np.random.default_rng(0)
    left, right = (generator.standard_normal((512, 512)).astype(compute_type) for _ in range(2))
    exact = left.astype(np.float64) @ right.astype(np.float64)
    found = ops.matmul(ms.Tensor(left), ms.Tensor(right)).asnumpy()
    difference = float(np.abs(found - exact).max() / np.abs(exact).max())
    allowed = {"float32": 1e-5, "float16": 2e-3}[compute_type]
    if not difference <= allowed:
        raise DeviceError(
            f"a {compute_type} matrix product on the device differs from numpy's by {difference:.1e} of its largest "
            f"entry, allowed is {allowed:.0e}: its results cannot be trusted"
        )
    return difference


def main(config: DeviceConfig) -> None:
    """Print target, GPUs, driver, plugin, libraries and a checked matrix product."""
    device = setup_device(config.device_target, config.device_id, threads=config.threads)
    plugin, missing = gpu_plugin(), missing_libraries()
    gpus = [f"{gpu.name} ({gpu.capability}, {gpu.memory_gib:.0f} GiB)" for gpu in nvidia_gpus()]
    rows = {
        "target": f"{device.target}, device {device.device_id}",
        "software": f"Python {sys.version.split()[0]}, mindspore {version('mindspore')}, numpy {version('numpy')}",
        "CPU cores": str(len(os.sched_getaffinity(0))),
        "C++ compiler": " ".join(native_code.find_compiler() or ["none: layers are not fused"]),
        "NVIDIA GPUs": ", ".join(gpus) or "none",
        "NVIDIA driver": nvidia_driver_version(),
        "GPU plugin": plugin.name if plugin else "none",
        "CUDA libraries": f"{len(CUDA_LIBRARIES) - len(missing)} of {len(CUDA_LIBRARIES)}"
        + (f"; missing {', '.join(missing)}" if missing else ""),
        "GPU": gpu_obstacle() or "ready",
        "Ascend": ascend_obstacle() or "ready",
        "bfloat16": bfloat16_obstacle(device.target) or "ready",
    }
    for compute_type in ("float32", "float16"):
        rows[f"{compute_type} product"] = f"differs from numpy's by {check_product(compute_type):.1e}: right"
    for name, value in rows.items():
        print(f"{name:16} {value}")


if __name__ == "__main__":
    run_main(main, DeviceConfig)
