"""Make pre-training data of all text in one part, in seven and on Dask with two workers, and compare the rows.

    PYTHONPATH=. python docs/experiments/2026-11-30-parts-of-all-text.py VOCAB OUTPUT TEXT ...

TEXT are patterns of files. Compared is a hash of the sorted rows, each with all its columns.
"""

import hashlib
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from src.data.feature_files import open_records
from src.data.row_reader import RowReader

PARTS = 7
SCHEDULER = "tcp://127.0.0.1:8786"


def run(*words: str) -> None:
    """Run a module with this Python; raise CalledProcessError if it fails."""
    subprocess.run([sys.executable, "-m", *words], check=True, stdout=subprocess.DEVNULL)


def digest_of(path: Path) -> tuple[int, str]:
    """Return the number of rows and a hash of the sorted rows."""
    records = open_records(path, "pretrain")
    reader = RowReader(records)
    digests = []
    with reader.open_files() as streams:
        for start in range(0, records.num_rows, 512):
            numbers = np.arange(start, min(start + 512, records.num_rows))
            columns = reader.read(streams, numbers)
            for i in range(len(numbers)):
                row = hashlib.sha256()
                for name in sorted(columns):
                    row.update(name.encode() + columns[name][i][columns[name][i] != 0].tobytes())
                digests.append(row.digest())
    return len(digests), hashlib.sha256(b"".join(sorted(digests))).hexdigest()[:16]


def main(vocab: str, output: str, *texts: str) -> None:
    """Print a row for each way."""
    folder = Path(output).resolve()
    common = ["src.create_pretraining_data", "--input_file", ",".join(texts), "--vocab_file", vocab]
    common += ["--max_seq_length", "128", "--masking", "dynamic", "--output_file_num", "2", "--output_file"]
    print("| | CPU s of children | seconds | rows | hash |\n|---|---|---|---|---|", flush=True)
    for name in ("one part", f"{PARTS} parts", "Dask"):
        path = folder / name.replace(" ", "-") / "train.mindrecord"
        children: list[subprocess.Popen] = []
        if name == "Dask":
            dask = Path(sys.executable).with_name("dask")
            for command in ("scheduler --host 127.0.0.1 --port 8786", f"worker {SCHEDULER} --nworkers 2 --nthreads 1"):
                children.append(subprocess.Popen([dask, *command.split()], stderr=subprocess.DEVNULL))
                time.sleep(8)
        cpu = resource.getrusage(resource.RUSAGE_CHILDREN)
        begin = time.monotonic()
        if name == "one part":
            run(*common, str(path), "--num_workers", "1")
        elif name == "Dask":
            run(*common, str(path), "--executor", "dask", "--scheduler", SCHEDULER)
        else:
            for part in range(PARTS):
                run(*common, str(path), "--num_workers", "1", "--part", f"{part}/{PARTS}")
            run("src.merge_parts", "--output_file", str(path))
        seconds = time.monotonic() - begin
        for child in reversed(children):
            child.terminate()
            child.wait()
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu_seconds = used.ru_utime + used.ru_stime - cpu.ru_utime - cpu.ru_stime
        rows, digest = digest_of(path)
        print(f"| {name} | {cpu_seconds:.0f} | {seconds:.0f} | {rows} | {digest} |", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
