"""Device and compute type of torch, as the peer of a contest."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from model_utils.cpu_threads import threads
from model_utils.errors import DeviceError
from model_utils.nvidia import CUDA_LIBRARIES

LIBRARY_PATH = "LD_LIBRARY_PATH"


def load_torch() -> ModuleType:
    """Return torch, set to as many threads as this project."""
    import torch

    torch.set_num_threads(threads())
    return torch


@contextlib.contextmanager
def without_cuda_libraries() -> Iterator[None]:
    """Hide MindSpore's CUDA libraries from programs started inside: torch brings others of the same names."""
    before = os.environ.get(LIBRARY_PATH)
    if before is None:
        yield
        return

    def has_cuda(folder: str) -> bool:
        return any((Path(folder) / name).exists() for name in CUDA_LIBRARIES)

    remaining = [folder for folder in before.split(":") if not has_cuda(folder)]
    os.environ[LIBRARY_PATH] = ":".join(remaining)
    try:
        yield
    finally:
        os.environ[LIBRARY_PATH] = before


class TorchDevice:
    """CPU or first GPU for torch; float16 by torch.autocast.

    Raises:
        DeviceError: torch sees no GPU.
    """

    def __init__(self, target: str, compute_type: str) -> None:
        self.torch: ModuleType = load_torch()
        self.name = {"CPU": "cpu", "GPU": "cuda"}[target]
        self.float16 = compute_type == "float16"
        if self.on_gpu and not self.torch.cuda.is_available():
            raise DeviceError("torch sees no GPU: install a build of it for this driver, or give --peers ''")

    @property
    def on_gpu(self) -> bool:
        return self.name == "cuda"

    def autocast(self) -> contextlib.AbstractContextManager:
        """Return a context in which matrix products have the compute type."""
        return self.torch.autocast(self.name, self.torch.float16) if self.float16 else contextlib.nullcontext()

    def wait(self) -> None:
        """Wait until all queued work is computed."""
        if self.on_gpu:
            self.torch.cuda.synchronize()

    def peak_memory(self) -> int:
        """Return the bytes of the GPU's memory that tensors have held at most."""
        return self.torch.cuda.max_memory_allocated()

    def describe(self) -> tuple[str, str]:
        """Return the device's name, and how torch uses it."""
        if not self.on_gpu:
            return "CPU", f"{self.torch.get_num_threads()} threads"
        return self.torch.cuda.get_device_name(), "autocast to float16" if self.float16 else "float32"
