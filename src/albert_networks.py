"""Networks on the backbone: with a head that scores, and with losses to be trained.

Shape letters: B batch, L length, C texts of a row.
"""

from collections.abc import Mapping
from typing import Any, Protocol

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from src.albert_config import AlbertConfig
from src.albert_model import AlbertModel, initialise_weights
from src.data.mixed_batches import TASK
from src.data.packing import PACKED_COLUMNS, TEXT_COLUMNS
from src.nn.losses import cross_entropy, divergence
from src.nn.native_operations import Tensors

TEACHER_LOSS = "teacher_loss"
HEADS_OF_TASKS = "heads"  # first part of the names of weights that a task of several has alone


class ScoresNetwork(nn.Cell):
    """The backbone and a head, whose weights are to be drawn by a TrainingNetwork or loaded.

    Inputs: the columns of `input_columns`, (B, *) int32, TEXT_COLUMNS first; then dropout_key () int32. The texts of a
    row are interleaved by token, (B, L * C): entry t * C + c is token t of text c. Outputs: the tensors of
    `output_names`, which `head` makes of the backbone's outputs for the `rows_read` and the further inputs; those in
    `per_token_outputs` have an entry for every token.
    """

    input_columns: tuple[str, ...] = TEXT_COLUMNS
    output_names: tuple[str, ...] = ("logits",)
    per_token_outputs: tuple[str, ...] = ()
    reads_tokens = True  # whether the head needs the states of other tokens than the first
    texts_per_row = 1

    def __init__(self, config: AlbertConfig) -> None:
        super().__init__()
        self.config = config
        self.albert = AlbertModel(config)

    def apart(self, column: Tensor) -> Tensor:
        """Reshape interleaved (B, L * C) to (B * C, L), one row for each text."""
        batch, width = column.shape
        column = column.reshape((batch, width // self.texts_per_row, self.texts_per_row)).transpose((0, 2, 1))
        return column.reshape((batch * self.texts_per_row, width // self.texts_per_row))

    def rows_read(self, texts: Tensors, further: Tensors) -> Tensor | None:
        """Return the rows of the last layer that the head reads, as AlbertModel.encode takes them; None: all.

        Args:
            texts: as the backbone reads them.
            further: further inputs of the scores, dropout_key last.
        """
        return None if self.reads_tokens else self.albert.rows_of(texts)

    def encode(self, texts: Tensors, further: Tensors) -> tuple[Tensor, Tensor]:
        """Return the backbone's outputs for padded texts (TEXT_COLUMNS) or packed ones (PACKED_COLUMNS)."""
        texts = self.backbone_texts(texts)
        return self.albert.encode(texts, further[-1], self.rows_read(texts, further))

    def backbone_texts(self, texts: Tensors) -> Tensors:
        """Return the texts as the backbone reads them: of padded ones a row for each."""
        if self.texts_per_row == 1 or len(texts) == len(PACKED_COLUMNS):
            return texts
        return self.apart(texts[0]), self.apart(texts[1]), self.apart(texts[2])

    def answer(self, texts: Tensors, further: Tensors) -> Any:
        """Return the tensors of `output_names` for padded or packed texts."""
        return self.head(*self.encode(texts, further), *further)

    def construct(self, input_ids: Tensor, input_mask: Tensor, segment_ids: Tensor, *further: Tensor) -> Any:
        return self.answer((input_ids, input_mask, segment_ids), further)


class Teacher(Protocol):
    """A trained model whose outputs the student learns to match, in addition to the labels."""

    def targets(self, columns: dict[str, Tensor]) -> Tensors:
        """Return what the student's outputs are compared with, for the columns of TrainingNetwork.inputs."""


class TrainingNetwork(nn.Cell):
    """Losses and metrics on a network of scores, whose weights are drawn anew.

    Inputs: the columns of `input_columns`, those of the text first, `label_columns` last; the targets of a teacher, if
    there is one; then dropout_key () int32. Outputs: the float32 scalars of `metric_names`, which `total_losses` makes
    of the backbone's outputs and the further inputs: weighted sums, of which the first is minimised.
    src/training/layerwise_gradient.py also runs the parts of `construct` one at a time.

    Subclasses define `losses(sequence, pooled, *further)` or override `label_losses`; to learn from a teacher also
    `logits_of`.

    Args:
        packed: texts come without padding, as PACKED_COLUMNS; else as TEXT_COLUMNS.
    """

    label_columns: tuple[str, ...]
    weight_columns: tuple[str, ...] = ("sequence_weights",)  # label columns that losses and metrics are weighted with
    metric_names: tuple[str, ...]
    target_count = 1  # tensors that a teacher gives for a batch
    frozen: tuple[str, ...] = ()  # name prefixes of the weights that are not trained

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
        self.teacher: Teacher | None = None
        self.is_taught = False  # read in graphs, where `teacher` itself would not compile
        self.draw_weights(seed)

    def teach(self, teacher: Teacher, weight: float, temperature: float = 1.0) -> None:
        """Add weight * teacher_loss to the loss, and report teacher_loss as a metric.

        Args:
            temperature: divisor of logits before they are compared; teachers of hidden states ignore it.
        """
        self.teacher = teacher
        self.is_taught = True
        self.teacher_loss_weight = weight
        self.temperature = temperature
        self.metric_names = (*type(self).metric_names, TEACHER_LOSS)

    def draw_weights(self, seed: int) -> None:
        """Draw all weights anew."""
        initialise_weights(self.scores, self.scores.config.initializer_range, seed)

    def weights_to_train(self) -> list[Parameter]:
        """Return the weights that are not frozen."""
        return [weight for weight in self.trainable_params() if not weight.name.startswith(self.frozen)]

    @property
    def segment_table_and_squares(self) -> tuple[Parameter, Parameter]:
        """The segment embeddings, and the sum of squares of their looked-up rows' gradients (RowSquareSum)."""
        embeddings = self.scores.albert.embeddings
        return embeddings.token_type_embeddings, embeddings.segment_rows.row_square_sum

    def inputs(self, batch: dict[str, np.ndarray]) -> list[Any]:
        """Return the inputs of `construct` for a batch, without the dropout key."""
        columns = {name: Tensor(batch[name]) for name in self.input_columns}
        targets = self.teacher.targets(columns) if self.teacher else ()
        return [*columns.values(), *targets]

    def label_losses(self, outputs: Tensors, texts: Tensors, further: Tensors) -> Tensors:
        """Return losses and metrics by the labels, from the backbone's outputs for these texts.

        Args:
            further: further inputs of the scores, labels, dropout_key.
        """
        return self.losses(*outputs, *further)

    def logits_of(self, outputs: Tensors, texts: Tensors, further: Tensors) -> tuple[tuple[Tensor, Tensor], ...]:
        """Return `target_count` pairs (logits (*, C), weights that broadcast to (*)), arguments as in label_losses.

        Optional: FinetunedTeacher refuses a task whose network does not override it.
        """
        raise NotImplementedError

    def teacher_loss(self, outputs: Tensors, texts: Tensors, further: Tensors, targets: Tensors) -> Tensor:
        """Return the weighted sum of the distances of `logits_of` from a teacher's, () float32.

        The distance is that of Hinton et al. 2015: the Kullback-Leibler divergence of the probabilities at the
        temperature, times the squared temperature; of a single logit, the squared difference.
        """
        pairs = self.logits_of(outputs, texts, further)
        total = 0.0
        for i in range(self.target_count):
            logits, weights = pairs[i]
            total = total + ops.reduce_sum(weights * divergence(logits, targets[i], self.temperature))
        return total

    def total_losses(self, outputs: Tensors, texts: Tensors, further: Tensors) -> Tensors:
        """Return losses and metrics from the backbone's outputs for these texts.

        Args:
            further: further inputs of the scores, labels, the targets if there is a teacher, dropout_key.
        """
        if not self.is_taught:
            return self.label_losses(outputs, texts, further)
        label_end = len(further) - 1 - self.target_count
        targets = further[label_end:-1]
        further = (*further[:label_end], further[-1])
        metrics = self.label_losses(outputs, texts, further)
        teacher_loss = self.teacher_loss(outputs, texts, further, targets)
        return (metrics[0] + self.teacher_loss_weight * teacher_loss, *metrics[1:], teacher_loss)

    def construct(self, *inputs: Tensor) -> Tensors:
        texts, further = inputs[: self.text_inputs], inputs[self.text_inputs :]
        return self.total_losses(self.scores.encode(texts, further), self.scores.backbone_texts(texts), further)


class JointNetwork(TrainingNetwork):
    """Training networks of several tasks on one backbone; a batch trains the backbone and the head of its task.

    The weights of a head are called heads.TASK.NAME. Inputs: the index of the task, a constant, then the inputs of its
    network. Outputs: the task's loss, then one loss for each task, which is not a number for the other tasks.

    Args:
        networks: by the name of the task. All get the backbone of the first.
    """

    label_columns = ()

    def __init__(self, networks: Mapping[str, TrainingNetwork], seed: int = 0) -> None:
        first, *others = networks.values()
        super().__init__(first.scores, seed, first.packed)
        for network in others:
            network.scores.insert_child_to_cell("albert", first.scores.albert)  # an assignment would rename weights
        for name, network in networks.items():
            for weight in network.trainable_params():
                if not weight.name.startswith("albert."):
                    weight.name = head_prefix(name) + weight.name
        self.networks = nn.CellList(list(networks.values()), auto_prefix=False)
        self.prefixes = tuple(map(head_prefix, networks))
        self.metric_names = ("loss", *(f"{name}_loss" for name in networks))
        self.task_count = len(networks)
        self.draw_weights(seed)

    def draw_weights(self, seed: int) -> None:
        initialise_weights(self, self.scores.config.initializer_range, seed)

    def owner_of(self, weight: Parameter) -> int:
        """Return the index of the task that alone has this weight; -1 if all tasks have it."""
        for index, prefix in enumerate(self.prefixes):
            if weight.name.startswith(prefix):
                return index
        return -1

    def network_of(self, batch: Mapping[str, np.ndarray]) -> TrainingNetwork:
        """Return the network of the batch's task."""
        return self.networks[int(batch[TASK])]

    def inputs(self, batch: dict[str, np.ndarray]) -> list[Any]:
        return [int(batch[TASK]), *self.network_of(batch).inputs(batch)]

    def construct(self, task: int, *inputs: Tensor) -> Tensors:
        loss = self.networks[task](*inputs)[0]
        losses: tuple[Tensor, ...] = (loss,)
        for i in range(self.task_count):
            losses += (loss if i == task else Tensor(float("nan"), ms.float32),)
        return losses


def head_prefix(task: str) -> str:
    """Return the beginning of the names of the weights that a task of several has alone."""
    return f"{HEADS_OF_TASKS}.{task}."
