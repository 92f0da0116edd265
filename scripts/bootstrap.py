"""Make .venv in the project's root and install requirement files into it, once: scripts/env.sh runs this.

usage: python scripts/bootstrap.py [--active] REQUIREMENTS_FILE...
With --active nothing is installed: print the environment of this Python, or exit with 1 if it lacks what they name.

Only the standard library is used. Two starts at the same time wait for each other; an interrupted installation is
taken up again by the next start; a changed requirement file is installed again.
"""

import contextlib
import fcntl
import hashlib
import importlib.metadata
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VENV = ROOT / ".venv"
STAMP = VENV / "installed.json"  # sha256 of every requirement file that is installed completely
LOCK = ROOT / ".venv-lock"
VERSIONS = ((3, 11), (3, 12))


def usable() -> bool:
    """Whether .venv holds a Python that still runs and is one of VERSIONS."""
    probe = f"import sys, pip; sys.exit(sys.version_info[:2] not in {VERSIONS})"
    python = VENV / "bin/python"
    return python.exists() and subprocess.run([python, "-c", probe], capture_output=True, check=False).returncode == 0


def has_pip_again() -> bool:
    """Whether .venv only lacked pip, as an environment made without it, and has it now."""
    python = VENV / "bin/python"
    if not python.exists():
        return False
    return subprocess.run([python, "-m", "ensurepip"], capture_output=True, check=False).returncode == 0 and usable()


def digests(names: list[str]) -> dict[str, str]:
    """Return the sha256 of requirement files and of those that they name with `-r` or `-c`."""
    found: dict[str, str] = {}
    for name in names:
        text = (ROOT / name).read_text(encoding="utf-8")
        included = [line.split()[1] for line in text.splitlines() if line.startswith(("-r ", "-c "))]
        found |= {name: hashlib.sha256(text.encode()).hexdigest(), **digests(included)}
    return found


def install(names: list[str]) -> None:
    """Install the requirement files that the stamp does not name."""
    try:
        installed = json.loads(STAMP.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        installed = {}
    wanted = digests(names)
    if wanted.items() <= installed.items():
        return
    print(f"installing {', '.join(names)} into {VENV} (only the first time; some minutes)", file=sys.stderr, flush=True)
    files = [word for name in names for word in ("-r", str(ROOT / name))]
    pip = [VENV / "bin/python", "-m", "pip", "install", "-qq", "--disable-pip-version-check", *files]
    if subprocess.run(pip, cwd=ROOT, check=False).returncode:
        sys.exit(f"error: pip could not install {', '.join(names)}; the same command starts again where it stopped")
    temporary = STAMP.with_suffix(".tmp")
    temporary.write_text(json.dumps(installed | wanted, indent=2), encoding="utf-8")
    temporary.replace(STAMP)


def satisfies(names: list[str]) -> bool:
    """Return whether this Python has the direct dependencies of requirement files.

    MindSpore and what only checks and comparisons need must have the pinned versions, the rest may have others.
    """
    for name in digests(names):
        direct, _, _ = (ROOT / name).read_text(encoding="utf-8").partition("# What those pull in")
        for package, version in re.findall(r"^([\w.-]+)==(\S+)", direct, re.MULTILINE):
            try:
                installed, _, _ = importlib.metadata.version(package).partition("+")
            except importlib.metadata.PackageNotFoundError:
                return False
            if installed != version and (name != "requirements.txt" or package == "mindspore"):
                return False
    return sys.version_info[:2] in VERSIONS


def main() -> None:
    """Lock, make the environment if there is none that works, install."""
    if sys.argv[1] == "--active":
        is_other = Path(sys.prefix).resolve() != VENV.resolve()  # .venv itself follows the requirements
        sys.exit(print(sys.prefix) if is_other and satisfies(sys.argv[2:]) else 1)
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # a folder that nobody may write, or a file system without locks
            # NFS locks no file that is open for reading alone.
            fcntl.flock(stack.enter_context(LOCK.open("a")), fcntl.LOCK_EX)
        if not usable() and not has_pip_again():
            if VENV.exists():
                print(f"replacing {VENV}, which holds no Python 3.11 or 3.12 that works", file=sys.stderr, flush=True)
                shutil.rmtree(VENV)
            python = getattr(sys, "_base_executable", sys.executable)  # this process may be that environment's own
            if subprocess.run([python, "-m", "venv", VENV], check=False).returncode:
                sys.exit(f"error: {python} could not make the environment {VENV}")
        install(sys.argv[1:])


if __name__ == "__main__":
    main()
