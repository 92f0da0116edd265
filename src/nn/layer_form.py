"""Which form of the layers networks have that are made now: that for a CPU, or that for GPUs and Ascend."""

import contextlib
from collections.abc import Iterator

import mindspore as ms

_made_for = [""]


def on_cpu() -> bool:
    """Whether networks that are made now are for a CPU."""
    return (_made_for[0] or ms.get_context("device_target")) == "CPU"


@contextlib.contextmanager
def made_for(target: str) -> Iterator[None]:
    """Networks made inside have the form for this target, CPU, GPU or Ascend, whichever device is set."""
    before = _made_for[0]
    _made_for[0] = target
    try:
        yield
    finally:
        _made_for[0] = before
