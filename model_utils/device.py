"""The device that a command computes on: chosen, checked, and set for MindSpore.

`python -m model_utils.device` prints what is there, or a sentence on what is missing.
"""

import contextlib
import logging
import os
import sys
from dataclasses import dataclass
from importlib.metadata import version

from model_utils import cpu_threads, native_code, nvidia
from model_utils.config import OneDeviceConfig, run_main
from model_utils.cpu import cpu_flags
from model_utils.errors import DeviceError
from model_utils.messages import set_level

logger = logging.getLogger(__name__)
RANKS_FOLDER = "ALBERT_RANKS_FOLDER"  # in the environment of a process that scripts/launch.py started as one of several
COMPILER_CACHE = "MS_COMPILER_CACHE_ENABLE"  # read by MindSpore when it compiles
FPMATH_MODE = "ONEDNN_DEFAULT_FPMATH_MODE"  # read by oneDNN, which has MindSpore's products on CPUs, at its first one
BFLOAT16_FLAGS = ("amx_bf16", "avx512_bf16")  # the kernel's names of what multiplies it; elsewhere oneDNN emulates
CALL_DEPTH = 10_000  # of graphs: a loop over all tensors nests several calls a tensor, beyond MindSpore's 1,000 at 200
_set_up = [False]  # whether setup_device has been called


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


def ascend_obstacle() -> str:
    """What keeps MindSpore from using an Ascend device here, as a sentence; "" if nothing does."""
    reason = nvidia.plugin_error("Ascend")
    advice = "install CANN for MindSpore 2.10 and source its set_env.sh before Python"
    return f"MindSpore's Ascend plugin does not load ({reason}): {advice}" if reason else ""


def choose_target(device_target: str) -> str:
    """CPU, GPU or Ascend; for auto the first of Ascend, GPU, CPU that works; DeviceError says what is missing."""
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
        logger.warning(f"device: CPU, although there is a {nvidia.nvidia_gpus()[0].name}: {obstacle}")
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
        fused_layers: whether networks made from now on have the layers in C++ (src/nn/fused_layers.py): auto, where
            they can; always; never.
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
    available = {"GPU": len(nvidia.nvidia_gpus()), "CPU": 1}.get(target)
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
    plugin, missing = nvidia.gpu_plugin(), nvidia.missing_libraries()
    gpus = [f"{gpu.name} ({gpu.capability}, {gpu.memory_gib:.0f} GiB)" for gpu in nvidia.nvidia_gpus()]
    rows = {
        "target": f"{device.target}, device {device.device_id}",
        "software": f"Python {sys.version.split()[0]}, mindspore {version('mindspore')}, numpy {version('numpy')}",
        "CPU cores": str(len(os.sched_getaffinity(0))),
        "C++ compiler": " ".join(native_code.find_compiler() or ["none: layers are not fused"]),
        "NVIDIA GPUs": ", ".join(gpus) or "none",
        "NVIDIA driver": nvidia.nvidia_driver_version(),
        "GPU plugin": plugin.name if plugin else "none",
        "CUDA libraries": f"{len(nvidia.CUDA_LIBRARIES) - len(missing)} of {len(nvidia.CUDA_LIBRARIES)}"
        + (f"; missing {', '.join(missing)}" if missing else ""),
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
