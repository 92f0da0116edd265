"""Checks of every conversion: all weights accounted for, all shapes right, and what the head is for."""

import logging
import textwrap
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np

from model_utils.backend import Backend
from model_utils.errors import CheckpointError, ConfigError, shorten
from src.albert_config import AlbertConfig
from src.albert_model import AlbertModel
from src.tasks import FINE_TUNED, TASKS, parse_task_info, tasks_of_head
from src.tasks.spec import dense_shapes
from src.tasks.task_info import TaskInfo

logger = logging.getLogger(__name__)

# Weights that come together or not at all, by the beginnings of their names; a model has the first and any others.
PARTS = (
    ("albert.embeddings.", "albert.encoder."),
    ("albert.pooler.",),
    ("mlm.",),
    ("sop.",),
    *dict.fromkeys(part for name in FINE_TUNED for part in TASKS[name].head.parts),
)


def account(names: Mapping[str, str], found: Collection[str], skipped: int, origin: object) -> dict[str, str]:
    """Return the present ones of `names` (this project's -> the source's); log matched, missing and unexpected ones.

    Args:
        names: of every weight that may be there. found: the source's names, without what is skipped.
        skipped: how many were passed over by name: optimizer, counters, copies.

    Raises:
        CheckpointError: a weight of a part is missing, or one is left over.
    """
    matched = {name: theirs for name, theirs in names.items() if theirs in found}
    missing = [
        names[name]
        for part in PARTS
        if part is PARTS[0] or any(name.startswith(part) for name in matched)
        for name in names
        if name.startswith(part) and name not in matched
    ]
    unexpected = sorted(set(found) - set(matched.values()))
    modules = ", ".join(sorted({name.partition(".")[0] for name in matched}))
    logger.info(
        f"{origin}: {len(matched)} weights matched ({modules}); {len(missing)} missing: {listed(missing)}; "
        f"{len(unexpected)} unexpected: {listed(unexpected)}; {skipped} skipped: optimizer, counters, copies"
    )
    if missing or unexpected:
        wrapped = next((name for name in unexpected for lost in missing if name.endswith(f".{lost}")), "")
        hint = f"; {shorten(wrapped)} is inside another module, save the model's own state_dict" if wrapped else ""
        raise CheckpointError(
            f"{origin} is not the ALBERT that the file with its architecture describes: missing {listed(missing)}; "
            f"unexpected {listed(unexpected)}{hint}"
        )
    return matched


def check_weights(values: Mapping[str, np.ndarray], config: AlbertConfig, origin: object) -> None:
    """Raise CheckpointError if a weight has another size than the architecture gives it, or is not finite."""
    modules = [TASKS[name].head.module for name in FINE_TUNED]
    outputs = next((values[bias].size for module in modules if (bias := f"{module}.bias") in values), 0)
    expected = weight_shapes(config, outputs, np.size(values.get("classifier_hidden.bias", ())))
    wrong = [
        f"{name} is {value.shape}, by the architecture {expected[name]}"
        for name, value in values.items()
        if value.shape != expected[name]
    ]
    if wrong:
        raise CheckpointError(f"{origin} contradicts the file with its architecture: {listed(wrong)}")
    if broken := [name for name, value in values.items() if not np.isfinite(value).all()]:
        raise CheckpointError(f"{origin} holds weights that are not finite: {listed(broken)}")


def weight_shapes(config: AlbertConfig, outputs: int = 0, between: int = 0) -> dict[str, tuple[int, ...]]:
    """Name and shape of every weight that a model of this architecture may have, with any head.

    outputs: of the fine-tuned head. between: size of the hidden layer before it, 0 for none.
    """
    hidden, embedding = config.hidden_size, config.embedding_size
    backbone = AlbertModel(config.replace(backend=Backend.COMPOSED))  # nothing computes with it
    shapes = {f"albert.{weight.name}": tuple(weight.shape) for weight in backbone.trainable_params()}
    shapes |= dense_shapes("mlm.dense", hidden, embedding) | dense_shapes("sop", hidden, 2)
    shapes |= {"mlm.layer_norm.gamma": (embedding,), "mlm.layer_norm.beta": (embedding,)}
    shapes["mlm.bias"] = (config.vocab_size,)
    for name in FINE_TUNED:  # a layer that several tasks have is that of the first one
        shapes = TASKS[name].head.shapes(hidden, outputs, between) | shapes
    return shapes


def settle_task(
    values: Mapping[str, np.ndarray],
    stated: Mapping[str, Any],
    asked: str,
    labels: tuple[str, ...],
    origin: object,
    stated_in: object,
) -> TaskInfo | None:
    """Return what the weights' head is for; None if they have no fine-tuned head or nothing says its task.

    Args:
        stated: what the source says, by the keys of task.json; any may be missing. stated_in: its file, for errors.
        asked, labels: what the command line says; "" and () for nothing.

    Raises:
        ConfigError: the command line contradicts the source.
        CheckpointError: the source contradicts its own weights. DataError: it says what task.json cannot say.
    """
    modules = dict.fromkeys(TASKS[name].head.module for name in FINE_TUNED)
    heads = [bias for module in modules if (bias := f"{module}.bias") in values]
    if not heads:
        if asked or labels:
            raise ConfigError(f"--task and --labels mean nothing for {origin}: it has no fine-tuned head")
        return None
    if len(heads) > 1:
        raise CheckpointError(f"{origin} has several fine-tuned heads, allowed is one: {', '.join(heads)}")
    outputs = len(values[heads[0]])
    allowed = tasks_of_head(heads[0].removesuffix(".bias"), outputs)
    task = stated.get("task") or asked or (allowed[0] if len(allowed) == 1 else "")
    if not task:
        logger.info(f"{origin} does not say whether its head is for {' or '.join(allowed)}; --task would")
        return None
    if asked not in ("", task):
        raise ConfigError(f"--task is {asked}, but {origin} is for {task}")
    if task not in allowed:
        raise CheckpointError(
            f"{origin}: a head of {outputs} outputs is not for {task}, possible is {' or '.join(allowed)}"
        )
    names: list[str] = []
    if not TASKS[task].head.outputs:
        unnamed = [f"LABEL_{i}" for i in range(outputs)]  # as transformers names them
        given = list(stated.get("labels") or unnamed)
        if labels and given not in (unnamed, list(labels)):
            raise ConfigError(f"--labels is {listed(labels)}, but {origin} names them {listed(given)}")
        names = list(labels or given)
        if len(names) != outputs:
            source = "--labels has" if labels else f"{origin} names"
            raise ConfigError(f"{source} {len(names)} labels, the head has {outputs} outputs: {listed(names)}")
    elif labels:
        raise ConfigError(f"--labels means nothing for {task}")
    return parse_task_info({**stated, "task": task, "labels": names}, str(stated_in))


def listed(names: Iterable[str]) -> str:
    """Return names with commas between them, cut off where they would fill a page."""
    return textwrap.shorten(", ".join(names) or "none", 500, placeholder=" ...")
