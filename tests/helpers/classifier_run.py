"""A small classifier of synthetic texts: its tables, its command line, its run, its predictions."""

import json
from pathlib import Path
from random import Random
from typing import Any

import run_classifier
from model_utils.schema import load_config
from src.tasks.classification_examples import ClassifierConfig
from src.text.text_tables import read_table
from tests.helpers.finetune_arguments import arguments

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
GOOD, BAD, OTHER = "fine lovely great".split(), "dull awful poor".split(), "the film plot is was a very and".split()
MODEL = {
    "embedding_size": 16,
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 40,
    "initializer_range": 0.2,
    "classifier_dropout_prob": 0.0,
}


def write_table(path: Path, rows: int, seed: int, labelled: bool = True) -> list[str]:
    """Texts with one telling word each; their labels."""
    random = Random(seed)
    lines, labels = ["text_a\tlabel" if labelled else "text_a"], []
    for _ in range(rows):
        labels.append(random.choice(["bad", "good"]))
        words = random.choices(OTHER, k=random.randint(2, 20))
        words.insert(random.randint(0, len(words)), random.choice(GOOD if labels[-1] == "good" else BAD))
        lines.append("\t".join([" ".join(words), *([labels[-1]] * labelled)]))
    path.write_text("\n".join(lines) + "\n")
    return labels


def write_classifier_data(folder: Path) -> Path:
    """The folder itself, with vocab.txt, train.tsv, dev.tsv and test.tsv."""
    (folder / "vocab.txt").write_text("\n".join(SPECIALS + GOOD + BAD + OTHER) + "\n")
    write_table(folder / "train.tsv", 203, 1)
    write_table(folder / "dev.tsv", 45, 2)
    write_table(folder / "test.tsv", 21, 3, labelled=False)
    return folder


def classifier_arguments(data: Path, run: Path | None, **changes: Any) -> list[str]:
    settings = {
        "data_dir": data,
        "vocab_file_path": data / "vocab.txt",
        "feature_dir": data / "features",
        "train_batch_size": 16,
        "max_seq_length": 32,
        "optimizer_cfg.AdamWeightDecay.learning_rate": 0.005,
        **({} if "train_steps" in changes else {"epoch_num": 10}),
        **({"save_finetune_checkpoint_path": run} if run else {}),
    }
    return arguments(MODEL, settings | changes)


def config_of(data: Path, run: Path | None, **changes: Any) -> ClassifierConfig:
    return load_config(ClassifierConfig, classifier_arguments(data, run, **changes))


def evaluating(data: Path, weights: Path, **changes: Any) -> ClassifierConfig:
    """The configuration that evaluates weights and trains nothing."""
    return config_of(data, None, do_train=False, load_finetune_checkpoint_path=weights, **changes)


def train_classifier(data: Path, run: Path) -> Path:
    """The folder of the run itself, finished, with evaluation and prediction."""
    run_classifier.main(config_of(data, run, do_predict=True))
    return run


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def read_rows(path: Path) -> list[dict[str, str]]:
    """The rows of a table by the names of its columns."""
    table = read_table(path)
    return [dict(zip(table.names, row, strict=True)) for _, row in table.rows]


def read_columns(path: Path) -> dict[str, list[str]]:
    """The columns of a table by name."""
    table = read_table(path)
    return dict(zip(table.names, map(list, zip(*(row for _, row in table.rows), strict=True)), strict=True))


def predicted_labels(path: Path) -> list[str]:
    return read_columns(path)["prediction"]
