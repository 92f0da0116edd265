"""State of a folder, for tests that nothing in it changes."""

from pathlib import Path


def folder_state(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Return bytes and times of change of a folder and all below it; a file that came and went shows in the times."""
    paths = [folder, *sorted(folder.rglob("*"))]
    return {str(path): (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"") for path in paths}
