"""The vocabulary beside a checkpoint: copied there by training, found there by everything that reads text later.

tokenizer_config.json names the file, which kind it is, and whether text is lower-cased.
"""

import shutil
from pathlib import Path
from typing import Any, Self

from pydantic import model_validator

from model_utils.errors import DataError
from model_utils.files import write_atomically
from model_utils.json_files import FileBeside, Schema, Sha256, read_json, write_checked
from src.foreign_weights import refuse_foreign
from src.tokenization import FullTokenizer, build_tokenizer

TOKENIZER_FILE = "tokenizer_config.json"


class TokenizerSchema(Schema):
    """What tokenizer_config.json says: one of the two files, which lies beside it."""

    vocab_file: FileBeside | None = None
    spm_model_file: FileBeside | None = None
    do_lower_case: bool
    vocab_sha256: Sha256

    @model_validator(mode="after")
    def _one_file(self) -> Self:
        if (self.vocab_file is None) == (self.spm_model_file is None):
            raise ValueError("one of vocab_file and spm_model_file")
        return self


def save_tokenizer(folder: Path, tokenizer: FullTokenizer) -> None:
    """Copy the vocabulary into a folder and write tokenizer_config.json."""
    copy = folder / tokenizer.file.name
    if not copy.exists() or not copy.samefile(tokenizer.file):
        write_atomically(copy, lambda temporary: shutil.copyfile(tokenizer.file, temporary))
    kind = "spm_model_file" if tokenizer.is_sentencepiece else "vocab_file"
    described = {kind: copy.name, "do_lower_case": tokenizer.do_lower_case, "vocab_sha256": tokenizer.sha256}
    write_checked(folder / TOKENIZER_FILE, described)


def load_tokenizer(weights: Path, vocab_file: str = "", spm_model_file: str = "") -> FullTokenizer:
    """The tokenizer that weights were trained with.

    Args:
        weights: a checkpoint or its folder.
        vocab_file, spm_model_file: the vocabulary, where none lies beside the weights.

    Raises:
        DataError: none is there, it is not the one that the weights were trained with, or it is damaged.
        CheckpointError: the weights are another program's.
    """
    refuse_foreign(weights)
    folder = weights if weights.is_dir() else weights.parent
    file = folder / TOKENIZER_FILE
    if not file.exists():
        if not vocab_file and not spm_model_file:
            raise DataError(
                f"no {TOKENIZER_FILE} lies beside the weights in {folder}: name the vocabulary that they were trained "
                "with in spm_model_file (SentencePiece) or vocab_file (WordPiece)"
            )
        return build_tokenizer(vocab_file, spm_model_file, True)
    described = read_json(file, TokenizerSchema)
    if not vocab_file and not spm_model_file:
        vocab_file = str(folder / described.vocab_file) if described.vocab_file else ""
        spm_model_file = str(folder / described.spm_model_file) if described.spm_model_file else ""
    tokenizer = build_tokenizer(vocab_file, spm_model_file, described.do_lower_case)
    if tokenizer.sha256 != described.vocab_sha256:
        raise DataError(
            f"the vocabulary {tokenizer.file} is not the one that the weights in {folder} were trained with: its "
            f"sha256 is {tokenizer.sha256}, {TOKENIZER_FILE} says {described.vocab_sha256}"
        )
    return tokenizer


def tokenizer_of_data(
    data_dir: str | Path, facts: dict[str, Any], vocab_file: str = "", spm_model_file: str = ""
) -> FullTokenizer | None:
    """The tokenizer that feature files were made with, or None where its file is not at hand.

    Args:
        data_dir: where the file lies if it is not given.
        facts: of the feature files.

    Raises:
        DataError: the vocabulary is not the one that made the files, or is damaged.
    """
    if not vocab_file and not spm_model_file:
        data_dir = Path(data_dir)
        beside = (data_dir if data_dir.is_dir() else data_dir.parent) / facts.get("vocab_file", "")
        if not beside.is_file():
            return None
        vocab_file, spm_model_file = ("", str(beside)) if beside.suffix == ".model" else (str(beside), "")
    tokenizer = build_tokenizer(vocab_file, spm_model_file, facts.get("do_lower_case", True))
    made_with = facts.get("vocab_sha256", tokenizer.sha256)
    if tokenizer.sha256 != made_with:
        raise DataError(
            f"the vocabulary {tokenizer.file} (sha256 {tokenizer.sha256}) is not the one that made {data_dir}: "
            f"{facts['vocab_file']} (sha256 {made_with})"
        )
    return tokenizer
