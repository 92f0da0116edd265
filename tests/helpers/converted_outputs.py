"""Outputs of a converted checkpoint: of a network with the folder's weights, and of one with all of pre-training."""

from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn

from src.albert_config import AlbertConfig
from src.albert_for_pre_training import PreTrainingScores
from src.checkpoints.checkpoint_files import find_checkpoint, load_backbone

NO_KEY = Tensor(0, ms.int32)


class AllScores(nn.Cell):
    """Sequence (B, L, H), pooled (B, H), masked-token logits at every position (B, L, V), order logits (B, 2)."""

    def __init__(self, config: AlbertConfig) -> None:
        super().__init__(auto_prefix=False)
        self.scores = PreTrainingScores(config)

    def construct(
        self, input_ids: Tensor, input_mask: Tensor, segment_ids: Tensor, positions: Tensor, key: Tensor
    ) -> tuple:
        backbone = self.scores.albert(input_ids, input_mask, segment_ids, key)
        return backbone + self.scores(input_ids, input_mask, segment_ids, positions, key)


def computed(
    folder: Path, network: nn.Cell, *columns: np.ndarray, needed: tuple[str, ...] = ("",)
) -> tuple[np.ndarray, ...]:
    """The network's outputs for columns, with the folder's weights.

    Args:
        needed: beginnings of the names that the folder must have; by default all of the network's.
    """
    load_backbone(network.set_train(False), find_checkpoint(folder), needed=needed)
    outputs = network(*map(Tensor, columns), NO_KEY)
    return tuple(output.asnumpy() for output in (outputs if isinstance(outputs, tuple) else (outputs,)))


def pre_training_outputs(
    folder: Path, ids: np.ndarray, mask: np.ndarray, segments: np.ndarray, needed: tuple[str, ...] = ("",)
) -> tuple[np.ndarray, ...]:
    """Sequence (B, L, H), pooled (B, H), masked-token logits (B, L, V) and sentence-order logits (B, 2)."""
    positions = np.tile(np.arange(ids.shape[1], dtype=np.int32), (len(ids), 1))
    network = AllScores(AlbertConfig.from_json(folder / "albert_config.json"))
    return computed(folder, network, ids, mask, segments, positions, needed=needed)
