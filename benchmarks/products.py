"""How fast the matrix products of a dense layer are here, in MindSpore and in torch: python -m benchmarks.products.

A layer x W^T has three: its value, and the gradients of x (dy W) and of W (dy^T x), here together, as this project
computes them. Weights that several layers share are prepacked, once for all their products, which is not counted. All
in float32 on CPU.
"""

import logging
import time
from collections.abc import Callable

import numpy as np

from benchmarks.commands import need_libraries
from benchmarks.torch_device import load_torch
from benchmarks.turns import Contender
from model_utils.config import run_main
from model_utils.cpu_threads import threads
from model_utils.device import setup_device
from model_utils.schema import Config, option
from src.albert_config import PRESETS

logger = logging.getLogger(__name__)
FORMS = ("x W^T", "dy W, dy^T x")
Shape = tuple[int, int, int]  # rows, columns of x, columns of the product


class ProductsConfig(Config):
    """Time the products of the dense layers of an encoder: python -m benchmarks.products."""

    albert_network: str = option("albert_base", "preset of sizes", choices=tuple(PRESETS))
    rows: int = option(1024, "tokens of a batch", minimum=1)
    repeats: int = option(15, "products of each form, of which the fastest counts", minimum=1)


class MindSporeProducts:
    """In graphs of their own; own: this project's operations, not MindSpore's."""

    def __init__(self, own: bool) -> None:
        setup_device("CPU", fused_layers="always")
        self.own = own

    def gflops(self, shape: Shape, repeats: int) -> list[float]:
        """10^9 operations a second of each form."""
        from mindspore import Tensor, nn, ops

        from src.nn.fused_products import Product

        product = Product() if self.own else ops.MatMul(transpose_b=True)

        class Value(nn.Cell):
            def construct(self, x: Tensor, weight: Tensor) -> Tensor:
                return product(x, weight)

        class Gradient(nn.Cell):
            def __init__(self) -> None:
                super().__init__()
                self.value, self.gradient = Value(), ops.GradOperation(get_all=True, sens_param=True)

            def construct(self, x: Tensor, weight: Tensor, dy: Tensor) -> tuple[Tensor, Tensor]:
                return self.gradient(self.value)(x, weight, dy)

        x, weight, dy = (Tensor(array) for array in operands(shape))
        value, gradient = Value(), Gradient()
        return speeds(
            shape, repeats, [lambda: value(x, weight).asnumpy(), lambda: gradient(x, weight, dy)[1].asnumpy()]
        )


class PrepackedProducts:
    """This project's, where several layers share the weights."""

    def __init__(self) -> None:
        setup_device("CPU", fused_layers="always")

    def gflops(self, shape: Shape, repeats: int) -> list[float]:
        """10^9 operations a second of the value; nothing where oneDNN cannot prepack."""
        from mindspore import Tensor, nn

        from src.nn.fused_products import Product

        product = Product(shared=True)
        if not product.prepacks:
            return []

        class Prepack(nn.Cell):
            def construct(self, weight: Tensor) -> Tensor:
                return product.prepack(weight)

        class Value(nn.Cell):
            def construct(self, x: Tensor, weight: Tensor, prepacked: Tensor) -> Tensor:
                return product.value_prepacked(x, weight, prepacked)

        x, weight, _ = (Tensor(array) for array in operands(shape))
        prepacked, value = Prepack()(weight), Value()
        return speeds(shape, repeats, [lambda: value(x, weight, prepacked).asnumpy()])


class TorchProducts:
    """As torch has them."""

    def gflops(self, shape: Shape, repeats: int) -> list[float]:
        """10^9 operations a second of each form."""
        torch = load_torch()
        x, weight, dy = map(torch.from_numpy, operands(shape))
        return speeds(shape, repeats, [lambda: x @ weight.T, lambda: (dy @ weight, dy.T @ x)])


def operands(shape: Shape) -> tuple[np.ndarray, ...]:
    """x, W and dy."""
    rows, inside, outside = shape
    random = np.random.default_rng(0)
    sizes = (rows, inside), (outside, inside), (rows, outside)
    return tuple(random.standard_normal(size).astype(np.float32) for size in sizes)


def speeds(shape: Shape, repeats: int, products: list[Callable[[], object]]) -> list[float]:
    """10^9 operations a second of one product and of two, the fastest of several after two."""
    fastest = []
    for number, product in enumerate(products, start=1):
        seconds = []
        for _ in range(repeats + 2):
            start = time.perf_counter()
            product()
            seconds.append(time.perf_counter() - start)
        fastest.append(number * 2 * np.prod(shape) / min(seconds[2:]) / 1e9)
    return fastest


def main(config: ProductsConfig) -> None:
    """Measure and print a table."""
    need_libraries("torch")
    sizes = PRESETS[config.albert_network]
    hidden, inside = sizes.hidden_size, sizes.intermediate_size
    logger.info(f"GFLOP/s, float32, {threads()} threads, the fastest of {config.repeats}")
    print(f"{'':24}" + "".join(f"{form:>14}" for form in FORMS))
    with (
        Contender(MindSporeProducts, True) as ours,
        Contender(PrepackedProducts) as prepacked,
        Contender(MindSporeProducts, False) as stock,
        Contender(TorchProducts) as theirs,
    ):
        for shape in ((config.rows, hidden, hidden), (config.rows, hidden, inside), (config.rows, inside, hidden)):
            for name, side in (("ours", ours), ("prepacked", prepacked), ("MindSpore", stock), ("torch", theirs)):
                figures = "".join(f"{figure:14.1f}" for figure in side.call("gflops", shape, config.repeats))
                print(f"{name:10}{' x '.join(map(str, shape)):14}{figures}")


if __name__ == "__main__":
    run_main(main, ProductsConfig)
