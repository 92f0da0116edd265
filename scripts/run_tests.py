"""Run linters and pytest, each process on a core of its own; scripts/test.sh starts this in its environment.

MindSpore keeps compiled graphs in memory, so that each line of tests/heavy_files.txt, of one file or of several small
ones, has a process of its own; the other files share one process per core. Processes do not share cores, because
MindSpore's threads wait in busy loops.
"""

import os
import queue
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).resolve().parents[1]
LINTERS = ("ruff check .", "ruff format --check .", "mypy", "lint-imports --no-logo --no-cache")
MAX_CORES = 4  # a process takes up to 2 GB
MAX_SECONDS = 1800  # of a process
VALUE_OPTIONS = ("-c", "-k", "-m", "-o", "-p", "-W", "--deselect", "--ignore", "--ignore-glob")


def split_arguments(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Return pytest's options and the test files, FILE or FILE::TEST, among its arguments."""
    options: list[str] = []
    files: list[str] = []
    for previous, argument in zip(["", *arguments], arguments, strict=False):
        path = Path(argument.partition("::")[0])
        if previous in VALUE_OPTIONS or not path.exists():
            options.append(argument)
        elif path.is_dir():
            files += map(str, sorted(path.rglob("test_*.py")))
        else:
            files.append(argument)
    return options, files


def make_groups(files: list[str], cores: int, fast: bool) -> list[list[str]]:
    """Return the files of each process; with `fast` without the heavy ones."""
    lines = (ROOT / "tests/heavy_files.txt").read_text(encoding="utf-8").splitlines()
    names = {file: Path(file.partition("::")[0]).name for file in files}
    heavy_groups = [[file for file in files if names[file] in line.split()] for line in lines]
    heavy_files = [file for group in heavy_groups for file in group]
    other_files = [file for file in files if file not in heavy_files]
    groups = [other_files[start::cores] for start in range(min(cores, len(other_files)))]
    return groups if fast else groups + [group for group in heavy_groups if group]


class TestRun:
    """Processes of pytest, and what they reported."""

    def __init__(self, options: list[str], cores: list[int]) -> None:
        self.options = options
        self.free_cores: queue.SimpleQueue[int] = queue.SimpleQueue()
        for core in cores:
            self.free_cores.put(core)
        self.processes: list[subprocess.Popen] = []
        self.counts: Counter[str] = Counter()
        self.skip_reasons: Counter[str] = Counter()

    def run(self, files: list[str]) -> None:
        """Run test files in one process on a free core and print its output when it is complete."""
        core = self.free_cores.get()
        with tempfile.NamedTemporaryFile(suffix=".xml") as report:
            # Not subprocess's own timeout, which leaves the processes running that a test has started.
            limits = ["timeout", "--kill-after=10", str(MAX_SECONDS), "taskset", "-c", str(core)]
            command = [sys.executable, "-m", "pytest", "-o", "faulthandler_timeout=300", *self.options]
            process = subprocess.Popen(
                [*limits, *command, f"--junitxml={report.name}", *files],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
            )
            self.processes.append(process)
            output, _ = process.communicate()
            report_text = Path(report.name).read_text(encoding="utf-8")
        self.free_cores.put(core)
        failures = self.count(report_text) if report_text else 0
        if process.returncode in (124, 137):
            output += f"error: the process took more than {MAX_SECONDS} s, or was killed\n"
        if not report_text:
            output += f"error: pytest ended without a report for {' '.join(files)}\n"
        # Without a failed test: the process died or was interrupted, or there is no such test.
        is_complete = report_text and process.returncode in (0, pytest.ExitCode.NO_TESTS_COLLECTED)
        if not is_complete and not failures:
            self.counts["failed"] += 1
        print(f"\n--- {' '.join(files)}\n{output}", end="", flush=True)
        if process.returncode == pytest.ExitCode.USAGE_ERROR and not report_text:
            raise SystemExit(process.returncode)

    def count(self, report: str) -> int:
        """Add a JUnit report to the counts, and return the number of failures in it."""
        failures = 0
        for suite in ElementTree.fromstring(report).iter("testsuite"):
            skipped = int(suite.get("skipped", 0))
            failed = int(suite.get("failures", 0)) + int(suite.get("errors", 0))
            failures += failed
            passed = int(suite.get("tests", 0)) - skipped - failed
            self.counts.update(passed=passed, failed=failed, skipped=skipped)
            self.skip_reasons.update(skip.get("message") for skip in suite.iter("skipped"))
        return failures

    def run_all(self, groups: list[list[str]]) -> None:
        """Run groups of test files on all cores; a signal ends the processes."""
        with ThreadPoolExecutor(self.free_cores.qsize()) as threads:
            try:
                for _ in threads.map(self.run, groups):
                    pass
            except BaseException:
                for process in self.processes:
                    process.terminate()
                raise


def main() -> None:
    """Run the linters and the tests, and exit with 1 if one of them failed or no test ran."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # as under nohup
            signal.signal(number, signal.default_int_handler)
    os.chdir(ROOT)
    linter_codes = [subprocess.run(linter.split(), check=False).returncode for linter in LINTERS]
    options, files = split_arguments([argument for argument in sys.argv[1:] if argument != "--fast"])
    cores = sorted(os.sched_getaffinity(0))[:MAX_CORES]
    groups = make_groups(files or split_arguments(["tests"])[1], len(cores), "--fast" in sys.argv)
    tests = TestRun(options, cores)
    tests.run_all(groups)
    print()
    for reason, count in tests.skip_reasons.most_common():
        print(f"{count} skipped: {reason}")
    counts = tests.counts
    print(f"{counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped")
    has_run = counts["passed"] + counts["skipped"] > 0
    sys.exit(any(linter_codes) or counts["failed"] > 0 or not has_run)


if __name__ == "__main__":
    main()
