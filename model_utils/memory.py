"""The host's memory: how much there is, and how much of it a process has held."""

import os
import re
from pathlib import Path

from model_utils.control_groups import limits


def available_memory() -> int:
    """Bytes that the machine has, or that the control group allows where that is less."""
    of_groups = [int(text) for text in limits("memory.max") if text.isdecimal()]  # "max": no limit
    return min([os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), *of_groups])


def peak_memory(process: int | str = "self") -> int:
    """Bytes of the host's memory that a process, by default this one, has held at most.

    Not ru_maxrss of getrusage, which begins with what the process that started this one had held. Where the system
    does not say (gVisor), what it holds now.
    """
    status = Path(f"/proc/{process}/status").read_text(encoding="ascii")
    held = dict(re.findall(r"(VmHWM|VmRSS):\s+(\d+) kB", status))
    return 1024 * int(held.get("VmHWM") or held["VmRSS"])
