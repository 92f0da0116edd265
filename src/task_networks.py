"""What all networks are made of: the backbone, a head for the scores, and losses on them for training.

`construct` of each is the composition of parts that src/training/layerwise_gradient.py also runs one at a time.
"""

from typing import Any

from mindspore import Tensor, nn

from src.albert_config import AlbertConfig
from src.albert_model import AlbertModel
from src.layers import CrossEntropy

TEXT_COLUMNS = ("input_ids", "input_mask", "segment_ids")


class ScoresNetwork(nn.Cell):
    """The backbone and a head.

    Inputs: the columns of `input_columns`, (B, *) int32, TEXT_COLUMNS first; then dropout_key () int32. Output: what
    `head`, which a subclass gives, makes of the backbone's outputs and the further inputs.
    """

    input_columns: tuple[str, ...] = TEXT_COLUMNS

    def __init__(self, config: AlbertConfig) -> None:
        super().__init__()
        self.albert = AlbertModel(config)

    def sequences(self, input_ids: Tensor, input_mask: Tensor, segment_ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The backbone's inputs: the columns themselves, unless a row holds several sequences."""
        return input_ids, input_mask, segment_ids

    def encode(
        self, input_ids: Tensor, input_mask: Tensor, segment_ids: Tensor, dropout_key: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The backbone's outputs for columns of texts."""
        return self.albert(*self.sequences(input_ids, input_mask, segment_ids), dropout_key)

    def construct(self, input_ids: Tensor, input_mask: Tensor, segment_ids: Tensor, *further: Tensor) -> Any:
        sequence, pooled = self.encode(input_ids, input_mask, segment_ids, further[-1])
        return self.head(sequence, pooled, *further)


class TrainingNetwork(nn.Cell):
    """Losses and metrics on a network of scores.

    Inputs: the columns of `input_columns`, TEXT_COLUMNS first; then dropout_key () int32. Outputs: the float32 scalars
    of `metric_names`, weighted sums of which the first is minimised: what `losses`, which a subclass gives, makes of
    the backbone's outputs and the further inputs.
    """

    input_columns: tuple[str, ...]
    weight_columns: tuple[str, ...]
    metric_names: tuple[str, ...]

    def __init__(self, scores: ScoresNetwork) -> None:
        super().__init__(auto_prefix=False)
        self.scores = scores
        self.cross_entropy = CrossEntropy()

    @property
    def recompute_layers(self) -> bool:
        """Whether the layers are to be computed again for the gradient."""
        return self.scores.albert.recompute_layers

    def construct(
        self, input_ids: Tensor, input_mask: Tensor, segment_ids: Tensor, *further: Tensor
    ) -> tuple[Tensor, ...]:
        sequence, pooled = self.scores.encode(input_ids, input_mask, segment_ids, further[-1])
        return self.losses(sequence, pooled, *further)
