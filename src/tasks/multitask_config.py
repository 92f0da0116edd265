"""Configuration of a training on several tasks at once."""

import re
from typing import Any, Self

from model_utils.errors import ConfigError
from model_utils.option_values import Mappings, names_of
from model_utils.schema import option
from src.tasks import TASK_MAKERS
from src.tasks.classification_examples import ClassifierConfig
from src.tasks.finetune_config import READY_KEYS, FinetuneConfig
from src.tasks.spec import Task
from src.tasks.token_classification import NerConfig

COMMAND = "command"  # key of a task that names one of these
COMMANDS: dict[str, type[FinetuneConfig]] = {"classifier": ClassifierConfig, "ner": NerConfig}
OF_EACH_TASK = frozenset(
    {"max_seq_length", "max_train_samples", "max_eval_samples", "max_predict_samples", *READY_KEYS}
)
_NAME = re.compile("[A-Za-z0-9_-]{1,64}")
_FOLDERS_OF_RUN = ("tensorboard", "swanlog", "wandb")


class MultitaskConfig(FinetuneConfig):
    """Configuration of python run_multitask.py, which trains one backbone on several tasks."""

    config_file = "task_multitask_config.yaml"

    tasks: Mappings = option(
        {},
        "keys of each task by its name; those of run_classifier.py or, with command: ner, of run_ner.py; as "
        "{mrpc: {task_name: mrpc, data_dir: glue/MRPC}, own: {data_dir: my_texts}}",
    )
    # 0.5 is the square-root sampling of Stickland and Murray 2019: small tasks get their turn, large ones still more.
    alpha: float = option(
        0.5,
        "a task's share of the updates is proportional to its training rows to this power; 0: all alike; 1: by rows",
        minimum=0,
        maximum=1,
    )

    def check_together(self) -> None:
        super().check_together()
        if not self.do_train:
            hint = "evaluate a task's folder with the command of the task"
            raise self.error_of("do_train", "run_multitask.py only trains", hint=hint)
        self.refuse(["search", "teacher"], "several tasks are trained together")
        self.refuse(READY_KEYS, "each task has its own")
        for name in self.tasks:
            self.config_of(name)
            if not _NAME.fullmatch(name) or name in _FOLDERS_OF_RUN or name.startswith("seed-"):
                folders = ", ".join((*_FOLDERS_OF_RUN, "seed-..."))
                expected = f"up to 64 letters, digits, - and _, but none of {folders}, which are other folders of a run"
                raise ConfigError(key="the name of a task in tasks", value=name, expected=expected)
            for word in self.optimizer_settings()["decay_filter"]:
                if word in name:  # weights are called after their task
                    found = f"tasks.{name} holds {word!r} of decay_filter, so that no weight of its head would decay"
                    raise ConfigError(f"{found}: give the task another name", key=f"tasks.{name}")

    def check_required(self) -> None:
        super().check_required()
        if not self.tasks:
            raise self.error_of("tasks", hint="name the tasks, as {mrpc: {task_name: mrpc, data_dir: glue/MRPC}, ...}")
        for name in self.tasks:
            try:
                self.config_of(name).check_required()
            except ConfigError as error:
                raise error.within(f"tasks.{name}") from None

    def config_of(self, name: str) -> FinetuneConfig:
        """Return the configuration of a task: its keys, and the keys that all tasks share.

        Raises:
            ConfigError: a key does not exist, belongs to all tasks, or has a wrong value.
        """
        keys = dict(self.tasks[name])
        command = keys.pop(COMMAND, "classifier")
        if not isinstance(command, str) or command not in COMMANDS:
            raise ConfigError(key=f"tasks.{name}.{COMMAND}", value=command, expected=f"one of {', '.join(COMMANDS)}")
        for key in keys:
            if key in names_of(FinetuneConfig) and key not in OF_EACH_TASK:
                path = f"tasks.{name}.{key}"
                problem = "all tasks share this key, as they share the backbone and its vocabulary"
                raise ConfigError(key=path, value=keys[key], problem=problem, hint="set it outside of tasks")
        shared = {key: value for key, value in self if key in FinetuneConfig.model_fields}
        try:
            return COMMANDS[command](**shared | keys)
        except ConfigError as error:
            raise error.at(f"tasks.{name}") from None

    def make_task(self, name: str, *arguments: Any) -> Task:
        """Return a task; arguments: those of Task after the configuration."""
        config = self.config_of(name)
        return TASK_MAKERS[type(config)](config, *arguments)

    def from_anywhere(self) -> Self:
        tasks = {}
        for name, keys in self.tasks.items():
            absolute = dict(self.config_of(name).from_anywhere())
            tasks[name] = {key: absolute.get(key, value) for key, value in keys.items()}
        return super().from_anywhere().replace(tasks=tasks)

    def resume_fingerprint(self, prefix: str = "") -> dict[str, Any]:
        fingerprint = super().resume_fingerprint(prefix)
        fingerprint[f"{prefix}tasks"] = list(self.tasks)
        for name in self.tasks:
            fingerprint |= self.config_of(name).resume_fingerprint(f"{prefix}tasks.{name}.")
        return fingerprint
