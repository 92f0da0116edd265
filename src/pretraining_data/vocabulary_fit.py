"""Fit of a vocabulary to a text: the shares of unknown tokens and of words broken into single letters."""

from dataclasses import astuple, dataclass
from typing import Self

import numpy as np

from src.text.corpus import IS_CJK
from src.tokenization import WORD_START, FullTokenizer

# Shares of the tokens above which a vocabulary does not fit. google's has 2.2 % unknown in WikiText, <unk> included.
MAX_UNKNOWN = 0.05
MAX_BROKEN = 0.3
MAX_CAPITAL = 0.02  # share of the entries, for lower-cased text


class LetterTable:
    """Table of the tokens of a vocabulary that are single letters of words.

    Attributes:
        starts: (V,) bool, tokens that begin a word.
        letters: (V,) bool, one letter with or without the mark of a word's begin, or the mark alone; no Chinese and
            Japanese characters, which are single tokens in every vocabulary.
    """

    def __init__(self, tokenizer: FullTokenizer) -> None:
        tokens = [tokenizer.inv_vocab[index] for index in range(tokenizer.vocab_size)]
        if tokenizer.is_sentencepiece:
            self.starts = np.array([token.startswith(WORD_START) for token in tokens])
            plain = [token.removeprefix(WORD_START) for token in tokens]
        else:
            self.starts = np.array([not token.startswith("##") for token in tokens])
            plain = [token.removeprefix("##") for token in tokens]
        self.letters = np.array([not text or _is_letter(text) for text in plain])
        self.unk_id = tokenizer.unk_id


def _is_letter(text: str) -> bool:
    return len(text) == 1 and text.isalpha() and not IS_CJK.match(text)


@dataclass(frozen=True)
class VocabularyFit:
    """Counts of tokens, unknown tokens and single letters beside single letters; they add up over parts of a text."""

    tokens: int = 0
    unknown: int = 0
    broken: int = 0

    @classmethod
    def of(cls, ids: np.ndarray, table: LetterTable) -> Self:
        """Count (tokens,) ids; a letter is of a broken word if a neighbouring piece of the word is a letter, too."""
        letters = table.letters[ids]
        joined = letters[1:] & letters[:-1] & ~table.starts[ids[1:]]
        broken = np.zeros(len(ids), bool)
        broken[1:] |= joined
        broken[:-1] |= joined
        return cls(len(ids), int((ids == table.unk_id).sum()), int(broken.sum()))

    def __add__(self, other: "VocabularyFit") -> "VocabularyFit":
        return VocabularyFit(*(one + another for one, another in zip(astuple(self), astuple(other), strict=True)))

    def facts(self) -> dict[str, float]:
        """Return the number of tokens, and the shares of unknown tokens and of letters of broken words."""
        return {
            "tokens": self.tokens,
            "unknown_share": self.unknown / max(1, self.tokens),
            "broken_share": self.broken / max(1, self.tokens),
        }

    def __str__(self) -> str:
        shares = self.facts()
        return (
            f"of {self.tokens:,} tokens {shares['unknown_share']:.2%} are unknown and {shares['broken_share']:.2%} "
            "single letters of words that the vocabulary does not have"
        )

    def warning(self, name: str) -> str:
        """Return a warning if the vocabulary `name` does not fit the text, else an empty string."""
        shares = self.facts()
        if shares["unknown_share"] <= MAX_UNKNOWN and shares["broken_share"] <= MAX_BROKEN:
            return ""
        return (
            f"the vocabulary {name} does not fit this text: more than {MAX_UNKNOWN:.0%} of the tokens are unknown, or "
            f"more than {MAX_BROKEN:.0%} single letters; use another one, or train one on this text with "
            "python -m src.train_vocabulary"
        )


def case_warning(tokenizer: FullTokenizer) -> str:
    """Return a warning if many entries have capitals, which lower-cased text never has, else an empty string."""
    capitals = sum(entry != entry.lower() and not entry.startswith("[") for entry in tokenizer.vocab)
    if not tokenizer.do_lower_case or capitals <= MAX_CAPITAL * tokenizer.vocab_size:
        return ""
    return (
        f"{capitals:,} of the {tokenizer.vocab_size:,} entries of {tokenizer.file.name} have capitals and never occur "
        "in lower-cased text (do_lower_case is true); give do_lower_case false if the vocabulary was made so"
    )
