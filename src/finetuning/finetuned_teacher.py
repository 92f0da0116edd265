"""A fine-tuned teacher, whose logits the student learns to match (Hinton et al. 2015)."""

import logging
from pathlib import Path

import mindspore as ms
from mindspore import Tensor, nn

from src.albert_config import AlbertConfig
from src.albert_for_finetune import AlbertForRegression
from src.albert_networks import Tensors, TrainingNetwork
from src.checkpoints.checkpoint_files import load_backbone
from src.model_folder import ModelFolder
from src.tasks.finetune_config import FinetuneConfig
from src.tasks.spec import Task

logger = logging.getLogger(__name__)


class _TeacherLogits(nn.Cell):
    """Logits that a TrainingNetwork compares, without dropout: its input columns -> tensors of logits_of."""

    def __init__(self, network: TrainingNetwork) -> None:
        super().__init__(auto_prefix=False)
        self.network = network
        self.no_dropout = Tensor(0, ms.int32)
        self.set_train(False)

    def construct(self, *inputs: Tensor) -> Tensors:
        texts = inputs[: self.network.text_inputs]
        further = (*inputs[self.network.text_inputs :], self.no_dropout)
        outputs = self.network.scores.encode(texts, further)
        pairs = self.network.logits_of(outputs, self.network.scores.backbone_texts(texts), further)
        logits: Tensors = ()
        for i in range(self.network.target_count):
            logits += (pairs[i][0],)
        return logits


class FinetunedTeacher:
    """Teacher for fine-tuning, which reads the same rows as its student.

    Args:
        config: names the teacher's folder.
        architecture: of the student, whose compute type and backend the teacher shares.
        packed: as TrainingNetwork has it.

    Raises:
        ConfigError: the teacher is of another vocabulary, task or labels, or reads shorter texts; the task's network
            has no logits to compare; temperature is given for scores, where nothing is divided by it.
        CheckpointError, DataError: as ModelFolder.load.
    """

    def __init__(self, config: FinetuneConfig, task: Task, architecture: AlbertConfig, packed: bool) -> None:
        folder = Path(config.teacher)
        model = ModelFolder.load(folder, compute_type=architecture.compute_type, backend=architecture.backend)
        check_teacher(model, task, folder)
        losses = task.spec.losses
        assert losses, "a task that is trained has losses"
        scores = task.spec.scores(model.architecture, model.task_info)
        network = losses(scores, packed=packed)
        if type(network).logits_of is TrainingNetwork.logits_of:
            raise config.error_of("teacher", f"{task.spec.name} has no logits to compare with a teacher's")
        self.network = _TeacherLogits(network)
        load_backbone(scores, model.loaded, task.spec.needed)

    def targets(self, columns: dict[str, Tensor]) -> Tensors:
        """Return the tensors of logits_of for a batch."""
        return self.network(*(columns[name] for name in self.network.network.input_columns))


def check_teacher(model: ModelFolder, task: Task, folder: Path) -> None:
    """Raise ConfigError if a model cannot teach this task."""
    if task.spec.losses and issubclass(task.spec.losses, AlbertForRegression):
        task.config.refuse(["temperature"], "scores are compared as they are")
    if model.tokenizer is None:
        raise task.config.error_of("teacher", "it has no vocabulary", hint="give the folder of a run or a conversion")
    if (model.tokenizer.sha256, model.tokenizer.do_lower_case) != (task.tokenizer.sha256, task.tokenizer.do_lower_case):
        raise task.config.error_of("teacher", "its vocabulary or do_lower_case is not the model's")
    length = task.config.max_seq_length
    positions = model.architecture.max_position_embeddings
    if length > positions and not model.architecture.use_relative_positions:
        raise task.config.error_of("max_seq_length", f"the teacher {folder} reads at most {positions} tokens")
    needed = task.task_info.explicit_values()
    settings = model.task_info.explicit_values() if model.task_info else {}
    for key in ("task", "labels", "crf", "mark_capitals", "mark_shared"):
        if settings.get(key) != needed.get(key):
            problem = f"its {key} is {settings.get(key, 'not set')} and here it is {needed.get(key, 'not set')}"
            raise task.config.error_of("teacher", problem)
    if (trained := settings.get("task_name")) != (name := needed.get("task_name")):
        logger.warning(f"the teacher {folder} was trained on {trained}, this is {name}")
