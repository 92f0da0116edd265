"""A trained network with all that is needed to use it: for export and prediction.

Everything lies beside the weights: albert_config.json, task.json, the vocabulary with tokenizer_config.json. Weights
without task.json are those of pre-training, and fill in masks.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mindspore as ms
from mindspore import Tensor, nn

from model_utils.errors import CheckpointError
from src.albert_config import AlbertConfig, check_memory, find_config_file
from src.checkpoint_files import BACKBONE, find_checkpoint, load_backbone
from src.data.race_data import NUM_CHOICES
from src.finetune_eval_model import (
    EncoderOutputs,
    FillMaskScores,
    MultipleChoiceScores,
    QuestionAnsweringScores,
    SequenceClassificationScores,
    SpanSearchScores,
    TokenClassificationScores,
)
from src.saved_tokenizer import load_tokenizer
from src.squad_postprocess import ANSWER_ALWAYS
from src.task_file import read_card
from src.tokenization import FullTokenizer

FILL_MASK, EMBEDDINGS = "fill_mask", "embeddings"
_LENGTHS = {"doc_stride": 128, "max_query_length": 64, "max_answer_length": 30, "n_best_size": 20}
# What task.json may leave out: that of weights which others trained does.
DEFAULTS: dict[str, dict[str, Any]] = {
    "classification": {"max_seq_length": 512, "classifier_hidden_size": 0},
    "regression": {"max_seq_length": 512, "classifier_hidden_size": 0},
    "multiple_choice": {"max_seq_length": 512, "max_qa_length": 128},
    "squad_v1": {"max_seq_length": 384, **_LENGTHS},
    "squad_v2": {"max_seq_length": 384, **_LENGTHS, "start_n_top": 5, "end_n_top": 5, "null_threshold": ANSWER_ALWAYS},
    "token_classification": {"max_seq_length": 512},
    FILL_MASK: {"max_seq_length": 512},
    EMBEDDINGS: {"max_seq_length": 512},
}


@dataclass(frozen=True)
class TrainedModel:
    """Weights in their network, which is an AnsweringNetwork, and what belongs to them; card: task, labels, lengths."""

    card: dict[str, Any]
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
    card = complete_card(None if embeddings else read_card(weights), architecture, embeddings)
    scores, needed = build_scores(card, architecture)
    load_backbone(scores, contents, needed)
    return TrainedModel(card, architecture, tokenizer, AnsweringNetwork(scores))


def complete_card(card: dict[str, Any] | None, architecture: AlbertConfig, embeddings: bool) -> dict[str, Any]:
    """What task.json says, or the card of pre-trained weights; with what it leaves out."""
    card = card or {"task": EMBEDDINGS if embeddings else FILL_MASK, "labels": []}
    card = DEFAULTS[card["task"]] | card
    if not architecture.use_relative_positions:
        card["max_seq_length"] = min(card["max_seq_length"], architecture.max_position_embeddings)
    if "max_query_length" in card:
        card["max_query_length"] = min(card["max_query_length"], card["max_seq_length"] - 4)
    return card


def shortest_row(card: Mapping[str, Any]) -> int:
    """The tokens that a row must have: as many as the beam of a SQuAD v2.0 head takes."""
    return max(card.get("start_n_top", 1), card.get("end_n_top", 1))


def build_scores(card: dict[str, Any], architecture: AlbertConfig) -> tuple[nn.Cell, tuple[str, ...]]:
    """The network of a card, and beginnings of the names of the parameters that it cannot do without."""
    labels = max(1, len(card["labels"]))
    everything = ("",)
    match card["task"]:
        case "classification" | "regression":
            hidden = card["classifier_hidden_size"]
            return SequenceClassificationScores(architecture, labels, hidden), everything
        case "multiple_choice":
            return MultipleChoiceScores(architecture, NUM_CHOICES), everything
        case "squad_v1":
            return QuestionAnsweringScores(architecture), everything
        case "squad_v2":
            beams = card["start_n_top"], card["end_n_top"]
            return SpanSearchScores(architecture, *beams), everything
        case "token_classification":
            return TokenClassificationScores(architecture, labels), everything
        case "embeddings":
            return EncoderOutputs(architecture), (BACKBONE,)
        case _:
            return FillMaskScores(architecture), (BACKBONE, "mlm.")
