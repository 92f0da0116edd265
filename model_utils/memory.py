"""Host memory: the amount available and the peak use of a process."""

import os
import re
from pathlib import Path

from model_utils.control_groups import limits


def available_memory() -> int:
    """Return the bytes of memory of the machine, or the control group's limit if that is less."""
    group_limits = [int(text) for text in limits("memory.max") if text.isdecimal()]  # "max": no limit
    return min([os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), *group_limits])


def peak_memory(process: int | str = "self") -> int:
    """Return the peak host memory of a process, by default this one, in bytes.

    getrusage's ru_maxrss is not used, because it includes the peak of the parent process. On systems without VmHWM
    (gVisor) the result is the present use.
    """
    status = Path(f"/proc/{process}/status").read_text(encoding="ascii")
    kilobytes = dict(re.findall(r"(VmHWM|VmRSS):\s+(\d+) kB", status))
    return 1024 * int(kilobytes.get("VmHWM") or kilobytes["VmRSS"])
