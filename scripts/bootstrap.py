"""Creation of .venv in the project's root with the packages of requirement files; scripts/env.sh runs this.

usage: python scripts/bootstrap.py [--active] REQUIREMENTS_FILE...
With --active nothing is installed: print the environment of this Python, or exit with 1 if it lacks packages.

Only the standard library is used. Concurrent starts wait for each other, the next start continues an interrupted
installation, and changed requirement files are installed again.
"""

import contextlib
import fcntl
import hashlib
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VENV = ROOT / ".venv"
STAMP = VENV / "installed.json"  # sha256 of every requirement file whose installation is complete
LOCK = ROOT / ".venv-lock"
VERSIONS = ((3, 11), (3, 12))


def is_usable() -> bool:
    """Return True if .venv has a working Python of one of VERSIONS."""
    probe = f"import sys; sys.exit(sys.version_info[:2] not in {VERSIONS})"
    python = VENV / "bin/python"
    return python.exists() and subprocess.run([python, "-c", probe], check=False).returncode == 0


def create() -> None:
    """Create .venv, in place of one that this script has made and that no longer works."""
    if VENV.is_symlink():
        sys.exit(f"error: {VENV} is a link to an environment without Python 3.11 or 3.12; remove the link")
    if not STAMP.exists() and os.path.lexists(VENV / "bin/python"):
        found = f"{VENV} is an environment without Python 3.11 or 3.12, which this script has not made"
        sys.exit(f"error: {found}; remove it, or activate another one")
    if VENV.exists():
        print(f"replacing {VENV}, which has no working Python 3.11 or 3.12", file=sys.stderr, flush=True)
        shutil.rmtree(VENV)
    python = getattr(sys, "_base_executable", sys.executable)  # not .venv's own Python, which may run this
    if subprocess.run([python, "-m", "venv", VENV], check=False).returncode:
        sys.exit(f"error: {python} could not create the environment {VENV}")


def install(names: list[str]) -> None:
    """Install the requirement files, unless STAMP lists all of them with their present content."""
    try:
        installed = json.loads(STAMP.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        installed = {}
    required = {name: hashlib.sha256((ROOT / name).read_bytes()).hexdigest() for name in names}
    if required.items() <= installed.items():
        return
    print(f"installing {', '.join(names)} into {VENV} (only the first time; some minutes)", file=sys.stderr, flush=True)
    python = VENV / "bin/python"
    subprocess.run([python, "-m", "ensurepip"], capture_output=True, check=False)  # uv makes environments without pip
    files = [word for name in names for word in ("-r", name)]
    pip = [python, "-m", "pip", "install", "-qq", "--disable-pip-version-check", *files]
    if subprocess.run(pip, cwd=ROOT, check=False).returncode:
        sys.exit(f"error: pip could not install {', '.join(names)}; run the same command again to continue")
    temporary = STAMP.with_suffix(".tmp")
    temporary.write_text(json.dumps(installed | required, indent=2), encoding="utf-8")
    temporary.replace(STAMP)


def direct_dependencies(name: str) -> list[str]:
    """Return the packages that the project itself needs of a requirement file, as PACKAGE==VERSION."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extra = name.removeprefix("requirements").removeprefix("-").removesuffix(".txt")
    dependencies = project["optional-dependencies"][extra] if extra else project["dependencies"]
    return [dependency for dependency in dependencies if "==" in dependency]  # not another extra of the project


def has_required_packages(names: list[str]) -> bool:
    """Return True if this Python has the direct dependencies of requirement files.

    MindSpore and the packages for tests and comparisons must have the pinned versions; others may differ.
    """
    for name in names:
        for dependency in direct_dependencies(name):
            package, _, version = dependency.partition("==")
            try:
                installed, _, _ = importlib.metadata.version(package).partition("+")
            except importlib.metadata.PackageNotFoundError:
                return False
            if installed != version and (name != "requirements.txt" or package == "mindspore"):
                return False
    return sys.version_info[:2] in VERSIONS


def main() -> None:
    """Wait for other installations, create .venv if it is not usable, and install."""
    if not sys.argv[1:] or not sys.argv[-1].endswith(".txt"):
        sys.exit(__doc__)
    if sys.argv[1] == "--active":
        is_other = Path(sys.prefix).resolve() != VENV.resolve()  # .venv is always updated to the requirements
        if not (is_other and has_required_packages(sys.argv[2:])):
            sys.exit(1)
        print(sys.prefix)
        sys.exit()
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # a read-only folder, or a file system without locks
            # Opened for appending, because NFS does not lock files that are open only for reading.
            fcntl.flock(stack.enter_context(LOCK.open("a")), fcntl.LOCK_EX)
        if not is_usable():
            create()
        install(sys.argv[1:])


if __name__ == "__main__":
    main()
