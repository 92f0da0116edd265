"""CPU model and instruction sets, from /proc/cpuinfo."""

import functools
from pathlib import Path


@functools.cache
def cpu_info() -> dict[str, str]:
    """Return /proc/cpuinfo of the first core, with keys like `model name` and `flags`; {} if it cannot be read."""
    try:
        lines = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
    except OSError:
        return {}
    return {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}


def cpu_flags() -> frozenset[str]:
    """Return the instruction-set flags of the CPU, by the kernel's names; empty if /proc/cpuinfo has none."""
    return frozenset(cpu_info().get("flags", "").split())
