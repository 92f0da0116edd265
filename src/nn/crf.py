"""Partition function of a linear-chain conditional random field (Lafferty et al. 2001), with its own gradient.

Shape letters: B sequences, L positions, C labels. A position without a word is passed over.
"""

import mindspore as ms
from mindspore import Tensor, nn, ops

from src.nn.native_operations import Tensors

PREFIX = "crf."  # of the names of a field's weights


class LogPartition(nn.Cell):
    """Log of the sum of exp(score) over all label sequences of a row's words: (B,) float32.

    A sequence's score is the sum of its emissions and of the transitions between neighbouring words. Messages run from
    both ends in one loop over the positions and are normalised at every word (Rabiner 1989, section V.A), so that
    neither long rows nor large scores overflow. The gradient is that of expected counts (his equations 27 and 37).

    Inputs: emissions (B, L, C) float32, at most 80, since their exp() must not overflow; is_word (B, L) float32, 0 or
    1; transitions (C, C) float32, entry [a, b] from a to b. Outputs after the first are for the gradient.
    """

    def __init__(self) -> None:
        super().__init__()
        self.product = ops.BatchMatMul()
        self.count_pairs = ops.MatMul(transpose_a=True)
        self.sum = ops.ReduceSum(keep_dims=True)
        self.count_before = ops.CumSum(exclusive=True)
        self.update = ops.TensorScatterUpdate()

    def both_ways(self, x: Tensor) -> Tensor:
        """Return x (B, L, C) by position, in order and in reverse order: (L, 2, B, C)."""
        return ops.stack((x, ops.flip(x, (1,)))).transpose((2, 0, 1, 3))

    def construct(self, emissions: Tensor, is_word: Tensor, transitions: Tensor) -> Tensors:
        batch, length, labels = emissions.shape
        weights = ops.exp(emissions)
        both = self.both_ways(weights)
        word = self.both_ways(ops.broadcast_to(is_word.expand_dims(2), weights.shape))
        no_word_yet = ops.cast(ops.equal(self.count_before(word, 0), 0), ms.float32)
        factors = ops.exp(ops.stack((transitions, transitions.transpose((1, 0)))))
        message = ops.zeros((2, batch, labels), ms.float32)  # of the last word passed; sums to 1 if there is one
        messages = ops.zeros((length, 2, batch, labels), ms.float32)
        position = ops.zeros((), ms.int32)
        while position < length:  # 128 unrolled steps take minutes to compile
            messages = self.update(messages, position.reshape((1, 1)), message.expand_dims(0))
            reached = self.product(message, factors) + ops.gather(no_word_yet, position, 0)
            reached = reached * ops.gather(both, position, 0)
            here = ops.gather(word, position, 0)
            message = here * (reached / self.sum(reached, 2)) + (1.0 - here) * message
            position = position + 1
        messages = messages.transpose((1, 2, 0, 3))  # 2, B, L, C
        sides = self.product(messages.reshape((2, -1, labels)), factors).reshape(messages.shape)
        sides = sides + no_word_yet.transpose((1, 2, 0, 3))
        from_left = sides[0]  # of the words before a position, without its own emissions
        from_right = ops.flip(sides[1], (1,))
        log_partition = ops.reduce_sum(is_word * ops.log(ops.reduce_sum(from_left * weights, 2)), 1)
        return log_partition, messages[0], from_left, from_right

    def bprop(self, emissions: Tensor, is_word: Tensor, transitions: Tensor, out: Tensors, dout: Tensors) -> Tensors:
        _, messages, from_left, from_right = out
        behind = ops.exp(emissions) * from_right
        behind = behind * (dout[0].expand_dims(1) * is_word).expand_dims(2) / self.sum(from_left * behind, 2)
        rows = (-1, emissions.shape[2])
        pairs = self.count_pairs(messages.reshape(rows), behind.reshape(rows))
        return from_left * behind, ops.zeros_like(is_word), ops.exp(transitions) * pairs
