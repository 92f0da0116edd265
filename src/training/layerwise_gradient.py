"""Gradients of a training network one layer at a time, with each layer's activations computed again when it is due.

Activations are most of what training takes (Chen et al. 2016, sublinear memory cost). Kept here are the layers' inputs
alone. MindSpore's own Cell.recompute leaves out operations with gradients of their own and saves nothing on CPU.
"""

from collections.abc import Sequence

from mindspore import Parameter, ParameterTuple, Tensor, nn, ops

from src.albert_model import LAYER_KEY_STEP, TEXT_COLUMNS, Encoder, TrainingNetwork

TEXTS = len(TEXT_COLUMNS)


def scaled_loss(metrics: tuple[Tensor, ...], scale: Tensor) -> tuple[Tensor, Tensor]:
    """The first metric times the scale, to differentiate, and all of them as one tensor."""
    return metrics[0] * scale, ops.stack(metrics)


class _Layer(nn.Cell):
    """A layer of the encoder as a cell, which can be differentiated by itself."""

    def __init__(self, encoder: Encoder, attention: int, feed_forward: int) -> None:
        super().__init__(auto_prefix=False)
        self.encoder, self.attention, self.feed_forward = encoder, attention, feed_forward
        self.weights = ParameterTuple(encoder.layer_parameters(attention, feed_forward))

    def construct(self, x: Tensor, score_mask: Tensor, key: Tensor) -> Tensor:
        return self.encoder.layer(self.attention, self.feed_forward, x, score_mask, key)


class LayerwiseGradient(nn.Cell):
    """What ops.value_and_grad gives for the scaled loss of `network` by `parameters`, in less memory and more time.

    Dropout's masks are the same the second time, because they follow from the key.

    Inputs: the network's columns as a tuple, dropout_key () int32, scale () float32.
    Outputs: (scaled loss, metrics) as scaled_loss gives them, and the gradients in the order of `parameters`.
    """

    def __init__(self, network: TrainingNetwork, parameters: Sequence[Parameter]) -> None:
        super().__init__(auto_prefix=False)
        self.network = network
        self.albert = network.scores.albert
        encoder = self.albert.encoder
        cells = {sets: _Layer(encoder, *sets) for sets in dict.fromkeys(encoder.layers)}
        self.layers = tuple(cells[sets] for sets in encoder.layers)
        of_layers = {weight.name for layer in self.layers for weight in layer.weights}
        others = ParameterTuple([parameter for parameter in parameters if parameter.name not in of_layers])
        parts = (others, *(layer.weights for layer in reversed(self.layers)), others)
        places = [{weight.name: i for i, weight in enumerate(part)} for part in parts]
        # What each parameter's gradient is the sum of: (part, position in it), parts in the order of construct's.
        self.summands = tuple(
            tuple((part, place[parameter.name]) for part, place in enumerate(places) if parameter.name in place)
            for parameter in parameters
        )
        self.others = others
        self.head_gradient = ops.value_and_grad(self.head_loss, 0, others, has_aux=True)
        self.layer_gradient = ops.GradOperation(get_all=True, get_by_list=True, sens_param=True)
        self.first_gradient = ops.GradOperation(get_by_list=True, sens_param=True)
        self.depend = ops.Depend()

    def head_loss(
        self, states: Tensor, batch: int, further: tuple[Tensor, ...], scale: Tensor
    ) -> tuple[Tensor, Tensor]:
        """From the last layer's states to the scaled loss and the metrics."""
        return scaled_loss(self.network.losses(*self.albert.outputs(states, batch), *further), scale)

    def construct(
        self, inputs: tuple[Tensor, ...], dropout_key: Tensor, scale: Tensor
    ) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, ...]]:
        input_ids, input_mask, segment_ids = self.network.scores.sequences(*inputs[:TEXTS])
        score_mask = self.albert.score_mask(input_mask)
        x = self.albert.first_states(input_ids, segment_ids, dropout_key)
        states = ()
        for i in range(len(self.layers)):
            states += (x,)
            key = self.depend(dropout_key, x)  # the masks of all layers need nothing else, and would be made at once
            x = self.layers[i](x, score_mask, key + i * LAYER_KEY_STEP)
        further = (*inputs[TEXTS:], dropout_key)
        value, (gradient, weights) = self.head_gradient(x, input_ids.shape[0], further, scale)
        parts = (weights,)
        for i in range(len(self.layers) - 1, -1, -1):
            # Without waiting for the gradient, layer and masks would be computed at once, or be kept from before.
            x, key = self.depend(states[i], gradient), self.depend(dropout_key, gradient)
            layer_gradient = self.layer_gradient(self.layers[i], self.layers[i].weights)
            (gradient, _, _), weights = layer_gradient(x, score_mask, key + i * LAYER_KEY_STEP, gradient)
            parts += (weights,)
        first = self.first_gradient(self.albert.first_states, self.others)
        parts += (first(input_ids, segment_ids, dropout_key, gradient),)
        gradients = ()
        for summands in self.summands:
            total = parts[summands[0][0]][summands[0][1]]
            for part, position in summands[1:]:
                total = total + parts[part][position]
            gradients += (total,)
        return value, gradients
