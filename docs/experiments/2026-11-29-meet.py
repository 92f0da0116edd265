"""Rank that adds up a tensor, times meetings of all ranks, and with `wait` meets ten times a second until a fault.

Run by scripts/launch.py, from the project's folder: see 2026-11-29-two-machines.md.
"""

import sys
import time

import mindspore as ms
from mindspore.ops import AllReduce

from model_utils.device import setup_device
from src.training.ranks import ranks_of

MEETINGS = 500
size = int(sys.argv[sys.argv.index("--device_num") + 1])
device = setup_device("CPU", distribute=True, device_num=size)
ranks = ranks_of(device)
total = AllReduce()(ms.Tensor([device.rank + 1.0])).asnumpy().item()
print(f"rank {device.rank} of {size}, sum {total}", flush=True)
start = time.perf_counter()
for _ in range(MEETINGS):
    ranks.gather((device.rank, 1.0), "a meeting")
print(f"{(time.perf_counter() - start) / MEETINGS * 1e3:.2f} ms a meeting", flush=True)
while "wait" in sys.argv:
    ranks.wait("the next meeting")
    time.sleep(0.1)
