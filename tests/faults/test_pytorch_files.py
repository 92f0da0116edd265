"""Files of weights that are damaged, in every format that is read: a sentence, soon, in little memory."""

import pickle
import resource
import struct
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from model_utils.errors import CheckpointError
from src.checkpoints.checkpoint_files import read_checkpoint
from src.conversion.torch_weights import read_weights
from tests.faults.cases import COUNTS, explore
from tests.faults.pytorch_files import members_of, pytorch_files, zipped

MEBIBYTE = 1 << 20
NAMES = ("albert.embeddings.word_embeddings.weight", "albert.pooler.bias", "predictions.bias")


def saved(torch: ModuleType, file: Path, **settings: Any) -> bytes:
    weights = {name: torch.full((5, 4), 0.5) for name in NAMES}
    torch.save(weights, file, **settings)
    return file.read_bytes()


@pytest.mark.oracles
@COUNTS
def test_pytorch_files(torch: ModuleType, tmp_path: Path, count: int) -> None:
    file = tmp_path / "pytorch_model.bin"
    whole = [saved(torch, file), saved(torch, file, _use_new_zipfile_serialization=False)]
    for content in whole:
        file.write_bytes(content)
        assert set(read_weights(tmp_path)) == set(NAMES)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    def check(content: bytes) -> None:
        file.write_bytes(content)
        read_weights(tmp_path)

    explore(count * 5, pytorch_files(*whole), check)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak < 256 << 10  # KiB


class Built:
    """An object whose pickle calls a function."""

    def __init__(self, function: Callable, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> tuple:
        return self.call


@pytest.mark.oracles
@pytest.mark.parametrize(
    "content", [Built(bytearray, 1 << 40), Built(print, "run"), {"a": {"b": 1}}, [1, 2], 7, {"a": None}]
)
def test_pickles_of_something_else(torch: ModuleType, tmp_path: Path, content: Any, capsys: Any) -> None:
    file = tmp_path / "pytorch_model.bin"
    members = members_of(saved(torch, file))
    name = next(name for name in members if name.endswith("data.pkl"))
    file.write_bytes(zipped(members | {name: pickle.dumps(content, protocol=2)}))
    with pytest.raises(CheckpointError, match=r"pytorch_model\.bin"):
        read_weights(tmp_path)
    assert capsys.readouterr().out == ""


@pytest.mark.oracles
def test_shapes_beyond_the_file(torch: ModuleType, tmp_path: Path) -> None:
    """An expanded tensor takes four bytes of the file and any number in memory."""
    torch.save({name: torch.zeros(1).half().expand(1 << 40) for name in NAMES}, tmp_path / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match="larger than the file"):
        read_weights(tmp_path)


def mebibyte(kind: str) -> bytes:
    if kind == "random":
        return np.random.default_rng(1).bytes(MEBIBYTE)
    return bytes.fromhex(kind) * (MEBIBYTE * 2 // len(kind))


@pytest.mark.oracles
@pytest.mark.parametrize("kind", ["ff", "00", "0a", "0a00", "28", "5b", "80", "0aff", "random"])
@pytest.mark.parametrize("name", ["albert-1.ckpt", "model.safetensors", "pytorch_model.bin", "tensorflow"])
def test_a_mebibyte_of_anything(tmp_path: Path, name: str, kind: str) -> None:
    content = mebibyte(kind)
    whole = content
    if name == "model.safetensors":  # else its length ends the matter
        content = struct.pack("<Q", len(content)) + content
    readers = {"albert-1.ckpt": lambda: read_checkpoint(tmp_path / name), "tensorflow": lambda: read_index(tmp_path)}
    for case in (whole, content):
        (tmp_path / name).write_bytes(case)
        (tmp_path / "model.ckpt.index").write_bytes(case)
        with pytest.raises(CheckpointError) as error:
            readers.get(name, lambda: read_weights(tmp_path))()
        assert len(str(error.value)) < 1000


def read_index(folder: Path) -> object:
    from src.conversion.google_checkpoint import read_variables

    return read_variables(folder / "model.ckpt")


def test_long_names_are_cut(tmp_path: Path) -> None:
    """A header of 1 MB: one name, or a type of that length."""
    for header in (
        '{"%s": {"dtype": "F64", "shape": [1], "data_offsets": [0, 8]}}' % ("n" * MEBIBYTE),
        '{"a": {"dtype": "%s", "shape": [1], "data_offsets": [0, 8]}}' % ("F" * MEBIBYTE),
        '{"%s": 1}' % ("n" * MEBIBYTE),
    ):
        text = header.encode()
        (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(8))
        with pytest.raises(CheckpointError) as error:
            read_weights(tmp_path)
        assert len(str(error.value)) < 1000
