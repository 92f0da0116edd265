"""google's golden figures, with the weights under this project's names."""

from pathlib import Path

import numpy as np
from mindspore import Tensor, nn

from src.conversion.weight_names import from_google, google_names

PRETRAINING = Path(__file__).parents[1] / "golden/google/pretrain"  # with the first rows of the gradients
_NAMES = {theirs: ours for ours, theirs in google_names().items()}


def load(folder: Path) -> dict[str, dict[str, np.ndarray]]:
    """io.npz as {"param0", "in", "out", "grad", "param", ""} -> name -> array, weights under this project's names."""
    groups: dict[str, dict[str, np.ndarray]] = {}
    with np.load(folder / "io.npz") as file:
        for key in file.files:
            group, _, name = key.rpartition("/") if key.count("/") == 0 else key.partition("/")
            value = file[key]
            if group in ("param0", "param", "grad"):
                name, value = _NAMES[name], from_google(name, value)
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


def leading_block(value: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Return the part of `value` that golden figures in the shape of `expected` are about."""
    return value[tuple(slice(size) for size in expected.shape)]
