"""Pre-train with two ranks for an hour, kill a process every five minutes, start again, and note the ranks' memory.

    PYTHONPATH=. python docs/experiments/2026-11-30-an-hour-of-two-ranks.py DATA_FOLDER OUTPUT STEPS [MINUTES_PER_KILL]

Without MINUTES_PER_KILL the run is undisturbed. Memory (resident, MiB, of both ranks and the launcher) goes to
OUTPUT/memory.jsonl every 10 s, with the newest step of the log.
"""

import json
import os
import random
import runpy
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

KILLS = runpy.run_path(str(Path(__file__).with_name("2026-11-29-kills.py")))
COMMAND = (
    "scripts/launch.py 2 {output}/logs run_pretrain.py --data_dir {data} --albert_network albert_tiny --batch_size 8 "
    "--train_steps {steps} --save_checkpoint_minutes 0.5 --save_checkpoint_steps 0 --threads 1 --eval_data_dir {data} "
    "--eval_steps 1000 --eval_batches 4 --save_checkpoint_path {output}/run"
)


def memory(pid: int) -> int:
    """Return the resident MiB of a process; 0 if it has ended."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE") // 2**20


def last_step(log: Path) -> int:
    """Return the newest step of a log; 0 before the first record."""
    try:
        lines = log.read_text().splitlines()
        return json.loads(lines[-1])["step"]
    except (OSError, IndexError, ValueError):
        return 0


def main(data: str, output: str, steps: str, minutes: str = "inf") -> None:
    """Run until the command has ended by itself."""
    folder = Path(output).resolve()
    folder.mkdir(parents=True)
    words = shlex.split(COMMAND.format(output=folder, data=data, steps=steps))
    rng = random.Random(0)
    begin = time.monotonic()
    kills = 0
    with (folder / "memory.jsonl").open("w") as records:
        while True:
            process = KILLS["start"](words, folder / "launcher.log")
            deadline = time.monotonic() + 60 * float(minutes)
            while process.poll() is None and time.monotonic() < deadline:
                try:
                    process.wait(10)
                except subprocess.TimeoutExpired:
                    mib = [memory(pid) for pid in KILLS["descendants"](process.pid)]
                    record = {"s": round(time.monotonic() - begin), "step": last_step(folder / "run/train_log.jsonl")}
                    records.write(json.dumps(record | {"kills": kills, "mib": mib}) + "\n")
                    records.flush()
            if process.poll() is not None:
                break
            os.kill(rng.choice(list(KILLS["descendants"](process.pid))), signal.SIGKILL)
            kills += 1
            process.wait()
            KILLS["wait_for_group"](process.pid)
    minutes_taken = (time.monotonic() - begin) / 60
    print(f"exit code {process.returncode}, {kills} kills, {minutes_taken:.1f} minutes")
    for name, digest in KILLS["contents"](folder / "run").items():
        print(digest[:16], name)


if __name__ == "__main__":
    main(*sys.argv[1:])
