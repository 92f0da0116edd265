"""Small models of random weights in each format, and what of them must be the same after a conversion."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from model_utils import convert_ckpt
from model_utils.convert_ckpt import ConvertConfig
from src.albert_config import AlbertConfig
from src.checkpoints.checkpoint_files import Checkpoint, find_checkpoint
from src.conversion.checks import weight_shapes
from src.conversion.own_folder import write_own
from src.conversion.weight_names import google_names, hugging_face_names
from src.model_folder import ModelFolder
from src.tasks.task_info import TaskInfo

SMALL = AlbertConfig(
    vocab_size=900,
    embedding_size=8,
    hidden_size=24,
    num_hidden_layers=4,
    num_attention_heads=3,
    intermediate_size=40,
    max_position_embeddings=20,
    classifier_dropout_prob=0.2,
    hidden_dropout_prob=0.1,
    layer_norm_eps=1e-6,
)
GROUPED = SMALL.replace(num_hidden_groups=2, inner_group_num=2)
PRE_TRAINING = ("albert.", "mlm.", "sop.")
LABELS = {"0": "negativ", "1": "猫, with a comma", "2": "neutral"}


def random_values(config: AlbertConfig, parts: tuple[str, ...], outputs: int = 0) -> dict[str, np.ndarray]:
    """Random weights under this project's names, those that begin with one of `parts`."""
    generator = np.random.default_rng(3)
    shapes = weight_shapes(config, outputs)
    return {
        name: generator.standard_normal(shape, np.float32)
        for name, shape in shapes.items()
        if name.startswith(parts) and not name.startswith("classifier_hidden")
    }


def sizes(config: AlbertConfig) -> dict[str, Any]:
    """The keys that google's and Hugging Face's files have."""
    own = {"share_parameters", "use_relative_positions", "max_relative_position", "compute_type", "recompute"}
    return {key: value for key, value in config.to_dict().items() if key not in own}


def as_google(values: dict[str, np.ndarray], config: AlbertConfig) -> dict[str, np.ndarray]:
    """Weights under google's names in google's orientation."""
    names = google_names(config.num_hidden_groups, config.inner_group_num)
    return {names[name]: value.T if names[name].endswith("kernel") else value for name, value in values.items()}


def write_hugging_face(
    folder: Path, config: AlbertConfig, values: dict[str, np.ndarray], bare: bool = False, **described: Any
) -> Path:
    """A folder as transformers writes it, made without this project's writer."""
    folder.mkdir(parents=True)
    names = hugging_face_names(config.num_hidden_groups, config.inner_group_num)
    tensors = {names.get(name, name).removeprefix("albert." if bare else ""): value for name, value in values.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps({"model_type": "albert", **sizes(config), **described}))
    return folder


def convert(source: str, target: str, given: Path, output: Path, **settings: Any) -> Path:
    """The command's own main."""
    convert_ckpt.main(ConvertConfig(source=source, target=target, input=str(given), output=str(output), **settings))
    return output


def read_json_file(file: Path) -> Any:
    return json.loads(file.read_text())


def assert_same_bits(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name].dtype == value.dtype and found[name].shape == value.shape, name
        assert found[name].tobytes() == value.tobytes(), name


def own_weights(folder: Path) -> dict[str, np.ndarray]:
    return find_checkpoint(folder).values


def write_ours(folder: Path, config: AlbertConfig, values: dict[str, np.ndarray], task: TaskInfo | None = None) -> Path:
    folder = folder / "ours"
    write_own(ModelFolder(config, task_info=task, checkpoint=Checkpoint(folder, values, {})), folder)
    return folder
