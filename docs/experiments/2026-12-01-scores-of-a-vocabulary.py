"""Time oneDNN's products in bfloat16 with long rows, on a CPU that multiplies it: python THIS_FILE."""

import ctypes
import time
from collections.abc import Callable
from pathlib import Path

import mindspore
import numpy as np

SHAPES = [(640, 128, 30000), (640, 128, 14000), (640, 128, 8000), (640, 128, 3000)]
SHAPES += [(2048, 256, 4096), (2048, 256, 1024), (1024, 768, 3072)]
POINTER, SIZE, FACTOR = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float


def milliseconds(compute: Callable[[], None]) -> float:
    """Return the shortest time of nine calls after a first one."""
    times = []
    for _ in range(10):
        start = time.perf_counter()
        compute()
        times.append(1000 * (time.perf_counter() - start))
    return round(min(times[1:]), 2)


def time_product(gemm: Callable[..., int], rows: int, size: int, columns: int) -> dict[str, float]:
    """Return the times of x (rows, size) times W^T (size, columns), as a whole and in blocks that are copied."""
    x, weight = np.zeros((rows, size), np.uint16), np.zeros((columns, size), np.uint16)
    result = np.zeros((rows, columns), np.float32)

    def multiply(first: int, into: np.ndarray) -> None:
        count = into.shape[1]
        operands = (x.ctypes.data, size, weight[first : first + count].ctypes.data, size)
        gemm(b"N", b"T", rows, count, size, 1.0, *operands, 0.0, into.ctypes.data, count)

    def multiply_in_blocks(width: int) -> None:
        block = np.empty((rows, width), np.float32)
        for first in range(0, columns - width + 1, width):  # the rest, less than a block, is left out
            multiply(first, block)
            result[:, first : first + width] = block

    times = {"whole": milliseconds(lambda: multiply(0, result))}
    for width in (128, 256, 512):
        times[f"blocks of {width}"] = milliseconds(lambda width=width: multiply_in_blocks(width))
    return times


def main() -> None:
    """Print the times of all shapes."""
    library = next(Path(mindspore.__file__).parent.rglob("libdnnl.so.3"))
    gemm = ctypes.CDLL(str(library)).dnnl_gemm_bf16bf16f32
    gemm.argtypes = [ctypes.c_char] * 2 + [SIZE] * 3 + [FACTOR, *(POINTER, SIZE) * 2, FACTOR, POINTER, SIZE]
    for shape in SHAPES:
        print(*shape, time_product(gemm, *shape))


if __name__ == "__main__":
    main()
