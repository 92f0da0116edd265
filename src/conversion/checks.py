"""Checks of every conversion: names and shapes of all weights, and the task of the head."""

import logging
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from model_utils.backend import Backend
from model_utils.errors import CheckpointError, ConfigError, shorten
from src.albert_config import AlbertConfig
from src.albert_model import AlbertModel
from src.checkpoints.checkpoint_files import abbreviated
from src.nn import crf
from src.tasks import HEADS, parse_task_info, tasks_of_head
from src.tasks.spec import Shapes, dense_shapes
from src.tasks.task_info import TaskInfo

logger = logging.getLogger(__name__)

MODULES = tuple(dict.fromkeys(head.module for head in HEADS.values()))  # output layers of fine-tuned heads
# Groups of weights, by name prefixes, that are either all present or all absent; the first one is always present.
PARTS = (
    ("albert.embeddings.", "albert.encoder."),
    ("albert.pooler.",),
    ("mlm.",),
    ("sop.",),
    *dict.fromkeys(part for head in HEADS.values() for part in head.parts),
    (crf.PREFIX,),
)


def match_names(
    names: Mapping[str, str], source_names: Collection[str], skipped: int, origin: object
) -> dict[str, str]:
    """Return the entries of `names` that the source has; log matched, missing and unexpected weights.

    Args:
        names: source name of every weight that may be present, by this project's name.
        source_names: names in the source, without the skipped ones.
        skipped: number of weights skipped by name: optimizer, counters, copies.

    Raises:
        CheckpointError: a weight of a part is missing or unexpected.
    """
    matched = {name: source_name for name, source_name in names.items() if source_name in source_names}
    present = [part for part in PARTS if part is PARTS[0] or any(name.startswith(part) for name in matched)]
    missing = [
        source_name
        for part in present
        for name, source_name in names.items()
        if name.startswith(part) and name not in matched
    ]
    unexpected = sorted(set(source_names) - set(matched.values()))
    modules = ", ".join(sorted({name.partition(".")[0] for name in matched}))
    logger.info(
        f"{origin}: {len(matched)} weights matched ({modules}); {len(missing)} missing: {abbreviated(missing)}; "
        f"{len(unexpected)} unexpected: {abbreviated(unexpected)}; {skipped} skipped: optimizer, counters, copies"
    )
    if missing or unexpected:
        wrapped = next((name for name in unexpected for other in missing if name.endswith(f".{other}")), "")
        hint = f"; {shorten(wrapped)} is inside another module: save the model's own state_dict" if wrapped else ""
        raise CheckpointError(
            f"{origin} is not the ALBERT that the file with its architecture describes: missing "
            f"{abbreviated(missing)}; unexpected {abbreviated(unexpected)}{hint}"
        )
    return matched


def check_weights(values: Mapping[str, np.ndarray], config: AlbertConfig, origin: object) -> None:
    """Raise CheckpointError if a weight does not have the shape of the architecture."""
    biases = [values[f"{module}.bias"] for module in MODULES if f"{module}.bias" in values]
    outputs = biases[0].size if biases else 0
    expected = weight_shapes(config, outputs, np.size(values.get("classifier_hidden.bias", ()))) | crf_shapes(outputs)
    wrong = [
        f"{name} is {value.shape}, by the architecture {expected[name]}"
        for name, value in values.items()
        if value.shape != expected[name]
    ]
    if wrong:
        raise CheckpointError(f"{origin} contradicts the file with its architecture: {abbreviated(wrong)}")


def weight_shapes(config: AlbertConfig, outputs: int = 0, classifier_hidden_size: int = 0) -> Shapes:
    """Return the shape of every weight that a model of this architecture may have, by name, with any head.

    Args:
        outputs: number of outputs of the fine-tuned head.
        classifier_hidden_size: size of the layer before it, 0 for none.
    """
    hidden = config.hidden_size
    embedding = config.embedding_size
    backbone = AlbertModel(config.replace(backend=Backend.COMPOSED))  # nothing computes with it
    shapes = {f"albert.{weight.name}": tuple(weight.shape) for weight in backbone.trainable_params()}
    shapes |= dense_shapes("mlm.dense", hidden, embedding) | dense_shapes("sop", hidden, 2)
    shapes |= {"mlm.layer_norm.gamma": (embedding,), "mlm.layer_norm.beta": (embedding,)}
    shapes["mlm.bias"] = (config.vocab_size,)
    for head in HEADS.values():  # those that share a layer agree on its shape
        shapes = head.shapes(hidden, outputs, classifier_hidden_size) | shapes
    return shapes


def crf_shapes(outputs: int = 0) -> Shapes:
    """Return the shapes of the weights of a conditional random field over so many labels, by name."""
    shapes: Shapes = {f"{crf.PREFIX}{end}.bias": (outputs,) for end in ("first", "last")}
    return shapes | {f"{crf.PREFIX}transitions.bias": (outputs, outputs)}


def resolve_task(
    values: Mapping[str, np.ndarray],
    stated: Mapping[str, Any],
    task_option: str,
    labels: tuple[str, ...],
    origin: object,
    stated_in: object,
) -> TaskInfo | None:
    """Return the task of the weights' head; None if they have no fine-tuned head or its task is unknown.

    Args:
        stated: settings that the source names, by keys of task.json; any may be missing.
        task_option, labels: --task and --labels of the command line; "" and () for none.
        stated_in: file with these settings, for errors.

    Raises:
        ConfigError: the command line contradicts the source.
        CheckpointError: the source contradicts its own weights.
        DataError: a setting is not allowed in task.json.
    """
    modules = [module for module in MODULES if f"{module}.bias" in values]
    if not modules:
        if task_option or labels:
            raise ConfigError(f"--task and --labels have no effect: {origin} has no fine-tuned head")
        task = stated.get("task")
        has_vectors_alone = task in HEADS and not HEADS[task].module  # whose weights are all in the backbone
        return parse_task_info(stated, str(stated_in)) if has_vectors_alone else None
    if len(modules) > 1:
        raise CheckpointError(f"{origin} has several fine-tuned heads, allowed is one: {', '.join(modules)}")
    outputs = len(values[f"{modules[0]}.bias"])
    allowed = tasks_of_head(modules[0], outputs)
    task = stated.get("task") or task_option or (allowed[0] if len(allowed) == 1 else "")
    if not task:
        logger.info(f"{origin} does not say whether its head is for {' or '.join(allowed)}; --task would")
        return None
    if task_option not in ("", task):
        raise ConfigError(key="task", value=task_option, problem=f"{origin} is for {task}")
    if task not in allowed:
        raise CheckpointError(
            f"{origin}: a head of {outputs} outputs is not for {task}, possible is {' or '.join(allowed)}"
        )
    names: list[str] = []
    if not HEADS[task].outputs:
        default_names = [f"LABEL_{index}" for index in range(outputs)]  # those of transformers
        source_names = list(stated.get("labels") or default_names)
        if labels and source_names not in (default_names, list(labels)):
            raise ConfigError(key="labels", value=labels, problem=f"{origin} names them {abbreviated(source_names)}")
        names = list(labels or source_names)
        if len(names) != outputs:
            raise ConfigError(f"{origin}: the head has {outputs} outputs, the labels are {abbreviated(names)}")
    elif labels:
        raise ConfigError(key="labels", value=labels, problem=f"it has no effect: the task {task} has no labels")
    return parse_task_info({**stated, "task": task, "labels": names}, str(stated_in))
