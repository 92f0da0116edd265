"""Settings of token classification in task.json, and what they make of logits: the tags of sentences."""

from collections.abc import Sequence

import numpy as np
from scipy.special import softmax

from src.tasks.record_processor import Outputs
from src.tasks.tag_decoding import best_path, decode, scheme_transitions, scored_transitions, tag_probabilities
from src.tasks.task_info import LabelledInfo


class EntityInfo(LabelledInfo):
    """Settings that depend on the training file.

    Attributes:
        words_are_characters: True if words of the training file, and so of raw text, are characters.
        follows_scheme: True if the training tags follow BIO or BIOES, and so predicted ones have to.
        crf: True if the network scores transitions between tags (CrfScores).
        mark_capitals: see NerSplit.
    """

    optional = LabelledInfo.optional | {"crf", "mark_capitals"}
    words_are_characters: bool = False
    follows_scheme: bool = False
    crf: bool = False
    mark_capitals: bool = False

    def tags(self, logits: np.ndarray, table: np.ndarray | None = None) -> tuple[list[str], np.ndarray]:
        """Return tags (words,) and their probabilities for a sentence's logits (words, C); table: see CrfScores."""
        allowed = scheme_transitions(self.labels) if self.follows_scheme else None
        if table is None:
            path = decode(logits, allowed)
            probabilities = softmax(logits, 1)
        else:
            scores = scored_transitions(table.astype(np.float64), allowed)
            path = best_path(logits, scores)
            probabilities = tag_probabilities(logits, scores)
        return [self.labels[tag] for tag in path], probabilities[np.arange(len(path)), path]

    def tags_of(self, sentences: Sequence[np.ndarray], outputs: Outputs) -> list[tuple[list[str], np.ndarray]]:
        """Return `tags` of sentences' logits (words, C); outputs: of the network."""
        table = outputs["transitions"][0] if self.crf else None
        return [self.tags(logits, table) for logits in sentences]
