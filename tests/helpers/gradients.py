"""A cell's value and all its gradients at once."""

import mindspore as ms
from mindspore import Tensor, nn, ops


class Gradients(nn.Cell):
    """The first output of a cell and, for a gradient of it, those of its inputs and weights."""

    def __init__(self, cell: nn.Cell) -> None:
        super().__init__()
        self.cell = cell
        self.weights = ms.ParameterTuple(cell.trainable_params())
        self.gradient = ops.GradOperation(get_all=True, get_by_list=True, sens_param=True)

    def construct(self, dout: Tensor, *inputs: Tensor) -> tuple:
        return self.cell(*inputs), self.gradient(self.cell, self.weights)(*inputs, dout)
