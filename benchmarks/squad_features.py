"""How many questions a second become features: python -m benchmarks.squad_features."""

import time
from pathlib import Path

from model_utils.config import run_main
from model_utils.schema import Config, option
from src.create_squad_data import SquadSplit, read_squad
from src.tokenization import build_tokenizer


class SquadFeaturesConfig(Config):
    """Time features of SQuAD's questions, in one process: python -m benchmarks.squad_features."""

    questions: str = option("", "file in SQuAD's format, v1.1 or v2.0", required=True)
    vocab_file_path: str = option("", "WordPiece vocabulary")
    spm_model_file: str = option("", "SentencePiece model")
    max_seq_length: int = option(384, "tokens of a row", minimum=68)
    doc_stride: int = option(128, "tokens between the beginnings of two windows of a long text", minimum=1)
    training: bool = option(False, "find the answers as well")


def main(config: SquadFeaturesConfig) -> None:
    """Measure once and print."""
    questions = read_squad(Path(config.questions), version_2=True)
    tokenizer = build_tokenizer(config.vocab_file_path, config.spm_model_file, True)
    tokenizer.encode("its tables are made at the first text")
    start = time.perf_counter()
    name = "train" if config.training else "dev"
    features = SquadSplit(name, questions, tokenizer, config.max_seq_length, config.doc_stride, 64).features()
    seconds = time.perf_counter() - start
    windows = len(features.values["input_ids"].counts)
    rate = len(questions) / seconds
    print(f"{len(questions):,} questions, {windows:,} windows, {seconds:.2f} s: {rate:,.0f} questions/s")


if __name__ == "__main__":
    run_main(main, SquadFeaturesConfig)
