"""The control group of this process (version 2), as a container has one, and what it may use of the machine."""

import contextlib
from pathlib import Path

CONTROL_GROUPS, OWN_GROUP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def limits(name: str) -> list[str]:
    """What the files of this name say in the group and in those above it; nothing where there are none."""
    found = []
    with contextlib.suppress(OSError):
        lines = OWN_GROUP.read_text().splitlines()
        group = next((line.removeprefix("0::/") for line in lines if line.startswith("0::/")), "")
        folder = CONTROL_GROUPS / group
        for each in (folder, *folder.parents):
            with contextlib.suppress(OSError):  # above the groups
                found.append((each / name).read_text().strip())
    return found
