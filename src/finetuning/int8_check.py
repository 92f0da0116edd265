"""Comparison of an INT8 export with its checkpoint on the development split."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mindspore import Tensor

from model_utils.errors import CheckpointError, ConfigError, DataError
from model_utils.schema import load_config
from src.finetuning.finetune import head_mismatch
from src.finetuning.task_data import TaskData
from src.inference.predictor import Predictor
from src.tasks import TASK_MAKERS, TASKS
from src.training.network_outputs import predict_rows
from src.training.ranks import ALONE
from src.training.run_folder import CONFIG_FILE

logger = logging.getLogger(__name__)


class Int8Check:
    """Check that an exported network keeps the checkpoint's metric on the development split.

    Args:
        model: the checkpoint, with a portable network.
        config_path: yaml of the task's command with the development data; "": the one that the run has recorded.
        max_loss: largest share of the metric that may be lost.

    Raises:
        CheckpointError, ConfigError, DataError: the task has no development split, or its data are missing or wrong.
    """

    def __init__(self, model: Predictor, config_path: str, max_loss: float) -> None:
        assert model.file
        self.model = model
        self.max_loss = max_loss
        task_name = model.task_info.task
        config_class = TASKS[task_name].config
        if config_class not in TASK_MAKERS:
            needed = "INT8 is checked on a task's development split"
            raise ConfigError(f"{needed}, which {task_name} does not offer: use int8=none")
        file = Path(config_path) if config_path else model.file.with_name(CONFIG_FILE)
        if not file.is_file():
            raise ConfigError(f"int8 needs the development data, but {file} is missing: give --eval_config_path")
        changes = {"do_train": False, "do_eval": True, "do_predict": False}
        length = {"max_seq_length": model.task_info.max_seq_length}
        # model_copy leaves out the checks of keys that only a training has.
        config = load_config(config_class, ["--config_path", str(file)]).model_copy(update=changes | length)
        self.task = TASK_MAKERS[config_class](config, model.tokenizer, model.task_info)
        trained = model.task_info.labels
        if trained != self.task.task_info.labels:
            raise head_mismatch(model.file, "labels", trained, self.task.task_info.labels)
        self.data = TaskData(config, self.task, model.network.scores, ALONE)
        self.data.prepared(self.task.dev_splits[0])

    def __call__(self, graph: Callable[..., Any]) -> None:
        """Raise CheckpointError if the metric of an exported network is too low."""
        name = f"{self.task.selection} of the {self.task.dev_splits[0]} split"
        reference = self._metric(self.model.network)
        metric = self._metric(graph)
        logger.info(f"{name}: {metric:.4f} in INT8, {reference:.4f} before")
        lowest = reference - self.max_loss * abs(reference)
        if not metric >= lowest:  # NaN is too low
            raise CheckpointError(
                f"INT8 lowers {name} from {reference:.4f} to {metric:.4f}, allowed by max_loss={self.max_loss:g} is "
                f"{lowest:.4f}; nothing was written. Use int8=none or a larger max_loss"
            )

    def _metric(self, graph: Callable[..., Any]) -> float:
        """Return the selection metric of the outputs that a network computes for the development split."""
        split = self.task.dev_splits[0]
        network: Any = _RowNetwork(graph, self.model.network, self.task.spec.texts_per_row)
        outputs = predict_rows(network, self.data.dataset(split))
        metrics = self.task.evaluate(self.data.prepared(split), outputs, self.model.task_info).metrics
        if self.task.selection not in metrics:
            raise DataError(f"the {split} split has no labels, which int8 needs: use int8=none")
        return metrics[self.task.selection]


class _RowNetwork:
    """Network for rows of several interleaved texts, which computes each text as a row of an exported network."""

    def __init__(self, graph: Callable[..., Any], original: Any, texts: int) -> None:
        self.graph = graph
        self.texts = texts
        self.input_columns = original.input_columns
        self.output_names = original.output_names
        self.per_token_outputs = original.per_token_outputs

    def __call__(self, *columns: Tensor) -> Any:
        if self.texts == 1:
            return self.graph(*columns)
        rows = len(columns[0])
        apart = [column.asnumpy().reshape(rows, -1, self.texts).transpose(0, 2, 1) for column in columns]
        outputs = self.graph(*(Tensor(column.reshape(rows * self.texts, -1)) for column in apart))
        logits = outputs[0] if isinstance(outputs, tuple) else outputs
        return logits.reshape(rows, self.texts)
