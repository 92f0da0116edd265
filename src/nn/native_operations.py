"""The library of operations for CPUs (src/nn/native), compiled when it is first used, and how graphs call it."""

import ctypes
import functools
from collections.abc import Callable
from pathlib import Path

import mindspore as ms
from mindspore import ops

from model_utils.cpu_threads import threads
from model_utils.native_code import library_for
from src.nn.layer_form import on_cpu

SOURCE = Path(__file__).parent / "native" / "operations.cc"


def used() -> bool:
    """Return whether networks built now use the C++ operations.

    Raises:
        DeviceError: they always should, but cannot.
    """
    return on_cpu() and _library() is not None


def _library() -> Path | None:
    library = library_for(SOURCE)
    if library is not None:
        _set_threads(library)
    return library


@functools.cache
def _set_threads(library: Path) -> None:
    ctypes.CDLL(str(library)).set_threads(threads())


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
