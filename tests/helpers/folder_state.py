"""What a folder holds, for tests that nothing in it changes."""

from pathlib import Path


def folder_state(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Of the folder itself and all below it: when it was changed last (a file that came and went shows), and bytes."""
    paths = [folder, *sorted(folder.rglob("*"))]
    return {str(path): (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"") for path in paths}
