"""Records for every task that is exported."""

from collections.abc import Callable
from typing import Any

TEXTS = ["a", "some words, and more.", "who is it? " * 9]
RECORDS: dict[str, Callable[[str], dict[str, Any]]] = {
    "classification": lambda text: {"text_a": text, "text_b": "another one"},
    "regression": lambda text: {"text_a": text},
    "multi_label": lambda text: {"text_a": text},
    "multiple_choice": lambda text: {"article": text, "question": "why _ so", "options": ["a", "bc", "def", text]},
    "squad_v1": lambda text: {"context": text, "question": "who is it?"},
    "squad_v2": lambda text: {"context": text, "question": "who?"},
    "token_classification": lambda text: {"text": text},
    "embedding_pairs": lambda text: {"text_a": text, "text_b": "another one"},
    "fill_mask": lambda text: {"text": f"[MASK] {text[:12]} [MASK]"},
    "embeddings": lambda text: {"text_a": text},
}
