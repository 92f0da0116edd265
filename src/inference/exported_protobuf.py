"""Edits of the protocol buffers that MindSpore writes: reproducible MINDIR bytes, and named ONNX outputs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from mindspore.train import mind_ir_pb2

# The fields of onnx.proto that name tensors: message -> (field, number, message of the field or None for a text).
# Serialising keeps all other fields as they are.
_ONNX: dict[str, list[tuple[str, int, str | None]]] = {
    "Value": [("name", 1, None)],
    "Node": [("input", 1, None), ("output", 2, None)],
    "Graph": [("node", 1, "Node"), ("output", 12, "Value")],
    "Model": [("graph", 7, "Graph")],
}


def make_reproducible(mindir: Path) -> None:
    """Rewrite a MINDIR without what differs between processes: a phase with time and address, and an order."""
    model = mind_ir_pb2.ModelProto()
    model.ParseFromString(mindir.read_bytes())
    for attribute in model.graph.attribute:
        if attribute.s.startswith(b"export.mindir."):
            attribute.s = b"export.mindir"
    model.primitives.sort(key=lambda primitive: primitive.name)  # nodes refer to them by name
    mindir.write_bytes(model.SerializeToString(deterministic=True))


def name_onnx_outputs(onnx: Path, names: Sequence[str]) -> None:
    """Rename the outputs of an ONNX graph, which MindSpore numbers."""
    model = _onnx_model()
    model.ParseFromString(onnx.read_bytes())
    renamed = {output.name: name for output, name in zip(model.graph.output, names, strict=True)}
    for output in model.graph.output:
        output.name = renamed[output.name]
    for node in model.graph.node:
        node.input[:] = [renamed.get(name, name) for name in node.input]
        node.output[:] = [renamed.get(name, name) for name in node.output]
    onnx.write_bytes(model.SerializeToString(deterministic=True))


def _onnx_model() -> Any:
    """Return an empty onnx.proto ModelProto with the fields of _ONNX; the package onnx is not needed to export."""
    file = descriptor_pb2.FileDescriptorProto(name="onnx_names.proto", package="onnx_names", syntax="proto2")
    field_types = descriptor_pb2.FieldDescriptorProto
    for message, fields in _ONNX.items():
        described = file.message_type.add(name=message)
        for name, number, field_message in fields:
            is_repeated = name not in ("name", "graph")
            field = described.field.add(name=name, number=number)
            field.label = field_types.LABEL_REPEATED if is_repeated else field_types.LABEL_OPTIONAL
            field.type = field_types.TYPE_MESSAGE if field_message else field_types.TYPE_STRING
            if field_message:
                field.type_name = f".onnx_names.{field_message}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("onnx_names.Model"))()
