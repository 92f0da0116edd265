"""ONNX files, built with the package onnx: operators, weights, and inputs and outputs with named dimensions."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from model_utils.optional import require

OPERATOR_SET = 20  # the first with Gelu
IR_VERSION = 9  # of the ONNX release with that operator set
FLOAT, INT32, INT64, BOOL = 1, 6, 7, 9  # onnx.TensorProto.DataType


class OnnxGraph:
    """ONNX graph under construction; its values are known by their names.

    Raises:
        UserError: onnx is not installed.
    """

    def __init__(self, name: str) -> None:
        self._onnx = require("onnx", "requirements-onnx.txt", "an ONNX export")
        self._model = self._onnx.helper.make_model(
            self._onnx.GraphProto(name=name),
            ir_version=IR_VERSION,
            producer_name="albert-mindspore",
            opset_imports=[self._onnx.OperatorSetIdProto(version=OPERATOR_SET)],
        )
        self._graph = self._model.graph
        self._initializers: set[str] = set()

    def input(self, name: str, axes: Sequence[str | int]) -> str:
        """Add an int32 input whose axes are numbers, or names of dynamic dimensions; return its name."""
        self._graph.input.append(self._onnx.helper.make_tensor_value_info(name, INT32, axes))
        return name

    def output(self, name: str, value: str, axes: Sequence[str | int], data_type: int = FLOAT) -> None:
        """Make a value an output with this name."""
        self._graph.node.append(self._onnx.helper.make_node("Identity", [value], [name], name))
        self._graph.output.append(self._onnx.helper.make_tensor_value_info(name, data_type, axes))

    def initializer(self, name: str, values: np.ndarray) -> str:
        """Store an array once and return its name; what has the name already is taken for the same."""
        if name not in self._initializers:
            self._initializers.add(name)
            self._graph.initializer.append(self._onnx.numpy_helper.from_array(values, name))
        return name

    def constant(self, values: Any, data_type: type = np.int64) -> str:
        """Return the name of a small array of this type."""
        array: np.ndarray = np.array(values, data_type)
        return self.initializer(f"{array.dtype}:{array.tolist()}", array)

    def node(self, operator: str, *inputs: str, **attributes: Any) -> str:
        """Append an operator and return the name of its output."""
        return self.nodes(operator, 1, *inputs, **attributes)[0]

    def nodes(self, operator: str, outputs: int, *inputs: str, **attributes: Any) -> list[str]:
        """Append an operator with several outputs and return their names."""
        name = f"{operator}_{len(self._graph.node)}"
        names = [name, *(f"{name}_{index}" for index in range(1, outputs))]
        self._graph.node.append(self._onnx.helper.make_node(operator, inputs, names, name, **attributes))
        return names

    def serialize(self) -> bytes:
        """Return the bytes of the file; the same graph has the same bytes."""
        return self._model.SerializeToString(deterministic=True)
