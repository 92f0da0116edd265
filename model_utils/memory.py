"""How much of the host's memory a process has held."""

import re
from pathlib import Path


def peak_memory(process: int | str = "self") -> int:
    """Bytes of the host's memory that a process, by default this one, has held at most.

    Not ru_maxrss of getrusage, which begins with what the process that started this one had held. Where the system
    does not say (gVisor), what it holds now.
    """
    status = Path(f"/proc/{process}/status").read_text(encoding="ascii")
    held = dict(re.findall(r"(VmHWM|VmRSS):\s+(\d+) kB", status))
    return 1024 * int(held.get("VmHWM") or held["VmRSS"])
