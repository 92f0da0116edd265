"""A small pre-training run on synthetic text: its data, its command line, its log."""

import json
import os
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any

import pytest

from model_utils.schema import load_config
from src import create_pretraining_data
from src.create_pretraining_data import CreateDataConfig
from src.training.pretrain_config import PretrainConfig
from tests.conftest import ROOT

WORDS = "the a cat dog house tree river sees likes finds hides big small red green old new walks runs to from".split()
SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", ","]
STEPS = 200
MODEL = {
    "embedding_size": 16,
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 40,
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
}
# Of runs that are compared number by number.
SHORT_RUN = {
    "train_steps": 8,
    "eval_steps": 4,
    "eval_batches": 5,
    "log_steps": 1,
    "save_checkpoint_steps": 0,
    "optimizer_cfg.AdamWeightDecay.warmup_steps": 2,
    "albert_cfg.hidden_dropout_prob": 0,
    "albert_cfg.attention_probs_dropout_prob": 0,
}
SPEEDS = ("examples_per_s", "tokens_per_s", "mfu", "eta_s")


def write_pretraining_data(folder: Path) -> Path:
    """The folder itself, with vocab.txt, train/ and held_out/."""
    random = Random(5)
    words = WORDS + [f"word{i}" for i in range(180)]
    (folder / "vocab.txt").write_text("\n".join(SPECIALS + words) + "\n")
    for name, documents in (("train", 80), ("held_out", 12)):
        texts = []
        for _ in range(documents):
            sentences = [random.choices(words, [30] * 21 + [1] * 180, k=random.randint(4, 12)) for _ in range(12)]
            texts.append("\n".join(" ".join(sentence) + " ." for sentence in sentences))
        (folder / f"{name}.txt").write_text("\n\n".join(texts))
        write_examples(folder, name, name)
    return folder


def write_examples(folder: Path, text: str, name: str, **changes: Any) -> Path:
    """Examples of TEXT.txt in the folder NAME beside it, which is returned."""
    flags = {
        "config_path": os.devnull,
        "input_file": folder / f"{text}.txt",
        "output_file": folder / name / f"{name}.mindrecord",
        "vocab_file": folder / "vocab.txt",
        "max_seq_length": 32,
        "max_predictions_per_seq": 5,
        "dupe_factor": 1,
        "num_workers": 1,
        **changes,
    }
    create_pretraining_data.main(load_config(CreateDataConfig, words_of(flags)))
    return folder / name


def words_of(flags: dict[str, Any]) -> list[str]:
    return [word for key, value in flags.items() for word in (f"--{key}", str(value))]


def flags_of(data: Path, run: Path, **changes: Any) -> list[str]:
    return words_of(
        {
            "config_path": os.devnull,
            "data_dir": data / "train",
            "save_checkpoint_path": run,
            "device_target": "CPU",
            "albert_network": "albert_base",  # whose sizes MODEL changes
            "vocab_file": data / "vocab.txt",
            "batch_size": 8,
            "train_steps": STEPS,
            "optimizer_cfg.AdamWeightDecay.learning_rate": 0.001,
            "optimizer_cfg.AdamWeightDecay.warmup_steps": 20,
            "optimizer_cfg.AdamWeightDecay.beta2": 0.999,
            "log_steps": 10,
            "save_checkpoint_steps": 50,
            "save_checkpoint_num": 2,
            "eval_steps": 100,
            "eval_data_dir": data / "held_out",
            **{f"albert_cfg.{key}": value for key, value in MODEL.items()},
            **changes,
        }
    )


def config_of(data: Path, run: Path, **changes: Any) -> PretrainConfig:
    return load_config(PretrainConfig, flags_of(data, run, **changes))


def log(run: Path) -> list[dict[str, Any]]:
    records = [json.loads(line) for line in (run / "train_log.jsonl").read_text().splitlines()]
    return [{key: value for key, value in record.items() if key not in SPEEDS} for record in records]


def start(data: Path, run: Path, send: int = 0, after_step: int = 0, **changes: Any) -> tuple[int, str]:
    """Run the command as a user would; send a signal when a step's line appears: exit code and what was printed."""
    command = [sys.executable, ROOT / "run_pretrain.py", *flags_of(data, run, **changes)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=data)
    lines = []
    for line in process.stdout:
        lines.append(line)
        if send and line.startswith((f"step {after_step}/", f"step {after_step} ")):
            process.send_signal(send)
    return process.wait(), "".join(lines)


def assert_logs_of_ranks_and_one_agree(run: Path, alone: Path, steps: int) -> None:
    """Compare the logs of several ranks and of one process with as many micro-batches as all of them."""
    ours, theirs = log(run), log(alone)
    assert [record["step"] for record in ours] == list(range(1, steps + 1))
    for our, their in zip(ours, theirs, strict=True):
        assert our.keys() == their.keys()
        del their["epoch"]  # of which the rows that fill no batch of all ranks are no part
        for key, value in their.items():
            assert our[key] == pytest.approx(value, rel=2e-5), (our["step"], key)
