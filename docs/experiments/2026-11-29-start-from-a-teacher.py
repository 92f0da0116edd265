"""Write a student that starts from its teacher: PYTHONPATH=. python docs/experiments/THIS TEACHER OUTPUT LAYER WIDTH.

Embeddings: the principal components of the teacher's embedding output, WIDTH of them, randomly rotated. Layers: all
share the teacher's layer LAYER (from 0). 2026-11-29-a-teacher-on-two-cores.md has the figures.
"""

import sys
from pathlib import Path

import numpy as np

from model_utils.device import ensure_device
from src.albert_config import PRESETS
from src.albert_for_pre_training import PreTrainingScores
from src.albert_model import initialise_weights
from src.checkpoints.checkpoint_files import Checkpoint
from src.model_folder import ModelFolder

SPREAD = 0.05  # of the new embeddings: larger ones make the masked tokens' logits too large
USUAL_POSITIONS = 64


def main(teacher_folder: str, output: str, layer: str, width: int) -> None:
    """Write the student's folder."""
    ensure_device()
    teacher = ModelFolder.load(teacher_folder)
    weights = teacher.weights
    config = PRESETS["albert_small"].replace(vocab_size=teacher.architecture.vocab_size, embedding_size=width)
    network = PreTrainingScores(config)
    initialise_weights(network, config.initializer_range, seed=1)
    values = {parameter.name: parameter.asnumpy().copy() for parameter in network.get_parameters()}

    prefix = "albert.embeddings."
    words, positions, types = (
        weights[f"{prefix}{name}_embeddings"].astype(np.float64) for name in ("word", "position", "token_type")
    )
    gamma, beta = weights[prefix + "layer_norm.gamma"], weights[prefix + "layer_norm.beta"]
    mean_position = positions[:USUAL_POSITIONS].mean(0)
    sums = words + mean_position + types[0]
    deviations = sums.std(1, keepdims=True)
    outputs = (sums - sums.mean(1, keepdims=True)) / deviations * gamma + beta
    mean = outputs.mean(0)
    _, _, components = np.linalg.svd(outputs - mean, full_matrices=False)
    rotation, _ = np.linalg.qr(np.random.default_rng(0).standard_normal((width, width)))
    basis = components[:width].T @ rotation
    coordinates = (outputs - mean) @ basis
    scale = SPREAD / np.sqrt((coordinates**2).mean())
    from_sum = gamma / deviations.mean()  # how a part of the sum reaches the output, about
    values[prefix + "word_embeddings"] = scale * coordinates
    values[prefix + "position_embeddings"] = scale * ((positions - mean_position) * from_sum) @ basis
    values[prefix + "token_type_embeddings"] = scale * ((types - types[0]) * from_sum) @ basis
    values[prefix + "layer_norm.gamma"] = np.full(width, SPREAD / scale)
    values["albert.encoder.embedding_hidden_mapping.weight"] = basis
    values["albert.encoder.embedding_hidden_mapping.bias"] = mean

    for name in values:
        for block in ("attentions", "feed_forwards"):
            if name.startswith(f"albert.encoder.{block}.0."):
                values[name] = weights[name.replace(f"{block}.0.", f"{block}.{layer}.")]
    values = {name: np.asarray(value, np.float32) for name, value in values.items()}
    ModelFolder(config, teacher.tokenizer, checkpoint=Checkpoint(Path(teacher_folder), values, {})).save(output)


if __name__ == "__main__":
    main(*sys.argv[1:4], int(sys.argv[4]))
