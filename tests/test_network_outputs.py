"""Outputs of all rows, whatever the batches; and how much memory computing them takes."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mindspore import Tensor

from src.albert_config import PRESETS
from src.training.network_outputs import WORKING_MEMORY, OutputTable, rows_in_memory

ROOT = Path(__file__).resolve().parents[1]
NETWORK = SimpleNamespace(output_names=("logits", "tokens", "unused"), per_token_outputs=("tokens", "unused"))


@given(st.lists(st.integers(1, 9), min_size=1, max_size=12), st.integers(1, 5), st.randoms())
def test_outputs_come_back_in_the_order_of_the_rows(lengths: list[int], batch_size: int, random) -> None:
    counts, width = np.array(lengths), max(lengths) + 2
    pooled = np.random.default_rng(0).random((len(counts), 3), np.float32)
    tokens = np.random.default_rng(1).random((len(counts), width, 2), np.float32)
    order = list(range(len(counts)))
    random.shuffle(order)
    tables = OutputTable(NETWORK, counts, ignored=("unused",)), OutputTable(NETWORK, counts)
    for first in range(0, len(order), batch_size):
        rows = np.array([*order[first : first + batch_size], -1])  # the last one only fills up
        outputs = tuple(Tensor(values[rows]) for values in (pooled, tokens, tokens))
        tables[0].put(rows, outputs)
    half = np.array(order[: len(order) // 2], int)
    for rows in (half, np.setdiff1d(order, half)):  # as two ranks exchange what each of them has
        for name, values in tables[0].get_rows(rows).items():
            tables[1].set_rows(name, rows, values)
    for table in tables:
        assert table.values.keys() == {"logits", "tokens"}
        np.testing.assert_array_equal(table.values["logits"], pooled)
        expected = np.concatenate([row[:count] for row, count in zip(tokens, counts, strict=True)])
        np.testing.assert_array_equal(table.values["tokens"].values, expected)


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_has_batches_within_the_memory(name: str) -> None:
    scores = 4 * PRESETS[name].num_attention_heads * 512**2
    rows = rows_in_memory(PRESETS[name], 512)
    assert rows >= 1 and rows * scores < WORKING_MEMORY / 4
    assert rows_in_memory(PRESETS[name], 8) > 16 * rows


MEASURE = """
import json, resource, sys
import mindspore as ms, numpy as np
from mindspore import Tensor
from src.albert_config import AlbertConfig
from src.finetune_eval_model import AnsweringNetwork, SequenceClassificationScores, SpanSearchScores

backend = sys.argv.pop()
ms.set_context(mode=ms.GRAPH_MODE)
config = AlbertConfig(**json.loads(sys.argv[1]), backend=backend)
starts, rows, width = map(int, sys.argv[2:])
scores = SpanSearchScores(config, starts, starts) if starts else SequenceClassificationScores(config, 2)
network = AnsweringNetwork(scores)
for shape in ((1, 16), (rows, width)):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    outputs = network(*(Tensor(np.ones(shape, np.int32)) for _ in network.input_columns))
    (outputs[0] if starts else outputs).asnumpy()
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)
"""


@pytest.mark.parametrize(
    ("sizes", "starts", "width", "backend"),
    [((96, 12, 384), 0, 512, "composed"), ((768, 12, 3072), 0, 128, "auto"), ((512, 2, 512), 5, 256, "auto")],
    ids=["scores", "intermediate states", "starts of a search"],
)
def test_a_batch_takes_the_memory_that_it_may(
    sizes: tuple[int, int, int], starts: int, width: int, backend: str
) -> None:
    """Three layers, so that one whose memory is kept would show; attention in C++ keeps no scores."""
    hidden, heads, intermediate = sizes
    architecture = PRESETS["albert_tiny"].replace(
        vocab_size=100,
        num_hidden_layers=3,
        hidden_size=hidden,
        num_attention_heads=heads,
        intermediate_size=intermediate,
    )
    rows = rows_in_memory(architecture, width, starts) // 2  # half of it, for the sake of time
    command = [sys.executable, "-c", MEASURE, json.dumps(architecture.saved_dict()), str(starts), str(rows), str(width)]
    command.append(backend)
    taken = int(subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()[-1])
    print(f"{rows} x {width}: {taken / 1e6:.0f} MB")
    assert taken < 0.6 * WORKING_MEMORY
