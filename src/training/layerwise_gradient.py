"""Gradients of a training network one layer at a time, with each layer's activations computed again when it is due.

Activations are most of what training takes (Chen et al. 2016, sublinear memory cost). Kept here are the layers' inputs
alone. MindSpore's own Cell.recompute leaves out operations with gradients of their own and saves nothing on CPU.
"""

from collections.abc import Sequence

from mindspore import Parameter, ParameterTuple, Tensor, nn, ops

from src.albert_model import LAYER_KEY_STEP, Encoder
from src.albert_networks import Tensors, TrainingNetwork


def scaled_loss(metrics: Tensors, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Return the first metric times the scale, to differentiate, and all metrics as one tensor."""
    return metrics[0] * scale, ops.stack(metrics)


class _Layer(nn.Cell):
    """A layer of the encoder as a cell, which can be differentiated by itself."""

    def __init__(self, encoder: Encoder, attention: int, feed_forward: int) -> None:
        super().__init__(auto_prefix=False)
        self.encoder = encoder
        self.attention = attention
        self.feed_forward = feed_forward
        self.weights = ParameterTuple(encoder.layer_parameters(attention, feed_forward))

    def construct(self, x: Tensor, score_mask: Tensor, key: Tensor, rows_read: Tensor = None) -> Tensor:
        sets = self.attention, self.feed_forward
        return self.encoder.layer(*sets, self.encoder.matrices(*sets), x, score_mask, key, rows_read)


def _gradient_sums(names: list[list[str]]) -> tuple[tuple[tuple[int, ...], ...], tuple[tuple[int, ...], ...]]:
    """Plan the sums of the gradients of shared weights, which grow from the last layer to the first.

    Args:
        names: names of the weights of each layer.

    Returns:
        addends: for each layer and each sum that the layers behind it have begun, the index of the weight of the layer
            that joins the sum; -1 for none.
        new_sums: for each layer, the indices of its weights that begin a sum.
    """
    summed_names: list[str] = []
    addends = []
    new_sums = []
    for layer_names in reversed(names):
        addends.append(tuple(layer_names.index(name) if name in layer_names else -1 for name in summed_names))
        new_sums.append(tuple(j for j, name in enumerate(layer_names) if name not in summed_names))
        summed_names += [layer_names[j] for j in new_sums[-1]]
    return tuple(reversed(addends)), tuple(reversed(new_sums))


class LayerwiseGradient(nn.Cell):
    """ops.value_and_grad of the scaled loss of `network` by `parameters`, in less memory and more time.

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
        in_layers = list(dict.fromkeys(weight.name for layer in reversed(self.layers) for weight in layer.weights))
        self.others = ParameterTuple([parameter for parameter in parameters if parameter.name not in in_layers])
        self.addends, self.new_sums = _gradient_sums(
            [[weight.name for weight in layer.weights] for layer in self.layers]
        )
        joined = in_layers + [parameter.name for parameter in self.others]  # the order of the gradients in construct
        self.order = tuple(joined.index(parameter.name) for parameter in parameters)
        self.head_gradient = ops.value_and_grad(self.head_loss, 0, self.others, has_aux=True)
        self.layer_gradient = ops.GradOperation(get_all=True, get_by_list=True, sens_param=True)
        self.first_gradient = ops.GradOperation(get_by_list=True, sens_param=True)
        self.depend = ops.Depend()

    def head_loss(self, states: Tensor, texts: Tensors, further: Tensors, scale: Tensor) -> Tensors:
        """Return the scaled loss and the metrics from the last layer's states."""
        outputs = self.albert.outputs(states, texts, self.network.scores.rows_read(texts, further) is None)
        return scaled_loss(self.network.total_losses(outputs, texts, further), scale)

    def construct(self, inputs: Tensors, dropout_key: Tensor, scale: Tensor) -> tuple[Tensors, Tensors]:
        text_count = self.network.text_inputs
        texts = self.network.scores.backbone_texts(inputs[:text_count])
        score_mask = self.albert.score_mask(texts)
        x = self.albert.first_states(texts, dropout_key)
        further = (*inputs[text_count:], dropout_key)
        rows_read = self.network.scores.rows_read(texts, further)
        # Optional argument of each layer: the last one may compute some rows alone.
        layer_rows = ((),) * (len(self.layers) - 1) + (() if rows_read is None else (rows_read,),)
        states = ()
        for i in range(len(self.layers)):
            states += (x,)
            key = self.depend(dropout_key, x)  # the masks of all layers need nothing else, and would be made at once
            x = self.layers[i](x, score_mask, key + i * LAYER_KEY_STEP, *layer_rows[i])
        value, (gradient, of_head) = self.head_gradient(x, texts, further, scale)
        sums = ()
        for i in range(len(self.layers) - 1, -1, -1):
            # Without waiting for the gradient, layer and masks would be computed at once, or be kept from before.
            x, key = self.depend(states[i], gradient), self.depend(dropout_key, gradient)
            layer_gradient = self.layer_gradient(self.layers[i], self.layers[i].weights)
            of_inputs, weights = layer_gradient(x, score_mask, key + i * LAYER_KEY_STEP, *layer_rows[i], gradient)
            added = ()
            for k in range(len(sums)):
                j = self.addends[i][k]
                added += (sums[k] + weights[j],) if j >= 0 else (sums[k],)
            for j in self.new_sums[i]:
                added += (weights[j],)
            sums = added
            # So that one layer's gradients are kept beside the sums, not all.
            gradient = self.depend(of_inputs[0], sums)
        of_first = self.first_gradient(self.albert.first_states, self.others)(texts, dropout_key, gradient)
        joined = sums
        for i in range(len(of_first)):
            joined += (of_head[i] + of_first[i],)
        gradients = ()
        for k in self.order:
            gradients += (joined[k],)
        return value, gradients
