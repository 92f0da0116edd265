"""Rank that adds up a tensor, times meetings of all ranks, and with `wait` meets ten times a second until a fault.

With `updates` it also times loops that synchronise as the trainer does, with a sleep of 10 or 50 ms as the update. Run
by scripts/launch.py, from the project's folder: see 2026-11-29-two-machines.md.
"""

import sys
import time

import mindspore as ms
import numpy as np
from mindspore.ops import AllReduce

from model_utils.device import setup_device
from src.training.ranks import Ranks, ranks_of
from src.training.trainer import MAX_UPDATES_PER_SYNC, SYNC_SECONDS

MEETINGS = 500


def time_updates(ranks: Ranks, seconds: float, sums: bool = False, stops: bool = False) -> float:
    """Return the ms that an update takes: a sleep, with `sums` the weights' sum, with `stops` every few the signals."""
    every = min(MAX_UPDATES_PER_SYNC, 1 + int(SYNC_SECONDS / seconds))
    ranks.wait("the start")
    begin = time.perf_counter()
    for i in range(MEETINGS):
        if sums:
            ranks.sum(np.ones(2), "the start of an update")
        time.sleep(seconds)
        if stops and i % every == 0:
            ranks.gather((0, 1.0), "the exchange of stop signals")
    return (time.perf_counter() - begin) / MEETINGS * 1e3


size = int(sys.argv[sys.argv.index("--device_num") + 1])
device = setup_device("CPU", distribute=True, device_num=size)
ranks = ranks_of(device)
total = AllReduce()(ms.Tensor([device.rank + 1.0])).asnumpy().item()
print(f"rank {device.rank} of {size}, sum {total}", flush=True)
start = time.perf_counter()
for _ in range(MEETINGS):
    ranks.gather((device.rank, 1.0), "a meeting")
print(f"{(time.perf_counter() - start) / MEETINGS * 1e3:.2f} ms a meeting", flush=True)
if "updates" in sys.argv:
    for update in (0.010, 0.050):
        times = [time_updates(ranks, update, sums, stops) for sums in (False, True) for stops in (False, True)]
        print("sleep, with stops, with sums, with both: " + ", ".join(f"{each:.2f}" for each in times), flush=True)
while "wait" in sys.argv:
    ranks.wait("the next meeting")
    time.sleep(0.1)
