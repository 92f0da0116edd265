"""Start a script in several processes (ranks), one for each device, and end them together: see model_utils/job.py.

A job of several machines has this program on each.
"""

import argparse
import os
import secrets
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # this is a script: its own folder is on the path
from model_utils.errors import ConfigError, UserError
from model_utils.job import SIGNALS, Job
from model_utils.job_machines import find_machine
from model_utils.rendezvous import KEY


def main() -> int:
    """Run the job; return 0, the code of the first rank that failed, or 128 + the signal that stopped the ranks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worker_num", type=int, help="ranks of all machines; default: as the job's engine tells")
    parser.add_argument("--node_rank", type=int, help="index of this machine, from 0")
    parser.add_argument("--master_addr", default="", help="name or address of the first machine")
    parser.add_argument("--master_port", type=int, help="port of the first machine; the next one is used, too")
    parser.add_argument("local_size", type=int, metavar="processes", help="ranks of this machine, one per device")
    parser.add_argument("logs", type=Path, help="folder for their output")
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="script [argument ...]")
    arguments = vars(parser.parse_args())
    logs = arguments.pop("logs")
    script = arguments.pop("command")
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # before the job has started, a signal just ends this process
    try:
        machine = find_machine(**arguments)
        key = os.environ.get(KEY, "")
        if machine.count > 1 and not key:
            raise ConfigError(key=KEY, value="", expected="any secret text, the same on all machines (export it)")
        command = [sys.executable, *script, "--distribute", "true", "--device_num", str(machine.size)]
        job = Job(machine, logs, command, key or secrets.token_hex())
        if machine.index > 0:
            print(f"machine {machine.index} joins the job at {machine.address}:{job.rendezvous_port}", flush=True)
        job.join()
        logs.mkdir(parents=True, exist_ok=True)
    except (OSError, UserError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for number in SIGNALS:
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, job.ask_to_stop)
    try:
        job.start()
        if job.stop_signal:  # a signal during the start: ranks started later have not received it
            job.ask_to_stop(job.stop_signal)
        return job.wait()
    finally:
        job.kill()


if __name__ == "__main__":
    sys.exit(main())
