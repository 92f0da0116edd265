"""Choice, check and set-up of the device that a command computes on.

`python -m model_utils.device` prints the devices and libraries of this machine, or what is missing.
"""

import contextlib
import functools
import logging
import os
import sys
from dataclasses import dataclass
from importlib.metadata import version

from model_utils import cpu_threads, native_code, nvidia
from model_utils.backend import Backend
from model_utils.config import OneDeviceConfig, run_main
from model_utils.cpu import cpu_flags
from model_utils.errors import DeviceError
from model_utils.job_machines import LOCAL_SIZE
from model_utils.messages import set_level

logger = logging.getLogger(__name__)
COMPILER_CACHE = "MS_COMPILER_CACHE_ENABLE"  # read by MindSpore when it compiles
FPMATH_MODE = "ONEDNN_DEFAULT_FPMATH_MODE"  # read by oneDNN, MindSpore's matrix library on CPUs, at its first product
BFLOAT16_FLAGS = ("amx_bf16", "avx512_bf16")  # CPU flags of bfloat16 multiplication; without them oneDNN emulates it
CALL_DEPTH = 10_000  # of graphs: a loop over 200 tensors nests more calls than MindSpore's default of 1,000


@dataclass(frozen=True)
class Device:
    """Device of a command, type of its matrix products, its layers, and rank of this process among `rank_size`."""

    target: str
    compute_type: str
    device_id: int = 0
    rank: int = 0
    rank_size: int = 1
    backend: Backend = Backend.AUTO


def ascend_obstacle() -> str:
    """Return why MindSpore cannot use an Ascend device here, as a sentence; "" if it can."""
    reason = nvidia.plugin_error("Ascend")
    advice = "install CANN for MindSpore 2.10 and source its set_env.sh before Python"
    return f"MindSpore's Ascend plugin does not load ({reason}): {advice}" if reason else ""


def choose_target(device_target: str) -> str:
    """Return "CPU", "GPU" or "Ascend", for "auto" the first that works; raise DeviceError with what is missing."""
    obstacles = {"Ascend": ascend_obstacle, "GPU": nvidia.gpu_obstacle}
    if device_target in obstacles:
        if obstacle := obstacles[device_target]():
            raise DeviceError(f"device_target is {device_target}, but {obstacle}")
        return device_target
    if device_target == "CPU":
        return "CPU"
    if not ascend_obstacle():
        return "Ascend"
    obstacle = nvidia.gpu_obstacle()
    if obstacle and nvidia.nvidia_gpus():
        logger.warning(f"device: CPU, although there is a {nvidia.nvidia_gpus()[0]}: {obstacle}")
    return "CPU" if obstacle else "GPU"


def bfloat16_obstacle(target: str) -> str:
    """Return why matrix products cannot run in bfloat16, as a sentence; "" if they can."""
    if target != "CPU":
        return f"that is for CPUs; on {target} allowed are float16 and float32"
    if not cpu_flags().intersection(BFLOAT16_FLAGS):
        return f"this CPU has neither {' nor '.join(BFLOAT16_FLAGS)} (flags in /proc/cpuinfo): allowed is float32"
    if native_code.find_compiler() is None:
        return "it needs the C++ layers, and no C++ compiler is installed: install g++ or use float32"
    return ""


def default_compute_type(target: str) -> str:
    """Return the default type of matrix products on a target."""
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
    """Choose the device and configure MindSpore for it: graph mode, ranks, seed, compute type, layers, threads.

    Overrides two environment variables: oneDNN may not round the inputs of float32 products, and MindSpore's cache of
    compiled graphs is off, because it can return the graph of another network. On CPU a matrix product is checked.

    Args:
        device_id: index of the device, from 0; in distributed runs the launcher sets it.
        distribute: True in a process that scripts/launch.py started as one of device_num.
        seed: of MindSpore's and numpy's generators; None leaves them as they are.
        compute_type: type of matrix products: float32, float16 or bfloat16; "": the device's default.
        fused_layers: use of the C++ layers (src/nn/fused_layers.py): auto (if they can be used), always or never.
        threads: compute threads on CPU; 0: OMP_NUM_THREADS, or this process's share of the available cores.

    Raises:
        DeviceError: the device is absent or does not support the compute type, the number of processes is not
            device_num, fused_layers is always without a compiler, or threads is more than the available cores.
    """
    import mindspore as ms

    target = choose_target(device_target)
    compute_type = compute_type or default_compute_type(target)
    os.environ[FPMATH_MODE] = "STRICT"
    os.environ[COMPILER_CACHE] = "0"
    local_size = 1
    if distribute:
        if LOCAL_SIZE not in os.environ:
            raise DeviceError("distribute is true, but this process has no launcher: use scripts/run_distribute.sh")
        device_id = int(os.environ.get("DEVICE_ID", "0")) if target != "CPU" else 0
        local_size = int(os.environ[LOCAL_SIZE])
    _check_settings(target, device_id, compute_type, fused_layers, threads)
    _set_target(target, device_id, cpu_threads.choose_threads(threads, local_size))
    if seed is not None:
        ms.set_seed(seed)
    rank, rank_size = _join_ranks(device_num) if distribute else (0, 1)
    if target == "CPU":
        check_product("float16" if compute_type == "float16" else "float32")
    return Device(target, compute_type, device_id, rank, rank_size, Backend.of(target, fused_layers))


@functools.cache
def ensure_device() -> None:
    """Set up the device that MindSpore's context names, for programs that use the project as a library.

    Does nothing after the first call, or in graph mode, as after setup_device. Raises as setup_device.
    """
    import mindspore as ms

    if ms.get_context("mode") != ms.GRAPH_MODE:
        setup_device(ms.get_context("device_target"), ms.get_context("device_id"), seed=None)


def _check_settings(target: str, device_id: int, compute_type: str, fused_layers: str, threads: int) -> None:
    """Raise DeviceError if a device with this index is absent, or does not support one of the settings."""
    if compute_type == "bfloat16" and (obstacle := bfloat16_obstacle(target)):
        raise DeviceError(f"compute_type is bfloat16, but {obstacle}")
    if compute_type == "bfloat16" and fused_layers == "never":
        raise DeviceError("compute_type bfloat16 needs the C++ layers, but fused_layers is never: change one of them")
    available = {"GPU": len(nvidia.nvidia_gpus()), "CPU": 1}.get(target)
    if available is not None and device_id >= available:
        allowed = "0" if available == 1 else f"0 to {available - 1}"
        raise DeviceError(f"device_id is {device_id}, but {target} has {available} device(s): allowed is {allowed}")
    if threads and target != "CPU":
        raise DeviceError(f"threads is {threads}, but only a CPU has this setting: the device is {target}")
    if fused_layers != "always":
        return
    if target != "CPU":
        raise DeviceError(f"fused_layers is always, but the C++ layers need a CPU: the device is {target}")
    if compute_type == "float16":
        raise DeviceError("fused_layers is always, but the C++ layers do not support compute_type float16")
    try:
        native_code.check_compiler()
    except DeviceError as error:
        raise DeviceError(f"fused_layers is always, but {error}") from error


def _set_target(target: str, device_id: int, threads: int) -> None:
    """Set MindSpore to graph mode on this device, and the thread count of a CPU."""
    import mindspore as ms

    if target == "CPU":
        with contextlib.suppress(RuntimeError):  # already set, to the same number
            ms.device_context.cpu.op_tuning.threads_num(threads)
    ms.set_context(mode=ms.GRAPH_MODE)
    ms.set_recursion_limit(CALL_DEPTH)
    current_device = ms.get_context("device_target"), ms.get_context("device_id")
    try:
        ms.set_device(target, device_id)
    except RuntimeError as error:  # MindSpore cannot change the device once this process has computed
        if current_device != (target, device_id):
            raise DeviceError(f"this process computes on {current_device}, not on {target} {device_id}") from error


def _join_ranks(device_num: int) -> tuple[int, int]:
    """Initialise MindSpore's communication and return (rank, rank_size)."""
    from mindspore import communication

    communication.init()
    rank = communication.get_rank()
    rank_size = communication.get_group_size()
    if rank_size != device_num:
        raise DeviceError(f"device_num is {device_num}, but {rank_size} processes were started")
    if rank != int(os.environ["RANK_ID"]):
        raise DeviceError(f"MindSpore made this process rank {rank}, its launcher rank {os.environ['RANK_ID']}")
    if rank > 0:
        set_level(logging.WARNING)
    return rank, rank_size


def check_product(compute_type: str) -> float:
    """Return the error of a (512, 512) product against numpy in float64, relative to the largest entry.

    Raises DeviceError if it exceeds the type's rounding.
    """
    import mindspore as ms
    import numpy as np
    from mindspore import ops

    generator = np.random.default_rng(0)
    left = generator.standard_normal((512, 512)).astype(compute_type)
    right = generator.standard_normal((512, 512)).astype(compute_type)
    exact = left.astype(np.float64) @ right.astype(np.float64)
    product = ops.matmul(ms.Tensor(left), ms.Tensor(right)).asnumpy()
    difference = float(np.abs(product - exact).max() / np.abs(exact).max())
    allowed = {"float32": 1e-5, "float16": 2e-3}[compute_type]
    if not difference <= allowed:  # also raised for NaN
        raise DeviceError(
            f"a {compute_type} matrix product on the device differs from numpy's by {difference:.1e} of its largest "
            f"entry, allowed is {allowed:.0e}"
        )
    return difference


class DeviceConfig(OneDeviceConfig):
    """Print the device that commands would use, and check it: python -m model_utils.device."""


def main(config: DeviceConfig) -> None:
    """Print target, GPUs, driver, plugin, libraries and a checked matrix product."""
    device = setup_device(**config.device_settings())
    missing = nvidia.missing_libraries()
    rows = {
        "target": f"{device.target}, device {device.device_id}",
        "software": f"Python {sys.version.split()[0]}, mindspore {version('mindspore')}, numpy {version('numpy')}",
        "CPU cores": str(len(os.sched_getaffinity(0))),
        "C++ compiler": " ".join(native_code.find_compiler() or ["none: layers are not fused"]),
        "NVIDIA GPUs": ", ".join(nvidia.nvidia_gpus()) or "none",
        "NVIDIA driver": nvidia.describe_driver(),
        "GPU plugin": str(nvidia.gpu_plugin() or "none"),
        "CUDA libraries": f"{len(nvidia.CUDA_LIBRARIES)} needed, missing: {', '.join(missing) or 'none'}",
        "GPU": nvidia.gpu_obstacle() or "ready",
        "Ascend": ascend_obstacle() or "ready",
        "bfloat16": bfloat16_obstacle(device.target) or "ready",
    }
    for compute_type in ("float32", "float16"):
        rows[f"{compute_type} product"] = f"differs from numpy's by {check_product(compute_type):.1e}: right"
    for name, value in rows.items():
        print(f"{name:16} {value}")


if __name__ == "__main__":
    run_main(main, DeviceConfig)
