"""Choice between the tasks of run_classifier.py."""

from src.tasks.classification import ClassifierTask
from src.tasks.classification_examples import ClassifierConfig
from src.tasks.multi_label import MULTI_LABEL, MultiLabelTask
from src.tasks.task_info import TaskInfo
from src.tokenization import FullTokenizer


def make_classifier(
    config: ClassifierConfig, tokenizer: FullTokenizer, trained_info: TaskInfo | None = None
) -> ClassifierTask:
    """Return the task of a configuration, or of the weights to evaluate."""
    is_multi_label = config.multi_label or (trained_info is not None and trained_info.task == MULTI_LABEL.name)
    if is_multi_label and not config.multi_label:
        config = config.replace(multi_label=True)
    return (MultiLabelTask if is_multi_label else ClassifierTask)(config, tokenizer, trained_info)
