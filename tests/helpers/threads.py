"""The threads of this process."""

from pathlib import Path


def helpers() -> int:
    """How many help the calling one with the operations of src/nn/native."""
    names = [file.read_text().strip() for file in Path("/proc/self/task").glob("*/comm")]
    return names.count("albert-layers")
