"""How well a vocabulary fits a text: how much of it is unknown, or broken into single letters."""

from dataclasses import astuple, dataclass
from typing import Self

import numpy as np

from src.text.corpus import IS_CJK
from src.tokenization import WORD_START, FullTokenizer

# Shares of the tokens above which a vocabulary plainly does not fit. google's has 2.2 % unknown in WikiText, and <unk>.
MOST_UNKNOWN, MOST_BROKEN = 0.05, 0.3
MOST_CAPITAL = 0.02  # of the entries, where the text is lower-cased


class LetterTable:
    """Which tokens of a vocabulary are single letters of words.

    starts: (V,) bool, tokens that begin a word. letters: (V,) bool, one letter with or without the mark of a word's
    begin, or the mark alone; not Chinese and Japanese characters, of which every vocabulary has single ones.
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
    """Counts that add up over parts of a text: its tokens, unknown ones, and single letters beside single letters."""

    tokens: int = 0
    unknown: int = 0
    broken: int = 0

    @classmethod
    def of(cls, ids: np.ndarray, table: LetterTable) -> Self:
        """Of (tokens,) ids; a letter is of a broken word if the piece before or after it in the word is one, too."""
        letters = table.letters[ids]
        joined = letters[1:] & letters[:-1] & ~table.starts[ids[1:]]
        broken = np.zeros(len(ids), bool)
        broken[1:] |= joined
        broken[:-1] |= joined
        return cls(len(ids), int((ids == table.unk_id).sum()), int(broken.sum()))

    def __add__(self, other: "VocabularyFit") -> "VocabularyFit":
        return VocabularyFit(*(one + another for one, another in zip(astuple(self), astuple(other), strict=True)))

    def facts(self) -> dict[str, float]:
        """Tokens, and the shares of them that are unknown and that are letters of broken words."""
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
        """What is said of a vocabulary that plainly does not fit, by its name; empty where it does."""
        shares = self.facts()
        if shares["unknown_share"] <= MOST_UNKNOWN and shares["broken_share"] <= MOST_BROKEN:
            return ""
        return (
            f"the vocabulary {name} does not fit this text: more than {MOST_UNKNOWN:.0%} unknown tokens, or more than "
            f"{MOST_BROKEN:.0%} single letters, leave little to learn; take another one, or train one of this text: "
            "python -m src.train_vocabulary"
        )


def case_warning(tokenizer: FullTokenizer) -> str:
    """What is said of a vocabulary of which many entries have capitals that the text loses; empty where few do."""
    capitals = sum(entry != entry.lower() and not entry.startswith("[") for entry in tokenizer.vocab)
    if not tokenizer.do_lower_case or capitals <= MOST_CAPITAL * tokenizer.vocab_size:
        return ""
    return (
        f"{capitals:,} of the {tokenizer.vocab_size:,} entries of {tokenizer.file.name} have capitals, which "
        "do_lower_case true takes off the text, so that they never occur: give do_lower_case false if the vocabulary "
        "was made so"
    )
