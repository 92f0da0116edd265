"""The form of the layers that networks are built with: for a CPU, or for GPUs and Ascend."""

import contextlib
from collections.abc import Iterator

import mindspore as ms

_made_for = [""]


def on_cpu() -> bool:
    """Return whether networks built now get the form for a CPU."""
    return (_made_for[0] or ms.get_context("device_target")) == "CPU"


@contextlib.contextmanager
def made_for(target: str) -> Iterator[None]:
    """Build the networks inside for this target (CPU, GPU or Ascend), whichever device is set."""
    before = _made_for[0]
    _made_for[0] = target
    try:
        yield
    finally:
        _made_for[0] = before
