"""A trained network with all that is needed to use it: for export and prediction.

Everything lies beside the weights: albert_config.json, task.json, the vocabulary with tokenizer_config.json. Weights
without task.json are those of pre-training, and fill in masks.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mindspore as ms
from mindspore import Tensor, nn

from model_utils.errors import CheckpointError
from src.albert_config import AlbertConfig, check_memory, find_config_file
from src.checkpoint_files import find_checkpoint, load_backbone
from src.saved_tokenizer import load_tokenizer
from src.task_file import read_task_info
from src.tasks import TASKS
from src.tasks.task_info import TaskInfo
from src.tokenization import FullTokenizer


@dataclass(frozen=True)
class TrainedModel:
    """Weights in their network, which is an AnsweringNetwork, and what belongs to them."""

    task_info: TaskInfo
    architecture: AlbertConfig
    tokenizer: FullTokenizer
    network: "AnsweringNetwork"


class AnsweringNetwork(nn.Cell):
    """A network of scores without dropout and its key, for any batch and length.

    Inputs are the columns of `input_columns`, (B, *) int32; outputs the tensors of `output_names`.
    """

    def __init__(self, scores: nn.Cell) -> None:
        super().__init__(auto_prefix=False)
        self.scores = scores
        self.input_columns, self.output_names = scores.input_columns, scores.output_names
        self.per_token_outputs = scores.per_token_outputs
        self.no_dropout = Tensor(0, ms.int32)
        self.set_train(False)
        self.set_inputs(*self.any_inputs())

    def any_inputs(self) -> list[Tensor]:
        """Placeholders for batches of any size."""
        return [Tensor(shape=[None, None], dtype=ms.int32) for _ in self.input_columns]

    def construct(self, input_ids: Tensor, input_mask: Tensor, segment_ids: Tensor, further: Tensor = None) -> Any:
        if further is None:
            return self.scores(input_ids, input_mask, segment_ids, self.no_dropout)
        return self.scores(input_ids, input_mask, segment_ids, further, self.no_dropout)


def load_trained(
    weights: Path,
    embeddings: bool = False,
    vocab_file: str = "",
    spm_model_file: str = "",
) -> TrainedModel:
    """The network that weights belong to, in float32.

    Args:
        weights: a checkpoint, or the folder of a run or a conversion.
        embeddings: the backbone alone, whatever the weights were trained for.
        vocab_file, spm_model_file: the vocabulary, where none lies beside the weights.

    Raises:
        CheckpointError: there are no such weights, or they are of another architecture than the file beside them says.
        DataError: the vocabulary or task.json is missing, damaged or of another size.
    """
    contents = find_checkpoint(weights)
    file = find_config_file(weights)
    if file is None:
        folder = weights if weights.is_dir() else weights.parent
        raise CheckpointError(f"no albert_config.json, which says how to use them, lies beside the weights in {folder}")
    architecture = AlbertConfig.from_json(file).replace(compute_type="float32")
    check_memory(architecture)
    tokenizer = load_tokenizer(weights, vocab_file, spm_model_file)
    if tokenizer.vocab_size != architecture.vocab_size:
        raise CheckpointError(
            f"{file} says vocab_size {architecture.vocab_size}, but the vocabulary {tokenizer.file.name} beside it has "
            f"{tokenizer.vocab_size} entries"
        )
    task_info = None if embeddings else read_task_info(weights)
    task_info = task_info or TaskInfo(task="embeddings" if embeddings else "fill_mask")
    task_info = task_info.fitted(architecture)
    spec = TASKS[task_info.task]
    scores = spec.scores(architecture, task_info)
    load_backbone(scores, contents, spec.needed)
    return TrainedModel(task_info, architecture, tokenizer, AnsweringNetwork(scores))
