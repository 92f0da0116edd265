"""Command lines of small fine-tuning runs, for the tests of the entry scripts."""

import os
from collections.abc import Mapping
from typing import Any

COMMON = {"config_path": os.devnull, "device_target": "CPU", "optimizer_cfg.AdamWeightDecay.beta2": 0.98}
LEARNER = {  # the smallest model that soon learns real sentences by heart
    "embedding_size": 32,
    "hidden_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 192,
    "max_position_embeddings": 224,
    "initializer_range": 0.1,
    "classifier_dropout_prob": 0.0,
}


def arguments(model: Mapping[str, Any], settings: Mapping[str, Any]) -> list[str]:
    """--KEY VALUE for every setting; those of the model are keys of albert_cfg."""
    keys = COMMON | {f"albert_cfg.{key}": value for key, value in model.items()} | dict(settings)
    return [word for key, value in keys.items() for word in (f"--{key}", str(value))]
