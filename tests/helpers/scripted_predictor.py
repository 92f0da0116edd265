"""A predictor whose answers are set down beforehand, for tests of the server and its page."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from src.tasks import TASKS

Record = dict[str, Any]


def classify(record: Record) -> Record:
    good = 0.9 if "good" in record["text_a"] else 0.2
    return {"label": "good" if good > 0.5 else "bad", "probabilities": {"bad": 1 - good, "good": good}}


def span(context: str, answer: str, score: float) -> Record:
    start = context.find(answer) if answer else -1
    return {"answer": "", "start": None, "end": None, "score": score} if start < 0 else {
        "answer": answer, "start": start, "end": start + len(answer), "score": score
    }  # fmt: skip


def find_span(record: Record) -> Record:
    """The question's last word, where it stands in the passage; the passage's first word is the next candidate."""
    wanted = record["question"].rstrip(" ?").split()[-1]
    found = span(record["context"], wanted, 0.75)
    second = span(record["context"], record["context"].split()[0], 0.2)
    absent = 0.1 if found["answer"] else 0.95
    return {**found, "no_answer_probability": absent, "n_best": [found, second]}


def find_names(record: Record) -> Record:
    names = {"Anna": "PER", "Lyon": "LOC", "Airbus": "ORG"}
    places = [(record["text"].find(name), name) for name in names]
    return {
        "entities": [
            {"text": name, "label": names[name], "start": start, "end": start + len(name), "score": 0.99}
            for start, name in sorted(places)
            if start >= 0
        ]
    }


def fill_masks(record: Record) -> Record:
    tokens = [{"token": "▁paris", "probability": 0.7}, {"token": "▁lyon", "probability": 0.2}]
    if "[MASK]" not in record["text"]:
        return {"error": "the text has no [MASK] to fill in"}
    predictions = [tokens] * record["text"].count("[MASK]")
    return {"predictions": predictions, "filled": record["text"].replace("[MASK]", "paris")}


SCRIPTS: dict[str, tuple[tuple[str, ...], Callable[[Record], Record]]] = {
    "classification": (("bad", "good"), classify),
    "multi_label": (
        ("art", "sport"),
        lambda record: {"labels": ["sport"], "probabilities": {"art": 0.2, "sport": 0.8}},
    ),
    "regression": ((), lambda record: {"score": float(len(record["text_a"]))}),
    "multiple_choice": ((), lambda record: {"answer": "C", "probabilities": {"A": 0.1, "B": 0.1, "C": 0.7, "D": 0.1}}),
    "squad_v1": ((), lambda record: find_span(record) | {"no_answer_probability": None}),
    "squad_v2": ((), find_span),
    "token_classification": (("O", "B-PER", "I-PER", "B-LOC", "I-LOC", "B-ORG", "I-ORG"), find_names),
    "embedding_pairs": ((), lambda record: {"score": 0.25}),
    "fill_mask": ((), fill_masks),
    "embeddings": ((), lambda record: {"pooled": [i / 32 - 1 for i in range(64)]}),
}


class ScriptedPredictor:
    """Answers by SCRIPTS, or by `respond`; keeps what it was called with, and waits while `go` is not set."""

    def __init__(self, task: str, respond: Callable[[Record], Record] | None = None) -> None:
        labels, script = SCRIPTS[task]
        self.task_info = TASKS[task].info(task=task, labels=labels, max_seq_length=128)
        self.respond = respond or script
        self.file: Path | None = None
        self.calls: list[list[Record]] = []
        self.threads: set[int] = set()
        self.started = threading.Event()
        self.go = threading.Event()
        self.go.set()

    def predict(self, records: list[Record]) -> list[Record]:
        self.calls.append(records)
        self.threads.add(threading.get_ident())
        self.started.set()
        self.go.wait(60)  # not for ever: a test that fails does not set it
        return [self.respond(record) for record in records]
