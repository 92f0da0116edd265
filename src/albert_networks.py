"""Networks on the backbone: with a head that scores, and with losses to be trained.

Shape letters: B batch, L length.
"""

from typing import Any

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops

from src.albert_config import AlbertConfig
from src.albert_model import AlbertModel, initialise_weights
from src.data.packing import PACKED_COLUMNS, TEXT_COLUMNS
from src.nn.losses import cross_entropy


class ScoresNetwork(nn.Cell):
    """The backbone and a head, whose weights are to be drawn by a TrainingNetwork or loaded.

    Inputs: the columns of `input_columns`, (B, *) int32, TEXT_COLUMNS first; then dropout_key () int32. Outputs: the
    tensors of `output_names`, which `head` makes of the backbone's outputs for the `rows_read` and the further inputs;
    those in `per_token_outputs` have an entry for every token.
    """

    input_columns: tuple[str, ...] = TEXT_COLUMNS
    output_names: tuple[str, ...] = ("logits",)
    per_token_outputs: tuple[str, ...] = ()
    reads_tokens = True  # whether the head needs the states of other tokens than the first

    def __init__(self, config: AlbertConfig) -> None:
        super().__init__()
        self.config = config
        self.albert = AlbertModel(config)

    def sequences(self, input_ids: Tensor, input_mask: Tensor, segment_ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the backbone's inputs: the columns themselves, unless a row holds several sequences."""
        return input_ids, input_mask, segment_ids

    def rows_read(self, texts: tuple[Tensor, ...], further: tuple[Tensor, ...]) -> Tensor | None:
        """Return the rows of the last layer that the head reads, as AlbertModel.encode takes them; None: all.

        Args:
            texts: as the backbone reads them.
            further: further inputs of the scores, dropout_key last.
        """
        return None if self.reads_tokens else self.albert.rows_of(texts)

    def encode(self, texts: tuple[Tensor, ...], further: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        """Return the backbone's outputs for padded texts (TEXT_COLUMNS) or packed ones (PACKED_COLUMNS)."""
        texts = self.backbone_texts(texts)
        return self.albert.encode(texts, further[-1], self.rows_read(texts, further))

    def backbone_texts(self, texts: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Return the texts as the backbone reads them: `sequences` of padded ones."""
        return self.sequences(*texts) if len(texts) == len(TEXT_COLUMNS) else texts

    def construct(self, input_ids: Tensor, input_mask: Tensor, segment_ids: Tensor, *further: Tensor) -> Any:
        sequence, pooled = self.encode((input_ids, input_mask, segment_ids), further)
        return self.head(sequence, pooled, *further)


class TrainingNetwork(nn.Cell):
    """Losses and metrics on a network of scores, whose weights are drawn anew.

    Inputs: the columns of `input_columns`, those of the text first, `label_columns` last; then dropout_key () int32.
    Outputs: the float32 scalars of `metric_names`, which `losses` makes of the backbone's outputs and the further
    inputs: weighted sums, of which the first is minimised. src/training/layerwise_gradient.py also runs the parts of
    `construct` one at a time.

    Args:
        packed: texts come without padding, as PACKED_COLUMNS; else as TEXT_COLUMNS.
    """

    label_columns: tuple[str, ...]
    weight_columns: tuple[str, ...] = ("sequence_weights",)  # label columns that losses and metrics are weighted with
    metric_names: tuple[str, ...]
    compares_tokens = False  # True if `losses` must be told which positions lie behind the end of a packed text

    def __init__(self, scores: ScoresNetwork, seed: int = 0, packed: bool = False) -> None:
        super().__init__(auto_prefix=False)
        self.scores = scores
        self.packed = packed
        text_columns = PACKED_COLUMNS if packed else TEXT_COLUMNS
        self.text_inputs = len(text_columns)
        self.input_columns = (*text_columns, *scores.input_columns[len(TEXT_COLUMNS) :], *self.label_columns)
        self.backend = scores.config.backend
        self.cross_entropy = cross_entropy(self.backend)
        self.recompute_layers = scores.config.recompute
        self.draw_weights(seed)

    def draw_weights(self, seed: int) -> None:
        """Draw all weights anew."""
        initialise_weights(self.scores, self.scores.config.initializer_range, seed)

    @property
    def counted_rows(self) -> tuple[Parameter, Parameter]:
        """The table whose gradient the global norm counts per looked-up row, and its sum of squares (RowSquareSum)."""
        embeddings = self.scores.albert.embeddings
        return embeddings.token_type_embeddings, embeddings.segment_rows.row_square_sum

    def losses_of(
        self, outputs: tuple[Tensor, Tensor], texts: tuple[Tensor, ...], further: tuple[Tensor, ...]
    ) -> tuple[Tensor, ...]:
        """Return losses and metrics from the backbone's outputs for these texts."""
        if self.packed and self.compares_tokens:
            absent = ops.cast(ops.equal(texts[-1], texts[0].shape[1] - 1), ms.float32)
            return self.losses(*outputs, *further, absent)
        return self.losses(*outputs, *further)

    def construct(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        texts, further = inputs[: self.text_inputs], inputs[self.text_inputs :]
        return self.losses_of(self.scores.encode(texts, further), self.scores.backbone_texts(texts), further)
