"""Plan an epoch over 20 million rows for one of two ranks, and print its time and the memory that it takes.

    PYTHONPATH=. python docs/experiments/2026-11-30-memory-of-a-plan.py {plain,buckets,packed}

Memory is the resident set in MiB, less what the imports take.
"""

import resource
import sys
import time
from pathlib import Path

import numpy as np

from src.data.batches import FeatureDataset, Loading
from src.data.feature_files import RecordSet
from src.data.packing import Packing

ROWS = 20_000_000
FORMS = {"plain": {}, "buckets": {"bucket_boundaries": (64, 128, 256, 512)}, "packed": {"packing": Packing(1, 512)}}
COLUMN = {"dtype": "int32", "width": 512, "per_token": True}

base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
lengths = np.random.default_rng(0).integers(20, 513, ROWS, dtype=np.int32)
manifest = {"columns": {"input_ids": COLUMN, "input_mask": COLUMN}, "rows": ROWS}
records = RecordSet(Path(), "set", [], manifest, lengths)
dataset = FeatureDataset(records, Loading(32, rank=1, rank_size=2, **FORMS[sys.argv[1]]))
start = time.monotonic()
batches = sum(len(plan.rows) for plan in dataset.plans(0))
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024 - base
print(f"{batches} batches, {time.monotonic() - start:.1f} s, peak {peak} MiB, lengths of rows included")
