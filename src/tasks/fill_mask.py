"""Filling in [MASK]: the text for the network, and the likeliest tokens of its scores."""

from typing import Any

import numpy as np
from scipy.special import softmax

from model_utils.errors import DataError
from src.tokenization import WORD_START, FullTokenizer

MASK = "[MASK]"


def encode_masked(text: str, tokenizer: FullTokenizer, max_length: int) -> list[int]:
    """[CLS] text [SEP] as ids, with the mask token at each [MASK] of the text.

    Raises:
        DataError: there is no [MASK], or the text has more than max_length tokens.
    """
    ids = [tokenizer.cls_id]
    for number, part in enumerate(text.split(MASK)):
        tokens = tokenizer.tokenize(tokenizer.preprocess(part))
        if number > 0:
            ids.append(tokenizer.mask_id)
            if tokenizer.is_sentencepiece and part and not part[0].isspace() and tokens:
                # What follows the mask directly is no new word, but the model takes every text's start for one.
                inside = tokens[0].removeprefix(WORD_START)
                tokens[:1] = [inside] if inside in tokenizer.vocab else [] if not inside else tokens[:1]
        ids += tokenizer.convert_tokens_to_ids(tokens)
    if tokenizer.mask_id not in ids:
        raise DataError(f"the text {text[:80]!r} has no {MASK} to fill in")
    if len(ids) >= max_length:
        raise DataError(f"the text {text[:80]!r} has {len(ids) + 1} tokens, the network takes at most {max_length}")
    return [*ids, tokenizer.sep_id]


def likeliest(logits: np.ndarray, tokenizer: FullTokenizer, top_k: int) -> list[dict[str, Any]]:
    """[{"token", "probability"}, ...] of scores (V,), the likeliest first."""
    probabilities = softmax(logits.astype(np.float64))
    order = np.argsort(-probabilities, kind="stable")[:top_k]
    tokens = tokenizer.convert_ids_to_tokens(order)
    return [{"token": token, "probability": float(probabilities[i])} for token, i in zip(tokens, order, strict=True)]
