"""Facts of the machine, which stand beside the figures of a benchmark."""

import os

from benchmarks.turns import Contender
from model_utils.cpu import cpu_flags, cpu_info
from model_utils.device import setup_device
from model_utils.nvidia import nvidia_gpus
from src.albert_config import AlbertConfig
from src.training.utilisation import matmul_flops_per_second

VECTORS = ("amx_bf16", "avx512_bf16", "avx512f", "avx2", "avx")  # kernel's flags that matrix products use, widest first


class MatrixProducts:
    """Meter of the CPU's speed, as this project computes on it."""

    def __init__(self, compute_type: str = "float32") -> None:
        setup_device("CPU", compute_type=compute_type)
        self.config = AlbertConfig(compute_type=compute_type)

    def flops_per_second(self) -> float:
        """Return the speed of large square matrix products."""
        return matmul_flops_per_second(self.config)


def machine_facts() -> dict[str, object]:
    """Return names of the processor and GPUs, widest vectors, usable cores and their GFLOP/s in float32 products."""
    with Contender(MatrixProducts) as products:
        speed = products.call("flops_per_second")
    return {
        "cpu": cpu_info().get("model name", "unknown"),
        "isa": [vector for vector in VECTORS if vector in cpu_flags()],
        "cores": len(os.sched_getaffinity(0)),
        "omp_num_threads": os.environ.get("OMP_NUM_THREADS", ""),
        "matrix_product_gflops": round(speed / 1e9, 1),
        "gpus": [*nvidia_gpus()],
    }
