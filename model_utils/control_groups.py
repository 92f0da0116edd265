"""Resource limits of this process's control group (cgroup version 2), such as a container's."""

import contextlib
from pathlib import Path

CONTROL_GROUPS = Path("/sys/fs/cgroup")
OWN_GROUP = Path("/proc/self/cgroup")


def limits(name: str) -> list[str]:
    """Return the contents of the limit files called `name` in this process's group and its parents; [] if none."""
    contents = []
    with contextlib.suppress(OSError):
        lines = OWN_GROUP.read_text().splitlines()
        group = next((line.removeprefix("0::/") for line in lines if line.startswith("0::/")), "")
        group_folder = CONTROL_GROUPS / group
        for folder in (group_folder, *group_folder.parents):
            with contextlib.suppress(OSError):  # folders above the root group have no limit files
                contents.append((folder / name).read_text().strip())
    return contents
