"""The library of operations for CPUs (src/nn/native), compiled when it is first used, and how graphs call it."""

import ctypes
import functools
from collections.abc import Callable
from pathlib import Path

import mindspore as ms
from mindspore import Tensor, ops

from model_utils.backend import Backend
from model_utils.cpu_threads import threads
from model_utils.native_code import library_for

Tensors = tuple[Tensor, ...]
SOURCE = Path(__file__).parent / "native" / "operations.cc"


def is_fused(backend: Backend) -> bool:
    """Return True if layers of this backend run as C++ operations.

    Raises:
        DeviceError: the backend is FUSED, but the library cannot be built.
    """
    if backend is Backend.FUSED:
        return library_for(SOURCE, is_needed=True) is not None
    return backend is Backend.AUTO and backend.is_for_cpu and library_for(SOURCE) is not None


def without_cpp(backend: Backend) -> Backend:
    """Return the backend of MindSpore's operations for the same device, whose networks can be exported."""
    return Backend.COMPOSED if backend.is_for_cpu else Backend.ACCELERATOR


@functools.cache
def _library() -> Path:
    """Return the library, which computes in as many threads as are chosen when it is first used."""
    library = library_for(SOURCE, is_needed=True)
    assert library
    ctypes.CDLL(str(library)).set_threads(threads())
    return library


@functools.cache
def library_function(name: str) -> Callable[..., int]:
    """Return a function of the library whose result is an int64."""
    function = ctypes.CDLL(str(_library()))[name]
    function.restype = ctypes.c_int64
    return function


def operation(name: str, shapes: Callable, outputs: int = 1) -> ops.Custom:
    """Return an operation of the library; all outputs are float32.

    Args:
        shapes: from the shapes of the inputs to those of the outputs.
    """
    types = ms.float32 if outputs == 1 else (ms.float32,) * outputs
    return ops.Custom(f"{_library()}:{name}", shapes, lambda *_: types, func_type="aot")
