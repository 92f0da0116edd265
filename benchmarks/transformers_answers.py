"""Answer a file of records with transformers, as its users do: python -m benchmarks.transformers_answers.

Classification by its pipeline. transformers 5 has no pipeline for questions on contexts: they are answered as its
example run_qa.py does it, in windows with a stride, the best span by the sum of both scores.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.torch_device import load_torch
from model_utils.config import run_main
from model_utils.schema import Config, option

TASKS = ("classification", "squad_v1")


class AnswersConfig(Config):
    """Answer a file of records with transformers: python -m benchmarks.transformers_answers."""

    model: str = option("", "folder that from_pretrained reads", required=True)
    task: str = option("classification", "of the model", choices=TASKS)
    input: str = option("", "JSON lines", required=True)
    output: str = option("", "JSON lines", required=True)
    batch_size: int = option(8, "texts or windows of a batch", minimum=1)
    max_seq_length: int = option(128, "tokens of a row", minimum=8)
    doc_stride: int = option(128, "tokens between windows", minimum=1)


def classify(config: AnswersConfig, records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return label and probability of each text."""
    from transformers import pipeline

    model = pipeline("text-classification", model=config.model, batch_size=config.batch_size, device="cpu")
    texts = [record["text_a"] for record in records]
    answers = model(texts, truncation=True, max_length=config.max_seq_length)
    return [{"label": answer["label"], "score": answer["score"]} for answer in answers]


def answer_questions(config: AnswersConfig, records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the likeliest span of each context."""
    from transformers import AutoModelForQuestionAnswering, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(config.model)
    model = AutoModelForQuestionAnswering.from_pretrained(config.model)
    questions = [record["question"] for record in records]
    contexts = [record["context"] for record in records]
    windows = encode_windows(tokenizer, questions, contexts, config.max_seq_length, config.doc_stride)
    answers = best_answers(model, tokenizer, windows, contexts, config.batch_size)
    return [{"answer": answer} for answer in answers]


def encode_windows(
    tokenizer: Any, questions: list[str], contexts: list[str], length: int, stride: int, padding: bool | str = False
) -> Any:
    """Return windows of the contexts, `stride` tokens apart, up to 64 more for shorter questions.

    transformers takes the number of tokens that two windows share, one for all questions, instead of their distance.
    """
    return tokenizer(
        questions,
        contexts,
        truncation="only_second",
        max_length=length,
        stride=max(0, length - stride - 64),
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
        padding=padding,
    )


def best_answers(model: Any, tokenizer: Any, windows: Any, contexts: list[str], batch_size: int) -> list[str]:
    """Return the text with the best score of each context, over its windows."""
    import torch

    owners = windows["overflow_to_sample_mapping"]
    best: list[tuple[float, int, int]] = [(-float("inf"), 0, 0)] * len(contexts)
    order = sorted(range(len(owners)), key=lambda window: len(windows["input_ids"][window]))
    model.eval()
    for first in range(0, len(order), batch_size):
        chosen = order[first : first + batch_size]
        columns = {name: [windows[name][window] for window in chosen] for name in tokenizer.model_input_names}
        with torch.inference_mode():
            outputs = model(**tokenizer.pad(columns, return_tensors="pt"))
        for row, window in enumerate(chosen):
            offsets = windows["offset_mapping"][window]
            parts = windows.sequence_ids(window)
            owner = owners[window]
            for start, end, score in spans(outputs.start_logits[row], outputs.end_logits[row], parts):
                if score > best[owner][0]:
                    best[owner] = score, offsets[start][0], offsets[end][1]
    # Offsets of a word's first piece have the space before it.
    return [context[start:end].strip() for context, (_, start, end) in zip(contexts, best, strict=True)]


def spans(starts: Any, ends: Any, parts: list[int | None], number: int = 20, longest: int = 30) -> Iterator[tuple]:
    """Yield spans (first token, last token, score) in the context among the likeliest starts and ends."""
    starts = starts[: len(parts)]  # without padding
    ends = ends[: len(parts)]
    number = min(number, len(parts))
    top_starts = starts.topk(number).indices.tolist()
    top_ends = ends.topk(number).indices.tolist()
    for start in top_starts:
        for end in top_ends:
            if parts[start] == parts[end] == 1 and start <= end < start + longest:
                yield start, end, float(starts[start] + ends[end])


def main(config: AnswersConfig) -> None:
    """Read, answer, write."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    load_torch()
    records = [json.loads(line) for line in Path(config.input).read_text(encoding="utf-8").splitlines()]
    answers = {"classification": classify, "squad_v1": answer_questions}[config.task](config, records)
    lines = [json.dumps(record | answer) + "\n" for record, answer in zip(records, answers, strict=True)]
    Path(config.output).write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    run_main(main, AnswersConfig)
