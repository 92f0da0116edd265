"""A model with random weights, saved as training saves one, for benchmarks that need no trained weights."""

from pathlib import Path
from typing import Any

from benchmarks.commands import run_command
from benchmarks.turns import Contender
from model_utils.convert_ckpt import ConvertConfig
from model_utils.device import setup_device
from src.albert_config import AlbertConfig

LABELS: dict[str, list[str]] = {"classification": ["0", "1"], "squad_v1": [], "fill_mask": []}
SEED = 1
SPREAD = 0.05  # wide enough that answers differ


class RandomModel:
    """Writer of a model folder, for a process of its own; task fill_mask writes a pre-trained model."""

    def __init__(self, architecture: AlbertConfig, task: str, spm_model_file: str, length: int, folder: Path) -> None:
        setup_device("CPU")
        from src.albert_model import initialise_weights
        from src.checkpoints.checkpoint_files import ARCHITECTURE, save_checkpoint
        from src.model_folder import ModelFolder
        from src.tasks import TASKS, parse_task_info
        from src.tokenization import build_tokenizer

        settings: dict[str, Any] = {"task": task, "labels": LABELS[task], "max_seq_length": length}
        task_info = parse_task_info(settings, "task.json", TASKS)
        scores = TASKS[task].scores(architecture, task_info)
        initialise_weights(scores, SPREAD, SEED)
        folder.mkdir()
        save_checkpoint(scores, folder, 1, {ARCHITECTURE: architecture.saved_dict()})
        tokenizer = build_tokenizer("", spm_model_file, True)
        ModelFolder(architecture, tokenizer, None if task == "fill_mask" else task_info).save_artifacts(folder)


def write_random_models(
    architecture: AlbertConfig, task: str, spm_model_file: str, length: int, folder: Path
) -> tuple[Path, Path]:
    """Write a model folder for this project and one with the same weights for transformers; return both."""
    project_model = folder / "model"
    peer_model = folder / "peer_model"
    Contender(RandomModel, architecture, task, spm_model_file, length, project_model).close()
    convert = ConvertConfig(source="mindspore", target="hf", input=str(project_model), output=str(peer_model))
    run_command("model_utils.convert_ckpt", convert, folder / "convert.log")
    return project_model, peer_model
