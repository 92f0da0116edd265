"""Pre-training with a teacher: the student's states approach those of a larger or better model.

Student and teacher are compared at equal depths: at the input of the first layer, at the output of the last one, and
where the depths of layers between them agree (Jiao et al. 2020, TinyBERT). The teacher reads the text before tokens are
masked, so a student learns to guess its states where it sees [MASK].
Shape letters: B batch, L length, M matched layers, H hidden size of the student, K of the teacher.
"""

import math
from collections.abc import Sequence
from typing import Self

import mindspore as ms
from mindspore import Tensor, nn, ops

from model_utils.errors import ConfigError
from src.albert_config import AlbertConfig
from src.albert_for_pre_training import AlbertForPreTraining
from src.albert_model import AlbertModel, initialise_weights
from src.albert_networks import Tensors
from src.checkpoints.checkpoint_files import BACKBONE, load_backbone
from src.data.packing import TEXT_COLUMNS
from src.model_folder import ModelFolder
from src.nn.layers import Dense, Spread, compute_dtype
from src.pretraining_data.checked_data import PretrainingData, vocabulary_entries
from src.tokenization import FullTokenizer
from src.training.pretrain_config import PretrainConfig

TEACHER_COLUMNS = (*TEXT_COLUMNS, "masked_lm_positions", "masked_lm_ids", "masked_lm_weights")


def match_layers(student: int, teacher: int) -> list[tuple[int, int]]:
    """Return pairs of (student's layer, teacher's layer) at equal depth; 0 is the input of the first layer."""
    steps = math.gcd(student, teacher)
    return [(step * student // steps, step * teacher // steps) for step in range(steps + 1)]


class TeacherStates(nn.Cell):
    """States of the teacher's matched layers (ascending) for the text without masks.

    Inputs: TEACHER_COLUMNS. Output: (M, B * L, K) float32.
    """

    def __init__(self, config: AlbertConfig, matched_layers: tuple[int, ...]) -> None:
        super().__init__()
        self.albert = AlbertModel(config)
        self.matched_layers = matched_layers
        self.no_dropout = Tensor(0, ms.int32)
        self.set_train(False)

    def construct(
        self,
        input_ids: Tensor,
        input_mask: Tensor,
        segment_ids: Tensor,
        positions: Tensor,
        masked_ids: Tensor,
        masked_weights: Tensor,
    ) -> Tensor:
        # Filler positions, of weight 0, name token 0 and put back the id that is there.
        current_ids = ops.gather_elements(input_ids, 1, positions)
        originals = ops.select(masked_weights > 0, masked_ids, current_ids)
        text = ops.tensor_scatter_elements(input_ids, positions, originals, 1)
        states = self.albert.layer_states((text, input_mask, segment_ids), self.no_dropout)
        matched: tuple[Tensor, ...] = ()
        for layer in self.matched_layers:
            matched += (states[layer],)
        return ops.stack(matched)


class StatesTeacher:
    """A trained model whose states are the targets of a student.

    Args:
        model: of any ALBERT or BERT, with its vocabulary.
        student_layer_count: number of the student's layers.

    Attributes:
        matched_student_layers: layers of the student whose states the targets are for.
    """

    def __init__(self, model: ModelFolder, student_layer_count: int) -> None:
        self.model = model
        self.hidden_size = model.architecture.hidden_size
        pairs = match_layers(student_layer_count, model.architecture.num_hidden_layers)
        self.matched_student_layers = tuple(student for student, _ in pairs)
        self.network = TeacherStates(model.architecture, tuple(teacher for _, teacher in pairs))
        load_backbone(self.network, model.loaded, (BACKBONE,))

    @classmethod
    def load(cls, path: str, student: AlbertConfig) -> Self:
        """Return the teacher in a folder, which computes as the student does; raises as ModelFolder.load."""
        model = ModelFolder.load(path, compute_type=student.compute_type, backend=student.backend)
        return cls(model, student.num_hidden_layers)

    def check_data(self, data: PretrainingData, tokenizer: FullTokenizer | None) -> None:
        """Raise DataError if the examples do not fit the teacher, ConfigError if it has no vocabulary to compare.

        Args:
            tokenizer: of the data, in case its manifest does not name one.
        """
        folder = self.model.loaded.path.parent
        if self.model.tokenizer is None:
            raise ConfigError(key="teacher", value=str(folder), problem="it has no vocabulary beside its weights")
        data.check_vocabulary(vocabulary_entries(self.model.tokenizer), folder, vocabulary_entries(tokenizer))
        data.check_fits(self.model.architecture)

    def targets(self, columns: dict[str, Tensor]) -> Tensors:
        """Return the states (M, B * L, K) float32 for the columns of create_pretrain_dataset."""
        return (self.network(*(columns[name] for name in TEACHER_COLUMNS)),)


class AlbertForDistillation(AlbertForPreTraining):
    """Pre-training's losses and the distance to the teacher's states.

    teacher_loss is the squared distance of states over the square of the teacher's: 0 for equal ones, 1 for a student
    whose states are zero; the mean over matched layers and over the tokens of each text. Students of another width than
    the teacher's learn a projection for each layer, which only training uses.

    Args:
        teacher_loss_weight: of teacher_loss in the loss, beside 1 for the masked tokens.
    """

    def __init__(self, config: AlbertConfig, teacher: StatesTeacher, teacher_loss_weight: float, seed: int = 0) -> None:
        if config.recompute:
            raise ConfigError(key="albert_cfg.recompute", value=True, problem="runs with a teacher do not support it")
        super().__init__(config, seed)
        self.teach(teacher, teacher_loss_weight)
        self.matched_layers = teacher.matched_student_layers
        self.spread = Spread(config.backend)
        self.projects = config.hidden_size != teacher.hidden_size
        if self.projects:
            size = config.hidden_size, teacher.hidden_size
            projections = [Dense(*size, compute_dtype(config), backend=config.backend) for _ in self.matched_layers]
            self.teacher_projections = nn.CellList(projections)
            self.teacher_projections.update_parameters_name("teacher_projections.")
            initialise_weights(self.teacher_projections, config.initializer_range, seed + 1)

    def construct(self, *inputs: Tensor) -> Tensors:
        texts, further = inputs[: self.text_inputs], inputs[self.text_inputs :]
        states = self.scores.albert.layer_states(texts, further[-1])
        states_read = ops.gather(states[-1], self.scores.rows_read(texts, further), 0)
        outputs = self.scores.albert.outputs(states_read, texts, all_rows=False)
        return self.total_losses((*outputs, *states), texts, further)

    def label_losses(self, outputs: Tensors, texts: Tensors, further: Tensors) -> Tensors:
        return self.losses(*outputs[:2], *further)

    def teacher_loss(self, outputs: Tensors, texts: Tensors, further: Tensors, targets: Tensors) -> Tensor:
        """Return the distance of states, weighted with the texts' sequence_weights.

        outputs: the backbone's, and then the states of all layers (B * L, H).
        """
        states = outputs[2:]
        teacher_states = targets[0]
        sequence_weights = further[1 + self.label_columns.index("sequence_weights")]  # after masked_lm_positions
        mask = ops.cast(texts[1], ms.float32)  # (B, L)
        weights = mask * self.spread(
            (sequence_weights / ops.maximum(ops.reduce_sum(mask, 1), 1.0)).reshape((-1, 1)), mask.shape
        )
        weights = weights.reshape((-1,)) / len(self.matched_layers)
        total = 0.0
        for i in range(len(self.matched_layers)):
            student_states = states[self.matched_layers[i]]
            if self.projects:
                student_states = self.teacher_projections[i](student_states)
            difference = student_states - teacher_states[i]
            squares = ops.reduce_sum(difference * difference, 1)
            norms = ops.reduce_sum(teacher_states[i] * teacher_states[i], 1)
            total = total + ops.reduce_sum(weights * squares / norms)
        return total


def build_network(
    config: PretrainConfig,
    architecture: AlbertConfig,
    datasets: Sequence[PretrainingData],
    tokenizer: FullTokenizer | None,
) -> AlbertForPreTraining:
    """Return the network of a run, with its teacher if it has one; raises as StatesTeacher.load and check_data."""
    if not config.teacher:
        return AlbertForPreTraining(architecture, seed=config.seed)
    teacher = StatesTeacher.load(config.teacher, architecture)
    for data in datasets:
        teacher.check_data(data, tokenizer)
    return AlbertForDistillation(architecture, teacher, config.teacher_loss_weight, config.seed)
