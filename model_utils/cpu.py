"""The CPU, as the kernel describes it."""

import functools
from pathlib import Path


@functools.cache
def cpu_info() -> dict[str, str]:
    """What /proc/cpuinfo says of the first core, as `model name` and `flags`; nothing where it cannot be read."""
    try:
        lines = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
    except OSError:
        return {}
    return {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}


def cpu_flags() -> frozenset[str]:
    """What the CPU has beyond its basic instructions, by the kernel's names; empty where /proc/cpuinfo has no flags."""
    return frozenset(cpu_info().get("flags", "").split())
