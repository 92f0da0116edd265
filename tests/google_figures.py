"""google's golden figures: variable names of its checkpoints, and this project's names for the same weights."""

from pathlib import Path

import numpy as np
from mindspore import Tensor, nn


def parameter_name(variable: str) -> str:
    """This project's name of one of google's variables (one group, one inner group)."""
    for old, new in (
        ("bert/encoder/transformer/group_0/inner_group_0/attention_1/self/", "albert.encoder.attentions.0."),
        ("bert/encoder/transformer/group_0/inner_group_0/attention_1/", "albert.encoder.attentions.0."),
        (
            "bert/encoder/transformer/group_0/inner_group_0/ffn_1/intermediate/output/",
            "albert.encoder.feed_forwards.0.output.",
        ),
        ("bert/encoder/transformer/group_0/inner_group_0/ffn_1/", "albert.encoder.feed_forwards.0."),
        ("bert/encoder/transformer/group_0/inner_group_0/LayerNorm_1", "albert.encoder.feed_forwards.0.layer_norm"),
        ("bert/encoder/transformer/group_0/inner_group_0/LayerNorm", "albert.encoder.attentions.0.layer_norm"),
        ("bert/encoder/embedding_hidden_mapping_in", "albert.encoder.embedding_hidden_mapping"),
        ("bert/embeddings/", "albert.embeddings."),
        ("bert/pooler/dense", "albert.pooler"),
        ("cls/predictions/transform/", "mlm."),
        ("cls/predictions/output_bias", "mlm.bias"),
        ("cls/seq_relationship/output_weights", "sop.weight"),
        ("cls/seq_relationship/output_bias", "sop.bias"),
    ):
        variable = variable.replace(old, new)
    name = variable.replace("LayerNorm", "layer_norm").replace("/", ".").replace("kernel", "weight")
    for block in ("intermediate", "output"):
        name = name.replace(f"{block}.dense.", f"{block}.")
    return name


def parameter_value(variable: str, value: np.ndarray) -> np.ndarray:
    """TensorFlow kernels are (in, out), this project's are (out, in)."""
    return np.ascontiguousarray(value.T) if variable.endswith("kernel") else value


def load(folder: Path) -> dict[str, dict[str, np.ndarray]]:
    """io.npz as {"param0", "in", "out", "grad", "param", ""} -> name -> array, weights under this project's names."""
    groups: dict[str, dict[str, np.ndarray]] = {}
    with np.load(folder / "io.npz") as file:
        for key in file.files:
            group, _, name = key.rpartition("/") if key.count("/") == 0 else key.partition("/")
            value = file[key]
            if group in ("param0", "param", "grad"):
                name, value = parameter_name(name), parameter_value(name, value)
            groups.setdefault(group, {})[name] = value
    return groups


def set_parameters(network: nn.Cell, values: dict[str, np.ndarray]) -> None:
    """Put `values` into the network; every trainable parameter must be among them."""
    parameters = {parameter.name: parameter for parameter in network.trainable_params()}
    assert parameters.keys() == values.keys()
    for name, value in values.items():
        parameters[name].set_data(Tensor(value))


def get_parameters(network: nn.Cell) -> dict[str, np.ndarray]:
    """Name -> value of every trainable parameter."""
    return {parameter.name: parameter.asnumpy() for parameter in network.trainable_params()}
