"""Products of dense layers as a cell."""

import mindspore as ms
from mindspore import Tensor, nn, ops

from model_utils.backend import Backend
from src.nn import fused_products, layers
from src.nn.native_operations import is_fused


class Multiply(nn.Cell):
    """x W^T of one weight, or beside each other those of three: (N, K), (M, K) -> (N, M), in the form in use."""

    def __init__(
        self,
        number: int = 1,
        shared: bool = False,
        compute_type: ms.dtype = ms.float32,
        backend: Backend = Backend.AUTO,
    ) -> None:
        super().__init__()
        self.joined = number == 3 and is_fused(backend)
        if self.joined:
            self.products = fused_products.ThreeProducts(compute_type, shared)
        else:
            self.product = layers.dense_product(compute_type, shared, backend)

    def construct(self, x: Tensor, *weights: Tensor) -> Tensor:
        if self.joined:
            return ops.concat(self.products(x, *weights), 1)
        products = ()
        for weight in weights:
            products += (self.product(x, weight),)
        return ops.concat(products, 1)
