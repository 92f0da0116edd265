"""Small real text that every Python carries, with a vocabulary and feature files made from it."""

import pydoc_data.topics
from pathlib import Path

from src import create_pretraining_data, train_vocabulary
from src.create_pretraining_data import CreateDataConfig
from src.train_vocabulary import TrainVocabularyConfig


def write_text(folder: Path, topics: int | None = None) -> Path:
    """Reference texts of pydoc: one paragraph a line, a blank line between documents."""
    names = sorted(pydoc_data.topics.topics)[:topics]
    documents = [pydoc_data.topics.topics[name].split("\n\n") for name in names]
    path = folder / "text.txt"
    text = "\n\n".join("\n".join(" ".join(p.split()) for p in paragraphs) for paragraphs in documents)
    path.write_text(text, encoding="utf-8")
    return path


def train_model(folder: Path, text: Path) -> Path:
    """A SentencePiece vocabulary of 900 entries."""
    config = TrainVocabularyConfig(input_file=str(text), output_prefix=str(folder / "small"), vocab_size=900)
    train_vocabulary.main(config)
    return folder / "small.model"


def make_records(output: Path, text: Path, model: Path, **settings) -> Path:
    """Feature files made by the command's own main."""
    config = CreateDataConfig(
        input_file=str(text), output_file=str(output), **{"spm_model_file": str(model), "num_workers": 1, **settings}
    )
    create_pretraining_data.main(config)
    return output
