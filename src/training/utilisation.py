"""Model-FLOPs utilisation: the operations that training needs, against what the device's matrix products reach."""

import time
from dataclasses import dataclass
from statistics import median

import numpy as np
from mindspore import Tensor, ops

from src.albert_config import AlbertConfig
from src.nn.layers import compute_dtype, dense_product, operand_dtype
from src.training.flops import forward_flops

MIN_SECONDS = 0.01  # s that a product must take, so that starting it does not matter
MIN_ROWS = 128
MAX_ROWS = 16384
REPEATS = 5


@dataclass
class Utilisation:
    """Model-FLOPs utilisation of the training of one architecture, texts_per_row sequences side by side in a row.

    reads_tokens: as ScoresNetwork has it.
    """

    config: AlbertConfig
    texts_per_row: int = 1
    reads_tokens: bool = True
    peak: float = 0.0

    def measure_device(self) -> None:
        """Measure the device's speed, in about half a second; keep the largest measurement so far."""
        self.peak = max(self.peak, matmul_flops_per_second(self.config))

    def flops(self, batch: dict[str, np.ndarray]) -> float:
        """Return the operations of a micro-batch: input_mask (B, L), masked_lm_positions (B, P) in pre-training.

        Padding counts; packed texts (src/data/packing.py) have none.
        """
        if "begins" in batch:
            lengths, texts = np.unique(np.diff(batch["begins"]), return_counts=True)
            sizes = zip(texts.tolist(), lengths.tolist(), strict=True)
            return 3 * sum(forward_flops(self.config, *size, reads_tokens=self.reads_tokens) for size in sizes)
        rows, width = batch["input_mask"].shape
        size = rows * self.texts_per_row, width // self.texts_per_row
        predictions = batch["masked_lm_positions"].shape[1] if "masked_lm_positions" in batch else 0
        return 3 * forward_flops(self.config, *size, predictions, reads_tokens=self.reads_tokens)

    def mfu(self, flops_per_second: float) -> float:
        """Return the share of the device's speed that training reaches."""
        if flops_per_second > self.peak:  # the device was busy when it was measured
            self.measure_device()
        return flops_per_second / self.peak


def matmul_flops_per_second(config: AlbertConfig) -> float:
    """Return operations a second of large square matrix products in the compute type, the median of several."""
    compute_type = compute_dtype(config)
    product = dense_product(compute_type, backend=config.backend)

    def product_seconds(matrix: Tensor) -> float:
        start = time.perf_counter()
        product(matrix, matrix)[:1, :1].asnumpy()
        return time.perf_counter() - start

    block = Tensor(np.random.default_rng(0).standard_normal((MIN_ROWS, MIN_ROWS), np.float32))
    block = ops.cast(block, operand_dtype(compute_type))
    rows = MIN_ROWS
    seconds = 0.0
    while seconds < MIN_SECONDS and rows < MAX_ROWS:
        rows *= 2
        matrix = ops.tile(block, (rows // MIN_ROWS, rows // MIN_ROWS))
        product_seconds(matrix)  # the first product of a shape takes longer
        seconds = product_seconds(matrix)
    return 2 * rows**3 / median(product_seconds(matrix) for _ in range(REPEATS))
