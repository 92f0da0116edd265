"""Model folder: weights and their artifacts, which are loaded, checked, used and saved together.

albert-<step>.ckpt      weights (src/checkpoints/checkpoint_files.py)
albert_config.json      architecture
tokenizer_config.json   name of the vocabulary beside it, and whether text is lower-cased
task.json               task and settings of a fine-tuned head; pre-trained weights have none
unigram.npy             how often each token is masked in the pre-training data, if known
"""

import io
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
from mindspore import Tensor
from pydantic import model_validator

from model_utils.backend import Backend
from model_utils.device import ensure_device
from model_utils.errors import CheckpointError, DataError, shorten
from model_utils.files import new_folder, write_atomically
from model_utils.json_files import FileName, Schema, Sha256, read_file, read_json, read_validated, write_checked
from src.albert_config import AlbertConfig, find_config_file
from src.albert_model import has_initial_pooler
from src.albert_networks import HEADS_OF_TASKS
from src.checkpoints.checkpoint_files import (
    ARCHITECTURE,
    Checkpoint,
    checkpoint_path,
    find_checkpoint,
    folder_of,
    list_checkpoints,
    load_backbone,
    no_checkpoint,
    write_checkpoint,
)
from src.checkpoints.foreign_weights import refuse_foreign
from src.finetune_eval_model import AnsweringNetwork, packed_where_possible
from src.inference.predictor import AnswerSettings, Predictor
from src.nn.native_operations import without_cpp
from src.tasks import HEADS, TASKS, parse_task_info
from src.tasks.embeddings import EMBEDDINGS, POOLER, EmbeddingsInfo
from src.tasks.task_info import TaskInfo
from src.tokenization import FullTokenizer, build_tokenizer

logger = logging.getLogger(__name__)
ARCHITECTURE_FILE = "albert_config.json"
TOKENIZER_FILE = "tokenizer_config.json"
TASK_FILE = "task.json"
UNIGRAM_FILE = "unigram.npy"
WEIGHT_STATE = ("step", "identity")  # keys of the loop's state that stay true outside the run: updates and data


class TokenizerSchema(Schema):
    """Content of tokenizer_config.json: one of the two vocabulary files, which lies beside it."""

    vocab_file: FileName | None = None
    spm_model_file: FileName | None = None
    do_lower_case: bool
    vocab_sha256: Sha256

    @model_validator(mode="after")
    def _one_file(self) -> Self:
        if (self.vocab_file is None) == (self.spm_model_file is None):
            raise ValueError("one of vocab_file and spm_model_file")
        return self


@dataclass(frozen=True)
class ModelFolder:
    """Weights with everything that is needed to use them.

    Attributes:
        architecture: architecture of the weights.
        tokenizer: None if the folder has no vocabulary.
        task_info: content of task.json; None for pre-trained weights.
        token_counts: (V,) integers, or None.
        checkpoint: weights as they were read, and their path; None while they are in training.
    """

    architecture: AlbertConfig
    tokenizer: FullTokenizer | None = None
    task_info: TaskInfo | None = None
    token_counts: np.ndarray | None = None
    checkpoint: Checkpoint | None = None

    @classmethod
    def load(
        cls,
        path: str | Path,
        vocab_file: str = "",
        spm_model_file: str = "",
        compute_type: str = "float32",
        do_lower_case: bool = True,
        backend: Backend = Backend.AUTO,
    ) -> Self:
        """Load a checkpoint, or the best one (if none is marked, the newest) in the folder of a run or a conversion.

        Args:
            vocab_file, spm_model_file: the vocabulary, if none lies beside the weights.
            compute_type: type of the matrix products.
            do_lower_case: as in load_tokenizer.
            backend: backend of its networks.

        Raises:
            CheckpointError: the weights are missing or of another program, or albert_config.json is missing or does not
                fit them.
            DataError: another file is damaged or does not belong to the weights.
        """
        path = Path(path)
        checkpoint = find_checkpoint(path)
        folder = folder_of(path)
        file = find_config_file(path)
        if file is None:
            raise CheckpointError(f"no {ARCHITECTURE_FILE} lies beside the weights in {folder}")
        architecture = AlbertConfig.from_json(file).replace(compute_type=compute_type, backend=backend)
        tokenizer = None
        if vocab_file or spm_model_file or os.path.lexists(folder / TOKENIZER_FILE):
            tokenizer = load_tokenizer(path, vocab_file, spm_model_file, do_lower_case)
            if tokenizer.vocab_size != architecture.vocab_size:
                raise CheckpointError(
                    f"{file} says vocab_size {architecture.vocab_size}, but the vocabulary {tokenizer.file.name} "
                    f"beside it has {tokenizer.vocab_size} entries"
                )
        counts = read_counts(folder, architecture.vocab_size)
        return cls(architecture, tokenizer, read_task_info(path), counts, checkpoint)

    @property
    def loaded(self) -> Checkpoint:
        """The checkpoint of a model that is not in training."""
        if self.checkpoint is None:
            raise ValueError("this model is in training: its weights are not loaded")
        return self.checkpoint

    @property
    def weights(self) -> dict[str, np.ndarray]:
        """Weights by name."""
        return self.loaded.values

    def with_weights(self, weights: dict[str, np.ndarray]) -> Self:
        """Return a copy with other weights."""
        return replace(self, checkpoint=replace(self.loaded, values=weights))

    def save(self, path: str | Path) -> None:
        """Write a new folder that `load` reads; it appears only when it is complete.

        Raises:
            CheckpointError: the weights cannot be written, or the folder has files.
            OSError: the folder cannot be written.
        """
        if Path(path).is_dir() and any(Path(path).iterdir()):
            raise CheckpointError(f"{path} is not an empty folder; name a new one")
        with new_folder(Path(path)) as folder:
            self.write_files(folder)

    def write_files(self, folder: Path) -> None:
        """Write all files into a folder, and remove other checkpoints there."""
        state = {key: value for key, value in self.loaded.loop_state.items() if key in WEIGHT_STATE}
        weights = {name: Tensor(value) for name, value in self.weights.items()}
        self.save_artifacts(folder)
        file = checkpoint_path(folder, state.get("step", 0))
        write_checkpoint(file, weights, state | {ARCHITECTURE: self.architecture.saved_dict()})
        for _, path in list_checkpoints(folder):
            if path != file:
                path.unlink()

    def save_artifacts(self, folder: Path) -> None:
        """Write all files but the weights."""
        self.architecture.to_json(folder / ARCHITECTURE_FILE)
        if self.tokenizer is not None:
            _save_tokenizer(folder, self.tokenizer)
        if self.task_info is not None:
            write_checked(folder / TASK_FILE, self.task_info.explicit_values())
        if self.token_counts is not None:
            stream = io.BytesIO()
            np.save(stream, self.token_counts)
            write_atomically(folder / UNIGRAM_FILE, partial(Path.write_bytes, data=stream.getvalue()))

    def usage(self, embeddings: bool = False) -> TaskInfo:
        """Return the task and settings to use the network with; pre-trained weights fill in masks.

        Args:
            embeddings: use the backbone alone, whatever the weights were trained for.
        """
        task_info = self.task_info or TaskInfo(task="fill_mask")
        if embeddings:
            trained_info = task_info if isinstance(task_info, EmbeddingsInfo) else EmbeddingsInfo(task=EMBEDDINGS.name)
            task_info = trained_info.model_copy(update={"task": EMBEDDINGS.name})
        return task_info.clipped_to(self.architecture)

    def network(self, embeddings: bool = False, portable: bool = False, pooling: str = "") -> AnsweringNetwork:
        """Return the network of `usage` without dropout, and set up the device if that was not done yet.

        Args:
            portable: return a network that can be exported.
            pooling: how embeddings are pooled; "": as in training, else by the pooler, of which a warning may say that
                it is untrained.

        Raises:
            CheckpointError: the weights do not fit the network.
            DeviceError: the device cannot be set up.
        """
        ensure_device()
        modules = {name.partition(".")[0] for name in self.weights}
        if not embeddings and self.task_info is None and modules & {head.module for head in HEADS.values()}:
            raise CheckpointError(
                f"{self.loaded.path} has a fine-tuned head, and no {TASK_FILE} beside it says what it is for: "
                "convert it again with --task"
            )
        if not embeddings and HEADS_OF_TASKS in modules:
            raise CheckpointError(f"{self.loaded.path} has the heads of several tasks: give the folder of one of them")
        if not embeddings and self.task_info is None and "mlm" not in modules:
            raise CheckpointError(
                f"{self.loaded.path} has no head, not even one to fill in masks: use embeddings (predict.py "
                "--embeddings true, export.py --export_embeddings true), or fine-tune it"
            )
        gives_vectors = embeddings or bool(pooling)
        pooling = pooling or getattr(self.task_info, "pooling", "") or POOLER
        if gives_vectors and pooling == POOLER and has_initial_pooler(self.architecture, self.weights):
            logger.warning("the weights have an untrained pooler: use another pooling (mean, cls, max)")
        architecture = self.architecture
        if portable:
            architecture = architecture.replace(backend=without_cpp(architecture.backend))
        task_info = self.usage(embeddings)
        spec = TASKS[task_info.task]
        scores = spec.scores(architecture, task_info)
        load_backbone(scores, self.loaded, spec.needed)
        return AnsweringNetwork(scores, portable)

    def predictor(self, embeddings: bool = False, portable: bool = False, **settings: Any) -> Predictor:
        """Return a predictor for records.

        Args:
            settings: those of AnswerSettings.

        Raises:
            CheckpointError: as for `network`.
            DataError: there is no vocabulary.
            ConfigError: the settings have no effect on the task.
        """
        if self.tokenizer is None:
            raise _no_vocabulary(self.loaded.path.parent)
        answers = AnswerSettings(**settings)
        network = self.network(embeddings, portable, answers.pooling)
        if not portable:
            network = packed_where_possible(network)
        predictor = Predictor(self.usage(embeddings), self.tokenizer, network, self.architecture, answers)
        predictor.file = self.loaded.path
        return predictor


def _no_vocabulary(folder: Path) -> DataError:
    return DataError(
        f"no {TOKENIZER_FILE} lies beside the weights in {folder}: name the vocabulary that they were trained "
        "with in spm_model_file (SentencePiece) or, of WordPiece, vocab_file_path (in pre-training: vocab_file)"
    )


def _save_tokenizer(folder: Path, tokenizer: FullTokenizer) -> None:
    file = folder / tokenizer.file.name
    for path, content in tokenizer.files(file).items():
        if not path.exists() or path.read_bytes() != content:
            write_atomically(path, partial(Path.write_bytes, data=content))
    key = "spm_model_file" if tokenizer.is_sentencepiece else "vocab_file"
    described = {key: file.name, "do_lower_case": tokenizer.do_lower_case, "vocab_sha256": tokenizer.sha256}
    write_checked(folder / TOKENIZER_FILE, described)


def load_tokenizer(
    weights: Path, vocab_file: str = "", spm_model_file: str = "", do_lower_case: bool = True
) -> FullTokenizer:
    """Return the tokenizer that weights (a checkpoint or its folder) were trained with; files as in ModelFolder.load.

    Args:
        do_lower_case: used if nothing beside the weights says it.

    Raises:
        DataError: the vocabulary is missing, damaged or not the one that the weights were trained with.
        CheckpointError: the weights are missing or of another program.
    """
    refuse_foreign(weights)
    if not weights.exists():
        raise CheckpointError(f"{weights} does not exist")
    folder = folder_of(weights)
    file = folder / TOKENIZER_FILE
    if not os.path.lexists(file):
        if vocab_file or spm_model_file:
            return build_tokenizer(vocab_file, spm_model_file, do_lower_case)
        if weights.is_dir() and not list_checkpoints(weights):
            raise no_checkpoint(weights)
        raise _no_vocabulary(folder)
    described = read_json(file, TokenizerSchema)
    if described.do_lower_case and not do_lower_case:
        raise DataError(f"do_lower_case is false, but {file} says that the weights were trained with lower-cased text")
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


def read_task_info(weights: Path) -> TaskInfo | None:
    """Return the content of task.json beside weights (a checkpoint or its folder), or None if there is none."""
    file = folder_of(weights) / TASK_FILE
    if not os.path.lexists(file):
        return None
    return read_validated(file, partial(parse_task_info, origin=str(file)))


def store_calibration(folder: Path, calibration: Mapping[str, Any]) -> None:
    """Add settings that were fitted on a development split to the task.json in the folder of the weights."""
    task_info = read_task_info(folder)
    assert task_info
    write_checked(folder / TASK_FILE, task_info.model_copy(update=calibration).explicit_values())


def read_counts(folder: Path, vocab_size: int) -> np.ndarray | None:
    """Return the token counts (V,) of the training data beside its checkpoint; None if there are none."""
    file = folder / UNIGRAM_FILE
    if not os.path.lexists(file):
        return None
    content = read_file(file)
    try:
        counts = np.lib.format.read_array(io.BytesIO(content))
    except Exception as error:  # numpy's reader may raise any error for a damaged file
        raise DataError(f"{file} is damaged: {shorten(str(error))}") from error
    if counts.shape != (vocab_size,):
        raise DataError(f"{file} has shape {counts.shape}, the model's vocabulary {vocab_size} tokens")
    if counts.dtype.kind not in "iu" or counts.min() < 0:
        raise DataError(f"{file} is damaged: it holds other values than counts")
    return counts
