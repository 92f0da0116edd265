"""Folders of small models with random weights, one for each task, as training leaves them."""

from pathlib import Path
from typing import Any

import numpy as np
from mindspore import Tensor

from src.albert_config import AlbertConfig
from src.albert_model import initialise_weights
from src.checkpoints.checkpoint_files import ARCHITECTURE as TRAINED_AS
from src.checkpoints.checkpoint_files import save_checkpoint
from src.model_folder import ModelFolder
from src.tasks import HEADS, TASKS, parse_task_info
from src.tasks.task_info import TaskInfo
from src.tokenization import build_tokenizer

LETTERS = "abcdefghijklmnopqrstuvwxyz.,?"
SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LENGTHS = {"max_seq_length": 40, "max_qa_length": 16, "doc_stride": 12, "max_query_length": 12, "n_best_size": 4}
TAGS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
TASK_INFOS: dict[str, dict[str, Any]] = {
    "classification": {"labels": ["bad", "good", "so so"], "classifier_hidden_size": 12},
    "regression": {"labels": [], "window_stride": 16},
    "multi_label": {"labels": ["art", "news", "sport"], "thresholds": [0.3, 0.5, 0.6]},
    "multiple_choice": {"labels": []},
    "squad_v1": {"labels": []},
    "squad_v2": {"labels": [], "start_n_top": 3, "end_n_top": 4, "null_threshold": 0.5},
    "token_classification": {"labels": TAGS},
    "embedding_pairs": {"labels": [], "pooling": "mean"},
    "fill_mask": {"labels": []},
}
ARCHITECTURE = AlbertConfig(
    vocab_size=len(SPECIALS) + 2 * len(LETTERS),
    embedding_size=16,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=48,
    max_position_embeddings=40,
    initializer_range=0.3,
)
ONE_LAYER = ARCHITECTURE.replace(num_hidden_layers=1)  # for what heads alone decide


def write_vocabulary(folder: Path) -> Path:
    """A WordPiece vocabulary of letters, so that a word has as many tokens as letters."""
    tokens = [*SPECIALS, *LETTERS, *(f"##{letter}" for letter in LETTERS)]
    file = folder / "vocab.txt"
    file.write_text("\n".join(tokens) + "\n")
    return file


def make_task_info(task: str, **settings: Any) -> TaskInfo:
    """Return the content of task.json with these settings."""
    return parse_task_info({"task": task, **TASK_INFOS[task], **LENGTHS, **settings}, "task.json", TASKS)


def head_of(task: str, *labels: str) -> TaskInfo:
    """Return the content of task.json for a head of which nothing else is known."""
    return parse_task_info({"task": task, "labels": labels}, "task.json")


def make_folder(folder: Path, task: str, architecture: AlbertConfig = ARCHITECTURE, **settings: Any) -> Path:
    """The folder itself, with checkpoint, albert_config.json, vocabulary, and a task.json with these settings."""
    folder.mkdir(parents=True)
    task_info = make_task_info(task, **settings)
    scores = TASKS[task].scores(architecture, task_info.clipped_to(architecture))
    initialise_weights(scores, architecture.initializer_range, seed=0)
    random = np.random.default_rng(0)
    for weight in scores.trainable_params():
        if weight.name.startswith("crf."):  # 0 so far
            weight.set_data(Tensor(3 * random.standard_normal(weight.shape, np.float32)))
    save_checkpoint(scores, folder, 1, {TRAINED_AS: architecture.saved_dict()})
    tokenizer = build_tokenizer(str(write_vocabulary(folder)), "", True)
    ModelFolder(architecture, tokenizer, task_info if task in HEADS else None).save_artifacts(folder)
    return folder
