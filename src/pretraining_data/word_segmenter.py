"""Words of Chinese text, whose characters are masked together (Cui et al. 2019).

A token id carries one bit more: it marks a character inside a word, which the vocabulary cannot tell.
"""

import logging
from collections.abc import Iterable
from types import ModuleType

from model_utils.optional import require
from src.text.wordpiece import is_ideograph, split_words
from src.tokenization import FullTokenizer

INSIDE_WORD = 1 << 30  # bit of a token id; vocabularies are far smaller


def load_jieba() -> ModuleType:
    """Return the package jieba; UserError if it is not installed."""
    jieba = require("jieba", "requirements-chinese.txt", "word_segmenter=jieba")
    jieba.setLogLevel(logging.WARNING)
    return jieba


def encode_words(tokenizer: FullTokenizer, texts: Iterable[str]) -> list[list[int]]:
    """Return the ids of texts as FullTokenizer.encode_batch does, with INSIDE_WORD in Chinese words.

    Args:
        tokenizer: of WordPiece, which makes each Chinese character a token, and without added tokens.
    """
    jieba = load_jieba()
    encoded = []
    for text in texts:
        flags = [index > 0 for word in jieba.cut(text) for index, letter in enumerate(word) if is_ideograph(letter)]
        is_inside = iter(flags)
        tokens = split_words(text, tokenizer.do_lower_case)  # each Chinese character is one of them
        ids: list[int] = []
        for token, pieces in zip(tokens, tokenizer.encode_batch(tokens), strict=True):
            ids += [pieces[0] | INSIDE_WORD] if is_ideograph(token) and next(is_inside) else pieces
        encoded.append(ids)
    return encoded
