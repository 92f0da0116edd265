"""ONNX files, written with protobuf alone: operators, weights, and inputs and outputs with named dimensions."""

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

# The messages of onnx.proto with the fields that are written: name, number, type; * marks a repeated field.
_MESSAGES = {
    "Dimension": "dim_value 1 int64, dim_param 2 string",
    "Shape": "dim 1 Dimension*",
    "TensorType": "elem_type 1 int32, shape 2 Shape",
    "Type": "tensor_type 1 TensorType",
    "Value": "name 1 string, type 2 Type",
    "Tensor": "dims 1 int64*, data_type 2 int32, name 8 string, raw_data 9 bytes",
    "Attribute": "name 1 string, f 2 float, i 3 int64, s 4 bytes, ints 8 int64*, type 20 int32",
    "Node": "input 1 string*, output 2 string*, name 3 string, op_type 4 string, attribute 5 Attribute*",
    "Graph": "node 1 Node*, name 2 string, initializer 5 Tensor*, input 11 Value*, output 12 Value*",
    "OperatorSet": "version 2 int64",
    "Model": "ir_version 1 int64, producer_name 2 string, graph 7 Graph, opset_import 8 OperatorSet*",
}
OPERATOR_SET = 20  # the first with Gelu
IR_VERSION = 9  # of the ONNX release with that operator set
FLOAT, INT8, INT32, INT64, BOOL = 1, 3, 6, 7, 9  # TensorProto.DataType
_DATA_TYPES = {
    np.dtype(np.float32): FLOAT,
    np.dtype(np.int8): INT8,
    np.dtype(np.int32): INT32,
    np.dtype(np.int64): INT64,
}
_ATTRIBUTES = {float: ("f", 1), int: ("i", 2), bytes: ("s", 3), list: ("ints", 7)}  # field, AttributeProto.type


@functools.cache
def _model_class() -> type[Any]:
    """Return the class of onnx.proto's ModelProto."""
    file = descriptor_pb2.FileDescriptorProto(name="written_onnx.proto", package="written_onnx", syntax="proto2")
    field_types = descriptor_pb2.FieldDescriptorProto
    for message, fields in _MESSAGES.items():
        described = file.message_type.add(name=message)
        for name, number, type_name in map(str.split, fields.split(", ")):
            field = described.field.add(name=name, number=int(number))
            is_repeated = type_name.endswith("*")
            field.label = field_types.LABEL_REPEATED if is_repeated else field_types.LABEL_OPTIONAL
            type_name = type_name.removesuffix("*")
            if type_name in _MESSAGES:
                field.type_name = f".written_onnx.{type_name}"
            field.type = getattr(field_types, "TYPE_MESSAGE" if field.type_name else f"TYPE_{type_name.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("written_onnx.Model"))


class OnnxGraph:
    """ONNX graph under construction; its values are known by their names."""

    def __init__(self, name: str) -> None:
        self._model = _model_class()(ir_version=IR_VERSION, producer_name="albert-mindspore")
        self._model.opset_import.add(version=OPERATOR_SET)
        self._graph = self._model.graph
        self._graph.name = name
        self._initializers: set[str] = set()

    def input(self, name: str, axes: Sequence[str | int]) -> str:
        """Add an int32 input whose axes are numbers, or names of dynamic dimensions; return its name."""
        _describe(self._graph.input.add(name=name), INT32, axes)
        return name

    def output(self, name: str, value: str, axes: Sequence[str | int], data_type: int = FLOAT) -> None:
        """Make a value an output with this name."""
        self._graph.node.add(name=name, op_type="Identity", input=[value], output=[name])
        _describe(self._graph.output.add(name=name), data_type, axes)

    def initializer(self, name: str, values: np.ndarray) -> str:
        """Store an array once and return its name; what has the name already is taken for the same."""
        if name not in self._initializers:
            self._initializers.add(name)
            tensor = self._graph.initializer.add(name=name, dims=values.shape, data_type=_DATA_TYPES[values.dtype])
            tensor.raw_data = values.tobytes()
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
        node = self._graph.node.add(name=name, op_type=operator, input=inputs, output=names)
        for key, value in attributes.items():
            field, number = _ATTRIBUTES[type(value)]
            node.attribute.add(name=key, type=number, **{field: value})
        return names

    def serialize(self) -> bytes:
        """Return the bytes of the file; the same graph has the same bytes."""
        return self._model.SerializeToString(deterministic=True)


def _describe(value: Any, data_type: int, axes: Sequence[str | int]) -> None:
    """Set type and axes of an input or output."""
    tensor_type = value.type.tensor_type
    tensor_type.elem_type = data_type
    for axis in axes:
        tensor_type.shape.dim.add(**{"dim_param" if isinstance(axis, str) else "dim_value": axis})
