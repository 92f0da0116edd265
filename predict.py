"""Answer raw text with a trained model: python predict.py --help lists all keys; docs/export.md shows the formats."""

import sys
from collections.abc import Iterator
from typing import Any

from tqdm import tqdm

from model_utils.config import run_main
from model_utils.deploy_config import PredictConfig
from model_utils.device import setup_device
from model_utils.errors import ConfigError
from src.export import read_key
from src.predictor import Predictor
from src.record_files import NumberedRecord, batched, read_records, write_records

RECORDS_AT_ONCE = 1024
TEXT_KEYS = {"token_classification": "text", "fill_mask": "text"}  # of a plain line; text_a elsewhere


def note(sentence: str) -> None:
    """A line beside the answers."""
    print(sentence, file=sys.stderr, flush=True)


def answered(predictor: Predictor, batch: list[NumberedRecord]) -> Iterator[dict[str, Any]]:
    """Every record with its answer; one that could not be answered as its id, line and error."""
    answers = iter(predictor.predict([each.record for each in batch if not each.error]))
    for each in batch:
        answer = {"error": each.error} if each.error else next(answers)
        if "error" in answer:
            yield {"id": each.record.get("id"), "line": each.line, **answer}
        else:
            yield each.record | answer


def main(config: PredictConfig) -> None:
    """Load the model, then answer a file or serve."""
    setup_device(config.device_target, config.device_id)
    if config.serve:
        from src.server import parse_address, serve

        address = parse_address(config.serve)
    predictor = Predictor.load(
        config.model,
        key=read_key(config.encrypt_key_file),
        embeddings=config.embeddings,
        vocab_file=config.vocab_file_path,
        spm_model_file=config.spm_model_file,
        say=note,
        batch_size=config.batch_size,
        top_k=config.top_k,
    )
    if config.top_k != PredictConfig.top_k and predictor.card["task"] != "fill_mask":
        raise ConfigError(f"top_k is {config.top_k}, but the model's task is {predictor.card['task']}, not fill_mask")
    if config.serve:
        serve(predictor, *address, allowed_hosts=config.allowed_hosts)
        return
    failed = truncated = 0
    text_key = TEXT_KEYS.get(predictor.card["task"], "text_a")
    with write_records(config.output) as write, tqdm(unit=" records", disable=not sys.stderr.isatty()) as progress:
        for batch in batched(read_records(config.input, config.input_format, text_key), RECORDS_AT_ONCE):
            for answer in answered(predictor, batch):
                failed += "error" in answer
                truncated += answer.get("truncated", False)
                write(answer)
            progress.update(len(batch))
    if truncated:
        note(f"{truncated:,} texts have more than {predictor.card['max_seq_length']} tokens and were cut")
    if failed:
        note(f"{failed:,} records could not be answered: each has an error in its place")


if __name__ == "__main__":
    run_main(main, PredictConfig)
