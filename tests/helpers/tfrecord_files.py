"""TFRecord files of tf.train.Examples, written byte by byte as the formats say."""

import struct
from pathlib import Path

import numpy as np


def field(number: int, content: bytes) -> bytes:
    """A length-delimited protobuf field."""
    return varint(number << 3 | 2) + varint(len(content)) + content


def varint(value: int) -> bytes:
    encoded = b""
    while value > 127:
        encoded += bytes([value & 127 | 128])
        value >>= 7
    return encoded + bytes([value])


def tf_example(columns: dict[str, np.ndarray]) -> bytes:
    """A tf.train.Example."""
    features = b""
    for name, values in columns.items():
        if values.dtype == np.float32:
            feature = field(2, field(1, values.tobytes()))
        else:
            feature = field(3, field(1, b"".join(varint(int(value)) for value in values)))
        features += field(1, field(1, name.encode()) + field(2, feature))
    return field(1, features)


def tf_row(ids: list[int], first: int, width: int = 8, **columns: int) -> bytes:
    """A row as google's run_classifier writes it: of so many tokens the first ones are segment 0, the others 1."""
    rest = [0] * (width - len(ids))
    row = {
        "input_ids": np.array(ids + rest),
        "input_mask": np.array([1] * len(ids) + rest),
        "segment_ids": np.array([0] * first + [1] * (len(ids) - first) + rest),
    }
    return tf_example(row | {name: np.array([value]) for name, value in columns.items()})


def crc32c(data: bytes) -> int:
    """Bit by bit, as the polynomial says."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def masked(crc: int) -> int:
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def write_tfrecord(path: Path, records: list[bytes]) -> Path:
    with path.open("wb") as file:
        for record in records:
            size = struct.pack("<Q", len(record))
            file.write(size + struct.pack("<I", masked(crc32c(size))))
            file.write(record + struct.pack("<I", masked(crc32c(record))))
    return path
