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

from model_utils.errors import CheckpointError, DataError
from src.albert_config import AlbertConfig
from src.checkpoints.checkpoint_files import read_checkpoint
from src.conversion.tokenizer_json import extract_vocabulary
from src.conversion.torch_weights import read_weights
from src.create_squad_data import read_squad
from src.model_folder import read_counts
from src.text.text_tables import read_table
from src.tokenization import build_tokenizer
from tests.faults.cases import COUNTS, explore, only_sentences
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
@pytest.mark.parametrize("content", [Built(print, "run"), {"a": {"b": 1}}, [1, 2], 7, {"a": None}])
def test_pickles_of_something_else(torch: ModuleType, tmp_path: Path, content: Any, capsys: Any) -> None:
    file = tmp_path / "pytorch_model.bin"
    members = members_of(saved(torch, file))
    name = next(name for name in members if name.endswith("data.pkl"))
    file.write_bytes(zipped(members | {name: pickle.dumps(content, protocol=2)}))
    with pytest.raises(CheckpointError, match=r"pytorch_model\.bin"):
        read_weights(tmp_path)
    assert capsys.readouterr().out == ""


def mebibyte(kind: str) -> bytes:
    if kind == "random":
        return np.random.default_rng(1).bytes(MEBIBYTE)
    return bytes.fromhex(kind) * (MEBIBYTE * 2 // len(kind))


def read_index(file: Path) -> object:
    from src.conversion.google_checkpoint import read_variables

    return read_variables(file.with_suffix(""))


# Readers by the names of their files, and what stands before the mebibyte: without it another check ends the matter.
READERS: dict[str, tuple[Callable[[Path], object], bytes]] = {
    "albert-1.ckpt": (read_checkpoint, b""),
    "model.safetensors": (lambda file: read_weights(file.parent), struct.pack("<Q", MEBIBYTE)),
    "pytorch_model.bin": (lambda file: read_weights(file.parent), b"\x80\x02"),
    "model.ckpt.index": (read_index, b""),
    "unigram.npy": (lambda file: read_counts(file.parent, 9), b"\x93NUMPY\x02\x00" + struct.pack("<I", MEBIBYTE)),
    "albert_config.json": (AlbertConfig.from_json, b'{"a": '),
    "tokenizer.json": (extract_vocabulary, b'{"a": "'),
    "squad.json": (lambda file: read_squad(file, version_2=True), b'{"data": ['),
    "table.jsonl": (lambda file: list(read_table(file).rows), b'{"a": 1}\n{'),
    "spiece.model": (lambda file: build_tokenizer("", file, True), b"\x0a\x0e\x0a\x05<unk>"),
    "vocab.txt": (lambda file: build_tokenizer(file, "", True), b"[PAD]\n"),
    "table.xls": (lambda file: list(read_table(file).rows), b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"),
    "table.xlsx": (lambda file: list(read_table(file).rows), b"PK\3\4"),
    "table.parquet": (lambda file: list(read_table(file).rows), b"PAR1"),
    "table.arrow": (lambda file: list(read_table(file).rows), b"ARROW1\0\0"),
}
ORACLES = {"pytorch_model.bin", "model.ckpt.index"}  # are read by other libraries


@pytest.mark.parametrize(
    "kind", ["ff", "00", "0a", "0a00", "0a021200", "28", "5b", "7b2261223a", "80", "0aff", "random"]
)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.oracles] if name in ORACLES else []) for name in READERS]
)
def test_a_mebibyte_of_anything(tmp_path: Path, name: str, kind: str) -> None:
    read, beginning = READERS[name]
    for content in (mebibyte(kind), beginning + mebibyte(kind)):
        (tmp_path / name).write_bytes(content)

        def refuse() -> None:
            with pytest.raises((CheckpointError, DataError)) as error:
                read(tmp_path / name)
            assert len(str(error.value)) < 1000

        only_sentences(refuse)


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
