"""A model with random weights, as training leaves one, for benchmarks of what does not depend on what was learnt."""

from pathlib import Path
from typing import Any

from benchmarks.commands import run_command
from benchmarks.turns import Contender
from model_utils.convert_ckpt import ConvertConfig
from model_utils.device import setup_device
from src.albert_config import AlbertConfig

LABELS: dict[str, list[str]] = {"classification": ["0", "1"], "squad_v1": [], "fill_mask": []}
SEED, SPREAD = 1, 0.05  # wide enough that answers differ


class RandomModel:
    """Writes the folder when it is made, in a process of its own; fill_mask: a pre-trained model."""

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
        save_checkpoint(scores, folder, 1, {ARCHITECTURE: architecture.facts()})
        tokenizer = build_tokenizer("", spm_model_file, True)
        ModelFolder(architecture, tokenizer, None if task == "fill_mask" else task_info).save_artifacts(folder)


def random_models(
    architecture: AlbertConfig, task: str, spm_model_file: str, length: int, folder: Path
) -> tuple[Path, Path]:
    """The folders of a RandomModel and of the same weights for transformers."""
    ours, theirs = folder / "model", folder / "theirs"
    Contender(RandomModel, architecture, task, spm_model_file, length, ours).close()
    convert = ConvertConfig(source="mindspore", target="hf", input=ours, output=theirs)
    run_command("model_utils.convert_ckpt", convert, folder / "convert.log")
    return ours, theirs
